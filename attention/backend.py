"""Whether a pass's attention runs from kernels on a device: decided once, by a check against the reference."""

import functools
import logging
from dataclasses import replace

import torch
from torch import Tensor

from ..kernels.attention import decode_row, prefill_rows
from ..kernels.attention_append import append, append_prompt
from ..kernels.attention_control import HEAD_DIMS, new_control, write_control
from ..kernels.decode_attention import allocate, avoid_text, decode_attention
from ..kernels.prefill_attention import prefill_attention
from ..kernels.rms_norm import rms_norm
from ..kernels.rows import SLOTS, cache_offsets, depths
from ..weights.backend import decide, dependent_launch, one_line
from .cache import KVCache
from .rotary import rotate

logger = logging.getLogger(__name__)
_PARENTS = (-1, 0, 1, 1, 0)


@functools.cache
def attention_kernels(device: torch.device, kind: str) -> tuple[bool, str]:
    """(whether to use the kernels for caches of a kind of KINDS, why). A failure is logged once."""
    return decide(device, f"{kind} attention", lambda device: _wrong_attention(device, kind))


@functools.cache
def prefill_kernels(device: torch.device, kind: str) -> tuple[bool, str]:
    """(whether prompt rows attend by the kernel over caches of a kind of KINDS, why). A failure is logged once."""
    return decide(device, f"{kind} prefill attention", lambda device: _wrong_prefill(device, kind))


def rounds_queries(stored: torch.dtype, dtype: torch.dtype) -> bool:
    """Whether a prompt's queries are rounded to int8 too: where keys are, and the compute dtype is a 16-bit one.

    Mixed as the keys are, they have no outlier channels: 0.6% off bf16 in an H200's benchmark, and 1.2 times as fast.
    """
    return stored == torch.int8 and dtype != torch.float32


def takes(heads: int, kv_heads: int, head_dim: int) -> bool:
    """Whether the kernels take a layer of this shape."""
    return head_dim in HEAD_DIMS and heads // kv_heads <= 32


def _wrong_attention(device, kind) -> str | None:
    """What differs, also once the form in PTX is left out on a device where something does."""
    try:
        wrong = _wrong_result(device, kind)
    except Exception as error:  # whatever a compiler or driver raises
        wrong = one_line(error)
    if wrong is None or kind != "int8" or not avoid_text(device):
        return wrong
    logger.warning("FastQwen: attention in PTX is not used on %s (%s); Triton's own form is slower.", device, wrong)
    return _wrong_result(device, kind)


def _wrong_prefill(device, kind) -> str | None:
    """Runs the kernel on small random data, whole and cut in two; what differs from the reference, or None."""
    heads, dim, tokens = 4, 256, 300
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(tokens, n, dim, generator=generator).to(device) for n in (heads, 2, 2))
    dtype = torch.float32 if kind == "fp32" else torch.bfloat16
    cache = KVCache(2, dim, capacity=tokens, kind=kind, device=device)
    q, k = cache.for_cache(q.to(dtype), k)
    cache.append(k, v)

    def run(first):
        out = torch.full((tokens - first, heads, dim), float("nan"), dtype=dtype, device=device)
        return prefill_attention(
            q[first:].contiguous(), cache.keys, cache.values, start=first, out=out,
            int8_queries=rounds_queries(cache.keys.numbers.dtype, dtype),
        )  # fmt: skip

    found = run(0)
    wanted = prefill_rows(q.float().transpose(0, 1).contiguous(), cache.read, 0).transpose(0, 1)
    if not (found.float() - wanted).abs().max() <= 0.02 * wanted.abs().max():
        return f"{kind}: prompt rows differ"
    # Blocks of rows and the tiles that they mask lie elsewhere then; an MTP head's rows begin at any place.
    alike = all(torch.equal(run(cut), found[cut:]) for cut in (64, 127))
    return None if alike else f"{kind}: prompt rows depend on where a call starts"


def _appends_alike(cache, projected, norms, rotary, q, kind, length, eps) -> bool:
    """Whether rows of a prompt are normed, rotated and stored as those of the pass that `cache` and `q` hold were."""
    slots, live = cache.keys.numbers.shape[1], len(_PARENTS)
    other = KVCache(*projected[1].shape[1:], capacity=length + SLOTS, kind=kind, device=q.device)
    queries = append_prompt(
        projected, norms, rotary, eps=eps, keys=other.keys, values=other.values, start=length, q=torch.empty_like(q)
    )
    ours, theirs = other.rows(length, slots), cache.rows(length, slots)
    offsets = list(cache_offsets(_PARENTS))
    return torch.equal(queries, q) and all(
        torch.equal(one[:, :live], two[:, offsets]) for one, two in zip(ours, theirs, strict=True)
    )


def _wrong_result(device, kind, dtype=torch.bfloat16) -> str | None:
    """Runs the kernels once on small random data; what differs from the reference, or None."""
    heads, dim, length, eps = 4, 256, 450, 1e-6
    generator = torch.Generator().manual_seed(0)

    def random(*shape) -> Tensor:
        return torch.randn(shape, generator=generator).to(device)

    cache = KVCache(1, dim, capacity=length + SLOTS, kind=kind, device=device)
    cache.append(random(length, 1, dim), random(length, 1, dim))
    projected = tuple(random(SLOTS, n, d).to(dtype) for n, d in ((heads, 2 * dim), (1, dim), (1, dim)))
    norms, angles = (random(dim) * 0.1, random(dim) * 0.1), random(SLOTS, dim // 8)
    rotary = angles.cos(), angles.sin()
    control = new_control(device)
    write_control(control, length=length, parents=_PARENTS)
    q = torch.empty(SLOTS, heads, dim, dtype=cache.query_dtype(dtype), device=device)
    append(projected, norms, rotary, eps=eps, keys=cache.keys, values=cache.values, control=control, q=q)
    if not _appends_alike(cache, projected, norms, rotary, q, kind, length, eps):
        return f"{kind}: a prompt's rows differ from a pass's"
    turned = [
        rotate(rms_norm(x, norm, eps), *rotary)
        for x, norm in zip((projected[0][..., :dim], projected[1]), norms, strict=True)
    ]
    wanted, k = cache.for_cache(*turned)
    if not (q.float() - wanted.float()).abs().max() <= 2**-5 * wanted.abs().max():  # a few steps of bf16
        return f"{kind}: queries differ"
    workspace = allocate(heads, 1, dim, slots=cache.keys.numbers.shape[1], device=device)
    # One block, and two parts of four tiles: else each tile would be a part and have a block, as in short texts alone.
    workspace = replace(workspace, parts=2, blocks=1)
    out = torch.empty(SLOTS, heads * dim, device=device)
    attend = functools.partial(decode_attention, q, cache.keys, cache.values, control=control, workspace=workspace)
    attend(out=out)
    if dependent_launch(device) and not torch.equal(attend(out=torch.empty_like(out), dependent=True), out):
        return f"{kind}: attention that is launched early differs"
    places = cache.stage(k, projected[2], _PARENTS)  # in torch: over what the kernel stored, which it must agree with
    for row, depth in enumerate(depths(_PARENTS)):
        wanted = decode_row(q[row], cache.read, length + depth, places[row]).flatten()
        if not (out[row] - wanted).abs().max() <= 0.02 * wanted.abs().max():
            return f"{kind}: attention differs"
    if cache_offsets(_PARENTS) != tuple(place - length for place in places) or out[len(_PARENTS) :].any():
        return f"{kind}: rows are misplaced"
    return None
