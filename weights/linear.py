"""A linear layer over plain float weights."""

import torch
import torch.nn.functional as F
from torch import Tensor


class Linear:
    """y = x W^T. Weight [N, K] in the compute dtype; no bias (the family has none)."""

    def __init__(self, weight: Tensor):
        self.weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., K] -> [..., N], same dtype.

        The bits of a row may depend on how many rows are given together (libraries choose another path per
        row count); decoding therefore passes one row [K] at a time (see kernels/rows.py).
        """
        return F.linear(x, self.weight)

    def weight_rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """The weights [len(ids), K] of some rows: an embedding lookup."""
        return F.embedding(ids, self.weight).to(dtype)
