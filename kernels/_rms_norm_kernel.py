"""The Triton kernel of kernels/rms_norm.py, which says what it computes. Imported only with Triton."""

import triton
import triton.language as tl

from ._dependent_launch import gdc_launch_dependents, gdc_wait


@triton.jit(do_not_specialize=["eps"])
def rms_norm_kernel(
    p_x, p_other, p_weight, p_other_weight, p_out, stride, other_stride, columns, eps, BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Program (row, part): the first part from p_x, the second from p_other."""
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
        x = tl.load(p_x + row * stride + o, mask=m, other=0.0).to(tl.float32)
    else:
        x = tl.load(p_other + row * other_stride + o, mask=m, other=0.0).to(tl.float32)
    root = tl.rsqrt(tl.sum(x * x, 0) / columns + eps)
    y = x * root * (1.0 + weight)
    tl.store(p_out + (row * tl.num_programs(1) + part) * columns + o, y.to(p_out.dtype.element_ty), mask=m)
