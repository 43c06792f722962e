"""Buffers and captured graphs of rounds on a GPU, which replies use one after another.

Everything that differs between rounds is on the device (kernels/rounds.py), so the parts of a round are captured once
and replayed for every tree, length and outcome.
"""

import logging
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from torch import Tensor

from ..kernels import rounds, sampling
from ..kernels.rows import SLOTS
from ..model.trunk import Trunk
from ..mtp.head import MtpHead
from ..mtp.tree import Tree
from ..weights import FastQwenError
from ..weights.backend import dependent_launch, one_line
from .arena import Arena, arena_for
from .capture import capture, capture_stream, levels
from .sampling import SamplingSettings

logger = logging.getLogger(__name__)

DEEPEST = SLOTS - 1  # levels of a draft


def write_settings(target: sampling.Settings, settings: SamplingSettings, seed: int):
    """A request's settings as kernels/sampling.py's."""
    sampling.write_settings(
        target, seed=seed, greedy=settings.is_greedy, temperature=settings.temperature, top_k=settings.top_k,
        top_p=settings.top_p, min_p=settings.min_p, repetition_penalty=settings.repetition_penalty,
        presence_penalty=settings.presence_penalty,
    )  # fmt: skip


class DeviceModel:
    """A trunk's and its head's buffers for sequences of up to `capacity` tokens, and the parts of a round over them.

    vocab    how many ids can be drawn
    on_part  told (parts done, parts in all) before and while they are compiled and captured
    graphs   capture the parts; otherwise they are launched kernel by kernel

    All parts run once at first, which compiles them. One whose kernels fail there is said once and is `failure`.
    """

    def __init__(
        self,
        trunk: Trunk,
        head: MtpHead | None,
        *,
        capacity: int,
        vocab: int,
        graphs: bool = True,
        on_part: Callable[[int, int], object] = lambda done, total: None,
    ):
        self.trunk, self.head, self.capacity, self.vocab = trunk, head, capacity, vocab
        self.failure: str | None = None  # why a part does not run at these sizes
        self.user: object = None  # stands for the reply whose sequence the buffers hold
        config, device = trunk.config, trunk.device
        with torch.inference_mode():
            self.state = trunk.new_state(capacity)
            self.head_cache = None if head is None else head.new_cache(capacity, kind=trunk.kv, device=device)
            self.round = rounds.allocate(config.vocab_size, config.hidden_size, trunk.dtype, trunk.rotary.inverse)
            self.settings = sampling.new_settings(device)
            self._dependent = dependent_launch(device)
            self._workspace = sampling.allocate(vocab, device)
            short = None if head is None else head.short
            self._short_workspace = None if short is None else sampling.allocate(short.entries, device)
            # The head's output that proposes, in slot 0 of rows that are otherwise zero.
            self._row = torch.zeros(SLOTS, config.hidden_size, dtype=trunk.dtype, device=device)
            self._shapes: dict[Tree, Tensor] = {}
            self._graphs: dict[str, torch.cuda.CUDAGraph] = {}
            self._drafts: dict[int, torch.cuda.CUDAGraph] = {}  # of several levels, by their number
            self._pool = None  # the graphs' memory
            self._arenas: dict[str, Arena] = {}  # the same where they have none of their own
            self.seconds: dict[str, float] = {}  # of each part, where it was captured
            self.logits: Tensor | None = None  # of the part "rows"
            # Functions, not methods: an object that refers to itself keeps its memory until the garbage collector runs.
            self.parts = {"verify": DeviceModel._verify}
            if self.head_cache is not None:
                self.parts |= {
                    "catch up": DeviceModel._catch_up, "first": DeviceModel._first, "next": DeviceModel._next,
                }  # fmt: skip
        if self.usable:
            self._prepare(self.parts, graphs, on_part)

    @property
    def shared(self) -> tuple[object, ...]:
        """What replies share, weights apart."""
        buffers = self.state, self.head_cache, self.round, self.settings, self._row
        return *buffers, self._workspace, self._short_workspace, self._arenas

    def release(self):
        """Gives the memory back, whoever still refers to this: graphs first, which know the addresses of the rest. The
        reply that used it cannot go on."""
        self.user = None
        if self.trunk.device.type == "cuda":
            torch.cuda.synchronize(self.trunk.device)
        for captured in self._graphs, self._drafts, self._arenas:
            captured.clear()
        self.parts, self._shapes = {}, {}
        self.state.layers.clear()  # a session of a reply that was left in its middle holds the state
        self.state = self.head_cache = self.round = self.settings = self._workspace = self._row = None
        self.logits = self._short_workspace = self._pool = None

    @property
    def usable(self) -> bool:
        """Whether all of it runs by kernels that read what differs between passes on the device."""
        return self.failure is None and self._by_kernels

    @property
    def _by_kernels(self) -> bool:
        return self.state.runs_on_device and (self.head is None or self.head_cache.scratch is not None)

    @property
    def captured(self) -> bool:
        return bool(self._graphs)

    def draw_on_host(self):
        """Makes "verify" available in two parts between which the host draws: "rows" leaves the logits [SLOTS, V] of a
        pass in `logits`, "accept" goes by what was put into `round.drawn` and `round.errors`."""
        if "rows" in self.parts:
            return
        halves = {"rows": DeviceModel._verify_rows, "accept": DeviceModel._accept}
        self.parts |= halves
        self._prepare(halves, self.captured, lambda done, total: None)

    def run(self, part: str):
        """Launches a part of a round."""
        graph = self._graphs.get(part)
        if graph is not None:
            graph.replay()
        else:
            with torch.inference_mode():
                self.parts[part](self)

    def draft(self, depth: int):
        """Launches the lists of that many levels, at least one."""
        if depth in self._drafts:
            return self._drafts[depth].replay()
        for part in levels(depth):
            self.run(part)

    def set_tree(self, tree: Tree):
        """The tree of the rounds that are launched from now on."""
        words = self._shapes.get(tree)
        if words is None:
            places = [max(rank - 1, 0) for rank in tree.ranks]
            host = torch.tensor(rounds.shape_words(tree.parents, places), dtype=torch.int32)
            words = self._shapes[tree] = host.to(self.trunk.device)
        self.round.shape.copy_(words)

    def set_sampling(self, settings: SamplingSettings, seed: int):
        """How tokens are chosen from now on."""
        write_settings(self.settings, settings, seed)

    def draw_first(self, logits: Tensor) -> tuple[int, bool]:
        """(a reply's first token, whether it could be drawn) from logits [V], after `rounds.forget_reply`; waits."""
        round = self.round
        self.set_tree(Tree(()))
        round.state.zero_()
        token, error = round.drawn[:1], round.errors[:1]
        sampling.draw(
            logits[None].contiguous(), self.settings, round.seen, self._workspace, vocab=self.vocab, tokens=token,
            errors=error,
        )  # fmt: skip
        return int(token), not int(error)

    def _verify(self):
        round, logits = self.round, self.trunk.decode(self.round, self.state)
        sampling.draw(
            logits, self.settings, round.seen, self._workspace, vocab=self.vocab, tokens=round.drawn,
            errors=round.errors, live=round.live, dependent=self._dependent,
        )  # fmt: skip
        rounds.accept(round, dependent=self._dependent)

    def _verify_rows(self):
        self.logits = self.trunk.decode(self.round, self.state)

    def _accept(self):
        rounds.accept(self.round)

    def _catch_up(self):
        """Up to eight waiting rows, one left for `first`: nobody reads their outputs."""
        rounds.begin_head(self.round, keep=1, dependent=self._dependent)
        self._rows(self.head.extend_slots, self.round.ring.hidden, self.round.head.gather)

    def _first(self):
        """The last waiting rows, and the first level's list."""
        rounds.begin_head(self.round, dependent=self._dependent)
        self._propose(self._rows(self.head.decode, self.round.ring.hidden, self.round.head.gather))

    def _next(self):
        """The next level's list: the draw before has set its row."""
        self._propose(self._rows(self.head.decode, self._row, None))

    def _rows(self, run, hidden, gather):
        """What the head makes of its rows by `run`, from rows `gather` of hidden states."""
        rows, dtype = self.round.head, self.trunk.dtype
        embeddings, places = self.trunk.embedding.table, rows.tokens
        if embeddings is None or not embeddings.as_stored(dtype):
            embeddings, places = self.trunk.embedding.embed(rows.tokens, dtype), None
        return run(
            embeddings, hidden, rows.cos, rows.sin, control=rows.attention, cache=self.head_cache, at=(places, gather)
        )

    def _propose(self, output):
        rows, short = self.round.head, self.head.short
        self.head.feed(output, rows.last, self._row[:1])
        hidden = self.head.for_logits(self._row, kernels=True)
        if short is None:
            logits, entries, shortlist = self.trunk.head.verify(hidden, SLOTS)[0][:1], self.vocab, None
        else:
            logits, entries, shortlist = short.decode(hidden), short.entries, short.shortlist
        sampling.draw(
            logits, self.settings, self.round.head_seen, self._short_workspace or self._workspace, vocab=entries,
            tokens=rows.drawn, errors=rows.errors, candidates=self.round.lists, shortlist=shortlist,
            level=self.round.state[rounds.LEVEL : rounds.LEVEL + 1], head_row=self.round.head_row,
            dependent=self._dependent,
        )  # fmt: skip

    def _timed(self, name) -> float:
        """Seconds of a part over a state that is done: of its weights and launches, though not of live rows."""
        events = [torch.cuda.Event(enable_timing=True) for _ in range(8)]
        for event in events:
            event.record()
            self.run(name)
        torch.cuda.synchronize(self.trunk.device)
        return median(a.elapsed_time(b) for a, b in zip(events[1:], events[2:], strict=False)) / 1e3

    @torch.inference_mode()
    def _prepare(self, parts, graphs, on_part):
        """Every part runs once as it is, over a state that is done and so changes nothing, and is then captured."""
        self.set_tree(Tree(()))
        self.round.state.zero_()
        self.round.state[rounds.DONE] = 1
        if self.trunk.device.type != "cuda" or not (graphs and self.trunk.captures):
            self._warm_up(parts, on_part)
            return
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        stream = capture_stream(self.trunk.device)
        stream.wait_stream(torch.cuda.current_stream(self.trunk.device))
        with torch.cuda.stream(stream):
            works = self._warm_up(parts, on_part)
        torch.cuda.current_stream(self.trunk.device).wait_stream(stream)
        if works:
            self._capture(parts, stream)

    def _warm_up(self, parts, on_part) -> bool:
        """Whether all of them run. The check before first use (engine/device_check.py) took small sizes: at a model's
        own a compiler can still fail, or a kernel want more than the device has."""
        for done, (name, part) in enumerate(parts.items()):
            on_part(done, len(parts))
            try:
                part(self)
                if self.trunk.device.type == "cuda":
                    torch.cuda.current_stream(self.trunk.device).synchronize()
            except (torch.cuda.OutOfMemoryError, FastQwenError):
                raise
            except Exception as error:  # whatever a compiler or driver raises
                self.failure = f"{name}: {one_line(error)}"
                logger.warning(
                    "FastQwen: a kernel of a decoding pass fails on %s at this model's sizes (%s); the host drives "
                    "passes in plain torch, which is slower.", self.trunk.device, self.failure,
                )  # fmt: skip
                return False
        on_part(len(parts), len(parts))
        return True

    def _capture(self, parts, stream):
        graphs, arenas, drafts = {}, {}, {}

        def captured(*names):
            replaced = self.logits  # kept meanwhile, for the same reason as no_collection
            together = [(partial(parts[name], self), arenas[name]) for name in names]
            graph = capture(together, pool=self._pool, stream=stream)
            del replaced
            return graph

        try:
            for name, part in parts.items():
                arenas[name] = arena_for(part, self, device=self.trunk.device)
                graphs[name] = captured(name)
            if "next" in parts:  # between two graphs the GPU waits for microseconds
                drafts = {depth: captured(*levels(depth)) for depth in range(2, DEEPEST + 1)}
            self._graphs |= graphs
            self._drafts |= drafts
            self._arenas |= arenas
            self.seconds |= {name: self._timed(name) for name in parts}
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:
            self.trunk.captures = False  # said once, and not tried again for larger buffers
            logger.warning(
                "FastQwen: no CUDA graphs on %s (%s); replies are slower.", self.trunk.device, one_line(error)
            )
