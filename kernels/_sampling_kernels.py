"""The Triton kernels of kernels/sampling.py, which says what they compute. Imported only with Triton."""

import triton
import triton.language as tl

from . import sampling as _host
from ._dependent_launch import gdc_launch_dependents, gdc_wait
from ._rounds_kernels import next_level

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
def _logits(p_logits, row, o, m_live, width):
    return tl.load(p_logits + row.to(tl.int64) * width + o, mask=m_live, other=0.0).to(tl.float32)


@triton.jit
def _keys(x, p_marks, p_tokens, above, p_real, o, id, m_live):
    """The keys of entries o of a row, which are ids `id` and have logits x; LOWEST where there is none."""
    m_seen = tl.load(p_marks + id, mask=m_live, other=0) != 0
    for slot in tl.static_range(8):
        m_seen |= id == tl.where((above >> slot & 1) != 0, tl.load(p_tokens + slot).to(tl.int32), -1)
    repetition = tl.load(p_real + REPETITION).to(tl.float32)
    presence = tl.load(p_real + PRESENCE).to(tl.float32)
    temperature = tl.load(p_real + TEMPERATURE).to(tl.float32)
    # Divisions take a third of the instructions, and dividing by 1 changes nothing.
    penalised = x
    if repetition != 1.0:
        penalised = tl.where(x < 0, x * repetition, tl.div_rn(x, tl.zeros_like(x) + repetition))
    x = tl.where(m_seen, penalised - presence, x)
    if temperature != 1.0:
        x = tl.div_rn(x, tl.zeros_like(x) + temperature)
    return tl.where(m_live, _key(x), LOWEST)


@triton.jit
def _live_rows(p_live, LIVE: tl.constexpr):
    if LIVE:
        return tl.load(p_live)
    else:
        return 8


@triton.jit(do_not_specialize=["width", "vocab", "first", "maxima"])
def maxima_kernel(
    p_logits, p_marks, p_tokens, p_above, p_ids, p_whole, p_real, width, vocab, first, p_live, p_maxima, p_count,
    maxima, STRETCH: tl.constexpr, BLOCK: tl.constexpr, SHORT: tl.constexpr, LIVE: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """The largest key of every stretch; the row's list is emptied."""
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0)
    block = tl.program_id(1)
    o = block * BLOCK + tl.arange(0, BLOCK)
    id, m_live = _ids(p_ids, o, vocab, first, SHORT)
    x = _logits(p_logits, row, o, m_live, width)  # on their way while it is found out whether they count
    if row >= _live_rows(p_live, LIVE):
        return
    keys = _keys(x, p_marks, p_tokens, tl.load(p_above + row), p_real, o, id, m_live)
    largest = tl.max(keys.reshape(BLOCK // STRETCH, STRETCH), 1)
    o_max = block * (BLOCK // STRETCH) + tl.arange(0, BLOCK // STRETCH)
    tl.store(p_maxima + row * maxima + o_max, largest, mask=o_max < maxima)
    if block == 0:
        tl.store(p_count + row, 0)


@triton.jit
def _wanted(p_whole, WIDE: tl.constexpr):
    return tl.load(p_whole + (WIDE_K if WIDE else TOP_K)).to(tl.int32)


@triton.jit
def _bound(p_maxima, maxima, wanted, MAXIMA: tl.constexpr):
    """The largest number of 16 bits, with 16 zeros behind, that `wanted` of a row's maxima reach, if so many are
    numbers. It is at most the wanted-th largest, and few entries lie in between. Two bits a turn, whose three counts of
    at most 512 share a sum."""
    place = tl.arange(0, MAXIMA)
    halves = (tl.load(p_maxima + place, mask=place < maxima, other=LOWEST) >> 16) + 32768
    found = wanted * 0
    for i in tl.static_range(8):
        above = halves - found
        once = (above >= (16384 >> 2 * i)).to(tl.int32)
        twice = (above >= (32768 >> 2 * i)).to(tl.int32)
        counts = tl.sum(once + (twice << 10) + ((above >= (49152 >> 2 * i)).to(tl.int32) << 20), 0)
        reached = ((counts & 1023) >= wanted).to(tl.int32) + ((counts >> 10 & 1023) >= wanted).to(tl.int32)
        reached += ((counts >> 20) >= wanted).to(tl.int32)
        found += reached * (16384 >> 2 * i)
    return tl.maximum((found - 32768) << 16, MINUS_INF + 1)


@triton.jit(do_not_specialize=["maxima"])
def bound_kernel(
    p_maxima, p_whole, p_bound, maxima, MAXIMA: tl.constexpr, WIDE: tl.constexpr, DEPENDENT: tl.constexpr
):  # fmt: skip
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0)
    tl.store(p_bound + row, _bound(p_maxima + row * maxima, maxima, _wanted(p_whole, WIDE), MAXIMA))


@triton.jit(do_not_specialize=["width", "vocab", "first", "maxima"])
def list_kernel(
    p_logits, p_marks, p_tokens, p_above, p_ids, p_whole, p_real, width, vocab, first, p_live, p_maxima, p_bound,
    p_count, p_listed, maxima, LISTED: tl.constexpr, STRETCH: tl.constexpr, BLOCK: tl.constexpr, MAXIMA: tl.constexpr,
    SHORT: tl.constexpr, WIDE: tl.constexpr, LIVE: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Lists the entries at or above the bound, in the order in which they come. With MAXIMA, for one row, every block
    finds the bound itself: a launch less."""
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0)
    block = tl.program_id(1)
    bound = _bound(p_maxima, maxima, _wanted(p_whole, WIDE), MAXIMA) if MAXIMA else tl.load(p_bound + row)
    o_max = block * (BLOCK // STRETCH) + tl.arange(0, BLOCK // STRETCH)
    largest = tl.max(tl.load(p_maxima + row * maxima + o_max, mask=o_max < maxima, other=LOWEST), 0)
    if (largest < bound) | (row >= _live_rows(p_live, LIVE)):
        return  # most blocks: nothing of theirs is listed
    o = block * BLOCK + tl.arange(0, BLOCK)
    id, m_live = _ids(p_ids, o, vocab, first, SHORT)
    x = _logits(p_logits, row, o, m_live, width)
    keys = _keys(x, p_marks, p_tokens, tl.load(p_above + row), p_real, o, id, m_live)
    m_listed = keys >= bound
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
def _draw(ordered, largest, count, seed, index, top_k, greedy, p_real, SIZE: tl.constexpr):
    """The token drawn from a list [SIZE] in descending order, of which `count` entries are live; `largest` is the
    first one's key, and its weight is 1: nothing is searched for them."""
    place = tl.arange(0, SIZE)
    id = 0x7FFFFFFF - (ordered & 0xFFFFFFFF).to(tl.int32)
    score = _value((ordered >> 32).to(tl.int32))
    m_kept = (place < count) & (place < top_k)
    exact = tl.where(m_kept, score, float("-inf")).to(tl.float64)
    weight = tl.where(m_kept, tl.exp(exact - _value(largest).to(tl.float64)), 0.0)
    total = tl.sum(weight, 0)
    m_kept = m_kept & (weight / total >= tl.load(p_real + MIN_P) * (1.0 / total))
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
        tl.store(p_candidates + i, 0x7FFFFFFF - (best & 0xFFFFFFFF), mask=best != -(2**63))
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
            x = _logits(p_logits, row, o, m_live, width)
            all = _ordered(_keys(x, p_marks, p_tokens, above, p_real, o, id, m_live), id)
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
    token = tl.where(good, _draw(ordered, largest, count, seed, index, top_k, greedy, p_real, SIZE), 0)
    tl.store(p_token, token.to(tl.int64))
    tl.store(p_error, tl.where(good, 0, 1))
    if WIDE:
        lowest = tl.arange(0, 8).to(tl.int64)
        tl.store(p_candidates + lowest, lowest)
        tl.debug_barrier()
        if good:
            _candidates(p_candidates, ordered, token, count, seed, index, wide, greedy, SIZE)
    return token


@triton.jit(do_not_specialize=["width", "vocab", "first", "half"])
def draw_kernel(
    p_logits, p_marks, p_tokens, p_above, p_ids, p_whole, p_real, width, vocab, first, p_live, p_depth, p_reply,
    p_count, p_listed, p_drawn, p_errors, p_candidates, p_level, p_state, p_head_tokens, p_inverse, p_cos,
    p_sin, p_attention, p_last, half, LISTED: tl.constexpr, BLOCK: tl.constexpr, SHORT: tl.constexpr,
    WIDE: tl.constexpr, LIVE: tl.constexpr, HALF: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Program: a row. Short lists, the usual ones, are sorted as such. With HALF the head's next row is set."""
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0)
    count = tl.load(p_count + row)
    if row >= _live_rows(p_live, LIVE):
        return
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
        level = tl.load(p_level)
        p_candidates += (level - 1) * 8
    if count <= 128:
        token = _finish(
            p_listed, p_real, p_drawn + row, p_errors + row, p_candidates, count, seed, index, top_k, wanted, greedy,
            128, LISTED, WIDE,
        )  # fmt: skip
    else:
        token = _finish(
            p_listed, p_real, p_drawn + row, p_errors + row, p_candidates, count, seed, index, top_k, wanted, greedy,
            LISTED, LISTED, WIDE,
        )  # fmt: skip
    if HALF:
        next_level(
            p_state, p_head_tokens, p_inverse, p_cos, p_sin, p_attention, p_last, p_tokens, p_above, p_depth, token,
            level, half, HALF,
        )  # fmt: skip
