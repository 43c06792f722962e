"""What benchmark scripts cannot work with is one sentence: no GPU, a file that is none of theirs. And that a sweep past
stop tokens goes on to its length."""

import importlib
import json
import sys

import pytest
import tiny
import torch
from fastqwen.benchmarks.prompts import KINDS
from fastqwen.engine import load

pytest.importorskip("triton")
SCRIPTS = (
    "attention", "cache_memory", "deltanet", "draft_head", "float_linear", "linear_sweep", "prefill",
    "prefill_attention", "prefix_cache", "prepare_variants", "streaming", "vision",
)  # fmt: skip
RECORDED = {
    "model": "demo", "tokens": 7, "texts": 1, "ranks": {},
    "sampling": {"temperatures": [0.0, 0.7, 1.0], "top_k": 20, "top_p": 0.95},
    "prompts": {kind: list(prompts[:1]) for kind, (prompts, _) in KINDS.items()},
}  # fmt: skip


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_that_times_a_gpu_says_that_there_is_none(name, monkeypatch):
    monkeypatch.setattr(sys, "argv", [name])
    with pytest.raises(SystemExit, match=f"benchmarks.{name} times a GPU and finds none: run it on a machine with one"):
        importlib.import_module(f"fastqwen.benchmarks.{name}").main()


@pytest.mark.parametrize("name", ["acceptance", "replay", "same_text", "short_replies", "shortlist"])
def test_a_model_that_is_not_there_is_one_sentence(name, monkeypatch):
    monkeypatch.setattr(sys, "argv", [name, "--model", "nowhere"])
    with pytest.raises(SystemExit, match="No checkpoint at 'nowhere'"):
        importlib.import_module(f"fastqwen.benchmarks.{name}").main()


@pytest.mark.parametrize(
    "content,message",
    [
        ("no JSON", "is no recording of this benchmark"),
        ("[]", "is no recording of this benchmark"),
        (json.dumps(RECORDED | {"tokens": 9}), "was recorded with tokens 9: not what is asked for now"),
        (json.dumps(RECORDED | {"prompts": {}}), r"was recorded with prompts \{\}: not what is asked for now"),
    ],
)
def test_a_recording_that_is_another_ones_or_none_is_refused(content, message, tmp_path, monkeypatch):
    file = tmp_path / "ranks.json"
    file.write_text(content)
    arguments = ["replay", "--model", "demo", "--tokens", "7", "--texts", "1", "--record", str(file)]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit, match=message):
        importlib.import_module("fastqwen.benchmarks.replay").main()
    assert file.read_text() == content


def test_a_recording_that_could_not_be_kept_is_refused_before_it_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["replay", "--record", str(tmp_path / "absent" / "ranks.json")])
    with pytest.raises(SystemExit, match="absent' is no folder: make it"):
        importlib.import_module("fastqwen.benchmarks.replay").main()


@pytest.mark.parametrize("script,option", [("replay", "--texts"), ("same_text", "--tokens"), ("acceptance", "--seeds")])
@pytest.mark.parametrize("value", ["0", "-3", "two"])
def test_a_count_that_is_none_is_refused_in_one_sentence(script, option, value, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [script, option, value])
    with pytest.raises(SystemExit):
        importlib.import_module(f"fastqwen.benchmarks.{script}").main()
    assert f"{value!r} is no whole number of at least 1" in capsys.readouterr().err


def test_more_texts_than_there_are_prompts_are_refused(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["replay", "--texts", "15"])
    with pytest.raises(SystemExit, match="15 texts were asked for; a kind has prompts for 1 to 14"):
        importlib.import_module("fastqwen.benchmarks.replay").main()


@pytest.mark.parametrize("switch,length", [([], 0), (["--past-stops"], 4)])
def test_past_stops_every_reply_has_all_its_tokens(switch, length, tmp_path, monkeypatch, capsys):
    folder = tiny.save_folder(tiny.oracle("gqa4", **tiny.ONE_OF_EACH), tmp_path / "model", mtp=True)
    engine = load(tiny.save_tokenizer(folder), device="cpu")
    engine.tokenizer.stop_ids = tuple(range(engine.tokenizer.size))  # whatever it draws
    script = importlib.import_module("fastqwen.benchmarks.same_text")
    monkeypatch.setattr(script, "load", lambda model, draft_rows: engine)
    monkeypatch.setattr(sys, "argv", ["same_text", "--prompts", "1", "--tokens", "4", *switch])
    script.main()
    found = json.loads(capsys.readouterr().out)
    assert found["past_stops"] == bool(switch) and found["tokens_each"] == 4
    for kind in script.kinds_of_sampling(40):
        assert found[kind] == {"replies": 16, "tokens": 16 * length, "differing": 0}
