"""ConvRot's rotation: blocks of 256 columns times a fixed orthogonal matrix.

    h4 = [[1, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]]
    H  = h4 (x) h4 (x) h4 (x) h4 / 16                  (x) is the Kronecker product
    rotate(x)[..., b, :] = x[..., b, :] @ H            for every block b of 256 columns

H is symmetric and its own inverse, so the same function rotates and un-rotates, weights and activations alike:
(x H) (W H)^T = x W^T. Source: ComfyUI's ConvRot checkpoints, arXiv 2512.03673 for the regular Hadamard matrix.
"""

import torch
from torch import Tensor

BLOCK = 256
_H4 = ((1, 1, 1, -1), (1, 1, -1, 1), (1, -1, 1, 1), (-1, 1, 1, 1))


def matrix(device: torch.device | str = "cpu") -> Tensor:
    """H, [256, 256] float32. Its entries are 1/16 and -1/16, exact in every float format."""
    h4 = torch.tensor(_H4, dtype=torch.float32, device=device)
    h16 = torch.kron(h4, h4)
    return torch.kron(h16, h16) / 16


def rotate16(x: Tensor) -> Tensor:
    """16 H x: x [..., K] -> [..., K], same dtype, K a multiple of 256. Raises ValueError otherwise.

    Additions only, four a value in one fixed tree (h4 over each base-4 digit of the column, lowest digit first), so a
    row's bits are the same alone and among others.
    """
    if not x.is_floating_point() or x.shape[-1] % BLOCK:
        raise ValueError(f"rotate takes floats with a multiple of {BLOCK} columns, got {x.dtype} {list(x.shape)}")
    y = x.reshape(*x.shape[:-1], x.shape[-1] // BLOCK, 4, 4, 4, 4)
    for digit in (-1, -2, -3, -4):
        a, b, c, d = y.unbind(digit)
        s, m, p, t = a + b, a - b, c + d, c - d
        y = torch.stack((s + t, s - t, m + p, p - m), digit)
    return y.reshape(x.shape)


def rotate(x: Tensor) -> Tensor:
    """x [..., K] -> [..., K], rotated by blocks; the 1/16 is exact. Raises ValueError as `rotate16` does."""
    return rotate16(x) / 16
