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


def realistic(tokens, kv_heads=2, dim=128, seed=0):
    """Keys with a few channels ten to twenty times as large as the rest, as trained models have them."""
    keys = randn(tokens, kv_heads, dim, seed=seed)
    outliers = torch.tensor([3, 17, 64, 101])
    keys[..., outliers] = keys[..., outliers] * 2 + torch.tensor([12.0, -15.0, 18.0, 10.0])
    return keys, randn(tokens, kv_heads, dim, seed=seed + 1)


@pytest.mark.parametrize("tokens", [500, 3000])
def test_int8_attention_is_off_by_what_its_rounding_predicts(tokens):
    """A key's channels are rounded in steps of its scale s, so a score of a q of unit channels is off by
    s / sqrt(12), and so are the weights, relatively. With values of zero mean the output is off by as much again as
    a share of itself, and by the values' own rounding."""
    keys, values = realistic(tokens)
    q = randn(4, 128, seed=9)
    caches = {kind: KVCache(2, 128, capacity=tokens, kind=kind, device=CPU) for kind in ("fp32", "int8")}
    for cache in caches.values():
        cache.append(keys, values)
    found, wanted = (attention.decode_row(q, caches[k].read, tokens - 1, tokens - 1) for k in ("int8", "fp32"))
    error = ((found - wanted).square().mean().sqrt() / wanted.square().mean().sqrt()).item()
    steps = [stored.scales[:, :tokens].mean() for stored in (caches["int8"].keys, caches["int8"].values)]
    predicted = ((steps[0] ** 2 + steps[1] ** 2) / 12).sqrt().item()
    assert 0.6 * predicted < error < 1.4 * predicted


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
