"""The Triton kernel of kernels/embedding.py, which says what it computes. Imported only with Triton."""

import triton
import triton.language as tl

from ._dependent_launch import gdc_launch_dependents, gdc_wait
from ._packed_records import record_levels


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
def embedding_values(
    p_table, p_levels, p_table_of, p_scale, token, column, m, K: tl.constexpr, BITS: tl.constexpr, C: tl.constexpr,
    TABLES: tl.constexpr,
):  # fmt: skip
    """Columns of a token's row as stored: of a plain table in its dtype, of records in float32 and still rotated."""
    token = token.to(tl.int64)
    if BITS == 0:
        return tl.load(p_table + token * K + column, mask=m, other=0.0)
    else:
        BYTES: tl.constexpr = C * (2 * BITS + (0 if BITS == 8 else 1))
        slab = token // 16
        if TABLES:
            p_levels += tl.load(p_table_of + slab) * 4096
        column = tl.where(m, column, 0)
        p_record = p_table + (slab * (K // C) + column // C) * BYTES
        y = record_levels(p_record, p_levels, (token % 16).to(tl.int32), column % C, BITS, C).to(tl.float32)
        return tl.where(m, y * tl.load(p_scale + token), 0.0)


@triton.jit
def embed_block(
    p_table, p_levels, p_table_of, p_scale, token, block, p_out, K: tl.constexpr, BITS: tl.constexpr, C: tl.constexpr,
    TABLES: tl.constexpr, ROTATED: tl.constexpr,
):  # fmt: skip
    """Columns 256 block to 256 block + 255 of a token's embedding, to the same columns of the row p_out."""
    column = block * 256 + tl.arange(0, 256)
    m = column < K if BITS == 0 else tl.full((256,), True, tl.int1)
    y = embedding_values(p_table, p_levels, p_table_of, p_scale, token, column, m, K, BITS, C, TABLES)
    if ROTATED:
        y = _digit(y, 1)
        y = _digit(y, 4)
        y = _digit(y, 16)
        y = _digit(y, 64) * 0.0625
    tl.store(p_out + column, y.to(p_out.dtype.element_ty), mask=m)


@triton.jit
def embed_rows_kernel(
    p_table, p_levels, p_table_of, p_scale, p_ids, p_out, K: tl.constexpr, BITS: tl.constexpr, C: tl.constexpr,
    TABLES: tl.constexpr, ROTATED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Program (row, block of 256 columns)."""
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0)
    token = tl.load(p_ids + row)
    embed_block(
        p_table, p_levels, p_table_of, p_scale, token, tl.program_id(1), p_out + row * K, K, BITS, C, TABLES, ROTATED
    )
