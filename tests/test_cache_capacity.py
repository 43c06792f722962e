"""How much a cache is allocated for, and the same memory used for one sequence after another."""

import pytest
import tiny
import torch
from fastqwen.attention import KINDS, GatedAttention, KVCache, cache_bytes, capacity_class, tokens_within
from fastqwen.engine.memory import EngineMemory
from fastqwen.model.load import load_model
from fastqwen.mtp.estimates import Costs
from fastqwen.weights import Checkpoint, FastQwenError

CPU = torch.device("cpu")


def test_capacity_classes_are_powers_of_two_up_to_the_limit():
    found = [capacity_class(tokens, 5000) for tokens in (1, 1024, 1025, 4096, 4097, 5000)]
    assert found == [1024, 1024, 2048, 4096, 5000, 5000]
    assert capacity_class(3, 100) == 100
    with pytest.raises(ValueError, match="5001 tokens are wanted and 5000 fit"):
        capacity_class(5001, 5000)


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_are_known_before_a_cache_is_made(kind):
    for capacity in (1, 500, 3000):
        cache = KVCache(2, 64, capacity=capacity, kind=kind, device=CPU)
        assert cache.bytes == cache_bytes(2, 64, capacity=capacity, kind=kind)


def test_the_most_tokens_within_a_number_of_bytes():
    def bytes_for(capacity):
        return 8 * cache_bytes(4, 256, capacity=capacity, kind="int8")

    most = tokens_within(100_000_000, bytes_for, 262144)
    assert bytes_for(most) <= 100_000_000 < bytes_for(most + 1)
    assert tokens_within(10, bytes_for, 262144) == 0
    assert tokens_within(1 << 50, bytes_for, 262144) == 262144


@pytest.mark.parametrize("kv", ["int8", "fp32"])
def test_a_state_that_was_reset_gives_the_bits_of_a_new_one_from_the_same_memory(kv, tmp_path):
    trunk = load_model(Checkpoint.open(tiny.save_folder(tiny.oracle("gqa4"), tmp_path)), CPU, torch.float32, kv=kv)
    trunk = trunk.trunk
    with torch.inference_mode():

        def run(state, seed):
            ids = torch.randint(0, 320, (30,), generator=torch.Generator().manual_seed(seed)).tolist()
            hidden = trunk.prefill(trunk.embed(ids), state)
            logits = [trunk.verify([7, 8], (-1, 0), state)[1].clone()]
            state.commit([0, 1])
            logits.append(trunk.verify([9], (-1,), state)[1])
            state.commit([0])  # left pending
            return torch.cat([hidden.flatten(), *(x.flatten() for x in logits)])

        wanted = run(trunk.new_state(64), 2)
        used = trunk.new_state(64)
        run(used, 1)
        places = [layer.keys.numbers.data_ptr() for layer in used.layers if isinstance(layer, KVCache)]
        used.reset()
        assert used.length == used.next_position == 0
        assert torch.equal(run(used, 2), wanted)
        assert [x.keys.numbers.data_ptr() for x in used.layers if isinstance(x, KVCache)] == places


@pytest.mark.parametrize("kind", KINDS)
def test_passes_that_the_device_controlled_leave_an_accepted_leaf_to_be_moved(kind):
    cache = KVCache(2, 64, capacity=16, kind=kind, device=CPU)
    x = torch.randn(2, 12, 2, 64, generator=torch.Generator().manual_seed(0))
    cache.append(*x)
    before = [part.clone() for part in cache.rows(0, 12)]
    cache.adopt(9, (11, 8))
    assert cache.length == 9
    for found, old in zip(cache.rows(0, 12), before, strict=True):
        assert torch.equal(found[:, 8], old[:, 11]) and not torch.equal(old[:, 8], old[:, 11])
        assert torch.equal(found[:, :8], old[:, :8]) and torch.equal(found[:, 9:], old[:, 9:])


def test_a_gpu_without_kernels_refuses_what_does_not_fit_with_what_would(tmp_path, monkeypatch):
    """A reply has a cache of its own there, and torch's own error would not say what to lower."""
    trunk = load_model(Checkpoint.open(tiny.save_folder(tiny.oracle("gqa4"), tmp_path)), CPU, torch.float32).trunk
    held = EngineMemory(trunk, None, vocab=9, graphs=False, context=4096, costs=Costs())
    held.device = torch.device("cuda", 0)
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: None)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (2**20, 2**30))
    assert held.model_for(500, lambda done, total: None) is None
    with pytest.raises(FastQwenError, match="4000 tokens of prompt and reply need .* enough for about 3[0-9]{3} "):
        held.model_for(4000, lambda done, total: None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_before_the_last_slot_has_room_for_all_its_rows(kind):
    """64 tokens end a part, so nothing is rounded up that could hide a row too many."""
    cache = KVCache(2, 64, capacity=64, kind=kind, device=CPU)
    x = torch.randn(2, 71, 2, 64, generator=torch.Generator().manual_seed(0))
    cache.append(*x[:, :63])
    slots = cache.stage(*x[:, 63:], (-1, 0, 1, 2, 0, 0, 1, 3))
    assert sorted(slots) == list(range(63, 71))
    whole = KVCache(2, 64, capacity=96, kind=kind, device=CPU)
    whole.append(*x)
    for found, wanted in zip(cache.rows(0, 71), whole.rows(0, 71), strict=True):
        assert torch.equal(found[:, [*range(63), *slots]], wanted)
    cache.commit((0,))
    assert cache.length == cache.capacity == 64


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_nobody_reads_outputs_of_are_stored_as_others_are(kind, tmp_path):
    """An MTP head's rows of a prompt: were they stored otherwise, drafts would be wrong and nothing else."""
    trunk = load_model(Checkpoint.open(tiny.save_folder(tiny.oracle("gqa4"), tmp_path)), CPU, torch.float32).trunk
    mixer = next(block.mixer for block in trunk.blocks if isinstance(block.mixer, GatedAttention))
    x = torch.randn(9, trunk.config.hidden_size, generator=torch.Generator().manual_seed(1))
    caches = [mixer.new_cache(capacity=16, kind=kind, device=CPU, kernels=False) for _ in range(2)]
    with torch.inference_mode():
        angles = trunk.rotary(torch.arange(9).expand(3, -1))
        mixer.prefill(x, *angles, cache=caches[0])
        mixer.extend(x, *angles, cache=caches[1])
    assert caches[0].length == caches[1].length == 9
    for found, wanted in zip(caches[1].rows(0, 9), caches[0].rows(0, 9), strict=True):
        assert torch.equal(found, wanted) and found.any()
