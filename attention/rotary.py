"""Interleaved multimodal rotary embedding: three position axes share the rotated dimensions of a head.

Frequency j (of dim / 2) turns by theta^(-2 j / dim) per step of its axis: height if j % 3 == 1 and
j < 3 sections[1], width if j % 3 == 2 and j < 3 sections[2], time otherwise. Text has the same number on all
three axes. Rotate-half form inside the first `dim` dimensions of a head; the others pass through.
Source: Qwen3.5 in transformers 5.24 (mrope_interleaved).
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class RotaryConfig:
    """theta: base of the frequencies; dim: rotated dimensions of a head (even); sections: (time, height, width)."""

    theta: float
    dim: int
    sections: tuple[int, int, int]


class Rotary:
    """Cosines and sines for 3-D positions, on one device."""

    def __init__(self, config: RotaryConfig, device: torch.device):
        half = config.dim // 2
        self.inverse = config.theta ** -(torch.arange(half, dtype=torch.float32) * 2 / config.dim)
        axis = torch.zeros(half, dtype=torch.long)
        for which in (1, 2):
            axis[which : 3 * config.sections[which] : 3] = which
        self.inverse, self.axis = self.inverse.to(device), axis.to(device)

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions [3, T] integers -> cos, sin [T, dim / 2] float32."""
        angles = positions.float()[self.axis].T.contiguous() * self.inverse
        return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [..., heads, D], cos and sin [..., dim / 2] of the same leading shape -> x rotated, in x's dtype."""
    half = cos.shape[-1]
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    first, second, rest = x[..., :half].float(), x[..., half : 2 * half].float(), x[..., 2 * half :]
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
    return torch.cat([turned.to(x.dtype), rest], -1)
