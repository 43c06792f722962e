"""Block scales of nvfp4 and mxfp8: their order in memory and their number formats.

A tile of 128 rows and 4 columns is 512 bytes: row r, column c of it is byte (r % 32) * 16 + (r // 32) * 4 + c. Tiles
follow each other along the columns first; a matrix is padded to whole tiles. Source: cuBLAS, "1D block scaling
factors layout"; OCP Microscaling Formats 1.0 for e8m0.
"""

import torch
from torch import Tensor


def unswizzle(scales: Tensor) -> Tensor:
    """[R, C] as stored, R a multiple of 128 and C of 4 -> [R, C] in plain order, same dtype."""
    rows, columns = scales.shape
    tiles = scales.reshape(rows // 128, columns // 4, 32, 4, 4)  # row tile, column tile, r % 32, r // 32, c
    return tiles.permute(0, 3, 2, 1, 4).reshape(rows, columns)


def e8m0_to_float(scales: Tensor) -> Tensor:
    """uint8 exponents -> float32 2^(e - 127).

    0 gives 0, not 2^-127: comfy-kitchen writes it for a block of zeros and reads it so. 255 (NaN) gives infinity.
    """
    return (scales.int() << 23).view(torch.float32)
