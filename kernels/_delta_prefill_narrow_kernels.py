"""The Triton kernels of the narrow form in kernels/delta_prefill.py, which says what they compute and how.

Imported only with Triton. Every product takes fp16 operands and adds up in float32. Numbers of tokens are not
specialised on: other lengths would compile other binaries.
"""

import triton
import triton.language as tl

from ._delta_prefill_kernels import _INTERPRETED, narrowed


@triton.jit
def _power_of_two(x, PACKED: tl.constexpr):
    """2^x; PACKED without the three instructions for results below 2^-126, which become 0."""
    if PACKED:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )  # fmt: skip
    else:
        return tl.exp2(x)


@triton.jit
def _unit_lower_inverse(system, row, column, CHUNK: tl.constexpr):
    """(I + system)^-1 [CHUNK, CHUNK] as in the exact form. Nothing in it exceeds one: beta <= 1, keys of length 1."""
    i = row[:, None]
    j = column[None, :]
    met = i // 2 == j // 2
    inverse = tl.where(i == j, 1.0, tl.where(met, -system, 0.0))
    outside = tl.where(met, 0.0, system)  # of the blocks inverted so far
    for level in tl.static_range(2, 7):
        met = i >> level == j >> level
        between = tl.where(met, outside, 0.0)
        outside = tl.where(met, 0.0, outside)
        right = tl.dot(between.to(tl.float16), inverse.to(tl.float16))
        inverse -= tl.dot(inverse.to(tl.float16), right.to(tl.float16))
    tl.static_assert(CHUNK == 64)
    return inverse


@triton.jit(do_not_specialize=["tokens"])
def narrow_chunk_kernel(
    p_q, p_k, p_g, p_beta, p_from_start, p_to_end, p_mix, p_inverse, tokens,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, CHUNK: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """What needs no state: program (c, h) for chunk c of value head h."""
    c = tl.program_id(0)
    h = tl.program_id(1)
    row = tl.arange(0, CHUNK)
    column = tl.arange(0, CHUNK)
    live = row < tokens - c * CHUNK
    start = tl.cast(c, tl.int64) * CHUNK
    # Dead rows have k = beta = g = 0: they write nothing and let everything pass.
    o_key = (start * HK + h // (HV // HK)) * DK + (row[:, None] * (HK * DK) + tl.arange(0, DK)[None, :])
    k = tl.load(p_k + o_key, mask=live[:, None], other=0.0)
    q = tl.load(p_q + o_key, mask=live[:, None], other=0.0)
    o_gate = start * HV + h + row * HV
    g = tl.load(p_g + o_gate, mask=live, other=0.0)
    beta = tl.load(p_beta + o_gate, mask=live, other=0.0)
    # In units of ln 2. No token forgets by more than 2^-64: float32 differences of sums stay good to 2^-12.
    g = tl.maximum(g * 1.4426950408889634, -64.0, propagate_nan=tl.PropagateNan.ALL).to(tl.float64)
    total = tl.cumsum(g, 0)
    o_row = start * HV + h * CHUNK + row
    tl.store(p_from_start + o_row, tl.exp2(total.to(tl.float32)))
    tl.store(p_to_end + o_row, tl.exp2((tl.sum(g, 0) - total).to(tl.float32)))
    total = total.to(tl.float32)
    # Masked before the power: above the diagonal the difference may overflow.
    lower = row[:, None] >= column[None, :]
    decay = _power_of_two(tl.where(lower, total[:, None] - total[None, :], float("-inf")), PACKED)
    o_matrix = (start * HV + h * CHUNK) * CHUNK + (row[:, None] * CHUNK + column[None, :])
    tl.store(p_mix + o_matrix, narrowed(tl.dot(q, tl.trans(k)) * decay, PACKED))
    system = tl.dot(k, tl.trans(k)) * decay * beta[:, None]
    system = tl.where(row[:, None] > column[None, :], system, 0.0)
    inverse = _unit_lower_inverse(system, row, column, CHUNK)
    tl.store(p_inverse + o_matrix, (inverse * beta[None, :]).to(tl.float16))


@triton.jit
def _walk_chunk(
    state, c, h, value, p_q, p_k, p_v, p_from_start, p_to_end, p_mix, p_inverse, p_out, tokens,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, PV: tl.constexpr, CHUNK: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """Stores the outputs of chunk c and returns the state after it, [PV, DK]."""
    row = tl.arange(0, CHUNK)
    live = row < tokens - c * CHUNK
    # Pointers a chunk, which all threads share, and 32-bit offsets that do not change: a third of the loop otherwise.
    start = tl.cast(c, tl.int64) * CHUNK
    first = start * HV + h * CHUNK
    o_key = row[:, None] * (HK * DK) + tl.arange(0, DK)[None, :]
    o_matrix = row[:, None] * CHUNK + row[None, :]
    p_k += (start * HK + h // (HV // HK)) * DK
    p_q += (start * HK + h // (HV // HK)) * DK
    p_v += (start * HV + h) * DV
    p_out += (start * HV + h) * DV
    p_from_start += first
    k = tl.load(p_k + o_key, mask=live[:, None], other=0.0)
    inverse = tl.load(p_inverse + first * CHUNK + o_matrix)
    v = tl.load(p_v + (row[:, None] * (HV * DV) + value[None, :]), mask=live[:, None], other=0.0)
    q = tl.load(p_q + o_key, mask=live[:, None], other=0.0)
    mix = tl.load(p_mix + first * CHUNK + o_matrix)
    from_start = tl.load(p_from_start + row)[None, :]
    to_end = tl.load(p_to_end + first + row)[None, :]
    whole = tl.load(p_from_start + CHUNK - 1)
    before = narrowed(state, PACKED)
    seen = tl.dot(before, tl.trans(k)) * -from_start
    writes = tl.dot(tl.trans(v), tl.trans(inverse))
    o = tl.dot(before, tl.trans(q)) * from_start
    writes = tl.dot(narrowed(seen, PACKED), tl.trans(inverse), writes)
    state = tl.dot(narrowed(writes * to_end, PACKED), k, state * whole)
    o = tl.dot(narrowed(writes, PACKED), tl.trans(mix), o)
    tl.store(p_out + (row[None, :] * (HV * DV) + value[:, None]), narrowed(o, PACKED), mask=live[None, :])
    return state


@triton.jit(do_not_specialize=["tokens", "chunks"])
def narrow_walk_kernel(
    p_q, p_k, p_v, p_from_start, p_to_end, p_mix, p_inverse, p_state, p_new_state, p_out, tokens, chunks,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, PV: tl.constexpr, CHUNK: tl.constexpr,
    PACKED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The state along the chunks: program (h, b) for PV value columns of value head h, transposed as in walk_kernel."""
    h = tl.program_id(0)
    value = tl.program_id(1) * PV + tl.arange(0, PV)
    o_state = h * DK * DV + tl.arange(0, DK)[None, :] * DV + value[:, None]
    state = tl.load(p_state + o_state)
    if _INTERPRETED:  # a second form, since the compiler has loads on their way ahead in no other loop than a range
        c = 0
        while c < chunks:
            state = _walk_chunk(
                state, c, h, value, p_q, p_k, p_v, p_from_start, p_to_end, p_mix, p_inverse, p_out, tokens,
                HK, HV, DK, DV, PV, CHUNK, PACKED,
            )  # fmt: skip
            c += 1
    else:
        for c in tl.range(0, chunks, num_stages=STAGES):
            state = _walk_chunk(
                state, c, h, value, p_q, p_k, p_v, p_from_start, p_to_end, p_mix, p_inverse, p_out, tokens,
                HK, HV, DK, DV, PV, CHUNK, PACKED,
            )  # fmt: skip
    tl.store(p_new_state + o_state, state)
