"""The Triton kernels that write records out as an int8 grid (kernels/packed_linear.py). Imported only with Triton."""

import triton
import triton.language as tl

from ._packed_records import decode4, four, levels_of, load_record, pick, record_grid, scale_pair, step8, words4


@triton.jit
def _store16(p_words, w0, w1, w2, w3, m_live):
    """Four int32 a thread, one 16-byte store."""
    words = tl.join(tl.join(w0, w2), tl.join(w1, w3)).reshape(p_words.shape[0], 4)
    tl.store(p_words[:, None] + tl.arange(0, 4)[None, :], words, mask=m_live[:, None])


@triton.jit
def unpack_records_kernel(
    p_weights, p_table, p_table_of, p_slabs, p_out, first_scale, K: tl.constexpr, BITS: tl.constexpr, J: tl.constexpr,
    WARPS: tl.constexpr, WINDOW: tl.constexpr, TABLES: tl.constexpr,
):  # fmt: skip
    """NVIDIA's form of `unpack_kernel`: a record a warp, WARPS neighbours a program; p_out is int32 [., K / 4]."""
    T: tl.constexpr = 32 * WARPS
    WORDS: tl.constexpr = 16 * J * (2 * BITS + (0 if BITS == 8 else 1))  # int32 of one record
    records: tl.constexpr = K // (64 * J)
    thread = tl.arange(0, T)
    lane = thread % 32
    record = tl.program_id(1) * WARPS + thread // 32
    live = record < records
    slab = tl.load(p_slabs + tl.program_id(0)).to(tl.int64)
    if TABLES:
        p_table += tl.load(p_table_of + slab) * 1024
    zero = tl.zeros((T,), tl.int32)
    first = zero + first_scale
    t0 = zero
    t1 = zero
    t2 = zero
    t3 = zero
    if BITS == 4 and WINDOW:
        t0, t1, t2, t3 = words4(p_table + (first_scale + lane) * 4)
    p_record = p_weights + (slab * records + tl.minimum(record, records - 1)) * WORDS
    v0, v1, v2, v3, v4, v5, v6, v7, scales = load_record(p_record, lane, BITS, J)
    o_row = tl.program_id(0).to(tl.int64) * 16 + lane // 4
    p_low = p_out + o_row * (K // 4) + record * (16 * J) + lane % 4 * 4
    p_high = p_low + 2 * K  # eight rows further
    for j in tl.static_range(J):
        if BITS == 4:
            c0, c1, c2, c3 = four(pick(j, v0, v1, v2, v3, v4, v5, v6, v7))
            pair = scale_pair(j, scales, J)
            l0, l1, l2, l3, h0, h1, h2, h3 = levels_of(pair, first, p_table, t0, t1, t2, t3, WINDOW)
            r0, r1, r2, r3, s0, s1, s2, s3 = decode4(c0, c1, c2, c3, l0, l1, l2, l3, h0, h1, h2, h3)
        else:
            r0, r1, r2, r3, s0, s1, s2, s3 = step8(j, v0, v1, v2, v3, v4, v5, v6, v7, scales, BITS, J)
        _store16(p_low + j * 16, r0, r1, r2, r3, live)
        _store16(p_high + j * 16, s0, s1, s2, s3, live)


@triton.jit
def unpack_kernel(
    p_weights, p_table, p_table_of, p_slabs, p_out, K: tl.constexpr, BITS: tl.constexpr, C: tl.constexpr,
    TABLES: tl.constexpr,
):  # fmt: skip
    """The int8 grid of chosen slabs: program (i, r) writes record r of slab p_slabs[i] to rows 16 i of p_out [., K]."""
    BYTES: tl.constexpr = C * (2 * BITS + (0 if BITS == 8 else 1))
    i = tl.program_id(0)
    record = tl.program_id(1)
    slab = tl.load(p_slabs + i).to(tl.int64)
    if TABLES:
        p_table += tl.load(p_table_of + slab) * 4096
    grid = record_grid(p_weights + (slab * (K // C) + record) * BYTES, p_table, BITS, C)
    o_row = i.to(tl.int64) * 16 + tl.arange(0, 16)[:, None]
    tl.store(p_out + o_row * K + record * C + tl.arange(0, C)[None, :], grid)
