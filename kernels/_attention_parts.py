"""How tiles are dealt out to the parts of kernels/decode_attention.py, for kernels. Imported only with Triton."""

import triton
import triton.language as tl

from .attention_control import TILE as _TILE

TILE = tl.constexpr(_TILE)


@triton.jit
def parts_before(position, PARTS: tl.constexpr):
    """How many parts have a slot below `position`: the first ones."""
    return tl.minimum((position + TILE - 1) // TILE, PARTS)


@triton.jit
def part_of(index, last, PARTS: tl.constexpr):
    """(first slot, tiles) of a part, of the slots below `last`; at least one of them is the part's."""
    start = index * TILE
    return start, (last - start + (PARTS * TILE - 1)) // (PARTS * TILE)


@triton.jit
def items_of(rows, last, KV_HEADS: tl.constexpr, BLOCK_ROWS: tl.constexpr, PARTS: tl.constexpr):
    """(blocks of rows, parts of every key-value head and block of rows, of the slots below `last`)."""
    row_blocks = 1 if BLOCK_ROWS == 8 else tl.maximum((rows + BLOCK_ROWS - 1) // BLOCK_ROWS, 1)
    return row_blocks, parts_before(last, PARTS) * KV_HEADS * row_blocks


@triton.jit
def item_at(index, row_blocks, KV_HEADS: tl.constexpr):
    """(block of rows, key-value head, part) of one of the items that `items_of` counts."""
    return index % row_blocks, index // row_blocks % KV_HEADS, index // row_blocks // KV_HEADS


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
