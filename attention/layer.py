"""The gated attention mixer: one layer in four.

query, gate = W_q h (per head [query | gate]);  k = W_k h;  v = W_v h
query, k <- rms_norm over the head, then rotary;  o = softmax attention;  out = W_o (o * sigmoid(gate))
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..kernels.attention import decode_row, prefill_rows
from ..kernels.attention_append import append_prompt
from ..kernels.attention_control import HEAD_DIMS
from ..kernels.prefill_attention import prefill_attention
from ..kernels.rms_norm import rms_norm
from ..kernels.rows import SLOTS, depths, each_row
from ..weights import Norm, Reader
from .backend import attention_kernels, prefill_kernels, rounds_queries, takes
from .cache import KVCache
from .decode import DecodeScratch, attend, stage
from .rotary import rotate


@dataclass(frozen=True)
class AttentionConfig:
    """heads: query heads; kv_heads divides heads; head_dim: size D of one head; rms_eps of the q and k norms."""

    heads: int
    kv_heads: int
    head_dim: int
    rms_eps: float

    def shapes(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """Tensor name within the layer -> shape."""
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "q_proj.weight": (2 * query, hidden),
            "k_proj.weight": (key, hidden),
            "v_proj.weight": (key, hidden),
            "o_proj.weight": (hidden, query),
            "q_norm.weight": (self.head_dim,),
            "k_norm.weight": (self.head_dim,),
        }


class GatedAttention:
    """One attention layer's weights, the norm before it included; the cache is passed in."""

    def __init__(self, reader: Reader, prefix: str, config: AttentionConfig, norm: Norm):
        self.config = config
        self.qkv = reader.projection(prefix, ("q_proj", "k_proj", "v_proj"), norm=norm)
        self.out = reader.projection(prefix, ("o_proj",))
        self.q_norm, self.k_norm = reader.vector(prefix + "q_norm.weight"), reader.vector(prefix + "k_norm.weight")

    def new_cache(
        self, *, capacity: int, kind: str, device: torch.device, scratch: DecodeScratch | None = None,
        kernels: bool = True,
    ) -> KVCache:  # fmt: skip
        """An empty cache; layers whose passes run one after another may share a `scratch`. `kernels`: where they can be
        used, otherwise plain torch."""
        config = self.config
        cache = KVCache(config.kv_heads, config.head_dim, capacity=capacity, kind=kind, device=device)
        if not kernels:
            return cache
        if attention_kernels(device, kind)[0] and takes(config.heads, config.kv_heads, config.head_dim):
            cache.scratch = scratch or DecodeScratch()
        cache.prefill_kernel = prefill_kernels(device, kind)[0] and config.head_dim in HEAD_DIMS
        return cache

    def prefill(self, x: Tensor, cos: Tensor, sin: Tensor, *, cache: KVCache) -> Tensor:
        """T prompt rows: x [T, H], cos and sin [T, dim / 2] -> x plus this layer's output, [T, H].

        Their keys and values are committed.
        """
        start = cache.length
        if cache.prefill_kernel and cache.scratch is not None:
            return self._prefill_by_kernels(x, cos, sin, cache)
        q, gate, k, v = self._heads(*self.qkv(x), cos, sin)
        q, k = cache.for_cache(q, k)
        cache.append(k, v)
        if cache.prefill_kernel:
            q, int8 = q.contiguous(), rounds_queries(cache.keys.numbers.dtype, q.dtype)
            o = prefill_attention(
                q, cache.keys, cache.values, start=start, out=torch.empty_like(q), int8_queries=int8
            )  # fmt: skip
        else:
            o = prefill_rows(q.transpose(0, 1).contiguous(), cache.read, start).transpose(0, 1)
        return self.out(_gated(o, gate), x)[0]

    def extend(self, x: Tensor, cos: Tensor, sin: Tensor, *, cache: KVCache):
        """`prefill` without an output: keys and values are committed."""
        if cache.prefill_kernel and cache.scratch is not None:
            self._append_by_kernels(x, cos, sin, cache)
            return
        q, _, k, v = self._heads(*self.qkv(x), cos, sin)
        cache.append(cache.for_cache(q, k)[1], v)

    def verify(self, x: Tensor, cos: Tensor, sin: Tensor, *, parents: Sequence[int], cache: KVCache) -> Tensor:
        """Up to eight tree rows: x [SLOTS, H], cos and sin [SLOTS, dim / 2] -> x plus the output, [SLOTS, H].

        Nothing is committed.
        """
        rows = len(parents)
        projected = self.qkv.verify(x, rows)
        if cache.scratch is not None:
            control = cache.scratch.control(cache.length, parents, x.device)
            mixed = self._attend(projected, cos, sin, control, cache)
            cache.staged(parents)
            return self.out.verify(mixed, rows, x)[0]
        q, gate, k, v = each_row(self._heads, rows, *projected, cos, sin)
        q, k = each_row(cache.for_cache, rows, q, k)
        slots = cache.stage(k, v, parents)
        o = torch.zeros_like(q)
        for row, depth in enumerate(depths(parents)):
            o[row] = decode_row(q[row].clone(), cache.read, cache.length + depth, slots[row])
        return self.out.verify(each_row(_gated, rows, o, gate), rows, x)[0]

    def decode(self, x: Tensor, cos: Tensor, sin: Tensor, *, control: Tensor, cache: KVCache) -> Tensor:
        """`verify` by kernels alone, for a cache that has a scratch: rows, length and tree are read from `control`
        (kernels/attention_control.py) on the device. The cache's own length is neither read nor changed."""
        mixed = self._attend(self.qkv.verify(x, SLOTS), cos, sin, control, cache)
        return self.out.verify(mixed, SLOTS, x)[0]

    def extend_slots(self, x: Tensor, cos: Tensor, sin: Tensor, *, control: Tensor, cache: KVCache):
        """`decode` without an output: keys and values are stored."""
        norms, projected = (self.q_norm, self.k_norm), self._by_heads(self.qkv.verify(x, SLOTS))
        stage(projected, norms, (cos, sin), eps=self.config.rms_eps, control=control, cache=cache)

    def _prefill_by_kernels(self, x, cos, sin, cache):
        c, start = self.config, cache.length
        q, query_gate = self._append_by_kernels(x, cos, sin, cache)
        out, int8 = x.new_empty(q.shape), rounds_queries(cache.keys.numbers.dtype, x.dtype)
        o = prefill_attention(q, cache.keys, cache.values, start=start, out=out, int8_queries=int8)
        return self.out(_gated(o, query_gate[..., c.head_dim :]), x)[0]

    def _append_by_kernels(self, x, cos, sin, cache):
        """Commits keys and values; returns the queries and what is projected to queries and gates."""
        c, start = self.config, cache.length
        query_gate, k, v = projected = self._by_heads(self.qkv(x))
        q = query_gate.new_empty(len(x), c.heads, c.head_dim, dtype=cache.query_dtype(x.dtype))
        append_prompt(
            projected, (self.q_norm, self.k_norm), (cos, sin), eps=c.rms_eps, keys=cache.keys, values=cache.values,
            start=start, q=q,
        )  # fmt: skip
        cache.appended(len(x))
        return q, query_gate

    def _attend(self, projected, cos, sin, control, cache):
        c = self.config
        norms = self.q_norm, self.k_norm
        return attend(self._by_heads(projected), norms, (cos, sin), eps=c.rms_eps, control=control, cache=cache)

    def _by_heads(self, projected):
        c, (q, k, v) = self.config, projected
        size = c.kv_heads, c.head_dim
        return q.view(-1, c.heads, 2 * c.head_dim), k.view(-1, *size), v.view(-1, *size)

    def _heads(self, q, k, v, cos, sin):
        """What the projections give -> q and gate [..., heads, D], k and v [..., kv_heads, D]."""
        c, leading = self.config, q.shape[:-1]
        q, gate = q.view(*leading, c.heads, 2 * c.head_dim).split(c.head_dim, -1)
        k, v = (x.view(*leading, c.kv_heads, c.head_dim) for x in (k, v))
        q = rotate(rms_norm(q, self.q_norm, c.rms_eps), cos, sin)
        return q, gate, rotate(rms_norm(k, self.k_norm, c.rms_eps), cos, sin), v


def _gated(o: Tensor, gate: Tensor) -> Tensor:
    """o and gate [..., heads, D] -> [..., heads * D]."""
    return (o * torch.sigmoid(gate)).flatten(-2)
