"""Replies in a process whose tensors come from cudaMallocAsync, as ComfyUI's do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fastqwen.engine import SamplingSettings, load

pytest.importorskip("triton")
pytestmark = pytest.mark.gpu
MODELS = ("demo", "demo-w4a8", "demo-bf16")
REPLIES = f"""
import torch
from fastqwen.engine import SamplingSettings, load
for model in {MODELS}:
    engine = load(model)
    assert torch.cuda.get_allocator_backend() == "cudaMallocAsync"
    for mtp, top_k in (("off", 40), ("auto", 40), ("3", 0), ("auto", 40)):
        settings = SamplingSettings(temperature=1.0, top_k=top_k, top_p=1.0)
        print(list(engine.generate("a fox", settings=settings, seed=3, mtp=mtp, max_tokens=40).token_ids), flush=True)
        if top_k == 0:
            engine.offload()
    del engine
"""


def test_comfyuis_allocator_has_the_same_text_by_graphs(tmp_path):
    """Graphs that were captured, replayed, given up and captured again, in a process that uses cudaMallocAsync."""
    allocator = {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}  # as ComfyUI sets it
    environment = os.environ | allocator | {"PYTHONPATH": str(tmp_path)}
    (tmp_path / "fastqwen").symlink_to(Path(__file__).resolve().parent.parent, target_is_directory=True)
    command = [sys.executable, "-c", REPLIES]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    assert "no CUDA graphs" not in done.stderr, done.stderr
    assert "uncaptured" not in done.stderr, done.stderr
    texts = iter(done.stdout.splitlines())
    for model in MODELS:
        plain, wanted = load(model), {}
        for top_k in (40, 0):
            settings = SamplingSettings(temperature=1.0, top_k=top_k, top_p=1.0)
            reply = plain.generate("a fox", settings=settings, seed=3, mtp="off", max_tokens=40)
            wanted[top_k] = str(list(reply.token_ids))
        assert [next(texts) for _ in range(4)] == [wanted[40], wanted[40], wanted[0], wanted[40]]
    assert not list(texts)
