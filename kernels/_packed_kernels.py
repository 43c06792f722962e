"""The Triton kernels of kernels/packed_linear.py, which says what they compute and how. Imported only with Triton."""

import triton
import triton.language as tl

from ._dependent_launch import gdc_launch_dependents, gdc_wait


@triton.jit
def _words4(p_words):
    """Four consecutive int32 a thread, one 16-byte load: pointers [T] -> four [T]."""
    words = tl.load(p_words[:, None] + tl.arange(0, 4)[None, :], eviction_policy="evict_first")
    even, odd = tl.split(words.reshape(p_words.shape[0], 2, 2))
    w0, w2 = tl.split(even)
    w1, w3 = tl.split(odd)
    return w0, w1, w2, w3


@triton.jit
def _activations4(p_words, m_live, MASKED: tl.constexpr):
    """Four consecutive int32 of activations a thread; zero past the end of K."""
    if MASKED:
        words = tl.load(p_words[:, None] + tl.arange(0, 4)[None, :], mask=m_live[:, None], other=0)
    else:
        words = tl.load(p_words[:, None] + tl.arange(0, 4)[None, :])
    return _four(words)


@triton.jit
def _levels_by_shuffle(scale_bytes, first, t0, t1, t2, t3):
    """Magnitudes of the scales of rows g (low byte) and g + 8 from the table that the warp's lanes hold."""
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 a, b;
        bfe.u32 a, $8, 0, 8; bfe.u32 b, $8, 8, 8;
        sub.u32 a, a, $9; sub.u32 b, b, $9;
        shfl.sync.idx.b32 $0, $10, a, 31, 0xffffffff; shfl.sync.idx.b32 $1, $11, a, 31, 0xffffffff;
        shfl.sync.idx.b32 $2, $12, a, 31, 0xffffffff; shfl.sync.idx.b32 $3, $13, a, 31, 0xffffffff;
        shfl.sync.idx.b32 $4, $10, b, 31, 0xffffffff; shfl.sync.idx.b32 $5, $11, b, 31, 0xffffffff;
        shfl.sync.idx.b32 $6, $12, b, 31, 0xffffffff; shfl.sync.idx.b32 $7, $13, b, 31, 0xffffffff;
        }
        """,
        "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r,r,r,r,r,r",
        args=[scale_bytes, first, t0, t1, t2, t3], dtype=(tl.int32,) * 8, is_pure=False, pack=1,
    )  # fmt: skip


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
def _decode6(codes, tops, scale):
    """Eight 6-bit codes of a row as int8: codes int32 (low nibbles), tops (their pairs in bits 0-3 of each byte).

    scale: the e4m3 scale as fp16 in both halves. Returns two int32 of four int8 each, in column order. A level is
    clamped before its low byte is taken from the fp16 bits of 1536 + level.
    """
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 e, o, f, w0, w1, w2, w3, k;
        and.b32 e, $2, 0x0f0f0f0f; and.b32 f, $3, 0x03030303; shl.b32 f, f, 4; or.b32 e, e, f;
        shr.u32 o, $2, 4; and.b32 o, o, 0x0f0f0f0f; and.b32 f, $3, 0x0c0c0c0c; shl.b32 f, f, 2; or.b32 o, o, f;
        prmt.b32 f, e, o, 0x5140;
        prmt.b32 w0, f, 0x64646464, 0x4140; prmt.b32 w1, f, 0x64646464, 0x4342;
        prmt.b32 f, e, o, 0x7362;
        prmt.b32 w2, f, 0x64646464, 0x4140; prmt.b32 w3, f, 0x64646464, 0x4342;
        mov.b32 k, 0x64206420;
        sub.f16x2 w0, w0, k; sub.f16x2 w1, w1, k; sub.f16x2 w2, w2, k; sub.f16x2 w3, w3, k;
        mov.b32 k, 0x66006600;
        fma.rn.f16x2 w0, w0, $4, k; fma.rn.f16x2 w1, w1, $4, k;
        fma.rn.f16x2 w2, w2, $4, k; fma.rn.f16x2 w3, w3, $4, k;
        mov.b32 k, 0x667f667f;
        min.f16x2 w0, w0, k; min.f16x2 w1, w1, k; min.f16x2 w2, w2, k; min.f16x2 w3, w3, k;
        mov.b32 k, 0x65816581;
        max.f16x2 w0, w0, k; max.f16x2 w1, w1, k; max.f16x2 w2, w2, k; max.f16x2 w3, w3, k;
        prmt.b32 $0, w0, w1, 0x6420; prmt.b32 $1, w2, w3, 0x6420;
        }
        """,
        "=&r,=&r,r,r,r",
        args=[codes, tops, scale], dtype=(tl.int32,) * 2, is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def _half2_scales(scale_bytes):
    """Two e4m3 bytes without a sign, rows g and g + 8, as fp16 in both halves of an int32 each.

    Shifted by 7 an e4m3 byte is the fp16 number 2^-8 times as large, subnormal or not; the product with 256 is exact.
    The conversion instruction would want compute capability 8.9.
    """
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 a, b, k;
        bfe.u32 a, $2, 0, 8; bfe.u32 b, $2, 8, 8;
        shl.b32 a, a, 7; shl.b32 b, b, 7;
        prmt.b32 a, a, a, 0x1010; prmt.b32 b, b, b, 0x1010;
        mov.b32 k, 0x5c005c00;
        mul.rn.f16x2 $0, a, k; mul.rn.f16x2 $1, b, k;
        }
        """,
        "=&r,=&r,r",
        args=[scale_bytes], dtype=(tl.int32,) * 2, is_pure=True, pack=1,
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
def _load_record(p_record, o_lane, BITS: tl.constexpr, J: tl.constexpr):
    """A lane's bytes of one record: up to eight 16-byte vectors of codes (4 bits: J; 6 bits: J low, J / 2 top; 8: 2 J)
    as [T, 4] each, and its scales [T, J / 2]. What a format does not have repeats the first vector, unread."""
    p_lane = p_record + o_lane * 4
    o_word = tl.arange(0, 4)[None, :]
    v0 = tl.load(p_lane[:, None] + o_word, eviction_policy="evict_first")
    v1 = tl.load((p_lane + 128)[:, None] + o_word, eviction_policy="evict_first")
    v2 = tl.load((p_lane + 256)[:, None] + o_word, eviction_policy="evict_first")
    v3 = tl.load((p_lane + 384)[:, None] + o_word, eviction_policy="evict_first")
    v4 = v0
    v5 = v0
    v6 = v0
    v7 = v0
    if BITS == 6 or BITS == 8 or J == 8:
        v4 = tl.load((p_lane + 512)[:, None] + o_word, eviction_policy="evict_first")
        v5 = tl.load((p_lane + 640)[:, None] + o_word, eviction_policy="evict_first")
    if BITS == 8 or J == 8:
        v6 = tl.load((p_lane + 768)[:, None] + o_word, eviction_policy="evict_first")
        v7 = tl.load((p_lane + 896)[:, None] + o_word, eviction_policy="evict_first")
    if BITS == 8:
        scales = v0
    elif J == 8:
        scales = tl.load((p_lane + 1024)[:, None] + o_word, eviction_policy="evict_first")
    else:
        o_scales: tl.constexpr = 512 if BITS == 4 else 768
        p_scales = p_record + o_scales + o_lane * 2
        scales = tl.load(p_scales[:, None] + tl.arange(0, 2)[None, :], eviction_policy="evict_first")
    return v0, v1, v2, v3, v4, v5, v6, v7, scales


@triton.jit
def _four(v):
    even, odd = tl.split(v.reshape(v.shape[0], 2, 2))
    w0, w2 = tl.split(even)
    w1, w3 = tl.split(odd)
    return w0, w1, w2, w3


@triton.jit
def _pick(j: tl.constexpr, v0, v1, v2, v3, v4, v5, v6, v7):
    if j == 0:  # noqa: SIM116 (a kernel has no dictionaries)
        return v0
    elif j == 1:
        return v1
    elif j == 2:
        return v2
    elif j == 3:
        return v3
    elif j == 4:
        return v4
    elif j == 5:
        return v5
    elif j == 6:
        return v6
    else:
        return v7


@triton.jit
def _scale_pair(j: tl.constexpr, scales, J: tl.constexpr):
    """The two scale bytes of 64-column step j, in the low half of an int32."""
    if J == 8:
        s0, s1, s2, s3 = _four(scales)
        word = _pick(j // 2, s0, s1, s2, s3, s0, s0, s0, s0)
    else:
        s0, s1 = tl.split(scales)
        word = _pick(j // 2, s0, s1, s0, s0, s0, s0, s0, s0)
    if j % 2:
        word = word >> 16
    return word


@triton.jit
def packed_linear_kernel(
    p_x, p_x_scale, p_weights, p_table, p_channel_scale, p_residual, p_out, slabs, step, first_scale,
    K: tl.constexpr, BITS: tl.constexpr, J: tl.constexpr, WARPS: tl.constexpr, WINDOW: tl.constexpr,
    RESIDUAL: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    T: tl.constexpr = 32 * WARPS
    WORDS: tl.constexpr = 16 * J * (2 * BITS + (0 if BITS == 8 else 1))  # int32 of one record
    thread = tl.arange(0, T)
    lane = thread % 32
    warp = thread // 32
    records: tl.constexpr = K // (64 * J)
    per_warp: tl.constexpr = (records + WARPS - 1) // WARPS
    MASKED: tl.constexpr = records % WARPS != 0
    first_record = warp * per_warp
    slab = tl.program_id(0)
    rows = slabs * 16

    zero = tl.zeros((T,), tl.int32)
    first = zero + first_scale
    t0 = zero
    t1 = zero
    t2 = zero
    t3 = zero
    if BITS == 4 and WINDOW:
        t0, t1, t2, t3 = _words4(p_table + (first_scale + lane) * 4)
    # int64: rows x bytes of a row pass 2^31 for the head of the larger models.
    p_record = p_weights + (slab.to(tl.int64) * records + tl.minimum(first_record, records - 1)) * WORDS
    v0, v1, v2, v3, v4, v5, v6, v7, scales = _load_record(p_record, lane, BITS, J)
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    o_out = tl.arange(0, 32)
    m = o_out % 4 * 2
    x_scale0 = tl.load(p_x_scale + m)
    x_scale1 = tl.load(p_x_scale + m + 1)

    for b in tl.range(slab, slabs, step):
        p0 = zero
        p1 = zero
        p2 = zero
        p3 = zero
        n0 = zero
        n1 = zero
        n2 = zero
        n3 = zero
        # What the end of the slab needs is asked for here: behind the products it would be waited for.
        row = b * 16 + o_out // 4
        scale0 = tl.load(p_channel_scale + row)
        scale1 = tl.load(p_channel_scale + row + 8)
        o0 = m * rows + row
        o1 = o0 + rows
        if RESIDUAL:
            e0 = tl.load(p_residual + o0).to(tl.float32)
            e1 = tl.load(p_residual + o1).to(tl.float32)
            e2 = tl.load(p_residual + o0 + 8).to(tl.float32)
            e3 = tl.load(p_residual + o1 + 8).to(tl.float32)
        for i in tl.range(0, per_warp):
            record = first_record + i
            m_live = record < records
            is_last = i + 1 >= per_warp
            next_slab = tl.where(is_last, tl.minimum(b + step, slabs - 1), b)
            next_record = tl.minimum(first_record + tl.where(is_last, 0, i + 1), records - 1)
            p_next = p_weights + (next_slab.to(tl.int64) * records + next_record) * WORDS
            u0, u1, u2, u3, u4, u5, u6, u7, next_scales = _load_record(p_next, lane, BITS, J)
            p_step = p_x + record * (128 * J) + lane * 4
            for j in tl.static_range(J):
                x0, x1, x2, x3 = _activations4(p_step + j * 128, m_live, MASKED)
                if BITS == 4:
                    c0, c1, c2, c3 = _four(_pick(j, v0, v1, v2, v3, v4, v5, v6, v7))
                    pair = _scale_pair(j, scales, J)
                    if WINDOW:
                        l0, l1, l2, l3, h0, h1, h2, h3 = _levels_by_shuffle(pair, first, t0, t1, t2, t3)
                    else:
                        l0, l1, l2, l3 = _words4(p_table + (pair & 255) * 4)
                        h0, h1, h2, h3 = _words4(p_table + (pair >> 8 & 255) * 4)
                    p0, p1, p2, p3, n0, n1, n2, n3 = _multiply4(
                        c0, c1, c2, c3, l0, l1, l2, l3, h0, h1, h2, h3, x0, x1, x2, x3, p0, p1, p2, p3, n0, n1, n2, n3
                    )
                elif BITS == 6:
                    c0, c1, c2, c3 = _four(_pick(j, v0, v1, v2, v3, v4, v5, v6, v7))
                    k0, k1, k2, k3 = _four(_pick(J + j // 2, v0, v1, v2, v3, v4, v5, v6, v7))
                    top0 = k0 if j % 2 == 0 else k2
                    top1 = k1 if j % 2 == 0 else k3
                    half2_g, half2_g8 = _half2_scales(_scale_pair(j, scales, J))
                    r0, r1 = _decode6(c0, top0, half2_g)
                    r2, r3 = _decode6(c1, top0 >> 4, half2_g)
                    s0, s1 = _decode6(c2, top1, half2_g8)
                    s2, s3 = _decode6(c3, top1 >> 4, half2_g8)
                    p0, p1, p2, p3 = _multiply8(r0, r1, r2, r3, s0, s1, s2, s3, x0, x1, x2, x3, p0, p1, p2, p3)
                else:
                    r0, r1, r2, r3 = _four(_pick(2 * j, v0, v1, v2, v3, v4, v5, v6, v7))
                    s0, s1, s2, s3 = _four(_pick(2 * j + 1, v0, v1, v2, v3, v4, v5, v6, v7))
                    p0, p1, p2, p3 = _multiply8(r0, r1, r2, r3, s0, s1, s2, s3, x0, x1, x2, x3, p0, p1, p2, p3)
            v0 = u0
            v1 = u1
            v2 = u2
            v3 = u3
            v4 = u4
            v5 = u5
            v6 = u6
            v7 = u7
            scales = next_scales
        # One reduction for all four sums: each one costs barriers of the whole block.
        even = tl.join(p0 - n0, p2 - n2)
        odd = tl.join(p1 - n1, p3 - n3)
        total = tl.sum(tl.join(even, odd).reshape(WARPS, 32, 4), 0).to(tl.float32)
        a0, a1, a2, a3 = _four(total)
        y0 = a0 * scale0 * x_scale0
        y1 = a1 * scale0 * x_scale1
        y2 = a2 * scale1 * x_scale0
        y3 = a3 * scale1 * x_scale1
        if RESIDUAL:
            y0 += e0
            y1 += e1
            y2 += e2
            y3 += e3
        tl.store(p_out + o0, y0.to(p_out.dtype.element_ty))
        tl.store(p_out + o1, y1.to(p_out.dtype.element_ty))
        tl.store(p_out + o0 + 8, y2.to(p_out.dtype.element_ty))
        tl.store(p_out + o1 + 8, y3.to(p_out.dtype.element_ty))


@triton.jit
def _e4m3_to_float(byte):
    """The value of an e4m3 byte without a sign, by its own arithmetic: any backend has it."""
    exponent = byte >> 3
    mantissa = (byte & 7).to(tl.float32)
    normal = (1.0 + mantissa * 0.125) * tl.exp2(exponent.to(tl.float32) - 7.0)
    return tl.where(exponent == 0, mantissa * 0.001953125, normal)


@triton.jit
def _record_grid(p_record, p_table, BITS: tl.constexpr, C: tl.constexpr):
    """The int8 grid [16, C] of one record; codes are found byte by byte in the record layout."""
    row = tl.arange(0, 16)[:, None]
    column = tl.arange(0, C)[None, :]
    half = row // 8
    j = column // 64
    c = column % 16
    o_lane = row % 8 * 4 + column % 64 // 16
    if BITS == 8:
        return tl.load(p_record + j * 1024 + half * 512 + o_lane * 16 + c).to(tl.int8, bitcast=True)
    o_scale: tl.constexpr = C * 8 if BITS == 4 else C * 12
    scale = tl.load(p_record + o_scale + o_lane * (C // 32) + j * 2 + half).to(tl.int32)
    low = tl.load(p_record + j * 512 + o_lane * 16 + half * 8 + c // 2).to(tl.int32)
    code = low >> (4 * (c % 2)) & 15
    if BITS == 4:
        magnitude = tl.load(p_table + scale * 16 + code).to(tl.int32)
        return tl.where(code < 8, -magnitude, magnitude).to(tl.int8)
    word = tl.load(p_record + C * 8 + j // 2 * 512 + o_lane * 16 + j % 2 * 8 + half * 4 + c % 8 // 2)
    code = code | (word.to(tl.int32) >> (2 * (c % 2) + 4 * (c // 8)) & 3) << 4
    level = (code - 32).to(tl.float32) * _e4m3_to_float(scale)
    level = (level + 12582912.0) - 12582912.0  # 1.5 * 2^23: rounds half to even at the integers
    return tl.minimum(tl.maximum(level, -127.0), 127.0).to(tl.int8)


@triton.jit
def portable_packed_linear_kernel(
    p_x, p_x_scale, p_weights, p_table, p_channel_scale, p_residual, p_out, slabs, K: tl.constexpr,
    BITS: tl.constexpr, C: tl.constexpr, RESIDUAL: tl.constexpr,
):  # fmt: skip
    """One slab a program."""
    BYTES: tl.constexpr = C * (2 * BITS + (0 if BITS == 8 else 1))  # of one record
    slab = tl.program_id(0)
    row = tl.arange(0, 16)[:, None]
    acc = tl.zeros((16, 16), tl.int32)
    o_row = tl.arange(0, 16)[None, :]  # activations: eight rows, then eight of zeros, since tl.dot wants 16
    o_column = tl.arange(0, C)[:, None]
    for i in tl.range(0, K // C):
        p_record = p_weights + (slab.to(tl.int64) * (K // C) + i) * BYTES
        o_x = ((i * C + o_column) // 64 * 8 + o_row) * 64 + o_column % 64
        x = tl.load(p_x + o_x, mask=o_row < 8, other=0)
        acc = tl.dot(_record_grid(p_record, p_table, BITS, C), x, acc, out_dtype=tl.int32)
    rows = slabs * 16
    o_out = o_row * rows + slab * 16 + row  # [16 rows of the matrix, 16 rows of x]
    m_out = o_row < 8
    y = acc.to(tl.float32) * tl.load(p_channel_scale + slab * 16 + row)
    y = y * tl.load(p_x_scale + o_row, mask=m_out, other=0.0)
    if RESIDUAL:
        y += tl.load(p_residual + o_out, mask=m_out, other=0.0).to(tl.float32)
    tl.store(p_out + o_out, y.to(p_out.dtype.element_ty), mask=m_out)


@triton.jit
def unpack_kernel(p_weights, p_table, p_slabs, p_out, K: tl.constexpr, BITS: tl.constexpr, C: tl.constexpr):
    """The int8 grid of chosen slabs: program (i, r) writes record r of slab p_slabs[i] to rows 16 i of p_out [., K]."""
    BYTES: tl.constexpr = C * (2 * BITS + (0 if BITS == 8 else 1))
    i = tl.program_id(0)
    record = tl.program_id(1)
    slab = tl.load(p_slabs + i).to(tl.int64)
    grid = _record_grid(p_weights + (slab * (K // C) + record) * BYTES, p_table, BITS, C)
    o_row = i.to(tl.int64) * 16 + tl.arange(0, 16)[:, None]
    tl.store(p_out + o_row * K + record * C + tl.arange(0, C)[None, :], grid)
