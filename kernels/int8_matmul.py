"""Exact int8 matrix products in plain torch: the packed linears' path without a kernel.

    acc[r, n] = sum_k x8[r, k] grid[n, k]          int32; K * 127^2 < 2^31 holds up to K = 133,000
    y = (float(acc) * channel_scale) * x_scale     each product rounded in float32

Sums of integers are exact in any order, so rows may be computed together without changing their bits.
"""

import functools

import torch
from torch import Tensor


def int8_matmul(x8: Tensor, grid: Tensor) -> Tensor:
    """x8 int8 [R, K], grid int8 [N, K] -> int32 [R, N], on any device."""
    if x8.device.type == "cpu" and _cpu_library_is_exact():
        return torch._int_mm(x8, grid.t())
    if x8.device.type == "cuda" and not grid.shape[0] % 8 and not grid.shape[1] % 8:
        return _cuda_library(x8, grid)
    return (x8.double() @ grid.double().t()).to(torch.int32)  # float64 holds the sums exactly


def scaled(acc: Tensor, channel_scale: Tensor, x_scale: Tensor, residual: Tensor | None, dtype: torch.dtype) -> Tensor:
    """int32 sums [R, N] to outputs [R, N] in `dtype`: scales, then the residual in float32, then one rounding."""
    y = acc.float() * channel_scale * x_scale[:, None]
    if residual is not None:
        y = y + residual.float()
    return y.to(dtype)


def _cuda_library(x8, grid):
    """cuBLAS wants more than 16 rows; rows of zeros fill up."""
    rows = x8.shape[0]
    padded = max(32, -(-rows // 8) * 8)
    if padded != rows:
        x8 = torch.cat([x8, x8.new_zeros(padded - rows, x8.shape[1])])
    return torch._int_mm(x8, grid.t())[:rows]


@functools.cache
def _cpu_library_is_exact() -> bool:
    """Whether torch's int8 product keeps its promise here.

    Processors without int8 dot products add pairs in 16 bits, which saturates for large values of one sign: the
    first thing tried. Odd row counts and sizes take other code paths, so some of each are tried.
    """
    generator = torch.Generator().manual_seed(0)
    try:
        for rows, columns, outputs in ((1, 256, 16), (1, 1024, 48), (8, 768, 512), (33, 2560, 17)):
            for low in (127, -127):
                x8 = torch.randint(low, 128, (rows, columns), generator=generator).to(torch.int8)
                grid = torch.randint(-127, 128, (outputs, columns), generator=generator).to(torch.int8)
                grid[: outputs // 2] = -127
                wanted = (x8.double() @ grid.double().t()).to(torch.int32)
                if not torch.equal(torch._int_mm(x8, grid.t()), wanted):
                    return False
    except (AttributeError, RuntimeError):  # an older torch, or a build without it
        return False
    return True
