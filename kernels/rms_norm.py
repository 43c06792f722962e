"""Root-mean-square norms of the family.

    rms_norm(x)        = x / sqrt(mean(x^2) + eps) * (1 + weight)
    gated_rms_norm(o)  = o / sqrt(mean(o^2) + eps) * weight * silu(z)        (norm before gate)

Float32 inside; the result is rounded once to the input's dtype. The gated norm rounds its normalised value to
the gate's dtype before the weight, as the published model does. Source: Qwen3.5 in transformers 5.24.
"""

from collections.abc import Sequence

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


def rms_norm_rows(
    parts: Sequence[tuple[Tensor, Tensor]], eps: float, *, out: Tensor | None = None, dependent: bool = False
) -> Tensor:
    """`rms_norm` of one or two tensors of the same shape in one launch, results side by side, any number of rows.

    parts      (x [R, K] in one float dtype, rows contiguous; weight float32 [K])
    out        [R, K times parts] in x's dtype, contiguous; default: a new one
    dependent  launched as a programmatic dependent of the kernel before it (NVIDIA, from compute capability 9.0)
    A row's bits are its own. Sums run in another order than in `rms_norm`.
    """
    from . import _rms_norm_kernel as _kernels  # here, because without a GPU nobody needs Triton

    (x, weight), (other, other_weight) = parts[0], parts[-1]
    rows, columns = x.shape
    if other.shape != x.shape or other.dtype != x.dtype or len(parts) > 2 or weight.shape != (columns,):
        raise ValueError(f"one or two tensors of one shape are wanted, got {[list(part.shape) for part, _ in parts]}")
    if out is None:
        out = x.new_empty(rows, columns * len(parts))
    block = 1 << (columns - 1).bit_length()
    options = {"launch_pdl": True} if dependent else {}
    _kernels.rms_norm_kernel[(rows, len(parts))](
        x, other, weight, other_weight, out, x.stride(0), other.stride(0), columns, eps, BLOCK=block,
        DEPENDENT=dependent, num_warps=max(1, min(16, block // 256)), enable_fp_fusion=True, **options,
    )  # fmt: skip
    return out
