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

from .embedding import Table


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
    parts: Sequence[tuple[Tensor | Table, Tensor]],
    eps: float,
    *,
    at: Sequence[Tensor | None] = (None, None),
    out: Tensor | None = None,
    also: tuple[Tensor, Tensor] | None = None,
    dependent: bool = False,
) -> Tensor:
    """`rms_norm` of one or two tensors of the same shape in one launch, results side by side, any number of rows.

    parts      (x [R, K] in one float dtype, rows contiguous; weight float32 [K]). The first of two may be a table of
               embeddings that `as_stored`; its rows are rounded to the other's dtype first
    at         for a part: int64 [R], the rows that are taken of its x [., K]; None: all of them in order
    out        [R, K times parts] in x's dtype, contiguous; default: a new one
    also       of one part: (target [., K] contiguous in x's dtype, places int64 [R]): row r goes to places[r] too
    dependent  launched as a programmatic dependent of the kernel before it (NVIDIA, from compute capability 9.0)
    A row's bits are its own. Sums run in another order than in `rms_norm`.
    """
    from . import _rms_norm_kernel as _kernels  # here, because without a GPU nobody needs Triton

    (x, weight), (other, other_weight) = parts[0], parts[-1]
    x = x.weight if isinstance(x, Table) and isinstance(x.weight, Tensor) else x
    first, second = at[0], at[len(parts) - 1]
    columns = other.shape[1]
    tensors, stride, form = (x, x, x, x), 0, {"K": 0, "BITS": 0, "C": 0, "TABLES": False}
    if isinstance(x, Table):
        tensors, form = x.tensors, {key: value for key, value in x.constants.items() if key != "ROTATED"}
        fits = len(parts) == 2 and x.columns == columns and first is not None and not x.rotated
    else:
        stride, fits = x.stride(0), x.shape[1] == columns and x.dtype == other.dtype
    rows = len(other if second is None else second)
    alike = rows == len(x if first is None else first) and weight.shape == other_weight.shape == (columns,)
    if not fits or not alike or len(parts) > 2:
        raise ValueError(
            "one or two tensors of one shape are wanted, or a table as the first, and weights of that width"
        )
    if out is None:
        out = other.new_empty(rows, columns * len(parts))
    target, places = (out, out) if also is None else also
    if target.dtype != other.dtype or target.shape[1] != columns * len(parts) or not target.is_contiguous():
        raise ValueError(f"rows of {other.dtype} [{columns}] cannot go to {target.dtype} {list(target.shape)} too")
    block = 1 << (columns - 1).bit_length()
    options = {"launch_pdl": True} if dependent else {}
    _kernels.rms_norm_kernel[(rows, len(parts))](
        *tensors, other, weight, other_weight, other if first is None else first, other if second is None else second,
        out, target, places, stride, other.stride(0), columns, eps, **form, BLOCK=block, AT=first is not None,
        OTHER_AT=second is not None, ALSO=also is not None, DEPENDENT=dependent,
        num_warps=max(1, min(16, block // 256)), enable_fp_fusion=True, **options,
    )  # fmt: skip
    return out
