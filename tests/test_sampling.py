"""Sampling settings and processors: each by hand, their order, ties, greedy, and what is refused."""

import math

import numpy as np
import pytest
import torch
from fastqwen.engine.sampling import GREEDY, Sampler, SamplingSettings, process
from fastqwen.weights import FastQwenError

NEUTRAL = dict(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, presence_penalty=0.0)
NOTHING = torch.tensor([], dtype=torch.int64)


def settings(**changes):
    return SamplingSettings(**{**NEUTRAL, **changes})


def row(*logits):
    return torch.tensor(logits, dtype=torch.float32)


def chances(*probabilities):
    return row(*(math.log(p) for p in probabilities))


def survivors(logits, history=(), vocab_size=None, **changes):
    history = torch.tensor(history, dtype=torch.int64)
    ids, scores = process(logits, history, settings(**changes), vocab_size or len(logits))
    assert ids.dtype == torch.int64 and scores.dtype == torch.float32 and len(ids) == len(scores)
    assert ids.tolist() == sorted(set(ids.tolist()))
    return ids.tolist(), scores.tolist()


def kept(logits, **changes):
    return survivors(logits, **changes)[0]


# --- the processors, one by one and in order


def test_neutral_settings_leave_the_row_as_it_is():
    assert survivors(row(1.5, -2, 0)) == ([0, 1, 2], [1.5, -2, 0])


def test_repetition_divides_positive_and_multiplies_negative_logits_once_per_seen_token():
    assert survivors(row(2, -2, 1, 0), [0, 1, 0, 0, 3], repetition_penalty=2.0)[1] == [1, -4, 1, 0]
    assert survivors(row(2, -2, 1, 0), [0, 1], repetition_penalty=0.5)[1] == [4, -1, 1, 0]


def test_presence_is_subtracted_once_per_seen_token():
    assert survivors(row(2, -2, 1), [2, 0, 2], presence_penalty=0.5)[1] == [1.5, -2, 0.5]
    assert survivors(row(2, -2, 1), [2, 0, 2], presence_penalty=-0.5)[1] == [2.5, -2, 1.5]


def test_repetition_comes_before_presence_and_both_before_temperature():
    # 1 / 2 - 0.25 = 0.25, then / 0.5; -1 * 2 - 0.25 = -2.25, then / 0.5
    changes = dict(repetition_penalty=2.0, presence_penalty=0.25, temperature=0.5)
    assert survivors(row(1, -1, 3), [0, 1], **changes)[1] == [0.5, -4.5, 6]


def test_penalties_come_before_top_k():
    assert kept(row(3, 2), top_k=1) == [0]
    assert survivors(row(3, 2), [0], top_k=1, presence_penalty=2.0)[0] == [1]


def test_top_k_keeps_exactly_k_and_prefers_lower_ids_on_a_tie():
    assert kept(row(1, 3, 3, 3, 0), top_k=2) == [1, 2]
    assert kept(row(3, 1, 3, 4, 3), top_k=3) == [0, 2, 3]
    assert kept(row(0, -0.0, 0, 0), top_k=3) == [0, 1, 2]
    assert kept(row(1, 3, 2), top_k=1) == [1]
    for off in (0, 3, 4, 10**9):
        assert kept(row(1, 3, 2), top_k=off) == [0, 1, 2]


def test_min_p_compares_with_the_most_likely_token():
    logits = chances(0.5, 0.3, 0.15, 0.05)
    assert kept(logits, min_p=0.05) == [0, 1, 2, 3]
    assert kept(logits, min_p=0.2) == [0, 1, 2]
    assert kept(logits, min_p=0.5) == [0, 1]
    assert kept(logits, min_p=0.7) == [0]
    assert kept(row(2, 1, 2), min_p=1.0) == [0, 2]


def test_the_token_that_crosses_the_top_p_limit_stays():
    logits = chances(0.2, 0.5, 0.3)
    assert kept(logits, top_p=0.6) == [1, 2]  # 0.5 < 0.6 before token 2, 0.8 after it; an inclusive rule drops it
    assert kept(logits, top_p=0.4) == [1]
    assert kept(logits, top_p=0.9) == [0, 1, 2]
    assert kept(logits, top_p=1e-12) == [1]


def test_top_p_reached_exactly_ends_there_and_ties_keep_the_lower_ids():
    assert kept(row(0, 0, 0, 0), top_p=0.5) == [0, 1]
    assert kept(row(0, 0, 0, 0), top_p=0.5001) == [0, 1, 2]
    assert kept(row(-90, 1, 1, 1, 1), top_p=0.75) == [1, 2, 3]


def test_temperature_comes_before_the_filters():
    logits = chances(0.4, 0.3, 0.2, 0.1)
    assert kept(logits, top_p=0.5) == [0, 1]
    assert kept(logits, top_p=0.5, temperature=0.5) == [0]  # 0.16 / 0.30 = 0.53
    assert kept(logits, min_p=0.6) == [0, 1]
    assert kept(logits, min_p=0.6, temperature=0.5) == [0]  # (3 / 4)^2 = 0.56


def test_top_k_and_min_p_come_before_top_p():
    logits = chances(0.4, 0.3, 0.2, 0.1)
    assert kept(logits, top_p=0.5) == [0, 1]
    assert kept(logits, top_p=0.5, top_k=2) == [0]  # 0.4 / 0.7 = 0.57
    assert kept(logits, top_p=0.5, min_p=0.6) == [0]


def test_processing_changes_nothing_it_was_given():
    logits, history = row(2, -2, 1), torch.tensor([1, 0])
    process(logits, history, settings(repetition_penalty=2.0, presence_penalty=1.0, temperature=0.5, top_k=2), 3)
    assert logits.tolist() == [2, -2, 1] and history.tolist() == [1, 0]


# --- greedy


@pytest.mark.parametrize("greedy", [GREEDY, settings(temperature=0), SamplingSettings(greedy=True, top_k=1, min_p=1.0)])
def test_greedy_takes_the_argmax_and_the_lower_id_on_a_tie(greedy):
    for seed in range(5):
        assert Sampler(greedy, seed, 4).draw(row(1, 5, 5, 2), NOTHING, seed) == 1
    assert [part.tolist() for part in process(row(1, 5, 5, 2), NOTHING, greedy, 4)] == [[1], [5]]


def test_greedy_sees_penalties():
    repetition = Sampler(SamplingSettings(greedy=True, repetition_penalty=2.0), 0, 3)
    assert repetition.draw(row(3, 2, 1), torch.tensor([0]), 0) == 1
    presence = Sampler(SamplingSettings(greedy=True, presence_penalty=2.5), 0, 3)
    assert presence.draw(row(3, 2, 1), torch.tensor([0, 1]), 0) == 2
    assert GREEDY.presence_penalty == 0 and GREEDY.repetition_penalty == 1


# --- what is refused


@pytest.mark.parametrize("chosen", [GREEDY, settings(), SamplingSettings()])
@pytest.mark.parametrize("bad", [(0, math.nan, 1), (0, math.inf, 1), (-math.inf, -math.inf, -math.inf)])
def test_rows_without_a_finite_maximum_are_refused(chosen, bad):
    with pytest.raises(FastQwenError, match="highest logit"):
        Sampler(chosen, 0, 3).draw(row(*bad), NOTHING, 0)


@pytest.mark.parametrize("changes", [dict(), dict(top_k=2), dict(top_p=0.9), dict(min_p=0.01)])
def test_minus_infinity_is_never_drawn(changes):
    sampler = Sampler(settings(**changes), 0, 4)
    assert {sampler.draw(row(-math.inf, 0, -math.inf, 0), NOTHING, index) for index in range(60)} == {1, 3}


def test_a_temperature_that_overflows_is_refused():
    with pytest.raises(FastQwenError, match="too small"):
        Sampler(settings(temperature=1e-39), 0, 2).draw(row(5, 1), NOTHING, 0)


def test_rows_of_another_kind_are_refused():
    for logits in (torch.zeros(3, dtype=torch.bfloat16), torch.zeros(1, 3), torch.zeros(2)):
        with pytest.raises(ValueError, match="float32"):
            process(logits, NOTHING, GREEDY, 3)


GOOD = [
    dict(temperature=0), dict(temperature=10), dict(top_k=0), dict(top_k=10**6), dict(top_p=1), dict(top_p=1e-6),
    dict(min_p=0), dict(min_p=1), dict(repetition_penalty=5), dict(repetition_penalty=0.1), dict(presence_penalty=-5),
    dict(presence_penalty=5),
]  # fmt: skip
BAD = [
    dict(temperature=-0.1), dict(temperature=10.5), dict(top_k=-1), dict(top_k=2.0), dict(top_k=True), dict(top_k=None),
    dict(top_p=0), dict(top_p=1.1), dict(min_p=-0.1), dict(min_p=1.1), dict(repetition_penalty=0),
    dict(repetition_penalty=-1), dict(repetition_penalty=5.1), dict(presence_penalty=-5.1), dict(presence_penalty=5.1),
    dict(greedy=1), dict(greedy=None),
    *(dict([(name, value)]) for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty")
      for value in (math.nan, math.inf, -math.inf, True, "1", None)),
]  # fmt: skip


@pytest.mark.parametrize("changes", GOOD, ids=str)
def test_values_at_the_ends_of_their_ranges_are_taken(changes):
    (name,) = changes
    assert getattr(SamplingSettings(**changes), name) == changes[name]


@pytest.mark.parametrize("changes", BAD, ids=str)
def test_values_out_of_range_are_refused_by_name(changes):
    (name,) = changes
    with pytest.raises(FastQwenError, match=f"^{name} is .*; set "):
        SamplingSettings(**changes)


def test_a_seed_must_be_a_whole_number_and_a_vocabulary_not_empty():
    for seed in (1.0, True, None):
        with pytest.raises(FastQwenError, match="seed"):
            Sampler(GREEDY, seed, 3)
    with pytest.raises(FastQwenError, match="vocabulary"):
        Sampler(GREEDY, 0, 0)
    for seed, low_bits in ((np.int64(-1), 2**64 - 1), (np.uint64(2**63), 2**63), (np.int8(5), 5)):
        drawn = [Sampler(settings(), known, 1000).draw(torch.zeros(1000), NOTHING, 7) for known in (seed, low_bits)]
        assert drawn[0] == drawn[1]


def test_settings_are_frozen_and_default_to_the_models_own():
    chosen = SamplingSettings()
    assert (chosen.temperature, chosen.top_k, chosen.top_p, chosen.min_p) == (0.7, 20, 0.8, 0.0)
    assert not chosen.is_greedy and GREEDY.is_greedy and SamplingSettings(temperature=0).is_greedy
    with pytest.raises(AttributeError):
        chosen.top_k = 3
