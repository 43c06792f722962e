"""The key-value cache of one attention layer: committed tokens, then up to eight staged rows."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..kernels import kv_int8
from ..kernels.attention import part_at
from ..kernels.rows import SLOTS, cache_offsets, check_path, depths

# How keys and values are kept -> dtype of the stored numbers.
KINDS = {"int8": torch.int8, "bf16": torch.bfloat16, "fp32": torch.float32}

SMALLEST_CLASS = 1024  # tokens


def capacity_class(tokens: int, limit: int) -> int:
    """Tokens to allocate for where `tokens` are wanted and at most `limit` allowed: a power of two from 1024, or the
    limit where that is less. Calls of one class can share buffers and what was captured over them, so a cache grows by
    taking the next class and never moves. Raises ValueError for more tokens than the limit."""
    if tokens > limit:
        raise ValueError(f"{tokens} tokens are wanted and {limit} fit")
    return min(limit, max(SMALLEST_CLASS, 1 << max(0, tokens - 1).bit_length()))


def cache_bytes(kv_heads: int, head_dim: int, *, capacity: int, kind: str) -> int:
    """Bytes of one layer's keys and values for `capacity` tokens: what KVCache(...).bytes will be."""
    token = head_dim * KINDS[kind].itemsize + (4 if kind == "int8" else 0)
    return 2 * kv_heads * _round_up_to_part(capacity + SLOTS) * token


def tokens_within(limit_bytes: int, bytes_for: Callable[[int], int], most: int) -> int:
    """The largest capacity, at most `most` tokens, whose cache takes no more than `limit_bytes`; 0 if none does.

    bytes_for  capacity -> bytes, never falling: of all layers together (TrunkState.bytes of such a state)
    """
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if bytes_for(middle) <= limit_bytes else (low, middle - 1)
    return low


class Stored:
    """Keys or values of a layer: numbers [kv_heads, slots, D], and for int8 a float32 scale [kv_heads, slots]."""

    def __init__(self, kv_heads: int, slots: int, head_dim: int, *, kind: str, device: torch.device):
        self.numbers = torch.zeros(kv_heads, slots, head_dim, dtype=KINDS[kind], device=device)
        self.scales = torch.zeros(kv_heads, slots, device=device) if kind == "int8" else None

    @property
    def bytes(self) -> int:
        scales = 0 if self.scales is None else self.scales.nbytes
        return self.numbers.nbytes + scales

    def write(self, slots: slice, x: Tensor):
        """x [T, kv_heads, D] goes to T slots."""
        x = x.transpose(0, 1)
        if self.scales is None:
            self.numbers[:, slots] = x
        else:
            self.numbers[:, slots], self.scales[:, slots] = kv_int8.quantise(x)

    def move(self, source: int, target: int):
        """Copies one slot's bytes."""
        self.numbers[:, target] = self.numbers[:, source]
        if self.scales is not None:
            self.scales[:, target] = self.scales[:, source]

    def rows(self, start: int, end: int) -> tuple[Tensor, ...]:
        """Slots start..end-1 as they are stored, views [kv_heads, end - start, ...]: numbers, and scales for int8."""
        numbers = self.numbers[:, start:end]
        return (numbers,) if self.scales is None else (numbers, self.scales[:, start:end])

    def read(self, start: int, end: int) -> Tensor:
        """Slots start..end-1 as float32 [kv_heads, end - start, D]: what the stored bytes mean."""
        numbers = self.numbers[:, start:end]
        return numbers.float() if self.scales is None else kv_int8.dequantise(numbers, self.scales[:, start:end])


class KVCache:
    """Keys and values as `kind` ("int8", "bf16" or "fp32"). What `append` and `stage` take and `read` gives are keys as
    `for_cache` made them; `mixed` says whether that changes them.

    `length` tokens are committed. A pass stages its rows in the slots that follow; `commit` keeps a path by
    moving an accepted leaf to its true slot, and everything else is overwritten by the next pass. `scratch` is what the
    kernels of a pass need (attention/decode.py), or None where plain torch attends; `prefill_kernel` says whether
    prompt rows attend by a kernel.
    """

    def __init__(self, kv_heads: int, head_dim: int, *, capacity: int, kind: str, device: torch.device):
        self.capacity, self.mixed = capacity, kind == "int8" and kv_int8.mixes(head_dim)
        slots = _round_up_to_part(capacity + SLOTS)
        self.keys = Stored(kv_heads, slots, head_dim, kind=kind, device=device)
        self.values = Stored(kv_heads, slots, head_dim, kind=kind, device=device)
        self.length = 0
        self._staged: tuple[int, ...] = ()  # parents of the staged rows
        self.scratch = None
        self.prefill_kernel = False

    @property
    def bytes(self) -> int:
        return self.keys.bytes + self.values.bytes

    def for_cache(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys [..., heads, D] in the basis that keys are kept in; their products are the same."""
        if not self.mixed:
            return q, k
        return kv_int8.mixed_queries(q).to(q.dtype), kv_int8.mixed_keys(k)

    def query_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """What the kernels keep queries in. Mixed ones take one more rounding: fp16 rounds eight times finer than bf16,
        and int8 codes are multiplied in it."""
        return torch.float16 if self.mixed and dtype == torch.bfloat16 else dtype

    def read(self, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Keys and values of slots start..end-1 as float32 [kv_heads, end - start, D]."""
        return self.keys.read(start, end), self.values.read(start, end)

    def append(self, k: Tensor, v: Tensor):
        """Commits T prompt tokens: k, v [T, kv_heads, D]."""
        slots = slice(self.length, self.length + k.shape[0])
        self.keys.write(slots, k)
        self.values.write(slots, v)
        self.appended(k.shape[0])

    def appended(self, tokens: int):
        """Says that a kernel stored that many prompt tokens behind the committed ones."""
        self.length, self._staged = self.length + tokens, ()

    def rows(self, start: int, end: int) -> tuple[Tensor, ...]:
        """Keys and values of slots start..end-1 as they are stored: views, for `restore`."""
        return (*self.keys.rows(start, end), *self.values.rows(start, end))

    def restore(self, rows: Sequence[Tensor]):
        """Appends tokens from copies of what `rows` gave, on any device: the same bytes."""
        end = self.length + rows[0].shape[1]
        for target, source in zip(self.rows(self.length, end), rows, strict=True):
            target.copy_(source)
        self.length, self._staged = end, ()

    def truncate(self, length: int):
        """Drops what was appended behind the first `length` tokens; staged rows are dropped too."""
        assert length <= self.length
        self.length, self._staged = length, ()

    def adopt(self, length: int, move: tuple[int, int] | None):
        """Takes over from passes that the device controlled: `length` tokens are committed once the bytes of slot
        move[0] are in slot move[1]."""
        if move is not None:
            self.keys.move(*move)
            self.values.move(*move)
        self.length, self._staged = length, ()

    def reset(self):
        """Empties the cache for another sequence. Its memory stays where it is, so what captured its addresses still
        holds, and keeps its bytes: no row sees a slot past its own position."""
        self.truncate(0)

    def stage(self, k: Tensor, v: Tensor, parents: Sequence[int]) -> tuple[int, ...]:
        """Writes the rows of a pass, k and v [SLOTS, kv_heads, D], past the committed length.

        Returns the slot in the cache of each row.
        """
        slots = tuple(self.length + offset for offset in cache_offsets(parents))
        for row, slot in enumerate(slots):
            self.keys.write(slice(slot, slot + 1), k[row : row + 1])
            self.values.write(slice(slot, slot + 1), v[row : row + 1])
        self.staged(parents)
        return slots

    def staged(self, parents: Sequence[int]):
        """Says that rows of these parents lie past the committed length, where `stage` puts them."""
        self._staged = tuple(parents)

    def commit(self, path: Sequence[int]):
        """Keeps the staged rows of `path` (slots from the root along parents)."""
        check_path(self._staged, path)
        offsets, depth = cache_offsets(self._staged), depths(self._staged)
        for row in path:
            if offsets[row] != depth[row]:
                self.keys.move(self.length + offsets[row], self.length + depth[row])
                self.values.move(self.length + offsets[row], self.length + depth[row])
        self.length, self._staged = self.length + len(path), ()


def _round_up_to_part(slots: int) -> int:
    """The end of the part that holds the last slot: a part is always read whole, at one shape."""
    end = 0
    while end < slots:
        end += part_at(end)
    return end
