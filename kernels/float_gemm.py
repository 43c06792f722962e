"""The rows of a prompt times a small plain matrix, each row's bits its own however many rows there are.

    y[r, n] = sum_k x[r, k] W[n, k]      products exact, sums in float32 over k in one order, one rounding

A library takes another path for another number of rows, so what it gives for a row depends on where a prompt is cut.
Here tiles and the order of the sum are fixed by the dtype and K alone, and no value of one row reaches another. It is
for the few plain rows of W beside packed ones (DeltaNet's a and b), where it waits for latency rather than for memory.
"""

import torch
from torch import Tensor

from .float_linear import why_not

ROWS = 16  # of a tile: 2048 rows of a prompt occupy 128 multiprocessors
COLUMNS = 64  # K is a multiple of it
_BLOCK_N = 64


def float_gemm(x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Returns `out`, which it fills.

    x       bf16, fp16 or fp32 [R, K], R >= 1, rows contiguous
    weight  [N, K] contiguous in x's dtype; N any number, K a multiple of 64
    out     [R, N] contiguous in x's dtype; default: a new one
    Raises ValueError where a shape, dtype, stride or device does not fit.
    """
    from . import _float_gemm_kernels as _kernels  # here, because without a GPU nobody needs Triton

    reason = why_not(weight)
    if reason is not None:
        raise ValueError(reason)
    columns, k = weight.shape
    if k % COLUMNS:
        raise ValueError(f"the weight has {k} columns: a multiple of {COLUMNS} is wanted")
    if x.dim() != 2 or not x.shape[0] or x.shape[1] != k or x.dtype != weight.dtype or x.stride(1) != 1:
        raise ValueError(
            f"x must be {weight.dtype} [rows, {k}] with contiguous rows, got {x.dtype} {list(x.shape)}, strides "
            f"{x.stride()}"
        )
    rows = x.shape[0]
    if out is None:
        out = x.new_empty(rows, columns)
    if out.shape != (rows, columns) or out.dtype != x.dtype or not out.is_contiguous():
        raise ValueError(f"out must be contiguous {x.dtype} [{rows}, {columns}], got {out.dtype} {list(out.shape)}")
    if not x.device == weight.device == out.device:
        raise ValueError(f"x, weight and out are on {x.device}, {weight.device} and {out.device}: use one device")
    block_k = 128 if k % 128 == 0 and x.dtype != torch.float32 else 64
    _kernels.float_gemm_kernel[(-(-rows // ROWS), -(-columns // _BLOCK_N))](
        x, weight, out, rows, columns, x.stride(0), K=k, BLOCK_R=ROWS, BLOCK_N=_BLOCK_N, BLOCK_K=block_k,
        enable_fp_fusion=True, num_warps=4, num_stages=4,  # 60 KiB of shared memory, which every GPU has
    )  # fmt: skip
    return out
