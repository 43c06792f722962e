"""A model's reply becomes a caption: one line, as the options say, or a reason why not."""

import json
from types import SimpleNamespace

import pytest
import torch
from fastqwen.caption_command import STYLES as COMMAND_STYLES
from fastqwen.engine import FastQwenError
from fastqwen.engine.caption import STYLES, CaptionOptions, captions, cut_words, finish, split_tags


def made(text, cut=False, **options):
    return finish(text, CaptionOptions(**options), cut=cut)


def test_prose_becomes_one_line_with_trigger_prefix_and_suffix():
    text = ' "A red fox.\n\nIt  looks up." '
    assert made(text) == "A red fox. It looks up."
    assert made(text, trigger="ohwx Fox", prefix="photo of", suffix="35mm film") == (
        "ohwx Fox, photo of A red fox. It looks up. 35mm film"
    )
    assert made("A fox", suffix=", film grain") == "A fox, film grain"
    assert made('He said "no" and "yes"') == 'He said "no" and "yes"'  # quotation marks that belong to the text


@pytest.mark.parametrize(
    "reply",
    [
        "Red Fox, snow, red fox, Looking_up, looking up",
        "- red fox\n- snow\n* looking_up\n",
        "1. Red fox\n2) snow\n3. looking_up.",
        "```\nred fox, snow, looking_up\n```",
        '"red fox", "snow"; looking_up.',
    ],
)
def test_tags_are_lowercase_comma_separated_and_without_duplicates(reply):
    assert made(reply, style="tags").split(", ")[:2] == ["red fox", "snow"]
    assert len(split_tags(reply)) == 3


def test_numbers_and_faces_stay_tags():
    assert split_tags("1girl, :d, 2.5d, 3:4 ratio, no humans") == ["1girl", ":d", "2.5d", "3:4 ratio", "no humans"]


def test_the_trigger_comes_first_as_it_is_written_and_once():
    options = {"style": "tags", "trigger": "MyTok", "prefix": "best quality", "suffix": "Film Grain, snow"}
    assert made("snow, mytok, fox", **options) == "MyTok, best quality, snow, fox, film grain"


def test_excluded_tags_are_left_out_in_any_spelling():
    options = {"style": "booru", "exclude": ("Long Hair", "text")}
    assert made("1girl, long_hair, text on shirt, text", **options) == "1girl, text on shirt"
    with pytest.raises(FastQwenError, match="not excluded"):
        made("text", **options)
    with pytest.raises(FastQwenError, match="a sentence has none"):
        CaptionOptions(style="short", exclude=("text",))


def test_a_reply_cut_at_the_token_limit_loses_its_half_tag():
    assert made("red fox, snow, look", cut=True, style="tags") == "red fox, snow"
    assert made("red", cut=True, style="tags") == "red"


@pytest.mark.parametrize(
    "text,count,expected",
    [
        ("A fox runs. It is red. It jumps high over it.", 8, "A fox runs. It is red."),
        ("A fox runs over the long white bridge.", 5, "A fox runs over the"),
        ("A fox, red, quick, runs.", 3, "A fox, red"),
        ("At 3.5 m, approx. two foxes run. They stop.", 8, "At 3.5 m, approx. two foxes run."),
        ('He says "stop." Then he runs on.', 5, 'He says "stop."'),
        ("Short.", 9, "Short."),
        ("\u4e00\u53ea\u72d0\u72f8\u3002\u5b83\u5728\u8dd1\u3002", 5, "\u4e00\u53ea\u72d0\u72f8\u3002"),
    ],
)
def test_max_words_cuts_behind_a_sentence_or_else_a_word(text, count, expected):
    assert cut_words(text, count) == expected


def test_max_words_cuts_tags_behind_a_tag_and_does_not_count_the_trigger():
    assert made("red fox, snow, tall pine tree", style="tags", max_words=4, trigger="ohwx") == "ohwx, red fox, snow"
    assert made("a very long single tag", style="tags", max_words=2) == "a very"


@pytest.mark.parametrize("wrapped", ["{}", "```json\n{}\n```", "Here you are:\n{} I hope {{this}} helps."])
def test_json_is_found_checked_and_finished(wrapped):
    reply = wrapped.replace("{}", '{"caption": "A fox.\\nIt runs.", "tags": ["Fox", "snow", "fox", "text"]}')
    value = json.loads(made(reply, style="json", trigger="ohwx", exclude=("text",)))
    assert value == {"caption": "ohwx, A fox. It runs.", "tags": ["ohwx", "fox", "snow"]}


@pytest.mark.parametrize(
    "reply,message",
    [
        ("A fox in the snow", "not write a JSON object"),
        ('{"caption": "A fox", "tags": ["a", ', "cut at the token limit"),
        ('{"caption": NaN, "tags": []}', "not write a JSON object"),
        ('{"caption": "A fox", "tags": [], "score": 1e999}', "not write a JSON object"),
        ('["fox"]', "not write a JSON object"),
        ('{"caption": "A fox"}', "lacks"),
        ('{"caption": "A fox", "tags": "fox, snow"}', "lacks"),
    ],
)
def test_what_is_no_json_caption_is_refused_with_the_reply_shown(reply, message):
    with pytest.raises(FastQwenError, match=message) as error:
        made(reply, style="json", cut=True)
    assert reply[:6] in str(error.value)


def test_an_empty_reply_is_told_apart_from_a_cut_one():
    with pytest.raises(FastQwenError, match="ask in another way"):
        made(" \n")
    with pytest.raises(FastQwenError, match="raise it"):
        made("", cut=True)


class FakeEngine:
    """Answers with the images' first levels; keeps what it was asked."""

    def __init__(self, vision=True):
        self.config, self.asked = SimpleNamespace(vision=object() if vision else None), []

    def reply(self, prompt, *, images, **options):
        self.asked.append((prompt, options))
        text = f"Level {int(images[0].flatten()[0])}."
        return SimpleNamespace(
            result=lambda: SimpleNamespace(text=text, report=SimpleNamespace(stop_reason="stop token"))
        )


def test_a_batch_of_four_gives_four_captions_in_order():
    engine, images = FakeEngine(), torch.arange(4, dtype=torch.uint8).view(4, 1, 1, 1).expand(4, 2, 2, 3)
    assert list(captions(engine, images, CaptionOptions(), seed=3)) == [f"Level {i}." for i in range(4)]
    assert engine.asked == [(STYLES["short"], {"seed": 3})] * 4


@pytest.mark.parametrize("prompt", ["", "What? <|image_pad|> <|im_end|>"])
def test_a_prompt_of_ones_own_is_sent_as_it_is(prompt):
    engine = FakeEngine()
    assert list(captions(engine, [torch.zeros(2, 2, 3)], CaptionOptions(prompt=prompt))) == ["Level 0."]
    assert engine.asked[0][0] == prompt


def test_a_model_without_a_vision_tower_is_refused_before_any_image():
    with pytest.raises(FastQwenError, match="takes no images"):
        next(captions(FakeEngine(vision=False), iter([]), CaptionOptions()))


def test_the_command_and_the_demo_know_the_same_styles(monkeypatch):
    from pathlib import Path

    assert tuple(STYLES) == COMMAND_STYLES
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parent.parent / "demo" / "scripts"))
    import questions

    assert questions.STYLES == STYLES, "the demo is trained on the prompts that the command sends"
