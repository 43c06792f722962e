"""Before a decode pass's attention: queries and keys normed and rotated, keys and values stored.

    slot `to` <- the bytes of slot `from`                an accepted leaf of the pass before, if there was one; then
    q, k      <- rotary(rms_norm(q)), rotary(rms_norm(k))         each rounded to the compute dtype
    q, k      <- H q / D, H k                                     for int8 caches (kernels/kv_int8.py), in float32
    slot length + offset of a live row <- k, v           int8 codes and scales of kernels/kv_int8.py, or floats

A block for every row and head. The slot that a leaf's bytes lie in may be one that a row of this pass takes: then that
row's block moves them before it writes. The target is never one: it lies below the new committed length.
Source of the norm and the rotary: kernels/rms_norm.py, attention/rotary.py.
"""

import torch
from torch import Tensor

from .attention_control import FLOATS, check_cache, want
from .rows import SLOTS


def append(
    projected: tuple[Tensor, Tensor, Tensor],
    norms: tuple[Tensor, Tensor],
    rotary: tuple[Tensor, Tensor],
    *,
    eps: float,
    keys,
    values,
    control: Tensor,
    q: Tensor,
    dependent: bool = False,
) -> Tensor:
    """Norms and rotates queries and keys, stores keys and values, one launch; returns `q`, which it fills.

    projected     query | gate [8, heads, 2 D], k and v [8, kv_heads, D], of one dtype; rows may lie further apart
    q             [8, heads, D], that dtype or, for int8 caches, fp16 too
    norms         float32 [D] each: the w of 1 + w of queries and keys, with their eps
    rotary        cosines and sines, float32 [8, dim / 2] each (attention/rotary.py)
    keys, values  as for `decode_attention`; live rows go to slot length + offset
    control       its move is done first, so a leaf's slot may be taken by this pass's rows
    Raises ValueError where a shape, dtype, stride or device does not fit.
    """
    from . import _attention_append_kernel as _kernels  # here, because without a GPU nobody needs Triton

    query_gate, k, v = projected
    kv_heads, slots, dim = keys.numbers.shape
    heads, half = q.shape[1], rotary[0].shape[1]
    _check_append(projected, norms, rotary, keys, values, control, q)
    scales = (keys.scales, values.scales) if keys.scales is not None else (norms[0], norms[0])
    options = {"launch_pdl": True} if dependent else {}
    _kernels.append_kernel[(kv_heads + heads, SLOTS)](
        query_gate, k, v, *norms, *rotary, control, keys.numbers, values.numbers, *scales, q,
        query_gate.stride(0), k.stride(0), v.stride(0), slots, eps, HEADS=heads, KV_HEADS=kv_heads, D=dim, HALF=half,
        MIXED=keys.scales is not None, DEPENDENT=dependent, num_warps=1, enable_fp_fusion=False, **options,
    )  # fmt: skip
    return q


def append_prompt(
    projected: tuple[Tensor, Tensor, Tensor],
    norms: tuple[Tensor, Tensor],
    rotary: tuple[Tensor, Tensor],
    *,
    eps: float,
    keys,
    values,
    start: int,
    q: Tensor,
) -> Tensor:
    """The same for T >= 1 rows of a prompt, whose keys and values go to slots start..start + T - 1: bit for bit what
    `append` makes of each row. Arguments as there, with T rows instead of eight. Raises ValueError likewise, and where
    the rows do not lie in the cache.
    """
    from . import _attention_append_kernel as _kernels

    query_gate, k, v = projected
    kv_heads, slots, dim = keys.numbers.shape
    tokens, heads, half = q.shape[0], q.shape[1], rotary[0].shape[1]
    if not 0 <= start <= start + tokens <= slots or not tokens:
        raise ValueError(f"rows {start}..{start + tokens - 1} do not lie in a cache of {slots} slots")
    _check_append(projected, norms, rotary, keys, values, None, q)
    scales = (keys.scales, values.scales) if keys.scales is not None else (norms[0], norms[0])
    _kernels.append_prompt_kernel[(tokens, kv_heads + heads)](
        query_gate, k, v, *norms, *rotary, keys.numbers, values.numbers, *scales, q,
        query_gate.stride(0), k.stride(0), v.stride(0), start, slots, eps, HEADS=heads, KV_HEADS=kv_heads, D=dim,
        HALF=half, MIXED=keys.scales is not None, num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip
    return q


def _check_append(projected, norms, rotary, keys, values, control, q):
    check_cache(keys, values, control)
    numbers, rows = keys.numbers, SLOTS if control is not None else q.shape[0]
    kv_heads, _, dim = numbers.shape
    heads, half = q.shape[1], rotary[0].shape[-1]
    dtype = projected[0].dtype
    wanted = {
        "query and gate": (projected[0], (rows, heads, 2 * dim), FLOATS),
        "k": (projected[1], (rows, kv_heads, dim), (dtype,)),
        "v": (projected[2], (rows, kv_heads, dim), (dtype,)),
        "q": (q, (rows, heads, dim), (dtype, torch.float16) if keys.scales is not None else (dtype,)),
        "the queries' norm": (norms[0], (dim,), (torch.float32,)),
        "the keys' norm": (norms[1], (dim,), (torch.float32,)),
        "cosines": (rotary[0], (rows, half), (torch.float32,)),
        "sines": (rotary[1], (rows, half), (torch.float32,)),
    }
    for name, (tensor, shape, dtypes) in wanted.items():
        want(name, tensor, shape, dtypes, numbers.device)
        rows_apart = name in ("query and gate", "k", "v") and tensor[0].is_contiguous()
        if not tensor.is_contiguous() and not rows_apart:
            raise ValueError(f"{name} has strides {tensor.stride()}: call contiguous() on it")
    if not 0 < 2 * half <= dim:
        raise ValueError(f"rotary turns {2 * half} of {dim} dimensions: 2 to {dim} are handled")
