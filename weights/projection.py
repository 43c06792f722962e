"""Linear layers that read one input, with what comes right before and after them.

A decode pass is bound by launches as much as by bytes, so the unit of work is not one matrix but a group: the norm or
the SwiGLU before it, all matrices on that input, and the residual added behind. Backends replace the inside.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from ..kernels.rms_norm import rms_norm
from ..kernels.rows import each_row
from .linear import Linear


class Norm:
    """The (1 + w) RMS norm before a group. weight float32 [K]."""

    def __init__(self, weight: Tensor, eps: float):
        self.weight, self.eps = weight, eps

    def __call__(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class Projection:
    """prologue(x) times each matrix of the group, plus the residual.

    layers    the matrices, each [N_i, K]
    norm      the norm before them, or None
    swiglu    the input is gate | up, [..., 2 K], and the prologue is silu(gate) * up
    """

    def __init__(self, layers: Sequence[Linear], *, norm: Norm | None = None, swiglu: bool = False):
        self.layers, self.norm, self.swiglu = tuple(layers), norm, swiglu

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, ...]:
        """x [..., K] (SwiGLU: [..., 2 K]), residual [..., N_0] of a group of one -> one [..., N_i] a matrix."""
        if self.norm is not None:
            x = self.norm(x)
        if self.swiglu:
            gate, up = x.chunk(2, -1)
            x = F.silu(gate) * up
        results = tuple(layer(x) for layer in self.layers)
        return results if residual is None else (residual + results[0],)

    def verify(self, x: Tensor, rows: int, residual: Tensor | None = None) -> tuple[Tensor, ...]:
        """The rows of a decode pass: x [SLOTS, K], residual [SLOTS, N_0] -> one [SLOTS, N_i] a matrix."""
        return each_row(self, rows, x) if residual is None else each_row(self, rows, x, residual)
