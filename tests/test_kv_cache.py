"""Keys and values in int8: exact bytes per token, quality, memory, and the option that chooses it."""

import pytest
import tiny
import torch
from fastqwen.attention import KINDS, KVCache
from fastqwen.engine import GREEDY, FastQwenError, load
from fastqwen.kernels import attention, kv_int8

CPU = torch.device("cpu")


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_int8_codes_and_scales_are_those_of_their_definition():
    x = torch.tensor([[127.0, -63.5, 0.5, 1.5], [0.0, 0.0, 0.0, 0.0], [1.0, -0.3, 0.2, 0.0]])
    codes, scales = kv_int8.quantise(x)
    assert scales.tolist() == [1.0, 1.0, pytest.approx(1 / 127)]
    assert codes[0].tolist() == [127, -64, 0, 2]  # half to even: -63.5 -> -64, 0.5 -> 0, 1.5 -> 2
    assert codes[2].tolist() == [127, -38, 25, 0] and not codes[1].any()
    assert kv_int8.quantise(torch.tensor([[float("nan"), 1.0]]))[1].isnan().all()


def test_a_tokens_bytes_do_not_depend_on_its_neighbours():
    x = randn(300, 3, 64) * torch.logspace(-3, 3, 300)[:, None, None]
    codes, scales = kv_int8.quantise(x)
    for token in range(0, 300, 7):
        alone = kv_int8.quantise(x[token : token + 1].clone())
        assert torch.equal(alone[0][0], codes[token]) and torch.equal(alone[1][0], scales[token])


def realistic(tokens, outliers, kv_heads=2, dim=256):
    """Keys and values as trained models have them: keys with a few channels ten to twenty times as large as the rest,
    by their norm's weight ("weight") or by an offset that all tokens share ("offset")."""
    keys = randn(tokens, kv_heads, dim, seed=0)
    channels, sizes = torch.tensor([3, 17, 64, 101, 200]), torch.tensor([12.0, -15.0, 18.0, 10.0, 14.0])
    if outliers == "offset":
        keys[..., channels] = keys[..., channels] * 2 + sizes
    keys = keys / keys.square().mean(-1, keepdim=True).sqrt()
    if outliers == "weight":
        keys[..., channels] = keys[..., channels] * sizes
    return keys, randn(tokens, kv_heads, dim, seed=1)


def error_and_spread(outliers, kind, other, tokens=3000, size=0.5, mixed=True):
    """Relative error of a row's attention over a cache of `kind` against one of `other`, the scores' spread, and what
    the int8 cache's steps predict."""
    keys, values = realistic(tokens, outliers)
    q = randn(8, 256, seed=9) * size
    outs, caches = [], []
    for each in (kind, other):
        cache = KVCache(2, 256, capacity=tokens, kind=each, device=CPU)
        cache.mixed = cache.mixed and mixed
        ours, k = cache.for_cache(q, keys)
        cache.append(k, values)
        outs.append(attention.decode_row(ours, cache.read, tokens - 1, tokens - 1))
        caches.append(cache)
    scores = q.view(2, 4, 256) @ keys.permute(1, 2, 0) / 16
    error = ((outs[0] - outs[1]).square().mean().sqrt() / outs[1].square().mean().sqrt()).item()
    key_step, value_step = (stored.scales[:, :tokens].mean().item() for stored in (caches[0].keys, caches[0].values))
    # Steps are uniform errors of s / sqrt(12): of values as they are; of keys, q.e / 16 moves a score, which moves a
    # weight by as much of itself. H k is 16 times as long as k.
    moved = key_step / (16 if mixed else 1) * q.square().mean().sqrt().item()
    return error, scores.std(-1).mean().item(), ((moved**2 + value_step**2) / 12) ** 0.5


@pytest.mark.parametrize("outliers", ["none", "weight", "offset"])
def test_int8_attention_is_within_a_hundredth_of_bf16s_although_keys_have_outlier_channels(outliers):
    error, spread, _ = error_and_spread(outliers, "int8", "bf16", size=0.4)
    assert 0.15 < spread < 1
    assert 0.002 < error <= 0.01


@pytest.mark.parametrize("outliers", ["none", "weight", "offset"])
@pytest.mark.parametrize("size", [0.5, 2.0])
def test_int8_attention_is_off_by_what_its_rounding_predicts(outliers, size):
    error, _, predicted = error_and_spread(outliers, "int8", "fp32", size=size)
    # A share of the output where weights are spread; of peaked ones the moved share is smaller.
    assert 0.4 * predicted < error < 1.4 * predicted


@pytest.mark.parametrize("outliers", ["weight", "offset"])
def test_mixing_the_channels_of_keys_takes_most_of_the_error_that_outliers_bring(outliers):
    plain = error_and_spread(outliers, "int8", "fp32", size=1.0, mixed=False)[0]
    assert error_and_spread(outliers, "int8", "fp32", size=1.0)[0] < plain / 2


def test_products_of_mixed_queries_and_keys_are_those_of_the_plain_ones():
    q, k = randn(5, 256, seed=3).double(), randn(7, 256, seed=4).double()
    mixed = kv_int8.mixed_queries(q).double() @ kv_int8.mixed_keys(k).double().T
    assert torch.allclose(mixed, q @ k.T, rtol=0, atol=256 * 2**-23)
    matrix = kv_int8.mixed_keys(torch.eye(64))
    assert torch.equal(matrix @ matrix.T, 64 * torch.eye(64)) and matrix.abs().eq(1).all()
    assert not KVCache(1, 96, capacity=8, kind="int8", device=CPU).mixed  # 96 channels have no such matrix here


def test_int8_takes_a_quarter_of_fp32_and_half_of_bf16_and_a_scale_a_token():
    size = {kind: KVCache(4, 256, capacity=32768, kind=kind, device=CPU).bytes for kind in KINDS}
    slots = size["bf16"] // (2 * 4 * 256 * 2)
    assert size["fp32"] == 2 * size["bf16"]
    assert size["int8"] == size["bf16"] // 2 + 2 * 4 * slots * 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.save_tokenizer(tiny.save_folder(tiny.oracle("gqa4"), tmp_path_factory.mktemp("kv")))


@pytest.mark.parametrize("kv", ["auto", *KINDS])
def test_every_kind_writes_a_reply_that_its_seed_repeats(folder, kv):
    engine = load(folder, device="cpu", kv=kv)
    first = engine.generate("a fox", settings=GREEDY, max_tokens=20)
    assert engine.generate("a fox", settings=GREEDY, max_tokens=20).token_ids == first.token_ids
    assert engine.trunk.kv == ("fp32" if kv == "auto" else kv)


def test_unknown_kind_is_refused(folder):
    with pytest.raises(FastQwenError, match="int4"):
        load(folder, kv="int4")
