"""The Triton kernel of kernels/float_gemm.py, which says what it computes. Imported only with Triton."""

import triton
import triton.language as tl


@triton.jit
def _dot(x, w, acc):
    if _INTERPRETED:
        return tl.dot(x.to(tl.float32), w.to(tl.float32), acc)
    else:
        return tl.dot(x, w, acc, input_precision="ieee")


# Triton's interpreter multiplies bf16 by its bits.
_INTERPRETED = tl.constexpr(not isinstance(_dot, triton.JITFunction))


@triton.jit(do_not_specialize=["rows"])
def float_gemm_kernel(
    p_x, p_w, p_out, rows, columns, x_stride,
    K: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A tile of BLOCK_R rows by BLOCK_N columns of the output a program. p_x [rows, K] with rows x_stride apart, p_w
    [columns, K], p_out [rows, columns]."""
    o_row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    o_column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    o_k = tl.arange(0, BLOCK_K)
    # Past the end the last row and column are read again, so that loads need no mask; the results are not stored.
    p_rows = p_x + tl.minimum(o_row, rows - 1).to(tl.int64)[:, None] * x_stride + o_k[None, :]
    p_columns = p_w + tl.minimum(o_column, columns - 1).to(tl.int64)[None, :] * K + o_k[:, None]
    acc = tl.zeros((BLOCK_R, BLOCK_N), tl.float32)
    for _ in tl.range(0, K // BLOCK_K):
        acc = _dot(tl.load(p_rows), tl.load(p_columns), acc)
        p_rows += BLOCK_K
        p_columns += BLOCK_K
    o_out = o_row.to(tl.int64)[:, None] * columns + o_column[None, :]
    m_out = (o_row < rows)[:, None] & (o_column < columns)[None, :]
    tl.store(p_out + o_out, acc.to(p_out.dtype.element_ty), mask=m_out)
