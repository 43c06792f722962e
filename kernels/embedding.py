"""An embedding lookup from a packed table, for the few rows of a decode pass: one launch behind the unpacking.

    y[r] = grid[id] * channel_scale[id],   un-rotated where the table is of rotated rows (kernels/rotation.py)

In float32 by the additions of `rotate_exactly`, one rounding to the output's dtype: the bits of a prompt's lookup.
"""

import torch
from torch import Tensor

from .packed_linear import check_contiguous
from .rotation import BLOCK, rotate_exactly


def reference(grid: Tensor, ids: Tensor, channel_scale: Tensor, *, rotated: bool, dtype: torch.dtype) -> Tensor:
    """`embed_rows` in plain torch."""
    rows = grid.view(len(ids), 16, -1)[torch.arange(len(ids), device=ids.device), ids % 16]
    rows = rows.float() * channel_scale[ids, None]
    return (rotate_exactly(rows) / 16 if rotated else rows).to(dtype)


def embed_rows(grid: Tensor, ids: Tensor, channel_scale: Tensor, *, rotated: bool, out: Tensor) -> Tensor:
    """Returns `out`, which it fills.

    grid           int8 [16 R, K] contiguous, K a multiple of 256: the slab of 16 rows that each id lies in
    ids            int64 or int32 [R], and channel_scale float32 [N] of the whole table
    out            [R, K] contiguous, bf16, fp16 or fp32
    Raises ValueError where a shape, dtype, stride or device does not fit.
    """
    from . import _embedding_kernel as _kernel  # here, because without a GPU nobody needs Triton

    rows, k = out.shape
    wanted = {
        "grid": (grid, (16 * rows, k), (torch.int8,)),
        "ids": (ids, (rows,), (torch.int64, torch.int32)),
        "channel_scale": (channel_scale, tuple(channel_scale.shape[:1]), (torch.float32,)),
        "out": (out, (rows, k), (torch.bfloat16, torch.float16, torch.float32)),
    }
    check_contiguous(wanted, out.device)
    if k % BLOCK:
        raise ValueError(f"{k} columns are no multiple of {BLOCK}")
    _kernel.embed_rows_kernel[(rows, k // BLOCK)](
        grid, ids, channel_scale, out, K=k, ROTATED=rotated, num_warps=1, enable_fp_fusion=False
    )  # fmt: skip
    return out
