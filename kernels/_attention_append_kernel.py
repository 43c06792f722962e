"""The Triton kernel of kernels/attention_append.py, which says what it computes. Imported only with Triton."""

import triton
import triton.language as tl

from ._attention_control import LENGTH, MOVE, OFFSETS, ROWS
from ._dependent_launch import gdc_launch_dependents, gdc_wait


@triton.jit
def _normed_and_rotated(p_x, p_norm, p_cos, p_sin, row, eps, D: tl.constexpr, HALF: tl.constexpr):
    """RMSNorm then rotary of one head of a row: p_x -> [D], rounded to x's dtype after each."""
    dtype: tl.constexpr = p_x.dtype.element_ty
    o_d = tl.arange(0, D)
    o_other = tl.where(o_d < HALF, o_d + HALF, tl.where(o_d < 2 * HALF, o_d - HALF, o_d))
    x = tl.load(p_x + o_d).to(tl.float32)
    other = tl.load(p_x + o_other).to(tl.float32)
    root = tl.rsqrt(tl.sum(x * x, 0) * (1.0 / D) + eps)
    x = (x * root * (1.0 + tl.load(p_norm + o_d))).to(dtype).to(tl.float32)
    other = (other * root * (1.0 + tl.load(p_norm + o_other))).to(dtype).to(tl.float32)
    m_turned = o_d < 2 * HALF
    at = row * HALF + o_d % HALF
    cos = tl.load(p_cos + at, mask=m_turned, other=1.0)
    sin = tl.load(p_sin + at, mask=m_turned, other=0.0)
    return tl.where(o_d < 2 * HALF, x * cos + tl.where(o_d < HALF, -other, other) * sin, x).to(dtype)


@triton.jit
def _stage(x, APART: tl.constexpr, D: tl.constexpr):
    a, b = tl.split(x.reshape(D // (2 * APART), 2, APART).permute(0, 2, 1))
    return tl.join(a + b, a - b).permute(0, 2, 1).reshape(D)


@triton.jit
def _mixed(x, D: tl.constexpr):
    """H x of a row [D] in float32 (kernels/kv_int8.py): additions only, in its order."""
    x = x.to(tl.float32)
    for level in tl.static_range(8):
        if (1 << level) < D:
            x = _stage(x, 1 << level, D)
    return x


@triton.jit
def _store_row(x, p_numbers, p_scales, slot, D: tl.constexpr):
    """A row [D] of one kv head to a slot, quantised as kernels/kv_int8.py says if codes are kept."""
    at = slot * D + tl.arange(0, D)
    if p_numbers.dtype.element_ty == tl.int8:
        x = x.to(tl.float32)
        bits = tl.max(tl.abs(x).to(tl.int32, bitcast=True), 0)  # ordered as the numbers, NaN on top
        absmax = bits.to(tl.float32, bitcast=True)
        scale = tl.where(bits == 0, 1.0, tl.div_rn(absmax, 127.0))
        finite = bits < 0x7F800000
        level = tl.div_rn(tl.where(finite, x, 0.0), tl.zeros_like(x) + scale)
        level = tl.minimum(tl.maximum(level, -127.0), 127.0)
        level = (level + 12582912.0) - 12582912.0  # 1.5 * 2^23: rounds half to even at the integers
        tl.store(p_numbers + at, tl.where(finite, level, 0.0).to(tl.int8))
        tl.store(p_scales + slot, tl.where(finite, scale, float("nan")))
    else:
        tl.store(p_numbers + at, x.to(p_numbers.dtype.element_ty))


@triton.jit
def _move(p_keys, p_values, p_key_scales, p_value_scales, source, target, D: tl.constexpr):
    """The bytes of one slot to another."""
    o_d = tl.arange(0, D)
    key = tl.load(p_keys + source * D + o_d)
    value = tl.load(p_values + source * D + o_d)
    tl.store(p_keys + target * D + o_d, key)
    tl.store(p_values + target * D + o_d, value)
    if p_keys.dtype.element_ty == tl.int8:
        tl.store(p_key_scales + target, tl.load(p_key_scales + source))
        tl.store(p_value_scales + target, tl.load(p_value_scales + source))


@triton.jit
def _store_query(
    p_row, p_norm, p_cos, p_sin, p_q, row, head, eps, HEADS: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr,
    MIXED: tl.constexpr,
):  # fmt: skip
    """A row's query of one head, p_row [HEADS, query | gate]."""
    q = _normed_and_rotated(p_row + head * 2 * D, p_norm, p_cos, p_sin, row, eps, D, HALF)
    if MIXED:
        q = _mixed(q, D) * (1.0 / D)
    tl.store(p_q + (row * HEADS + head) * D + tl.arange(0, D), q.to(p_q.dtype.element_ty))


@triton.jit(do_not_specialize=["start", "slots"])
def append_prompt_kernel(
    p_query_gate, p_k, p_v, p_q_norm, p_k_norm, p_cos, p_sin, p_keys, p_values, p_key_scales, p_value_scales, p_q,
    q_stride, k_stride, v_stride, start, slots, eps, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr,
    HALF: tl.constexpr, MIXED: tl.constexpr,
):  # fmt: skip
    """Program (row, h) of a prompt: below KV_HEADS the key and value of head h, to slot start + row; above it a query
    head. The same operations as `append_kernel`, so the same bytes."""
    row = tl.program_id(0).to(tl.int64)
    program = tl.program_id(1)
    o_d = tl.arange(0, D)
    if program >= KV_HEADS:
        p_x = p_query_gate + row * q_stride
        _store_query(p_x, p_q_norm, p_cos, p_sin, p_q, row, program - KV_HEADS, eps, HEADS, D, HALF, MIXED)
    else:
        slot = program.to(tl.int64) * slots + start + row
        k = _normed_and_rotated(p_k + row * k_stride + program * D, p_k_norm, p_cos, p_sin, row, eps, D, HALF)
        if MIXED:
            k = _mixed(k, D)
        v = tl.load(p_v + row * v_stride + program * D + o_d)
        _store_row(k, p_keys, p_key_scales, slot, D)
        _store_row(v, p_values, p_value_scales, slot, D)


@triton.jit(do_not_specialize=["slots"])
def append_kernel(
    p_query_gate, p_k, p_v, p_q_norm, p_k_norm, p_cos, p_sin, p_control, p_keys, p_values, p_key_scales,
    p_value_scales, p_q, q_stride, k_stride, v_stride, slots, eps, HEADS: tl.constexpr, KV_HEADS: tl.constexpr,
    D: tl.constexpr, HALF: tl.constexpr, MIXED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Program (h, row): below KV_HEADS the key and value of head h, above it a query head."""
    program = tl.program_id(0)
    row = tl.program_id(1)
    o_d = tl.arange(0, D)
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    if program >= KV_HEADS:
        p_x = p_query_gate + row * q_stride
        _store_query(p_x, p_q_norm, p_cos, p_sin, p_q, row, program - KV_HEADS, eps, HEADS, D, HALF, MIXED)
    else:
        first = program.to(tl.int64) * slots
        source = tl.load(p_control + MOVE)
        rows = tl.load(p_control + ROWS)
        length = tl.load(p_control + LENGTH)
        slot = length + tl.load(p_control + OFFSETS + row)
        p_x = p_k + row * k_stride + program * D
        k = _normed_and_rotated(p_x, p_k_norm, p_cos, p_sin, row, eps, D, HALF)
        if MIXED:
            k = _mixed(k, D)
        v = tl.load(p_v + row * v_stride + program * D + o_d)
        if source >= 0:
            # The row that takes the source's slot moves its bytes first; where none does, row 0.
            o_row = tl.arange(0, 8)
            taken = (o_row < rows) & (length + tl.load(p_control + OFFSETS + o_row) == source)
            taker = tl.max(tl.where(taken, o_row, 0), 0)
            if row == taker:
                target = first + tl.load(p_control + MOVE + 1)
                _move(p_keys, p_values, p_key_scales, p_value_scales, first + source, target, D)
                tl.debug_barrier()
        if row < rows:
            _store_row(k, p_keys, p_key_scales, first + slot, D)
            _store_row(v, p_values, p_value_scales, first + slot, D)
