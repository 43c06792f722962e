"""The Triton kernels of kernels/rounds.py, which says what they compute. Imported only with Triton."""

import triton
import triton.language as tl

from . import delta_decode as _delta
from . import rounds as _host
from ._attention_control import DEPTHS, MOVE, OFFSETS
from ._attention_control import LENGTH as SLOTS_BEFORE
from ._attention_control import ROWS as LIVE_ROWS
from ._dependent_launch import gdc_launch_dependents, gdc_wait
from ._embedding_kernel import embed_block

LENGTH = tl.constexpr(_host.LENGTH)
POSITION = tl.constexpr(_host.POSITION)
BUFFER = tl.constexpr(_host.BUFFER)
PENDING = tl.constexpr(_host.PENDING)
STATE_MOVE = tl.constexpr(_host.MOVE)
REPLY = tl.constexpr(_host.REPLY)
ROOT = tl.constexpr(_host.ROOT)
DONE = tl.constexpr(_host.DONE)
WRITTEN = tl.constexpr(_host.WRITTEN)
READ = tl.constexpr(_host.READ)
HEAD_LENGTH = tl.constexpr(_host.HEAD_LENGTH)
LEVEL = tl.constexpr(_host.LEVEL)
SERIAL = tl.constexpr(_host.SERIAL)
LIMIT = tl.constexpr(_host.LIMIT)
CAPACITY = tl.constexpr(_host.CAPACITY)
PATH = tl.constexpr(_host.PATH)
STOP_TOKENS = tl.constexpr(_host.STOP_TOKENS)
KEPT = tl.constexpr(_host.KEPT)
ROWS = tl.constexpr(_host.ROWS)
DEPTH = tl.constexpr(_host.DEPTH)
PARENT = tl.constexpr(_host.PARENT)
OFFSET = tl.constexpr(_host.OFFSET)
PLACE = tl.constexpr(_host.PLACE)
DELTA = tl.constexpr(_host.DELTA)
DELTA_WORDS = tl.constexpr(_delta.CONTROL_WORDS)


@triton.jit
def _angles(p_inverse, p_cos, p_sin, positions, half, HALF: tl.constexpr):
    """Cosines and sines [8, half] of rows of text: it has one position on all three axes."""
    o_half = tl.arange(0, HALF)[None, :]
    m_half = (o_half < half) & (positions[:, None] >= 0)
    angle = positions[:, None].to(tl.float32) * tl.load(p_inverse + o_half, mask=o_half < half, other=0.0)
    at = tl.arange(0, 8)[:, None] * half + o_half
    tl.store(p_cos + at, tl.cos(angle), mask=m_half)
    tl.store(p_sin + at, tl.sin(angle), mask=m_half)


@triton.jit
def _row_angles(p_inverse, p_cos, p_sin, row, position, half, HALF: tl.constexpr):
    """The same of one row."""
    o_half = tl.arange(0, HALF)
    m_half = o_half < half
    angle = position.to(tl.float32) * tl.load(p_inverse + o_half, mask=m_half, other=0.0)
    tl.store(p_cos + row * half + o_half, tl.cos(angle), mask=m_half)
    tl.store(p_sin + row * half + o_half, tl.sin(angle), mask=m_half)


@triton.jit
def _head_rows(p_state, p_attention, rows, length):
    """Control data of a chain of rows from `length` on, all to be kept."""
    slot = tl.arange(0, 8)
    tl.store(p_attention + SLOTS_BEFORE, length)
    tl.store(p_attention + LIVE_ROWS, rows)
    tl.store(p_attention + DEPTHS + slot, slot)
    tl.store(p_attention + OFFSETS + slot, slot)


@triton.jit(do_not_specialize=["half"])
def begin_head_kernel(
    p_state, p_rows, p_following, p_ring_positions, p_gather, p_tokens, p_inverse, p_cos, p_sin, p_attention, p_last,
    p_above, p_depth, half, HALF: tl.constexpr, KEEP: tl.constexpr, RING: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    slot = tl.arange(0, 8)
    read = tl.load(p_state + READ)
    waiting = tl.load(p_state + WRITTEN) - read - KEEP
    rows = tl.where(tl.load(p_state + DONE) != 0, 0, tl.maximum(tl.minimum(waiting, 8), 0))
    length = tl.load(p_state + HEAD_LENGTH)
    at = (read + slot) % RING
    m_live = slot < rows
    tl.store(p_gather + slot, tl.load(p_rows + at, mask=m_live, other=RING + 1).to(tl.int64))
    tl.store(p_tokens + slot, tl.load(p_following + at, mask=m_live, other=0))
    _angles(p_inverse, p_cos, p_sin, tl.load(p_ring_positions + at, mask=m_live, other=0), half, HALF)
    _head_rows(p_state, p_attention, rows, length)
    tl.store(p_last, tl.maximum(rows - 1, 0).to(tl.int64))
    tl.store(p_above + slot, slot * 0)
    tl.store(p_depth + slot, slot * 0)
    tl.debug_barrier()  # every warp has read what one of them writes now
    tl.store(p_state + HEAD_LENGTH, length + rows)
    tl.store(p_state + READ, read + rows)
    tl.store(p_state + LEVEL, 1)


@triton.jit
def next_level(
    p_state, p_tokens, p_inverse, p_cos, p_sin, p_attention, p_last, p_chosen, p_above, p_depth, token, level, half,
    HALF: tl.constexpr,
):  # fmt: skip
    """Sets the head's rows to one, `token`, the first choice of `level`. For the block that has drawn it: a launch
    less. Every warp has read before what this writes."""
    slot = tl.arange(0, 8)
    rows = tl.where(tl.load(p_state + DONE) != 0, 0, 1)
    tl.store(p_tokens + slot, tl.where(slot == 0, token.to(tl.int64), 0))
    tl.store(p_chosen + level - 1, token.to(tl.int64))
    _row_angles(p_inverse, p_cos, p_sin, 0, tl.load(p_state + POSITION) + level - 1, half, HALF)
    _head_rows(p_state, p_attention, rows, tl.load(p_state + HEAD_LENGTH) + level - 1)
    tl.store(p_last, tl.zeros((), tl.int64))
    tl.store(p_above + slot, (1 << level) - 1 + slot * 0)
    tl.store(p_depth + slot, level + slot * 0)
    # No tree is deeper than seven, but the part that makes a level is timed alone, many times.
    tl.store(p_state + LEVEL, tl.minimum(level + 1, 8))


@triton.jit(do_not_specialize=["half"])
def begin_pass_kernel(
    p_state, p_shape, p_lists, p_tokens, p_inverse, p_cos, p_sin, p_attention, p_delta, p_index, p_table, p_levels,
    p_table_of, p_scale, p_x, half, HALF: tl.constexpr, RING: tl.constexpr, K: tl.constexpr, BITS: tl.constexpr,
    C: tl.constexpr, TABLES: tl.constexpr, ROTATED: tl.constexpr, EMBED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Program 0 lays the pass out. The others are a slot's angles and, with EMBED, 256 columns of its embedding each:
    they read what no program of this launch writes."""
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    rows = tl.where(tl.load(p_state + DONE) != 0, 0, tl.load(p_shape + ROWS))
    if tl.program_id(0) == 0:
        _lay_out(p_state, p_shape, p_lists, p_tokens, p_attention, p_delta, p_index, rows, RING)
    else:
        BLOCKS: tl.constexpr = (K + 255) // 256
        slot = (tl.program_id(0) - 1) // BLOCKS
        block = (tl.program_id(0) - 1) % BLOCKS
        depth = tl.where(slot < rows, tl.load(p_shape + DEPTH + slot), 0)
        if block == 0:
            _row_angles(p_inverse, p_cos, p_sin, slot, tl.load(p_state + POSITION) + depth, half, HALF)
        if EMBED:
            draft = tl.load(p_lists + tl.maximum(depth - 1, 0) * 8 + tl.load(p_shape + PLACE + slot))
            token = tl.where(slot == 0, tl.load(p_state + ROOT).to(tl.int64), draft)
            token = tl.where(slot < rows, token, 0)
            embed_block(
                p_table, p_levels, p_table_of, p_scale, token, block, p_x + slot * K, K, BITS, C, TABLES, ROTATED
            )


@triton.jit
def _lay_out(p_state, p_shape, p_lists, p_tokens, p_attention, p_delta, p_index, rows, RING: tl.constexpr):
    """All of a pass but angles and embeddings."""
    slot = tl.arange(0, 8)
    depth = tl.load(p_shape + DEPTH + slot)
    m_live = slot < rows
    m_draft = m_live & (slot > 0)
    place = tl.load(p_shape + PLACE + slot)
    token = tl.load(p_lists + (depth - 1) * 8 + place, mask=m_draft, other=0)
    tl.store(p_tokens + slot, tl.where(m_live & (slot == 0), tl.load(p_state + ROOT).to(tl.int64), token))
    tl.store(p_index + slot, tl.where(m_live, (tl.load(p_state + KEPT) + slot) % RING, RING).to(tl.int64))

    tl.store(p_attention + SLOTS_BEFORE, tl.load(p_state + LENGTH))
    tl.store(p_attention + LIVE_ROWS, rows)
    tl.store(p_attention + MOVE, tl.load(p_state + STATE_MOVE))
    tl.store(p_attention + MOVE + 1, tl.load(p_state + STATE_MOVE + 1))
    tl.store(p_attention + DEPTHS + slot, depth)
    tl.store(p_attention + OFFSETS + slot, tl.load(p_shape + OFFSET + slot))

    word = tl.arange(0, DELTA_WORDS)
    control = tl.load(p_shape + DELTA + word)
    control = tl.where(word == 0, tl.load(p_state + BUFFER), control)
    control = tl.where(word == 1, tl.load(p_state + PENDING), control)
    control = tl.where(word == 2, rows, control)
    m_path = (word >= 4) & (word < 12)
    control = tl.where(m_path, tl.load(p_state + PATH + word - 4, mask=m_path, other=0), control)
    tl.store(p_delta + word, control)


@triton.jit
def _at(values, place):
    """values[place], of eight."""
    return tl.sum(tl.where(tl.arange(0, 8) == place, values, 0), 0)


@triton.jit
def accept_kernel(
    p_state, p_shape, p_attention, p_tokens, p_drawn, p_errors, p_marks, p_rows, p_following, p_ring_positions,
    p_record, RING: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    slot = tl.arange(0, 8)
    rows = tl.load(p_attention + LIVE_ROWS)  # none if this pass was queued after the end
    tokens = tl.load(p_tokens + slot).to(tl.int32)
    drawn = tl.load(p_drawn + slot).to(tl.int32)
    errors = tl.load(p_errors + slot)
    parents = tl.load(p_shape + PARENT + slot)
    stops = tl.load(p_state + STOP_TOKENS + slot)
    length = tl.load(p_state + LENGTH)
    reply = tl.load(p_state + REPLY)
    capacity = tl.load(p_state + CAPACITY)
    limit = tl.load(p_state + LIMIT)
    room = tl.minimum(limit - reply, capacity - length)

    path = slot * 0
    emitted = slot * 0
    steps = tl.where(rows > 0, 1, 0)  # length of the path
    count = steps * 0  # emitted tokens
    current = count
    stopped = count
    error = tl.where(_at(errors, 0) != 0, steps, 0)
    going = steps * (1 - error)
    for _ in tl.static_range(8):
        # Here `current` is on the path, as its last slot, and what it drew is looked at; not once the walk is over.
        token = _at(drawn, current)
        stop = tl.where(tl.sum((stops == token).to(tl.int32), 0) > 0, going, 0)
        stopped = tl.maximum(stopped, stop)
        going = going * (1 - stop)
        emitted = tl.where((slot == count) & (going + slot * 0 > 0), token, emitted)
        count += going
        m_child = (slot < rows) & (slot > 0) & (parents == current) & (tokens == token) & (errors == 0)
        child = tl.min(tl.where(m_child, slot, 8), 0)
        going = tl.where((child < 8) & (count < room), going, 0)
        current = tl.where(going > 0, child, current)
        path = tl.where((slot == steps) & (going + slot * 0 > 0), child, path)
        steps += going

    offset = _at(tl.load(p_shape + OFFSET + slot), current)
    depth = steps - 1
    moves = (steps > 0) & (offset != depth)
    position = tl.load(p_state + POSITION)
    written = tl.load(p_state + WRITTEN)
    done = tl.load(p_state + DONE)
    done = tl.maximum(done, tl.maximum(stopped, error))
    done = tl.where((rows > 0) & ((reply + count >= limit) | (length + steps >= capacity)), 1, done)

    tl.store(p_state + STATE_MOVE, tl.where(moves, length + offset, -1))
    tl.store(p_state + STATE_MOVE + 1, tl.where(moves, length + depth, -1))
    tl.store(p_state + LENGTH, length + steps)
    tl.store(p_state + POSITION, position + steps)
    tl.store(p_state + BUFFER, 1 - tl.load(p_state + BUFFER))
    tl.store(p_state + PENDING, steps)
    tl.store(p_state + PATH + slot, path)
    tl.store(p_state + REPLY, reply + count)
    root = tl.load(p_state + ROOT)
    tl.store(p_state + ROOT, tl.where(count > 0, _at(emitted, tl.maximum(count - 1, 0)), root))
    tl.store(p_state + DONE, done)
    tl.store(p_state + WRITTEN, written + steps)
    serial = tl.load(p_state + SERIAL) + 1
    tl.store(p_state + SERIAL, serial)

    m_emitted = slot < count
    tl.store(p_marks + emitted, (slot * 0 + 1).to(tl.uint8), mask=m_emitted)
    ring = (written + slot) % RING
    m_path = slot < steps
    tl.store(p_following + ring, emitted.to(tl.int64), mask=m_emitted)
    tl.store(p_ring_positions + ring, position + slot, mask=m_path)
    kept = tl.load(p_state + KEPT)
    tl.store(p_rows + ring, (kept + path) % RING, mask=m_path)
    tl.store(p_state + KEPT, kept + rows)

    tl.store(p_record + 0, serial)
    tl.store(p_record + 1, steps)
    tl.store(p_record + 2, count)
    tl.store(p_record + 3, stopped)
    tl.store(p_record + 4, done)
    tl.store(p_record + 5, error)
    tl.store(p_record + 6, rows)
    tl.store(p_record + 8 + slot, path)
    tl.store(p_record + 16 + slot, emitted)
