"""Attention over a key-value cache: one decode row at a time by parts, and a chunk of prompt rows.

Decode. The keys before a row are cut into parts at fixed absolute positions. A part yields, per query head,
(maximum m, sum s of exp(score - m), accumulator a of exp(score - m) v). Parts merge in position order:

    M = max(m1, m2);  s = s1 e^(m1 - M) + s2 e^(m2 - M);  a likewise;  output = a / s

and the row's own key and value come last, so a row's bits depend on its position and its keys alone: not on
where its own key lies in the cache, nor on what else the pass holds. Slots at or past the row's position
contribute exactly 0 whatever the memory holds.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

PART_ENDS = ((4096, 128), (32768, 512))  # positions below the first number are cut into parts of the second
LONG_PART = 2048


def part_at(position: int) -> int:
    """Length of the part that starts at `position` (itself a part's start)."""
    return next((length for end, length in PART_ENDS if position < end), LONG_PART)


def decode_row(q: Tensor, keys: Tensor, values: Tensor, position: int, own: int) -> Tensor:
    """One row's attention output.

    q         [heads, D], already normed and rotated
    keys, values  the cache [kv_heads, slots, D] in its own dtype; the slots of the last part must exist
    position  how many leading slots the row sees
    own       the slot that holds the row's own key and value
    Returns [heads, D] float32.
    """
    kv_heads = keys.shape[0]
    grouped = q.float().view(kv_heads, -1, q.shape[-1]) * q.shape[-1] ** -0.5  # [kv_heads, group, D]
    state = None
    start = 0
    while start < position:
        end = start + part_at(start)
        part = _part(grouped, keys[:, start:end], values[:, start:end], position - start)
        state = part if state is None else _merge(state, part)
        start = end
    itself = _part(grouped, keys[:, own : own + 1], values[:, own : own + 1], 1)
    state = itself if state is None else _merge(state, itself)
    _, total, accumulated = state
    return (accumulated / total).reshape(q.shape)


def _part(grouped, keys, values, seen):
    keys, values = keys.float(), values.float()
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


def prefill_rows(q: Tensor, keys: Tensor, values: Tensor, start: int) -> Tensor:
    """Causal attention of T new rows at positions start..start+T-1 over the cache that already holds them.

    q [heads, T, D]; keys, values [kv_heads, slots, D] as stored. Returns [heads, T, D] in q's dtype.
    """
    end = start + q.shape[1]
    position = torch.arange(end, device=q.device)
    seen = position <= position[start:, None]  # [T, end]
    keys, values = keys[:, :end].to(q.dtype), values[:, :end].to(q.dtype)
    return F.scaled_dot_product_attention(q[None], keys[None], values[None], attn_mask=seen, enable_gqa=True)[0]
