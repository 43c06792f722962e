"""A packed copy of some of a layer's rows, for a use that need not be exact."""

import torch

from ..kernels.packed import SLAB
from .backend import packed_kernels
from .decode import Grid, to_grid
from .linear import Linear
from .packed_linear import PackedLinear, RecordLinear
from .quantize import encode

_ROWS = 8192  # decoded and quantised at once: the floats of 5120 columns are 84 MB in bf16


def quantised_copy(layer: Linear | PackedLinear, rows: int, format: str, dtype: torch.dtype) -> PackedLinear:
    """The first `rows` rows of a layer, a multiple of 16, quantised to a packed format (weights/quantize.py).

    format  "w4a8" (4.5 bits a weight), "w6a8" (6.5) or "int8" (8), and four bytes a row
    dtype   of the weights that are quantised, where they are packed now
    Raises FastQwenError for a format or a number of columns that cannot be.
    """
    if rows % SLAB:
        raise ValueError(f"{rows} rows are no multiple of {SLAB}")
    device = layer.channel_scale.device if isinstance(layer, PackedLinear) else layer.weight.device
    parts = []
    for first in range(0, rows, _ROWS):
        ids = torch.arange(first, min(first + _ROWS, rows), device=device)
        parts.append(encode(layer.weight_rows(ids, dtype), format, name="the draft head").stored("the draft head"))
    if packed_kernels(device)[0]:
        return RecordLinear.of(parts, device)
    grids = [to_grid(part) for part in parts]
    channel_scale = torch.cat([grid.channel_scale for grid in grids])
    return PackedLinear(Grid(torch.cat([grid.values for grid in grids]), channel_scale, grids[0].rotated), device)
