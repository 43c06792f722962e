"""Tiles of int8 keys and values from memory to the matrix unit's operands without leaving a thread's registers.

A warp's 16 x 16 fp16 operand gives its lane 4 g + t rows g and g + 8, columns 2 t, 2 t + 1 and the two 8 further on.
Both products here are sums over an axis whose order is free, channels for the scores and slots for the output, and the
output's rows, channels again, may come in any order too. The tensors below are loaded with their axes in the order in
which Triton hands out lanes, then warps, then registers, so that after splitting bytes, a permutation of axes and a
reshape every number is where the operand wants it already: the conversion between the two layouts moves nothing. On a
backend that hands them out otherwise it moves something and is slower. For 4 warps and D = 128 or 256.
Imported only with Triton.
"""

import triton
import triton.language as tl


@triton.jit
def _split4(words, FAST: tl.constexpr):
    """The four int8 codes of an int32 as fp16, exactly.

    Conversion instructions run at a quarter rate and less, so on NVIDIA the bytes code + 128 become the low bytes of
    1024 + code + 128, and 1152 is taken off: five instructions for four codes.
    """
    if FAST:
        return tl.inline_asm_elementwise(
            """
            {
            .reg .b32 u, k, a, b;
            xor.b32 u, $4, 0x80808080;
            mov.b32 k, 0x64646464;
            prmt.b32 a, u, k, 0x4140; prmt.b32 b, u, k, 0x4342;
            mov.b32 k, 0x64806480;
            sub.rn.f16x2 a, a, k; sub.rn.f16x2 b, b, k;
            mov.b32 {$0, $1}, a; mov.b32 {$2, $3}, b;
            }
            """,
            "=&h,=&h,=&h,=&h,r",
            args=[words], dtype=(tl.float16,) * 4, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        return (
            (words << 24 >> 24).to(tl.float16),
            (words << 16 >> 24).to(tl.float16),
            (words << 8 >> 24).to(tl.float16),
            (words >> 24).to(tl.float16),
        )


@triton.jit
def _zip4(even, odd, FAST: tl.constexpr):
    """Two times four codes as fp16, pairs of one place beside each other: as `_split4`, for 2 x 4 codes."""
    if FAST:
        return tl.inline_asm_elementwise(
            """
            {
            .reg .b32 u, v, k, a, b, c, d;
            xor.b32 u, $8, 0x80808080; xor.b32 v, $9, 0x80808080;
            prmt.b32 a, u, v, 0x5140; prmt.b32 c, u, v, 0x7362;
            mov.b32 k, 0x64646464;
            prmt.b32 b, a, k, 0x4342; prmt.b32 a, a, k, 0x4140;
            prmt.b32 d, c, k, 0x4342; prmt.b32 c, c, k, 0x4140;
            mov.b32 k, 0x64806480;
            sub.rn.f16x2 a, a, k; sub.rn.f16x2 b, b, k; sub.rn.f16x2 c, c, k; sub.rn.f16x2 d, d, k;
            mov.b32 {$0, $1}, a; mov.b32 {$2, $3}, b; mov.b32 {$4, $5}, c; mov.b32 {$6, $7}, d;
            }
            """,
            "=&h,=&h,=&h,=&h,=&h,=&h,=&h,=&h,r,r",
            args=[even, odd], dtype=(tl.float16,) * 8, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        e0, e1, e2, e3 = _split4(even, False)
        o0, o1, o2, o3 = _split4(odd, False)
        return e0, o0, e1, o1, e2, o2, e3, o3


@triton.jit
def load_key_words(p_keys, slot, last, T: tl.constexpr, D: tl.constexpr):
    """T slots of keys as int32 [4, T / 2, 2, D / 64, 4]: lane, warp and row, half, 64-byte column, word.

    The order of the axes is the one in which Triton hands out lanes, then warps, then registers. So a thread loads
    16 bytes at a time of the rows of its fragment: g and g + 8 of a warp's 16.
    """
    lane = tl.arange(0, 4)[:, None, None, None, None]
    u = tl.arange(0, T // 2)[None, :, None, None, None]
    half = tl.arange(0, 2)[None, None, :, None, None]
    j = tl.arange(0, D // 64)[None, None, None, :, None]
    word = tl.arange(0, 4)[None, None, None, None, :]
    o_t = u // 8 * 16 + half * 8 + u % 8
    p_words = (p_keys + slot * D).to(tl.pointer_type(tl.int32), bitcast=True)
    at = o_t * (D // 4) + j * 16 + lane * 4 + word
    m_live = slot + lane * 0 < last  # not a scalar: Triton 3.9's interpreter makes int32 of one
    return tl.load(p_words + at, mask=m_live)


@triton.jit
def key_fragments(words, T: tl.constexpr, D: tl.constexpr, FAST: tl.constexpr):
    """[T, D] in fp16; column ((j 4 + word) 2 + h) 8 + lane 2 + e is channel j 64 + lane 16 + word 4 + h 2 + e."""
    c0, c1, c2, c3 = _split4(words, FAST)
    codes = tl.join(tl.join(c0, c1), tl.join(c2, c3)).reshape(4, T // 16, 8, 2, D // 64, 4, 2, 2)
    return codes.permute(1, 3, 2, 4, 5, 7, 0, 6).reshape(T, D)  # from [lane, warp, g, half, j, word, e, h]


@triton.jit
def load_value_words(p_values, slot, last, T: tl.constexpr, D: tl.constexpr, BY_WARP: tl.constexpr):
    """T slots of values, the even and the odd ones, as int32 [4, 8, 4, T / 8, D / 128]: lane, g, warp, slots, word.

    Warp and g choose D / 32 neighbouring channels of a slot, lane the pair of slots; BY_WARP two neighbouring pairs,
    because Triton gives an operand of mma.sync four neighbours of the axis it sums over.
    """
    X: tl.constexpr = D // 128
    lane = tl.arange(0, 4)[:, None, None, None, None]
    g = tl.arange(0, 8)[None, :, None, None, None]
    warp = tl.arange(0, 4)[None, None, :, None, None]
    i = tl.arange(0, T // 8)[None, None, None, :, None]
    word = tl.arange(0, X)[None, None, None, None, :]
    o_t = (i // 2 * 16 + lane * 4 + i % 2 * 2) if BY_WARP else (i * 8 + lane * 2)
    p_words = (p_values + slot * D).to(tl.pointer_type(tl.int32), bitcast=True)
    at = o_t * (D // 4) + (warp * 8 + g) * X + word
    m_live = slot + lane * 0 < last
    even = tl.load(p_words + at, mask=m_live)
    odd = tl.load(p_words + D // 4 + at, mask=m_live)
    return even, odd


@triton.jit
def value_fragments(even, odd, T: tl.constexpr, D: tl.constexpr, FAST: tl.constexpr, BY_WARP: tl.constexpr):
    """[D, T] in fp16, or [4, D / 4, T] with the warp as first axis.

    Row ((word 2 + top) 4 + warp) 16 + low 8 + g is the channel that `store_sums` puts back into its place.
    """
    e0, o0, e1, o1, e2, o2, e3, o3 = _zip4(even, odd, FAST)
    low = tl.join(tl.join(e0, o0), tl.join(e1, o1))
    high = tl.join(tl.join(e2, o2), tl.join(e3, o3))
    codes = tl.join(low, high)  # [lane, g, warp, i, word, odd, low, top]
    if BY_WARP:
        codes = codes.reshape(4, 8, 4, T // 16, 2, D // 128, 2, 2, 2)  # i in two
        return codes.permute(2, 5, 8, 7, 1, 3, 0, 4, 6).reshape(4, D // 4, T)
    else:
        return codes.permute(4, 7, 2, 6, 1, 3, 0, 5).reshape(D, T)


@triton.jit
def store_sums(p_acc, acc, first, columns, M: tl.constexpr, D: tl.constexpr, BY_WARP: tl.constexpr):
    """Stores [D, M] (or [4, D / 4, M]) with the rows of `value_fragments` as rows first.. of [., D]; live are the
    first `columns`.

    Axes as in `load_value_words`: a thread stores its own registers, 16 bytes at a time.
    """
    X: tl.constexpr = D // 128
    lane = tl.arange(0, 4)[:, None, None, None, None, None, None]
    g = tl.arange(0, 8)[None, :, None, None, None, None, None]
    warp = tl.arange(0, 4)[None, None, :, None, None, None, None]
    j = tl.arange(0, M // 8)[None, None, None, :, None, None, None]
    c = tl.arange(0, 2)[None, None, None, None, :, None, None]
    word = tl.arange(0, X)[None, None, None, None, None, :, None]
    o_m = j * 8 + lane * 2 + c
    at = o_m * D + ((warp * 8 + g) * X + word) * 4 + tl.arange(0, 4)[None, None, None, None, None, None, :]
    if BY_WARP:  # to [.., word, top, low]
        acc = acc.reshape(4, X, 2, 2, 8, M // 8, 4, 2).permute(6, 4, 0, 5, 7, 1, 2, 3)
    else:
        acc = acc.reshape(X, 2, 4, 2, 8, M // 8, 4, 2).permute(6, 4, 2, 5, 7, 0, 1, 3)
    acc = acc.reshape(4, 8, 4, M // 8, 2, X, 4)
    tl.store(p_acc + first * D + at, acc, mask=o_m < columns)


@triton.jit
def query_fragments(q, M: tl.constexpr, D: tl.constexpr):
    """[M, D] -> [D, M] with the rows in the order of `key_fragments`' columns."""
    return q.reshape(M, D // 64, 4, 4, 2, 2).permute(1, 3, 4, 2, 5, 0).reshape(D, M)
