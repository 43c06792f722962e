"""Triton kernels of kernels/decode_attention.py, which says what they compute and how. Imported only with Triton."""

import triton
import triton.language as tl

from ._attention_control import DEPTHS, LENGTH, OFFSETS, ROWS
from ._attention_fragments import (
    key_fragments,
    load_key_words,
    load_value_words,
    query_fragments,
    store_sums,
    value_fragments,
)
from ._attention_parts import TILE, exponent, item_at, items_of, part_of, parts_before
from ._dependent_launch import gdc_launch_dependents, gdc_wait
from ._float_products import dot


@triton.jit
def _load_rows(p_numbers, slot, last, T: tl.constexpr, D: tl.constexpr):
    """T slots as stored, [T, D]; zeros from `last` on, whatever lies there."""
    o_t = tl.arange(0, T)[:, None]
    at = o_t * D + tl.arange(0, D)[None, :]
    return tl.load(p_numbers + slot * D + at, mask=o_t < last - slot, other=0)


@triton.jit
def _load_scales(p_scales, slot, last, T: tl.constexpr, INT8: tl.constexpr):
    m_slot = tl.arange(0, T) < last - slot
    if INT8:
        return tl.load(p_scales + slot + tl.arange(0, T), mask=m_slot, other=0.0)
    else:
        return tl.where(m_slot, 1.0, 0.0)


@triton.jit
def _high(x):
    """x cut to the bits that fp16 holds, as float32. By its bits: a compiler may take x.to(fp16).to(float32) for x."""
    return (x.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)


@triton.jit
def _load_keys(p_keys, p_scales, slot, last, T: tl.constexpr, D: tl.constexpr):
    """(keys, scales) of a tile: int32 words in the order of fragments, or rows as stored."""
    INT8: tl.constexpr = p_keys.dtype.element_ty == tl.int8
    scales = _load_scales(p_scales, slot, last, T, INT8)
    if INT8 and D >= 128:
        return load_key_words(p_keys, slot, last, T, D), scales
    else:
        return _load_rows(p_keys, slot, last, T, D), scales


@triton.jit
def _load_values(p_values, p_scales, slot, last, T: tl.constexpr, D: tl.constexpr, BY_WARP: tl.constexpr):
    """(values, the odd slots' values, scales) as `_load_keys`; rows as stored are not split."""
    INT8: tl.constexpr = p_values.dtype.element_ty == tl.int8
    scales = _load_scales(p_scales, slot, last, T, INT8)
    if INT8 and D >= 128:
        even, odd = load_value_words(p_values, slot, last, T, D, BY_WARP)
        return even, odd, scales
    else:
        rows = _load_rows(p_values, slot, last, T, D)
        return rows, rows, scales


@triton.jit
def _attend(
    p_k, p_v, p_ks, p_vs, q_high, q_low, seen, length, t, last, k, ks, v, v_odd, vs, peak, total, acc,
    T: tl.constexpr, D: tl.constexpr, M: tl.constexpr, KIND: tl.constexpr, SPLIT_Q: tl.constexpr,
    PRECISION: tl.constexpr, FAST: tl.constexpr, BY_WARP: tl.constexpr, STRIDE: tl.constexpr,
):  # fmt: skip
    """T slots. Words come by whole tiles, are loaded already, the next ones asked for as soon as registers are free."""
    INT8: tl.constexpr = p_k.dtype.element_ty == tl.int8
    WORDS: tl.constexpr = INT8 and D >= 128
    if not WORDS:
        k, ks = _load_keys(p_k, p_ks, t, last, T, D)
        v, v_odd, vs = _load_values(p_v, p_vs, t, last, T, D, BY_WARP)
    keys = key_fragments(k, T, D, FAST) if WORDS else k.to(KIND)
    s = dot(keys, q_high, tl.zeros((T, M), tl.float32), PRECISION)
    if SPLIT_Q:
        s = dot(keys, q_low, s, PRECISION)
    step = ks * (1.4426950408889634 / D**0.5)
    if WORDS:
        k, ks = _load_keys(p_k, p_ks, t + STRIDE, last, T, D)
    if not INT8:  # noqa: SIM102 (decided when compiled, the other one is not)
        if t + T > length:
            # A draft's value that is no number must not reach the rows that do not see it: 0 * NaN is NaN.
            finite = v.to(tl.float32) * 0.0 == 0.0
            v = tl.where(finite, v, 0.0).to(v.dtype)
            vs = tl.where(tl.min(finite.to(tl.int32), 1) == 0, float("nan"), vs)
    lift, mantissa, inverse = exponent(vs)
    m_seen = (t + tl.arange(0, T))[:, None] < seen[None, :]
    s = tl.where(m_seen, s * step[:, None] + lift[:, None], float("-inf"))
    new_peak = tl.maximum(peak, tl.max(s, 0))
    base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    p = tl.exp2(s - base[None, :])
    shrink = tl.exp2(peak - base)
    halves = (p * inverse[:, None]).reshape(T // 16, 2, 8, M)
    total = total * shrink[None, None, :] + tl.sum(halves, 1)
    p = p * mantissa[:, None]
    if WORDS:
        values = value_fragments(v, v_odd, T, D, FAST, BY_WARP)
        v, v_odd, vs = _load_values(p_v, p_vs, t + STRIDE, last, T, D, BY_WARP)
        if BY_WARP:
            # Each warp multiplies its own channels. Triton takes mma.sync for three axes; with two it takes Hopper's
            # wgmma, for which the weights in shared memory must be fenced, and that fence waits for the loads of the
            # next tile, which have only just been asked for.
            weights = tl.broadcast_to(p.to(KIND)[None, :, :], (4, T, M))
            acc = tl.dot(values, weights, acc * shrink[None, None, :])
        else:
            acc = tl.dot(values, p.to(KIND), acc * shrink[None, :])
    else:
        acc = dot(tl.trans(v.to(KIND)), p.to(KIND), acc * shrink[None, :], PRECISION)
    return k, ks, v, v_odd, vs, new_peak, total, acc


@triton.jit(do_not_specialize=["slots", "places"])
def decode_attention_parts_kernel(
    p_q, p_keys, p_values, p_key_scales, p_value_scales, p_control, p_counter, p_peak, p_total, p_acc, slots, places,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, BLOCK_ROWS: tl.constexpr, M: tl.constexpr, D: tl.constexpr,
    T: tl.constexpr, PARTS: tl.constexpr, KIND: tl.constexpr, SPLIT_Q: tl.constexpr, PRECISION: tl.constexpr,
    FAST: tl.constexpr, BY_WARP: tl.constexpr, INTERPRETED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Blocks take (part, kv head, block of rows).

    KIND is what is multiplied, fp16 for int8 and else fp32; SPLIT_Q: queries as the sum of two of it.
    """
    WORDS: tl.constexpr = p_keys.dtype.element_ty == tl.int8 and D >= 128
    STRIDE: tl.constexpr = PARTS * TILE
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    o_m = tl.arange(0, M)
    o_d = tl.arange(0, D)
    o_slot = tl.arange(0, 8)
    length = tl.load(p_control + LENGTH)
    rows = tl.minimum(tl.load(p_control + ROWS), 8)
    last = tl.max(tl.where(o_slot < rows, length + tl.load(p_control + DEPTHS + o_slot), 0), 0)
    row_blocks, items = items_of(rows, last, KV_HEADS, BLOCK_ROWS, PARTS)
    item = tl.program_id(0)
    blocks = tl.num_programs(0)
    while item < items:
        row_block, kv_head, part = item_at(item, row_blocks, KV_HEADS)
        first_row = row_block * BLOCK_ROWS
        start, tiles = part_of(part, last, PARTS)
        head = kv_head.to(tl.int64) * slots
        p_k = p_keys + head * D
        p_v = p_values + head * D
        p_ks = p_key_scales + head
        p_vs = p_value_scales + head
        k, ks = _load_keys(p_k, p_ks, start, last, T, D)
        v, v_odd, vs = _load_values(p_v, p_vs, start, last, T, D, BY_WARP)
        o_row = first_row + o_m // GROUP
        m_live = (o_m < BLOCK_ROWS * GROUP) & (o_row < rows)
        seen = tl.where(m_live, length + tl.load(p_control + DEPTHS + o_row, mask=m_live, other=0), 0)  # [M]
        p_q_head = p_q + (o_row * KV_HEADS + kv_head) * GROUP * D + o_m % GROUP * D
        q = tl.load(p_q_head[:, None] + o_d[None, :], mask=m_live[:, None], other=0.0)
        next_item = item + blocks
        if items > blocks:  # after the loads were asked for, since the whole block waits for the answer
            next_item = blocks + tl.atomic_add(p_counter, 1, sem="relaxed")
        q_high = (_high(q) if SPLIT_Q else q).to(KIND)
        q_low = (q - _high(q)).to(KIND) if SPLIT_Q else q_high
        q_high = query_fragments(q_high, M, D) if WORDS else tl.trans(q_high)
        q_low = query_fragments(q_low, M, D) if WORDS else tl.trans(q_low)
        peak = tl.full((M,), float("-inf"), tl.float32)
        total = tl.zeros((T // 16, 8, M), tl.float32)
        acc = tl.zeros((4, D // 4, M) if WORDS and BY_WARP else (D, M), tl.float32)
        if INTERPRETED:  # has no range of values from memory
            behind = tiles * 0
            while behind < tiles * TILE:
                t = start + behind + behind // TILE * (STRIDE - TILE)
                k, ks, v, v_odd, vs, peak, total, acc = _attend(
                    p_k, p_v, p_ks, p_vs, q_high, q_low, seen, length, t, last, k, ks, v, v_odd, vs, peak, total, acc,
                    T, D, M, KIND, SPLIT_Q, PRECISION, FAST, BY_WARP, STRIDE,
                )  # fmt: skip
                behind += T
        else:
            for behind in tl.range(0, tiles * TILE, T, num_stages=1):
                t = start + behind + behind // TILE * (STRIDE - TILE)
                k, ks, v, v_odd, vs, peak, total, acc = _attend(
                    p_k, p_v, p_ks, p_vs, q_high, q_low, seen, length, t, last, k, ks, v, v_odd, vs, peak, total, acc,
                    T, D, M, KIND, SPLIT_Q, PRECISION, FAST, BY_WARP, STRIDE,
                )  # fmt: skip
        cell = (kv_head.to(tl.int64) * places + part) * (8 * GROUP) + first_row * GROUP + o_m
        tl.store(p_peak + cell, peak, mask=m_live)
        tl.store(p_total + cell, tl.sum(tl.sum(total, 0), 0), mask=m_live)
        # A tile of which a row sees nothing leaves its sums as they are, but for -0, which becomes 0.
        acc = acc + 0.0
        if WORDS:
            first = (kv_head.to(tl.int64) * places + part) * (8 * GROUP) + first_row * GROUP
            store_sums(p_acc, acc, first, tl.minimum(rows - first_row, BLOCK_ROWS) * GROUP, M, D, BY_WARP)
        else:
            tl.store(p_acc + cell[:, None] * D + o_d[None, :], tl.trans(acc), mask=m_live[:, None])
        item = next_item


@triton.jit
def _channel(o_lying, D: tl.constexpr):
    """The channels whose sums lie at these places of a part that kernels/_attention_ptx.py stored."""
    X: tl.constexpr = D // 128
    warp = o_lying // (32 * X)
    channel = warp * (32 * X) + o_lying // 4 % 8 * (4 * X) + o_lying // 32 % X * 4 + o_lying % 4
    return tl.max_contiguous(tl.multiple_of(channel, 4), 4)


@triton.jit
def _load_chunk(
    p_peak, p_acc, first, part, parts, o_lying, D: tl.constexpr, GROUP: tl.constexpr, PLACES: tl.constexpr,
    TURNS: tl.constexpr,
):  # fmt: skip
    """TURNS times (m [PLACES], a [PLACES, BLOCK_D]) of the parts from `part` on; -inf and 0 from `parts` on."""
    loaded = ()
    for turn in tl.static_range(TURNS):
        o_part = part + turn * PLACES + tl.arange(0, PLACES)
        at = first + o_part * (8 * GROUP)
        peaks = tl.load(p_peak + at, mask=o_part < parts, other=float("-inf"))
        sums = tl.load(p_acc + at[:, None] * D + o_lying[None, :], mask=o_part[:, None] < parts, other=0.0)
        loaded = loaded + ((peaks, sums),)
    return loaded


@triton.jit
def _merged(
    p_q, p_keys, p_values, p_key_scales, p_value_scales, p_peak, p_total, p_acc, p_gate, gate_stride, places, parts,
    own, head, row, o_lying, o_d, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, PARTS: tl.constexpr,
    PLACES: tl.constexpr, TURNS: tl.constexpr, BLOCK_D: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """One row and head from its parts and the key and value of slot `own`: [BLOCK_D] float32."""
    INT8: tl.constexpr = p_keys.dtype.element_ty == tl.int8
    CHUNK: tl.constexpr = PLACES * TURNS
    o_all = tl.arange(0, D)
    o_part = tl.arange(0, triton.next_power_of_2(PARTS))
    first = (head // GROUP).to(tl.int64) * places * (8 * GROUP) + row * GROUP + head % GROUP
    at = first + o_part * (8 * GROUP)
    peaks = tl.load(p_peak + at, mask=o_part < parts, other=float("-inf"))
    totals = tl.load(p_total + at, mask=o_part < parts, other=0.0)
    chunk = _load_chunk(p_peak, p_acc, first, 0, parts, o_lying, D, GROUP, PLACES, TURNS)
    q = tl.load(p_q + (row * KV_HEADS * GROUP + head) * D + o_all).to(tl.float32)
    key = tl.load(p_keys + own * D + o_all).to(tl.float32)
    value = tl.load(p_values + own * D + o_d).to(tl.float32)
    if INT8:
        key_scale = tl.load(p_key_scales + own)
        value_scale = tl.load(p_value_scales + own)
    if GATED:
        gate = tl.load(p_gate + row * gate_stride + (head * 2 + 1) * D + o_d).to(tl.float32)
    peak = tl.max(peaks, 0)
    base = tl.where(peak == float("-inf"), 0.0, peak)
    total = tl.sum(totals * tl.exp2(peaks - base), 0)
    acc = tl.zeros((PLACES, BLOCK_D), tl.float32)
    for turn in tl.static_range(TURNS):
        acc += chunk[turn][1] * tl.exp2(chunk[turn][0] - base)[:, None]
    c = CHUNK
    while c < parts:
        chunk = _load_chunk(p_peak, p_acc, first, c, parts, o_lying, D, GROUP, PLACES, TURNS)
        for turn in tl.static_range(TURNS):
            acc += chunk[turn][1] * tl.exp2(chunk[turn][0] - base)[:, None]
        c += CHUNK
    acc = tl.sum(acc, 0)
    score = tl.sum(q * key, 0) * (1.4426950408889634 / D**0.5)
    lift = 0.0
    if INT8:
        score = score * key_scale
        value = value * value_scale
        lift, _, _ = exponent(value_scale)
    new_peak = tl.maximum(peak, score + lift)
    shrink = tl.exp2(peak - new_peak)
    weight = tl.exp2(score - new_peak)
    o = (acc * shrink + weight * value) / (total * shrink + weight)
    if GATED:
        o = o * (1.0 / (1.0 + tl.exp2(gate * -1.4426950408889634)))
    return o


@triton.jit(do_not_specialize=["gate_stride", "slots", "places"])
def decode_attention_merge_kernel(
    p_q, p_keys, p_values, p_key_scales, p_value_scales, p_control, p_counter, p_peak, p_total, p_acc, p_gate, p_out,
    gate_stride, slots, places, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr,
    PARTS: tl.constexpr, PLACES: tl.constexpr, TURNS: tl.constexpr, BLOCK_D: tl.constexpr, BY_STORES: tl.constexpr,
    GATED: tl.constexpr, EARLY: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Program (head, row, block of channels): parts in position order, the row's own key and value, the gate.

    All the maxima come first, so that sums are only weighted and added, the i-th part to the sum of place i mod PLACES;
    the places add up at the end. BY_STORES: sums lie as the stores of kernels/_attention_ptx.py leave them.

    EARLY, where DEPENDENT: control is read while the kernels before still run and may change it. Only addresses come of
    that before they are waited for, so that all can then be asked for at once; where control is another then, all is
    done again.
    """
    head = tl.program_id(0)
    row = tl.program_id(1)
    o_lying = tl.program_id(2) * BLOCK_D + tl.arange(0, BLOCK_D)
    o_d = _channel(o_lying, D) if BY_STORES else o_lying
    if DEPENDENT:
        gdc_launch_dependents()
        if not EARLY:
            gdc_wait()
    # Past the L1, which would go on holding what is old.
    rows = tl.load(p_control + ROWS, cache_modifier=".cg")
    length = tl.load(p_control + LENGTH, cache_modifier=".cg")
    depth = tl.load(p_control + DEPTHS + row, cache_modifier=".cg")
    offset = tl.load(p_control + OFFSETS + row, cache_modifier=".cg")
    going = row >= 0
    while going:
        parts = tl.minimum(parts_before(length + depth, PARTS), places)
        own = (head // GROUP).to(tl.int64) * slots + tl.minimum(tl.maximum(length + offset, 0), slots - 1)
        if DEPENDENT and EARLY:
            gdc_wait()
        now_rows = tl.load(p_control + ROWS)
        now_length = tl.load(p_control + LENGTH)
        now_depth = tl.load(p_control + DEPTHS + row)
        now_offset = tl.load(p_control + OFFSETS + row)
        if row < rows:
            o = _merged(
                p_q, p_keys, p_values, p_key_scales, p_value_scales, p_peak, p_total, p_acc, p_gate, gate_stride,
                places, parts, own, head, row, o_lying, o_d, KV_HEADS, GROUP, D, PARTS, PLACES, TURNS, BLOCK_D, GATED,
            )  # fmt: skip
        else:
            o = tl.zeros((BLOCK_D,), tl.float32)
        tl.store(p_out + (row * KV_HEADS * GROUP + head) * D + o_d, o.to(p_out.dtype.element_ty))
        if DEPENDENT and EARLY:
            going = (rows != now_rows) | (length != now_length) | (depth != now_depth) | (offset != now_offset)
        else:
            going = row < 0
        rows = now_rows
        length = now_length
        depth = now_depth
        offset = now_offset
    if head + row + tl.program_id(2) == 0:
        tl.store(p_counter, 0)
