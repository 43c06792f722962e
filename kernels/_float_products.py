"""Products whose operands may be float32. Imported only with Triton."""

import triton
import triton.language as tl


@triton.jit
def dot(a, b, acc, PRECISION: tl.constexpr):
    """acc + a b; PRECISION is how float32 operands are multiplied, others are as they are."""
    if a.dtype == tl.float32:
        return tl.dot(a, b, acc, input_precision=PRECISION)
    else:
        return tl.dot(a, b, acc)
