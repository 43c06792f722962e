"""The Triton kernels of kernels/delta_prefill.py, which says what they compute and how. Imported only with Triton.

Products of float32 run on matrix units in three terms of ten mantissa bits each where PRECISION is "tf32x3"; both
operands are then held twice in registers, so none is larger than 32 x 32 a warp and long sums go piece by piece.
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


@triton.jit(do_not_specialize=["tokens"])
def chunk_kernel(
    p_q, p_k, p_v, p_g, p_beta, p_from_start, p_to_end, p_mix, p_seen, p_writes, tokens,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, PK: tl.constexpr, PV: tl.constexpr,
    CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What needs no state: program (c, h) for chunk c of value head h."""
    c = tl.program_id(0)
    h = tl.program_id(1)
    row = tl.arange(0, CHUNK)
    column = tl.arange(0, CHUNK)
    token = (c * CHUNK + row).to(tl.int64)
    live = token < tokens
    # Dead rows have k = v = beta = g = 0: they write nothing and let everything pass.
    g = tl.load(p_g + token * HV + h, mask=live, other=0.0)
    beta = tl.load(p_beta + token * HV + h, mask=live, other=0.0)
    o_key = (token * HK + h // (HV // HK))[:, None] * DK + tl.arange(0, PK)[None, :]
    o_value = (token * HV + h)[:, None] * DV + tl.arange(0, PV)[None, :]
    o_row = (c.to(tl.int64) * HV + h) * CHUNK + row  # of the chunk's rows in what is stored
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
        products = tl.dot(k, tl.trans(k), products, input_precision=PRECISION)
        mix = tl.dot(q, tl.trans(k), mix, input_precision=PRECISION)
    decay = _decay(total, row, column)
    tl.store(p_mix + o_row[:, None] * CHUNK + column[None, :], decay * mix)
    system = tl.where(row[:, None] > column[None, :], beta[:, None] * decay * products, 0.0)
    inverse = _unit_lower_inverse(system, row, column, CHUNK, PRECISION)
    for piece in range(0, DK // PK):
        k = tl.load(p_k + o_key + piece * PK, mask=live[:, None], other=0.0) * (beta * from_start)[:, None]
        p_piece = p_seen + o_row[:, None] * DK + piece * PK + tl.arange(0, PK)[None, :]
        tl.store(p_piece, tl.dot(inverse, k, input_precision=PRECISION))
    for piece in range(0, DV // PV):
        v = tl.load(p_v + o_value + piece * PV, mask=live[:, None], other=0.0) * beta[:, None]
        p_piece = p_writes + o_row[:, None] * DV + piece * PV + tl.arange(0, PV)[None, :]
        tl.store(p_piece, tl.dot(inverse, v, input_precision=PRECISION))


@triton.jit(do_not_specialize=["tokens", "chunks"])
def walk_kernel(
    p_q, p_k, p_from_start, p_to_end, p_mix, p_seen, p_writes, p_state, p_new_state, p_out, tokens, chunks,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, PK: tl.constexpr, PV: tl.constexpr,
    CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The state along the chunks: program (h, b) for PV value columns of value head h."""
    h = tl.program_id(0)
    row = tl.arange(0, CHUNK)
    key = tl.arange(0, PK)
    o_value = tl.program_id(1) * PV + tl.arange(0, PV)[None, :]
    o_state = h * DK * DV + key[:, None] * DV + o_value
    state = ()
    for piece in tl.static_range(DK // PK):
        state = state + (tl.load(p_state + o_state + piece * PK * DV),)
    c = 0
    while c < chunks:
        token = (c * CHUNK + row).to(tl.int64)
        live = (token < tokens)[:, None]
        o_key = (token * HK + h // (HV // HK))[:, None] * DK + key[None, :]
        o_row = (c * HV + h) * CHUNK + row
        p_seen_row = p_seen + o_row[:, None] * DK + key[None, :]
        from_start = tl.load(p_from_start + o_row)[:, None]
        to_end = tl.load(p_to_end + o_row)[:, None]
        whole = tl.load(p_from_start + (c * HV + h) * CHUNK + CHUNK - 1)
        mix = tl.load(p_mix + o_row[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :])
        writes = tl.load(p_writes + o_row[:, None] * DV + o_value)
        o = tl.zeros((CHUNK, PV), tl.float32)
        for piece in tl.static_range(DK // PK):
            seen = tl.load(p_seen_row + piece * PK)
            writes = tl.dot(-seen, state[piece], writes, input_precision=PRECISION)
            q = tl.load(p_q + o_key + piece * PK, mask=live, other=0.0) * from_start
            o = tl.dot(q, state[piece], o, input_precision=PRECISION)
        o = tl.dot(mix, writes, o, input_precision=PRECISION)
        tl.store(p_out + (token * HV + h)[:, None] * DV + o_value, o, mask=live)
        after = ()
        for piece in tl.static_range(DK // PK):
            k = tl.load(p_k + o_key + piece * PK, mask=live, other=0.0) * to_end
            decayed = state[piece] * whole
            after = after + (tl.dot(tl.trans(k), writes, decayed, input_precision=PRECISION),)
        state = after
        c += 1
    for piece in tl.static_range(DK // PK):
        tl.store(p_new_state + o_state + piece * PK * DV, state[piece])


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
    o = tl.load(p_o + (token * HV * DV)[:, None] + o_value, mask=live, other=0.0)
    z = tl.load(p_z + (token * z_stride)[:, None] + o_value, mask=live, other=0.0)
    mean = tl.sum(o * o, 1) * (1.0 / DV)
    normalised = (o * tl.rsqrt(mean + eps)[:, None]).to(z.dtype).to(tl.float32)
    y = normalised * tl.load(p_norm + tl.arange(0, DV))[None, :] * silu(z.to(tl.float32))
    tl.store(p_out + (token * HV * DV)[:, None] + o_value, y.to(z.dtype), mask=live)
