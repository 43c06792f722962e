"""The Triton kernel of kernels/embedding.py, which says what it computes. Imported only with Triton."""

import triton
import triton.language as tl


@triton.jit
def _digit(y, INNER: tl.constexpr):
    """h4 along one digit of base 4 of an index below 256, the one with INNER indices inside (kernels/rotation.py)."""
    low, high = tl.split(y.reshape(64 // INNER, 2, 2, INNER).permute(0, 3, 1, 2))
    a, c = tl.split(low)
    b, d = tl.split(high)
    s = a + b
    m = a - b
    p = c + d
    t = c - d
    y = tl.join(tl.join(s + t, m + p), tl.join(s - t, p - m))
    return y.permute(0, 2, 3, 1).reshape(256)


@triton.jit
def embed_rows_kernel(p_grid, p_ids, p_scale, p_out, K: tl.constexpr, ROTATED: tl.constexpr):
    """Program (row, block of 256 columns)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * 256 + tl.arange(0, 256)
    token = tl.load(p_ids + row)
    y = tl.load(p_grid + (row * 16 + token % 16) * K + column).to(tl.float32) * tl.load(p_scale + token)
    if ROTATED:
        y = _digit(y, 1)
        y = _digit(y, 4)
        y = _digit(y, 16)
        y = _digit(y, 64) * 0.0625
    tl.store(p_out + row * K + column, y.to(p_out.dtype.element_ty))
