"""A linear layer whose weights are an int8 grid: packed formats run on it exactly as the file means them."""

import torch
from torch import Tensor

from ..kernels import rotation
from ..kernels.int8_matmul import int8_matmul, scaled
from .decode import Grid


class PackedLinear:
    """y = (x8 grid^T) * channel_scale * x_scale over prepared activations (kernels/prepare.py).

    grid           int8 [N, K]
    channel_scale  float32 [N]
    rotated        the grid is of W H, so activations are rotated too
    """

    def __init__(self, grid: Grid, device: torch.device):
        self.grid = grid.values.to(device).contiguous()
        self.channel_scale, self.rotated = grid.channel_scale.to(device), grid.rotated

    def __call__(self, x8: Tensor, x_scale: Tensor, residual: Tensor | None, dtype: torch.dtype) -> Tensor:
        """x8 int8 [R, K], x_scale float32 [R], residual [R, N] or None -> [R, N] in `dtype`."""
        return scaled(int8_matmul(x8, self.grid), self.channel_scale, x_scale, residual, dtype)

    def weight_rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """The weights [len(ids), K] of some rows, un-rotated: an embedding lookup reads the packed table."""
        rows = self.grid[ids].float() * self.channel_scale[ids, None]
        # The exact form: a token's embedding must not depend on how many tokens are looked up with it.
        return (rotation.rotate_exactly(rows) / 16 if self.rotated else rows).to(dtype)
