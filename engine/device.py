"""Rounds of drafting and verifying on a GPU: buffers and captured graphs that replies use one after another.

Everything that differs between rounds is on the device (kernels/rounds.py), so the parts of a round are captured once
and replayed for every tree, length and outcome. The host launches a round before it has read the one before, and hears
of that from a record of 32 numbers: while a round runs, nothing waits for the host.
"""

import logging
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..kernels import rounds, sampling
from ..kernels.rows import SLOTS
from ..model.trunk import Trunk
from ..mtp.acceptance import Accepted
from ..mtp.drafts import Outcome
from ..mtp.head import MtpHead
from ..mtp.head_drafts import Planner
from ..mtp.tree import Tree
from ..weights.backend import dependent_launch
from ..weights.errors import FastQwenError
from .sampling import SamplingSettings
from .session import Session

logger = logging.getLogger(__name__)
QUEUED = 2  # rounds under way: the one that the host waits for, and the next


class DeviceModel:
    """A trunk's and its head's buffers for sequences of up to `capacity` tokens, and the parts of a round over them.

    vocab   how many ids can be drawn
    graphs  capture the parts; otherwise they are launched kernel by kernel
    """

    def __init__(self, trunk: Trunk, head: MtpHead | None, *, capacity: int, vocab: int, graphs: bool = True):
        self.trunk, self.head, self.capacity, self.vocab = trunk, head, capacity, vocab
        self.user: object = None  # the reply whose sequence the buffers hold
        config, device = trunk.config, trunk.device
        with torch.inference_mode():
            self.state = trunk.new_state(capacity)
            self.head_cache = None if head is None else head.new_cache(capacity, kind=trunk.kv, device=device)
            self.round = rounds.allocate(config.vocab_size, config.hidden_size, trunk.dtype, trunk.rotary.inverse)
            self.settings = sampling.new_settings(device)
            self._dependent = dependent_launch(device)
            self._workspace = sampling.allocate(vocab, device)
            # The head's output that proposes, in slot 0 of rows that are otherwise zero.
            self._row = torch.zeros(SLOTS, config.hidden_size, dtype=trunk.dtype, device=device)
            self._shapes: dict[Tree, Tensor] = {}
            self._graphs: dict[str, torch.cuda.CUDAGraph] = {}
            self.parts = {"verify": self._verify}
            if self.head_cache is not None:
                self.parts |= {"catch up": self._catch_up, "first": self._first, "next": self._next}
        if graphs and device.type == "cuda" and self.usable:
            with torch.inference_mode():
                self._capture()

    @property
    def usable(self) -> bool:
        """Whether all of it runs by kernels that read what differs between passes on the device."""
        return self.state.runs_on_device and (self.head is None or self.head_cache.scratch is not None)

    @property
    def captured(self) -> bool:
        return bool(self._graphs)

    def run(self, part: str):
        """Launches a part of a round."""
        graph = self._graphs.get(part)
        if graph is not None:
            graph.replay()
        else:
            with torch.inference_mode():
                self.parts[part]()

    def set_tree(self, tree: Tree):
        """The tree of the rounds that are launched from now on."""
        words = self._shapes.get(tree)
        if words is None:
            places = [max(rank - 1, 0) for rank in tree.ranks]
            host = torch.tensor(rounds.shape_words(tree.parents, places), dtype=torch.int32)
            words = self._shapes[tree] = host.to(self.trunk.device)
        self.round.shape.copy_(words)

    def draw_first(self, logits: Tensor) -> tuple[int, bool]:
        """(the first token of a reply, whether it could be drawn) from logits [V]; waits for it."""
        round = self.round
        self.set_tree(Tree(()))
        round.marks.zero_()
        round.state.zero_()
        token, error = round.drawn[:1], round.errors[:1]
        sampling.draw(
            logits[None].contiguous(), self.settings, round.seen, self._workspace, vocab=self.vocab, tokens=token,
            errors=error,
        )  # fmt: skip
        return int(token), not int(error)

    def _verify(self):
        round = self.round
        rounds.begin_pass(round, dependent=self._dependent)
        hidden, logits = self.trunk.decode(round, self.state)
        sampling.draw(
            logits, self.settings, round.seen, self._workspace, vocab=self.vocab, tokens=round.drawn,
            errors=round.errors, dependent=self._dependent,
        )  # fmt: skip
        rounds.accept(round, dependent=self._dependent)
        round.ring.hidden.index_copy_(0, round.ring.index, hidden)

    def _catch_up(self):
        """Up to eight waiting rows, one left for `first`."""
        rounds.begin_head(self.round, keep=1, dependent=self._dependent)
        self._waiting_rows()

    def _first(self):
        """The last waiting rows, and the first level's list."""
        rounds.begin_head(self.round, dependent=self._dependent)
        output = self._waiting_rows()
        self._row[:1].copy_(output.index_select(0, self.round.head.last))
        self._propose()

    def _next(self):
        """The next level's list."""
        rounds.next_level(self.round, dependent=self._dependent)
        self._row[:1].copy_(self._rows(self._row)[:1])
        self._propose()

    def _waiting_rows(self):
        return self._rows(self.round.ring.hidden.index_select(0, self.round.head.gather))

    def _rows(self, hidden):
        rows = self.round.head
        embeddings = self.trunk.embedding.weight_rows(rows.tokens, self.trunk.dtype)
        return self.head.decode(embeddings, hidden, rows.cos, rows.sin, control=rows.attention, cache=self.head_cache)

    def _propose(self):
        rows = self.round.head
        logits = self.trunk.head.verify(self.head.for_logits(self._row), SLOTS)[0][:1]
        sampling.draw(
            logits, self.settings, self.round.head_seen, self._workspace, vocab=self.vocab, tokens=rows.drawn,
            errors=rows.errors, candidates=self.round.lists,
            level=self.round.state[rounds.LEVEL : rounds.LEVEL + 1], dependent=self._dependent,
        )  # fmt: skip

    def _capture(self):
        """Every part runs once as it is, over a state that is done and so changes nothing, and is then captured."""
        self.set_tree(Tree(()))
        self.round.state.zero_()
        self.round.state[rounds.DONE] = 1
        pool = torch.cuda.graph_pool_handle()
        stream = torch.cuda.Stream(self.trunk.device)
        try:
            stream.wait_stream(torch.cuda.current_stream(self.trunk.device))
            with torch.cuda.stream(stream):
                for part in self.parts.values():
                    part()
            torch.cuda.current_stream(self.trunk.device).wait_stream(stream)
            graphs = {}
            for name, part in self.parts.items():
                graphs[name] = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graphs[name], pool=pool, stream=stream):
                    part()
            self._graphs = graphs
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:
            reason = str(error).splitlines()[0] if str(error) else ""
            logger.warning("FastQwen: no CUDA graphs on %s (%s: %s); replies are slower.", self.trunk.device,
                           type(error).__name__, reason)  # fmt: skip


@dataclass
class _Launched:
    """A round under way."""

    tree: Tree
    record: Tensor
    events: tuple  # start, drafted, end


class DevicePasses:
    """The passes of one reply on a DeviceModel (engine/passes.py's protocol)."""

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
        self._queue: deque[_Launched] = deque()
        self._records = [_Record(model.trunk.device) for _ in range(QUEUED + 1)]
        self._turn = 0
        self._reply = self._root = 0
        self._waiting = 0  # rows in the ring that the head has not seen, at most
        self._tree: Tree | None = None
        self._over = True
        model.user = self  # one reply at a time: an earlier one that was left unfinished cannot go on
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
            self._model.head.prefill(following, hidden[:-1], positions[:, :-1], cache=cache)
        self._last = hidden[-1:].clone(), positions[:, -1:].clone()

    def first(self, logits: Tensor) -> int:
        model, round, state = self._model, self._model.round, self.session.state
        settings = self._settings
        with torch.inference_mode():
            sampling.write_settings(
                model.settings, seed=self._seed, greedy=settings.is_greedy, temperature=settings.temperature,
                top_k=settings.top_k, top_p=settings.top_p, min_p=settings.min_p,
                repetition_penalty=settings.repetition_penalty, presence_penalty=settings.presence_penalty,
            )  # fmt: skip
            token, drawn = model.draw_first(logits)
            if not drawn:
                raise _no_token()
            words = rounds.state_words(
                length=state.length, position=state.next_position, buffer=state.buffer, pending=(), root=token,
                reply=1, limit=self._max_tokens, capacity=self.session.capacity, stops=sorted(self._stop_ids),
                head_length=model.head_cache.length if self._drafts else 0, waiting=int(self._drafts),
            )  # fmt: skip
            round.state.copy_(torch.tensor(words, dtype=torch.int32))
            round.marks[token] = 1
            if self._drafts:
                round.ring.hidden[:1].copy_(self._last[0])
                round.ring.following[0], round.ring.positions[0] = token, self._last[1][0, 0].to(torch.int32)
                self._waiting = 1
        self._reply, self._root, self._tree, self._over = 1, token, None, token in self._stop_ids
        return token

    def next(self) -> Outcome:
        if self._model.user is not self:
            raise FastQwenError("Another reply was started on this model before this one was finished: run it again.")
        while not self._over and len(self._queue) < QUEUED:
            self._launch(self._planner.tree())
        return self._take()

    def close(self):
        """Waits for what is under way, and tells the session where it has come to."""
        while self._queue:
            self._take()
        if not self._reply or not self.session.valid or self._model.user is not self:
            return
        words = self._model.round.state.tolist()
        pending = words[rounds.PATH : rounds.PATH + words[rounds.PENDING]]
        move = tuple(words[rounds.MOVE : rounds.MOVE + 2])
        with torch.inference_mode():
            self.session.state.adopt(
                length=words[rounds.LENGTH], position=words[rounds.POSITION], buffer=words[rounds.BUFFER],
                pending=pending, move=move if move[0] >= 0 else None,
            )  # fmt: skip

    def report(self) -> dict:
        return self._planner.scores()

    def _launch(self, tree: Tree):
        model = self._model
        record = self._records[self._turn]
        self._turn = (self._turn + 1) % len(self._records)
        with torch.inference_mode():
            if tree != self._tree:
                model.set_tree(tree)
                self._tree = tree
            record.start.record()
            if tree.depth or self._waiting > rounds.RING - 2 * SLOTS:
                self._draft(tree)
            record.drafted.record()
            model.run("verify")
            record.host.copy_(model.round.record, non_blocking=True)
            record.end.record()
        self._waiting += (tree.depth + 1) if self._drafts else 0
        self._queue.append(_Launched(tree, record.host, (record.start, record.drafted, record.end)))

    def _draft(self, tree):
        for _ in range(-(-max(self._waiting - SLOTS, 0) // SLOTS)):
            self._model.run("catch up")
        self._model.run("first")
        for _ in range(tree.depth - 1):
            self._model.run("next")
        self._waiting = 0

    def _take(self) -> Outcome:
        launched = self._queue.popleft()
        start, drafted, end = launched.events
        end.synchronize()
        words = launched.record.tolist()
        _, steps, count, stopped, done, error, rows = words[:7]
        path, emitted = tuple(words[8 : 8 + steps]), tuple(words[16 : 16 + count])
        self._over = self._over or bool(done)
        if error:
            self.session.valid = False
            raise _no_token()
        room = min(self._max_tokens - self._reply, self.session.room)
        self._reply += count
        self.session.tokens += self._committed(steps, emitted)
        accepted = Accepted(path, emitted, bool(stopped))
        outcome = Outcome(
            launched.tree, accepted, None, bool(stopped) or count == room,
            start.elapsed_time(drafted) / 1e3, drafted.elapsed_time(end) / 1e3,
        )  # fmt: skip
        if rows:
            self._planner.observe(
                launched.tree, accepted, cut=outcome.cut, draft_seconds=outcome.draft_seconds,
                verify_seconds=outcome.verify_seconds,
            )  # fmt: skip
        return outcome

    def _committed(self, steps: int, emitted: Sequence[int]) -> list[int]:
        """The tokens of a path: the root, which was the last one emitted before, and what was emitted on the way."""
        tokens = [self._root, *emitted][:steps]
        if emitted:
            self._root = emitted[-1]
        return tokens


class _Record:
    """Where one round's record and times arrive."""

    def __init__(self, device):
        on_gpu = device.type == "cuda"
        self.host = torch.zeros(rounds.RECORD, dtype=torch.int32, pin_memory=on_gpu)
        make = (lambda: torch.cuda.Event(enable_timing=True)) if on_gpu else _HostEvent
        self.start, self.drafted, self.end = make(), make(), make()


class _HostEvent:
    """A CUDA event's methods for passes that run as they are called."""

    def record(self):
        import time

        self.seconds = time.perf_counter()

    def synchronize(self):
        pass

    def elapsed_time(self, end: "_HostEvent") -> float:
        return (end.seconds - self.seconds) * 1e3


def _no_token() -> FastQwenError:
    return FastQwenError(
        "The model's highest logit is no finite number, so no token can be drawn: the weights are damaged or overflow "
        "in this precision, or the temperature is too small; check the file, or load it with another dtype."
    )
