"""The generate loop: same text whatever is drafted, cuts at limits, reports, interrupts."""

import itertools

import pytest
import tiny
import torch
from fastqwen.engine import GREEDY, Progress, SamplingSettings
from fastqwen.engine.loop import generate
from fastqwen.engine.report import Meter
from fastqwen.engine.sampling import Sampler
from fastqwen.engine.session import Session
from fastqwen.model.load import load_model
from fastqwen.mtp.drafts import NoDrafts
from fastqwen.mtp.tree import OFF, Tree, all_shapes
from fastqwen.weights import Checkpoint, FastQwenError

PROMPT = list(range(40, 90))
TOKENS = 32
EVERYTHING = SamplingSettings(
    temperature=1.0, top_k=40, top_p=0.95, min_p=0.02, repetition_penalty=1.2, presence_penalty=0.3
)


@pytest.fixture(scope="module", params=tiny.WHERE)
def trunk(request, tmp_path_factory):
    device, dtype, kv = request.param
    folder = tiny.save_folder(tiny.oracle("gqa4"), tmp_path_factory.mktemp("loop"))
    return load_model(Checkpoint.open(folder), torch.device(device), dtype, kv=kv).trunk


class ScriptedDrafts:
    """Drafts the known text with a share of wrong tokens, in shapes that change from pass to pass."""

    def __init__(self, text, shapes, right=0.7, seed=0):
        self.text, self.shapes, self.right = text, shapes, right
        self.generator = torch.Generator().manual_seed(seed)
        self.longest = 0

    def tree(self):
        return self.shapes[int(torch.randint(len(self.shapes), (1,), generator=self.generator))]

    def prompt(self, embeddings, hidden, positions):
        pass

    def draft(self, tree, reply):
        tokens = []
        for slot in range(1, tree.rows):
            index = len(reply) + tree.depths[slot] - 1
            known = self.text[index] if index < len(self.text) else 3
            right = bool(torch.rand((), generator=self.generator) < self.right)
            # Of the siblings only one can be right; the chain's own candidate is right most often.
            hit = right if tree.ranks[slot] == 1 else not right and tree.ranks[slot] == 2
            tokens.append(known if hit else (known + slot) % 320)  # a fixed one could be right by chance
        return tokens

    def observe(self, outcome):
        self.longest = max(self.longest, len(outcome.accepted.path) - 1)
        assert outcome.hidden.shape[0] == len(outcome.accepted.path)


def run(trunk, drafter, settings, *, seed=1, max_tokens=TOKENS, stop_ids=(), on_step=lambda p: None, capacity=256):
    session, meter = Session(trunk, capacity), Meter(trunk.device)
    passes = generate(
        session, PROMPT, drafter, Sampler(settings, seed, 320),
        stop_ids=stop_ids, max_tokens=max_tokens, on_step=on_step, meter=meter,
    )  # fmt: skip
    text = [token for tokens in passes for token in tokens]
    return text, session, meter


@pytest.fixture(scope="module", params=[GREEDY, EVERYTHING], ids=["greedy", "everything_on"])
def plain(request, trunk):
    text, session, _ = run(trunk, NoDrafts(), request.param)
    return request.param, text, session


def test_any_drafts_in_any_shape_give_the_same_text_and_state(trunk, plain):
    settings, wanted, plain_session = plain
    for shapes in ([Tree.chain(5)], list(all_shapes()), [OFF, Tree.chain(3)], [Tree((7,))]):
        for right in (0.0, 0.7, 1.0) if OFF not in shapes else (0.7, 1.0):  # none right: as every pass were off
            drafter = ScriptedDrafts(wanted, shapes, right)
            found, session, meter = run(trunk, drafter, settings)
            assert found == wanted
            assert session.tokens == plain_session.tokens
            if right == 1.0:
                assert drafter.longest == max(tree.depth for tree in shapes) or len(shapes) > 3
                assert meter.passes < TOKENS


def test_depths_3_0_2_0_in_turn_leave_no_stale_state(trunk, plain):
    """Everything is accepted, so a pass that keeps several rows is followed by one without drafts each time."""
    settings, wanted, plain_session = plain
    shapes = itertools.cycle([Tree.chain(3), OFF, Tree.chain(2), OFF])
    drafter = ScriptedDrafts(wanted, (), right=1.0)
    drafter.tree = lambda: next(shapes)
    found, session, meter = run(trunk, drafter, settings)
    assert found == wanted and session.tokens == plain_session.tokens
    assert {"1-1-1", "off", "1-1"} <= set(meter.shapes) and meter.passes <= 2 * TOKENS // 3


def test_drafts_are_accepted_at_all_and_counted(trunk, plain):
    settings, wanted, _ = plain
    _, _, meter = run(trunk, ScriptedDrafts(wanted, [Tree((2, 2, 1))], right=0.6), settings)
    report = meter.report(TOKENS)
    assert report.accepted_per_pass > 0.5
    assert report.acceptance[0][0] > 0 and report.acceptance[0][1] > 0
    assert report.shapes == {"2-2-1": report.verify_passes}
    accepted = sum(sum(level) for level in report.acceptance)
    assert accepted == round(report.accepted_per_pass * report.verify_passes)
    # The first token comes from the prompt, then one per pass and one per accepted draft, cut at the limit.
    assert report.new_tokens == 1 + report.verify_passes + accepted


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 20])
def test_max_tokens_holds_with_drafts_that_would_go_beyond(trunk, plain, limit):
    settings, wanted, _ = plain
    plain_run = run(trunk, NoDrafts(), settings, max_tokens=limit)
    found, session, meter = run(trunk, ScriptedDrafts(wanted, [Tree.chain(7)], 1.0), settings, max_tokens=limit)
    assert found == wanted[:limit] == plain_run[0]
    assert session.tokens == plain_run[1].tokens
    assert meter.stop_reason == "length"


def test_a_stop_token_inside_a_draft_ends_the_text_before_it(trunk, plain):
    settings, wanted, _ = plain
    for index in (0, 1, 5, 9):
        stop = {wanted[index]}
        end = wanted.index(wanted[index])
        plain_run = run(trunk, NoDrafts(), settings, stop_ids=stop)
        found, session, meter = run(trunk, ScriptedDrafts(wanted, [Tree.chain(7)], 1.0), settings, stop_ids=stop)
        assert found == wanted[:end] == plain_run[0]
        assert session.tokens == plain_run[1].tokens
        assert meter.stop_reason == "stop token"


@pytest.mark.parametrize("spare", [0, 1, 2, 6])
def test_capacity_reached_in_mid_draft_ends_cleanly(trunk, plain, spare):
    settings, wanted, _ = plain
    capacity = len(PROMPT) + spare
    plain_run = run(trunk, NoDrafts(), settings, capacity=capacity)
    found, session, meter = run(trunk, ScriptedDrafts(wanted, [Tree.chain(7)], 1.0), settings, capacity=capacity)
    assert found == plain_run[0] == wanted[: spare + 1]
    assert session.tokens == plain_run[1].tokens and len(session.tokens) == capacity
    assert meter.stop_reason == "length"


def test_steps_report_prefill_then_decode_progress(trunk):
    steps = []
    run(trunk, NoDrafts(), GREEDY, max_tokens=4, on_step=steps.append)
    assert steps[0] == Progress("prefill", len(PROMPT), len(PROMPT))
    assert [(step.phase, step.done, step.total) for step in steps[1:]] == [("decode", n, 4) for n in (1, 2, 3)]


def test_callback_that_says_stop_ends_decoding_within_one_step(trunk):
    text, session, meter = run(trunk, NoDrafts(), GREEDY, on_step=lambda p: p.phase == "decode" and p.done >= 5)
    assert len(text) == 5 and meter.stop_reason == "interrupted" and session.valid


def test_callback_that_says_stop_ends_prefill_between_chunks(trunk):
    session, meter, seen = Session(trunk, 4 * trunk.chunk), Meter(trunk.device), []

    def on_step(progress):
        seen.append(progress.done)
        return True

    passes = generate(
        session, [5] * (3 * trunk.chunk), NoDrafts(), Sampler(GREEDY, 0, 320),
        stop_ids=(), max_tokens=5, on_step=on_step, meter=meter,
    )  # fmt: skip
    assert list(passes) == []
    assert seen == [trunk.chunk] and meter.stop_reason == "interrupted"
    assert session.valid and len(session.tokens) == trunk.chunk == session.state.length


def test_exception_of_a_callback_passes_through_and_leaves_the_session_whole(trunk):
    class Stop(BaseException):
        pass

    def on_step(progress):
        if progress.phase == "decode" and progress.done == 3:
            raise Stop

    session, meter = Session(trunk, 256), Meter(trunk.device)
    passes = generate(
        session, PROMPT, NoDrafts(), Sampler(GREEDY, 0, 320),
        stop_ids=(), max_tokens=9, on_step=on_step, meter=meter,
    )  # fmt: skip
    with pytest.raises(Stop):
        list(passes)
    assert session.valid and session.state.length == len(session.tokens) == len(PROMPT) + 2


def test_exception_inside_a_pass_marks_the_session_invalid(trunk, monkeypatch):
    session = Session(trunk, 256)
    session.prefill(PROMPT)
    monkeypatch.setattr(trunk.blocks[2].mixer, "verify", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        session.verify([5], [-1])
    monkeypatch.undo()
    assert not session.valid
    with pytest.raises(FastQwenError, match="start a new one"):
        session.verify([5], [-1])


@pytest.mark.parametrize("count", [0, 257])
def test_prompt_that_does_not_fit_is_refused(trunk, count):
    with pytest.raises(FastQwenError, match="256"):
        Session(trunk, 256).prefill([5] * count)


def test_prefill_in_two_calls_leaves_the_state_of_one(trunk):
    """A prefix up to a multiple of the chunk, then the tail: bit for bit the uncut prefill."""
    ids = [(7 * n) % 300 for n in range(trunk.chunk + 40)]
    whole, parts = Session(trunk, 4096), Session(trunk, 4096)
    wanted = whole.prefill(ids)
    parts.prefill(ids[: trunk.chunk])
    assert torch.equal(parts.prefill(ids[trunk.chunk :]), wanted)
