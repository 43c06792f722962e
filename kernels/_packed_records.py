"""How kernels read and decode the records of kernels/packed.py. Imported only with Triton.

First the form for NVIDIA, a lane's own registers and no layout ever changed; then the portable one.
"""

import triton
import triton.language as tl


@triton.jit
def words4(p_words):
    """Four consecutive int32 a thread, one 16-byte load: pointers [T] -> four [T]."""
    words = tl.load(p_words[:, None] + tl.arange(0, 4)[None, :], eviction_policy="evict_first")
    even, odd = tl.split(words.reshape(p_words.shape[0], 2, 2))
    w0, w2 = tl.split(even)
    w1, w3 = tl.split(odd)
    return w0, w1, w2, w3


@triton.jit
def four(v):
    even, odd = tl.split(v.reshape(v.shape[0], 2, 2))
    w0, w2 = tl.split(even)
    w1, w3 = tl.split(odd)
    return w0, w1, w2, w3


@triton.jit
def pick(j: tl.constexpr, v0, v1, v2, v3, v4, v5, v6, v7):
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
def scale_pair(j: tl.constexpr, scales, J: tl.constexpr):
    """The two scale bytes of 64-column step j, in the low half of an int32."""
    if J == 8:
        s0, s1, s2, s3 = four(scales)
        word = pick(j // 2, s0, s1, s2, s3, s0, s0, s0, s0)
    else:
        s0, s1 = tl.split(scales)
        word = pick(j // 2, s0, s1, s0, s0, s0, s0, s0, s0)
    if j % 2:
        word = word >> 16
    return word


@triton.jit
def load_record(p_record, o_lane, BITS: tl.constexpr, J: tl.constexpr):
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
def levels_by_shuffle(scale_bytes, first, t0, t1, t2, t3):
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
def decode4(c0, c1, c2, c3, t0, t1, t2, t3, u0, u1, u2, u3):
    """4-bit codes as int8: c0, c1 are 16 codes of row g, c2, c3 of row g + 8; t, u their magnitudes.

    Returns row g's 16 weights and then row g + 8's, in column order. Of the two permutes of a byte one is zero, and
    0x80 - n with its top bit turned is -n in eight bits without a borrow.
    """
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 c, n, q, k;
        mov.b32 k, 0x80808080;
        prmt.b32 n, $12, $13, $8; sub.u32 n, k, n; xor.b32 n, n, k;
        xor.b32 q, $8, 0x88888888; prmt.b32 q, $14, $15, q; or.b32 $0, n, q;
        shr.b32 c, $8, 16;
        prmt.b32 n, $12, $13, c; sub.u32 n, k, n; xor.b32 n, n, k;
        xor.b32 q, c, 0x88888888; prmt.b32 q, $14, $15, q; or.b32 $1, n, q;
        prmt.b32 n, $12, $13, $9; sub.u32 n, k, n; xor.b32 n, n, k;
        xor.b32 q, $9, 0x88888888; prmt.b32 q, $14, $15, q; or.b32 $2, n, q;
        shr.b32 c, $9, 16;
        prmt.b32 n, $12, $13, c; sub.u32 n, k, n; xor.b32 n, n, k;
        xor.b32 q, c, 0x88888888; prmt.b32 q, $14, $15, q; or.b32 $3, n, q;
        prmt.b32 n, $16, $17, $10; sub.u32 n, k, n; xor.b32 n, n, k;
        xor.b32 q, $10, 0x88888888; prmt.b32 q, $18, $19, q; or.b32 $4, n, q;
        shr.b32 c, $10, 16;
        prmt.b32 n, $16, $17, c; sub.u32 n, k, n; xor.b32 n, n, k;
        xor.b32 q, c, 0x88888888; prmt.b32 q, $18, $19, q; or.b32 $5, n, q;
        prmt.b32 n, $16, $17, $11; sub.u32 n, k, n; xor.b32 n, n, k;
        xor.b32 q, $11, 0x88888888; prmt.b32 q, $18, $19, q; or.b32 $6, n, q;
        shr.b32 c, $11, 16;
        prmt.b32 n, $16, $17, c; sub.u32 n, k, n; xor.b32 n, n, k;
        xor.b32 q, c, 0x88888888; prmt.b32 q, $18, $19, q; or.b32 $7, n, q;
        }
        """,
        "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r,r,r,r,r,r,r,r,r,r,r,r",
        args=[c0, c1, c2, c3, t0, t1, t2, t3, u0, u1, u2, u3], dtype=(tl.int32,) * 8, is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def half2_scales(scale_bytes):
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
def decode6(codes, tops, scale):
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
def levels_of(pair, first, p_levels, t0, t1, t2, t3, WINDOW: tl.constexpr):
    """Magnitudes of two scale bytes, rows g and g + 8: from the lanes' table, or from the one in memory."""
    if WINDOW:
        return levels_by_shuffle(pair, first, t0, t1, t2, t3)
    else:
        l0, l1, l2, l3 = words4(p_levels + (pair & 255) * 4)
        h0, h1, h2, h3 = words4(p_levels + (pair >> 8 & 255) * 4)
        return l0, l1, l2, l3, h0, h1, h2, h3


@triton.jit
def step8(j: tl.constexpr, v0, v1, v2, v3, v4, v5, v6, v7, scales, BITS: tl.constexpr, J: tl.constexpr):
    """Step j of a 6- or 8-bit record as int8: 16 columns of row g, then of row g + 8, four int32 each."""
    if BITS == 8:
        r0, r1, r2, r3 = four(pick(2 * j, v0, v1, v2, v3, v4, v5, v6, v7))
        s0, s1, s2, s3 = four(pick(2 * j + 1, v0, v1, v2, v3, v4, v5, v6, v7))
    else:
        c0, c1, c2, c3 = four(pick(j, v0, v1, v2, v3, v4, v5, v6, v7))
        k0, k1, k2, k3 = four(pick(J + j // 2, v0, v1, v2, v3, v4, v5, v6, v7))
        top0 = k0 if j % 2 == 0 else k2
        top1 = k1 if j % 2 == 0 else k3
        half2_g, half2_g8 = half2_scales(scale_pair(j, scales, J))
        r0, r1 = decode6(c0, top0, half2_g)
        r2, r3 = decode6(c1, top0 >> 4, half2_g)
        s0, s1 = decode6(c2, top1, half2_g8)
        s2, s3 = decode6(c3, top1 >> 4, half2_g8)
    return r0, r1, r2, r3, s0, s1, s2, s3


@triton.jit
def e4m3_to_float(byte):
    """The value of an e4m3 byte without a sign, by its own arithmetic: any backend has it."""
    exponent = byte >> 3
    mantissa = (byte & 7).to(tl.float32)
    normal = (1.0 + mantissa * 0.125) * ((exponent + 120) << 23).to(tl.float32, bitcast=True)
    return tl.where(exponent == 0, mantissa * 0.001953125, normal)


@triton.jit
def record_grid(p_record, p_table, BITS: tl.constexpr, C: tl.constexpr):
    """The int8 grid [16, C] of one record."""
    return record_levels(p_record, p_table, tl.arange(0, 16)[:, None], tl.arange(0, C)[None, :], BITS, C)


@triton.jit
def record_levels(p_record, p_table, row, column, BITS: tl.constexpr, C: tl.constexpr):
    """The int8 levels of rows and columns of one record; codes are found byte by byte in the record layout."""
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
    level = (code - 32).to(tl.float32) * e4m3_to_float(scale)
    level = (level + 12582912.0) - 12582912.0  # 1.5 * 2^23: rounds half to even at the integers
    return tl.minimum(tl.maximum(level, -127.0), 127.0).to(tl.int8)
