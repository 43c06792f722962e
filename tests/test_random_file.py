"""Random checkpoint files for benchmarks: read like released ones."""

from dataclasses import replace

import pytest
import torch
from fastqwen.model.config import read_config
from fastqwen.model.load import load_model
from fastqwen.weights import Checkpoint

CPU = torch.device("cpu")


def test_a_random_file_is_read_as_the_config_it_was_written_for_and_gives_numbers(tmp_path):
    pytest.importorskip("triton")
    from fastqwen.benchmarks.random_file import small_config, write_random_checkpoint

    config = replace(small_config(), vocab_size=512)
    for path in (tmp_path / "a.safetensors", tmp_path / "b.safetensors"):
        write_random_checkpoint(path, config, CPU, seed=3)
    assert path.read_bytes() == (tmp_path / "a.safetensors").read_bytes()
    checkpoint = Checkpoint.open(path)
    assert read_config(checkpoint)[0] == replace(config, declares_mtp=False)  # no config in the file
    model = load_model(checkpoint, CPU, torch.float32, lambda done, total: None)
    with torch.inference_mode():
        hidden = model.trunk.prefill(model.trunk.embed([5, 6, 7]), model.trunk.new_state(8))
        first, last = model.trunk.logits(hidden[0]), model.trunk.logits(hidden[-1])
    assert torch.isfinite(last).all() and last.std() > 0.01 and not torch.equal(first, last)
