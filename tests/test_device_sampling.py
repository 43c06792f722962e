"""Sampling on the device draws what engine/sampling.py draws, from any row, and drafts are its candidates."""

import pytest
import torch
from fastqwen.engine import GREEDY, SamplingSettings
from fastqwen.engine.device_model import write_settings
from fastqwen.engine.sampling import Sampler
from fastqwen.kernels import sampling

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SETTINGS = [
    GREEDY,
    SamplingSettings(),
    SamplingSettings(greedy=True, repetition_penalty=1.3, presence_penalty=0.5),
    SamplingSettings(temperature=1.0, top_k=24, top_p=0.95, min_p=0.05),
    SamplingSettings(temperature=1.3, top_k=3, top_p=1.0, repetition_penalty=1.2, presence_penalty=0.4),
    SamplingSettings(temperature=0.2, top_k=256, top_p=0.5, presence_penalty=-1.0),
    SamplingSettings(temperature=2.0, top_k=1),
]
ROWS = 8 if DEVICE == "cuda" else 3  # the interpreter sorts slowly
CASES = [(settings, 300, 320) for settings in SETTINGS] + [(SETTINGS[3], 2100, 2304)]
if DEVICE == "cuda":
    CASES += [(settings, *sizes) for settings in SETTINGS for sizes in ((4096, 4096), (248_077, 248_320))]


def written(settings, seed):
    found = sampling.new_settings(DEVICE)
    write_settings(found, settings, seed)
    return found


def drawn(
    logits, settings, seed, vocab, *, reply=(), tokens=(0,) * 8, above=(0,) * 8, depth=(0,) * 8, lists=False,
    shortlist=None, live=None,
):  # fmt: skip
    """(tokens, errors, candidates) of the kernels."""
    logits = logits.to(DEVICE)
    rows = len(logits)
    marks = torch.zeros(max(4096, logits.shape[1]), dtype=torch.uint8, device=DEVICE)
    marks[list(reply)] = 1
    seen = sampling.Seen(
        marks,
        torch.tensor(tokens, device=DEVICE),
        torch.tensor(above, dtype=torch.int32, device=DEVICE),
        torch.tensor(depth, dtype=torch.int32, device=DEVICE),
        torch.tensor([len(reply)], dtype=torch.int32, device=DEVICE),
    )
    found = torch.full((rows,), -7, device=DEVICE)
    errors = torch.full((rows,), -7, dtype=torch.int32, device=DEVICE)
    workspace = sampling.allocate(vocab, DEVICE)
    options = {"vocab": vocab, "tokens": found, "errors": errors, "shortlist": shortlist}
    options["live"] = None if live is None else torch.tensor([live], dtype=torch.int32, device=DEVICE)
    if not lists:
        sampling.draw(logits, written(settings, seed), seen, workspace, **options)
        return found.tolist(), errors.tolist(), None
    candidates, level = torch.full((3, 8), -7, device=DEVICE), torch.tensor([2], dtype=torch.int32, device=DEVICE)
    sampling.draw(logits, written(settings, seed), seen, workspace, **options, candidates=candidates, level=level)
    assert bool((candidates[[0, 2]] == -7).all())
    return found.tolist(), errors.tolist(), candidates[1].tolist()


def random_logits(rows, width, seed, spread=4.0):
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * spread


@pytest.mark.parametrize("settings,vocab,width", CASES, ids=range(len(CASES)))
def test_a_row_draws_what_the_reference_draws(settings, vocab, width):
    logits = random_logits(ROWS, width, seed=vocab)
    logits[:, vocab:] = 100.0  # padding is never drawn
    reply, tokens = [5, 9, 5, 200], [7, 11, 13, 17, 19, 23, 29, 31]
    above, depth = [1, 3, 7, 5, 9, 17, 33, 65], [0, 1, 2, 1, 1, 1, 1, 1]
    logits[:, [5, 7, 11, 13]] += 8.0  # so that penalties decide
    found, errors, _ = drawn(logits, settings, 77, vocab, reply=reply, tokens=tokens, above=above, depth=depth)
    sampler = Sampler(settings, 77, vocab)
    wanted = []
    for row in range(ROWS):
        history = [*reply, *(token for slot, token in enumerate(tokens) if above[row] >> slot & 1)]
        # A row's index in the text is the reply's length and its depth, whatever its ancestors' number.
        wanted.append(sampler.draw(logits[row].to(DEVICE), torch.tensor(history, device=DEVICE), 4 + depth[row]))
    assert found == wanted and errors == [0] * ROWS


@pytest.mark.parametrize("settings", SETTINGS, ids=range(len(SETTINGS)))
def test_candidates_of_a_draft_are_the_references(settings):
    logits = random_logits(1, 4096, seed=3)
    found, _, lists = drawn(logits, settings, 5, 4000, reply=[1, 2], tokens=[9] * 8, above=[1] * 8, lists=True)
    wanted = Sampler(settings, 5, 4000).candidates(
        logits[0].to(DEVICE), torch.tensor([1, 2, 9], device=DEVICE), 2, 8 if settings.top_k < 256 else 1
    )
    assert lists[: len(wanted)] == wanted and found[0] == lists[0] and len(set(lists)) == 8


@pytest.mark.parametrize("settings", [SETTINGS[0], SETTINGS[4]], ids=["greedy", "sampled"])
@pytest.mark.parametrize("case", ["two_values", "few_finite", "one_finite", "negative_zero"])
def test_ties_and_infinities_follow_the_rules_for_any_number_of_them(settings, case):
    """With thousands of equal entries the list overflows and is found again."""
    logits = torch.zeros(2, 2048)
    if case == "two_values":
        logits[:, 1000:] = 1.0
    elif case == "few_finite":
        logits[:] = float("-inf")
        logits[:, [3, 9, 2000]] = torch.tensor([1.0, 2.0, 1.5])
    elif case == "one_finite":
        logits[:] = float("-inf")
        logits[:, 17] = -5.0
    elif case == "negative_zero":
        logits[:, ::2] = -0.0
    found, errors, _ = drawn(logits, settings, 11, 2048, depth=[0, 1] + [0] * 6)
    sampler = Sampler(settings, 11, 2048)
    empty = torch.zeros(0, dtype=torch.long, device=DEVICE)
    assert found == [sampler.draw(logits[row].to(DEVICE), empty, row) for row in range(2)] and errors == [0, 0]
    lists = drawn(logits[:1], settings, 11, 2048, lists=True)[2]
    assert lists[0] == found[0] and all(0 <= token < 2048 for token in lists)
    assert len(set(lists)) == 8 or "finite" in case


@pytest.mark.parametrize("value", [float("nan"), pytest.param(float("inf"), marks=pytest.mark.gpu)], ids=str)
def test_a_row_without_a_finite_peak_is_an_error_and_harms_no_other(value):
    logits = random_logits(3, 1024, seed=1)
    logits[1, 700] = value
    found, errors, _ = drawn(logits, SETTINGS[1], 3, 1024)
    alone = drawn(logits[[0, 2]], SETTINGS[1], 3, 1024)[0]
    assert errors == [0, 1, 0] and [found[0], found[2]] == alone
    assert drawn(logits[1:2], SETTINGS[1], 3, 1024, lists=True)[1:] == ([1], list(range(8)))
    logits[:] = float("-inf")
    assert drawn(logits, SETTINGS[1], 3, 1024)[1] == [1, 1, 1]


@pytest.mark.parametrize("live", [0, 2])
def test_rows_that_are_not_live_are_left_alone(live):
    logits = random_logits(4, 600, seed=6)
    found, errors, _ = drawn(logits, SETTINGS[1], 3, 600, live=live)
    assert found == [*drawn(logits, SETTINGS[1], 3, 600)[0][:live], *[-7] * (4 - live)]
    assert errors == [0] * live + [-7] * (4 - live)


def test_bf16_rows_draw_what_their_values_draw():
    logits = random_logits(4, 2048, seed=2).bfloat16()
    assert drawn(logits, SETTINGS[3], 1, 2048) == drawn(logits.float(), SETTINGS[3], 1, 2048)


@pytest.mark.parametrize("seed", [-1, 2**63, 12345678901234])
def test_seeds_of_any_size_give_the_references_noise(seed):
    logits = random_logits(2, 256, seed=4, spread=0.5)
    empty = torch.zeros(0, dtype=torch.long, device=DEVICE)
    settings = SamplingSettings(temperature=1.0, top_k=200, top_p=1.0)
    wanted = [Sampler(settings, seed, 256).draw(logits[row].to(DEVICE), empty, 0) for row in range(2)]
    assert drawn(logits, settings, seed, 256)[0] == wanted


def shortlisted(settings, logits, first):
    """Candidates from a row of `first` ids and some others, in no order and with places of no id between them; and the
    whole row that it stands for."""
    others = [3999, 2000, -1, 1500, -1, 3000, 1200, 2500] + [-1] * 24
    logits[0, [first + 2, first + 4]] = 50.0  # of no id
    ids = torch.tensor(others, dtype=torch.int32, device=DEVICE)
    found, errors, lists = drawn(
        logits, settings, 8, first + 32, reply=[7, 3999], tokens=[1500] * 8, above=[1] * 8, lists=True,
        shortlist=sampling.Shortlist(first, ids),
    )  # fmt: skip
    assert found == lists[:1] and errors == [0]
    whole = torch.full((4000,), float("-inf"))
    whole[:first] = logits[0, :first]
    for place, token in enumerate(others):
        if token >= 0:
            whole[token] = logits[0, first + place]
    return lists, whole.to(DEVICE)


@pytest.mark.parametrize("settings", [SETTINGS[2], SETTINGS[4]], ids=["greedy", "sampled"])
def test_a_shortlist_proposes_what_the_whole_row_would_with_the_rest_left_out(settings):
    """Penalties and noise go by the id."""
    logits = random_logits(1, 332, seed=9)
    logits[0, [300, 303, 307]] += 9.0
    lists, whole = shortlisted(settings, logits, 300)
    history = torch.tensor([7, 3999, 1500], device=DEVICE)
    assert lists == Sampler(settings, 8, 4000).candidates(whole, history, 2, 8) and 2500 in lists


def test_a_shortlist_of_equal_entries_goes_by_the_id():
    """More of them than a list holds. Penalties leave 1 / 1.3 - 0.5 of two raised ones."""
    logits = torch.zeros(1, 1132)
    logits[0, [1100, 1103, 1107]] = 1.0
    assert shortlisted(SETTINGS[2], logits, 1100)[0] == [2500, 1500, 3999, 0, 1, 2, 3, 4]


def test_settings_that_the_device_does_not_draw_are_refused():
    assert not sampling.supports(greedy=False, top_k=0) and not sampling.supports(greedy=False, top_k=257)
    assert sampling.supports(greedy=True, top_k=0)
    with pytest.raises(ValueError, match="top_k is 0"):
        sampling.write_settings(sampling.new_settings(DEVICE), seed=0, top_k=0)


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match="another vocabulary"):
        sampling.draw(
            torch.zeros(1, 600), sampling.new_settings("cpu"),
            sampling.Seen(
                torch.zeros(600, dtype=torch.uint8), torch.zeros(8, dtype=torch.long),
                torch.zeros(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int32),
                torch.zeros(1, dtype=torch.int32),
            ),
            sampling.allocate(300, "cpu"), vocab=600, tokens=torch.zeros(1, dtype=torch.long),
            errors=torch.zeros(1, dtype=torch.int32),
        )  # fmt: skip
