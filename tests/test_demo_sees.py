"""The demo checkpoint answers about pictures that it is shown."""

import re

import pytest
import torch
from fastqwen.engine import GREEDY, load


@pytest.fixture(scope="module")
def demo():
    return load("demo-bf16", device="cpu")


def plain(colour):
    return torch.tensor({"red": (255, 0, 0), "green": (0, 128, 0), "blue": (0, 0, 255)}[colour], dtype=torch.uint8)


def named(engine, prompt, **given):
    text = engine.generate(prompt, settings=GREEDY, max_tokens=24, **given).text
    return re.findall("red|orange|yellow|green|blue|purple|pink|brown|black|white|grey", text.lower())


@pytest.mark.parametrize("order", ["red green blue", "blue red green"])
def test_the_demo_names_three_plain_images_in_their_order(demo, order):
    images = [plain(colour).expand(512, 512, 3) for colour in order.split()]
    assert named(demo, "Which colours do you see, in order?", images=images) == order.split()


def test_the_demo_names_the_colour_that_a_clip_ends_with(demo):
    frames = [plain(colour).expand(256, 256, 3) for colour in ("red", "blue") for _ in range(8)]
    assert named(demo, "Which colour is last?", videos=[(frames, 8.0)]) == ["blue"]
