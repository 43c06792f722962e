"""An embedding lookup for the few rows of a decode pass, from a plain table or from records (kernels/packed.py).

    y[r] = table[id],   or  level[id] * channel_scale[id],   un-rotated where the records are of rotated rows

Records in float32 by the additions of `rotate_exactly` (kernels/rotation.py); one rounding to the output's dtype: the
bits of a prompt's lookup. kernels/rounds.py looks a pass's rows up in the launch that lays the pass out.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .packed_linear import PackedWeight, check_contiguous
from .rotation import rotate_exactly


@dataclass(frozen=True)
class Table:
    """weight: plain [V, K] contiguous in a float dtype, or records; rotated: the records are of rotated rows."""

    weight: Tensor | PackedWeight
    rotated: bool = False

    @property
    def columns(self) -> int:
        return self.weight.shape[1] if isinstance(self.weight, Tensor) else self.weight.layout.columns

    def as_stored(self, dtype: torch.dtype) -> bool:
        """Whether a kernel can take a few columns at a time: they are not rotated, and plain ones have that dtype."""
        return self.weight.dtype == dtype if isinstance(self.weight, Tensor) else not self.rotated

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What kernels read: the table, levels by scale byte and code, the level table of each slab, channel scales."""
        weight = self.weight
        if isinstance(weight, Tensor):
            return weight, weight, weight, weight
        levels = weight.table.view(torch.uint8)
        return (
            weight.storage,
            levels,
            weight.table if weight.table_of is None else weight.table_of,
            weight.channel_scale,
        )

    @property
    def constants(self) -> dict[str, int | bool]:
        if isinstance(self.weight, Tensor):
            return {"K": self.columns, "BITS": 0, "C": 0, "TABLES": False, "ROTATED": False}
        layout, tables = self.weight.layout, self.weight.table_of is not None
        form = {"BITS": layout.bits, "C": layout.record_columns, "TABLES": tables, "ROTATED": self.rotated}
        return {"K": self.columns} | form


def reference(grid: Tensor, ids: Tensor, channel_scale: Tensor, *, rotated: bool, dtype: torch.dtype) -> Tensor:
    """`embed_rows` of records in plain torch: grid int8 [V, K], channel_scale float32 [V]."""
    rows = grid[ids].float() * channel_scale[ids, None]
    return (rotate_exactly(rows) / 16 if rotated else rows).to(dtype)


def embed_rows(table: Table, ids: Tensor, *, out: Tensor, dependent: bool = False) -> Tensor:
    """Returns `out` [R, K] contiguous, bf16, fp16 or fp32, which it fills: one launch.

    ids        int64 or int32 [R]
    dependent  launched as a programmatic dependent of the kernel before (NVIDIA, from compute capability 9.0)
    Raises ValueError where a shape, dtype, stride or device does not fit.
    """
    from . import _embedding_kernel as _kernel  # here, because without a GPU nobody needs Triton

    rows, k = ids.numel(), table.columns
    wanted = {
        "ids": (ids, (rows,), (torch.int64, torch.int32)),
        "out": (out, (rows, k), (torch.bfloat16, torch.float16, torch.float32)),
    }
    check_contiguous(wanted, table.tensors[0].device)
    options = {"launch_pdl": True} if dependent else {}
    _kernel.embed_rows_kernel[(rows, -(-k // 256))](
        *table.tensors, ids, out, **table.constants, DEPENDENT=dependent, num_warps=1, enable_fp_fusion=False, **options
    )  # fmt: skip
    return out
