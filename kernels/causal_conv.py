"""Causal depthwise convolution with SiLU over the DeltaNet's q, k and v channels.

    y[t, c] = silu( sum_j taps[c, j] * x[t - (J - 1) + j, c] ),   J taps, the last one on the current token

The window is the J - 1 columns before the first token (zeros at the start of a text), kept before the SiLU.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def causal_conv(x: Tensor, window: Tensor, taps: Tensor) -> Tensor:
    """x [T, C], window [J-1, C] in the compute dtype, taps [C, J] float32 -> [T, C] float32.

    Sums in tap order, so a token's bits depend on its own J columns only.
    """
    columns = torch.cat([window, x]).float()
    taps_count, tokens = taps.shape[1], x.shape[0]
    total = columns[:tokens] * taps[:, 0]
    for tap in range(1, taps_count):
        total = total + columns[tap : tap + tokens] * taps[:, tap]
    return F.silu(total)
