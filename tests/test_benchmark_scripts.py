"""What benchmark scripts cannot work with is one sentence: no GPU, a file that is none of theirs."""

import importlib
import json
import sys

import pytest
import torch

pytest.importorskip("triton")
SCRIPTS = (
    "attention", "cache_memory", "deltanet", "draft_head", "float_linear", "linear_sweep", "prefill",
    "prefill_attention", "prefix_cache", "prepare_variants", "streaming", "vision",
)  # fmt: skip


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
        (json.dumps({"model": "demo", "tokens": 9, "seeds": 1, "ranks": {}}), "'tokens': 9.*asked for is.*'tokens': 7"),
    ],
)
def test_a_recording_that_is_another_ones_or_none_is_refused(content, message, tmp_path, monkeypatch):
    file = tmp_path / "ranks.json"
    file.write_text(content)
    arguments = ["replay", "--model", "demo", "--tokens", "7", "--seeds", "1", "--record", str(file)]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit, match=message):
        importlib.import_module("fastqwen.benchmarks.replay").main()
    assert file.read_text() == content
