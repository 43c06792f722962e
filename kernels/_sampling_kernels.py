"""The Triton kernels of kernels/sampling.py, which says what they compute. Imported only with Triton."""

import triton
import triton.language as tl

from . import sampling as _host
from ._dependent_launch import gdc_launch_dependents, gdc_wait

SEED = tl.constexpr(_host.SEED)
TOP_K = tl.constexpr(_host.TOP_K)
WIDE_K = tl.constexpr(_host.WIDE)
GREEDY = tl.constexpr(_host.GREEDY)
TEMPERATURE = tl.constexpr(_host.TEMPERATURE)
TOP_P = tl.constexpr(_host.TOP_P)
MIN_P = tl.constexpr(_host.MIN_P)
REPETITION = tl.constexpr(_host.REPETITION)
PRESENCE = tl.constexpr(_host.PRESENCE)
LOWEST = tl.constexpr(-(2**31))
MINUS_INF = tl.constexpr(-2139095041)  # the key of -inf
PLUS_INF = tl.constexpr(0x7F800000)  # the key of +inf; NaN's is above
MASS = tl.constexpr(2.0**40)


@triton.jit
def _key(x):
    """float32 as int32 of the same order; -0 counts as 0, NaN is on top."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return tl.where(x != x, 0x7FFFFFFF, bits ^ ((bits >> 31) & 0x7FFFFFFF))


@triton.jit
def _value(key):
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _ids(p_ids, o, vocab, first, SHORT: tl.constexpr):
    """The ids of entries o of a row, and whether there is such an entry."""
    m_live = o < vocab
    if SHORT:
        m_other = m_live & (o >= first)
        id = tl.where(m_other, tl.load(p_ids + o - first, mask=m_other, other=-1), o)
        return id, m_live & (id >= 0)
    else:
        return o, m_live


@triton.jit
def _keys(p_logits, p_marks, p_tokens, above, p_real, row, o, id, m_live, width):
    """The keys of entries o of a row, which are ids `id`; LOWEST where there is none."""
    x = tl.load(p_logits + row.to(tl.int64) * width + o, mask=m_live, other=0.0).to(tl.float32)
    m_seen = tl.load(p_marks + id, mask=m_live, other=0) != 0
    for slot in tl.static_range(8):
        m_seen |= (id == tl.load(p_tokens + slot)) & (((above + o * 0) >> slot & 1) != 0)
    repetition = tl.zeros_like(x) + tl.load(p_real + REPETITION).to(tl.float32)
    presence = tl.load(p_real + PRESENCE).to(tl.float32)
    x = tl.where(m_seen, tl.where(x < 0, x * repetition, tl.div_rn(x, repetition)) - presence, x)
    x = tl.div_rn(x, tl.zeros_like(x) + tl.load(p_real + TEMPERATURE).to(tl.float32))
    return tl.where(m_live, _key(x), LOWEST)


@triton.jit(do_not_specialize=["width", "vocab", "first", "maxima"])
def maxima_kernel(
    p_logits, p_marks, p_tokens, p_above, p_ids, p_whole, p_real, width, vocab, first, p_maxima, p_count, maxima,
    STRETCH: tl.constexpr, BLOCK: tl.constexpr, SHORT: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """The largest key of every stretch; the row's list is emptied."""
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0)
    block = tl.program_id(1)
    o = block * BLOCK + tl.arange(0, BLOCK)
    id, m_live = _ids(p_ids, o, vocab, first, SHORT)
    keys = _keys(p_logits, p_marks, p_tokens, tl.load(p_above + row), p_real, row, o, id, m_live, width)
    largest = tl.max(keys.reshape(BLOCK // STRETCH, STRETCH), 1)
    o_max = block * (BLOCK // STRETCH) + tl.arange(0, BLOCK // STRETCH)
    tl.store(p_maxima + row * maxima + o_max, largest, mask=o_max < maxima)
    if block == 0:
        tl.store(p_count + row, 0)


@triton.jit
def _wanted(p_whole, WIDE: tl.constexpr):
    return tl.load(p_whole + (WIDE_K if WIDE else TOP_K)).to(tl.int32)


@triton.jit(do_not_specialize=["maxima"])
def bound_kernel(p_maxima, p_whole, p_bound, maxima, MAXIMA: tl.constexpr, WIDE: tl.constexpr, DEPENDENT: tl.constexpr):
    """A key that at least k of a row's maxima reach, if so many are numbers: the k-th largest of them."""
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0)
    place = tl.arange(0, MAXIMA)
    keys = tl.load(p_maxima + row * maxima + place, mask=place < maxima, other=LOWEST)
    keys = tl.sort(keys, descending=True)
    bound = tl.max(tl.where(place == _wanted(p_whole, WIDE) - 1, keys, LOWEST), 0)
    tl.store(p_bound + row, tl.maximum(bound, MINUS_INF + 1))


@triton.jit(do_not_specialize=["width", "vocab", "first"])
def list_kernel(
    p_logits, p_marks, p_tokens, p_above, p_ids, p_whole, p_real, width, vocab, first, p_bound, p_count, p_listed,
    LISTED: tl.constexpr, BLOCK: tl.constexpr, SHORT: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Lists the entries at or above the bound, in the order in which they come."""
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0)
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    id, m_live = _ids(p_ids, o, vocab, first, SHORT)
    keys = _keys(p_logits, p_marks, p_tokens, tl.load(p_above + row), p_real, row, o, id, m_live, width)
    m_listed = keys >= tl.load(p_bound + row)
    place = tl.atomic_add(p_count + row + o * 0, 1, mask=m_listed, sem="relaxed")
    m_listed &= place < LISTED
    tl.store(p_listed + row * 2 * LISTED + place, keys, mask=m_listed)
    tl.store(p_listed + (row * 2 + 1) * LISTED + place, id, mask=m_listed)


@triton.jit
def _ordered(key, id):
    """(key, id) as one int64: by key, then the lower id first when sorted in descending order."""
    return (key.to(tl.int64) << 32) | (0x7FFFFFFF - id).to(tl.int64)


@triton.jit
def _gumbel(seed, index, id):
    """kernels/philox.py's noise of vocabulary entries at one index of a text, float32."""
    counter = (id >> 2).to(tl.int32)
    zero = counter * 0
    w0, w1, w2, w3 = tl.philox(seed, counter, zero + index, zero, zero)
    lane = id & 3
    word = tl.where(lane < 2, tl.where(lane == 0, w0, w1), tl.where(lane == 2, w2, w3))
    uniform = (word.to(tl.uint32, bitcast=True).to(tl.float64) + 0.5) * 2.3283064365386963e-10
    return (-tl.log(-tl.log(uniform))).to(tl.float32)


@triton.jit
def _draw(ordered, count, seed, index, top_k, greedy, p_real, SIZE: tl.constexpr):
    """The token drawn from a list [SIZE] in descending order, of which `count` entries are live."""
    place = tl.arange(0, SIZE)
    id = 0x7FFFFFFF - (ordered & 0xFFFFFFFF).to(tl.int32)
    score = _value((ordered >> 32).to(tl.int32))
    m_kept = (place < count) & (place < top_k)
    exact = tl.where(m_kept, score, float("-inf")).to(tl.float64)
    weight = tl.where(m_kept, tl.exp(exact - tl.max(exact, 0)), 0.0)
    share = weight / tl.sum(weight, 0)
    m_kept = m_kept & (share >= tl.load(p_real + MIN_P) * tl.max(share, 0))
    weight = tl.where(m_kept, weight, 0.0)
    share = weight / tl.sum(weight, 0) * MASS
    mass = ((share + 6755399441055744.0) - 6755399441055744.0).to(tl.int64)  # rounds half to even at the integers
    before = tl.cumsum(mass, 0) - mass
    top_p = tl.load(p_real + TOP_P)
    m_kept = m_kept & ((before.to(tl.float64) < top_p * tl.sum(mass, 0).to(tl.float64)) | (before * 0 + top_p >= 1.0))
    noisy = score + tl.where(greedy + place * 0 != 0, 0.0, _gumbel(seed, index, id))
    return 0x7FFFFFFF - (tl.max(tl.where(m_kept, _ordered(_key(noisy), id), -(2**63)), 0) & 0xFFFFFFFF).to(tl.int32)


@triton.jit
def _candidates(p_candidates, ordered, first, count, seed, index, wide, greedy, SIZE: tl.constexpr):
    """Stores `first` and the seven best others of a list."""
    place = tl.arange(0, SIZE)
    id = 0x7FFFFFFF - (ordered & 0xFFFFFFFF).to(tl.int32)
    score = _value((ordered >> 32).to(tl.int32))
    noisy = score + tl.where(greedy + place * 0 != 0, 0.0, _gumbel(seed, index, id))
    m_live = (place < count) & (place < wide)
    left = tl.where(m_live & (id != first), _ordered(_key(noisy), id), -(2**63))
    tl.store(p_candidates, first.to(tl.int64))
    for i in tl.static_range(1, 8):
        best = tl.max(left, 0)
        if best != -(2**63):
            tl.store(p_candidates + i, 0x7FFFFFFF - (best & 0xFFFFFFFF))
        left = tl.where(left == best, -(2**63), left)


@triton.jit
def _again(
    p_logits, p_marks, p_tokens, above, p_ids, p_real, row, width, vocab, first, p_listed, wanted,
    LISTED: tl.constexpr, BLOCK: tl.constexpr, SHORT: tl.constexpr,
):  # fmt: skip
    """Writes the `wanted` first entries of the row to its list, one search of the row for each: the list overflowed."""
    last = tl.zeros((), tl.int64) + (2**63 - 1)
    i = 0
    while i < wanted:
        best = tl.zeros((), tl.int64) - (2**63 - 1)
        start = 0
        while start < vocab:
            o = start + tl.arange(0, BLOCK)
            id, m_live = _ids(p_ids, o, vocab, first, SHORT)
            all = _ordered(_keys(p_logits, p_marks, p_tokens, above, p_real, row, o, id, m_live, width), id)
            best = tl.maximum(best, tl.max(tl.where((all < last) & m_live, all, -(2**63 - 1)), 0))
            start += BLOCK
        tl.store(p_listed + i, (best >> 32).to(tl.int32))
        tl.store(p_listed + LISTED + i, 0x7FFFFFFF - (best & 0xFFFFFFFF).to(tl.int32))
        last = best
        i += 1
    tl.debug_barrier()


@triton.jit
def _finish(
    p_listed, p_real, p_token, p_error, p_candidates, count, seed, index, top_k, wide, greedy,
    SIZE: tl.constexpr, LISTED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    place = tl.arange(0, SIZE)
    key = tl.load(p_listed + place, mask=place < count, other=LOWEST)
    id = tl.load(p_listed + LISTED + place, mask=place < count, other=0)
    ordered = tl.sort(tl.where(place < count, _ordered(key, id), -(2**63)), descending=True)
    largest = (tl.max(ordered, 0) >> 32).to(tl.int32)
    good = (largest > MINUS_INF) & (largest < PLUS_INF)
    token = tl.where(good, _draw(ordered, count, seed, index, top_k, greedy, p_real, SIZE), 0)
    tl.store(p_token, token.to(tl.int64))
    tl.store(p_error, tl.where(good, 0, 1))
    if WIDE:
        lowest = tl.arange(0, 8).to(tl.int64)
        tl.store(p_candidates + lowest, lowest)
        tl.debug_barrier()
        if good:
            _candidates(p_candidates, ordered, token, count, seed, index, wide, greedy, SIZE)


@triton.jit(do_not_specialize=["width", "vocab", "first"])
def draw_kernel(
    p_logits, p_marks, p_tokens, p_above, p_ids, p_whole, p_real, width, vocab, first, p_depth, p_reply, p_count,
    p_listed, p_drawn, p_errors, p_candidates, p_level,
    LISTED: tl.constexpr, BLOCK: tl.constexpr, SHORT: tl.constexpr, WIDE: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Program: a row. Short lists, the usual ones, are sorted as such."""
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0)
    count = tl.load(p_count + row)
    wanted = _wanted(p_whole, WIDE)
    p_listed += row * 2 * LISTED
    if count > LISTED:
        _again(
            p_logits, p_marks, p_tokens, tl.load(p_above + row), p_ids, p_real, row, width, vocab, first, p_listed,
            wanted, LISTED, BLOCK, SHORT,
        )  # fmt: skip
        count = wanted
    seed = tl.load(p_whole + SEED)
    index = tl.load(p_reply) + tl.load(p_depth + row)
    top_k = tl.load(p_whole + TOP_K).to(tl.int32)
    greedy = tl.load(p_whole + GREEDY).to(tl.int32)
    if WIDE:
        p_candidates += (tl.load(p_level) - 1) * 8
    if count <= 128:
        _finish(
            p_listed, p_real, p_drawn + row, p_errors + row, p_candidates, count, seed, index, top_k, wanted, greedy,
            128, LISTED, WIDE,
        )  # fmt: skip
    else:
        _finish(
            p_listed, p_real, p_drawn + row, p_errors + row, p_candidates, count, seed, index, top_k, wanted, greedy,
            LISTED, LISTED, WIDE,
        )  # fmt: skip
