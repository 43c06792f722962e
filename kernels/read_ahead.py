"""Weights that come next, asked into the L2 cache by blocks that ride along with a launch which leaves the memory idle.

A DeltaNet step and the attention of a decode pass are bound by latency: they move a few megabytes in the time in which
the memory could move forty. The linears behind them are bound by the memory. So some more blocks of those launches ask
for the weights of the next two linears; which then begin with what is in the cache. Nothing is computed here, and no
result depends on it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LINE, PIECE = 128, 8192  # bytes that a thread asks for at once; the larger from compute capability 9.0
BLOCKS = 32  # that ride along: enough to fill the memory's queues, few enough for multiprocessors that have no other


@dataclass(frozen=True)
class ReadAhead:
    """Two contiguous matrices, how many pieces of each are asked for, from the first on, and whether of PIECE bytes."""

    first: Tensor
    second: Tensor
    pieces: tuple[int, int]
    bulk: bool

    @property
    def arguments(self) -> tuple:
        """What the kernels take: pointers to int32 and numbers of pieces."""
        words = [tensor.view(torch.uint8).view(-1).view(torch.int32) for tensor in (self.first, self.second)]
        return words[0], self.pieces[0], words[1], self.pieces[1]


def default_budget(device: torch.device) -> int:
    """Bytes to ask for: half of the L2, since its other users and its own copies need the rest."""
    return torch.cuda.get_device_properties(device).L2_cache_size // 2


def read_ahead(matrices: Sequence[Tensor], budget: int | None = None) -> ReadAhead | None:
    """The first `budget` bytes of the first two of `matrices`, in the order in which they will be read; None for none,
    and off NVIDIA.

    budget  bytes; None: `default_budget` of their device
    """
    device = matrices[0].device
    if device.type != "cuda" or torch.version.hip is not None:
        return None
    left = default_budget(device) if budget is None else budget
    bulk = torch.cuda.get_device_capability(device) >= (9, 0)
    size, pieces = PIECE if bulk else LINE, []
    two = matrices[0], matrices[min(1, len(matrices) - 1)]
    for matrix in two:
        pieces.append(min(matrix.nbytes, left) // size if matrix.is_contiguous() else 0)
        left -= pieces[-1] * size
    return ReadAhead(*two, tuple(pieces), bulk) if any(pieces) else None
