"""The passes of a reply as rounds on a GPU (engine/device_model.py).

The host launches a round before it has read the one before, and hears of that from a record of 32 numbers: while a
round runs, nothing waits for the host.
"""

from collections import deque
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from ..attention import KVCache
from ..kernels import rounds
from ..kernels.rows import SLOTS
from ..mtp.acceptance import Accepted
from ..mtp.drafts import Outcome
from ..mtp.head_drafts import Planner
from ..mtp.tree import Tree
from ..weights.errors import FastQwenError
from .device_model import DeviceModel
from .sampling import SamplingSettings
from .session import GIVEN_BACK, Session

QUEUED = 2  # rounds under way: the one that the host waits for, and the next


class DevicePasses:
    """The passes of one reply on a DeviceModel (engine/passes.py's protocol)."""

    queued = QUEUED

    def __init__(
        self,
        model: DeviceModel,
        session: Session,
        planner: Planner,
        settings: SamplingSettings,
        *,
        seed: int,
        drafts: bool,
        stop_ids: Collection[int],
        max_tokens: int,
    ):
        self.session, self._model, self._planner, self._drafts = session, model, planner, drafts
        self._settings, self._seed, self._stop_ids, self._max_tokens = settings, seed, stop_ids, max_tokens
        self._queue: deque[tuple[Tree, _Record]] = deque()
        self._free = deque(_Record() for _ in range(QUEUED))
        self._reply = self._root = 0
        self._waiting = 0  # rows in the ring that the head has not seen, at most
        self._tree: Tree | None = None
        self._over = True
        # One reply at a time: an earlier one that was left unfinished cannot go on. Not this object: it refers to
        # the model, and such a circle would keep weights that nobody uses.
        self._user = model.user = object()
        self._last: tuple[Tensor, Tensor] | None = None
        if model.head_cache is not None:
            model.head_cache.adopt(0, None)

    def prompt(self, embeddings: Tensor, hidden: Tensor, positions: Tensor):
        """The head's rows of the prompt, all but the last, whose next token is not known yet."""
        if not self._drafts:
            return
        following = embeddings[1:]
        if self._last is not None:
            hidden, positions = torch.cat([self._last[0], hidden]), torch.cat([self._last[1], positions], 1)
            following = embeddings
        if len(following):
            cache = self._model.head_cache
            self._model.head.extend(following, hidden[:-1], positions[:, :-1], cache=cache)
        self._last = hidden[-1:].clone(), positions[:, -1:].clone()

    @property
    def prompt_cache(self) -> KVCache | None:
        return self._model.head_cache if self._drafts else None

    @property
    def waiting_row(self) -> tuple[Tensor, Tensor]:
        return self._last

    def resume(self, hidden: Tensor, positions: Tensor, next_position: int):
        self._last = hidden, positions

    def first(self, logits: Tensor) -> int:
        self._require_buffers()
        model, round, state = self._model, self._model.round, self.session.state
        with torch.inference_mode():
            model.set_sampling(self._settings, self._seed)
            rounds.forget_reply(round)
            token = self._draw_first(logits)
            self._show_shortlist((token,))
            words = rounds.state_words(
                length=state.length, position=state.next_position, buffer=state.buffer, pending=(), root=token,
                reply=1, limit=self._max_tokens, capacity=self.session.capacity, stops=sorted(self._stop_ids),
                head_length=model.head_cache.length if self._drafts else 0, waiting=int(self._drafts),
            )  # fmt: skip
            round.state.copy_(torch.tensor(words, dtype=torch.int32))
            round.marks[token] = 1
            if self._drafts:
                round.ring.hidden[:1].copy_(self._last[0])
                round.ring.rows[0] = 0
                round.ring.following[0], round.ring.positions[0] = token, self._last[1][0, 0].to(torch.int32)
                self._waiting = 1
        self._reply, self._root, self._tree, self._over = 1, token, None, token in self._stop_ids
        return token

    def next(self) -> Outcome:
        self._require_buffers()
        while not self._over and len(self._queue) < self.queued:
            self._launch(self._planner.tree())
        return self._take()

    def close(self):
        """Waits for what is under way, and tells the session where it has come to."""
        try:
            while self._queue:
                self._take()
        except FastQwenError:  # of tokens that nobody waits for any more; the session is marked
            self._queue.clear()
        if not self._reply or not self.session.valid or self._model.user is not self._user:
            return
        words = self._model.round.state.tolist()
        if words[rounds.LENGTH] != len(self.session.tokens):  # interrupted between a round's launch and its record
            self.session.valid = False
            return
        pending = words[rounds.PATH : rounds.PATH + words[rounds.PENDING]]
        move = tuple(words[rounds.MOVE : rounds.MOVE + 2])
        with torch.inference_mode():
            self.session.state.adopt(
                length=words[rounds.LENGTH], position=words[rounds.POSITION], buffer=words[rounds.BUFFER],
                pending=pending, move=move if move[0] >= 0 else None,
            )  # fmt: skip

    def report(self) -> dict:
        return self._planner.scores()

    def _require_buffers(self):
        if self._model.user is None:
            raise FastQwenError(GIVEN_BACK)
        if self._model.user is not self._user:
            raise FastQwenError("Another reply was started on this model before this one was finished: run it again.")

    def _launch(self, tree: Tree):
        model = self._model
        record = self._free.popleft()
        with torch.inference_mode():
            record.start.record()
            if tree != self._tree:
                model.set_tree(tree)
                self._tree = tree
            if tree.depth or self._waiting > rounds.RING - 2 * SLOTS:
                self._draft(tree)
            record.drafted.record()
            self._verify(tree)
            record.host.copy_(model.round.record, non_blocking=True)
            record.end.record()
        self._waiting += (tree.depth + 1) if self._drafts else 0
        self._queue.append((tree, record))

    def _draw_first(self, logits):
        token, drawn = self._model.draw_first(logits)
        if not drawn:
            raise _no_token()
        return token

    def _verify(self, tree):
        self._model.run("verify")

    def _draft(self, tree):
        for _ in range(-(-max(self._waiting - SLOTS, 0) // SLOTS)):
            self._model.run("catch up")
        self._model.draft(max(tree.depth, 1))
        self._waiting = 0

    def _take(self) -> Outcome:
        tree, record = self._queue.popleft()
        record.end.synchronize()
        words = record.host.tolist()
        draft_seconds = record.start.elapsed_time(record.drafted) / 1e3
        verify_seconds = record.drafted.elapsed_time(record.end) / 1e3
        self._free.append(record)
        _, steps, count, stopped, done, error, rows = words[:7]
        path, emitted = tuple(words[8 : 8 + steps]), tuple(words[16 : 16 + count])
        self._over = self._over or bool(done)
        if error:
            self.session.valid = False
            raise _no_token()
        room = min(self._max_tokens - self._reply, self.session.room)
        self._reply += count
        self.session.tokens += self._committed(steps, emitted)
        self._show_shortlist(emitted)
        accepted = Accepted(path, emitted, bool(stopped))
        cut = bool(stopped) or count == room
        outcome = Outcome(tree, accepted, None, cut, draft_seconds, verify_seconds)
        if rows:
            self._planner.observe(
                tree, accepted, cut=cut, draft_seconds=draft_seconds, verify_seconds=verify_seconds
            )  # fmt: skip
        return outcome

    def _show_shortlist(self, emitted: Sequence[int]):
        # Of what was under way when another reply began nothing is shown: the places are that one's.
        if self._drafts and self._model.user is self._user and self._model.head.short is not None:
            self._model.head.short.add(emitted)

    def _committed(self, steps: int, emitted: Sequence[int]) -> list[int]:
        """The tokens of a path: the root, which was the last one emitted before, and what was emitted on the way."""
        tokens = [self._root, *emitted][:steps]
        if emitted:
            self._root = emitted[-1]
        return tokens


class _Record:
    """Where one round's record and times arrive."""

    def __init__(self):
        self.host = torch.zeros(rounds.RECORD, dtype=torch.int32, pin_memory=True)
        self.start, self.drafted, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(3))


def _no_token() -> FastQwenError:
    return FastQwenError(
        "The model's highest logit is no finite number, so no token can be drawn: the weights are damaged or overflow "
        "in this precision, or temperature or repetition penalty is too small; check the file, or try another dtype."
    )
