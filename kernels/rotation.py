"""ConvRot's rotation: blocks of 256 columns times a fixed orthogonal matrix.

    h4 = [[1, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]]
    H  = h4 (x) h4 (x) h4 (x) h4 / 16                  (x) is the Kronecker product
    rotate(x)[..., b, :] = x[..., b, :] @ H            for every block b of 256 columns

H is symmetric and its own inverse, so the same function rotates and un-rotates, weights and activations alike:
(x H) (W H)^T = x W^T. Source: ComfyUI's ConvRot checkpoints, arXiv 2512.03673 for the regular Hadamard matrix.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 256
_H4 = ((1, 1, 1, -1), (1, 1, -1, 1), (1, -1, 1, 1), (-1, 1, 1, 1))


def matrix(device: torch.device | str = "cpu") -> Tensor:
    """H, [256, 256] float32. Its entries are 1/16 and -1/16, exact in every float format."""
    h4 = torch.tensor(_H4, dtype=torch.float32, device=device)
    h16 = torch.kron(h4, h4)
    return torch.kron(h16, h16) / 16


def rotate(x: Tensor) -> Tensor:
    """x [..., K] float32 -> [..., K] float32, K a multiple of 256. Raises ValueError otherwise.

    Products are exact; the 255 additions of a value round in the order of the library's matrix product. That order
    may depend on how many rows are given together, so a row's bits are not promised to be the same alone and among
    others: whoever needs that passes a fixed number of rows.
    """
    if x.dtype != torch.float32 or x.shape[-1] % BLOCK:
        raise ValueError(f"rotate takes float32 with a multiple of {BLOCK} columns, got {x.dtype} {list(x.shape)}")
    blocks = x.unflatten(-1, (x.shape[-1] // BLOCK, BLOCK))
    return F.linear(blocks, matrix(x.device)).reshape(x.shape)


def rotate_exactly(x: Tensor) -> Tensor:
    """x [..., K] float, K a multiple of 256 -> 16 H x, same shape and dtype, each value by the one tree of additions.

    `rotate` is the same map as a matrix product, whose order of additions the library chooses; here a row's bits are
    the same alone and among others.
    """
    y = x.reshape(*x.shape[:-1], x.shape[-1] // BLOCK, 4, 4, 4, 4)
    for digit in (-1, -2, -3, -4):
        a, b, c, d = y.unbind(digit)
        s, m, p, t = a + b, a - b, c + d, c - d
        y = torch.stack((s + t, s - t, m + p, p - m), digit)
    return y.reshape(x.shape)
