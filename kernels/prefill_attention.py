"""Causal attention of a chunk of prompt rows over a key-value cache that already holds them.

    t_i = (q . k_i) D^-1/2 log2 e,   o = sum 2^(t_i - m) v_i / sum 2^(t_i - m)   over the slots i <= the row's position

The reference is kernels/attention.py's prefill_rows, which holds all scores of a tile; here scores stay in registers.

Rows. Keys come in tiles of N slots at absolute multiples of N, in position order, under a running maximum. A tile of
which a row sees nothing multiplies its sums by 1 and adds 0. M and N are settled by the cache's kind, the head's size
and the GPU, never by the lengths. So a row's bits depend on its position, query, keys and values alone: not on where
the call starts, how many rows it has, or what lies in slots that the row does not see.

Numbers. int8 codes are exact in fp16, and so are bf16 queries from 2^-17 up (|q| < 65504); float32 queries are taken
as the sum of two. Products add up in float32 and the key's scale is applied after. A value's scale u joins the
exponent, t' = t + log2 u, of which the running maximum is taken, so the weight times u is at most 1 and is rounded to
fp16; the sum below takes it divided by u again, in float32. Scales below 2^-60 count as 2^-60. bf16 caches with bf16
queries multiply in bf16, the rest as three products of tf32. With S = sum |q_j k_j| D^-1/2 log2 e of the largest key
and L = the largest |t'|, the output is off by at most

    (w + 2^-23 (D + 16) S + 2^-23 (n + 16 + 4 L)) sum p |v| / sum p,   w = 2^-11 int8, 2^-8 bf16, 2^-18 else,

for n slots: a term for a weight's rounding, one for its score, one for the sums and exponents. With int8, weights that
are subnormal in fp16 (2^-14 of the largest and less) add n 2^-25 127 of the largest product of a weight and a scale.

`int8_queries` rounds each query to int8 too (one scale a row) and multiplies codes by codes: exact sums, half the
time of that product and no conversion of keys, and an error like that of the keys' own rounding.
"""

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from .attention_control import FLOATS, HEAD_DIMS, STORED, TILE, want


@dataclass(frozen=True)
class Config:
    """rows of a block, slots of a tile, warps, and how many tiles are on their way at a time."""

    rows: int
    slots: int
    warps: int
    stages: int


def launch_config(stored: torch.dtype, queries: torch.dtype, head_dim: int, shared: int, wide: bool = True) -> Config:
    """The launch for a cache of `stored` and queries of a dtype; `shared`: bytes of shared memory a block may have.

    wide  a GPU with products of whole warp groups, whose blocks then have two of them
    """
    if stored == torch.float32 or (queries == torch.float32 and stored != torch.int8):
        return Config(16, 16, 8, 1) if head_dim > 128 else Config(64, 32, 4, 1)
    if queries == torch.float32:
        return Config(64, 32, 8, 1)
    if not wide or shared < 200_000:
        return Config(64, 32, 4, 1) if shared < 80_000 else Config(64, 32, 8, 2)
    if stored == torch.int8:
        return Config(128, 64, 8, 2)
    return Config(128, 64, 8, 2) if head_dim > 128 else Config(128, 128, 8, 2)


def prefill_attention(
    q: Tensor, keys, values, *, start: int, out: Tensor, int8_queries: bool = False, config: Config | None = None
) -> Tensor:
    """Attention of T rows at positions start..start+T-1; returns `out`.

    q             bf16, fp16 or fp32 [T, heads, D], normed and rotated, in the keys' basis; |q| < 65504
    keys, values  with `numbers` int8, bf16 or fp32 [kv_heads, slots, D] and `scales`, float32 [kv_heads, slots] for
                  int8, else None; slots 0..start+T-1 are filled
    out           [T, heads, D]
    int8_queries  with an int8 cache: queries are rounded to int8
    config        to compare launches; results of two differ in their last bits
    Raises ValueError where a shape, dtype, stride or device does not fit.
    """
    _check(q, keys, values, start, out, int8_queries)
    if not q.shape[0]:
        return out
    import triton.language as tl  # here, because without a GPU nobody needs Triton

    from . import _prefill_attention_kernels as _kernels

    numbers = keys.numbers
    kv_heads, slots, dim = numbers.shape
    tokens, heads = q.shape[:2]
    int8, nvidia = numbers.dtype == torch.int8, q.is_cuda and torch.version.hip is None
    config = config or _config_on(q.device, numbers.dtype, q.dtype, dim)
    # The interpreter multiplies bf16 by its bits: there it is float32.
    if int8 and q.dtype == torch.bfloat16:
        # Converted in the kernel, queries would be kept in registers, of which the output's sums leave none.
        q = q.to(torch.float16)
    half = numbers.dtype == torch.bfloat16 and q.dtype == torch.bfloat16 and q.is_cuda
    scales = (keys.scales, values.scales) if int8 else (out, out)
    blocks = -(-tokens // config.rows)
    _kernels.prefill_attention_kernel[(blocks * heads,)](
        q, numbers, values.numbers, *scales, out, start, tokens, slots, HEADS=heads, GROUP=heads // kv_heads, D=dim,
        M=config.rows, N=config.slots, KIND=tl.float16 if int8 else tl.bfloat16 if half else tl.float32,
        SPLIT_Q=int8 and q.dtype == torch.float32 and not int8_queries, INT8_QK=int8_queries,
        PRECISION="tf32x3" if nvidia else "ieee", FAST=nvidia, INTERPRETED=not q.is_cuda,
        num_warps=config.warps, num_stages=config.stages, enable_fp_fusion=False,
    )  # fmt: skip
    return out


@functools.cache
def _config_on(device, stored, queries, dim):
    if device.type != "cuda":
        return Config(16, 16, 4, 1)  # the interpreter
    if torch.version.hip is not None:
        return launch_config(stored, queries, dim, 1 << 16, wide=False)
    properties = torch.cuda.get_device_properties(device)
    wide = properties.major == 9
    return launch_config(stored, queries, dim, properties.shared_memory_per_block_optin, wide)


def _check(q, keys, values, start, out, int8_queries):
    numbers = keys.numbers
    kv_heads, slots, dim = numbers.shape
    if dim not in HEAD_DIMS:
        raise ValueError(f"head dimension {dim}: {HEAD_DIMS} are handled")
    if q.dim() != 3 or q.shape[1] % kv_heads:
        raise ValueError(f"q must be [T, heads, {dim}] with heads a multiple of {kv_heads}, got {list(q.shape)}")
    want("q", q, (*q.shape[:2], dim), FLOATS, numbers.device)
    want("out", out, q.shape, FLOATS, numbers.device)
    if not (q.is_contiguous() and out.is_contiguous()):
        raise ValueError("q and out must be contiguous: call q.contiguous()")
    if start < 0 or start + q.shape[0] > slots:
        raise ValueError(f"rows {start}..{start + q.shape[0] - 1} do not lie in a cache of {slots} slots")
    for name, stored in (("keys", keys), ("values", values)):
        want(name, stored.numbers, numbers.shape, STORED, numbers.device)
        if stored.numbers.dtype != numbers.dtype or not stored.numbers.is_contiguous() or slots % TILE:
            raise ValueError(f"{name} must be contiguous, {numbers.dtype}, slots a multiple of {TILE}")
        if (stored.scales is not None) != (numbers.dtype == torch.int8):
            raise ValueError(f"{name}: int8 numbers come with scales, others without")
        if stored.scales is not None:
            want(f"{name}' scales", stored.scales, (kv_heads, slots), (torch.float32,), numbers.device)
            if not stored.scales.is_contiguous():
                raise ValueError(f"{name}' scales must be contiguous")
    if int8_queries and numbers.dtype != torch.int8:
        raise ValueError("int8 queries are for int8 keys")
