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
from scripted_rounds import CPU, TEXT, Event, Halves, Scripted, Session, Turns

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="test_device_passes runs real models there")
PROMPT = [1, 2, 3]


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
    text, session, planner, meter, _ = reply(trees, stop_ids=(stop,))
    end = TEXT.index(stop)
    cuts = [planner.cuts]
    assert text == TEXT[:end] and meter.stop_reason == STOP_TOKEN and session.tokens == [*PROMPT, *TEXT[:end]]
    assert reply(trees, tokens=1)[0] == TEXT[:1]
    text, session, planner, *_ = reply(trees, capacity=len(PROMPT) + 9)
    assert text == TEXT[:10] and session.room == 0
    cuts += [planner.cuts, reply(trees, tokens=10)[2].cuts]
    assert all(each == [False] * (len(each) - 1) + [True] for each in cuts)  # what a limit ends is no miss of the head


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


def test_rows_that_wait_are_seen_before_the_ring_is_full(monkeypatch):
    monkeypatch.setattr(rounds, "RING", 32)
    *_, planner, _, model = reply([*[OFF] * 30, Tree.chain(1)], tokens=30)
    assert {tree for tree, _ in planner.seen} == {OFF} and "catch up" in model.parts
    state = model.round.state
    # The prompt's last row and 29 passes' wait in turn; at most 32 lie in the ring.
    assert 2 + 16 <= state[rounds.HEAD_LENGTH] == 2 + state[rounds.READ] <= state[rounds.WRITTEN] + 2 == 2 + 1 + 29


def test_a_reply_cannot_go_on_once_another_has_the_buffers():
    model, sessions, replies = Scripted(4), (Session(100), Session(100)), []
    model.head = SimpleNamespace(extend=lambda *_, **options: None, short=SimpleNamespace(add=model.shown.extend))
    for session in sessions:
        passes = DevicePasses(model, session, Turns([OFF]), GREEDY, seed=0, drafts=True, stop_ids=(), max_tokens=9)
        replies.append(run(passes, PROMPT, stop_ids=(), max_tokens=9, on_step=lambda p: None, meter=Meter(CPU)))
        assert [token for _ in range(3) for token in next(replies[-1])] == TEXT[:3]
    shown = len(model.shown)
    with pytest.raises(FastQwenError, match="Another reply was started"):
        next(replies[0])
    assert sessions[0].adopted is None and len(model.shown) == shown  # state and shortlist are the other's
    assert [token for new in replies[1] for token in new] == TEXT[3:9] and sessions[1].adopted["length"] == 3 + 8


@pytest.mark.parametrize("steps_before", [0, 3])
def test_a_reply_whose_buffers_were_given_back_says_so(steps_before):
    """In the middle of its text, and by who is told of its prompt's progress."""
    model, session = Scripted(4), Session(100)
    model.head = SimpleNamespace(extend=lambda *_, **options: None, short=None)
    passes = DevicePasses(model, session, Turns([OFF]), GREEDY, seed=0, drafts=True, stop_ids=(), max_tokens=9)
    steps = run(passes, PROMPT, stop_ids=(), max_tokens=9, on_step=lambda p: None, meter=Meter(CPU))
    assert [token for _ in range(steps_before) for token in next(steps)] == TEXT[:steps_before]
    model.user = None  # as DeviceModel.release
    with pytest.raises(FastQwenError, match="was given back"):
        next(steps)
    assert session.adopted is None


def test_more_tokens_than_the_words_of_a_state_hold_may_be_asked_for():
    text, session, planner, meter, _ = reply([OFF, Tree((2, 2))], tokens=2**40, capacity=len(PROMPT) + 9)
    assert text == TEXT[:10] and session.room == 0 and meter.stop_reason == LENGTH


def test_a_prompts_rows_have_its_rotary_positions_pictures_included():
    positions, rows, given = torch.arange(24).view(3, 8), torch.randn(2, 8, 4), []
    model = Scripted(4)
    model.head = SimpleNamespace(extend=lambda *tensors, cache: given.append(tensors), short=None)
    passes = DevicePasses(model, Session(100), Turns([OFF]), GREEDY, seed=0, drafts=True, stop_ids=(), max_tokens=9)
    for end in (slice(0, 1), slice(1, 6), slice(6, 8)):
        passes.prompt(rows[0, end], rows[1, end], positions[:, end])
    following, hidden, places = zip(*given, strict=True)
    assert torch.equal(torch.cat(following), rows[0, 1:]) and torch.equal(torch.cat(hidden), rows[1, :-1])
    assert torch.equal(torch.cat(places, 1), positions[:, :-1])
    assert torch.equal(passes.waiting_row[0], rows[1, -1:]) and torch.equal(passes.waiting_row[1], positions[:, -1:])


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
