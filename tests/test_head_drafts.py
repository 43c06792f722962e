"""Drafts from the MTP head: they never change the text, their rows are the true ones, and they are mostly right."""

import shutil
from pathlib import Path

import pytest
import tiny
import torch
from fastqwen.engine import GREEDY, SamplingSettings, load
from fastqwen.engine.loop import generate
from fastqwen.engine.report import Meter
from fastqwen.engine.sampling import Sampler
from fastqwen.engine.session import Session
from fastqwen.model.convert import convert
from fastqwen.mtp.drafts import NoDrafts
from fastqwen.mtp.head_drafts import MAX_WAITING, HeadDrafts
from fastqwen.mtp.planner import Fixed
from fastqwen.mtp.tree import OFF, Tree, all_shapes
from fastqwen.weights import Checkpoint, FastQwenError

EVERYTHING = SamplingSettings(
    temperature=1.0, top_k=40, top_p=0.95, min_p=0.02, repetition_penalty=1.2, presence_penalty=0.3
)
SHAPES = [OFF, Tree.chain(1), Tree.chain(5), Tree((7,)), Tree((3, 2, 1, 1)), Tree((1, 1, 5))]
PROMPT = list(range(40, 75))


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tiny.save_folder(tiny.oracle("gqa4"), tmp_path_factory.mktemp("drafts"), mtp=True)
    return load(tiny.save_tokenizer(folder), device="cpu")


@pytest.fixture(scope="module")
def demo():
    return load("demo-bf16", device="cpu")


@pytest.fixture(scope="module")
def packed_demo():
    return load("demo", device="cpu")


class Turns:
    """Another tree every pass."""

    def __init__(self, trees):
        self.trees, self.passes = trees, 0

    def tree(self):
        return self.trees[self.passes % len(self.trees)]

    def observe(self, tree, accepted, **measured):
        self.passes += 1

    def scores(self):
        return {}


def run(engine, planner, settings, *, prompt=PROMPT, tokens=40, seed=5):
    """(text, drafter, session) of a reply drafted by the head in the planner's trees; no drafts without one."""
    sampler = Sampler(settings, seed, engine.config.vocab_size)

    def candidates(logits, text, count):
        return sampler.candidates(logits, torch.tensor(text), len(text), count)

    capacity = len(prompt) + tokens
    session, meter = Session(engine.trunk, capacity), Meter(engine.device)
    drafter = NoDrafts()
    if planner is not None:
        drafter = HeadDrafts(engine.mtp_head, engine.trunk, planner, candidates, capacity)
    passes = generate(
        session, prompt, drafter, sampler,
        stop_ids=(), max_tokens=tokens, on_step=lambda progress: None, meter=meter,
    )  # fmt: skip
    return [token for new in passes for token in new], drafter, session, meter


@pytest.mark.parametrize("settings", [GREEDY, EVERYTHING], ids=["greedy", "everything_on"])
def test_drafts_of_any_shape_give_the_text_of_plain_decoding(engine, settings):
    wanted, _, plain, _ = run(engine, None, settings)
    for planner in [*(Fixed(tree) for tree in SHAPES), Turns(SHAPES)]:
        found, _, session, _ = run(engine, planner, settings)
        assert found == wanted and session.tokens == plain.tokens


@pytest.mark.parametrize("trees", [[Tree((3, 2, 1, 1))], SHAPES], ids=["one", "turns"])
def test_the_heads_rows_are_those_of_the_trunks_true_hidden_states(engine, trees):
    """Whatever was drafted and dropped, its cache is that of one prefill over the committed text."""
    text, drafter, session, _ = run(engine, Turns(trees), GREEDY)
    tokens = session.tokens
    with torch.inference_mode():
        state = engine.trunk.new_state(len(tokens))
        hidden = engine.trunk.prefill(engine.trunk.embed(tokens), state)
        cache = engine.mtp_head.new_cache(len(tokens), kind="fp32", device=engine.device)
        places = torch.arange(len(tokens) - 1).expand(3, -1)
        engine.mtp_head.prefill(engine.trunk.embed(tokens[1:]), hidden[:-1], places, cache=cache)
    made = drafter._cache.length
    assert len(tokens) - 1 - made <= 8 * (1 + trees.count(OFF))  # the last passes' rows still wait
    for found, wanted in zip(drafter._cache.read(0, made), cache.read(0, made), strict=True):
        # Prefill in chunks and token by token round apart: tests/test_against_transformers.py allows 2e-5 of logits.
        assert ((found - wanted).norm() / wanted.norm()).item() < 1e-4


def test_rows_that_wait_while_nothing_is_drafted_are_made_before_they_are_many(engine):
    text, drafter, session, _ = run(engine, Fixed(OFF), GREEDY, tokens=MAX_WAITING + 40)
    assert sum(map(len, drafter._hidden)) <= MAX_WAITING
    assert drafter._cache.length >= len(PROMPT) + MAX_WAITING - 1


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_the_demos_head_is_right_more_often_than_not(demo, temperature):
    """Demo model, synthetic text. Coupled drafts keep sampled text almost as predictable as greedy text."""
    settings = SamplingSettings(temperature=temperature, top_k=20, top_p=0.95)
    prompt = demo.template.prompt_ids("Write a prompt for a picture of a lighthouse.", system=None, thinking=False)
    text, _, _, meter = run(demo, Fixed(Tree.chain(3)), settings, prompt=prompt, tokens=120)
    assert text == run(demo, None, settings, prompt=prompt, tokens=120)[0]
    report = meter.report(len(text))
    assert report.accepted_per_pass > 1.5
    assert [sum(level) for level in report.acceptance] == sorted(
        (sum(level) for level in report.acceptance), reverse=True
    )


def test_ten_replies_in_one_process_accept_the_same_drafts(demo):
    """Caches, states, beginnings of prompts and statistics are kept between them; other replies come in between."""
    found = []
    for turn in range(10):
        options = dict(seed=8, max_tokens=9, template=False)
        report = demo.generate("a fox in the snow", settings=GREEDY, mtp="3", **options).report
        found.append((report.acceptance, report.shapes))
        if turn % 3 == 0:
            demo.generate("List five", settings=EVERYTHING, seed=turn, max_tokens=3, template=False)
    assert all(each == found[0] for each in found) and found[0][0][0][0] > 0


@pytest.mark.parametrize("keep", [["mtp.*"], ["model.*"]], ids=["plain head", "plain body"])
def test_a_head_and_a_body_of_different_formats_draft_as_well(tmp_path, keep):
    """More than one token a pass, by far: mismatched tensors of a head would accept next to nothing."""
    source, target = Path(__file__).parent.parent / "demo" / "checkpoint", tmp_path / "mixed.safetensors"
    convert(Checkpoint.open(source / "model.safetensors"), target, "w6a8", keep=keep)
    shutil.copy(source / "tokenizer.json", tmp_path)
    report = load(target, device="cpu").generate("a fox in the snow", settings=GREEDY, max_tokens=32, mtp="3").report
    assert report.mtp == "3" and report.accepted_per_pass > 1


PROMPTS = (
    "a fox in the snow", "List five things to pack for the beach.", "Write a short story about a red kite.",
    "Write a function that adds two numbers.",
)  # fmt: skip


@pytest.mark.parametrize("settings", [GREEDY, EVERYTHING], ids=["greedy", "everything_on"])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_every_mtp_setting_and_shape_writes_the_demos_plain_text(packed_demo, prompt, settings):
    """The packed demo: what a user gets from `off`, `auto`, `2` and `5`, and two shapes drawn at random."""
    engine = packed_demo
    wanted = engine.generate(prompt, settings=settings, seed=8, max_tokens=64, mtp="off").token_ids
    for mtp in ("auto", "2", "5"):
        assert engine.generate(prompt, settings=settings, seed=8, max_tokens=64, mtp=mtp).token_ids == wanted
    ids = engine.template.prompt_ids(prompt, system=None, thinking=False)
    drawn = torch.randint(0, 64, (2,), generator=torch.Generator().manual_seed(len(prompt))).tolist()
    for shape in drawn:
        text = run(engine, Fixed(all_shapes()[shape]), settings, prompt=ids, tokens=len(wanted), seed=8)[0]
        assert tuple(text) == wanted


@pytest.mark.parametrize("mtp", ["off", "auto", "2", "5"])
def test_counting_skips_nothing_and_doubles_nothing(packed_demo, mtp):
    text = packed_demo.generate("Count from 1 to 20", settings=GREEDY, max_tokens=80, mtp=mtp).text
    assert text == ", ".join(map(str, range(1, 21)))


def test_a_prompt_in_several_chunks_gives_the_rows_of_one(engine):
    prompt = torch.randint(0, 320, (1100,), generator=torch.Generator().manual_seed(2)).tolist()
    _, drafter, session, _ = run(engine, Fixed(Tree.chain(2)), GREEDY, prompt=prompt, tokens=4)
    assert drafter._cache.length >= len(prompt)
    wanted = run(engine, None, GREEDY, prompt=prompt, tokens=4)
    assert session.tokens == wanted[2].tokens


def test_a_prompts_rows_have_its_rotary_positions_pictures_included(engine, monkeypatch):
    """A picture's tokens share a time and lie apart in height and width; what follows comes behind all three."""
    height = torch.tensor([0, 1, 2, 2, 3, 3, 5, 6])
    positions = torch.stack([torch.tensor([0, 1, 2, 2, 2, 2, 5, 6]), height, torch.tensor([0, 1, 2, 3, 4, 4, 5, 6])])
    asked, rotary = [], engine.mtp_head.rotary
    monkeypatch.setattr(engine.mtp_head, "rotary", lambda places: (asked.append(places.tolist()), rotary(places))[1])
    drafter = HeadDrafts(engine.mtp_head, engine.trunk, Fixed(OFF), lambda logits, text, count: [7] * count, 64)
    with torch.inference_mode():
        rows = torch.randn(2, 8, engine.config.hidden_size, generator=torch.Generator().manual_seed(5))
        for end in (slice(0, 6), slice(6, 8)):  # the second chunk ends behind what the picture's axes reached
            drafter.prompt(rows[0, end], rows[1, end], positions[:, end])
        assert [place for call in zip(*asked, strict=True) for part in call for place in part] == positions[
            :, :-1
        ].flatten().tolist()
        asked.clear()
        drafter.draft(Tree.chain(3), [9])
    assert asked == [[[6]] * 3, [[7]] * 3, [[8]] * 3]  # the prompt's last row, the root's, the draft's
    cache = engine.mtp_head.new_cache(64, kind="fp32", device=engine.device)
    with torch.inference_mode():
        engine.mtp_head.extend(rows[0, 1:], rows[1, :-1], positions[:, :-1], cache=cache)
    for found, wanted in zip(drafter.prompt_cache.read(0, 7), cache.read(0, 7), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)  # sums of other row counts


def test_the_next_level_is_fed_what_comes_before_or_after_the_heads_norm(engine, monkeypatch):
    def outputs():
        cache = engine.mtp_head.new_cache(8, kind="fp32", device=engine.device)
        fed = engine.mtp_head.prefill(*rows, torch.arange(5).expand(3, -1), cache=cache)
        return fed, engine.mtp_head.for_logits(fed)

    with torch.inference_mode():
        rows = torch.randn(2, 5, engine.config.hidden_size, generator=torch.Generator().manual_seed(6))
        fed, for_logits = outputs()
        assert fed is for_logits and not engine.mtp_head.pre_norm
        monkeypatch.setattr(engine.mtp_head, "pre_norm", True)
        before, after = outputs()
    assert torch.equal(after, for_logits) and not torch.allclose(before, fed, rtol=0.1)


def scores_of(sampler, logits, history, index):
    return sampler.candidates(logits, history, index, 7)


@pytest.mark.parametrize("settings", [GREEDY, EVERYTHING, SamplingSettings(temperature=0.7, top_k=3)], ids=str)
def test_the_first_candidate_is_what_the_target_would_draw_and_all_are_distinct(settings):
    generator = torch.Generator().manual_seed(3)
    sampler = Sampler(settings, 11, 300)
    for index in range(40):
        logits = torch.randn(320, generator=generator) * 4
        logits[300:] = 99.0  # padding rows cannot be drawn
        history = torch.randint(0, 300, (index,), generator=generator)
        found = scores_of(sampler, logits, history, index)
        assert found[0] == sampler.draw(logits, history, index)
        assert len(set(found)) == 7 and max(found) < 300
        assert sampler.candidates(logits, history, index, 1) == found[:1]


def test_a_row_without_a_number_gives_candidates_all_the_same():
    sampler = Sampler(EVERYTHING, 1, 300)
    assert sampler.candidates(torch.full((320,), float("nan")), torch.tensor([1]), 0, 3) == [0, 1, 2]


@pytest.mark.parametrize(
    "logits,settings",
    [
        (torch.full((320,), 30.0), SamplingSettings(temperature=7.9e-38)),  # divided, it overflows
        (torch.linspace(1, 9, 320), SamplingSettings(repetition_penalty=3e-38)),
        (torch.full((320,), float("inf")), GREEDY),
        (torch.full((320,), -float("inf")), SamplingSettings()),
    ],
)
def test_a_head_row_that_nothing_can_be_drawn_from_drafts_something_and_ends_no_reply(logits, settings):
    sampler, history = Sampler(settings, 4, 320), torch.tensor([319, 5])
    with pytest.raises(FastQwenError):
        sampler.draw(logits, history, 2)
    assert sampler.candidates(logits, history, 2, 3) == [0, 1, 2]


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_coupled_lists_catch_far_more_of_a_close_targets_draws_than_the_most_likely_tokens_do(temperature):
    """The head's logits are the target's with an error that leaves a total variation distance of about 0.2."""
    generator = torch.Generator().manual_seed(4)
    settings = SamplingSettings(temperature=temperature, top_k=0, top_p=1.0)
    caught, plain, apart = [0, 0], [0, 0], 0.0
    for index in range(400):
        target = torch.randn(500, generator=generator) * 2
        head = target + torch.randn(500, generator=generator) * 0.5
        sampler = Sampler(settings, 7, 500)
        token = sampler.draw(target, torch.empty(0, dtype=torch.long), index)
        coupled = sampler.candidates(head, torch.empty(0, dtype=torch.long), index, 3)
        likely = torch.topk(head, 3).indices.tolist()
        p, q = (torch.softmax(row / temperature, 0) for row in (target, head))
        apart += 0.5 * (p - q).abs().sum().item() / 400
        for which, width in enumerate((1, 3)):
            caught[which] += token in coupled[:width]
            plain[which] += token in likely[:width]
    assert 0.1 < apart < 0.3
    assert caught[0] > 0.6 * 400 and caught[1] > 0.8 * 400
    assert caught[0] > 2 * plain[0] and caught[1] > 1.5 * plain[1]
