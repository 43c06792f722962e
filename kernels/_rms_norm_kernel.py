"""The Triton kernel of kernels/rms_norm.py, which says what it computes. Imported only with Triton."""

import triton
import triton.language as tl

from ._dependent_launch import gdc_launch_dependents, gdc_wait
from ._embedding_kernel import embedding_values


@triton.jit(do_not_specialize=["eps"])
def rms_norm_kernel(
    p_x, p_levels, p_table_of, p_scale, p_other, p_weight, p_other_weight, p_at, p_other_at, p_out, p_also, p_places,
    stride, other_stride, columns, eps, K: tl.constexpr, BITS: tl.constexpr, C: tl.constexpr, TABLES: tl.constexpr,
    BLOCK: tl.constexpr, AT: tl.constexpr, OTHER_AT: tl.constexpr, ALSO: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Program (row, part): the first part from p_x, the second from p_other; of them row p_at[row] with AT. With BITS
    p_x are records of a table of K columns."""
    row = tl.program_id(0)
    part = tl.program_id(1)
    o = tl.arange(0, BLOCK)
    m = o < columns
    if part > 0:
        p_weight = p_other_weight
    weight = tl.load(p_weight + o, mask=m, other=0.0)  # does not change: it need not wait
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    if part == 0:
        at = tl.load(p_at + row) if AT else row
        if BITS == 0:
            x = tl.load(p_x + at * stride + o, mask=m, other=0.0).to(tl.float32)
        else:
            x = embedding_values(p_x, p_levels, p_table_of, p_scale, at, o, m, K, BITS, C, TABLES)
            x = x.to(p_out.dtype.element_ty).to(tl.float32)
    else:
        p_row = p_other + (tl.load(p_other_at + row) if OTHER_AT else row) * other_stride
        x = tl.load(p_row + o, mask=m, other=0.0).to(tl.float32)
    root = tl.rsqrt(tl.sum(x * x, 0) / columns + eps)
    y = (x * root * (1.0 + weight)).to(p_out.dtype.element_ty)
    tl.store(p_out + (row * tl.num_programs(1) + part) * columns + o, y, mask=m)
    if ALSO:
        tl.store(p_also + tl.load(p_places + row) * columns + o, y, mask=m)
