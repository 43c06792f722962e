"""The Triton kernel of kernels/delta_decode.py, which says what it computes and how. Imported only with Triton.

PARTS blocks a value head, each with DP = DV / PARTS of its columns. A block's state [DK, DP] stays in registers: DK / 8
tensors of [8, DP / VC, VC], in which a thread holds VC consecutive columns of one key row, eight neighbouring lanes
hold eight groups of key rows, and a warp's lanes and the warps lie along the columns. A sum over keys is then a chain
of fused multiply-adds in a thread and three shuffles. The eight lanes have a second use: at the end lane r of each
group holds slot r's outputs, which are stored for the block of the head that comes last: it norms all slots at once.
Contraction is off and every fused multiply-add is written as one, so that a token has the same bits whether it is
replayed, in the chain or a leaf.
"""

import triton
import triton.language as tl

from ._dependent_launch import gdc_launch_dependents, gdc_wait

LANES: tl.constexpr = tl.constexpr(8)  # that share a column's key rows; as many as there are slots


@triton.jit
def _exp_of_negative(x):
    """exp(x) for x <= 0 to 2^-23: the hardware's exponential is off by 2^-22, and always to one side at some x."""
    n = tl.floor(x * 1.4426950408889634 + 0.5)
    r = tl.fma(n, -0.693359375, x)  # ln 2 in two parts, the first exact in a product with n
    r = tl.fma(n, 2.1219444005469057e-4, r)
    y = tl.fma(r, 1 / 5040, 1 / 720)
    y = tl.fma(y, r, 1 / 120)
    y = tl.fma(y, r, 1 / 24)
    y = tl.fma(y, r, 1 / 6)
    y = tl.fma(y, r, 0.5)
    y = tl.fma(y * r, r, r) + 1.0
    power = ((tl.maximum(n, -126.0).to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    return tl.where(x < -87.0, 0.0, y * power)


@triton.jit
def _softplus(x):
    e = _exp_of_negative(-tl.abs(x))
    u = 1.0 + e
    # log(1 + e) keeps the digits of a small e when divided by what u really exceeds 1 by.
    log1p = tl.where(u == 1.0, e, tl.log(u) * tl.div_rn(e, tl.where(u == 1.0, 1.0, u - 1.0)))
    return tl.where(x > 0, x, 0.0) + log1p


@triton.jit
def _sigmoid(x):
    e = _exp_of_negative(-tl.abs(x))
    return tl.div_rn(tl.where(x >= 0, 1.0, e), 1.0 + e)


@triton.jit
def silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def _committed_row(p_columns, p_window, p_control, m, pending, C: tl.constexpr):
    """Pointers to the m-th last committed column (m >= 1): a pending slot's, or one of the window before those."""
    slot = tl.load(p_control + 4 + pending - m, mask=m <= pending, other=0)
    return tl.where(m <= pending, p_columns + slot * C, p_window + (3 - m + pending) * C)


@triton.jit
def _earlier_row(back, p_x, x_stride, p_columns, p_window, p_control, pending, C: tl.constexpr):
    """Pointers [8, 1] to the columns that the control names `back` [8] for each row."""
    committed = _committed_row(p_columns, p_window, p_control, tl.maximum(-back, 1), pending, C)
    return tl.where(back >= 0, p_x + back * x_stride, committed)[:, None]


@triton.jit
def _columns(p_own, p_1, p_2, p_3, o_channel, m_live):
    """The rows' own columns and the three before each, oldest first, as they are stored: four [8, D]."""
    c0 = tl.load(p_3 + o_channel, mask=m_live, other=0.0)
    c1 = tl.load(p_2 + o_channel, mask=m_live, other=0.0)
    c2 = tl.load(p_1 + o_channel, mask=m_live, other=0.0)
    return c0, c1, c2, tl.load(p_own + o_channel, mask=m_live, other=0.0)


@triton.jit
def convolve(columns, taps):
    """The convolution with SiLU of each row, [8, D] float32; sums in tap order."""
    total = columns[0].to(tl.float32) * taps[0]
    total = tl.fma(columns[1].to(tl.float32), taps[1], total)
    total = tl.fma(columns[2].to(tl.float32), taps[2], total)
    return silu(tl.fma(columns[3].to(tl.float32), taps[3], total))


@triton.jit
def _taps(p_taps, o_channel, C: tl.constexpr):
    """The four taps of each channel, oldest first."""
    t0 = tl.load(p_taps + o_channel)
    t1 = tl.load(p_taps + C + o_channel)
    t2 = tl.load(p_taps + 2 * C + o_channel)
    return t0, t1, t2, tl.load(p_taps + 3 * C + o_channel)


@triton.jit
def l2_normalised(x):
    return x * tl.rsqrt(tl.sum(x * x, 1) + 1e-6)[:, None]


@triton.jit
def _load_over_keys(p_vector, KR: tl.constexpr, G: tl.constexpr):
    """A vector over keys as KR / 4 tensors [8, G, 4] (KR = 2: one of [8, G, 2]), each lane its own key rows."""
    VK: tl.constexpr = 4 if KR >= 4 else KR
    column = tl.broadcast_to(tl.arange(0, LANES)[:, None, None] * VK + tl.arange(0, VK)[None, None, :], (LANES, G, VK))
    parts = ()
    for j in tl.static_range(KR // VK):
        parts = parts + (tl.load(p_vector + j * LANES * VK + column),)
    return parts


@triton.jit
def _over_keys(parts, KR: tl.constexpr, G: tl.constexpr):
    """The same as KR tensors [8, G, 1], one for each key row of `_key_row`: a renaming of registers."""
    result = ()
    if KR >= 4:
        for j in tl.static_range(KR // 4):
            even, odd = tl.split(parts[j].reshape(LANES, G, 2, 2))
            a, c = tl.split(even)
            b, d = tl.split(odd)
            result = result + (a[:, :, None], b[:, :, None], c[:, :, None], d[:, :, None])
    else:
        a, b = tl.split(parts[0])
        result = (a[:, :, None], b[:, :, None])
    return result


@triton.jit
def _key_row(i: tl.constexpr, KR: tl.constexpr):
    """The key row [8, 1, 1] that the i-th tensor of the state holds in each lane."""
    VK: tl.constexpr = 4 if KR >= 4 else KR
    return tl.arange(0, LANES)[:, None, None] * VK + (i + i // VK * VK * (LANES - 1))


@triton.jit
def _sum_over_keys(state, parts, KR: tl.constexpr, G: tl.constexpr):
    """x^T S of a vector x over keys, in every lane: [8, G, VC]."""
    x = _over_keys(parts, KR, G)
    total = state[0] * x[0]
    for i in tl.static_range(1, KR):
        total = tl.fma(state[i], tl.broadcast_to(x[i], state[i].shape), total)
    return tl.broadcast_to(tl.sum(total, 0, keep_dims=True), total.shape)


@triton.jit
def _write(predicted, v, decay, beta):
    """What the rule writes along k: beta (v - k^T (decay S)), [8, G, VC]."""
    return (v - predicted * decay) * beta


@triton.jit
def _step(state, parts, write, decay, KR: tl.constexpr, G: tl.constexpr):
    """The state after a token: decay S + k write^T."""
    k = _over_keys(parts, KR, G)
    result = ()
    for i in tl.static_range(KR):
        result = result + (tl.fma(tl.broadcast_to(k[i], write.shape), write, state[i] * decay),)
    return result


@triton.jit
def _read(seen, write, decay, overlap):
    """q^T (decay S + k write^T), from seen = q^T S and overlap = q^T k."""
    return tl.fma(seen, decay, write * overlap)


@triton.jit
def _load_pending(
    p_control, pending, p_keys, p_values, p_gates, h, hk, first,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """k [8, DK], v [8, DP] from column `first` on, g and beta [8] of the pending slots, in their order."""
    live = tl.arange(0, 8) < pending
    slot = tl.load(p_control + 4 + tl.arange(0, 8), mask=live, other=0)
    p_k = p_keys + ((slot * HK + hk) * DK)[:, None] + tl.arange(0, DK)[None, :]
    p_v = p_values + ((slot * HV + h) * DV + first)[:, None] + tl.arange(0, DP)[None, :]
    k = tl.load(p_k, mask=live[:, None], other=0.0)
    v = tl.load(p_v, mask=live[:, None], other=0.0)
    g = tl.load(p_gates + slot * HV + h, mask=live, other=0.0)
    return k, v, g, tl.load(p_gates + (8 + slot) * HV + h, mask=live, other=0.0)


@triton.jit
def _store_steps(p_steps, step, m_live, k, v, g, beta, DK: tl.constexpr, DP: tl.constexpr):
    """Puts rows [8, D] where the loop finds them by their turn `step` [8], whatever their slots are."""
    p_record = p_steps + step * (2 * DK + DP + 4)
    tl.store(p_record[:, None] + tl.arange(0, DK)[None, :], k, mask=m_live[:, None])
    tl.store(p_record[:, None] + 2 * DK + tl.arange(0, DP)[None, :], v, mask=m_live[:, None])
    tl.store(p_record + 2 * DK + DP, _exp_of_negative(g), mask=m_live)
    tl.store(p_record + 2 * DK + DP + 1, beta, mask=m_live)


@triton.jit
def _store_queries(p_steps, step, m_live, q, k, DK: tl.constexpr, DP: tl.constexpr):
    """q of rows [8, DK], and its product with k: the part of the output that the row's own write gives."""
    p_record = p_steps + step * (2 * DK + DP + 4)
    tl.store(p_record[:, None] + DK + tl.arange(0, DK)[None, :], q, mask=m_live[:, None])
    tl.store(p_record + 2 * DK + DP + 2, tl.sum(q * k, 1), mask=m_live)


@triton.jit
def _fetch_step(p_record, o_value, KR: tl.constexpr, G: tl.constexpr, VC: tl.constexpr):
    """k and q, v [8, G, VC], and decay, beta and q.k of a step; those of q mean nothing in a replayed one."""
    k = _load_over_keys(p_record, KR, G)
    q = _load_over_keys(p_record + KR * LANES, KR, G)
    v = tl.load(p_record + 2 * KR * LANES + o_value)
    p_scalars = p_record + 2 * KR * LANES + VC * G
    return k, q, v, tl.load(p_scalars), tl.load(p_scalars + 1), tl.load(p_scalars + 2)


@triton.jit
def _load_window(p_window, p_columns, p_control, pending, o_channel, m_ours, C: tl.constexpr):
    """The last three committed columns, oldest first, and a fourth row for a power of two: [4, D]."""
    m = 3 - tl.arange(0, 4)
    p_row = _committed_row(p_columns, p_window, p_control, tl.maximum(m, 1), pending, C)[:, None]
    return tl.load(p_row + o_channel, mask=(m > 0)[:, None] & m_ours, other=0.0)


@triton.jit
def _store_window(p_window, column, o_channel, m_ours, C: tl.constexpr):
    o_row = tl.arange(0, 4)[:, None]
    tl.store(p_window + o_row * C + o_channel, column, mask=(o_row < 3) & m_ours)


@triton.jit
def _keep_rows(p_columns, q, k, v, o_q, o_k, o_v, fills, m_live, leads, C: tl.constexpr):
    """The rows' columns [8, D] as they came, for the window and for later rows."""
    p_row = p_columns + ((fills * 8 + tl.arange(0, 8)) * C)[:, None]
    tl.store(p_row + o_q, q, mask=m_live & leads)
    tl.store(p_row + o_k, k, mask=m_live & leads)
    tl.store(p_row + o_v, v, mask=m_live)


@triton.jit
def gates(a, b, rate, dt_bias):
    """g = rate softplus(a + dt_bias) and beta = sigmoid(b), rounded to b's dtype; float32."""
    g = rate * _softplus(a.to(tl.float32) + dt_bias)
    return g, _sigmoid(b.to(tl.float32)).to(b.dtype).to(tl.float32)


@triton.jit
def _ask_l2(p_line):
    """Asks the L2 cache for the lines at these pointers; nothing is read, so their writer need not have finished."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [p_line], dtype=tl.int32, is_pure=False, pack=1
    )  # fmt: skip


@triton.jit
def _ask_for_part(
    p_recurrent, p_windows, p_columns, p_keys, p_values, h, hk, first,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """Asks for the part's state and, as the control may not be read yet, for both buffers' rows of it."""
    C: tl.constexpr = 2 * HK * DK + HV * DV
    o_line = tl.arange(0, (DP + 31) // 32)[None, :] * 32  # 128 bytes
    _ask_l2(p_recurrent + (h * DK + tl.arange(0, DK))[:, None] * DV + first + o_line)
    row = tl.arange(0, 16)[:, None]
    o_key = tl.arange(0, (DK + 63) // 64)[None, :] * 64
    o_value = 2 * HK * DK + h * DV + first + tl.arange(0, (DP + 63) // 64)[None, :] * 64
    p_column = p_columns + row * C
    p_window = p_windows + tl.minimum(tl.arange(0, 8), 5)[:, None] * C
    for head in tl.static_range(2):
        _ask_l2(p_column + (head * HK + hk) * DK + o_key)
        _ask_l2(p_window + (head * HK + hk) * DK + o_key)
    _ask_l2(p_column + o_value)
    _ask_l2(p_window + o_value)
    _ask_l2(p_keys + (row * HK + hk) * DK + tl.arange(0, (DK + 31) // 32)[None, :] * 32)
    _ask_l2(p_values + (row * HV + h) * DV + first + o_line)


@triton.jit
def _norm_when_last(
    p_outputs, p_arrivals, p_out, z, norm, eps, HV: tl.constexpr, DV: tl.constexpr, PARTS: tl.constexpr
):  # fmt: skip
    """The gated norm of a head's outputs [8, DV], by whichever of its blocks has stored its part last."""
    tl.debug_barrier()  # all of the block's outputs are stored before it is counted
    # The count is never set back: PARTS is a power of two, so its low bits alone say who comes last.
    before = tl.atomic_add(p_arrivals, 1, sem="acq_rel", scope="gpu")
    if (before & (PARTS - 1)) == PARTS - 1:
        row = tl.arange(0, 8)[:, None]
        column = tl.arange(0, DV)[None, :]
        o = tl.load(p_outputs + row * DV + column, cache_modifier=".cg")  # the first level may hold another call's
        mean = tl.sum(o * o, 1) * (1.0 / DV)
        normalised = (o * tl.rsqrt(mean + eps)[:, None]).to(z.dtype).to(tl.float32)
        tl.store(p_out + row * (HV * DV) + column, (normalised * norm * silu(z.to(tl.float32))).to(z.dtype))


@triton.jit
def _keep_replay(
    p_keys, p_values, p_gates, k, v, g, beta, o_q, o_v, fills, h, part, m_live, leads,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
):  # fmt: skip
    """What the next pass needs of this one's rows to replay them, beside their columns."""
    row = tl.arange(0, 8)
    live = m_live[:, None]
    kept = (fills * 8 + row)[:, None]
    tl.store(p_keys + kept * HK * DK + o_q, k, mask=live & leads)
    tl.store(p_values + kept * HV * DV + o_v - 2 * HK * DK, v, mask=live)
    m_gates = m_live & (part + row * 0 == 0)
    tl.store(p_gates + (fills * 16 + row) * HV + h, g, mask=m_gates)
    tl.store(p_gates + (fills * 16 + 8 + row) * HV + h, beta, mask=m_gates)


@triton.jit
def _load_state(p_state, o_value, KR: tl.constexpr, DV: tl.constexpr):
    state = ()
    for i in tl.static_range(KR):
        state = state + (tl.load(p_state + _key_row(i, KR) * DV + o_value),)
    return state


@triton.jit
def _store_state(p_state, state, o_value, KR: tl.constexpr, DV: tl.constexpr):
    for i in tl.static_range(KR):
        tl.store(p_state + _key_row(i, KR) * DV + o_value, state[i])


@triton.jit
def delta_decode_kernel(
    p_x, x_stride, p_z, z_stride, p_b, b_stride, p_a, a_stride, p_taps, p_rate, p_dt_bias, p_norm, eps,
    p_control, p_recurrent, p_windows, p_columns, p_keys, p_values, p_gates, p_steps, p_out,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, PARTS: tl.constexpr, VC: tl.constexpr,
    DEPENDENT: tl.constexpr, PREFETCH: tl.constexpr,
):  # fmt: skip
    """Shapes as in kernels/delta_decode.py; program h * PARTS + part."""
    KR: tl.constexpr = DK // LANES
    DP: tl.constexpr = DV // PARTS
    G: tl.constexpr = DP // VC
    C: tl.constexpr = 2 * HK * DK + HV * DV
    W: tl.constexpr = 2 * DK + DP + 4
    h = tl.program_id(0) // PARTS
    part = tl.program_id(0) % PARTS
    first = part * DP
    hk = h // (HV // HK)
    # [1, 1], since Triton 3.9's interpreter makes int32 of a scalar bool that is spread over a tensor.
    none = tl.zeros((1, 1), tl.int32)
    leads = (h % (HV // HK)) * PARTS + part + none == 0  # the first of a key head's blocks keeps what they share
    lane = tl.arange(0, LANES)[:, None, None]
    row = tl.arange(0, 8)
    o_value = tl.broadcast_to(tl.arange(0, G)[None, :, None] * VC + tl.arange(0, VC)[None, None, :], (LANES, G, VC))
    o_q = hk * DK + tl.arange(0, DK)[None, :]
    o_k = HK * DK + o_q
    o_v = 2 * HK * DK + h * DV + first + tl.arange(0, DP)[None, :]
    o_head = tl.arange(0, DV)[None, :]
    taps_q = _taps(p_taps, tl.broadcast_to(o_q, (8, DK)), C)
    taps_k = _taps(p_taps, tl.broadcast_to(o_k, (8, DK)), C)
    taps_v = _taps(p_taps, tl.broadcast_to(o_v, (8, DP)), C)
    rate = tl.load(p_rate + h)
    dt_bias = tl.load(p_dt_bias + h)
    norm = tl.load(p_norm + tl.broadcast_to(o_head, (8, DV)))
    if DEPENDENT:
        gdc_launch_dependents()
        if PREFETCH:
            _ask_for_part(p_recurrent, p_windows, p_columns, p_keys, p_values, h, hk, first, HK, HV, DK, DV, DP)
        gdc_wait()

    fills = tl.load(p_control)
    pending = tl.load(p_control + 1)
    rows = tl.load(p_control + 2)
    turn = tl.load(p_control + 16 + row)  # of dead slots as well, so that no load waits for another's count
    back_1 = tl.load(p_control + 24 + row)
    back_2 = tl.load(p_control + 32 + row)
    back_3 = tl.load(p_control + 40 + row)
    p_state = p_recurrent + h * DK * DV + first
    state = _load_state(p_state, o_value, KR, DV)
    tl.debug_barrier()  # here and below: the compiler would move loads down to their use, and wait for each in turn

    m_live = row < rows
    live = m_live[:, None]
    p_old = p_columns + (1 - fills) * 8 * C
    p_window = p_windows + (1 - fills) * 3 * C
    p_own = (p_x + row * x_stride)[:, None]
    p_1 = _earlier_row(back_1, p_x, x_stride, p_old, p_window, p_control, pending, C)
    p_2 = _earlier_row(back_2, p_x, x_stride, p_old, p_window, p_control, pending, C)
    p_3 = _earlier_row(back_3, p_x, x_stride, p_old, p_window, p_control, pending, C)
    columns_q = _columns(p_own, p_1, p_2, p_3, o_q, live)
    columns_k = _columns(p_own, p_1, p_2, p_3, o_k, live)
    columns_v = _columns(p_own, p_1, p_2, p_3, o_v, live)
    past_k, past_v, past_g, past_beta = _load_pending(
        p_control, pending, p_keys + (1 - fills) * 8 * HK * DK, p_values + (1 - fills) * 8 * HV * DV,
        p_gates + (1 - fills) * 16 * HV, h, hk, first, HK, HV, DK, DV, DP,
    )  # fmt: skip
    window_q = _load_window(p_window, p_old, p_control, pending, o_q, leads, C)
    window_k = _load_window(p_window, p_old, p_control, pending, o_k, leads, C)
    window_v = _load_window(p_window, p_old, p_control, pending, o_v, none == 0, C)
    a = tl.load(p_a + row * a_stride + h, mask=m_live, other=0.0)
    b = tl.load(p_b + row * b_stride + h, mask=m_live, other=0.0)
    z = tl.load(p_z + (row * z_stride + h * DV)[:, None] + o_head, mask=live, other=0.0)
    tl.debug_barrier()

    q = l2_normalised(convolve(columns_q, taps_q)) * (DK**-0.5)
    k = l2_normalised(convolve(columns_k, taps_k))
    v = convolve(columns_v, taps_v)
    g, beta = gates(a, b, rate, dt_bias)
    turn += pending
    p_outputs = p_steps + HV * PARTS * 17 * W + h * 8 * DV
    p_arrivals = (p_steps + HV * (PARTS * 17 * W + 8 * DV) + h).to(tl.pointer_type(tl.int32), bitcast=True)
    p_steps += tl.program_id(0) * 17 * W
    _store_steps(p_steps, row, row < pending, past_k, past_v, past_g, past_beta, DK, DP)
    _store_steps(p_steps, turn, m_live, k, v, g, beta, DK, DP)
    _store_queries(p_steps, turn, m_live, q, k, DK, DP)
    tl.debug_barrier()  # a step is read by other threads than those that wrote it
    now = _fetch_step(p_steps, o_value, KR, G, VC)  # always a step ahead of the computation

    _keep_rows(p_columns, columns_q[3], columns_k[3], columns_v[3], o_q, o_k, o_v, fills, live, leads, C)
    _keep_replay(p_keys, p_values, p_gates, k, v, g, beta, o_q, o_v, fills, h, part, m_live, leads, HK, HV, DK, DV)
    p_new = p_windows + fills * 3 * C
    _store_window(p_new, window_q, o_q, leads, C)
    _store_window(p_new, window_k, o_k, leads, C)
    _store_window(p_new, window_v, o_v, none == 0, C)

    if pending > 0:
        e = 0  # counted by hand: the interpreter takes no bound that is loaded
        while e < pending:
            ahead = _fetch_step(p_steps + (e + 1) * W, o_value, KR, G, VC)
            key, query, value, decay, strength, overlap = now
            write = _write(_sum_over_keys(state, key, KR, G), value, decay, strength)
            state = _step(state, key, write, decay, KR, G)
            now = ahead
            e += 1
        _store_state(p_state, state, o_value, KR, DV)

    o = tl.zeros((LANES, G, VC), tl.float32)
    e = 0
    while e < rows:
        entry = tl.load(p_control + 48 + e)  # the slot, and 16 where it has children
        ahead = _fetch_step(p_steps + (pending + e + 1) * W, o_value, KR, G, VC)
        key, query, value, decay, strength, overlap = now
        write = _write(_sum_over_keys(state, key, KR, G), value, decay, strength)
        seen = _sum_over_keys(state, query, KR, G)
        o = tl.where(lane == (entry & 15), _read(seen, write, decay, overlap), o)
        if entry >= 16:
            state = _step(state, key, write, decay, KR, G)
        now = ahead
        e += 1

    tl.store(p_outputs + lane * DV + first + o_value, o)
    _norm_when_last(p_outputs, p_arrivals, p_out + h * DV, z, norm, eps, HV, DV, PARTS)
