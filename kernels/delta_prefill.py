"""The gated DeltaNet's mixer over the tokens of a prompt, in four launches.

    inputs  q, k, v, g, beta of all tokens: convolution, norms and gates as in kernels/delta_decode.py
    chunk   what needs no state, for all chunks of 32 tokens at once. With inclusive sums G_i of g within the chunk and
            D_ij = exp(G_i - G_j) for j <= i:
                M = (I + tril(beta_i D_ij (k_i.k_j), -1))^-1,   mix = tril(D_ij (q_i.k_j)),
                seen = M (beta exp(G) K),   writes = M (beta V)
    walk    the state along the chunks, for every value head and 64 of its columns:
                d = writes - seen S;   o = exp(G) (Q S) + mix d;   S <- exp(G_T) S + K^T (exp(G_T - G) d)
    norm    gated_rms_norm(o, z)

This is the chunk form of kernels/delta_rule.py with the triangular system inverted, so that nothing but products is
left for the walk. Sums of g are float64, all else and the state float32. On NVIDIA products run on the matrix units:
within a chunk as three products of numbers with 11 significant bits ("tf32x3"), what is dropped being at most 2^-20 of
a product; in the walk as three products of bf16 numbers: an operand is the sum of two of them to 2^-18, and the product
of the two low ones, at most 2^-18 again, is dropped. Elsewhere they are float32 products ("ieee"). Chunks start at
multiples of CHUNK from the first token given, and a token's bits depend on nothing behind its chunk. Prompts and decode
passes add up in different orders: their states agree to rounding.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from .delta_decode import TAPS, Heads, Weights, supports

CHUNK = 32
_PIECE = 32  # columns of an operand at a time; see the kernels
_COLUMNS = 64  # value columns that a block walks with, 16 a warp: the rows of Hopper's products
_ROWS = 16  # tokens a block of the elementwise launches
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def chunked(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, halves: bool | None = None
) -> tuple[Tensor, Tensor]:
    """Runs T tokens from `state`, as delta_rule.chunked does, keys not repeated for their value heads.

    state [Hv, dk, dv]; q and k [T, Hk, dk], v [T, Hv, dv], g and beta [T, Hv]; all float32 and contiguous.
    halves  products of the walk in three of bf16, as is usual on NVIDIA and nowhere else
    Returns (outputs [T, Hv, dv], new state); `state` is not changed. Raises ValueError where a shape does not fit.
    """
    from . import _delta_prefill_kernels as _kernels  # here, because without a GPU nobody needs Triton

    tokens, hk, dk = q.shape
    hv, dv = v.shape[1:]
    heads = Heads(hk, hv, dk, dv)
    wanted = {
        "state": (state, (hv, dk, dv)), "q": (q, (tokens, hk, dk)), "k": (k, (tokens, hk, dk)),
        "v": (v, (tokens, hv, dv)), "g": (g, (tokens, hv)), "beta": (beta, (tokens, hv)),
    }  # fmt: skip
    _check(wanted, torch.float32, contiguous=True)
    if not supports(heads):
        raise ValueError(f"{heads}: the kernels lack these head sizes; use delta_rule.chunked")
    nvidia = v.device.type == "cuda" and torch.version.hip is None
    new_state, out = torch.empty_like(state), torch.empty_like(v)
    _walk(_kernels, heads, (q, k, v, g, beta), state, new_state, out, nvidia if halves is None else halves)
    return out, new_state


def _walk(kernels, heads, inputs, state, new_state, out, halves):
    """Both launches of the rule. halves: products of the walk as three of bf16 halves, not as float32 ones."""
    hk, hv, dk, dv = heads.key_heads, heads.value_heads, heads.key_dim, heads.value_dim
    q, k, v = inputs[:3]
    tokens, nvidia = len(q), v.device.type == "cuda" and torch.version.hip is None
    chunks, columns = -(-tokens // CHUNK), min(dv, _COLUMNS)
    half = lambda *shape: v.new_empty(2, *shape, dtype=torch.bfloat16) if halves else v.new_empty(shape)  # noqa: E731
    split = [half(*x.shape) for x in (q, k)] if halves else [q, k]
    rows = chunks, hv, CHUNK
    between = [v.new_empty(rows), v.new_empty(rows), half(*rows, CHUNK), half(*rows, dk)]  # `chunk` leaves for `walk`
    between += [v.new_empty(chunks, hv, dv, CHUNK)]
    sizes = {"HK": hk, "HV": hv, "DK": dk, "DV": dv, "CHUNK": CHUNK, "HALVES": halves}
    # Products of products keep a warp's rows together, and 32 rows are two warps' work; more would repeat it.
    kernels.chunk_kernel[(chunks, hv)](
        *inputs, *split, *between, tokens, chunks, PK=min(dk, _PIECE), PV=min(dv, _PIECE),
        PRECISION="tf32x3" if nvidia else "ieee", num_warps=2, **sizes,
    )  # fmt: skip
    kernels.walk_kernel[(hv, dv // columns)](
        *split, *between, state, new_state, out, tokens, chunks,
        PV=columns, STAGES=walk_stages(v.device), num_warps=max(1, columns // 16), **sizes,
    )  # fmt: skip


def walk_stages(device) -> int:
    """Chunks whose operands are on their way at once: two take 110 KiB of shared memory."""
    if device.type != "cuda" or torch.version.hip is not None:
        return 1
    return 2 if torch.cuda.get_device_properties(device).shared_memory_per_block_optin >= 160 << 10 else 1


def prefill(
    inputs: Sequence[Tensor], weights: Weights, *, window: Tensor, recurrent: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """T >= 1 tokens of a prompt from a committed state.

    inputs     qkv [T, C], z [T, Hv * dv], b and a [T, Hv] in one compute dtype; rows may lie further apart
    window     compute dtype [3, C], the last committed columns, oldest first
    recurrent  float32 [Hv, dk, dv]
    Returns (output [T, Hv * dv] in the compute dtype, new window, new recurrent state); the given ones are not changed.
    Raises ValueError where a shape, dtype or stride does not fit.
    """
    from . import _delta_prefill_kernels as _kernels

    (qkv, z, b, a), heads = inputs, weights.heads
    hk, hv, dk, dv, tokens = heads.key_heads, heads.value_heads, heads.key_dim, heads.value_dim, qkv.shape[0]
    rows = {"qkv": (qkv, (tokens, heads.channels)), "z": (z, (tokens, hv * dv)), "b": (b, (tokens, hv))}
    _check(rows | {"a": (a, (tokens, hv))}, qkv.dtype, contiguous=False)
    _check({"window": (window, (TAPS - 1, heads.channels))}, qkv.dtype, contiguous=True)
    if qkv.dtype not in _DTYPES or tokens == 0:
        raise ValueError(f"at least one token in bf16, fp16 or fp32 is wanted, got {tokens} in {qkv.dtype}")
    make = lambda *shape: torch.empty(*shape, device=qkv.device)  # noqa: E731
    q, k, v, g, beta = (
        make(tokens, hk, dk),
        make(tokens, hk, dk),
        make(tokens, hv, dv),
        make(tokens, hv),
        make(tokens, hv),
    )
    blocks = -(-tokens // _ROWS)
    _kernels.inputs_kernel[(blocks, 2 * hk + hv)](
        qkv, qkv.stride(0), b, b.stride(0), a, a.stride(0), weights.taps, weights.rate, weights.dt_bias, window,
        q, k, v, g, beta, tokens, HK=hk, HV=hv, DK=dk, DV=dv, ROWS=_ROWS, num_warps=4,
    )  # fmt: skip
    o, recurrent = chunked(recurrent, q, k, v, g, beta)
    out = qkv.new_empty(tokens, hv * dv)
    _kernels.gated_norm_kernel[(blocks, hv)](
        o, z, z.stride(0), weights.norm, weights.eps, out, tokens, HV=hv, DV=dv, ROWS=_ROWS, num_warps=4
    )  # fmt: skip
    return out, torch.cat([window, qkv[-(TAPS - 1) :]])[-(TAPS - 1) :].clone(), recurrent


def _check(wanted, dtype, contiguous):
    device = next(iter(wanted.values()))[0].device
    for name, (tensor, shape) in wanted.items():
        if tensor.dtype != dtype or tuple(tensor.shape) != shape:
            raise ValueError(f"{name} must be {dtype} {list(shape)}, got {tensor.dtype} {list(tensor.shape)}")
        if tensor.stride(-1) != 1 or (contiguous and not tensor.is_contiguous()):
            raise ValueError(f"{name} has strides {tensor.stride()}: call {name}.contiguous()")
        if tensor.device != device:
            raise ValueError(f"{name} is on {tensor.device}, not on {device}: use one device")
