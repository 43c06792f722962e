"""Philox against its published vectors and plain integers, and the Gumbel noise made from it."""

import math
import random

import pytest
import torch
from fastqwen.kernels import philox
from fastqwen.kernels.philox import gumbel_noise, philox_words

# philox4x32-10 known-answer vectors of Random123: counter, key, words.
KNOWN_ANSWERS = [
    ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def words_by_plain_integers(counter, key):
    """The same generator, written again from the paper with Python's unbounded ints."""
    low = (1 << 32) - 1
    left0, right0, left1, right1 = counter[0], counter[1], counter[2], counter[3]
    for number in range(10):
        round_key = [(key[0] + number * 0x9E3779B9) & low, (key[1] + number * 0xBB67AE85) & low]
        first, second = 0xD2511F53 * left0, 0xCD9E8D57 * left1
        left0, right0, left1, right1 = (
            (second >> 32) ^ right0 ^ round_key[0],
            second & low,
            (first >> 32) ^ right1 ^ round_key[1],
            first & low,
        )
    return left0, right0, left1, right1


def noise_by_plain_integers(seed, index, token):
    low = (1 << 32) - 1
    seed %= 1 << 64
    words = words_by_plain_integers((token >> 2, index & low, index >> 32, 0), (seed & low, seed >> 32))
    return -math.log(-math.log((words[token & 3] + 0.5) / 2**32))


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_the_published_vectors_come_out(counter, key, words):
    assert words_by_plain_integers(counter, key) == words
    assert tuple(int(word) for word in philox_words(counter, key)) == words


def test_words_equal_plain_integers_for_vectors_of_counters():
    source = random.Random(1)
    counters = [[source.getrandbits(32) for _ in range(257)] for _ in range(4)]
    key = (source.getrandbits(32), source.getrandbits(32))
    words = philox_words(tuple(torch.tensor(column) for column in counters), key)
    assert all(word.dtype == torch.int64 and word.shape == (257,) for word in words)
    expected = [words_by_plain_integers(counter, key) for counter in zip(*counters, strict=True)]
    assert list(zip(*(word.tolist() for word in words), strict=True)) == expected


def test_scalar_counter_words_broadcast_against_tensors():
    ids = torch.arange(6).reshape(2, 3)
    words = philox_words((ids, 7, torch.tensor(8), 0), (3, 4))
    assert all(word.shape == (2, 3) for word in words)
    assert tuple(int(word[1, 2]) for word in words) == words_by_plain_integers((5, 7, 8, 0), (3, 4))


@pytest.mark.parametrize("seed", [0, 42, (1 << 32) + 5, (1 << 63) + 1, (1 << 64) - 1, -3, (1 << 70) + 9])
@pytest.mark.parametrize("index", [0, 1, (1 << 32) - 1, 1 << 32, (7 << 32) + 1, (1 << 64) - 1])
def test_noise_equals_plain_integers_for_every_size_of_seed_and_index(seed, index):
    ids = [0, 1, 2, 3, 4, 7, 8191, 248_319]
    noise = gumbel_noise(seed, index, torch.tensor(ids))
    expected = torch.tensor([noise_by_plain_integers(seed, index, token) for token in ids], dtype=torch.float64)
    assert noise.dtype == torch.float32
    # One float64 ulp of a log may tip the one rounding to float32: at most one float32 ulp, 2^-23 relative.
    torch.testing.assert_close(noise.double(), expected, rtol=2.0**-23, atol=0)


def test_the_words_behind_the_noise_are_the_ids_own():
    ids = torch.arange(1000)
    noise = gumbel_noise(11, 5, ids)
    uniform = torch.exp(-torch.exp(-noise.double()))
    words = [words_by_plain_integers((token >> 2, 5, 0, 0), (11, 0))[token & 3] for token in range(1000)]
    expected = (torch.tensor(words, dtype=torch.float64) + 0.5) / 2**32
    # du = u * (-ln u) * dnoise <= 0.37 * dnoise, and dnoise is half a float32 ulp of less than 16: 4.8e-7.
    torch.testing.assert_close(uniform, expected, rtol=0, atol=2e-7)


def test_an_ids_noise_does_not_depend_on_which_ids_are_asked_for():
    everything = gumbel_noise(123, 9, torch.arange(5000))
    subset = torch.randperm(5000, generator=torch.Generator().manual_seed(2))[:63]
    assert torch.equal(gumbel_noise(123, 9, subset), everything[subset])
    assert torch.equal(gumbel_noise(123, 9, subset.reshape(9, 7)), everything[subset].reshape(9, 7))
    assert torch.equal(gumbel_noise(123, 9, subset[:1]), everything[subset[:1]])
    assert gumbel_noise(123, 9, subset[:0]).shape == (0,)


def test_seed_and_index_each_change_the_noise():
    ids = torch.arange(400)
    rows = [
        gumbel_noise(seed, index, ids)
        for seed, index in [(0, 0), (1, 0), (1 << 32, 0), (0, 1), (0, 1 << 32), (1, 1 << 32), (1 << 32, 1)]
    ]
    for one, first in enumerate(rows):
        for second in rows[:one]:
            assert (first == second).sum() < 3


def test_seeds_are_taken_modulo_two_to_the_64():
    ids = torch.arange(40)
    assert torch.equal(gumbel_noise(-1, 0, ids), gumbel_noise((1 << 64) - 1, 0, ids))
    assert torch.equal(gumbel_noise(1 << 64, 0, ids), gumbel_noise(0, 0, ids))


def test_the_noise_has_a_gumbel_distribution():
    count = 200_000
    noise = gumbel_noise(2024, 77, torch.arange(count)).double()
    variance = math.pi**2 / 6
    # Five standard errors each. Of the variance: sqrt((kurtosis - 1) / n) * variance with kurtosis 5.4.
    assert abs(noise.mean() - 0.5772156649) < 5 * math.sqrt(variance / count)
    assert abs(noise.var() - variance) < 5 * variance * math.sqrt(4.4 / count)
    below = [(noise < limit).double().mean() - math.exp(-math.exp(-limit)) for limit in (-1.0, 0.0, 1.0, 3.0)]
    assert max(abs(gap) for gap in below) < 5 * math.sqrt(0.25 / count)


def test_the_extreme_words_give_finite_noise(monkeypatch):
    words = tuple(torch.full((4,), word) for word in (0, 1, 0xFFFFFFFE, 0xFFFFFFFF))
    monkeypatch.setattr(philox, "philox_words", lambda counter, key: words)
    expected = torch.tensor([-3.1300, -3.0808, 21.7752, 22.8739])  # -log(-log(v)) of 2^-33, 3 * 2^-33 and their mirrors
    torch.testing.assert_close(gumbel_noise(0, 0, torch.arange(4)), expected, rtol=0, atol=1e-4)


def test_wrong_dtypes_and_indices_are_refused():
    with pytest.raises(ValueError, match="int64"):
        gumbel_noise(0, 0, torch.arange(4, dtype=torch.int32))
    with pytest.raises(ValueError, match="int64"):
        philox_words((torch.zeros(3), 0, 0, 0), (0, 0))
    for index in (-1, 1 << 64):
        with pytest.raises(ValueError, match="index"):
            gumbel_noise(0, index, torch.arange(4))


GPU = torch.device("cuda")


@pytest.mark.gpu
def test_the_gpu_gives_the_words_of_the_cpu():
    ids = torch.arange(10_000)
    for on_cpu, on_gpu in zip(
        philox_words((ids, 5, 6, 0), (7, 8)), philox_words((ids.to(GPU), 5, 6, 0), (7, 8)), strict=True
    ):
        assert torch.equal(on_cpu, on_gpu.cpu())
    noise = gumbel_noise(3, 4, ids)
    torch.testing.assert_close(gumbel_noise(3, 4, ids.to(GPU)).cpu(), noise, rtol=2.0**-23, atol=0)
