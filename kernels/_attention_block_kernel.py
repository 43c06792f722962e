"""Triton around the text of kernels/_attention_ptx.py: parts of decode attention over int8 caches on NVIDIA GPUs.

Imported only with Triton.
"""

import itertools

import triton
import triton.language as tl

from ._attention_parts import TILE, item_at, items_of, part_of
from ._attention_ptx import CONSTRAINTS as _CONSTRAINTS
from ._attention_ptx import extent, program, shared_bytes
from ._dependent_launch import gdc_launch_dependents, gdc_wait

# A text for every (D, groups of 8 columns, bf16 or fp16 queries, whether dependent, whether staged), then those that
# benchmarks/attention.py compares.
_TWO = (True, False)
FORMS = list(itertools.product((128, 256), range(1, 5), _TWO, _TWO, _TWO, ({},)))
_PARTS = ("loads",), ("scores", "sums"), ("loads", "scores", "sums")
FORMS += [(256, 4, True, True, False, {"overlapped": False})]
FORMS += [(256, 4, True, True, staged, {"stamps": True}) for staged in _TWO]
FORMS += [(256, 4, True, True, staged, {"without": steps}) for steps in _PARTS for staged in _TWO]
PROGRAMS = tl.constexpr(tuple(program(*which, **rest) for *which, rest in FORMS))
CONSTRAINTS = tl.constexpr(_CONSTRAINTS)
_ANSWER = "mov.b32 $0, now_length; mov.b32 $1, now_rows; mov.b32 $2, now_end;"
_EXTENT_EARLY, _EXTENT_NOW = (tl.constexpr("{" + "".join(extent("$3", x)) + _ANSWER + "}") for x in ("cg", "ca"))
_EXTENT_WAITED = tl.constexpr("{ griddepcontrol.wait;" + "".join(extent("$3", "ca")) + _ANSWER + "}")
# A thread asks for one 128-byte line at $1 and one at $2 into the L2.
_ASK = tl.constexpr("mov.b32 $0, 0; prefetch.global.L2 [$1]; prefetch.global.L2 [$2];")
_THREAD = tl.constexpr("mov.u32 $0, %tid.x;")


def form(dim: int, groups: int, bf16: bool, dependent: bool, staged: bool, **rest) -> int:
    """Which text to place: an index into PROGRAMS."""
    return FORMS.index((dim, groups, bf16, dependent, staged, rest))


def reserved_bytes(form: int) -> int:
    """How much a text uses of the shared memory that is reserved at launch."""
    dim, groups, *_, staged, _ = FORMS[form]
    return shared_bytes(dim, groups) if staged else 0


def shared_tiles(form: int) -> int:
    """The same in units of 8 KiB."""
    return -(-reserved_bytes(form) // 8192)


@triton.jit
def _reserve_shared(p_any, never, TILES: tl.constexpr):
    """Has the launch reserve TILES times 8 KiB of shared memory for the text, which can declare 48 KiB at most.

    What a launch reserves is what Triton's own operations need, so this is a product of tiles of 8 KiB, of which one
    stays and the others are loaded ahead. It is never run.
    """
    if never:
        o_row = tl.arange(0, 64)[:, None]
        o_column = tl.arange(0, 64)[None, :]
        p_numbers = p_any.to(tl.pointer_type(tl.float16), bitcast=True) + o_row * 64 + o_column
        right = tl.load(p_numbers)
        sums = tl.zeros((64, 64), tl.float32)
        for step in tl.range(0, 1 << 20, num_stages=TILES - 1):
            sums = tl.dot(tl.load(p_numbers + step * 4096), right, sums)
        tl.store(p_numbers, sums.to(tl.float16))


@triton.jit
def _extent(p_control, TEXT: tl.constexpr):
    """(length, live rows, end of what any row sees) as control says."""
    return tl.inline_asm_elementwise(
        TEXT, "=&r,=&r,=&r,l", [p_control], dtype=(tl.int32, tl.int32, tl.int32), is_pure=False, pack=1
    )


@triton.jit
def _ask_ahead(p_keys, p_values, at, tiles, D: tl.constexpr, PARTS: tl.constexpr, AHEAD: tl.constexpr):
    """Asks for the first AHEAD tiles of a part, whose slots start at `at`, into the L2: harmless wherever that is."""
    thread = tl.inline_asm_elementwise(_THREAD, "=r,r", [tiles], dtype=tl.int32, is_pure=True, pack=1)
    for tile in tl.static_range(AHEAD):
        if tile < tiles:
            line = (at + tile * (PARTS * TILE)) * D + thread * (D // 2)
            tl.inline_asm_elementwise(
                _ASK, "=r,l,l", [p_keys + line, p_values + line], dtype=tl.int32, is_pure=False, pack=1
            )


@triton.jit(do_not_specialize=["slots", "places"])
def decode_attention_block_kernel(
    p_q, p_keys, p_values, p_key_scales, p_value_scales, p_control, p_counter, p_peak, p_total, p_acc, slots, places,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, BLOCK_ROWS: tl.constexpr, D: tl.constexpr, PARTS: tl.constexpr,
    FORM: tl.constexpr, AHEAD: tl.constexpr, EARLY: tl.constexpr, DEPENDENT: tl.constexpr, SHARED_TILES: tl.constexpr,
):  # fmt: skip
    """As decode_attention_parts_kernel, which other caches and GPUs take; FORM is a text's index.

    EARLY, where DEPENDENT: what control says is read while the kernels before still run and may change it. Only
    addresses come of that before the text has waited for them and found that it still holds; else the item is begun
    again.
    """
    ROW: tl.constexpr = KV_HEADS * GROUP * D
    if SHARED_TILES > 0:
        _reserve_shared(p_acc, slots < 0, SHARED_TILES)
    if DEPENDENT:
        gdc_launch_dependents()
        if not EARLY:
            gdc_wait()
    length, rows, last = _extent(p_control, _EXTENT_EARLY if DEPENDENT and EARLY else _EXTENT_NOW)
    item = tl.program_id(0)
    blocks = tl.num_programs(0)
    going = item >= 0
    while going:
        last = tl.minimum(last, slots)  # it may be another cache's, as long as it is early
        row_blocks, items = items_of(rows, last, KV_HEADS, BLOCK_ROWS, PARTS)
        taken = item * 0
        if item < items:
            row_block, kv_head, part = item_at(item, row_blocks, KV_HEADS)
            first_row = row_block * BLOCK_ROWS
            start, tiles = part_of(part, last, PARTS)
            at = kv_head.to(tl.int64) * slots + start
            cell = (kv_head.to(tl.int64) * places + part) * (8 * GROUP) + first_row * GROUP
            columns = tl.minimum(rows - first_row, BLOCK_ROWS) * GROUP
            if DEPENDENT and EARLY:  # noqa: SIM102 (decided when compiled)
                # Asked of the item, not of a flag that the first turn clears: a compiler gives a turn that it knows to
                # be the first a copy of the text, and the copy shared memory of its own.
                if item == tl.program_id(0):
                    _ask_ahead(p_keys, p_values, at, tiles, D, PARTS, AHEAD)
            taken = tl.inline_asm_elementwise(
                PROGRAMS[FORM], CONSTRAINTS,
                [
                    # As integers: pointers to different types are no arguments of one text.
                    (p_keys + at * D).to(tl.int64), (p_values + at * D).to(tl.int64), (p_key_scales + at).to(tl.int64),
                    (p_value_scales + at).to(tl.int64), (p_q + first_row * ROW + kv_head * (GROUP * D)).to(tl.int64),
                    (p_peak + cell).to(tl.int64), (p_total + cell).to(tl.int64), (p_acc + cell * D).to(tl.int64),
                    p_counter.to(tl.int64), p_control.to(tl.int64),
                    start, tiles, PARTS * TILE, length, rows, last, first_row, columns, (items > blocks).to(tl.int32),
                    GROUP, 65536 // GROUP + 1, 2 * ROW,
                ],
                dtype=tl.int32, is_pure=False, pack=1,
            )  # fmt: skip
            next_item = tl.where(items > blocks, blocks + taken, item + blocks)
        else:
            next_item = items
            if DEPENDENT and EARLY:
                now_length, now_rows, now_last = _extent(p_control, _EXTENT_WAITED)
                same = (now_length == length) & (now_rows == rows) & (now_last == last)
                taken = tl.where(same, 0, -1)
        if taken == -1:
            length, rows, last = _extent(p_control, _EXTENT_NOW)
        else:
            item = next_item
            going = item < items
