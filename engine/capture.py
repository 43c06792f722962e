"""CUDA graphs of parts of a round."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache

import torch

from .arena import no_collection


@cache
def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """One for every model on a device: cuBLAS keeps a workspace of megabytes for each stream that it has seen."""
    return torch.cuda.Stream(device)


def capture(
    parts: Sequence[tuple[Callable[[], object], AbstractContextManager]], *, pool, stream: torch.cuda.Stream
) -> torch.cuda.CUDAGraph:
    """One graph of parts that run one after another, each with what it is captured in (engine/arena.py)."""
    graph = torch.cuda.CUDAGraph()
    # Other threads of the process may go on using the GPU meanwhile.
    options = {"pool": pool, "stream": stream, "capture_error_mode": "thread_local"}
    with no_collection(), torch.cuda.graph(graph, **options):
        for part, memory in parts:
            with memory:
                part()
    return graph


def levels(depth: int) -> tuple[str, ...]:
    """The parts that make a draft's lists of `depth` levels."""
    return "first", *["next"] * (depth - 1)
