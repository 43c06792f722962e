"""Asking the L2 cache for memory that a later launch reads. Imported only with Triton."""

import triton
import triton.language as tl

from ._dependent_launch import gdc_launch_dependents, gdc_wait


@triton.jit
def ask_l2(p_line):
    """Asks the L2 cache for the lines at these pointers; nothing is read, so their writer need not have finished."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [p_line], dtype=tl.int32, is_pure=False, pack=1
    )  # fmt: skip


@triton.jit
def _ask_for_piece(p, m):
    """Asks for eight kilobytes at each of the pointers where m."""
    tl.inline_asm_elementwise(
        """
        {
        .reg .pred p;
        setp.ne.b32 p, $2, 0;
        @p cp.async.bulk.prefetch.L2.global [$1], 8192;
        mov.b32 $0, 0;
        }
        """,
        "=r,l,r", [p, m.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def _ask(p_words, pieces, block, blocks, T: tl.constexpr, BULK: tl.constexpr):
    for piece in tl.range(block * T, pieces, blocks * T):
        at = piece + tl.arange(0, T)
        if BULK:
            _ask_for_piece(p_words + at.to(tl.int64) * 2048, at < pieces)
        else:
            ask_l2(
                p_words + tl.minimum(at, pieces - 1).to(tl.int64) * 32
            )  # the last line again where there is no other


@triton.jit
def ride_along(
    block, blocks, p_first, first, p_second, second, T: tl.constexpr, BULK: tl.constexpr, DEPENDENT: tl.constexpr
):  # fmt: skip
    """All that one of `blocks` blocks of T threads does which ride along (kernels/read_ahead.py)."""
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()  # the launch before may still need all of the memory's bandwidth
    _ask(p_first, first, block, blocks, T, BULK)
    _ask(p_second, second, block, blocks, T, BULK)
