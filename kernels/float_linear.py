"""Linear layers over plain float weights, for the eight rows of a decode pass.

    acc[r, n] = sum_k x[r, k] W[n, k]      products exact or fused, sums in float32
    y         = acc + residual in float32, if there is one;  one rounding to the output's dtype

A float sum depends on its order, so the order is fixed by the launch, and the launch by the shape and the dtype alone:
eight slots always, whatever number of them is alive. Every slot goes through the same instructions and no value of one
reaches another, so a row's bits depend neither on its slot nor on its neighbours, NaN among them.

Two forms. Both stream W once, in 16-byte loads, and ask for its first step before they wait for the kernel before.
"dot": a block's BLOCK_N rows of W pass through shared memory, STAGES steps of BLOCK_K columns in flight, into the
matrix unit, eight rows of zeros beside the eight slots. The first step, already in registers, is added last.
"sum": float32 multiply-adds, for float32 weights (the matrix unit would round them) and for matrices with so few rows
that latency is all that counts. A block has few rows of W, its threads lie along K, 16 bytes of columns each, with the
next step of W and of x in flight; a thread sums its own columns, then the threads of a block add up in one tree.

Another kernel can run these rows in program ids of its own: `_float_linear_kernels.float_rows(block, ...)` computes
rows block * BLOCK_N and up of W for all slots, and does its own wait where DEPENDENT is set. Its number of warps must
be the launch's; `Launch.blocks(rows)` tells how many program ids it needs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .rows import SLOTS

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
COLUMNS = 16  # K is a multiple of it, for 16-byte loads
DOT_COLUMNS = 64  # and of this for the "dot" form, which masks none
FEW_ROWS = 512  # up to here a matrix is a matter of latency


def reference(x: Tensor, weight: Tensor, residual: Tensor | None = None) -> Tensor:
    """x [R, K], weight [N, K], residual [R, N] in any float dtypes -> float64 [R, N]."""
    y = x.double() @ weight.double().T
    return y if residual is None else y + residual.double()


@dataclass(frozen=True)
class Launch:
    """How a matrix is spread over blocks: fixed for a shape and a dtype, because it fixes the order of the sum.

    form     "dot" or "sum"
    block_n  rows of W a block
    block_k  columns a step
    warps    warps a block
    stages   steps in flight ("sum": 1, it has its own)
    """

    form: str
    block_n: int
    block_k: int
    warps: int
    stages: int

    def blocks(self, rows: int) -> int:
        """Program ids that `rows` rows of W take."""
        return -(-rows // self.block_n)

    def constants(self, columns: int) -> dict[str, object]:
        """The compile-time arguments of `float_rows` for `columns` columns."""
        return {
            "K": columns, "DOT": self.form == "dot", "BLOCK_N": self.block_n, "BLOCK_K": self.block_k,
            "STAGES": self.stages,
        }  # fmt: skip


def sum_launch(block_n: int, warps: int, dtype: torch.dtype, vectors: int = 1) -> Launch:
    """The "sum" form with `block_n` rows a block; a thread has `vectors` times 16 bytes of a row a step.

    All powers of two. More vectors bring a whole row into flight where a kernel has few warps.
    """
    return Launch("sum", block_n, 512 // dtype.itemsize * warps * vectors, warps, 1)


def launch_for(rows: int, columns: int, dtype: torch.dtype) -> Launch:
    """The launch of a shape.

    Columns that the "dot" form does not take go by the "sum" form, however many rows.
    Few rows: two a block, so that 64 to 96 of them occupy 32 to 48 multiprocessors; every block reads all of x, which
    costs as much as eight rows of W, from the L2. Float32 weights in any number: eight rows, to read x less often.
    Else 32 rows a block where they make few blocks (all resident at once), and 64 where they make many.
    """
    # One step for the whole row where 16 warps hold it: everything is in flight at once.
    warps = min(16, max(1, _power_of_two(columns * dtype.itemsize) // 512))
    if dtype == torch.float32 and rows > FEW_ROWS:
        return sum_launch(8, min(4, warps), dtype)
    if dtype == torch.float32 or rows <= FEW_ROWS or columns % DOT_COLUMNS:
        return sum_launch(2, warps, dtype)
    block_k = 128 if columns % 128 == 0 else 64
    # 60 and 80 KiB of shared memory: any GPU from compute capability 8.0 holds a block of it, a Hopper two or three.
    return Launch("dot", 32, block_k, 4, 5) if rows <= 32768 else Launch("dot", 64, block_k, 4, 4)


def why_not(weight: Tensor) -> str | None:
    """Why the kernel does not take a weight, or None if it does."""
    if weight.dim() != 2 or weight.dtype not in DTYPES:
        return f"the weight is {weight.dtype} {list(weight.shape)}: it must be bf16, fp16 or fp32 [N, K]"
    if weight.shape[0] < 1 or weight.shape[1] < COLUMNS or weight.shape[1] % COLUMNS:
        found = list(weight.shape)
        return f"the weight is {found}: it must have rows and a multiple of {COLUMNS} columns: pad K with zeros"
    if not weight.is_contiguous() or weight.data_ptr() % 16:
        return "the weight must be contiguous and start at a multiple of 16 bytes: call weight.contiguous()"
    return None


def float_linear(
    x: Tensor,
    weight: Tensor,
    *,
    residual: Tensor | None = None,
    out: Tensor,
    launch: Launch | None = None,
    dependent: bool = False,
) -> Tensor:
    """Eight rows times a plain matrix; returns `out`, which it fills.

    x          bf16, fp16 or fp32 [8, K] contiguous; dead slots hold zeros
    weight     [N, K] contiguous in x's dtype; N any number, K a multiple of 16
    residual   [8, N] contiguous in out's dtype, added before the one rounding; may be `out` itself
    out        [8, N] contiguous, x's dtype or fp32
    launch     for tests and benchmarks: another one changes the last bits
    dependent  launched as a programmatic dependent of the kernel before it (NVIDIA, from compute capability 9.0)
    Raises ValueError where a shape, dtype, stride, alignment or device does not fit.
    """
    from . import _float_linear_kernels as _kernels  # here, because without a GPU nobody needs Triton

    check(x, weight, residual, out)
    rows, columns = weight.shape
    launch = launch or launch_for(rows, columns, weight.dtype)
    if launch.form == "dot" and columns % launch.block_k:
        raise ValueError(f"{columns} columns are no multiple of the launch's steps of {launch.block_k}")
    options = {"num_warps": launch.warps, "num_stages": launch.stages, "enable_fp_fusion": True}
    if dependent:
        options["launch_pdl"] = True
    _kernels.float_linear_kernel[(launch.blocks(rows),)](
        x, weight, out if residual is None else residual, out, rows,
        RESIDUAL=residual is not None, DEPENDENT=dependent, **launch.constants(columns), **options,
    )  # fmt: skip
    return out


def _power_of_two(number):
    """The smallest power of two that is not smaller."""
    return 1 << (number - 1).bit_length()


def check(x: Tensor, weight: Tensor, residual: Tensor | None, out: Tensor):
    """Raises ValueError where `float_linear` would."""
    reason = why_not(weight)
    if reason is not None:
        raise ValueError(reason)
    rows, columns = weight.shape
    wanted = {
        "x": (x, (SLOTS, columns), (weight.dtype,)),
        "out": (out, (SLOTS, rows), (weight.dtype, torch.float32)),
    }
    if residual is not None:
        wanted["residual"] = (residual, (SLOTS, rows), (out.dtype,))
    for name, (tensor, shape, dtypes) in wanted.items():
        if tuple(tensor.shape) != shape or tensor.dtype not in dtypes:
            raise ValueError(f"{name} must be {dtypes[0]} {list(shape)}, got {tensor.dtype} {list(tensor.shape)}")
        if not tensor.is_contiguous() or tensor.data_ptr() % 16:
            raise ValueError(f"{name} must be contiguous and start at a multiple of 16 bytes: call {name}.contiguous()")
        if tensor.device != weight.device:
            raise ValueError(f"{name} is on {tensor.device}, the weight on {weight.device}: move them to one device")
