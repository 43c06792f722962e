"""Linear layers that read one input, with what comes right before and after them.

A decode pass is bound by launches as much as by bytes, so the unit of work is not one matrix but a group: the norm or
the SwiGLU before it, all matrices on that input, and the residual added behind. Backends replace the inside.
"""

from collections.abc import Sequence
from functools import partial

import torch.nn.functional as F
from torch import Tensor

from ..kernels import prepare
from ..kernels.rms_norm import rms_norm
from ..kernels.rows import each_row
from .linear import Linear
from .packed_linear import PackedLinear


class Norm:
    """The (1 + w) RMS norm before a group. weight float32 [K]."""

    def __init__(self, weight: Tensor, eps: float):
        self.weight, self.eps = weight, eps

    def __call__(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class Projection:
    """prologue(x) times each matrix of the group, plus the residual.

    layers    the matrices, each [N_i, K]; plain and packed ones may be mixed
    norm      the norm before them, or None
    swiglu    the input is gate | up, [..., 2 K], and the prologue is silu(gate) * up
    """

    def __init__(self, layers: Sequence[Linear | PackedLinear], *, norm: Norm | None = None, swiglu: bool = False):
        self.layers, self.norm, self.swiglu = tuple(layers), norm, swiglu
        norm_arguments = {} if norm is None else {"norm": norm.weight, "eps": norm.eps}
        self._prepare = partial(prepare.prepare_rows, swiglu=swiglu, **norm_arguments)
        self._rotations = {layer.rotated for layer in self.layers if isinstance(layer, PackedLinear)}

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, ...]:
        """x [..., K] (SwiGLU: [..., 2 K]), residual [..., N_0] of a group of one -> one [..., N_i] a matrix."""
        rows = x.reshape(-1, x.shape[-1])
        added = None if residual is None else residual.reshape(rows.shape[0], -1)
        prepared = {rotated: self._prepare(rows, rotate=rotated) for rotated in self._rotations}
        plain = None
        results = []
        for layer in self.layers:
            if isinstance(layer, PackedLinear):
                result = layer(*prepared[layer.rotated], added, x.dtype).view(*x.shape[:-1], -1)
            else:
                plain = self._prologue(x) if plain is None else plain
                result = layer(plain) if residual is None else residual + layer(plain)
            results.append(result)
        return tuple(results)

    def verify(self, x: Tensor, rows: int, residual: Tensor | None = None) -> tuple[Tensor, ...]:
        """The rows of a decode pass: x [SLOTS, K], residual [SLOTS, N_0] -> one [SLOTS, N_i] a matrix."""
        return each_row(self, rows, x) if residual is None else each_row(self, rows, x, residual)

    def _prologue(self, x):
        if self.norm is not None:
            x = self.norm(x)
        if self.swiglu:
            gate, up = x.chunk(2, -1)
            x = F.silu(gate) * up
        return x
