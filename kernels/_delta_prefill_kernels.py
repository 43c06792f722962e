"""The Triton kernels of kernels/delta_prefill.py, which says what they compute and how. Imported only with Triton.

Products of float32 run on matrix units: in `chunk` in three terms of ten mantissa bits each where PRECISION is "tf32x3"
(both operands are then held twice in registers, so none is larger than 32 x 32 a warp and long sums go piece by piece),
in `walk` in three terms of bf16 with HALVES. What `walk` reads is split into its halves by `chunk`, once.
The number of tokens is not specialised on: other lengths would compile other binaries.
"""

import triton
import triton.language as tl

from ._delta_decode_kernels import convolve, gates, l2_normalised, silu


@triton.jit
def _decay(total, row, column):
    """exp(G_i - G_j) for j <= i, else 0. Masked before exp: above the diagonal the difference may overflow."""
    later = tl.sum(tl.where(row[:, None] == column[None, :], total[:, None], 0.0), 0)  # G over columns
    kept = row[:, None] >= column[None, :]
    return tl.exp(tl.where(kept, (total[:, None] - later[None, :]).to(tl.float32), float("-inf")))


@triton.jit
def _unit_lower_inverse(system, row, column, CHUNK: tl.constexpr, PRECISION: tl.constexpr):
    """(I + system)^-1 of a strictly lower triangular matrix, by doubling the size of inverted diagonal blocks.

    [[A, 0], [B, C]]^-1 = [[A^-1, 0], [-C^-1 B A^-1, C^-1]]: with D the inverse of the blocks of size n and B what is
    between two of them, D - D B D is that of the blocks of size 2n. Every product is one of true inverses, which stay
    bounded; powers of `system` would not.
    """
    i = row[:, None]
    j = column[None, :]
    inverse = tl.where(i == j, 1.0, 0.0) - tl.where((i // 2 == j // 2) & (i != j), system, 0.0)
    for level in tl.static_range(1, 5):
        between = tl.where((i >> (level + 1) == j >> (level + 1)) & (i >> level != j >> level), system, 0.0)
        right = tl.dot(between, inverse, input_precision=PRECISION)
        inverse = inverse - tl.dot(inverse, right, input_precision=PRECISION)
    tl.static_assert(CHUNK == 32)
    return inverse


@triton.jit
def _halves(x, HALVES: tl.constexpr):
    """x as its bf16 and the bf16 of what that leaves; without HALVES x itself, twice."""
    if HALVES:
        # Halves away from zero, on integers: the conversion of a single number runs at an eighth of their rate.
        bits = (x.to(tl.int32, bitcast=True) + 0x8000) & -0x10000
        high = (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
        return high, (x - bits.to(tl.float32, bitcast=True)).to(tl.bfloat16)
    else:
        return x, x


@triton.jit
def _store_halves(p_x, plane, x, m_live, HALVES: tl.constexpr):
    """Stores x float32, or with HALVES its halves `plane` elements apart."""
    high, low = _halves(x, HALVES)
    tl.store(p_x, high, mask=m_live)
    if HALVES:
        tl.store(p_x + plane, low, mask=m_live)


@triton.jit
def _load_halves(p_x, plane, m_live, HALVES: tl.constexpr):
    high = tl.load(p_x, mask=m_live, other=0.0)
    if HALVES:
        return high, tl.load(p_x + plane, mask=m_live, other=0.0)
    else:
        return high, high


# The interpreter multiplies bf16 by its bits, and has no range that ends at an argument.
_INTERPRETED = tl.constexpr(not isinstance(_load_halves, triton.JITFunction))


@triton.jit
def _product(a, b, total, HALVES: tl.constexpr):
    """total + a b of two pairs of halves; what is left out is the product of the two low ones."""
    if HALVES and _INTERPRETED:
        total = tl.dot(a[1].to(tl.float32), b[0].to(tl.float32), total)
        total = tl.dot(a[0].to(tl.float32), b[1].to(tl.float32), total)
        return tl.dot(a[0].to(tl.float32), b[0].to(tl.float32), total)
    elif HALVES:
        total = tl.dot(a[1], b[0], total)
        total = tl.dot(a[0], b[1], total)
        return tl.dot(a[0], b[0], total)
    else:
        return tl.dot(a[0], b[0], total, input_precision="ieee")


@triton.jit(do_not_specialize=["tokens", "chunks"])
def chunk_kernel(
    p_q, p_k, p_v, p_g, p_beta, p_q_halves, p_k_halves, p_from_start, p_to_end, p_mix, p_seen, p_writes, tokens, chunks,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, PK: tl.constexpr, PV: tl.constexpr,
    CHUNK: tl.constexpr, PRECISION: tl.constexpr, HALVES: tl.constexpr,
):  # fmt: skip
    """What needs no state: program (c, h) for chunk c of value head h."""
    c = tl.program_id(0)
    h = tl.program_id(1)
    row = tl.arange(0, CHUNK)
    column = tl.arange(0, CHUNK)
    token = (c * CHUNK + row).to(tl.int64)
    live = token < tokens
    leads = live & (h % (HV // HK) + row * 0 == 0)  # the first of a key head's value heads splits q and k
    # Dead rows have k = v = beta = g = 0: they write nothing and let everything pass.
    g = tl.load(p_g + token * HV + h, mask=live, other=0.0)
    beta = tl.load(p_beta + token * HV + h, mask=live, other=0.0)
    o_key = (token * HK + h // (HV // HK))[:, None] * DK + tl.arange(0, PK)[None, :]
    o_value = (token * HV + h)[:, None] * DV + tl.arange(0, PV)[None, :]
    o_chunk = c.to(tl.int64) * HV + h
    o_row = o_chunk * CHUNK + row  # of the chunk's rows in what is stored
    plane = tokens.to(tl.int64) * (HK * DK)
    stored = chunks.to(tl.int64) * (HV * CHUNK)
    total = tl.cumsum(g.to(tl.float64), 0)  # differences of sums that strong gates make large
    last = tl.sum(g.to(tl.float64), 0)
    from_start = tl.exp(total.to(tl.float32))
    tl.store(p_from_start + o_row, from_start)
    tl.store(p_to_end + o_row, tl.exp((last - total).to(tl.float32)))
    products = tl.zeros((CHUNK, CHUNK), tl.float32)
    mix = tl.zeros((CHUNK, CHUNK), tl.float32)
    for piece in range(0, DK // PK):
        k = tl.load(p_k + o_key + piece * PK, mask=live[:, None], other=0.0)
        q = tl.load(p_q + o_key + piece * PK, mask=live[:, None], other=0.0)
        if HALVES:
            _store_halves(p_k_halves + o_key + piece * PK, plane, k, leads[:, None], HALVES)
            _store_halves(p_q_halves + o_key + piece * PK, plane, q, leads[:, None], HALVES)
        products = tl.dot(k, tl.trans(k), products, input_precision=PRECISION)
        mix = tl.dot(q, tl.trans(k), mix, input_precision=PRECISION)
    decay = _decay(total, row, column)
    everywhere = (row >= 0)[:, None]
    p_mix_row = p_mix + o_row[:, None] * CHUNK + column[None, :]
    _store_halves(p_mix_row, stored * CHUNK, decay * mix, everywhere, HALVES)
    system = tl.where(row[:, None] > column[None, :], beta[:, None] * decay * products, 0.0)
    inverse = _unit_lower_inverse(system, row, column, CHUNK, PRECISION)
    for piece in range(0, DK // PK):
        k = tl.load(p_k + o_key + piece * PK, mask=live[:, None], other=0.0) * (beta * from_start)[:, None]
        p_piece = p_seen + o_row[:, None] * DK + piece * PK + tl.arange(0, PK)[None, :]
        # Negated, since the walk subtracts it.
        _store_halves(p_piece, stored * DK, -tl.dot(inverse, k, input_precision=PRECISION), everywhere, HALVES)
    for piece in range(0, DV // PV):
        v = tl.load(p_v + o_value + piece * PV, mask=live[:, None], other=0.0) * beta[:, None]
        o_column = (o_chunk * DV + piece * PV + tl.arange(0, PV)) * CHUNK
        tl.store(p_writes + o_column[None, :] + row[:, None], tl.dot(inverse, v, input_precision=PRECISION))


@triton.jit
def _walk_chunk(
    state, c, h, value, p_q, p_k, p_from_start, p_to_end, p_mix, p_seen, p_writes, p_out, tokens, plane, stored,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, PV: tl.constexpr, CHUNK: tl.constexpr,
    HALVES: tl.constexpr,
):  # fmt: skip
    """Stores the outputs of chunk c and returns the state after it, [PV, DK]."""
    row = tl.arange(0, CHUNK)
    key = tl.arange(0, DK)
    token = (c * CHUNK + row).to(tl.int64)
    live = token < tokens
    o_key = (token * HK + h // (HV // HK))[:, None] * DK + key[None, :]
    o_chunk = (c * HV + h).to(tl.int64)
    o_row = o_chunk * CHUNK + row
    everywhere = (row >= 0)[:, None]
    seen = _load_halves(p_seen + o_row[:, None] * DK + key[None, :], stored * DK, everywhere, HALVES)
    q = _load_halves(p_q + o_key, plane, live[:, None], HALVES)
    k = _load_halves(p_k + o_key, plane, live[:, None], HALVES)
    mix = _load_halves(p_mix + o_row[:, None] * CHUNK + row[None, :], stored * CHUNK, everywhere, HALVES)
    writes = tl.load(p_writes + (o_chunk * DV + value)[:, None] * CHUNK + row[None, :])
    from_start = tl.load(p_from_start + o_row)[None, :]
    to_end = tl.load(p_to_end + o_row)[None, :]
    whole = tl.load(p_from_start + o_chunk * CHUNK + CHUNK - 1)
    before = _halves(state, HALVES)
    writes = _product(before, (tl.trans(seen[0]), tl.trans(seen[1])), writes, HALVES)
    o = tl.zeros((PV, CHUNK), tl.float32)
    o = _product(before, (tl.trans(q[0]), tl.trans(q[1])), o, HALVES) * from_start
    o = _product(_halves(writes, HALVES), (tl.trans(mix[0]), tl.trans(mix[1])), o, HALVES)
    tl.store(p_out + ((token * HV + h) * DV)[None, :] + value[:, None], o, mask=live[None, :])
    return _product(_halves(writes * to_end, HALVES), k, state * whole, HALVES)


@triton.jit(do_not_specialize=["tokens", "chunks"])
def walk_kernel(
    p_q, p_k, p_from_start, p_to_end, p_mix, p_seen, p_writes, p_state, p_new_state, p_out, tokens, chunks,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, PV: tl.constexpr, CHUNK: tl.constexpr,
    HALVES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The state along the chunks: program (h, b) for PV value columns of value head h.

    Everything is transposed, values over keys or tokens: what a product gives lies in registers as the left operand of
    the next wants it, so the state and the writes never leave them; the right operands come from memory, stages ahead.
    """
    h = tl.program_id(0)
    value = tl.program_id(1) * PV + tl.arange(0, PV)
    plane = tokens.to(tl.int64) * (HK * DK)
    stored = chunks.to(tl.int64) * (HV * CHUNK)
    o_state = h * DK * DV + tl.arange(0, DK)[None, :] * DV + value[:, None]
    state = tl.load(p_state + o_state)
    if _INTERPRETED:  # a second form, since the compiler has loads on their way ahead in no other loop than a range
        c = 0
        while c < chunks:
            state = _walk_chunk(
                state, c, h, value, p_q, p_k, p_from_start, p_to_end, p_mix, p_seen, p_writes, p_out, tokens, plane,
                stored, HK, HV, DK, DV, PV, CHUNK, HALVES,
            )  # fmt: skip
            c += 1
    else:
        for c in tl.range(0, chunks, num_stages=STAGES):
            state = _walk_chunk(
                state, c, h, value, p_q, p_k, p_from_start, p_to_end, p_mix, p_seen, p_writes, p_out, tokens, plane,
                stored, HK, HV, DK, DV, PV, CHUNK, HALVES,
            )  # fmt: skip
    tl.store(p_new_state + o_state, state)


@triton.jit
def narrowed(x, PACKED: tl.constexpr):
    """float32 as fp16 that ends at its largest number instead of at infinity; NaN stays.

    PACKED: by pairs, in two instructions of NVIDIA's from compute capability 8.6 on.
    """
    if PACKED:
        return tl.inline_asm_elementwise(
            "{ .reg .b32 p, m; cvt.rn.f16x2.f32 p, $2, $1; mov.b32 m, 0x7bff7bff;"
            " min.NaN.xorsign.abs.f16x2 $0, p, m; }",
            "=r,f,f", [x], dtype=tl.float16, is_pure=True, pack=2,
        )  # fmt: skip
    else:
        return tl.clamp(x, -65504.0, 65504.0, propagate_nan=tl.PropagateNan.ALL).to(tl.float16)


@triton.jit
def _prompt_columns(p_x, x_stride, p_window, token, o_channel, m_live, C: tl.constexpr):
    """The columns of the tokens and of the three before each, oldest first: four [ROWS, D]."""
    columns = ()
    for back in tl.static_range(3, -1, -1):
        at = token - back
        p_row = tl.where(at >= 0, p_x + at * x_stride, p_window + (3 + at) * C)[:, None]
        columns = columns + (tl.load(p_row + o_channel, mask=m_live[:, None], other=0.0),)
    return columns


@triton.jit
def _prompt_taps(p_taps, o_channel, C: tl.constexpr):
    taps = ()
    for tap in tl.static_range(4):
        taps = taps + (tl.load(p_taps + tap * C + o_channel),)
    return taps


@triton.jit(do_not_specialize=["tokens"])
def inputs_kernel(
    p_x, x_stride, p_b, b_stride, p_a, a_stride, p_taps, p_rate, p_dt_bias, p_window, p_q, p_k, p_v, p_g, p_beta,
    tokens, HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Convolution, norms and gates: program (i, part) for ROWS tokens of a q head, a k head or a value head."""
    C: tl.constexpr = 2 * HK * DK + HV * DV
    part = tl.program_id(1)
    token = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    live = token < tokens
    if part < 2 * HK:
        o_key = part * DK + tl.arange(0, DK)[None, :]
        columns = _prompt_columns(p_x, x_stride, p_window, token, o_key, live, C)
        y = l2_normalised(convolve(columns, _prompt_taps(p_taps, o_key, C)))
        if part < HK:
            tl.store(p_q + (token * HK * DK)[:, None] + o_key, y * (DK**-0.5), mask=live[:, None])
        else:
            tl.store(p_k + (token * HK * DK)[:, None] + o_key - HK * DK, y, mask=live[:, None])
    else:
        h = part - 2 * HK
        o_value = h * DV + tl.arange(0, DV)[None, :]
        o_channel = 2 * HK * DK + o_value
        value_columns = _prompt_columns(p_x, x_stride, p_window, token, o_channel, live, C)
        v = convolve(value_columns, _prompt_taps(p_taps, o_channel, C))
        if p_v.dtype.element_ty == tl.float16:
            v = narrowed(v, False)
        tl.store(p_v + (token * HV * DV)[:, None] + o_value, v, mask=live[:, None])
        a = tl.load(p_a + token * a_stride + h, mask=live, other=0.0)
        b = tl.load(p_b + token * b_stride + h, mask=live, other=0.0)
        g, beta = gates(a, b, tl.load(p_rate + h), tl.load(p_dt_bias + h))
        tl.store(p_g + token * HV + h, g, mask=live)
        tl.store(p_beta + token * HV + h, beta, mask=live)


@triton.jit(do_not_specialize=["tokens"])
def gated_norm_kernel(
    p_o, p_z, z_stride, p_norm, eps, p_out, tokens, HV: tl.constexpr, DV: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """Program (i, h) for ROWS tokens of value head h."""
    h = tl.program_id(1)
    token = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    live = (token < tokens)[:, None]
    o_value = h * DV + tl.arange(0, DV)[None, :]
    o = tl.load(p_o + (token * HV * DV)[:, None] + o_value, mask=live, other=0.0).to(tl.float32)
    z = tl.load(p_z + (token * z_stride)[:, None] + o_value, mask=live, other=0.0)
    mean = tl.sum(o * o, 1) * (1.0 / DV)
    normalised = (o * tl.rsqrt(mean + eps)[:, None]).to(z.dtype).to(tl.float32)
    y = normalised * tl.load(p_norm + tl.arange(0, DV))[None, :] * silu(z.to(tl.float32))
    tl.store(p_out + (token * HV * DV)[:, None] + o_value, y.to(z.dtype), mask=live)
