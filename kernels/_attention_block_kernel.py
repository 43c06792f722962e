"""Triton around the text of kernels/_attention_ptx.py: parts of decode attention over int8 caches on NVIDIA GPUs.

Imported only with Triton.
"""

import triton
import triton.language as tl

from ._attention_control import DEPTHS, LENGTH, ROWS
from ._attention_parts import part as part_of
from ._attention_parts import parts_before
from ._attention_ptx import CONSTRAINTS as _CONSTRAINTS
from ._attention_ptx import program
from ._dependent_launch import gdc_launch_dependents, gdc_wait

# A text for every (D, groups of 8 columns, bf16 or fp16 queries), then those that benchmarks/attention.py compares.
FORMS = [(dim, groups, bf16, {}) for dim in (128, 256) for groups in range(1, 5) for bf16 in (True, False)]
FORMS += [(256, 4, True, {"overlapped": False})]
FORMS += [(256, 4, True, {"without": steps}) for steps in (("loads",), ("scores", "sums"), ("loads", "scores", "sums"))]
PROGRAMS = tl.constexpr(tuple(program(dim, groups, bf16, **rest) for dim, groups, bf16, rest in FORMS))
CONSTRAINTS = tl.constexpr(_CONSTRAINTS)
# A thread asks for one 128-byte line at $1 and one at $2 into the L2.
_ASK = tl.constexpr("mov.b32 $0, 0; prefetch.global.L2 [$1]; prefetch.global.L2 [$2];")
_THREAD = tl.constexpr("mov.u32 $0, %tid.x;")


def form(dim: int, groups: int, bf16: bool, **rest) -> int:
    """Which text to place: an index into PROGRAMS."""
    return FORMS.index((dim, groups, bf16, rest))


@triton.jit
def _item(item, parts, row_blocks, KV_HEADS: tl.constexpr):
    """(block of rows, kv head, part) of an item; the last parts, which are long, come first."""
    return item % row_blocks, item // row_blocks % KV_HEADS, parts - 1 - item // row_blocks // KV_HEADS


@triton.jit
def _extent(p_control):
    """(length, live rows, end of what any row sees), as control says now."""
    o_slot = tl.arange(0, 8)
    length = tl.load(p_control + LENGTH, volatile=True)
    rows = tl.minimum(tl.load(p_control + ROWS, volatile=True), 8)
    depths = tl.load(p_control + DEPTHS + o_slot, volatile=True)
    return length, rows, tl.max(tl.where(o_slot < rows, length + depths, 0), 0)


@triton.jit
def _ask_ahead(
    p_keys, p_values, p_control, slots, KV_HEADS: tl.constexpr, BLOCK_ROWS: tl.constexpr, D: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """Asks for the first AHEAD tiles of this block into the L2 while the kernels before it still run.

    Control may still be that of an earlier pass, and the cache may still be written to: what is asked for then is no
    more than useless, for the L2 is what all of them write to.
    """
    _, rows, last = _extent(p_control)
    parts = parts_before(tl.minimum(last, slots))
    row_blocks = 1 if BLOCK_ROWS == 8 else tl.maximum(rows + BLOCK_ROWS - 1, 1) // BLOCK_ROWS
    item = tl.program_id(0)
    if item < parts * KV_HEADS * row_blocks:
        _, kv_head, part = _item(item, parts, row_blocks, KV_HEADS)
        start, part_length = part_of(part)
        stop = tl.minimum(start + part_length, tl.minimum(last, slots))
        thread = tl.inline_asm_elementwise(_THREAD, "=r,r", [item], dtype=tl.int32, is_pure=True, pack=1)
        for tile in tl.static_range(AHEAD):
            if start + tile * 64 < stop:
                at = (kv_head.to(tl.int64) * slots + start + tile * 64) * D + thread * (D // 2)
                tl.inline_asm_elementwise(
                    _ASK, "=r,l,l", [p_keys + at, p_values + at], dtype=tl.int32, is_pure=False, pack=1
                )


@triton.jit(do_not_specialize=["slots", "max_parts"])
def decode_attention_block_kernel(
    p_q, p_keys, p_values, p_key_scales, p_value_scales, p_control, p_counter, p_peak, p_total, p_acc, slots, max_parts,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, BLOCK_ROWS: tl.constexpr, D: tl.constexpr, FORM: tl.constexpr,
    AHEAD: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """As decode_attention_parts_kernel, which other caches and GPUs take; FORM is a text's index."""
    ROW: tl.constexpr = KV_HEADS * GROUP * D
    if DEPENDENT:
        gdc_launch_dependents()
        if AHEAD:
            _ask_ahead(p_keys, p_values, p_control, slots, KV_HEADS, BLOCK_ROWS, D, AHEAD)
        gdc_wait()
    length, rows, last = _extent(p_control)
    parts = parts_before(last)
    row_blocks = 1 if BLOCK_ROWS == 8 else (rows + BLOCK_ROWS - 1) // BLOCK_ROWS
    items = parts * KV_HEADS * row_blocks
    item = tl.program_id(0)
    blocks = tl.num_programs(0)
    while item < items:
        row_block, kv_head, part = _item(item, parts, row_blocks, KV_HEADS)
        first_row = row_block * BLOCK_ROWS
        start, part_length = part_of(part)
        stop = tl.minimum(start + part_length, last)
        at = kv_head.to(tl.int64) * slots + start
        cell = (kv_head.to(tl.int64) * max_parts + part) * (8 * GROUP) + first_row * GROUP
        columns = tl.minimum(rows - first_row, BLOCK_ROWS) * GROUP
        taken = tl.inline_asm_elementwise(
            PROGRAMS[FORM], CONSTRAINTS,
            [
                # As integers: pointers to different types are no arguments of one text.
                (p_keys + at * D).to(tl.int64), (p_values + at * D).to(tl.int64), (p_key_scales + at).to(tl.int64),
                (p_value_scales + at).to(tl.int64), (p_q + first_row * ROW + kv_head * (GROUP * D)).to(tl.int64),
                (p_peak + cell).to(tl.int64), (p_total + cell).to(tl.int64), (p_acc + cell * D).to(tl.int64),
                p_counter.to(tl.int64), (p_control + DEPTHS + first_row).to(tl.int64),
                start, stop, length, columns, (items > blocks).to(tl.int32), GROUP, 65536 // GROUP + 1, 2 * ROW,
            ],
            dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
        item = tl.where(items > blocks, blocks + taken, item + blocks)
