"""Activations for packed linears: an optional norm or SwiGLU, a rotation, and int8 codes with one scale a row.

    p       = x,  x * (1 + norm)  or  silu(gate) * up                 float32, not rounded to the input's dtype
    y       = H p, block by block of 256 columns                      H = kron of four h4, over 16; or y = p
    absmax  = max |y| over the row
    x8      = round_half_even(y * (127 / absmax))                     int8, -127..127; both operations in float32
    x_scale = absmax / 127, with a norm times r = 1 / sqrt(mean(x^2) + eps)
    normed  = x * r * (1 + norm) in x's dtype, only where asked for: the row that unpacked linears of the group read

r is one number a row, so it changes no code and the codes need not wait for the sum of squares. The rotation is adds
only, in one fixed tree (h4 over each base-4 digit of the column, lowest digit first), its 1/16 applied to the scale
alone: without SwiGLU the codes of the kernel and of the reference are the same integers. No clamp is needed:
|y| <= absmax and two roundings of 2^-24 take no product to 127.5.

Corner cases. A row whose absmax is below 2^-100 (2^-104 after the 1/16), zeros among them: codes 0, x_scale 1. A row
with a NaN or an infinity, or whose sums overflow (possible from |p| = 2^119 on): x_scale NaN, codes without meaning, so
that what a linear makes of it is NaN. Rows do not touch each other, dead slots hold zeros like any zero row, and
a row's bits depend on its own values alone.

In one launch a row needs its maximum before its first code. Three forms of the kernel, bit for bit alike in codes:
one block a row (every backend); several blocks a row that meet in global memory, each spinning for the others; or
that are one thread block cluster and send their maxima into each other's shared memory (NVIDIA from compute
capability 9.0). The sum of squares adds up in another order in each, so a form is fixed for a device and a K.
Source: what ComfyUI's W4A8 and int8 ConvRot checkpoints mean; the rotation is kernels/rotation.py's.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .rotation import BLOCK, rotate_exactly
from .rows import SLOTS

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_TINY = 2.0**-100


def reference(
    x: Tensor,
    *,
    norm: Tensor | None = None,
    eps: float | None = None,
    swiglu: bool = False,
    rotate: bool = True,
) -> tuple[Tensor, Tensor]:
    """The operation in plain torch, each row alone.

    x     float [R, K], or [R, 2K] = gate | up with swiglu
    norm  float [K], the w of 1 + w, with its eps; not together with swiglu
    Returns (x8 int8 [R, K], x_scale float32 [R]). Raises ValueError as `prepare` does.
    """
    _check_prologue(x, norm, eps, swiglu, rotate)
    rows = [prepare_rows(row[None].clone(), norm=norm, eps=eps, swiglu=swiglu, rotate=rotate) for row in x]
    return torch.cat([codes for codes, _ in rows]), torch.cat([scale for _, scale in rows])


def prepare_rows(
    x: Tensor,
    *,
    norm: Tensor | None = None,
    eps: float | None = None,
    swiglu: bool = False,
    rotate: bool = True,
) -> tuple[Tensor, Tensor]:
    """`reference` with all rows together: for prompts, where a row's last bit may depend on how many there are."""
    x = x.float()
    root = x.new_ones(x.shape[0])
    if swiglu:
        gate, up = x.chunk(2, -1)
        x = torch.nn.functional.silu(gate) * up
    elif norm is not None:
        root = torch.rsqrt(x.square().mean(-1) + eps)
        x = x * (1.0 + norm.float())
    y = rotate_exactly(x) if rotate else x
    absmax = y.abs().amax(-1)
    finite, tiny = torch.isfinite(absmax), absmax < _TINY
    inverse = torch.where(finite & ~tiny, torch.full_like(absmax, 127.0) / absmax, 0.0)
    codes = torch.where(finite[:, None], y * inverse[:, None], 0.0).round().to(torch.int8)
    scale = absmax / torch.full_like(absmax, 127.0 * 16 if rotate else 127.0) * root
    return codes, torch.where(tiny, 1.0, torch.where(finite, scale, float("nan")))


def pack_order(x8: Tensor) -> Tensor:
    """int8 [8, K] -> [K / 64, 8, 64], the order that the packed linear kernel reads."""
    return x8.view(SLOTS, -1, 64).transpose(0, 1).contiguous()


@dataclass(frozen=True)
class Plan:
    """How a row of K columns is spread over the GPU; chosen once for a device and a K.

    form   "alone" (one block a row), "slots" or "cluster" (several), as above
    parts  blocks a row, 1 for "alone"
    warps  warps a block; a thread holds eight columns
    """

    form: str
    parts: int
    warps: int


def plan_for(k: int, capability: tuple[int, int] | None, processors: int = 0) -> Plan:
    """The plan for K columns on an NVIDIA GPU of that compute capability and number of multiprocessors, else None.

    A warp issues about 400 instructions for 256 columns and four schedulers share a block's warps: 1,600 cycles for
    K = 4096 in one block. So a row is spread as soon as it fills a block of four warps. Eight blocks are the largest
    cluster that every such GPU takes; a Hopper takes sixteen. Measured on one H200, norm or SwiGLU, in a chain of
    dependent launches, microseconds by 4 / 8 / 16 blocks: K = 4096 1.23 / 1.19 / 1.22, 5120 1.43 / 1.36 / 1.29,
    12288 2.46 / 1.91 / 1.64, 17408 - / 3.47 / 2.25; by spinning blocks 1.78, 1.96, 2.03, 2.38.
    Blocks that spin must all be resident: four of them fit any multiprocessor.
    """
    threads = _power_of_two(k // 8)
    if capability is not None and threads > 128:
        if capability >= (9, 0) and threads <= 4096:
            parts = 16 if capability == (9, 0) and threads > 512 else 8
            return Plan("cluster", parts, threads // (32 * parts))
        parts = -(-k // 1024)
        if parts <= 32 and SLOTS * parts <= 4 * processors:
            return Plan("slots", parts, 4)
    return Plan("alone", 1, max(1, min(32, threads // 32)))


def _power_of_two(number):
    return 1 << max(0, number - 1).bit_length()


@dataclass(frozen=True)
class Prepared:
    """What `prepare` writes, allocated once per K and used again by every layer on one stream.

    x8       int8 [K / 64, 8, 64]
    x_scale  float32 [8]
    normed   x's dtype [8, K], or None if no unpacked linear reads it
    mail, calls  where the blocks of "slots" meet: int64 [2, 8, parts] of -1 and int32 [8, parts] of zeros, else empty
    """

    plan: Plan
    x8: Tensor
    x_scale: Tensor
    normed: Tensor | None
    mail: Tensor
    calls: Tensor


def allocate(k: int, device, *, normed: torch.dtype | None = None, plan: Plan | None = None) -> Prepared:
    """Buffers for K columns on `device`; `normed` is the dtype of the normed row where one is wanted.

    `plan` is for tests and benchmarks. Raises ValueError for a K that is no multiple of 64.
    """
    if k <= 0 or k % 64:
        raise ValueError(f"{k} input columns: a packed linear takes a multiple of 64")
    device = torch.device(device)
    if plan is None:
        nvidia = device.type == "cuda" and torch.version.hip is None
        if nvidia:
            properties = torch.cuda.get_device_properties(device)
            plan = plan_for(k, (properties.major, properties.minor), properties.multi_processor_count)
        else:
            plan = plan_for(k, None)
    cells = plan.parts if plan.form == "slots" else 0
    return Prepared(
        plan,
        torch.zeros(k // 64, SLOTS, 64, dtype=torch.int8, device=device),
        torch.ones(SLOTS, dtype=torch.float32, device=device),
        None if normed is None else torch.zeros(SLOTS, k, dtype=normed, device=device),
        torch.full((2, SLOTS, cells), -1, dtype=torch.int64, device=device),
        torch.zeros(SLOTS, cells, dtype=torch.int32, device=device),
    )


def prepare(
    x: Tensor,
    out: Prepared,
    *,
    norm: Tensor | None = None,
    eps: float | None = None,
    swiglu: bool = False,
    rotate: bool = True,
    dependent: bool = False,
) -> Prepared:
    """One launch for all eight slots; returns `out`, which it fills.

    x          bf16, fp16 or fp32 [8, K], or [8, 2K] = gate | up with swiglu; rows may lie further apart
    norm       [K] in one of these dtypes, the w of 1 + w, with its eps
    rotate     False for weights in the plain basis
    dependent  launched as a programmatic dependent of the kernel before it (NVIDIA, from compute capability 9.0)
    Raises ValueError where a shape, dtype, stride, alignment or device does not fit.
    """
    from . import _prepare_kernels as _kernels  # here, because without a GPU nobody needs Triton

    _check_prologue(x, norm, eps, swiglu, rotate)
    _check_buffers(x, norm, swiglu, out)
    k, plan = out.x8.shape[0] * 64, out.plan
    threads = plan.warps * 32 * (plan.parts if plan.form == "cluster" else 1)
    if plan.form == "alone":
        threads = _power_of_two(k // 8)
    grid = (SLOTS, plan.parts if plan.form == "slots" else 1)
    # Contracted products would round otherwise than the reference.
    options = {"num_warps": plan.warps, "enable_fp_fusion": False}
    if plan.form == "cluster":
        options["num_ctas"] = plan.parts
    if dependent:
        options["launch_pdl"] = True
    _kernels.prepare_kernel[grid](
        x, x.stride(0), x if norm is None else norm, 0.0 if eps is None else eps,
        out.x8, out.x_scale, x if out.normed is None else out.normed, out.mail, out.calls,
        K=k, THREADS=max(32, threads), PARTS=plan.parts, SLOTS=plan.form == "slots",
        CLUSTER=plan.form == "cluster", SWIGLU=swiglu, NORM=norm is not None, NORMED=out.normed is not None,
        ROTATE=rotate, BY_ROWS=False, DEPENDENT=dependent, **options,
    )  # fmt: skip
    return out


def prepare_many(
    x: Tensor,
    *,
    norm: Tensor | None = None,
    eps: float | None = None,
    swiglu: bool = False,
    rotate: bool = True,
    normed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One launch for any number of rows, a block each: `prepare_rows` as a kernel, for the prompt on a GPU.

    x, norm, eps, swiglu and rotate as for `prepare`, with R rows. Returns (x8 int8 [R, K], x_scale float32 [R]); a
    row's bits depend on that row alone. normed, x's dtype [R, K] contiguous, takes the normed rows too, if given (with
    a norm). Raises ValueError as `prepare` does.
    """
    from . import _prepare_kernels as _kernels

    _check_prologue(x, norm, eps, swiglu, rotate)
    _check_input(x, norm)
    rows, k = x.shape[0], x.shape[1] // 2 if swiglu else x.shape[1]
    if normed is not None and (
        norm is None or normed.shape != (rows, k) or normed.dtype != x.dtype or not normed.is_contiguous()
        or normed.device != x.device
    ):  # fmt: skip
        raise ValueError(f"normed goes with a norm and must be contiguous {x.dtype} [{rows}, {k}] on {x.device}")
    x8 = torch.empty(rows, k, dtype=torch.int8, device=x.device)
    x_scale = torch.empty(rows, device=x.device)
    threads = _power_of_two(k // 8)
    _kernels.prepare_kernel[(rows, 1)](
        x, x.stride(0), x if norm is None else norm, 0.0 if eps is None else eps, x8, x_scale,
        x if normed is None else normed, x8, x_scale,
        K=k, THREADS=max(32, threads), PARTS=1, SLOTS=False, CLUSTER=False, SWIGLU=swiglu, NORM=norm is not None,
        NORMED=normed is not None, ROTATE=rotate, BY_ROWS=True, DEPENDENT=False,
        num_warps=max(1, min(32, threads // 32)), enable_fp_fusion=False,
    )  # fmt: skip
    return x8, x_scale


def _check_prologue(x, norm, eps, swiglu, rotate):
    if x.dim() != 2 or x.dtype not in _DTYPES:
        raise ValueError(f"x must be bf16, fp16 or fp32 [rows, K], got {x.dtype} {list(x.shape)}")
    k = x.shape[1] // 2 if swiglu else x.shape[1]
    if k % (BLOCK if rotate else 64) or (swiglu and x.shape[1] % 2):
        raise ValueError(f"{k} columns do not fall into blocks of {BLOCK if rotate else 64}: keep this linear unpacked")
    if norm is not None and swiglu:
        raise ValueError("a norm and SwiGLU were both asked for; the operation has one prologue")
    if (norm is None) != (eps is None):
        raise ValueError("norm and eps come together: pass both or neither")
    if norm is not None and (tuple(norm.shape) != (k,) or norm.dtype not in _DTYPES):
        raise ValueError(f"norm must be bf16, fp16 or fp32 [{k}], got {norm.dtype} {list(norm.shape)}")


def _check_buffers(x, norm, swiglu, out):
    k = out.x8.shape[0] * 64
    width = 2 * k if swiglu else k
    if tuple(x.shape) != (SLOTS, width):
        raise ValueError(f"x is {list(x.shape)}, the buffers want [{SLOTS}, {width}]: allocate({x.shape[1]}, ...)")
    _check_input(x, norm)
    if out.normed is not None and norm is None:
        raise ValueError("the buffers hold a normed row, and no norm was passed: allocate them without `normed`")
    if out.normed is not None and out.normed.dtype != x.dtype:
        raise ValueError(f"the normed row is {out.normed.dtype} and x {x.dtype}: allocate(..., normed={x.dtype})")
    if x.device != out.x8.device:
        raise ValueError(f"x is on {x.device}, the buffers on {out.x8.device}: use one device")


def _check_input(x, norm):
    # 16-byte loads
    if x.stride(1) != 1 or x.stride(0) % 16 or x.data_ptr() % 16:
        raise ValueError(
            f"x has strides {x.stride()}: its columns must be neighbours, its rows start at multiples of 16 elements "
            "and 16 bytes; call x.contiguous()"
        )
    if norm is None:
        return
    if not norm.is_contiguous() or norm.data_ptr() % 16:
        raise ValueError("norm must be contiguous and start at a multiple of 16 bytes; call norm.contiguous()")
    if norm.device != x.device:
        raise ValueError(f"norm is on {norm.device}, x on {x.device}: use one device")
