"""From an idea to a prompt: what survives letter for letter, what is stripped, and when the idea comes back instead."""

from types import SimpleNamespace

import pytest
from fastqwen.engine import FastQwenError
from fastqwen.nodes.clean import clean, last_whole, unpacked
from fastqwen.nodes.enhance import Wish, enhance, prefixed, unchanged
from fastqwen.nodes.presets import Preset
from fastqwen.nodes.request import pictures, stop_lines
from fastqwen.nodes.verbatim import parts_to_keep, put_back, split_words
from reports import report

PROSE = Preset("p", "Write prose.")
TAGS = Preset("t", "Write tags.", style="tags", language="English", prefix="score_9", negative="blurry")


class Writer:
    """A model that answers with what it is told, by seed, and keeps the requests."""

    def __init__(self, *replies, stop_reason="stop token", **more):
        self.replies, self.stop_reason, self.more, self.requests = replies, stop_reason, more, []

    def __call__(self, request):
        self.requests.append(request)
        text = self.replies[request.seed % len(self.replies)]
        found = report(new_tokens=7, tokens_per_second=12.5, stop_reason=self.stop_reason, **self.more)
        return SimpleNamespace(text=text, thinking="", report=found)


def run(idea, reply, preset=PROSE, **options):
    stop_reason = options.pop("stop_reason", "stop token")
    return enhance(Wish(idea, preset, **options), Writer(reply, stop_reason=stop_reason))


@pytest.mark.parametrize(
    "reply",
    [
        "A red fox sleeps.",
        "  \n A red fox\nsleeps.\n ",
        "Here is the enhanced prompt:\n\nA red fox sleeps.",
        "Here's an improved version of your idea: A red fox sleeps.",
        "Sure! Here is your prompt:\n**A red fox sleeps.**",
        "Of course. I've rewritten the prompt:\n\n> A red fox sleeps.",
        "**Enhanced Prompt:** A red fox sleeps.",
        "### A Fox in Winter\n\n### Prompt: A red fox sleeps.",
        '"A red fox sleeps."',
        '"Prompt: A red fox sleeps."',
        "Prompt: \u201cA red fox sleeps.\u201d",
        "\u597d\u7684\uff0c\u4ee5\u4e0b\u662f\u63d0\u793a\u8bcd\uff1aA red fox sleeps.",
        "```text\nA red fox sleeps.\n```",
        "A *red* fox **sleeps**.",
        "- A red fox\n- sleeps.",
        "A red fox sleeps.\n\nLet me know if you want changes!",
        "A red fox sleeps.\n\n---\n\nNegative prompt: blurry\nbad",
        "**Prompt 1:** A red fox sleeps.",
        "Prompt #2: A red fox sleeps.",
        "Sure!\nA red fox sleeps.",
        "Sure, that's a great idea! Here you go: A red fox sleeps.",
        "Here is your prompt:\n```text\nA red fox sleeps.\n```",
        '```json\n{"prompt": "A red fox\\nsleeps.", "negative_prompt": "blurry", "steps": 20}\n```',
        'Here is the JSON prompt:\n```\n{"Positive Prompt": "A red fox sleeps."}\n```',
        '{"text": "**A red fox sleeps.**"}',
    ],
)
def test_what_surrounds_the_prompt_is_stripped(reply):
    assert run("fox", reply).prompts == ["A red fox sleeps."]


@pytest.mark.parametrize(
    "text",
    [
        'A sign with text: "OPEN" over a door.',
        "The caption on the wall is red: it says nothing.",
        '"A" and "B" stand on two doors.',
        "A ratio of 3*4*5 boxes.",
        "Here is where the river bends.",
        "Sure, here is a fox: it sits.",
        "Here is a fox in one corner: it sits.",
        "Great foxes sit. Here is where they sleep.",
        '{"subject": "fox", "steps": 5}',
        '{"prompt": "fox", "text": "OPEN"}',
        '{"prompt": ["fox"]}',
        '{"prompt": "fox"',
        "It's 5 o'clock, the cats' bowl is empty.",
        "a (red:1.2) \\(x\\) __color__ <lora:a_b:0.8>",
    ],
)
def test_a_prompt_that_only_looks_like_it_stays(text):
    assert clean(text) == text and unpacked(text) == text


def test_a_listed_word_keeps_no_preamble():
    for keep in ("e", "prompt", "enhanced prompt"):
        assert run("fox", "Here is the enhanced prompt: A fox.", keep=keep).prompts == [f"A fox, {keep}."]
    assert run("fox", "1. FC K\u00f6ln plays, *really*.", keep="1. FC K\u00f6ln, *really*").prompts == [
        "1. FC K\u00f6ln plays, *really*."
    ]


def test_quoted_text_survives_inside_json():
    assert run('sign "OPEN"', '{"prompt": "A sign \\"OPEN\\" hangs"}').prompts == ['A sign "OPEN" hangs']


def test_tags_are_put_on_one_line():
    assert clean("Tags:\n- fox, red,\n- snow , ,night\n", tags=True) == "fox, red, snow, night"


IDEA = 'a __color__ fox (fluffy:1.3) says "Hello  World!" <lora:fox_v2:0.8> {day|night} embedding:nice'
PARTS = ["__color__", "(fluffy:1.3)", '"Hello  World!"', "<lora:fox_v2:0.8>", "{day|night}", "embedding:nice"]


def test_parts_are_found_in_order_and_listed_words_after_them():
    kept = parts_to_keep(IDEA, split_words("Mia, fox_v2\nred hat,, Mia"))
    assert [part.text for part in kept] == [*PARTS, "Mia", "red hat"]
    assert parts_to_keep("the dogs' bowl isn't Tom's, don't; a_b __ c _d_ (x) <b>", ()) == ()


@pytest.mark.parametrize(
    "reply",
    [
        "Here: " + IDEA,
        'Wild **__color__** (fluffy:1.3) fox: "Hello  World!" <lora:fox_v2:0.8> {day|night} `embedding:nice`',
        "A fluffy fox says \u201cHello  World!\u201d loudly.",
        "A (Fluffy:1.1) fox says 'hello  world!' loudly.",
        "A fluffy fox says Hello  World! loudly.",
    ],
)
def test_every_part_survives_letter_for_letter(reply):
    (text,) = run(IDEA, reply, keep="Mia").prompts
    assert all(part in text for part in [*PARTS, "Mia"]), text
    assert text != IDEA and "**" not in text and "`" not in text
    assert text.count("luffy") == 1 or text.startswith("Here"), "replaced where it stood"
    assert text.count("Hello  World!") == 1


def test_a_part_inside_another_word_does_not_count():
    assert put_back("a category of a cat-like dog", parts_to_keep("", ("cat", "dog"))) == (
        "a category of a cat-like dog",
        [],
    )
    assert put_back("a category.", parts_to_keep("", ("cat",))) == ("a category, cat.", [])
    assert (
        put_back("\u4e00\u53ea\u767d\u732b\u3002", parts_to_keep("", ("\u732b",)))[0]
        == "\u4e00\u53ea\u767d\u732b\u3002"
    )


def test_lost_quoted_text_gives_the_idea_and_a_warning():
    done = run('a shop sign "OPEN"', "A lovely shop.")
    assert done.prompts == ['a shop sign "OPEN"']
    assert 'warning: the reply left out "OPEN"' in done.report
    cut = run('a shop sign "OPEN"', "A lovely shop. Its sign", stop_reason="length")
    assert 'warning: the reply, cut off at max_length, left out "OPEN"' in cut.report, "what to raise"


@pytest.mark.parametrize("reply", ["", " \n", "```\n```", '""', "**"])
def test_an_empty_reply_gives_the_idea(reply):
    done = run("a fox", reply)
    assert done.prompts == ["a fox"] and "the model wrote nothing" in done.report


def test_a_reply_of_reasoning_only_says_so():
    assert "its reasoning used up max_length" in run("a fox", "", thinking=True, stop_reason="length").report


def test_a_reply_that_was_cut_ends_with_a_whole_part():
    done = run("fox", "A fox runs. It jumps over a", stop_reason="length")
    assert done.prompts == ["A fox runs."] and "max_length was reached" in done.report
    assert last_whole("fox, snow, a lon", tags=True) == "fox, snow"
    assert last_whole("A. then a very long rest without an end") == "A. then a very long rest without an end"


def test_variant_i_is_a_single_run_with_seed_plus_i():
    writer = Writer("zero", "one", "two")
    wish = dict(idea="fox", preset=PROSE, temperature=0.3, max_tokens=9)
    many = enhance(Wish(**wish, seed=2**64 - 1, variants=3), writer)
    single = [enhance(Wish(**wish, seed=(2**64 - 1 + i) % 2**64), writer).prompts[0] for i in range(3)]
    assert many.prompts == single == ["zero", "zero", "one"]
    assert writer.requests[:3] == writer.requests[3:]


def test_what_the_model_is_asked():
    writer = Writer("ok")
    picture = object()
    enhance(Wish('say "Hi"', PROSE, "Chinese", "long", keep="Mia", images=(picture,), thinking=True), writer)
    (request,) = writer.requests
    assert request.prompt == 'say "Hi"' and request.thinking and request.arguments()["images"] == [picture]
    for wanted in ("Write prose.", "about 160 words", "Write in Chinese", '\n"Hi"\nMia\n', "reference picture"):
        assert wanted in request.system
    enhance(Wish("fox", TAGS), writer)
    system = writer.requests[1].system
    assert "about 90 tags" in system and "Write in English" in system and "picture is attached" not in system
    assert "images" not in writer.requests[1].arguments() and not writer.requests[1].thinking


def test_prefix_negative_and_language_notes_come_from_the_preset():
    done = run("fox", "fox, snow", TAGS)
    assert (done.prompts, done.negative) == (["score_9, fox, snow"], "blurry")
    assert run("fox", "score_9, fox", TAGS).prompts == ["score_9, fox"]
    assert "written in English" in done.report and "seed 0: 7 tokens, 12.5 tokens/s" in done.report
    assert "Chinese was asked for" in run("fox", "fox", TAGS, language="Chinese").report
    assert "not in Chinese" in run("fox", "A fox.", language="Chinese").report


@pytest.mark.parametrize(
    "prefix,text",
    [
        ("p", "p, A fox"),
        ("p,", "p, A fox"),
        ("p, ", "p, A fox"),
        ("p.", "p. A fox"),
        ("p\uff0c", "p\uff0cA fox"),
        ("photo of ", "photo of A fox"),
        (", ", "A fox"),
    ],
)
def test_one_separator_stands_between_prefix_and_prompt(prefix, text):
    assert run("fox", "A fox", Preset("p", "Write.", prefix=prefix)).prompts == [text]
    assert prefixed(prefix, text) == text, "a prefix that is there is not put twice"
    if text != "A fox":
        assert prefixed(prefix, ", A fox") == text
    assert prefixed("score_9", "score_90") == "score_9, score_90"


def test_an_empty_idea_is_not_sent_without_a_picture():
    writer = Writer("A fox.")
    done = enhance(Wish(" ", PROSE), writer)
    assert done.prompts == [" "] and "the idea is empty" in done.report and writer.requests == []
    assert enhance(Wish("", PROSE, images=(object(),)), writer).prompts == ["A fox."]
    assert writer.requests[0].prompt == "Describe the attached picture."


def test_bypass_returns_the_idea():
    assert unchanged("a fox", TAGS).prompts == ["a fox"]


@pytest.mark.parametrize(
    "options", [dict(language="Klingon"), dict(length="epic"), dict(variants=0), dict(variants=65)]
)
def test_a_wrong_choice_is_named(options):
    with pytest.raises(FastQwenError, match=next(iter(options))):
        run("fox", "x", **options)


def test_stop_texts_are_lines_and_pictures_come_from_batches():
    assert stop_lines("END\n\n\\n\\n\n a\\\\n ") == ("END", "\n\n", " a\\n ")
    import torch

    batch, single = torch.zeros(2, 3, 4, 3), torch.ones(5, 6, 3)
    assert [tuple(picture.shape) for picture in pictures([batch, single])] == [(3, 4, 3), (3, 4, 3), (5, 6, 3)]
    assert pictures(None) == () and len(pictures(batch)) == 2


def test_the_report_says_what_was_read_before_and_each_note_once():
    notes = ["30 of 32 layers are read from RAM"]
    writer = Writer("A red fox.", prompt_tokens=90, cached_tokens=64, cached_seconds=0.25, notes=notes)
    lines = enhance(Wish("fox", PROSE, variants=2), writer).report.splitlines()
    assert (
        lines[1] == "seed 0: 7 tokens, 12.5 tokens/s, prompt 90 tokens (64 read before, 0.25 s saved), stopped: "
        "stop token"
    )
    assert lines[2].startswith("seed 1: ") and lines[3:] == ["note: 30 of 32 layers are read from RAM"]
