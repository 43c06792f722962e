"""What happens between passes, on the device: a round's control data, and what of a verified draft becomes text.

A round is: the draft head's rows for what was committed, its further levels, the trunk's pass over the tree, a draw at
every row, acceptance. Three small kernels connect these, so that a round needs nothing from the host but
the shape of its tree, and one captured graph of each part serves every shape, length and outcome:

    begin_head    gathers up to eight committed rows that the head has not seen, and the tokens after them
    begin_pass    lays out the tree: tokens, positions, control data of attention and of DeltaNet; looks embeddings up
    accept        walks the tree along the drawn tokens, moves the state forward, leaves a record for the host

The walk is mtp/acceptance.py's: at a slot the drawn token decides; it is emitted unless it is a stop token, and the
walk goes on at the child that holds it, while the reply has room and if something can be drawn there: otherwise the
next pass has that slot as its root, where it is an error. After the last token the state is `done`: passes that
were queued already have no rows, replay what is pending, move an accepted leaf, and change nothing else.

state, int32 [64]:

    0 length      committed tokens              8 done
    1 position    rotary, of the next token     9 written      rows in the ring so far
    2 buffer      of the next DeltaNet pass    10 read         rows of it that the head has seen
    3 pending     slots to replay, 0 to 8      11 head length  rows in the head's cache
    4, 5 move     from, to; -1 for none        12 level        of the draft
    6 reply       tokens of the reply          13 serial       passes so far
    7 root        its last token               14 limit        of reply;   15 capacity
   16..23         pending slots                24..31          stop tokens, -1 where there are fewer
   32 kept        rows of passes so far

shape, int32 [128], of a tree (`shape_words`): 0 rows, 8.. depth, 16.. parent, 24.. cache offset, 32.. place in the list
of its level, 40.. bit mask of the slot's ancestors and itself; from 64 on DeltaNet's control words.

record, int32 [32]: 0 serial, 1 length of the path, 2 emitted tokens, 3 stopped, 4 done, 5 error, 6 rows,
8.. path, 16.. emitted.

The ring keeps the last committed rows for the head, which may lag behind while nothing is drafted. By ring slot: the
token that follows (int64), the rotary position and the row of hidden states (int32). Those are [RING + 2, H]: a pass
writes all its live rows, one behind the other and from the first again behind row RING - 1, before it is known which of
them are committed; row RING takes dead ones and row RING + 1 is zero. Rows that wait are not written over: a pass that
drafts has up to eight, but the head sees all that waits before it, and a pass of one row waits as one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from . import attention_control, delta_decode
from .embedding import Table
from .rows import SLOTS, ancestors, cache_offsets, depths
from .sampling import Seen

RING = 256
STATE, SHAPE, RECORD = 64, 128, 32
STOPS = 8
LENGTH, POSITION, BUFFER, PENDING, MOVE, REPLY, ROOT, DONE = 0, 1, 2, 3, 4, 6, 7, 8
WRITTEN, READ, HEAD_LENGTH, LEVEL, SERIAL, LIMIT, CAPACITY, PATH, STOP_TOKENS = 9, 10, 11, 12, 13, 14, 15, 16, 24
KEPT = 32
ROWS, DEPTH, PARENT, OFFSET, PLACE, ABOVE, DELTA = 0, 8, 16, 24, 32, 40, 64


@dataclass(frozen=True)
class Ring:
    """Committed rows for the head: hidden [RING + 2, H]; rows int32, following int64 and positions int32 [RING]; and
    index int64 [8], the rows of `hidden` that those of the pass at hand go to."""

    hidden: Tensor
    rows: Tensor
    following: Tensor
    positions: Tensor
    index: Tensor


@dataclass(frozen=True)
class Round:
    """The tensors of one sequence's rounds, all on one device.

    state, shape, record  see above
    tokens     int64 [8], of the pass's slots; dead ones 0
    inverse    float32 [half], rotary frequencies;  cos, sin  float32 [8, half], of the pass's slots
    attention  int32 [24] (kernels/attention_control.py), delta int32 [64] (kernels/delta_decode.py)
    drawn      int64 [8], errors int32 [8]: what was drawn at each slot
    marks      uint8 [V]: tokens of the reply
    lists      int64 [8, 8]: the head's candidates, by level - 1 and place
    head       the same for the head's rows
    seen, head_seen  views of the above, as kernels/sampling.py wants them
    """

    state: Tensor
    shape: Tensor
    record: Tensor
    tokens: Tensor
    inverse: Tensor
    cos: Tensor
    sin: Tensor
    attention: Tensor
    delta: Tensor
    drawn: Tensor
    errors: Tensor
    marks: Tensor
    lists: Tensor
    ring: Ring
    head: "HeadRows"
    seen: Seen
    head_seen: Seen

    @property
    def head_row(self) -> tuple[Tensor, ...]:
        """What a draft's draw sets so that the head's next row is its first choice (kernels/sampling.py)."""
        head = self.head
        return self.state, head.tokens, self.inverse, head.cos, head.sin, head.attention, head.last

    @property
    def live(self) -> Tensor:
        """int32 [1], how many rows the pass has: a view."""
        return self.attention[attention_control.ROWS : attention_control.ROWS + 1]


@dataclass(frozen=True)
class HeadRows:
    """The head's rows of a pass: gather int64 [8] into the ring, tokens int64 [8], cos and sin float32
    [8, half], attention int32 [24], last int64 [1] (the row whose output proposes), and for its draws chosen int64 [8],
    above and depth int32 [8], drawn int64 [1], errors int32 [1]."""

    gather: Tensor
    tokens: Tensor
    cos: Tensor
    sin: Tensor
    attention: Tensor
    last: Tensor
    chosen: Tensor
    above: Tensor
    depth: Tensor
    drawn: Tensor
    errors: Tensor


def allocate(vocab: int, hidden: int, dtype: torch.dtype, inverse: Tensor) -> Round:
    """The tensors of rounds over `vocab` logits and hidden states [., hidden] of `dtype`, on the device of `inverse`
    float32 [half], the rotary frequencies."""
    device, half = inverse.device, inverse.numel()

    def zeros(*shape, dtype=torch.int32):
        return torch.zeros(shape, dtype=dtype, device=device)

    def longs(*shape):
        return zeros(*shape, dtype=torch.int64)

    state, shape, marks, tokens = zeros(STATE), zeros(SHAPE), zeros(vocab, dtype=torch.uint8), longs(SLOTS)
    head = HeadRows(
        longs(SLOTS), longs(SLOTS), zeros(SLOTS, half, dtype=torch.float32), zeros(SLOTS, half, dtype=torch.float32),
        attention_control.new_control(device), longs(1), longs(SLOTS),
        zeros(SLOTS), zeros(SLOTS), longs(1), zeros(1),
    )  # fmt: skip
    reply = state[REPLY : REPLY + 1]
    seen = Seen(marks, tokens, shape[ABOVE : ABOVE + SLOTS], shape[DEPTH : DEPTH + SLOTS], reply)
    return Round(
        state=state, shape=shape, record=zeros(RECORD), tokens=tokens, inverse=inverse,
        cos=zeros(SLOTS, half, dtype=torch.float32), sin=zeros(SLOTS, half, dtype=torch.float32),
        attention=attention_control.new_control(device),
        delta=zeros(delta_decode.CONTROL_WORDS), drawn=longs(SLOTS), errors=zeros(SLOTS), marks=marks,
        lists=longs(SLOTS, SLOTS), head=head, seen=seen,
        head_seen=Seen(marks, head.chosen, head.above, head.depth, reply),
        ring=Ring(zeros(RING + 2, hidden, dtype=dtype), zeros(RING), longs(RING), zeros(RING), longs(SLOTS)),
    )  # fmt: skip


def forget_reply(round: Round):
    """Before a reply's first token: penalties see nothing of the reply before, neither its tokens nor those of its last
    pass, of which a root, itself included in its bit mask, sees the first."""
    round.marks.zero_()
    round.tokens.fill_(-1)


def shape_words(parents: Sequence[int], places: Sequence[int]) -> list[int]:
    """Contents of the shape tensor.

    parents  of the rows (kernels/rows.py); places  by slot, where its token stands in the list of its level, from 0
    """
    rows = len(parents)
    words = [0] * SHAPE
    words[ROWS] = rows
    words[DEPTH : DEPTH + rows] = depths(parents)
    words[PARENT : PARENT + SLOTS] = [*parents, *[-1] * (SLOTS - rows)]
    words[OFFSET : OFFSET + rows] = cache_offsets(parents)
    words[PLACE : PLACE + rows] = places
    words[ABOVE : ABOVE + rows] = [sum(1 << at for at in ancestors(parents, slot)) for slot in range(rows)]
    words[DELTA:] = delta_decode.control_words(parents, buffer=0)
    return words


def state_words(
    *,
    length: int,
    position: int,
    buffer: int,
    pending: Sequence[int],
    root: int,
    reply: int,
    limit: int,
    capacity: int,
    stops: Sequence[int],
    head_length: int = 0,
    waiting: int = 0,
) -> list[int]:
    """Contents of the state tensor before the first round of a reply.

    waiting  rows that the ring holds already, the i-th as row i of its hidden states
    limit    may be more than the words hold, which no reply reaches
    Raises ValueError for more than STOPS stop tokens.
    """
    if len(stops) > STOPS:
        raise ValueError(f"{len(stops)} stop tokens: at most {STOPS} are handled on the device")
    words = [0] * STATE
    words[LENGTH], words[POSITION], words[BUFFER], words[PENDING] = length, position, buffer, len(pending)
    words[MOVE : MOVE + 2] = [-1, -1]
    words[REPLY], words[ROOT], words[LIMIT], words[CAPACITY] = reply, root, min(limit, 2**31 - 1), capacity
    words[WRITTEN] = words[KEPT] = waiting
    words[HEAD_LENGTH] = head_length
    words[PATH : PATH + len(pending)] = pending
    words[STOP_TOKENS : STOP_TOKENS + STOPS] = [*stops, *[-1] * (STOPS - len(stops))]
    words[DONE] = int(reply >= limit or length >= capacity)
    return words


def begin_head(round: Round, *, keep: int = 0, dependent: bool = False):
    """Sets `head` for up to eight rows that wait in the ring, all but `keep`; they count as seen from then on.

    A warp has few of the angles: in one, eight rows' are 1,300 instructions, one behind the other.
    dependent  here and below: launched as a programmatic dependent of the kernel before (NVIDIA, from 9.0)
    """
    from . import _rounds_kernels as _kernels  # here, because without a GPU nobody needs Triton

    head, ring = round.head, round.ring
    _kernels.begin_head_kernel[(1,)](
        round.state, ring.rows, ring.following, ring.positions, head.gather, head.tokens, round.inverse, head.cos,
        head.sin, head.attention, head.last, head.above, head.depth, **_angles(round), KEEP=keep, RING=RING,
        **_options(dependent, warps=8),
    )  # fmt: skip


def begin_pass(
    round: Round, *, table: Table | None = None, out: Tensor | None = None, dependent: bool = False
) -> Tensor | None:
    """Sets the tokens, angles and control data of the pass over the tree `shape`, and where the ring takes its rows.

    With a table returns `out` [8, K], which it fills with the tokens' embeddings.
    """
    from . import _rounds_kernels as _kernels

    tensors, constants, blocks = (round.state,) * 4, {"K": 1, "BITS": 0, "C": 0, "TABLES": False, "ROTATED": False}, 1
    if table is not None:
        tensors, constants, blocks = table.tensors, table.constants, -(-table.columns // 256)
    _kernels.begin_pass_kernel[(1 + SLOTS * blocks,)](
        round.state, round.shape, round.lists, round.tokens, round.inverse, round.cos, round.sin, round.attention,
        round.delta, round.ring.index, *tensors, round.state if out is None else out, **_angles(round), **constants,
        RING=RING, EMBED=table is not None, **_options(dependent, fused=False),
    )  # fmt: skip
    return out


def accept(round: Round, *, dependent: bool = False):
    """Walks the tree along `drawn`, moves `state` forward, enters the committed rows in the ring, sets `record`."""
    from . import _rounds_kernels as _kernels

    ring = round.ring
    _kernels.accept_kernel[(1,)](
        round.state, round.shape, round.attention, round.tokens, round.drawn, round.errors, round.marks,
        ring.rows, ring.following, ring.positions, round.record, RING=RING, **_options(dependent),
    )  # fmt: skip


def _angles(round):
    half = round.inverse.numel()
    return {"half": half, "HALF": 1 << (half - 1).bit_length()}


def _options(dependent, warps=1, fused=True):
    return {"DEPENDENT": dependent, "num_warps": warps, "enable_fp_fusion": fused} | (
        {"launch_pdl": True} if dependent else {}
    )
