"""Logits of the trunk and the MTP head against transformers, float32 on a CPU.

Bound: relative norm 2e-5. Both sides are float32 and sum in other orders. On these models the oracle's own
token-by-token logits differ from its own prefill by 3e-6 to 5e-6 (measured), so the bound leaves a factor of four.
"""

import functools

import pytest
import tiny
import torch
from fastqwen.model.load import load_model
from fastqwen.model.trunk import CHUNKS
from fastqwen.mtp.head import MtpHead
from fastqwen.weights import Checkpoint

BOUND = 2e-5
LENGTH = 200


@functools.cache
def models(name, tmp):
    oracle = tiny.oracle(name)
    folder = tiny.save_folder(oracle, tmp / name, mtp=True)
    return oracle, load_model(Checkpoint.open(folder), torch.device("cpu"), torch.float32)


@pytest.fixture(params=sorted(tiny.SHAPES))
def pair(request, tmp_path_factory):
    return models(request.param, tmp_path_factory.getbasetemp())


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


def random_ids(length, seed=3):
    return torch.randint(0, 320, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def oracle_logits(oracle, ids, **inputs):
    return oracle(torch.tensor([ids]), use_cache=False, **inputs).logits[0]


def relative(found, wanted):
    return ((found - wanted).norm() / wanted.norm()).item()


def prefill(trunk, state, ids):
    """Logits of every prompt token, on the chunk grid."""
    rows = []
    while ids:
        size = CHUNKS["cpu"] - state.length % CHUNKS["cpu"]
        rows.append(trunk.logits(trunk.prefill(trunk.embed(ids[:size]), state)))
        ids = ids[size:]
    return torch.cat(rows)


def decode(trunk, state, ids):
    rows = []
    for token in ids:
        rows.append(trunk.verify([token], [-1], state)[1][0])
        state.commit([0])
    return torch.stack(rows)


@pytest.mark.parametrize("length", [1, 3, 63, 65, LENGTH])
def test_prefill_equals_transformers(pair, length):
    oracle, model = pair
    ids = random_ids(length)
    found = prefill(model.trunk, model.trunk.new_state(length), ids)
    assert relative(found, oracle_logits(oracle, ids)) < BOUND


def test_prefill_in_chunks_equals_transformers(pair):
    oracle, model = pair
    ids = random_ids(CHUNKS["cpu"] + 70)
    found = prefill(model.trunk, model.trunk.new_state(len(ids)), ids)
    assert relative(found, oracle_logits(oracle, ids)) < BOUND


def test_prefill_over_several_calls_equals_transformers(pair):
    oracle, model = pair
    ids, state = random_ids(150), model.trunk.new_state(150)
    found = torch.cat([prefill(model.trunk, state, ids[:70]), prefill(model.trunk, state, ids[70:])])
    assert relative(found, oracle_logits(oracle, ids)) < BOUND


def test_decoding_token_by_token_equals_transformers(pair):
    oracle, model = pair
    ids = random_ids(LENGTH)
    found = decode(model.trunk, model.trunk.new_state(LENGTH), ids)
    assert relative(found, oracle_logits(oracle, ids)) < BOUND


def test_prefill_then_decode_equals_transformers(pair):
    oracle, model = pair
    ids, state = random_ids(LENGTH), model.trunk.new_state(LENGTH)
    found = torch.cat([prefill(model.trunk, state, ids[:120]), decode(model.trunk, state, ids[120:])])
    assert relative(found, oracle_logits(oracle, ids)) < BOUND


def test_prefill_after_decoding_continues_from_the_pending_token(pair):
    oracle, model = pair
    ids, state = random_ids(120), model.trunk.new_state(120)
    rows = [
        prefill(model.trunk, state, ids[:50]),
        decode(model.trunk, state, ids[50:60]),
        prefill(model.trunk, state, ids[60:]),
    ]
    assert relative(torch.cat(rows), oracle_logits(oracle, ids)) < BOUND


def test_greedy_choice_differs_only_inside_the_bound(pair):
    """Teacher-forced over 200 tokens of the oracle's own greedy text."""
    oracle, model = pair
    prompt = random_ids(20)
    ids = oracle.generate(torch.tensor([prompt]), max_new_tokens=LENGTH, do_sample=False, pad_token_id=0)[0].tolist()
    wanted = oracle_logits(oracle, ids)
    state = model.trunk.new_state(len(ids))
    found = torch.cat([prefill(model.trunk, state, ids[:20]), decode(model.trunk, state, ids[20:])])
    best = wanted.topk(2).values
    margin = best[:, 0] - best[:, 1]
    differs = found.argmax(-1) != wanted.argmax(-1)
    # Two logits that are each off by `bound` can change places only if they are closer than twice that.
    bound = 2 * (found - wanted).abs().max().clamp(max=BOUND * wanted.norm() / wanted.shape[0] ** 0.5)
    assert bool((margin[differs] <= bound).all())


def test_three_axis_rotary_positions_equal_transformers(pair):
    """A run of text, a 4 x 3 grid as an image has it, and text again."""
    oracle, model = pair
    ids = random_ids(40)
    grid = torch.stack([torch.full((12,), 10), 10 + torch.arange(12) // 3, 10 + torch.arange(12) % 3])
    positions = torch.cat([torch.arange(10).expand(3, -1), grid, (14 + torch.arange(18)).expand(3, -1)], 1)
    state = model.trunk.new_state(40)
    found = model.trunk.logits(model.trunk.prefill(model.trunk.embed(ids[:30]), state, positions[:, :30]))
    wanted = oracle_logits(oracle, ids, position_ids=positions[:, None])
    assert relative(found, wanted[:30]) < BOUND
    assert relative(decode(model.trunk, state, ids[30:]), wanted[30:]) < BOUND


def test_mtp_head_equals_the_same_layer_of_transformers(pair):
    from transformers.models.qwen3_5.modeling_qwen3_5 import (
        Qwen3_5DecoderLayer,
        Qwen3_5RMSNorm,
        Qwen3_5TextRotaryEmbedding,
    )

    oracle, model = pair
    config = oracle.config
    ids = random_ids(50)
    hidden = oracle.model(torch.tensor([ids[:-1]])).last_hidden_state
    weights = tiny.mtp_tensors(config)

    def norm(name):
        module = Qwen3_5RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        module.weight.data.copy_(weights[f"mtp.{name}.weight"])
        return module

    layer = Qwen3_5DecoderLayer(config, layer_idx=config.layer_types.index("full_attention"))
    stem = "mtp.layers.0."
    layer.load_state_dict({k.removeprefix(stem): v for k, v in weights.items() if k.startswith(stem)})
    embedded = oracle.model.embed_tokens(torch.tensor([ids[1:]]))
    joined = torch.cat([norm("pre_fc_norm_embedding")(embedded), norm("pre_fc_norm_hidden")(hidden)], -1)
    positions = torch.arange(49)[None, None].expand(3, 1, -1)
    rotary = Qwen3_5TextRotaryEmbedding(config)(joined, positions)
    mask = torch.full((49, 49), float("-inf")).triu(1)[None, None]
    out = layer(joined @ weights["mtp.fc.weight"].T, position_embeddings=rotary, attention_mask=mask)
    wanted = norm("norm")(out[0] if isinstance(out, tuple) else out)[0]

    head = MtpHead(load_model(Checkpoint.open(model.reader.checkpoint.path), model.trunk.device, torch.float32).reader,
                   model.config)  # fmt: skip
    cache = head.block.mixer.new_cache(capacity=64, kind="fp32", device=model.trunk.device)
    positions = torch.arange(49).expand(3, -1)
    found = head.prefill(model.trunk.embed(ids[1:]), hidden[0], positions, cache=cache)
    assert relative(found, wanted) < BOUND
