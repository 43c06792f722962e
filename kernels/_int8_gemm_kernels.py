"""The Triton kernel of kernels/int8_gemm.py, which says what it computes. Imported only with Triton."""

import triton
import triton.language as tl


@triton.jit
def int8_gemm_kernel(
    p_x, p_x_scale, p_grid, p_channel_scale, p_residual, p_out, rows, columns, out_stride,
    K: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    RESIDUAL: tl.constexpr,
):  # fmt: skip
    """A tile of BLOCK_R rows by BLOCK_N columns of the output a program.

    p_x int8 [rows, K], p_grid int8 [columns, K], p_residual and p_out [rows, .] with rows out_stride apart. K is a
    multiple of BLOCK_K. Tiles are walked GROUP row blocks at a time, so that blocks which run together share weights.
    """
    program = tl.program_id(0)
    row_blocks = tl.cdiv(rows, BLOCK_R)
    in_group = GROUP * tl.cdiv(columns, BLOCK_N)
    first = program // in_group * GROUP
    height = tl.minimum(row_blocks - first, GROUP)
    row_block = first + program % in_group % height
    column_block = program % in_group // height

    o_row = row_block * BLOCK_R + tl.arange(0, BLOCK_R)
    o_column = column_block * BLOCK_N + tl.arange(0, BLOCK_N)
    # Past the end the last row is read again and its result not stored.
    p_x_tile = p_x + tl.minimum(o_row, rows - 1).to(tl.int64)[:, None] * K + tl.arange(0, BLOCK_K)[None, :]
    p_grid_tile = p_grid + tl.minimum(o_column, columns - 1).to(tl.int64)[None, :] * K + tl.arange(0, BLOCK_K)[:, None]
    acc = tl.zeros((BLOCK_R, BLOCK_N), tl.int32)
    for _ in tl.range(0, K // BLOCK_K):
        acc = tl.dot(tl.load(p_x_tile), tl.load(p_grid_tile), acc, out_dtype=tl.int32)
        p_x_tile += BLOCK_K
        p_grid_tile += BLOCK_K

    m_row = o_row < rows
    m_column = o_column < columns
    channel_scale = tl.load(p_channel_scale + o_column, mask=m_column, other=0.0)
    x_scale = tl.load(p_x_scale + o_row, mask=m_row, other=0.0)
    y = acc.to(tl.float32) * channel_scale[None, :] * x_scale[:, None]
    o_out = o_row.to(tl.int64)[:, None] * out_stride + o_column[None, :]
    m_out = m_row[:, None] & m_column[None, :]
    if RESIDUAL:
        y += tl.load(p_residual + o_out, mask=m_out, other=0.0).to(tl.float32)
    tl.store(p_out + o_out, y.to(p_out.dtype.element_ty), mask=m_out)
