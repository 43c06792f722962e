"""The key-value cache of one attention layer: committed tokens, then up to eight staged rows."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..kernels.attention import part_at
from ..kernels.rows import SLOTS, cache_offsets, check_path, depths


class KVCache:
    """Keys and values [kv_heads, slots, D] in `dtype`.

    `length` tokens are committed. A pass stages its rows in the slots that follow; `commit` keeps a path by
    moving an accepted leaf to its true slot, and everything else is overwritten by the next pass.
    """

    def __init__(self, kv_heads: int, head_dim: int, *, capacity: int, dtype: torch.dtype, device: torch.device):
        self.capacity = capacity
        slots = _round_up_to_part(capacity + SLOTS)
        self.keys = torch.zeros(kv_heads, slots, head_dim, dtype=dtype, device=device)
        self.values = torch.zeros_like(self.keys)
        self.length = 0
        self._staged: tuple[int, ...] = ()  # parents of the staged rows

    @property
    def bytes(self) -> int:
        return 2 * self.keys.numel() * self.keys.element_size()

    def append(self, k: Tensor, v: Tensor):
        """Commits T prompt tokens: k, v [T, kv_heads, D]."""
        end = self.length + k.shape[0]
        self.keys[:, self.length : end] = k.transpose(0, 1)
        self.values[:, self.length : end] = v.transpose(0, 1)
        self.length, self._staged = end, ()

    def stage(self, k: Tensor, v: Tensor, parents: Sequence[int]) -> tuple[int, ...]:
        """Writes the rows of a pass, k and v [SLOTS, kv_heads, D], past the committed length.

        Returns the slot in the cache of each row.
        """
        slots = tuple(self.length + offset for offset in cache_offsets(parents))
        for row, slot in enumerate(slots):
            self.keys[:, slot], self.values[:, slot] = k[row], v[row]
        self._staged = tuple(parents)
        return slots

    def commit(self, path: Sequence[int]):
        """Keeps the staged rows of `path` (slots from the root along parents)."""
        check_path(self._staged, path)
        offsets, depth = cache_offsets(self._staged), depths(self._staged)
        for row in path:
            if offsets[row] != depth[row]:
                source, target = self.length + offsets[row], self.length + depth[row]
                self.keys[:, target], self.values[:, target] = self.keys[:, source], self.values[:, source]
        self.length, self._staged = self.length + len(path), ()


def _round_up_to_part(slots: int) -> int:
    """The end of the part that holds the last slot: a part is always read whole, at one shape."""
    end = 0
    while end < slots:
        end += part_at(end)
    return end
