"""A linear layer over plain float weights."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kernels import embedding, float_gemm, float_linear
from .backend import dependent_launch, float_kernels, prompt_kernels


class Linear:
    """y = x W^T. Weight [N, K] in the compute dtype; no bias (the family has none).

    by_kernel   whether `decode` can be called: decided by the weight's device and shape, once
    """

    def __init__(self, weight: Tensor):
        self.weight = weight
        self.by_kernel = float_linear.why_not(weight) is None and float_kernels(weight.device, weight.dtype)[0]

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., K] -> [..., N], same dtype.

        The bits of a row may depend on how many rows are given together (libraries choose another path per
        row count); decoding therefore uses `decode`, or passes one row [K] at a time (see kernels/rows.py).
        """
        return F.linear(x, self.weight)

    @property
    def takes_rows(self) -> bool:
        """Whether `rows` can be called: for a small matrix, for which it is as fast as a library."""
        small = self.weight.shape[0] <= float_linear.FEW_ROWS and self.weight.shape[1] % float_gemm.COLUMNS == 0
        return self.by_kernel and small and prompt_kernels(self.weight.device, self.weight.dtype)[0]

    def rows(self, x: Tensor) -> Tensor:
        """The rows of a prompt: x [R, K] -> [R, N] in x's dtype. A row's bits are its own, whatever R is."""
        return float_gemm.float_gemm(x, self.weight)

    def decode(self, x: Tensor, residual: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """The eight rows of a decode pass: x [8, K], residual [8, N] or None -> [8, N] in x's dtype.

        One launch; a row's bits are its own. residual is added before the one rounding.
        out: where the result goes, contiguous; default: new memory.
        """
        if out is None:
            out = torch.empty(x.shape[0], self.weight.shape[0], dtype=x.dtype, device=x.device)
        dependent = dependent_launch(x.device)
        return float_linear.float_linear(x.contiguous(), self.weight, residual=residual, out=out, dependent=dependent)

    def weight_rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """The weights [len(ids), K] of some rows: an embedding lookup."""
        return F.embedding(ids, self.weight).to(dtype)

    @property
    def table(self) -> embedding.Table:
        """What lookups of a decode pass read by kernels."""
        return embedding.Table(self.weight)

    def embed(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """`weight_rows` of the few rows of a decode pass."""
        out = torch.empty(len(ids), self.weight.shape[1], dtype=self.weight.dtype, device=ids.device)
        return torch.index_select(self.weight, 0, ids, out=out).to(dtype)

    def first_rows(self, count: int) -> "Linear":
        """A layer of the first `count` rows, over the same memory."""
        return Linear(self.weight[:count])

    def empty_rows(self, count: int) -> "Linear":
        """A layer of `count` rows of zeros, for `copy_rows` to fill."""
        return Linear(self.weight.new_zeros(count, self.weight.shape[1]))

    def copy_rows(self, source: "Linear", rows: Tensor, places: Tensor):
        """Takes rows of a layer of the same width: rows and places int64 [R]. Nothing waits for the device."""
        self.weight[places] = source.weight[rows]
