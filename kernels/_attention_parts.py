"""Which slots a part of kernels/attention.py's table holds, for kernels. Imported only with Triton."""

import triton
import triton.language as tl

from .attention import LONG_PART, PART_ENDS

# The part table by level: the position a level starts at, the length of its parts, the index of its first part.
_STARTS, _LENGTHS, _FIRSTS = [0], [], [0]
for _end, _length in PART_ENDS:
    _LENGTHS.append(_length)
    _FIRSTS.append(_FIRSTS[-1] + (_end - _STARTS[-1]) // _length)
    _STARTS.append(_end)
_LENGTHS.append(LONG_PART)
LEVELS = tl.constexpr(len(_STARTS))
STARTS = tl.constexpr(tuple(_STARTS))
LENGTHS = tl.constexpr(tuple(_LENGTHS))
FIRSTS = tl.constexpr(tuple(_FIRSTS))


@triton.jit
def parts_before(position):
    """How many parts hold a position below `position`."""
    count = position * 0
    for level in tl.static_range(LEVELS):
        here = FIRSTS[level] + (position - STARTS[level] + LENGTHS[level] - 1) // LENGTHS[level]
        count = tl.where(position > STARTS[level], here, count)
        if level + 1 < LEVELS:
            count = tl.minimum(count, FIRSTS[level + 1])
    return count


@triton.jit
def part(index):
    """(first position, length) of a part."""
    start = index * 0
    length = index * 0
    for level in tl.static_range(LEVELS):
        start = tl.where(index >= FIRSTS[level], STARTS[level] + (index - FIRSTS[level]) * LENGTHS[level], start)
        length = tl.where(index >= FIRSTS[level], LENGTHS[level], length)
    return start, length


@triton.jit
def exponent(scale):
    """A scale as (exponent, mantissa, 2^-exponent), floats: scale = mantissa 2^exponent, mantissa in [1, 2).

    Scales below 2^-60 count as 2^-60. Of NaN or infinity the exponent is NaN and the others are finite.
    """
    bits = tl.maximum(scale.to(tl.int32, bitcast=True), 0x21800000)
    biased = tl.minimum(bits >> 23, 253)
    mantissa = ((bits & 0x7FFFFF) | 0x3F800000).to(tl.float32, bitcast=True)
    inverse = ((254 - biased) << 23).to(tl.float32, bitcast=True)
    return (biased - 127).to(tl.float32) + scale * 0.0, mantissa, inverse
