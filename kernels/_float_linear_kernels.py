"""The Triton kernel of kernels/float_linear.py, which says what it computes and how. Imported only with Triton."""

import triton
import triton.language as tl

from ._dependent_launch import gdc_launch_dependents, gdc_wait


@triton.jit
def _finish(y, block, p_residual, p_out, rows, BLOCK_N: tl.constexpr, RESIDUAL: tl.constexpr):
    """Adds the residual to y float32 [8 or 16 slots, BLOCK_N] and stores the first eight."""
    slot = tl.arange(0, y.shape[0])[:, None]
    row = block * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    m_out = (slot < 8) & (row < rows)
    o_out = slot * rows + row
    if RESIDUAL:
        y += tl.load(p_residual + o_out, mask=m_out, other=0.0).to(tl.float32)
    tl.store(p_out + o_out, y.to(p_out.dtype.element_ty), mask=m_out)


# Triton's interpreter multiplies bf16 by its bits.
_INTERPRETED = tl.constexpr(not isinstance(_finish, triton.JITFunction))


@triton.jit
def _dot(x, w, acc):
    if _INTERPRETED:
        return tl.dot(x.to(tl.float32), w.to(tl.float32), acc)
    else:
        return tl.dot(x, w, acc)


@triton.jit
def _dot_rows(
    block, p_x, p_w, p_residual, p_out, rows, K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr, RESIDUAL: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    # Rows past the end repeat the last one, so that loads need no mask. int64: N x K may pass 2^31.
    row = tl.minimum(block * BLOCK_N + tl.arange(0, BLOCK_N), rows - 1).to(tl.int64)
    column = tl.arange(0, BLOCK_K)
    slot = tl.arange(0, 16)[:, None]  # the matrix unit wants 16 rows
    m_slot = slot < 8
    p_tile = p_w + row[None, :] * K + column[:, None]
    w_first = tl.load(p_tile, eviction_policy="evict_first")
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    p_rows = p_x + slot * K + column[None, :]
    x_first = tl.load(p_rows, mask=m_slot, other=0.0)
    acc = tl.zeros((16, BLOCK_N), tl.float32)
    for i in tl.range(1, K // BLOCK_K, num_stages=STAGES):
        x = tl.load(p_rows + i * BLOCK_K, mask=m_slot, other=0.0)
        w = tl.load(p_tile + i * BLOCK_K, eviction_policy="evict_first")
        acc = _dot(x, w, acc)
    # Last, because before the loop it would hold up the loop's first loads until x is here.
    acc = _dot(x_first, w_first, acc)
    _finish(acc, block, p_residual, p_out, rows, BLOCK_N, RESIDUAL)


@triton.jit
def _step(p_first, o_step, K: tl.constexpr, MASKED: tl.constexpr, STREAM: tl.constexpr):
    """What pointers [T, .., .., V] reach o_step columns further on, zeros past K."""
    T: tl.constexpr = p_first.shape[0]
    V: tl.constexpr = p_first.shape[3]
    policy: tl.constexpr = "evict_first" if STREAM else ""
    if MASKED:
        column = tl.arange(0, T)[:, None, None, None] * V + o_step  # K is a multiple of V
        return tl.load(p_first + o_step, mask=column < K, other=0.0, eviction_policy=policy)
    else:
        return tl.load(p_first + o_step, eviction_policy=policy)


@triton.jit
def _sum_rows(
    block, p_x, p_w, p_residual, p_out, rows, K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    RESIDUAL: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    V: tl.constexpr = 128 // p_w.dtype.element_ty.primitive_bitwidth  # columns of 16 bytes, a thread's
    T: tl.constexpr = BLOCK_K // V
    STEPS: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    MASKED: tl.constexpr = K % BLOCK_K != 0
    row = tl.minimum(block * BLOCK_N + tl.arange(0, BLOCK_N), rows - 1).to(tl.int64)
    # x [T, 8, 1, V] times W [T, 1, BLOCK_N, V]. T is the first axis because Triton spreads threads along the first one
    # of those that are not contiguous: then a thread holds the same columns of both, and nothing is exchanged.
    column = tl.arange(0, T)[:, None, None, None] * V + tl.arange(0, V)[None, None, None, :]
    p_tile = p_w + row[None, None, :, None] * K + column
    w = _step(p_tile, 0, K, MASKED, True)
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    p_rows = p_x + tl.arange(0, 8)[None, :, None, None] * K + column
    x = _step(p_rows, 0, K, MASKED, False)
    acc = tl.zeros((T, 8, BLOCK_N), tl.float32)
    for i in tl.range(1, STEPS):
        w_next = _step(p_tile, i * BLOCK_K, K, MASKED, True)
        x_next = _step(p_rows, i * BLOCK_K, K, MASKED, False)
        acc += tl.sum(x.to(tl.float32) * w.to(tl.float32), 3)
        w = w_next
        x = x_next
    acc += tl.sum(x.to(tl.float32) * w.to(tl.float32), 3)
    _finish(tl.sum(acc, 0), block, p_residual, p_out, rows, BLOCK_N, RESIDUAL)


@triton.jit
def float_rows(
    block, p_x, p_w, p_residual, p_out, rows, K: tl.constexpr, DOT: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, STAGES: tl.constexpr, RESIDUAL: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Rows block * BLOCK_N and up of W [rows, K] times the eight slots of x [8, K]; everything a block has to do.

    For another kernel's spare program ids too: it must not have waited yet where DEPENDENT is set, has the launch's
    number of warps, and returns afterwards.
    """
    if DOT:
        _dot_rows(block, p_x, p_w, p_residual, p_out, rows, K, BLOCK_N, BLOCK_K, STAGES, RESIDUAL, DEPENDENT)
    else:
        _sum_rows(block, p_x, p_w, p_residual, p_out, rows, K, BLOCK_N, BLOCK_K, RESIDUAL, DEPENDENT)


@triton.jit
def float_linear_kernel(
    p_x, p_w, p_residual, p_out, rows, K: tl.constexpr, DOT: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, STAGES: tl.constexpr, RESIDUAL: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    float_rows(
        tl.program_id(0), p_x, p_w, p_residual, p_out, rows, K, DOT, BLOCK_N, BLOCK_K, STAGES, RESIDUAL, DEPENDENT
    )
