"""The Triton kernels of kernels/packed_linear.py, which says what they compute and how. Imported only with Triton."""

import triton
import triton.language as tl

from ._dependent_launch import gdc_launch_dependents, gdc_wait
from ._float_linear_kernels import float_rows
from ._packed_records import four, levels_of, load_record, pick, record_grid, scale_pair, step8, words4


@triton.jit
def _activations4(p_words, m_live, MASKED: tl.constexpr):
    """Four consecutive int32 of activations a thread; zero past the end of K."""
    if MASKED:
        words = tl.load(p_words[:, None] + tl.arange(0, 4)[None, :], mask=m_live[:, None], other=0)
    else:
        words = tl.load(p_words[:, None] + tl.arange(0, 4)[None, :])
    return four(words)


@triton.jit
def _multiply4(c0, c1, c2, c3, t0, t1, t2, t3, u0, u1, u2, u3, x0, x1, x2, x3, p0, p1, p2, p3, n0, n1, n2, n3):
    """16 x 64 weights of 4 bits times 64 x 8 activations.

    c0, c1: 16 codes of row g; c2, c3: of row g + 8; t, u: their magnitudes; p, n: sums of positive and negative levels.
    """
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 q<4>, a<4>, b<4>, d<4>, e<4>;
        shr.b32 q0, $8, 16; shr.b32 q1, $9, 16; shr.b32 q2, $10, 16; shr.b32 q3, $11, 16;
        prmt.b32 a0, $12, $13, $8;  prmt.b32 a2, $12, $13, q0;
        prmt.b32 a1, $16, $17, $10; prmt.b32 a3, $16, $17, q2;
        prmt.b32 b0, $12, $13, $9;  prmt.b32 b2, $12, $13, q1;
        prmt.b32 b1, $16, $17, $11; prmt.b32 b3, $16, $17, q3;
        mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {$4,$5,$6,$7}, {a0,a1,a2,a3}, {$20,$21}, {$28,$29,$30,$31};
        mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {$4,$5,$6,$7}, {b0,b1,b2,b3}, {$22,$23}, {$4,$5,$6,$7};
        xor.b32 q0, $8, 0x88888888; xor.b32 q1, $9, 0x88888888;
        xor.b32 q2, $10, 0x88888888; xor.b32 q3, $11, 0x88888888;
        prmt.b32 d0, $14, $15, q0; prmt.b32 e0, $14, $15, q1; prmt.b32 d1, $18, $19, q2; prmt.b32 e1, $18, $19, q3;
        shr.b32 q0, q0, 16; shr.b32 q1, q1, 16; shr.b32 q2, q2, 16; shr.b32 q3, q3, 16;
        prmt.b32 d2, $14, $15, q0; prmt.b32 e2, $14, $15, q1; prmt.b32 d3, $18, $19, q2; prmt.b32 e3, $18, $19, q3;
        mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {$0,$1,$2,$3}, {d0,d1,d2,d3}, {$20,$21}, {$24,$25,$26,$27};
        mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {$0,$1,$2,$3}, {e0,e1,e2,e3}, {$22,$23}, {$0,$1,$2,$3};
        }
        """,
        "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r",
        args=[c0, c1, c2, c3, t0, t1, t2, t3, u0, u1, u2, u3, x0, x1, x2, x3, p0, p1, p2, p3, n0, n1, n2, n3],
        dtype=(tl.int32,) * 8, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def _multiply8(r0, r1, r2, r3, s0, s1, s2, s3, x0, x1, x2, x3, p0, p1, p2, p3):
    """16 x 64 int8 weights times 64 x 8 activations; r: 16 columns of row g, s: of row g + 8."""
    return tl.inline_asm_elementwise(
        """
        mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {$0,$1,$2,$3}, {$4,$8,$5,$9}, {$12,$13}, {$16,$17,$18,$19};
        mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {$0,$1,$2,$3}, {$6,$10,$7,$11}, {$14,$15}, {$0,$1,$2,$3};
        """,
        "=&r,=&r,=&r,=&r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r",
        args=[r0, r1, r2, r3, s0, s1, s2, s3, x0, x1, x2, x3, p0, p1, p2, p3],
        dtype=(tl.int32,) * 4, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def _finish(
    a0, a1, a2, a3, scale0, scale1, x_scale0, x_scale1, p_residual, p_out, o0, rows, RESIDUAL: tl.constexpr
):  # fmt: skip
    """Scales the sums of rows g (a0, a1) and g + 8 for two slots each, adds the residual, rounds once and stores."""
    o1 = o0 + rows
    y0 = a0.to(tl.float32) * scale0 * x_scale0
    y1 = a1.to(tl.float32) * scale0 * x_scale1
    y2 = a2.to(tl.float32) * scale1 * x_scale0
    y3 = a3.to(tl.float32) * scale1 * x_scale1
    if RESIDUAL:
        y0 += tl.load(p_residual + o0).to(tl.float32)
        y1 += tl.load(p_residual + o1).to(tl.float32)
        y2 += tl.load(p_residual + o0 + 8).to(tl.float32)
        y3 += tl.load(p_residual + o1 + 8).to(tl.float32)
    tl.store(p_out + o0, y0.to(p_out.dtype.element_ty))
    tl.store(p_out + o1, y1.to(p_out.dtype.element_ty))
    tl.store(p_out + o0 + 8, y2.to(p_out.dtype.element_ty))
    tl.store(p_out + o1 + 8, y3.to(p_out.dtype.element_ty))


@triton.jit
def _job(index, warp, whole, parts, cut_jobs, RECORDS: tl.constexpr, WARPS: tl.constexpr, CUT: tl.constexpr):
    """The index-th piece of work: its slab, a warp's first record, the record behind the piece, records of a warp.

    With CUT the first jobs are parts of the slabs from `whole` on, and the whole slabs come behind them.
    """
    slab = index
    begin = 0
    count = RECORDS
    if CUT:
        if index < cut_jobs:
            count = (RECORDS + parts - 1) // parts
            slab = whole + index // parts
            begin = index % parts * count
        else:
            slab = index - cut_jobs
    turns = (count + WARPS - 1) // WARPS
    return slab, begin + warp * turns, tl.minimum(begin + count, RECORDS), turns


@triton.jit
def _joined(p_sums, p_counts, s0, s1, s2, s3, o, parts):
    """Adds the sums of one part of a slab, int32 [32] each, to those of the others: (whether all are there, the sums).

    The last part to come takes the sums and leaves zeros for the next launch.
    """
    p = p_sums + o
    tl.atomic_add(p, s0, sem="relaxed")
    tl.atomic_add(p + 32, s1, sem="relaxed")
    tl.atomic_add(p + 64, s2, sem="relaxed")
    tl.atomic_add(p + 96, s3, sem="relaxed")
    tl.debug_barrier()  # all of the block's sums are added before it is counted
    before = tl.atomic_add(p_counts, 1, sem="acq_rel", scope="gpu")
    is_last = before == parts - 1
    # Masks and no branch: Triton 3.9 cannot compile these lines behind one.
    m_last = o * 0 + before == parts - 1
    s0 = tl.load(p, mask=m_last, other=0, cache_modifier=".cg")
    s1 = tl.load(p + 32, mask=m_last, other=0, cache_modifier=".cg")
    s2 = tl.load(p + 64, mask=m_last, other=0, cache_modifier=".cg")
    s3 = tl.load(p + 96, mask=m_last, other=0, cache_modifier=".cg")
    tl.debug_barrier()  # warps that hold the same sums have loaded them too
    tl.store(p, o * 0, mask=m_last)
    tl.store(p + 32, o * 0, mask=m_last)
    tl.store(p + 64, o * 0, mask=m_last)
    tl.store(p + 96, o * 0, mask=m_last)
    tl.store(p_counts, 0, mask=is_last)
    return is_last, s0, s1, s2, s3


@triton.jit
def packed_linear_kernel(
    p_x, p_x_scale, p_weights, p_table, p_table_of, p_channel_scale, p_residual, p_out, p_plain_x, p_plain, p_plain_out,
    p_sums, p_counts, slabs, step, whole, parts, first_scale, plain_rows,
    K: tl.constexpr, BITS: tl.constexpr, J: tl.constexpr, WARPS: tl.constexpr, WINDOW: tl.constexpr,
    TABLES: tl.constexpr, RESIDUAL: tl.constexpr, EARLY: tl.constexpr, CUT: tl.constexpr, PLAIN: tl.constexpr,
    PLAIN_K: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """`step` blocks of packed rows; with PLAIN, in front of them a block for each row of p_plain [plain_rows, K].

    With TABLES a slab's table is the p_table_of[slab]-th of p_table [., 256, 4]. With CUT the slabs from `whole` on are
    cut into `parts` parts each, which meet in p_sums [slabs - whole, 4, 32] and p_counts [slabs - whole].
    """
    program = tl.program_id(0)
    if PLAIN:
        if program < plain_rows:
            float_rows(
                program, p_plain_x, p_plain, p_plain_out, p_plain_out, plain_rows, K, False, 1, PLAIN_K, 1, False,
                DEPENDENT,
            )  # fmt: skip
            return
        program -= plain_rows
    T: tl.constexpr = 32 * WARPS
    WORDS: tl.constexpr = 16 * J * (2 * BITS + (0 if BITS == 8 else 1))  # int32 of one record
    thread = tl.arange(0, T)
    lane = thread % 32
    warp = thread // 32
    records: tl.constexpr = K // (64 * J)
    MASKED: tl.constexpr = CUT or records % WARPS != 0
    rows = slabs * 16
    cut_jobs = 0
    jobs = slabs
    if CUT:
        cut_jobs = (slabs - whole) * parts
        jobs = whole + cut_jobs
    slab, first_record, end, turns = _job(program, warp, whole, parts, cut_jobs, records, WARPS, CUT)

    zero = tl.zeros((T,), tl.int32)
    first = zero + first_scale
    t0, t1, t2, t3 = zero, zero, zero, zero
    p_levels = p_table
    if BITS == 4 and WINDOW and not TABLES:
        t0, t1, t2, t3 = words4(p_levels + (first_scale + lane) * 4)
    # int64: rows x bytes of a row pass 2^31 for the head of the larger models.
    p_record = p_weights + (slab.to(tl.int64) * records + tl.minimum(first_record, records - 1)) * WORDS
    v0, v1, v2, v3, v4, v5, v6, v7, scales = load_record(p_record, lane, BITS, J)
    o_out = tl.arange(0, 32)
    m = o_out % 4 * 2
    next_scale0 = tl.load(p_channel_scale + slab * 16 + o_out // 4)
    next_scale1 = tl.load(p_channel_scale + slab * 16 + o_out // 4 + 8)
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    x_scale0 = tl.load(p_x_scale + m)
    x_scale1 = tl.load(p_x_scale + m + 1)

    for index in tl.range(program, jobs, step):
        slab, first_record, end, turns = _job(index, warp, whole, parts, cut_jobs, records, WARPS, CUT)
        next_slab, _, _, _ = _job(index + step, warp, whole, parts, cut_jobs, records, WARPS, CUT)
        p0, p1, p2, p3 = zero, zero, zero, zero
        n0, n1, n2, n3 = zero, zero, zero, zero
        # The scales that the end of a slab needs come from memory: they are asked for a slab ahead. A residual lies in
        # the L2 and is not: its addresses would take the registers that keep records in flight.
        row = slab * 16 + o_out // 4
        scale0 = next_scale0
        scale1 = next_scale1
        m_next = index + step + o_out * 0 < jobs
        next_scale0 = tl.load(p_channel_scale + next_slab * 16 + o_out // 4, mask=m_next)
        next_scale1 = tl.load(p_channel_scale + next_slab * 16 + o_out // 4 + 8, mask=m_next)
        if TABLES:
            p_levels = p_table + tl.load(p_table_of + slab) * 1024
            if WINDOW:
                t0, t1, t2, t3 = words4(p_levels + (first_scale + lane) * 4)
        for i in tl.range(0, turns):
            record = first_record + i
            m_live = record < end
            is_last = i + 1 >= turns
            # The last piece again where there is no next one.
            ahead = tl.minimum(tl.where(is_last, index + step, index), jobs - 1)
            ahead_slab, ahead_first, _, _ = _job(ahead, warp, whole, parts, cut_jobs, records, WARPS, CUT)
            ahead_record = tl.minimum(ahead_first + tl.where(is_last, 0, i + 1), records - 1)
            p_ahead = p_weights + (ahead_slab.to(tl.int64) * records + ahead_record) * WORDS
            if EARLY:
                u0, u1, u2, u3, u4, u5, u6, u7, next_scales = v0, v1, v2, v3, v4, v5, v6, v7, scales
                if index + step < jobs or not is_last:
                    u0, u1, u2, u3, u4, u5, u6, u7, next_scales = load_record(p_ahead, lane, BITS, J)
            else:
                u0, u1, u2, u3, u4, u5, u6, u7, next_scales = load_record(p_ahead, lane, BITS, J)
            p_step = p_x + record * (128 * J) + lane * 4
            for j in tl.static_range(J):
                x0, x1, x2, x3 = _activations4(p_step + j * 128, m_live, MASKED)
                if BITS == 4:
                    c0, c1, c2, c3 = four(pick(j, v0, v1, v2, v3, v4, v5, v6, v7))
                    pair = scale_pair(j, scales, J)
                    l0, l1, l2, l3, h0, h1, h2, h3 = levels_of(pair, first, p_levels, t0, t1, t2, t3, WINDOW)
                    p0, p1, p2, p3, n0, n1, n2, n3 = _multiply4(
                        c0, c1, c2, c3, l0, l1, l2, l3, h0, h1, h2, h3, x0, x1, x2, x3, p0, p1, p2, p3, n0, n1, n2, n3
                    )
                else:
                    r0, r1, r2, r3, s0, s1, s2, s3 = step8(j, v0, v1, v2, v3, v4, v5, v6, v7, scales, BITS, J)
                    p0, p1, p2, p3 = _multiply8(r0, r1, r2, r3, s0, s1, s2, s3, x0, x1, x2, x3, p0, p1, p2, p3)
            v0, v1, v2, v3, v4, v5, v6, v7, scales = u0, u1, u2, u3, u4, u5, u6, u7, next_scales
        # Four reductions, though one of all four would save barriers: its words lie 128 bytes apart in shared memory,
        # one bank for all lanes, and that cost 1 us of 5 at 4096 x 4096.
        a0 = tl.sum((p0 - n0).reshape(WARPS, 32), 0)
        a1 = tl.sum((p1 - n1).reshape(WARPS, 32), 0)
        a2 = tl.sum((p2 - n2).reshape(WARPS, 32), 0)
        a3 = tl.sum((p3 - n3).reshape(WARPS, 32), 0)
        is_whole = True
        if CUT:  # noqa: SIM102, one condition is the compiler's and the other the kernel's
            if index < cut_jobs:
                place = slab - whole
                is_whole, a0, a1, a2, a3 = _joined(p_sums + place * 128, p_counts + place, a0, a1, a2, a3, o_out, parts)
        if is_whole:
            _finish(
                a0, a1, a2, a3, scale0, scale1, x_scale0, x_scale1, p_residual, p_out, m * rows + row, rows, RESIDUAL
            )  # fmt: skip


@triton.jit
def portable_packed_linear_kernel(
    p_x, p_x_scale, p_weights, p_table, p_table_of, p_channel_scale, p_residual, p_out, slabs, K: tl.constexpr,
    BITS: tl.constexpr, C: tl.constexpr, TABLES: tl.constexpr, RESIDUAL: tl.constexpr,
):  # fmt: skip
    """One slab a program."""
    BYTES: tl.constexpr = C * (2 * BITS + (0 if BITS == 8 else 1))  # of one record
    slab = tl.program_id(0)
    row = tl.arange(0, 16)[:, None]
    acc = tl.zeros((16, 16), tl.int32)
    if TABLES:
        p_table += tl.load(p_table_of + slab) * 4096
    o_row = tl.arange(0, 16)[None, :]  # activations: eight rows, then eight of zeros, since tl.dot wants 16
    o_column = tl.arange(0, C)[:, None]
    for i in tl.range(0, K // C):
        p_record = p_weights + (slab.to(tl.int64) * (K // C) + i) * BYTES
        o_x = ((i * C + o_column) // 64 * 8 + o_row) * 64 + o_column % 64
        x = tl.load(p_x + o_x, mask=o_row < 8, other=0)
        acc = tl.dot(record_grid(p_record, p_table, BITS, C), x, acc, out_dtype=tl.int32)
    rows = slabs * 16
    o_out = o_row * rows + slab * 16 + row  # [16 rows of the matrix, 16 rows of x]
    m_out = o_row < 8
    y = acc.to(tl.float32) * tl.load(p_channel_scale + slab * 16 + row)
    y = y * tl.load(p_x_scale + o_row, mask=m_out, other=0.0)
    if RESIDUAL:
        y += tl.load(p_residual + o_out, mask=m_out, other=0.0).to(tl.float32)
    tl.store(p_out + o_out, y.to(p_out.dtype.element_ty), mask=m_out)
