"""The gated DeltaNet's mixer over the tokens of a prompt, in four launches.

    inputs  q, k, v, g, beta of all tokens: convolution, norms and gates as in kernels/delta_decode.py
    chunk   what needs no state, for all chunks at once. With inclusive sums G_i of g within the chunk and
            D_ij = exp(G_i - G_j) for j <= i:
                M = (I + tril(beta_i D_ij (k_i.k_j), -1))^-1 diag(beta),   mix = tril(D_ij (q_i.k_j))
    walk    the state along the chunks, for every value head and 64 of its columns:
                d = M V - M (exp(G) K S);   o = exp(G) (Q S) + mix d;   S <- exp(G_T) S + K^T (exp(G_T - G) d)
    norm    gated_rms_norm(o, z)

This is the chunk form of kernels/delta_rule.py with the triangular system inverted, so that nothing but products is
left for the walk. Sums of g are float64, all else that is added up, and the state, is float32. Two forms:

exact   for float32 models, and off NVIDIA for all. Chunks of 32 tokens, and `chunk` computes M V and M exp(G) K as
        well. On NVIDIA products run on the matrix units: within a chunk as three products of numbers with 11
        significant bits ("tf32x3"), what is dropped being at most 2^-20 of a product; in the walk as three products of
        bf16 numbers: an operand is the sum of two of them to 2^-18, and the product of the two low ones, at most 2^-18
        again, is dropped. Elsewhere they are float32 products ("ieee").
narrow  for bf16 and fp16 models on NVIDIA. Chunks of 64 tokens; q, k, v, M, mix and o are stored as fp16, and what the
        walk multiplies is rounded to it: 11 significant bits, three more than bf16 has. The state itself is never
        rounded. In M nothing exceeds one; the other numbers end at 65504 instead of at infinity, and those below 6e-5
        in size keep an absolute precision of 3e-8. A token forgets by 2^-64 at most within its chunk.

Chunks start at multiples of the chunk's size from the first token given, and a token's bits depend on nothing behind
its chunk. Prompts and decode passes add up in different orders: their states agree to rounding.
"""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from .delta_decode import TAPS, Heads, Weights, supports

CHUNK = 64  # tokens; the grid on which a prompt may be cut without other bits in either form
_EXACT_CHUNK = 32
_PIECE = 32  # columns of an operand at a time; see the kernels
_COLUMNS = 64  # value columns that a block walks with, 16 a warp: the rows of Hopper's products
_REGISTERS = 168  # a thread of the narrow chunk launch: three blocks a multiprocessor; it needs 169 of itself
_ROWS = 16  # tokens a block of the elementwise launches
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def chunked(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, halves: bool | None = None
) -> tuple[Tensor, Tensor]:
    """Runs T tokens from `state`, as delta_rule.chunked does, keys not repeated for their value heads.

    state [Hv, dk, dv] float32; q and k [T, Hk, dk], v [T, Hv, dv]: float32 for the exact form, float16 for the narrow
    one, keys of length one at most; g and beta [T, Hv] float32; all contiguous.
    halves  exact form: products of the walk in three of bf16, as is usual on NVIDIA and nowhere else
    Returns (outputs [T, Hv, dv] in v's dtype, new state float32); `state` is not changed. Raises ValueError where a
    shape or dtype does not fit.
    """
    tokens, hk, dk = q.shape
    hv, dv = v.shape[1:]
    heads = Heads(hk, hv, dk, dv)
    narrow = q.dtype == torch.float16
    wanted = {"q": (q, (tokens, hk, dk)), "k": (k, (tokens, hk, dk)), "v": (v, (tokens, hv, dv))}
    _check(wanted, torch.float16 if narrow else torch.float32, contiguous=True)
    wanted = {"state": (state, (hv, dk, dv)), "g": (g, (tokens, hv)), "beta": (beta, (tokens, hv))}
    _check(wanted, torch.float32, contiguous=True)
    if not supports(heads):
        raise ValueError(f"{heads}: the kernels lack these head sizes; use delta_rule.chunked")
    return _chunked(heads, state, q, k, v, g, beta, halves)


def _chunked(heads, state, q, k, v, g, beta, halves=None):
    new_state, out = torch.empty_like(state), torch.empty_like(v)
    if q.dtype == torch.float16:
        between = narrow_chunks(heads, q, k, g, beta)
        _narrow_walk(heads, (q, k, v), between, state, new_state, out)
    else:
        _exact(heads, (q, k, v, g, beta), state, new_state, out, _nvidia(v.device) if halves is None else halves)
    return out, new_state


def _exact(heads, inputs, state, new_state, out, halves):
    """Both launches of the rule. halves: products of the walk as three of bf16 halves, not as float32 ones."""
    from . import _delta_prefill_kernels as _kernels  # here, because without a GPU nobody needs Triton

    hk, hv, dk, dv = heads.key_heads, heads.value_heads, heads.key_dim, heads.value_dim
    q, k, v = inputs[:3]
    tokens, chunks, columns = len(q), -(-len(q) // _EXACT_CHUNK), min(dv, _COLUMNS)
    half = lambda *shape: v.new_empty(2, *shape, dtype=torch.bfloat16) if halves else v.new_empty(shape)  # noqa: E731
    split = [half(*x.shape) for x in (q, k)] if halves else [q, k]
    rows = chunks, hv, _EXACT_CHUNK
    between = [v.new_empty(rows), v.new_empty(rows), half(*rows, _EXACT_CHUNK), half(*rows, dk)]  # from chunk to walk
    between += [v.new_empty(chunks, hv, dv, _EXACT_CHUNK)]
    common = {"HK": hk, "HV": hv, "DK": dk, "DV": dv, "CHUNK": _EXACT_CHUNK, "HALVES": halves}
    common["enable_fp_fusion"] = True
    # Products of products keep a warp's rows together, and 32 rows are two warps' work; more would repeat it.
    _kernels.chunk_kernel[(chunks, hv)](
        *inputs, *split, *between, tokens, chunks, PK=min(dk, _PIECE), PV=min(dv, _PIECE),
        PRECISION="tf32x3" if _nvidia(v.device) else "ieee", num_warps=2, **common,
    )  # fmt: skip
    _kernels.walk_kernel[(hv, dv // columns)](
        *split, *between, state, new_state, out, tokens, chunks,
        PV=columns, STAGES=walk_stages(v.device), num_warps=max(1, columns // 16), **common,
    )  # fmt: skip


def narrow_chunks(heads: Heads, q: Tensor, k: Tensor, g: Tensor, beta: Tensor) -> list[Tensor]:
    """The narrow form's first launch: exp(G) and exp(G_T - G) [chunks, Hv, CHUNK] float32, mix and M
    [chunks, Hv, CHUNK, CHUNK] float16. Arguments as for `chunked`."""
    from . import _delta_prefill_narrow_kernels as _kernels

    tokens, rows = len(q), (-(-len(q) // CHUNK), heads.value_heads, CHUNK)
    between = [g.new_empty(rows), g.new_empty(rows), q.new_empty(*rows, CHUNK), q.new_empty(*rows, CHUNK)]
    _kernels.narrow_chunk_kernel[rows[:2]](
        q, k, g, beta, *between, tokens, HK=heads.key_heads, HV=heads.value_heads, DK=heads.key_dim, CHUNK=CHUNK,
        PACKED=_packed(q.device), num_warps=4, maxnreg=_REGISTERS, enable_fp_fusion=True,
    )  # fmt: skip
    return between


def _narrow_walk(heads, rows, between, state, new_state, out):
    from . import _delta_prefill_narrow_kernels as _kernels

    hv, dv = heads.value_heads, heads.value_dim
    tokens, columns, device = len(out), min(dv, _COLUMNS), out.device
    _kernels.narrow_walk_kernel[(hv, dv // columns)](
        *rows, *between, state, new_state, out, tokens, len(between[0]), HK=heads.key_heads, HV=hv, DK=heads.key_dim,
        DV=dv, PV=columns, CHUNK=CHUNK, PACKED=_packed(device), STAGES=walk_stages(device),
        num_warps=max(1, columns // 16), enable_fp_fusion=True,
    )  # fmt: skip


@functools.cache
def walk_stages(device) -> int:
    """Chunks that are in use or on their way at once: three take 181 KiB of shared memory; with two, copies would start
    when the products are done and be waited for at once."""
    if not _nvidia(device):
        return 1
    return 3 if torch.cuda.get_device_properties(device).shared_memory_per_block_optin >= 190 << 10 else 1


def _nvidia(device) -> bool:
    return device.type == "cuda" and torch.version.hip is None


@functools.cache
def _packed(device) -> bool:
    """Whether the device has what kernels.narrowed calls PACKED."""
    return _nvidia(device) and torch.cuda.get_device_capability(device) >= (8, 6)


def prefill(
    inputs: Sequence[Tensor], weights: Weights, *, window: Tensor, recurrent: Tensor, narrow: bool | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """T >= 1 tokens of a prompt from a committed state.

    inputs     qkv [T, C], z [T, Hv * dv], b and a [T, Hv] in one compute dtype; rows may lie further apart
    window     compute dtype [3, C], the last committed columns, oldest first
    recurrent  float32 [Hv, dk, dv]
    narrow     the form of the rule; None: narrow on NVIDIA unless the compute dtype is float32
    Returns (output [T, Hv * dv] in the compute dtype, new window, which may lie in `qkv`, new recurrent state); the
    given ones are not changed.
    Raises ValueError where a shape, dtype or stride does not fit.
    """
    from . import _delta_prefill_kernels as _kernels

    (qkv, z, b, a), heads = inputs, weights.heads
    hk, hv, dk, dv, tokens = heads.key_heads, heads.value_heads, heads.key_dim, heads.value_dim, qkv.shape[0]
    _check_prompt(inputs, heads, window, recurrent)
    if qkv.dtype not in _DTYPES or tokens == 0:
        raise ValueError(f"at least one token in bf16, fp16 or fp32 is wanted, got {tokens} in {qkv.dtype}")
    narrow = (_nvidia(qkv.device) and qkv.dtype != torch.float32) if narrow is None else narrow
    q, k, v = (
        torch.empty(tokens, *size, dtype=torch.float16 if narrow else torch.float32, device=qkv.device)
        for size in ((hk, dk), (hk, dk), (hv, dv))
    )
    g, beta = (torch.empty(tokens, hv, device=qkv.device) for _ in range(2))
    blocks = -(-tokens // _ROWS)
    _kernels.inputs_kernel[(blocks, 2 * hk + hv)](
        qkv, qkv.stride(0), b, b.stride(0), a, a.stride(0), weights.taps, weights.rate, weights.dt_bias, window,
        q, k, v, g, beta, tokens, HK=hk, HV=hv, DK=dk, DV=dv, ROWS=_ROWS, num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip
    o, recurrent = _chunked(heads, recurrent, q, k, v, g, beta, _nvidia(qkv.device))
    out = qkv.new_empty(tokens, hv * dv)
    _kernels.gated_norm_kernel[(blocks, hv)](
        o, z, z.stride(0), weights.norm, weights.eps, out, tokens, HV=hv, DV=dv, ROWS=_ROWS, num_warps=4,
        enable_fp_fusion=True,
    )  # fmt: skip
    columns = qkv[-(TAPS - 1) :]
    if tokens < TAPS - 1:
        columns = torch.cat([window, columns])[-(TAPS - 1) :]
    return out, columns.contiguous(), recurrent


def _check_prompt(inputs, heads, window, recurrent):
    qkv, z, b, a = inputs
    tokens, hv, dtype, device = qkv.shape[0], heads.value_heads, qkv.dtype, qkv.device
    sizes, last = (heads.channels, hv * heads.value_dim, hv, hv), (TAPS - 1, heads.channels)
    state = hv, heads.key_dim, heads.value_dim
    if not supports(heads):
        raise ValueError(f"{heads}: the kernels lack these head sizes; use delta_rule.chunked")
    # All that is wanted, in few words: a short prompt waits for this. Where it fails, what follows says why.
    if (
        all(
            x.shape == (tokens, size) and x.dtype == dtype and x.stride(1) == 1 and x.device == device
            for x, size in zip(inputs, sizes, strict=True)
        )
        and window.shape == last and window.dtype == dtype and window.is_contiguous() and window.device == device
        and recurrent.shape == state and recurrent.dtype == torch.float32 and recurrent.is_contiguous()
        and recurrent.device == device
    ):  # fmt: skip
        return
    names = zip(("qkv", "z", "b", "a"), inputs, sizes, strict=True)
    _check({name: (x, (tokens, size)) for name, x, size in names}, dtype, contiguous=False)
    _check({"window": (window, last)}, dtype, contiguous=True)
    _check({"state": (recurrent, state)}, torch.float32, contiguous=True)
    raise ValueError(f"window and state are on {window.device} and {recurrent.device}, qkv on {device}: use one device")


def _check(wanted, dtype, contiguous):
    device = next(iter(wanted.values()))[0].device
    for name, (tensor, shape) in wanted.items():
        if tensor.dtype != dtype or tuple(tensor.shape) != shape:
            raise ValueError(f"{name} must be {dtype} {list(shape)}, got {tensor.dtype} {list(tensor.shape)}")
        if tensor.stride(-1) != 1 or (contiguous and not tensor.is_contiguous()):
            raise ValueError(f"{name} has strides {tensor.stride()}: call {name}.contiguous()")
        if tensor.device != device:
            raise ValueError(f"{name} is on {tensor.device}, not on {device}: use one device")
