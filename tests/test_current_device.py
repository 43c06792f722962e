"""Kernels go to torch's current device: it is the model's while something of it runs, and the caller's again after."""

import sys

import pytest
import torch
from fastqwen.engine import GREEDY, load
from fastqwen.engine.passes import HostPasses
from fastqwen.weights import FastQwenError
from fastqwen.weights.backend import decide

SECOND = torch.device("cuda", 1)
OPTIONS = {"settings": GREEDY, "max_tokens": 8}


class Current:
    """torch.cuda.device without a GPU: `now` are the devices that it was entered with and not left."""

    now: list[torch.device] = []

    def __init__(self, device):
        self._device = device

    def __enter__(self):
        self.now.append(self._device)

    def __exit__(self, *error):
        self.now.pop()


@pytest.fixture
def current(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device", Current)
    monkeypatch.setattr(Current, "now", [])
    return Current


def test_kernels_are_checked_on_the_device_that_they_are_checked_for(current):
    pytest.importorskip("triton")
    seen = []
    assert decide(SECOND, "some", lambda device: seen.append(list(current.now)))[0]
    assert not decide(SECOND, "other", lambda device: current.now[1])[0]  # raises
    assert seen == [[SECOND]] and not current.now


def test_weights_are_read_with_the_models_device_as_the_current_one(current, monkeypatch):
    module, seen = sys.modules["fastqwen.engine.load"], []

    def read(*_, **options):
        seen.append(list(current.now))
        raise FastQwenError("far enough")

    for name, stand_in in (("resolve_device", lambda name: SECOND), ("_check_room", lambda *_: None)):
        monkeypatch.setattr(module, name, stand_in)
    monkeypatch.setattr(module, "load_model", read)
    with pytest.raises(FastQwenError, match="far enough"):
        load("demo", device="cuda:1")
    assert seen == [[SECOND]] and not current.now


def test_a_reply_has_its_device_at_every_step_and_its_reader_has_it_never(current, monkeypatch):
    engine, seen, close = load("demo", device="cpu"), [], HostPasses.close
    monkeypatch.setattr(engine.memory, "device", SECOND)  # whose weights are still in RAM
    monkeypatch.setattr(engine.memory, "model_for", lambda *_: None)
    monkeypatch.setattr(HostPasses, "close", lambda passes: (seen.append(list(current.now)), close(passes)))
    reply = engine.reply("a fox", on_step=lambda progress: seen.append(list(current.now)), **OPTIONS)
    for delta in reply:
        assert delta.text and not current.now
    whole, seen[:] = len(seen), [step for step in seen if step != [SECOND]]
    assert whole > 3 and not seen and reply.result().token_ids
    reply = engine.reply("a fox", **OPTIONS)
    next(iter(reply))
    iter(reply).close()  # its reader has had enough
    assert seen == [[SECOND]] and not current.now


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_engines_on_two_gpus_take_turns():
    engines = [load("demo", device=f"cuda:{index}") for index in range(2)]
    texts: tuple[list[str], list[str]] = ([], [])
    for deltas in zip(*(engine.reply("a fox", mtp="off", **OPTIONS) for engine in engines), strict=True):
        assert torch.cuda.current_device() == 0
        for text, delta in zip(texts, deltas, strict=True):
            text.append(delta.text)
    for engine, text in zip(reversed(engines), texts, strict=True):
        assert engine.memory.is_shared and engine.generate("a fox", mtp="3", **OPTIONS).text == "".join(text)
        engine.offload()
        assert engine.generate("a fox", **OPTIONS).text == "".join(text)
