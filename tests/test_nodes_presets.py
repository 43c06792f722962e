"""Presets of the prompt enhancer: the built-in ones, the user's files, and what is said of a wrong name or file."""

import pytest
from fastqwen.engine import FastQwenError
from fastqwen.nodes.preset_texts import BUILT_IN
from fastqwen.nodes.presets import parse, preset, preset_names


def test_built_in_presets_are_whole():
    for name in BUILT_IN:
        built = preset(name, "nowhere")
        assert len(built.instruction) > 200 and built.words["short"] < built.words["medium"] < built.words["long"]
        assert not (built.tags and not built.negative)
    assert not any(preset(name, "nowhere").negative for name in ("Flux", "Qwen-Image", "Z-Image", "plain"))


def test_users_presets_are_chosen_by_file_name(tmp_path):
    (tmp_path / "mine.json").write_text('{"instruction": "Rhyme.", "words": {"short": 5}}', encoding="utf-8-sig")
    (tmp_path / "Flux.json").write_text('{"instruction": "My Flux."}')
    (tmp_path / "notes.txt").write_text("x")
    assert preset_names(tmp_path) == [*BUILT_IN, "mine"]
    mine = preset("mine", tmp_path)
    assert (mine.instruction, mine.words) == ("Rhyme.", {"short": 5, "medium": 90, "long": 160})
    assert preset("Flux", tmp_path).instruction == "My Flux."
    for name in ("gone", "../mine", ""):
        with pytest.raises(FastQwenError, match="no preset named .*choose one of Flux"):
            preset(name, tmp_path)


def test_an_unknown_preset_is_named_in_short_and_no_impossible_file_is_advised(tmp_path):
    long = '{"instruction": "a", "' + "k" * 5000 + '": 1}'
    for name in ("../../etc/passwd", "", "x" * 5000, "a\nb", "C:a", "a.", "..", "\\\\host\\a"):
        with pytest.raises(FastQwenError, match="no preset named") as refused:
            preset(name, tmp_path)
        assert "into" not in str(refused.value) and len(str(refused.value)) < 300
    with pytest.raises(FastQwenError, match="or put My model 2.5.json into"):
        preset("My model 2.5", tmp_path)
    with pytest.raises(FastQwenError, match="unknown key 'kkk") as refused:
        parse("mine", long)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "text,named",
    [
        ("{", "not valid JSON"),
        ("[1]", "holds a list"),
        ("{}", "'instruction'"),
        ('{"instruction": " "}', "'instruction'"),
        ('{"instruction": 5}', "'instruction'"),
        ('{"instruction": "a", "temperature": 1}', "unknown key 'temperature'"),
        ('{"instruction": "a", "style": "poem"}', "'style': use one of 'sentences', 'tags'"),
        ('{"instruction": "a", "negative": null}', "'negative'"),
        ('{"instruction": "a", "words": {"short": true}}', "'words'"),
        ('{"instruction": "a", "words": {"huge": 5}}', "'words'"),
        ('{"instruction": "a", "words": {"short": 2000, "long": 1}}', "short 2000, medium 90, long 1 as 'words': give"),
        ('{"instruction": "a", "words": {"long": 30}}', "short 40, medium 90, long 30 as 'words': give"),
    ],
)
def test_a_bad_preset_is_refused_in_one_sentence(text, named):
    with pytest.raises(FastQwenError, match=named) as refused:
        parse("mine", text)
    message = str(refused.value)
    assert message.startswith("The preset 'mine.json' ") and "\n" not in message
