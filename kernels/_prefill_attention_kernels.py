"""Triton kernel of kernels/prefill_attention.py, which says what it computes and how. Imported only with Triton."""

import triton
import triton.language as tl

from ._float_products import dot


@triton.jit
def _multiplied(x, KIND: tl.constexpr, FAST: tl.constexpr):
    """Stored numbers as what is multiplied, exactly.

    Conversion instructions run at half rate and less, so on NVIDIA the bytes code + 128 become the low bytes of
    1024 + code + 128, and 1152 is taken off: five instructions for four codes.
    """
    if x.dtype == tl.int8 and FAST:
        return tl.inline_asm_elementwise(
            """
            {
            .reg .b32 u, k, a, b;
            xor.b32 u, $2, 0x80808080;
            mov.b32 k, 0x64646464;
            prmt.b32 a, u, k, 0x4140; prmt.b32 b, u, k, 0x4342;
            mov.b32 k, 0x64806480;
            sub.rn.f16x2 $0, a, k; sub.rn.f16x2 $1, b, k;
            }
            """,
            "=&r,=&r,r", args=[x], dtype=tl.float16, is_pure=True, pack=4,
        )  # fmt: skip
    else:
        return x.to(KIND)


@triton.jit
def _log2_and_inverse(x, FAST: tl.constexpr):
    """log2 x, within 2^-22 or as much of itself, and 1 / x, for x from 2^-60 up or NaN.

    The library's logarithm takes some 20 instructions, at every thread for every column that it holds.
    """
    if FAST:
        return tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $2; rcp.approx.ftz.f32 $1, $2;", "=&f,=f,f", args=[x],
            dtype=(tl.float32, tl.float32), is_pure=True, pack=1,
        )  # fmt: skip
    else:
        return tl.log2(x), 1.0 / x


@triton.jit
def _tile(
    p_k, p_v, p_ks, p_vs, q, q_low, q_scale, position, end, t, peak, total, acc,
    M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, KIND: tl.constexpr, SPLIT_Q: tl.constexpr,
    INT8_QK: tl.constexpr, PRECISION: tl.constexpr, FAST: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Slots t..t+N-1. MASKED where some row does not see all of them; the numbers are the same either way."""
    INT8: tl.constexpr = p_k.dtype.element_ty == tl.int8
    slot = t + tl.arange(0, N)
    at = tl.arange(0, N)[:, None] * D + tl.arange(0, D)[None, :]
    p_k += t.to(tl.int64) * D
    p_v += t.to(tl.int64) * D
    if MASKED:
        k = tl.load(p_k + at, mask=slot[:, None] < end, other=0)
        v = tl.load(p_v + at, mask=slot[:, None] < end, other=0)
    else:
        k = tl.load(p_k + at)
        v = tl.load(p_v + at)
    if INT8_QK:
        # Sums of products are below 2^22, so adding 1.5 2^23 as an integer to its bits makes a float of them.
        codes = tl.dot(q, tl.trans(k), out_dtype=tl.int32)
        s = (codes + 0x4B400000).to(tl.float32, bitcast=True) - 12582912.0
        s = s * q_scale[:, None]
    else:
        keys = tl.trans(_multiplied(k, KIND, FAST))
        s = dot(q, keys, tl.zeros((M, N), tl.float32), PRECISION)
        if SPLIT_Q:
            s = dot(q_low, keys, s, PRECISION)
    step = 1.4426950408889634 / D**0.5
    if INT8:
        if MASKED:
            ks = tl.load(p_ks + slot, mask=slot < end, other=0.0)
            vs = tl.load(p_vs + slot, mask=slot < end, other=1.0)
        else:
            ks = tl.load(p_ks + slot)
            vs = tl.load(p_vs + slot)
        vs = tl.where(vs < 2.0**-60, 2.0**-60, vs)  # keeps NaN
        bits, inverse = _log2_and_inverse(vs, FAST)
        s = s * (ks * step)[None, :] + bits[None, :]
    else:
        s = s * step
        if MASKED:
            # A value that is no number must not reach the rows that do not see it: 0 * NaN is NaN.
            finite = v.to(tl.float32) * 0.0 == 0.0
            v = tl.where(finite, v, 0.0).to(v.dtype)
            s = s + tl.where(tl.min(finite.to(tl.int32), 1) == 0, float("nan"), 0.0)[None, :]
    if MASKED:
        m_seen = slot[None, :] <= position[:, None]
        s = tl.where(m_seen, s, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(s, 1))
    base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    p = tl.exp2(s - base[:, None])
    shrink = tl.exp2(peak - base)
    weights = p
    if INT8:
        weights = p * inverse[None, :]
        if MASKED:
            weights = tl.where(m_seen, weights, 0.0)
    total = total * shrink + tl.sum(weights, 1)
    acc = dot(p.to(KIND), _multiplied(v, KIND, FAST), acc * shrink[:, None], PRECISION)
    return new_peak, total, acc


@triton.jit(do_not_specialize=["start", "tokens", "slots"])
def prefill_attention_kernel(
    p_q, p_keys, p_values, p_key_scales, p_value_scales, p_out, start, tokens, slots,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, KIND: tl.constexpr,
    SPLIT_Q: tl.constexpr, INT8_QK: tl.constexpr, PRECISION: tl.constexpr, FAST: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Program (block of M rows, query head); the last rows, which see most, first."""
    blocks = (tokens + M - 1) // M
    head = tl.program_id(0) % HEADS
    first = (blocks - 1 - tl.program_id(0) // HEADS) * M
    o_row = first + tl.arange(0, M)
    position = start + o_row
    end = start + tokens
    before = (head // GROUP).to(tl.int64) * slots
    p_k = p_keys + before * D
    p_v = p_values + before * D
    p_ks = p_key_scales + before
    p_vs = p_value_scales + before
    at = (o_row[:, None].to(tl.int64) * HEADS + head) * D + tl.arange(0, D)[None, :]
    q = tl.load(p_q + at, mask=o_row[:, None] < tokens, other=0.0)
    q_low = q
    q_scale = tl.zeros((M,), tl.float32)
    if INT8_QK:
        absmax = tl.max(tl.abs(q.to(tl.float32)), 1)
        q_scale = tl.where(absmax == 0.0, 1.0, absmax / 127.0)
        # Adding 1.5 2^23 rounds to the nearest integer, halves to even.
        q = (q.to(tl.float32) / q_scale[:, None] + 12582912.0 - 12582912.0).to(tl.int8)
    elif SPLIT_Q:  # by its bits: a compiler may take x.to(fp16).to(float32) for x
        high = (q.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
        q_low = (q - high).to(KIND)
        q = high.to(KIND)
    else:
        q = q.to(KIND)
    peak = tl.full((M,), float("-inf"), tl.float32)
    total = tl.zeros((M,), tl.float32)
    acc = tl.zeros((M, D), tl.float32)
    whole = (start + first + 1) // N * N  # every row sees all slots before
    last = tl.minimum(start + first + M, end)
    if INTERPRETED:  # has no range of run-time values
        t = start * 0
        while t < whole:
            peak, total, acc = _tile(
                p_k, p_v, p_ks, p_vs, q, q_low, q_scale, position, end, t, peak, total, acc,
                M, N, D, KIND, SPLIT_Q, INT8_QK, PRECISION, FAST, False,
            )  # fmt: skip
            t += N
        while t < last:
            peak, total, acc = _tile(
                p_k, p_v, p_ks, p_vs, q, q_low, q_scale, position, end, t, peak, total, acc,
                M, N, D, KIND, SPLIT_Q, INT8_QK, PRECISION, FAST, True,
            )  # fmt: skip
            t += N
    else:
        for t in tl.range(0, whole, N):
            peak, total, acc = _tile(
                p_k, p_v, p_ks, p_vs, q, q_low, q_scale, position, end, t, peak, total, acc,
                M, N, D, KIND, SPLIT_Q, INT8_QK, PRECISION, FAST, False,
            )  # fmt: skip
        for t in tl.range(whole, last, N, num_stages=1):
            peak, total, acc = _tile(
                p_k, p_v, p_ks, p_vs, q, q_low, q_scale, position, end, t, peak, total, acc,
                M, N, D, KIND, SPLIT_Q, INT8_QK, PRECISION, FAST, True,
            )  # fmt: skip
    # 0 added: a tile of which a row sees nothing leaves its sums as they are, but for -0, which becomes 0.
    out = (acc + 0.0) / total[:, None]
    tl.store(p_out + at, out.to(p_out.dtype.element_ty), mask=o_row[:, None] < tokens)
