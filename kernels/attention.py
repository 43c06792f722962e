"""Attention over a key-value cache: one decode row at a time by parts, and a chunk of prompt rows.

Decode. The keys before a row are cut into parts at fixed absolute positions. A part yields, per query head,
(maximum m, sum s of exp(score - m), accumulator a of exp(score - m) v). Parts merge in position order:

    M = max(m1, m2);  s = s1 e^(m1 - M) + s2 e^(m2 - M);  a likewise;  output = a / s

and the row's own key and value come last, so a row's bits depend on its position and its keys alone: not on
where its own key lies in the cache, nor on what else the pass holds. Slots at or past the row's position
contribute exactly 0 whatever the memory holds.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Read = Callable[[int, int], tuple[Tensor, Tensor]]
PREFILL_TILE = 2048  # slots; a multiple of every part
# Positions below the first number are cut into parts of the second: about a 32nd of its position, so that none is large
# and parts to merge stay few.
PART_ENDS = ((2048, 64), (4096, 128), (8192, 256), (32768, 512), (65536, 1024))
LONG_PART = 2048


def part_at(position: int) -> int:
    """Length of the part that starts at `position` (itself a part's start)."""
    return next((length for end, length in PART_ENDS if position < end), LONG_PART)


def decode_row(q: Tensor, read: Read, position: int, own: int) -> Tensor:
    """One row's attention output.

    q         [heads, D], already normed and rotated
    read      (start, end) -> keys and values of those slots, float32 [kv_heads, end - start, D]; the slots of the
              last part must exist
    position  how many leading slots the row sees
    own       the slot that holds the row's own key and value
    Returns [heads, D] float32.
    """
    state = None
    start = 0
    while start < position:
        end = start + part_at(start)
        part = _part(q, *read(start, end), position - start)
        state = part if state is None else _merge(state, part)
        start = end
    itself = _part(q, *read(own, own + 1), 1)
    state = itself if state is None else _merge(state, itself)
    _, total, accumulated = state
    return (accumulated / total).reshape(q.shape)


def _part(q, keys, values, seen):
    """q [heads, D] against one part -> (maximum, sum, accumulator) by key-value head: [kv_heads, group, ...]."""
    grouped = q.float().view(keys.shape[0], -1, q.shape[-1]) * q.shape[-1] ** -0.5
    scores = grouped @ keys.mT  # [kv_heads, group, part]
    if seen < keys.shape[1]:
        masked = torch.arange(keys.shape[1], device=keys.device) >= seen
        scores = scores.masked_fill(masked, float("-inf"))
        values = values.masked_fill(masked[:, None], 0.0)  # 0 * NaN would be NaN
    maximum = scores.amax(-1, keepdim=True)
    weights = torch.exp(scores - maximum)
    return maximum, weights.sum(-1, keepdim=True), weights @ values


def _merge(first, second):
    maximum = torch.maximum(first[0], second[0])
    scale_first, scale_second = torch.exp(first[0] - maximum), torch.exp(second[0] - maximum)
    return maximum, first[1] * scale_first + second[1] * scale_second, first[2] * scale_first + second[2] * scale_second


def prefill_rows(q: Tensor, read: Read, start: int) -> Tensor:
    """Causal attention of T new rows at positions start..start+T-1 over the cache that already holds them.

    q [heads, T, D]; read as in `decode_row`. Keys and values are taken in tiles of PREFILL_TILE slots at absolute
    multiples of it, so that no more than a tile of them is held in full precision. Returns [heads, T, D] in q's dtype.
    """
    end = start + q.shape[1]
    if end <= PREFILL_TILE:
        keys, values = (x.to(q.dtype) for x in read(0, end))
        seen = _causal(start, 0, end, q.device)
        return F.scaled_dot_product_attention(q[None], keys[None], values[None], attn_mask=seen, enable_gqa=True)[0]
    state = None
    for first in range(0, end, PREFILL_TILE):
        last = min(first + PREFILL_TILE, end)
        part = _prefill_part(q, *read(first, last), _causal(start, first, last, q.device, rows=q.shape[1]))
        state = part if state is None else _merge(state, part)
    _, total, accumulated = state
    return (accumulated / total).reshape(q.shape).to(q.dtype)


def _prefill_part(q, keys, values, seen):
    """q [heads, T, D] against a tile, masked by seen [T, tile] -> maximum, sum, accumulator [kv_heads, group, T, .]."""
    grouped = q.float().view(keys.shape[0], -1, *q.shape[1:]) * q.shape[-1] ** -0.5
    scores = (grouped @ keys.mT[:, None]).masked_fill(~seen, float("-inf"))
    # A row that sees nothing of a tile has no maximum; any finite one makes its weights exact zeros.
    maximum = scores.amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).min)
    weights = torch.exp(scores - maximum)
    return maximum, weights.sum(-1, keepdim=True), weights @ values[:, None]


def _causal(start, first, last, device, rows=None):
    """Which of slots first..last-1 each row from position `start` on sees: [T, last - first]."""
    rows = last - start if rows is None else rows
    return torch.arange(first, last, device=device) <= torch.arange(start, start + rows, device=device)[:, None]
