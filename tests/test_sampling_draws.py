"""Draws: what they depend on, their frequencies, and agreement with a slow second implementation."""

import math
import random

import pytest
import torch
from fastqwen.engine import sampling
from fastqwen.engine.sampling import GREEDY, Sampler, SamplingSettings, process
from fastqwen.kernels.philox import gumbel_noise, philox_words

NEUTRAL = dict(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, presence_penalty=0.0)
NOTHING = torch.tensor([], dtype=torch.int64)


def settings(**changes):
    return SamplingSettings(**{**NEUTRAL, **changes})


def row(*logits):
    return torch.tensor(logits, dtype=torch.float32)


def kept(logits, vocab_size=None, **changes):
    return process(logits, NOTHING, settings(**changes), vocab_size or len(logits))[0].tolist()


def test_padding_is_never_drawn_and_never_looked_at():
    padded = row(1, 0, 50, math.nan, math.inf)
    for changes in (dict(), dict(top_k=1), dict(top_k=3), dict(top_p=0.5), dict(min_p=0.1)):
        assert set(kept(padded, vocab_size=2, **changes)) <= {0, 1}
        plain = [Sampler(settings(**changes), 3, 2).draw(padded[:2], NOTHING, index) for index in range(50)]
        assert [Sampler(settings(**changes), 3, 2).draw(padded, NOTHING, index) for index in range(50)] == plain
    assert Sampler(GREEDY, 0, 2).draw(padded, NOTHING, 0) == 0


def test_same_seed_and_index_give_the_same_token_whatever_else_was_drawn():
    logits = torch.randn(64, 500, generator=torch.Generator().manual_seed(4))
    history = torch.tensor([3, 400])
    chosen = settings(temperature=1.5, top_k=50, top_p=0.95, repetition_penalty=1.2)
    forward = Sampler(chosen, 99, 500)
    expected = [forward.draw(logits[index], history, index) for index in range(64)]
    backward = Sampler(chosen, 99, 500)
    order = list(range(64)) * 2
    random.Random(5).shuffle(order)
    for index in order:
        torch.rand(index % 3)  # torch's own generator plays no part
        assert backward.draw(logits[index].clone(), history, index) == expected[index]
    other = Sampler(chosen, 100, 500)
    assert sum(other.draw(logits[index], history, index) == expected[index] for index in range(64)) < 32


def test_a_penalty_depends_on_the_set_of_history_alone():
    logits = torch.randn(300, generator=torch.Generator().manual_seed(6))
    sampler = Sampler(settings(repetition_penalty=1.7, presence_penalty=0.9, top_p=0.9), 1, 300)
    ids = [5, 17, 250, 0, 299]
    for index in range(40):
        expected = sampler.draw(logits, torch.tensor(ids), index)
        assert sampler.draw(logits, torch.tensor(ids[::-1] * 3), index) == expected


def test_a_penalty_touches_no_token_outside_history():
    logits = torch.randn(300, generator=torch.Generator().manual_seed(7))
    chosen = settings(repetition_penalty=1.7, presence_penalty=0.9)
    _, scores = process(logits, torch.tensor([5, 17]), chosen, 300)
    assert torch.nonzero(scores != logits)[:, 0].tolist() == [5, 17]


def test_filtering_others_out_keeps_the_draw():
    logits = torch.randn(400, generator=torch.Generator().manual_seed(8))
    wide, narrow = Sampler(settings(top_k=40), 2, 400), Sampler(settings(top_k=10), 2, 400)
    inside = set(kept(logits, top_k=10))
    drawn = [(wide.draw(logits, NOTHING, index), narrow.draw(logits, NOTHING, index)) for index in range(300)]
    assert all(token == other for token, other in drawn if token in inside)
    assert {token in inside for token, _ in drawn} == {True, False}


def test_noise_is_made_for_survivors_only(monkeypatch):
    asked = []

    def counted(seed, index, ids):
        asked.append(len(ids))
        return gumbel_noise(seed, index, ids)

    monkeypatch.setattr(sampling, "gumbel_noise", counted)
    logits = torch.randn(5000, generator=torch.Generator().manual_seed(9))
    Sampler(SamplingSettings(top_k=20, top_p=1.0), 0, 5000).draw(logits, NOTHING, 0)
    Sampler(SamplingSettings(top_k=1), 0, 5000).draw(logits, NOTHING, 0)
    assert asked == [20]


def test_a_score_tie_after_noise_goes_to_the_lower_id(monkeypatch):
    monkeypatch.setattr(sampling, "gumbel_noise", lambda seed, index, ids: torch.zeros(len(ids)))
    assert Sampler(settings(), 0, 4).draw(row(0, 2, 1, 2), NOTHING, 0) == 1


# --- frequencies


def noise_at_indices(seed, count, ids):
    """gumbel_noise of ids [m] at the first indices, all at once: [count, m]."""
    words = torch.stack(philox_words((ids >> 2, torch.arange(count)[:, None], 0, 0), (seed, 0)))
    word = words.gather(0, (ids & 3).expand(1, count, -1))[0]
    return (-torch.log(-torch.log((word.double() + 0.5) * 2.0**-32))).float()


# Upper 0.1% points of chi-square by degrees of freedom, from the usual tables.
CRITICAL = {2: 13.82, 4: 18.47, 7: 24.32}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (dict(), [0.30, 0.25, 0.15, 0.10, 0.08, 0.06, 0.04, 0.02]),
        (dict(top_k=5, temperature=0.5), [0.09, 0.0625, 0.0225, 0.01, 0.0064]),
        # token 1 seen: 0.25 -> 0.25 * 0.5; min_p 0.3 of 0.30 keeps 0.10; top_p 0.7 of the 0.675 kept: 0.3, 0.15, 0.125
        (dict(presence_penalty=math.log(2), min_p=0.3, top_p=0.7), [0.30, 0.125, 0.15]),
    ],
    ids=["plain", "top-k and temperature", "presence, min-p and top-p"],
)
def test_draws_have_the_processed_distribution(changes, expected):
    logits = torch.log(row(0.30, 0.25, 0.15, 0.10, 0.08, 0.06, 0.04, 0.02))
    history = torch.tensor([1])
    draws, counts = 20_000, torch.zeros(8, dtype=torch.int64)
    ids, scores = process(logits, history, settings(**changes), 8)  # of every draw: neither seed nor index matters
    for seed in range(100):
        drawn = ids[torch.argmax(scores + noise_at_indices(seed, draws // 100, ids), dim=1)]
        sampler = Sampler(settings(**changes), seed, 8)
        assert [sampler.draw(logits, history, index) for index in range(5)] == drawn[:5].tolist()
        counts += torch.bincount(drawn, minlength=8)
    counts = counts.tolist()
    assert sum(counts[len(expected) :]) == 0
    wanted = [draws * mass / sum(expected) for mass in expected]
    statistic = sum((count - want) ** 2 / want for count, want in zip(counts, wanted, strict=False))
    assert statistic < CRITICAL[len(expected) - 1]


# --- a slow second opinion: Python floats, one token at a time


def slow_process(logits, history, chosen):
    scores = []
    for token, logit in enumerate(logits):
        if token in history:
            logit = logit * chosen.repetition_penalty if logit < 0 else logit / chosen.repetition_penalty
            logit -= chosen.presence_penalty
        scores.append(logit / chosen.temperature)
    ranked = sorted(range(len(scores)), key=lambda token: (-scores[token], token))
    if chosen.top_k:
        ranked = ranked[: chosen.top_k]
    top = scores[ranked[0]]
    ranked = [token for token in ranked if math.exp(scores[token] - top) >= chosen.min_p]
    if chosen.top_p < 1:
        total = sum(math.exp(scores[token] - top) for token in ranked)
        masses = [round(math.exp(scores[token] - top) / total * 2**40) for token in ranked]
        ranked = [token for place, token in enumerate(ranked) if sum(masses[:place]) < chosen.top_p * sum(masses)]
    return {token: scores[token] for token in sorted(ranked)}


def slow_noise(seed, index, token):
    c, k, low = [token >> 2, index, 0, 0], [seed & 0xFFFFFFFF, seed >> 32], 0xFFFFFFFF
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ k[0], b & low, a >> 32 ^ c[3] ^ k[1], a & low]
        k = [k[0] + 0x9E3779B9 & low, k[1] + 0xBB67AE85 & low]
    return -math.log(-math.log((c[token & 3] + 0.5) / 2**32))


@pytest.mark.parametrize("case", range(120))
def test_random_cases_agree_with_the_slow_implementation(case):
    source = random.Random(case)
    size = source.choice([1, 2, 7, 63, 65, 300])
    # Quarters are exact in float32, and so few values give many ties; every third case has none.
    logits = [source.randint(-24, 24) / 4 if case % 3 else source.gauss(0, 3) for _ in range(size)]
    logits = torch.tensor(logits, dtype=torch.float32)
    history = [source.randrange(size) for _ in range(source.choice([0, 1, 5, 40]))]
    chosen = SamplingSettings(
        temperature=source.choice([0.5, 0.7, 1.0, 2.0, 10.0]),
        top_k=source.choice([0, 1, 2, 5, 20, 64]),
        top_p=source.choice([0.1, 0.5, 0.8, 0.95, 1.0]),
        min_p=source.choice([0.0, 0.0, 0.06, 0.3]),
        repetition_penalty=source.choice([1.0, 1.25, 0.5, 3.0]),
        presence_penalty=source.choice([0.0, 0.5, -1.5]),
    )
    slow = slow_process(logits.tolist(), set(history), chosen)
    ids, scores = process(logits, torch.tensor(history, dtype=torch.int64), chosen, size)
    assert ids.tolist() == list(slow)
    # Three float32 roundings after exact inputs, of values below 40 / 0.5: 3 * 2^-24 relative, and the presence
    # penalty may cancel leading digits: 2^-24 * 80 absolute.
    expected = torch.tensor(list(slow.values()), dtype=torch.float64)
    torch.testing.assert_close(scores.double(), expected, rtol=2e-7, atol=5e-6)
    seed = source.getrandbits(64)
    sampler = Sampler(chosen, seed, size)
    for index in range(3):
        best = max(slow, key=lambda token: (slow[token] + slow_noise(seed, index, token), -token))
        assert sampler.draw(logits, torch.tensor(history, dtype=torch.int64), index) == best


GPU = torch.device("cuda")


@pytest.mark.gpu
def test_a_gpu_row_gives_the_survivors_and_the_token_of_a_cpu_row():
    logits = 3 * torch.randn(5000, generator=torch.Generator().manual_seed(10))
    history = torch.arange(0, 4990, 7)
    for chosen in (GREEDY, SamplingSettings(), settings(top_p=0.9), settings(min_p=0.02, repetition_penalty=1.3)):
        ids, scores = process(logits, history, chosen, 4990)
        gpu_ids, gpu_scores = process(logits.to(GPU), history, chosen, 4990)
        assert torch.equal(gpu_ids.cpu(), ids) and torch.equal(gpu_scores.cpu(), scores)
        sampler = Sampler(chosen, 3, 4990)
        assert [sampler.draw(logits.to(GPU), history, index) for index in range(20)] == [
            sampler.draw(logits, history, index) for index in range(20)
        ]
