"""Scripts that time a GPU say in one sentence that there is none."""

import importlib
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
