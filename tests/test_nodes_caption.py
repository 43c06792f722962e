"""From the caption node's inputs to one request a picture and its caption; engine/caption.py has tests of its own."""

from types import SimpleNamespace

import pytest
from fastqwen.engine import FastQwenError, SamplingSettings
from fastqwen.engine.caption import STYLES as ENGINE_STYLES
from fastqwen.nodes.caption import OWN, STYLES, CaptionWish, captions
from reports import report


class Writer:
    """Answers about a picture with what the picture is here: a text."""

    def __init__(self, stop_reason="stop token", **more):
        self.stop_reason, self.more, self.requests = stop_reason, more, []

    def __call__(self, request):
        self.requests.append(request)
        found = report(new_tokens=5, tokens_per_second=2.0, stop_reason=self.stop_reason, **self.more)
        return SimpleNamespace(text=request.images[0], report=found)


def test_every_picture_has_its_own_request_and_the_same_seed():
    writer = Writer()
    wish = CaptionWish(seed=5, thinking=True, max_tokens=9, temperature=0.2)
    texts, lines = captions(wish, ["A fox.", "A hen.", "An owl.", "A cat."], writer)
    assert texts == ["A fox.", "A hen.", "An owl.", "A cat."]
    assert [len(request.images) for request in writer.requests] == [1] * 4
    assert {(request.seed, request.thinking, request.max_tokens) for request in writer.requests} == {(5, True, 9)}
    assert writer.requests[0].settings == SamplingSettings(temperature=0.2)
    assert lines.splitlines()[3] == "picture 4: 5 tokens, 2.0 tokens/s, prompt 0 tokens, stopped: stop token"
    assert captions(CaptionWish(), [], writer) == ([], "")


def test_the_inputs_are_the_engines_options():
    wish = CaptionWish("tags", "", "ohwx", "photo", "end", "Watermark, logo", 4)
    texts, _ = captions(wish, ["fox, watermark, snow, night, red bird"], Writer())
    assert texts == ["ohwx, photo, fox, snow, night, end"]
    assert CaptionWish(max_words=0).options().max_words is None


def test_a_prompt_replaces_the_styles_question():
    for wish, question in (
        (CaptionWish("short"), ENGINE_STYLES["short"]),
        (CaptionWish("tags", " Which breed? "), "Which breed?"),
        (CaptionWish(OWN, "Which breed?"), "Which breed?"),
    ):
        writer = Writer()
        captions(wish, ["a Fox"], writer)
        assert writer.requests[0].prompt == question
    assert set(STYLES) == {*ENGINE_STYLES, OWN}


@pytest.mark.parametrize(
    "wish", [CaptionWish(OWN, " "), CaptionWish("haiku"), CaptionWish("short", exclude="a"), CaptionWish(max_words=-1)]
)
def test_a_wish_that_cannot_be_met_is_refused_before_a_picture_is_looked_at(wish):
    writer = Writer()
    with pytest.raises(FastQwenError):
        captions(wish, ["x"], writer)
    assert writer.requests == []


def test_a_reply_that_is_no_caption_gives_an_empty_one_and_a_warning():
    texts, report = captions(CaptionWish(), ["A fox.", " ", "A hen."], Writer("length"))
    assert texts == ["A fox.", "", "A hen."]
    assert "  warning: no caption: The model wrote nothing (the token limit was reached" in report


def test_the_report_says_what_was_read_before_and_each_note_once():
    writer = Writer(prompt_tokens=90, cached_tokens=64, cached_seconds=0.25, notes=["the picture was reduced"])
    _, lines = captions(CaptionWish(), ["A fox.", "A hen."], writer)
    first, second, *rest = lines.splitlines()
    assert "prompt 90 tokens (64 read before, 0.25 s saved)" in first and second.startswith("picture 2: ")
    assert rest == ["note: the picture was reduced"]


def test_a_reply_of_one_token_has_no_speed():
    one = report(new_tokens=1, prompt_tokens=3, stop_reason="length")
    for told in (one.lines()[-1], one.short()):
        assert "1 token, speed not measured, prompt 3 tokens" in told and "0.0" not in told.partition("prompt")[0]
