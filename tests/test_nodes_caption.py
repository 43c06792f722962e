"""From a reply about a picture to its caption: trigger, prefix, suffix, excluded words, length; a request a picture."""

from types import SimpleNamespace

import pytest
from fastqwen.engine import FastQwenError
from fastqwen.nodes.caption import OWN, STYLES, CaptionWish, captions, instruction_text, within, without_opening


class Writer:
    """Answers about a picture with what the picture is here: a text."""

    def __init__(self, stop_reason="stop token"):
        self.stop_reason, self.requests = stop_reason, []

    def __call__(self, request):
        self.requests.append(request)
        report = SimpleNamespace(new_tokens=5, tokens_per_second=2.0, stop_reason=self.stop_reason)
        return SimpleNamespace(text=request.images[0], report=report)


def one(reply, stop_reason="stop token", **wish):
    texts, report = captions(CaptionWish(**wish), [reply], Writer(stop_reason))
    return texts[0], report


def test_every_picture_has_its_own_request_and_the_same_seed():
    writer = Writer()
    texts, report = captions(CaptionWish(seed=5, thinking=True), ["a fox.", "a hen.", "an owl.", "a cat."], writer)
    assert texts == ["a fox.", "a hen.", "an owl.", "a cat."]
    assert [(len(request.images), request.seed, request.thinking) for request in writer.requests] == [(1, 5, True)] * 4
    assert report.splitlines()[3] == "picture 4: 5 tokens, 2.0 tokens/s, stop token"
    assert captions(CaptionWish(), [], writer) == ([], "")


def test_a_caption_gets_trigger_prefix_and_suffix():
    wish = dict(trigger="ohwx", prefix="photo of ", suffix=" [end]")
    assert one("A fox runs.", **wish)[0] == "photo of ohwx, A fox runs. [end]"
    assert one("Caption: ohwx runs.", **wish)[0] == "photo of ohwx runs. [end]"
    assert one("An ohwxa runs.", trigger="ohwx")[0] == "ohwx, An ohwxa runs."
    text, report = one("", trigger="ohwx")
    assert text == "ohwx" and "the model wrote nothing" in report


@pytest.mark.parametrize(
    "reply,caption",
    [
        ("The image shows a fox.", "A fox."),
        ("In this picture there is a fox.", "A fox."),
        ("The image of a saint hangs there.", "The image of a saint hangs there."),
        ("Shown is a fox.", "Shown is a fox."),
    ],
)
def test_an_opening_that_says_nothing_is_left_out(reply, caption):
    assert without_opening(reply) == caption


def test_excluded_words_take_their_sentence_or_tag_along():
    text, report = one("A fox runs. A Watermark is in the corner. It snows.", exclude="watermark, signature")
    assert text == "A fox runs. It snows." and "left out with its words: A Watermark is in the corner." in report
    assert (
        one("fox, red watermark, snow, watermarked", style="tags", exclude="Watermark")[0] == "fox, snow, watermarked"
    )
    text, report = one("A watermark.", exclude="watermark")
    assert text == "" and "nothing is left" in report


def test_long_captions_end_with_a_whole_part():
    text = "A fox runs fast. It jumps over a log. Snow falls."
    assert one(text, max_words=9)[0] == "A fox runs fast. It jumps over a log."
    assert one(text, max_words=8)[0] == "A fox runs fast."
    assert within("One, two three four five", 3, tags=False) == "One, two three"
    assert one("red fox, snow, night sky", style="tags", max_words=3)[0] == "red fox, snow"
    text, report = one("A fox runs. It ju", stop_reason="length")
    assert text == "A fox runs." and "max_length was reached" in report


def test_what_the_model_is_asked():
    wish = CaptionWish("tags", "Name the breed.", "ohwx", exclude="text, logo", max_words=30)
    asked = instruction_text(wish)
    for part in (STYLES["tags"], "Name the breed.", "at most 30 words", "ohwx", "Do not mention: text, logo."):
        assert part in asked
    assert instruction_text(CaptionWish(OWN, "What breed?")) == "What breed?\n\nAnswer with the caption alone."


@pytest.mark.parametrize("wish", [CaptionWish(OWN, " "), CaptionWish("haiku")])
def test_a_wish_without_a_question_is_refused(wish):
    with pytest.raises(FastQwenError, match="style is"):
        captions(wish, ["x"], Writer())
