"""Time on a GPU: medians of CUDA-graph replays, the machine's own read ceiling, and what a result was measured on."""

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import triton
import triton.language as tl

from ..weights import FastQwenError
from .scripts import one_sentence


def gpu(what: str) -> torch.device:
    """The GPU that `what` times. Raises FastQwenError where there is none."""
    if not torch.cuda.is_available():
        raise FastQwenError(f"{what} times a GPU and finds none: run it on a machine with one.")
    return torch.device("cuda")


def main_gpu(what: str) -> torch.device:
    """The same for a script: its sentence and exit status 1 where there is none."""
    with one_sentence():
        return gpu(what)


def graph_microseconds(calls: Sequence[Callable[[], object]], replays: int = 20) -> float:
    """Median microseconds of one call, over replays of a graph that holds all of `calls` once.

    Give as many calls over different weights as exceed the L2 cache, so that each reads memory.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    for _ in range(3):
        graph.replay()
    times = []
    for _ in range(replays):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / len(calls))
    return sorted(times)[len(times) // 2]


@triton.jit
def _read_kernel(p_x, p_out, BLOCK: tl.constexpr, STEPS: tl.constexpr):
    program = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.int32)
    for i in range(STEPS):
        total ^= tl.load(p_x + (program.to(tl.int64) * STEPS + i) * BLOCK + tl.arange(0, BLOCK))
    tl.store(p_out + program, tl.sum(total))


def read_ceiling(device: torch.device) -> float:
    """GB/s of a plain reduction over 4 GiB."""
    values, block, steps = 1 << 30, 4096, 8
    x = torch.randint(-(2**31), 2**31 - 1, (values,), dtype=torch.int32, device=device)
    grid = values // (block * steps)
    out = torch.empty(grid, dtype=torch.int32, device=device)
    time = graph_microseconds([lambda: _read_kernel[(grid,)](x, out, BLOCK=block, STEPS=steps, num_warps=8)], 10)
    return values * 4 / time / 1e3


def provenance() -> dict[str, str | None]:
    """What stands beside every result: the GPU, the versions, the commit (None outside a git checkout)."""
    root = Path(__file__).resolve().parent.parent
    try:
        done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True)
        commit = done.stdout.strip() or None
    except FileNotFoundError:  # no git here
        commit = None
    return {
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__, "commit": commit,
    }  # fmt: skip
