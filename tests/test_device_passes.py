"""Rounds on the device give the text of passes that the host drives, for every tree, and leave the same state."""

import random
from dataclasses import replace

import device_states
import pytest
import tiny
import torch
from device_states import states
from fastqwen.engine import GREEDY, SamplingSettings, arena, load
from fastqwen.engine.device_model import DeviceModel
from fastqwen.engine.device_passes import DevicePasses
from fastqwen.engine.host_drawn_passes import HostDrawnPasses
from fastqwen.engine.loop import generate, run
from fastqwen.engine.report import STOP_TOKEN, Meter
from fastqwen.engine.sampling import Sampler
from fastqwen.engine.session import Session
from fastqwen.mtp import short_head
from fastqwen.mtp.drafts import NoDrafts
from fastqwen.mtp.planner import Fixed
from fastqwen.mtp.tree import OFF, Tree, all_shapes

pytest.importorskip("triton")
# Under the interpreter a pass takes ten seconds; tests/test_rounds.py has what connects passes.
pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda")
EVERYTHING = SamplingSettings(
    temperature=1.0, top_k=40, top_p=0.95, min_p=0.02, repetition_penalty=1.2, presence_penalty=0.3
)
PROMPT = list(range(40, 52))
TOKENS = 60
SHAPES = [OFF, Tree.chain(1), Tree.chain(5), Tree((7,)), Tree((3, 2, 1, 1)), Tree((1, 1, 5))]
EVERY = [OFF, *(Tree.chain(length) for length in range(1, 6)), *all_shapes()]


class Turns:
    """Another tree every pass."""

    def __init__(self, trees):
        self.trees, self.passes = trees, 0

    def tree(self):
        self.passes += 1
        return self.trees[(self.passes - 1) % len(self.trees)]

    def observe(self, tree, accepted, **measured):
        pass

    def scores(self):
        return {}


class Watched(Turns):
    """The same, and before every pass, in its turn, what those before have left is copied."""

    def __init__(self, trees, model):
        super().__init__(trees)
        self.model, self.left = model, []

    def tree(self):
        self.left.append(device_states.copies(self.model))
        return super().tree()


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """A model with its buffers; every layer runs by kernels."""
    model = tiny.oracle("gqa4")
    folder = tiny.save_folder(model, tmp_path_factory.mktemp("device"), mtp=True)
    engine = load(tiny.save_tokenizer(folder), device=DEVICE.type, dtype="fp32", kv="int8")
    engine.device_model = DeviceModel(engine.trunk, engine.mtp_head, capacity=128, vocab=engine.tokenizer.size)
    assert engine.device_model.usable and engine.device_model.captured
    return engine


def on_device(
    engine, trees, settings, *, tokens=TOKENS, seed=5, stop_ids=(), capacity=None, prompt=PROMPT, kind=DevicePasses,
    planner=None, on_step=lambda p: None,
):  # fmt: skip
    """(text, session, meter) of a reply by rounds on the device; planner: in place of turns."""
    model = engine.device_model
    model.state.reset()
    meter = Meter(engine.device)
    session = Session(engine.trunk, capacity or len(prompt) + tokens, model.state)
    planner = planner or Turns(trees)
    passes = kind(
        model, session, planner, settings, seed=seed, drafts=trees != [OFF], stop_ids=stop_ids, max_tokens=tokens
    )
    replies = run(passes, prompt, stop_ids=stop_ids, max_tokens=tokens, on_step=on_step, meter=meter)
    return [token for new in replies for token in new], session, meter


@pytest.fixture(scope="module")
def wanted(engine):
    """Text by settings and token limit, drawn by the host from the same kernels' logits."""
    known = {}

    def text(settings, tokens=TOKENS, prompt=PROMPT):
        key = settings, tokens, tuple(prompt)
        if key not in known:
            session = Session(engine.trunk, len(prompt) + tokens)
            sampler = Sampler(settings, 5, engine.tokenizer.size)
            passes = generate(
                session, prompt, NoDrafts(), sampler,
                stop_ids=(), max_tokens=tokens, on_step=lambda p: None, meter=Meter(engine.device),
            )  # fmt: skip
            known[key] = [token for new in passes for token in new], session
        return known[key]

    return text


TREES = [
    *(pytest.param([tree], id="-".join(map(str, tree.widths)) or "off") for tree in SHAPES),
    pytest.param(SHAPES[2:], id="turns"),
]
SAMPLING = [pytest.param(GREEDY, id="greedy"), pytest.param(EVERYTHING, id="everything_on")]


@pytest.mark.parametrize("settings", SAMPLING)
@pytest.mark.parametrize("trees", TREES)
def test_any_trees_give_the_text_and_the_state_of_plain_decoding(engine, wanted, trees, settings):
    text, plain = wanted(settings)
    found, session, _ = on_device(engine, trees, settings)
    assert found == text
    assert session.tokens[: len(plain.tokens)] == plain.tokens
    with torch.inference_mode():
        for ours, theirs in zip(states(session), states(plain), strict=True):
            assert torch.equal(ours, theirs)


def test_drafts_are_accepted_and_counted(engine):
    """A tiny random head is seldom right, so accepted drafts are looked for over all shapes."""
    counted = 0
    for tree in [Tree((7,)), Tree((4, 3))]:
        text, _, meter = on_device(engine, [tree], GREEDY, tokens=TOKENS)
        report = meter.report(len(text))
        assert report.verify_passes < TOKENS or not report.accepted_per_pass
        assert report.shapes == {"-".join(map(str, tree.widths)): report.verify_passes}
        counted += sum(map(sum, report.acceptance))
    assert counted


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_max_tokens_holds(engine, wanted, limit):
    assert on_device(engine, [Tree((1, 1, 5))], GREEDY, tokens=limit)[0] == wanted(GREEDY)[0][:limit]


def test_capacity_reached_ends_the_text_there(engine, wanted):
    text, session, _ = on_device(engine, [Tree((1,) * 7)], GREEDY, capacity=len(PROMPT) + 5)
    assert text == wanted(GREEDY)[0][: len(text)] and len(session.tokens) == len(PROMPT) + 5


def test_a_stop_token_ends_the_text_before_it(engine, wanted):
    text = wanted(GREEDY)[0]
    stop = text[6]
    end = text.index(stop)
    for trees in ([OFF], [Tree((3, 2, 1, 1))]):
        found, session, meter = on_device(engine, trees, GREEDY, stop_ids=(stop,))
        assert found == text[:end] and meter.stop_reason == STOP_TOKEN
        assert session.tokens == [*PROMPT, *text[:end]]


@pytest.mark.parametrize("settings", SAMPLING)
def test_drafts_from_a_shortlist_give_the_text_too(engine, wanted, settings, monkeypatch):
    """Of a tiny vocabulary nearly half is beside the first rows; the reply's own tokens come and go."""
    monkeypatch.setattr(short_head, "FEWEST", 16)
    head, vocab = engine.trunk.head.matrices[0][0], engine.tokenizer.size
    short = short_head.ShortHead(head, 144, vocab=vocab, always=[258], dtype=engine.trunk.dtype)
    monkeypatch.setattr(engine.mtp_head, "short", short)
    whole = engine.device_model
    model = DeviceModel(engine.trunk, engine.mtp_head, capacity=128, vocab=vocab)
    monkeypatch.setattr(engine, "device_model", model)
    short.begin(PROMPT)
    text, _, meter = on_device(engine, [Tree((4, 3))], settings)
    assert text == wanted(settings)[0] and model.captured and model is not whole
    assert {token for token in text if token >= 144} <= set(short.extra_ids)


@pytest.mark.parametrize("top_k", [40, 0])
def test_passes_captured_in_memory_taken_before_give_the_text_too(engine, wanted, top_k, monkeypatch):
    monkeypatch.setattr(arena, "captures_need_arena", lambda device: True)
    model = DeviceModel(engine.trunk, engine.mtp_head, capacity=128, vocab=engine.tokenizer.size)
    monkeypatch.setattr(engine, "device_model", model)
    settings = replace(EVERYTHING, top_k=top_k)
    if not top_k:
        model.draw_on_host()
    kind = DevicePasses if top_k else HostDrawnPasses
    assert model.captured and all(isinstance(model._arenas[part], arena.Arena) for part in model.parts)
    assert on_device(engine, [OFF, Tree((3, 2, 1, 1))], settings, kind=kind)[0] == wanted(settings)[0]


@pytest.mark.parametrize("trees", [[OFF], [Tree((3, 2, 1, 1))]], ids=["off", "tree"])
@pytest.mark.parametrize("top_k", [0, 260])
def test_settings_that_the_host_draws_give_the_hosts_text(engine, wanted, trees, top_k):
    settings = replace(EVERYTHING, top_k=top_k)
    engine.device_model.draw_on_host()
    text, plain = wanted(settings)
    found, session, _ = on_device(engine, trees, settings, kind=HostDrawnPasses)
    assert found == text and engine.device_model.captured and "accept" in engine.device_model.seconds
    with torch.inference_mode():
        for ours, theirs in zip(states(session), states(plain), strict=True):
            assert torch.equal(ours, theirs)


def test_rows_that_waited_while_nothing_was_drafted_are_made_first(engine, wanted):
    """Ten plain passes between drafts: more rows than one of the head's passes takes."""
    trees = [*[OFF] * 10, Tree((2, 2))]
    assert on_device(engine, trees, GREEDY)[0] == wanted(GREEDY)[0]


def test_a_second_reply_finds_nothing_of_the_first(engine, wanted):
    other = [9, 8, 7]
    on_device(engine, [Tree((2, 2))], EVERYTHING, prompt=other, tokens=6)
    assert on_device(engine, [OFF], EVERYTHING)[0] == wanted(EVERYTHING)[0]
    with torch.inference_mode():  # as an interrupted reply may leave them
        engine.device_model.round.tokens.fill_(wanted(EVERYTHING)[0][0])
    assert on_device(engine, [OFF], EVERYTHING)[0] == wanted(EVERYTHING)[0]


def test_an_unfinished_reply_cannot_go_on_after_another(engine):
    from fastqwen.weights import FastQwenError

    def start():
        session = Session(engine.trunk, 40, engine.device_model.state)
        engine.device_model.state.reset()
        passes = DevicePasses(
            engine.device_model, session, Fixed(OFF), GREEDY, seed=0, drafts=False, stop_ids=(), max_tokens=20
        )
        return run(passes, PROMPT, stop_ids=(), max_tokens=20, on_step=lambda p: None, meter=Meter(engine.device))

    first = start()
    next(first)
    next(start())
    with pytest.raises(FastQwenError, match="Another reply"):
        list(first)


@pytest.mark.parametrize("tree", all_shapes(), ids=lambda tree: "-".join(map(str, tree.widths)))
def test_every_shape_gives_the_text_of_plain_decoding(engine, wanted, tree):
    assert on_device(engine, [tree], EVERYTHING, tokens=40)[0] == wanted(EVERYTHING)[0][:40]


@pytest.fixture(scope="module")
def captured_and_eager(engine):
    """Two models over the same weights, with room for eight tokens of every shape."""
    sizes = {"capacity": len(PROMPT) + 8 * len(EVERY), "vocab": engine.tokenizer.size}
    models = [DeviceModel(engine.trunk, engine.mtp_head, graphs=graphs, **sizes) for graphs in (True, False)]
    assert [model.captured for model in models] == [True, False]
    return models


@pytest.mark.parametrize("settings", [*SAMPLING, pytest.param(replace(EVERYTHING, top_k=0), id="drawn_by_the_host")])
def test_graphs_leave_the_bits_of_eager_launches_after_every_change_of_shape_and_length(
    engine, wanted, captured_and_eager, settings, monkeypatch
):
    """Replays serve other shapes, lengths and outcomes than the one that was captured, all shapes in one reply."""
    trees = random.Random(1).sample(EVERY, len(EVERY))
    kind, left, ends = DevicePasses if settings.is_greedy or settings.top_k else HostDrawnPasses, [], []
    for model in captured_and_eager:
        monkeypatch.setattr(engine, "device_model", model)
        if kind is HostDrawnPasses:
            model.draw_on_host()
        planner = Watched(trees, model)
        _, session, _ = on_device(
            engine, trees, settings, tokens=8 * len(trees), kind=kind, planner=planner,
            on_step=lambda progress, planner=planner: planner.passes == len(trees),
        )  # fmt: skip
        left.append([*planner.left, device_states.copies(model)])
        with torch.inference_mode():
            ends.append((session.tokens, states(session)))
    assert len(left[0]) == len(left[1]) == len(trees) + 1
    with torch.inference_mode():
        for number, (replayed, launched) in enumerate(zip(*left, strict=True)):
            ours, theirs = device_states.meaning(replayed), device_states.meaning(launched)
            for name in ours | theirs:
                assert torch.equal(ours[name], theirs[name]), (number, trees[number - 1], name)
        count = len(ends[0][0]) - len(PROMPT)
        text, plain = wanted(settings, count + 1)
        for tokens, found in ends:
            assert tokens == plain.tokens == [*PROMPT, *text[:count]]
            assert all(map(torch.equal, found, states(plain)))


def test_a_failed_capture_is_said_once_and_passes_are_launched_one_by_one(engine, wanted, monkeypatch, caplog):
    def refused(*arguments, **options):
        raise RuntimeError("no graphs today")

    monkeypatch.setattr("torch.cuda.graph", refused)
    monkeypatch.setattr(engine.trunk, "captures", True)
    model = engine.device_model
    for capacity in (64, 128):  # as a reply that needs larger buffers makes them anew
        engine.device_model = DeviceModel(engine.trunk, engine.mtp_head, capacity=capacity, vocab=engine.tokenizer.size)
    try:
        assert not engine.device_model.captured and caplog.text.count("no graphs today") == 1
        assert on_device(engine, SHAPES, GREEDY)[0] == wanted(GREEDY)[0]
    finally:
        engine.device_model = model
