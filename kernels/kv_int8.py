"""Keys and values as int8 with one scale a token and head.

    scale = max |x| / 127  (1 for a row of zeros)         float32
    code  = round_half_even(x / scale)                     int8, -127..127
    x'    = code * scale

Division and rounding are exact operations of one value and one scale, so a token's stored bytes never depend on its
neighbours.
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
