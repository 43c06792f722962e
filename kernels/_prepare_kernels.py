"""The Triton kernel of kernels/prepare.py, which says what it computes and how. Imported only with Triton.

Eight consecutive columns a thread, each in a register of its own, so that every tensor has one element a thread and no
layout ever changes: two steps of the rotation stay in a thread, five cross the 32 lanes of the warp that holds a block
of 256. A step across lanes is one shuffle and one fused multiply-add by +-1 a value, which is an exact addition:

    h4 (a, b, c, d) in two steps over a digit's bits b1 b0 (lanes 00, 01, 10, 11), own = the lane's value, other = its
    partner's, sign = -1 where b0 != b1, +1 elsewhere; both steps are  sign * own + other
    bit 0:  s = a + b,  m = a - b,  -t = d - c,  p = c + d
    bit 1:  s - t = y1, p - m = y3,  t + s = y0,  m + p = y2          so lane (b1, b0) ends with y[2 b0 + 1 - b1]
"""

import triton
import triton.language as tl

from ._dependent_launch import gdc_launch_dependents, gdc_wait

# A block's mailbox and the barrier that counts the bytes which arrive in it; $0 is the mailbox, the barrier lies behind
# it. Run before anything waits: the other blocks may send once the cluster barrier that this arrives at has passed.
_OPEN = tl.constexpr(
    """
    {
    .shared .align 8 .b64 mailbox[129];
    .reg .pred p;
    .reg .b32 blocks, warps;
    mov.u32 $0, mailbox;
    mov.u32 blocks, %cluster_nctarank; mov.u32 warps, %ntid.x; shr.u32 warps, warps, 5;
    mul.lo.u32 blocks, blocks, warps; shl.b32 blocks, blocks, 3;
    mov.u32 warps, %tid.x; setp.eq.u32 p, warps, 0;
    @p mbarrier.init.shared::cta.b64 [$0+1024], 1;
    @p mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0+1024], blocks;
    @p fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive.relaxed.aligned;
    }
    """
)
# Every warp sends its maximum and sum to the mailbox of every block, at most 16 blocks of 8 warps; all then read the
# whole of their own. Sums go up butterflies over fixed places, so every lane of every block has the same bits.
_MEET = tl.constexpr(
    """
    {
    .reg .pred p;
    .reg .b32 blocks, warps, lane, at, far, gate, i, m, v;
    .reg .f32 s, f;
    mov.u32 i, %tid.x; and.b32 lane, i, 31; shr.u32 i, i, 5;
    mov.u32 warps, %ntid.x; shr.u32 warps, warps, 5;
    mov.u32 blocks, %cluster_nctarank;
    mov.u32 at, %cluster_ctarank; mad.lo.u32 at, at, warps, i; mad.lo.u32 at, at, 8, $4;
    setp.lt.u32 p, lane, blocks;
    barrier.cluster.wait.acquire.aligned;
    @p mapa.shared::cluster.u32 far, at, lane;
    add.u32 gate, $4, 1024;
    @p mapa.shared::cluster.u32 gate, gate, lane;
    redux.sync.max.u32 m, $2, 0xffffffff;
    mov.f32 s, $3;
    shfl.sync.bfly.b32 f, s, 16, 31, 0xffffffff; add.rn.f32 s, s, f;
    shfl.sync.bfly.b32 f, s, 8, 31, 0xffffffff; add.rn.f32 s, s, f;
    shfl.sync.bfly.b32 f, s, 4, 31, 0xffffffff; add.rn.f32 s, s, f;
    shfl.sync.bfly.b32 f, s, 2, 31, 0xffffffff; add.rn.f32 s, s, f;
    shfl.sync.bfly.b32 f, s, 1, 31, 0xffffffff; add.rn.f32 s, s, f;
    mov.b32 v, s;
    @p st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [far], {m, v}, [gate];
    mul.lo.u32 blocks, blocks, warps;
    mad.lo.u32 at, lane, 8, $4;
    COUNT:
    mbarrier.try_wait.parity.shared::cta.b64 p, [$4+1024], 0;
    @!p bra COUNT;
    mov.b32 m, 0; mov.f32 s, 0f00000000;
    mov.b32 v, 0; mov.f32 f, 0f00000000; setp.lt.u32 p, lane, blocks;
    @p ld.shared.v2.b32 {v, f}, [at]; max.u32 m, m, v; add.rn.f32 s, s, f;
    add.u32 i, lane, 32; mov.b32 v, 0; mov.f32 f, 0f00000000; setp.lt.u32 p, i, blocks;
    @p ld.shared.v2.b32 {v, f}, [at+256]; max.u32 m, m, v; add.rn.f32 s, s, f;
    add.u32 i, lane, 64; mov.b32 v, 0; mov.f32 f, 0f00000000; setp.lt.u32 p, i, blocks;
    @p ld.shared.v2.b32 {v, f}, [at+512]; max.u32 m, m, v; add.rn.f32 s, s, f;
    add.u32 i, lane, 96; mov.b32 v, 0; mov.f32 f, 0f00000000; setp.lt.u32 p, i, blocks;
    @p ld.shared.v2.b32 {v, f}, [at+768]; max.u32 m, m, v; add.rn.f32 s, s, f;
    redux.sync.max.u32 $0, m, 0xffffffff;
    shfl.sync.bfly.b32 f, s, 16, 31, 0xffffffff; add.rn.f32 s, s, f;
    shfl.sync.bfly.b32 f, s, 8, 31, 0xffffffff; add.rn.f32 s, s, f;
    shfl.sync.bfly.b32 f, s, 4, 31, 0xffffffff; add.rn.f32 s, s, f;
    shfl.sync.bfly.b32 f, s, 2, 31, 0xffffffff; add.rn.f32 s, s, f;
    shfl.sync.bfly.b32 f, s, 1, 31, 0xffffffff; add.rn.f32 $1, s, f;
    }
    """
)
_LOAD = tl.constexpr(
    """
    {
    .reg .pred p;
    setp.ne.b32 p, $5, 0;
    mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0;
    @p ld.global.v4.b32 {$0, $1, $2, $3}, [$4];
    }
    """
)


@triton.jit
def _words(p_words, m_live, CLUSTER: tl.constexpr):
    """Four consecutive int32 a thread, one 16-byte load: pointers [T] -> four [T], zeros where not live."""
    if CLUSTER:  # Triton 3.6 cannot reshape a tensor that is spread over a cluster
        return tl.inline_asm_elementwise(
            _LOAD, "=&r,=&r,=&r,=&r,l,r", [p_words, m_live.to(tl.int32)], dtype=(tl.int32,) * 4, is_pure=False, pack=1
        )
    else:
        words = tl.load(p_words[:, None] + tl.arange(0, 4)[None, :], mask=m_live[:, None], other=0)
        even, odd = tl.split(words.reshape(p_words.shape[0], 2, 2))
        w0, w2 = tl.split(even)
        w1, w3 = tl.split(odd)
        return w0, w1, w2, w3


@triton.jit
def _halves(word, dtype: tl.constexpr):
    """The two 16-bit floats of an int32, as float32."""
    if dtype == tl.bfloat16:
        return (word << 16).to(tl.float32, bitcast=True), (word & -65536).to(tl.float32, bitcast=True)
    else:
        low = word.to(tl.int16).to(dtype, bitcast=True)
        return low.to(tl.float32), (word >> 16).to(tl.int16).to(dtype, bitcast=True).to(tl.float32)


@triton.jit
def _load8(p_x, m_live, CLUSTER: tl.constexpr):
    """Eight consecutive floats a thread from pointers [T] -> eight float32 [T]."""
    dtype: tl.constexpr = p_x.dtype.element_ty
    p_words = p_x.to(tl.pointer_type(tl.int32), bitcast=True)
    a, b, c, d = _words(p_words, m_live, CLUSTER)
    if dtype == tl.float32:
        e, f, g, h = _words(p_words + 4, m_live, CLUSTER)
        x0 = a.to(tl.float32, bitcast=True)
        x1 = b.to(tl.float32, bitcast=True)
        x2 = c.to(tl.float32, bitcast=True)
        x3 = d.to(tl.float32, bitcast=True)
        x4 = e.to(tl.float32, bitcast=True)
        x5 = f.to(tl.float32, bitcast=True)
        x6 = g.to(tl.float32, bitcast=True)
        x7 = h.to(tl.float32, bitcast=True)
    else:
        x0, x1 = _halves(a, dtype)
        x2, x3 = _halves(b, dtype)
        x4, x5 = _halves(c, dtype)
        x6, x7 = _halves(d, dtype)
    return x0, x1, x2, x3, x4, x5, x6, x7


@triton.jit
def _swiglu(gate, up):
    return gate / (1.0 + tl.exp(-gate)) * up


@triton.jit
def _h4(a, b, c, d):
    s = a + b
    m = a - b
    p = c + d
    t = c - d
    return s + t, s - t, m + p, p - m


@triton.jit
def _across(own, sign, BIT: tl.constexpr, CLUSTER: tl.constexpr):
    """sign * own + the value of the lane that differs in BIT."""
    if CLUSTER:
        other = tl.inline_asm_elementwise(
            "shfl.sync.bfly.b32 $0, $1, $2, 31, 0xffffffff;", "=r,r,r", [own, BIT], tl.float32, is_pure=True, pack=1
        )
    else:
        WARPS: tl.constexpr = own.shape[0] // 32
        partner = tl.broadcast_to(tl.arange(0, 32)[None, :] ^ BIT, (WARPS, 32))
        other = tl.gather(own.reshape(WARPS, 32), partner, 1).reshape(own.shape[0])
    return tl.fma(own, sign, other)


@triton.jit
def _across4(a, b, c, d, sign, BIT: tl.constexpr, CLUSTER: tl.constexpr):
    a = _across(a, sign, BIT, CLUSTER)
    b = _across(b, sign, BIT, CLUSTER)
    c = _across(c, sign, BIT, CLUSTER)
    return a, b, c, _across(d, sign, BIT, CLUSTER)


@triton.jit
def _rotate(x0, x1, x2, x3, x4, x5, x6, x7, lane, CLUSTER: tl.constexpr):
    """16 times the rotation of the block of 256 that a warp holds, in the order of lanes that `_column` gives.

    Column digits: d0 and the low bit of d1 are the register's number, the high bit of d1 is lane bit 0, d2 lane bits
    1 and 2, d3 lane bits 3 and 4.
    """
    x0, x1, x2, x3 = _h4(x0, x1, x2, x3)
    x4, x5, x6, x7 = _h4(x4, x5, x6, x7)
    sign = tl.where((lane & 1) == 0, 1.0, -1.0)  # d1: its first step pairs registers, b0 = 0 below 4 and 1 from there
    y0 = tl.fma(x0, sign, x4)
    y1 = tl.fma(x1, sign, x5)
    y2 = tl.fma(x2, sign, x6)
    y3 = tl.fma(x3, sign, x7)
    x4 = tl.fma(x4, -sign, x0)
    x5 = tl.fma(x5, -sign, x1)
    x6 = tl.fma(x6, -sign, x2)
    x7 = tl.fma(x7, -sign, x3)
    x0, x1, x2, x3 = _across4(y0, y1, y2, y3, sign, 1, CLUSTER)
    x4, x5, x6, x7 = _across4(x4, x5, x6, x7, -sign, 1, CLUSTER)
    for bit in tl.static_range(1, 5):  # lane bits 1 and 2 are one digit, 3 and 4 another
        sign = tl.where(((lane >> ((bit - 1) // 2 * 2 + 1)) ^ (lane >> ((bit - 1) // 2 * 2 + 2))) & 1 == 0, 1.0, -1.0)
        x0, x1, x2, x3 = _across4(x0, x1, x2, x3, sign, 1 << bit, CLUSTER)
        x4, x5, x6, x7 = _across4(x4, x5, x6, x7, sign, 1 << bit, CLUSTER)
    return x0, x1, x2, x3, x4, x5, x6, x7


@triton.jit
def _larger(a, b):
    return tl.maximum(tl.abs(a), tl.abs(b), propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _meet_in_slots(highest, total, calls, p_mail, p_calls, row, part, PARTS: tl.constexpr):
    """Maximum and sum over the row's blocks, of each block's `highest` (int32 >= 0) and `total`.

    One 64-bit word carries both values, so whoever sees it sees both; -1 is "not there yet", which no `highest` looks
    like. Calls alternate between two sets of words, and a block clears its word of the other set: every reader has left
    that one, since the kernel that used it has ended. `calls` was read before a barrier of the block, so no warp reads
    it after it has been counted up.
    """
    cell = row * PARTS + part
    p_ours = p_mail + (calls & 1) * 8 * PARTS
    word = (highest.to(tl.int64) << 32) | (total.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF)
    tl.atomic_xchg(p_ours + cell, word, sem="relaxed")
    tl.store(p_mail + ((calls & 1) ^ 1) * 8 * PARTS + cell, word * 0 - 1)
    tl.store(p_calls + cell, calls + 1)
    o_part = tl.arange(0, 32)
    words = tl.load(p_ours + row * PARTS + o_part, mask=o_part < PARTS, other=0, volatile=True)
    while tl.min((words >> 32).to(tl.int32), 0) < 0:
        words = tl.load(p_ours + row * PARTS + o_part, mask=o_part < PARTS, other=0, volatile=True)
    return tl.max((words >> 32).to(tl.int32), 0), tl.sum(words.to(tl.int32).to(tl.float32, bitcast=True), 0)


@triton.jit
def _code(y, inverse):
    """round_half_even(y * inverse) in the low byte: adding 1.5 * 2^23 leaves integers."""
    return (y * inverse + 12582912.0).to(tl.int32, bitcast=True) & 255


@triton.jit
def _codes(a, b, c, d, inverse):
    return _code(a, inverse) | (_code(b, inverse) << 8) | (_code(c, inverse) << 16) | (_code(d, inverse) << 24)


@triton.jit
def _column(group, WORD: tl.constexpr, ROTATE: tl.constexpr):
    """First column of a thread's WORD-th four results: its lanes' order after the rotation, or the natural one."""
    if ROTATE:
        lane = group & 31
        d1 = 2 * WORD + 1 - (lane & 1)
        d2 = ((lane >> 1) & 1) * 2 + 1 - ((lane >> 2) & 1)
        d3 = ((lane >> 3) & 1) * 2 + 1 - ((lane >> 4) & 1)
        return (group >> 5) * 256 + d3 * 64 + d2 * 16 + d1 * 4
    else:
        return group * 8 + WORD * 4


@triton.jit
def _store_pair(p_pair, a, b, m_live):
    """Two floats next to each other, rounded to the pointer's type."""
    dtype: tl.constexpr = p_pair.dtype.element_ty
    if dtype == tl.float32:
        tl.store(p_pair, a, mask=m_live)
        tl.store(p_pair + 1, b, mask=m_live)
    else:
        low = a.to(dtype).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
        high = b.to(dtype).to(tl.int16, bitcast=True).to(tl.int32) << 16
        tl.store(p_pair.to(tl.pointer_type(tl.int32), bitcast=True), low | high, mask=m_live)


@triton.jit
def prepare_kernel(
    x_ptr, x_stride, norm_ptr, eps, x8_ptr, scale_ptr, normed_ptr, mail_ptr, calls_ptr,
    K: tl.constexpr, THREADS: tl.constexpr, PARTS: tl.constexpr, SLOTS: tl.constexpr, CLUSTER: tl.constexpr,
    SWIGLU: tl.constexpr, NORM: tl.constexpr, NORMED: tl.constexpr, ROTATE: tl.constexpr, BY_ROWS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A row a program; with SLOTS one of PARTS parts of it (the second program id); with CLUSTER a row a cluster.

    x_ptr     float [8, K], [8, 2K] = gate | up with SWIGLU; rows x_stride apart
    norm_ptr  float [K], read with NORM only; normed_ptr [8, K], written with NORMED only
    x8_ptr    int8 [K / 64, 8, 64]; scale_ptr float32 [8]. With BY_ROWS any number of rows, x8_ptr int8 [rows, K]
    mail_ptr  int64 [2, 8, PARTS], all -1 at first, and calls_ptr int32 [8, PARTS], zeros at first: read with SLOTS only
    THREADS   columns / 8 that a program holds (a whole cluster's with CLUSTER), a power of two
    """
    row = tl.program_id(0)
    if BY_ROWS:
        row = row.to(tl.int64)  # rows x columns of a prompt may pass 2^31
    part = tl.program_id(1)
    group = part * THREADS + tl.arange(0, THREADS)
    live = group < K // 8
    if CLUSTER:
        mailbox = tl.inline_asm_elementwise(_OPEN, "=&r,r", [group], dtype=tl.int32, is_pure=False, pack=1)
    if NORM:
        w0, w1, w2, w3, w4, w5, w6, w7 = _load8(norm_ptr + group * 8, live, CLUSTER)
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    if SLOTS:
        calls = tl.load(calls_ptr + row * PARTS + part, volatile=True)
    x0, x1, x2, x3, x4, x5, x6, x7 = _load8(x_ptr + row * x_stride + group * 8, live, CLUSTER)
    squares = x0
    total = 0.0
    if SWIGLU:
        u0, u1, u2, u3, u4, u5, u6, u7 = _load8(x_ptr + row * x_stride + K + group * 8, live, CLUSTER)
        y0 = _swiglu(x0, u0)
        y1 = _swiglu(x1, u1)
        y2 = _swiglu(x2, u2)
        y3 = _swiglu(x3, u3)
        y4 = _swiglu(x4, u4)
        y5 = _swiglu(x5, u5)
        y6 = _swiglu(x6, u6)
        y7 = _swiglu(x7, u7)
    elif NORM:
        squares = ((x0 * x0 + x1 * x1) + (x2 * x2 + x3 * x3)) + ((x4 * x4 + x5 * x5) + (x6 * x6 + x7 * x7))
        if not CLUSTER:
            total = tl.sum(squares, 0)
        y0 = x0 * (1.0 + w0)
        y1 = x1 * (1.0 + w1)
        y2 = x2 * (1.0 + w2)
        y3 = x3 * (1.0 + w3)
        y4 = x4 * (1.0 + w4)
        y5 = x5 * (1.0 + w5)
        y6 = x6 * (1.0 + w6)
        y7 = x7 * (1.0 + w7)
    else:
        y0, y1, y2, y3, y4, y5, y6, y7 = x0, x1, x2, x3, x4, x5, x6, x7
    if ROTATE:
        y0, y1, y2, y3, y4, y5, y6, y7 = _rotate(y0, y1, y2, y3, y4, y5, y6, y7, group & 31, CLUSTER)
    largest = _larger(_larger(_larger(y0, y1), _larger(y2, y3)), _larger(_larger(y4, y5), _larger(y6, y7)))
    bits = largest.to(tl.int32, bitcast=True)  # of a number that is not negative: ordered as the number, NaN on top
    if CLUSTER:
        bits, total = tl.inline_asm_elementwise(
            _MEET, "=&r,=&r,r,r,r", [bits, squares, mailbox], dtype=(tl.int32, tl.float32), is_pure=False, pack=1
        )
    else:
        bits = tl.max(bits, 0)
        if SLOTS:
            bits, total = _meet_in_slots(bits, total, calls, mail_ptr, calls_ptr, row, part, PARTS)
    absmax = bits.to(tl.float32, bitcast=True)
    tiny = bits < 0x0D800000  # 2^-100
    inverse = tl.where(tiny, 0.0, tl.div_rn(127.0, tl.where(tiny, 1.0, absmax)))

    c_low = _column(group, 0, ROTATE)
    c_high = _column(group, 1, ROTATE)
    if BY_ROWS:
        p_low = x8_ptr + row * K + c_low
        p_high = x8_ptr + row * K + c_high
    else:
        p_low = x8_ptr + row * 64 + (c_low // 64) * 512 + c_low % 64
        p_high = x8_ptr + row * 64 + (c_high // 64) * 512 + c_high % 64
    p_low = p_low.to(tl.pointer_type(tl.int32), bitcast=True)
    p_high = p_high.to(tl.pointer_type(tl.int32), bitcast=True)
    tl.store(p_low, _codes(y0, y1, y2, y3, inverse), mask=live)
    tl.store(p_high, _codes(y4, y5, y6, y7, inverse), mask=live)

    UNIT: tl.constexpr = 2032.0 if ROTATE else 127.0  # the rotation's 1/16 is applied here, once
    scale = tl.div_rn(absmax, UNIT)
    if NORM:
        root = tl.rsqrt(total * (1.0 / K) + eps)
        scale = scale * root
        if NORMED:
            p_normed = normed_ptr + row * K + group * 8
            _store_pair(p_normed, x0 * root * (1.0 + w0), x1 * root * (1.0 + w1), live)
            _store_pair(p_normed + 2, x2 * root * (1.0 + w2), x3 * root * (1.0 + w3), live)
            _store_pair(p_normed + 4, x4 * root * (1.0 + w4), x5 * root * (1.0 + w5), live)
            _store_pair(p_normed + 6, x6 * root * (1.0 + w6), x7 * root * (1.0 + w7), live)
    scale = tl.where(tiny, 1.0, tl.where(bits >= 0x7F800000, float("nan"), scale))
    tl.store(scale_ptr + row + group * 0, scale, mask=group == 0)
