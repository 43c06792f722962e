"""Root-mean-square norms of the family.

    rms_norm(x)        = x / sqrt(mean(x^2) + eps) * (1 + weight)
    gated_rms_norm(o)  = o / sqrt(mean(o^2) + eps) * weight * silu(z)        (norm before gate)

Float32 inside; the result is rounded once to the input's dtype. The gated norm rounds its normalised value to
the gate's dtype before the weight, as the published model does. Source: Qwen3.5 in transformers 5.24.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., K] any float dtype, weight [K] float32 (stored as w of 1 + w) -> [..., K] in x's dtype."""
    return (_normalised(x.float(), eps) * (1.0 + weight)).to(x.dtype)


def gated_rms_norm(o: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
    """o [..., V] float32, z [..., V] compute dtype, weight [V] float32 -> [..., V] in z's dtype."""
    normalised = _normalised(o, eps).to(z.dtype).float()
    return (normalised * weight * F.silu(z.float())).to(z.dtype)


def _normalised(x: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
