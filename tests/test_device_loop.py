"""The host's side of rounds on a device: with a scripted model, whatever is drafted, the loop yields its text."""

from types import SimpleNamespace

import pytest
import torch
from fastqwen.engine import GREEDY, SamplingSettings, device_passes
from fastqwen.engine.device_model import write_settings
from fastqwen.engine.device_passes import DevicePasses
from fastqwen.engine.host_drawn_passes import HostDrawnPasses
from fastqwen.engine.loop import run
from fastqwen.engine.report import INTERRUPTED, LENGTH, STOP_TOKEN, Meter
from fastqwen.engine.sampling import Sampler
from fastqwen.kernels import rounds, sampling
from fastqwen.mtp.tree import OFF, Tree
from fastqwen.weights import FastQwenError

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="test_device_passes runs real models there")
CPU = torch.device("cpu")
TEXT = [(7 * n + n // 5) % 40 + 3 for n in range(60)]  # the token at every index of the reply
PROMPT = [1, 2, 3]


class Event:
    """A CUDA event where everything runs as it is called."""

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        pass

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return 1.0


class Scripted:
    """A DeviceModel whose target writes TEXT; its drafts are right at every index that is no multiple of `wrong`."""

    def __init__(self, wrong, text=TEXT):
        self.wrong, self.text, self.user, self.parts = wrong, text, None, []
        self.trunk, self.head_cache = SimpleNamespace(device=CPU), SimpleNamespace(adopt=lambda *_: None, length=2)
        self.round = rounds.allocate(64, 8, torch.float32, torch.ones(2))
        self.shown: list[int] = []  # what a shortlist for drafts is told of the reply
        self.broken = None  # an index at which nothing can be drawn

    def set_tree(self, tree):
        places = [max(rank - 1, 0) for rank in tree.ranks]
        self.round.shape.copy_(torch.tensor(rounds.shape_words(tree.parents, places), dtype=torch.int32))

    def set_sampling(self, settings, seed):
        pass

    def draw_first(self, logits):
        return TEXT[0], True

    def run(self, part):
        self.parts.append(part)
        round, reply = self.round, int(self.round.state[rounds.REPLY])
        if part == "verify":
            rounds.begin_pass(round)
            for slot in range(8):
                index = reply + int(round.shape[rounds.DEPTH + slot])
                round.drawn[slot] = self.text[min(index, len(self.text) - 1)]
                round.errors[slot] = int(index == self.broken)
            rounds.accept(round)
        else:
            if part != "next":
                rounds.begin_head(round, keep=int(part == "catch up"))
            level = int(round.state[rounds.LEVEL])
            round.state[rounds.LEVEL] += 1  # as the draw of a list does
            right = self.text[min(reply + level - 1, len(self.text) - 1)]
            place = 1 if (reply + level) % self.wrong == 0 else 0  # a wrong first choice, and the right one behind it
            round.lists[level - 1] = torch.arange(50, 58)
            round.lists[level - 1, place] = right

    def draft(self, depth):
        for level in range(depth):
            self.run("next" if level else "first")


class Halves(Scripted):
    """The same with "verify" in two parts: the target's logits at every index of the reply, and acceptance."""

    def __init__(self, wrong, text, logits):
        super().__init__(wrong, text)
        self.target, self.logits, self.vocab = logits, None, logits.shape[1]

    def run(self, part):
        round = self.round
        if part == "rows":
            rounds.begin_pass(round)
            depth = round.shape[rounds.DEPTH : rounds.DEPTH + 8].long()
            self.logits = self.target[(int(round.state[rounds.REPLY]) + depth).clamp(max=len(self.target) - 1)]
        elif part == "accept":
            rounds.accept(round)
        else:
            super().run(part)


class Session:
    """The committed tokens, and what they are told at the end."""

    def __init__(self, capacity):
        self.tokens, self.capacity, self.valid, self.adopted = [], capacity, True, None
        self.logits = torch.zeros(64)
        self.state = SimpleNamespace(length=0, next_position=0, buffer=0, adopt=self.adopt)

    @property
    def room(self):
        return self.capacity - len(self.tokens)

    def prefill(self, ids, on_chunk, on_hidden, pictures):
        on_hidden(torch.zeros(len(ids), 8), torch.zeros(len(ids), 8), torch.arange(len(ids)).expand(3, -1))
        self.tokens += ids
        self.state.length = self.state.next_position = len(ids)
        return self.logits

    def adopt(self, **state):
        self.adopted = state


class Turns:
    def __init__(self, trees):
        self.trees, self.seen, self.passes = trees, [], 0

    def tree(self):
        self.passes += 1
        return self.trees[(self.passes - 1) % len(self.trees)]

    def observe(self, tree, accepted, **measured):
        self.seen.append((tree, len(accepted.path)))

    def scores(self):
        return {}


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch):
    zeros = torch.zeros
    monkeypatch.setattr("torch.cuda.Event", Event)
    monkeypatch.setattr(device_passes.torch, "zeros", lambda *sizes, pin_memory=False, **rest: zeros(*sizes, **rest))


def reply(trees, *, wrong=4, tokens=40, capacity=100, stop_ids=(), broken=None, on_step=lambda p: None):
    model, session, planner, meter = Scripted(wrong), Session(capacity), Turns(trees), Meter(CPU)
    model.broken = broken
    model.head = SimpleNamespace(extend=lambda *_, **options: None, short=SimpleNamespace(add=model.shown.extend))
    passes = DevicePasses(
        model, session, planner, GREEDY, seed=0, drafts=trees != [OFF], stop_ids=stop_ids, max_tokens=tokens
    )
    steps = run(passes, PROMPT, stop_ids=stop_ids, max_tokens=tokens, on_step=on_step, meter=meter)
    return [token for new in steps for token in new], session, planner, meter, model


TREES = [[OFF], [Tree.chain(1)], [Tree.chain(5)], [Tree((7,))], [Tree((2, 2, 2, 1))], [OFF, Tree((1, 1, 5)), OFF, OFF]]


@pytest.mark.parametrize(
    "trees", TREES, ids=lambda trees: "+".join("-".join(map(str, t.widths)) or "off" for t in trees)
)
def test_the_text_is_the_targets_and_the_session_holds_what_was_committed(trees):
    text, session, planner, meter, model = reply(trees)
    assert text == TEXT[:40] and meter.stop_reason == LENGTH
    assert session.tokens == [*PROMPT, *TEXT[:39]]  # the last one is drawn and not fed
    assert session.adopted["length"] == session.adopted["position"] == 3 + 39
    assert model.shown == ([] if trees == [OFF] else TEXT[:40])
    # A round that was queued when the reply was over is not told to the planner.
    assert sum(length for _, length in planner.seen) == 39
    assert model.parts.count("verify") in (len(planner.seen), len(planner.seen) + 1)


def test_right_second_choices_are_accepted_as_leaves():
    acceptance = reply([Tree((2, 2, 2))])[3].acceptance  # by level and rank
    assert any(len(level) > 1 and level[1] for level in acceptance)


@pytest.mark.parametrize("trees", [[OFF], [Tree((2, 2, 2, 1))]], ids=["off", "tree"])
def test_stop_tokens_limits_and_capacity_end_the_text(trees):
    stop = TEXT[17]
    text, session, _, meter, _ = reply(trees, stop_ids=(stop,))
    end = TEXT.index(stop)
    assert text == TEXT[:end] and meter.stop_reason == STOP_TOKEN and session.tokens == [*PROMPT, *TEXT[:end]]
    assert reply(trees, tokens=1)[0] == TEXT[:1]
    text, session, *_ = reply(trees, capacity=len(PROMPT) + 9)
    assert text == TEXT[:10] and session.room == 0


def test_a_token_that_cannot_be_drawn_is_one_clear_error_and_ends_the_session():
    with pytest.raises(FastQwenError, match="no finite number"):
        reply([Tree((2, 2, 2, 1))], broken=11)


@pytest.mark.parametrize("trees", [[OFF], [Tree.chain(5)]], ids=["off", "chain"])
def test_a_reply_that_was_ended_before_hears_nothing_of_a_token_that_cannot_be_drawn(trees):
    """The pass that meets it was queued already, or holds it behind tokens that are good."""
    text, session, _, meter, _ = reply(trees, wrong=100, broken=11, on_step=lambda p: p.done >= 11)
    assert text == TEXT[:11] and meter.stop_reason == INTERRUPTED and not session.valid
    with pytest.raises(FastQwenError, match="no finite number"):
        reply(trees, wrong=100, broken=11)


@pytest.mark.parametrize("before", ["launch is noted", "record is read"])
def test_a_reply_that_is_interrupted_inside_a_pass_leaves_a_session_that_is_marked(before, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    model, session = Scripted(4), Session(100)
    passes = DevicePasses(model, session, Turns([OFF]), GREEDY, seed=0, drafts=False, stop_ids=(), max_tokens=40)
    steps = run(passes, PROMPT, stop_ids=(), max_tokens=40, on_step=lambda p: None, meter=Meter(CPU))
    assert [token for _ in range(3) for token in next(steps)] == TEXT[:3] and session.valid
    if before == "record is read":
        ends = iter([interrupt])
        monkeypatch.setattr(Event, "synchronize", lambda event: next(ends, lambda: None)())
    else:
        verify = passes._verify
        monkeypatch.setattr(passes, "_verify", lambda tree: (verify(tree), interrupt()))
    with pytest.raises(KeyboardInterrupt):
        next(steps)
    assert not session.valid and session.adopted is None


def test_rows_that_waited_are_all_seen_by_the_head_before_a_draft():
    *_, model = reply([*[OFF] * 12, Tree.chain(1)], wrong=100)
    assert "catch up" in model.parts
    state = model.round.state
    assert state[rounds.HEAD_LENGTH] >= 2 + 13 and state[rounds.READ] <= state[rounds.WRITTEN]


OPEN = SamplingSettings(temperature=1.0, top_k=0, top_p=0.9, repetition_penalty=1.3, presence_penalty=0.4)


def test_tokens_that_the_host_draws_are_the_samplers_with_all_that_came_before():
    """A vocabulary of 64 and penalties, so that a token depends on the reply so far; drafts are right but for some."""
    logits = torch.randn(14, 64, generator=torch.Generator().manual_seed(2)) * 2
    sampler, text = Sampler(OPEN, 9, 64), []
    for index, row in enumerate(logits):
        text.append(sampler.draw(row, torch.tensor(text, dtype=torch.long), index))
    model, session = Halves(4, text, logits), Session(100)
    session.logits, model.head = logits[0], SimpleNamespace(extend=lambda *_, **options: None, short=None)
    model.set_sampling = lambda settings, seed: write_settings(sampling.new_settings(CPU), settings, seed)
    passes = HostDrawnPasses(
        model, session, Turns([Tree((2, 2)), OFF, Tree.chain(3)]), OPEN, seed=9, drafts=True, stop_ids=(),
        max_tokens=12,
    )  # fmt: skip
    meter = Meter(CPU)
    steps = run(passes, PROMPT, stop_ids=(), max_tokens=12, on_step=lambda p: None, meter=meter)
    assert [token for new in steps for token in new] == text[:12]
    assert session.tokens == [*PROMPT, *text[:11]] and meter.accepted > 0 and "verify" not in model.parts


def test_a_draft_behind_which_the_host_can_draw_nothing_ends_the_reply_one_pass_later():
    logits = torch.randn(14, 64, generator=torch.Generator().manual_seed(2)) * 2
    settings, text = SamplingSettings(temperature=1.0, top_k=0, top_p=1.0), []
    for index, row in enumerate(logits):
        text.append(Sampler(settings, 9, 64).draw(row, torch.tensor(text, dtype=torch.long), index))
    logits[6] = float("nan")
    model, session, found = Halves(100, text, logits), Session(100), []
    session.logits, model.head = logits[0], SimpleNamespace(extend=lambda *_, **options: None, short=None)
    model.set_sampling = lambda settings, seed: write_settings(sampling.new_settings(CPU), settings, seed)
    passes = HostDrawnPasses(
        model, session, Turns([Tree.chain(5)]), settings, seed=9, drafts=True, stop_ids=(), max_tokens=12
    )
    with pytest.raises(FastQwenError, match="highest logit"):
        for tokens in run(passes, PROMPT, stop_ids=(), max_tokens=12, on_step=lambda p: None, meter=Meter(CPU)):
            found += tokens
    assert found == text[:6] and not session.valid
