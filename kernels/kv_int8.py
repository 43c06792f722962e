"""Keys and values as int8 with one scale a token and head.

    scale = max |x| / 127  (1 for a row of zeros)         float32
    code  = round_half_even(x / scale)                     int8, -127..127
    x'    = code * scale

Division and rounding are exact operations of one value and one scale, so a token's stored bytes never depend on its
neighbours.

Keys of trained models have a few channels many times as large as the others, which would set the scale of all. So keys
are stored as H k, and queries meet them as H q / D, with the Hadamard matrix H of the head's D channels (D a power of
two): H^T H = D, so q.k is unchanged, and every channel of H k is a sum of all channels of k. Additions only, in one
fixed order: log2 D stages of a + b, a - b over channels 1, 2, 4, ... apart. The idea is QuaRot's (arXiv 2404.00456).
"""

import torch
from torch import Tensor


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [..., D] any float dtype -> codes int8 [..., D], scales float32 [...]. A NaN or infinity gives a NaN scale."""
    x = x.float()
    absmax = x.abs().amax(-1)
    scale = torch.where(absmax == 0, 1.0, absmax / torch.full_like(absmax, 127.0))
    scale = torch.where(torch.isfinite(scale), scale, float("nan"))
    return (x / scale[..., None]).round().clamp(-127, 127).nan_to_num(0.0).to(torch.int8), scale


def dequantise(codes: Tensor, scales: Tensor) -> Tensor:
    """codes int8 [..., D], scales float32 [...] -> float32 [..., D]."""
    return codes.float() * scales[..., None]


def mixes(head_dim: int) -> bool:
    """Whether heads of this many channels have a Hadamard matrix here; others are stored as they are."""
    return head_dim & (head_dim - 1) == 0


def mixed_keys(k: Tensor) -> Tensor:
    """H k: [..., D] any float dtype -> float32, as keys are stored."""
    shape, x = k.shape, k.float()
    apart = 1
    while apart < shape[-1]:
        a, b = x.reshape(*shape[:-1], -1, 2, apart).unbind(-2)
        x = torch.stack([a + b, a - b], -2)
        apart *= 2
    return x.reshape(shape)


def mixed_queries(q: Tensor) -> Tensor:
    """H q / D: [..., D] any float dtype -> float32. D is a power of two, so the division is exact."""
    return mixed_keys(q) / q.shape[-1]
