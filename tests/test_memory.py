"""Weights move under the objects that use them; what was given up comes back as the same bytes."""

import gc
import weakref

import pytest
import torch
from fastqwen.deltanet import KernelState
from fastqwen.engine import SamplingSettings, load, memory
from fastqwen.engine.memory import EngineMemory, by_storage, bytes_of, move, tensors_of
from fastqwen.mtp.estimates import Costs
from fastqwen.weights import FastQwenError

CPU = torch.device("cpu")
OPTIONS = {"settings": SamplingSettings(temperature=1.0, top_k=0, top_p=1.0), "seed": 3, "max_tokens": 8}


@pytest.fixture(scope="module")
def engine():
    return load("demo", device="cpu")


@pytest.fixture(scope="module")
def wanted(engine):
    return engine.generate("a fox", **OPTIONS).token_ids


def weights(engine):
    return by_storage(tensors_of(engine.trunk, engine.mtp_head), CPU)


def test_every_weight_of_the_file_is_found(engine):
    found = {id(tensor) for tensor in tensors_of(engine.trunk, engine.mtp_head)}
    trunk, head = engine.trunk, engine.mtp_head
    for tensor in (
        trunk.embedding.grid, trunk.norm, trunk.rotary.inverse, head.fc.matrices[0][0].grid, head.hidden_norm,
        *(block.mlp.down.matrices[0][0].channel_scale for block in trunk.blocks),
        *(block.mixer.out.matrices[0][0].grid for block in trunk.blocks),
        *(block.mlp.gate_up.norm.weight for block in trunk.blocks),
    ):  # fmt: skip
        assert id(tensor) in found
    # An int8 grid of one byte a weight is what a CPU keeps, so nothing can be smaller than the file's weights.
    assert engine.memory.weight_bytes == bytes_of(weights(engine)) > 1.2 * engine.trunk.embedding.grid.nbytes


def test_moved_weights_are_the_same_objects_with_the_same_bytes_elsewhere(engine, wanted):
    before = [(tensor, tensor.data_ptr(), tensor.clone()) for group in weights(engine) for tensor in group]
    move(weights(engine), CPU)
    assert all(tensor.data_ptr() != place for tensor, place, _ in before if tensor.numel())
    assert all(torch.equal(tensor, copy) and tensor.stride() == copy.stride() for tensor, _, copy in before)
    assert engine.generate("a fox", **OPTIONS).token_ids == wanted


def test_views_of_one_storage_stay_so_and_the_old_memory_goes():
    whole = torch.arange(24.0)
    part, turned = whole[6:12], whole.view(4, 6).T
    with torch.inference_mode():
        alone = torch.ones(3)
    old = weakref.ref(whole.untyped_storage())
    groups = by_storage([turned, part, whole, alone], CPU)
    assert sorted(map(len, groups)) == [1, 3] and bytes_of(groups) == 24 * 4 + 12
    move(groups, CPU)
    assert old() is None or old().data_ptr() != whole.data_ptr()
    whole[7] = -1
    assert part[1] == turned[1, 1] == -1 and turned.stride() == (1, 6)
    assert torch.equal(alone, torch.ones(3))


@pytest.mark.parametrize("loaded", [True, False])
@pytest.mark.parametrize("moved", [True, False])
def test_tensors_can_be_used_wherever_they_were_loaded_and_moved(loaded, moved):
    with torch.inference_mode(loaded):
        tensor = torch.arange(6.0)
    with torch.inference_mode(moved):
        move([[tensor]], CPU)
    assert tensor.is_inference() == loaded
    for used in (loaded, True):
        with torch.inference_mode(used):
            assert tensor[torch.tensor([2, 1])].tolist() == [2, 1] and tensor.add_(0).view(2, 3)[1, 2] == 5


def test_an_engine_that_was_given_up_comes_back_by_itself_with_the_same_text(engine, wanted):
    whole = engine.bytes_on_device()
    assert engine.memory.resident and whole == engine.memory.weight_bytes
    engine.offload()
    engine.offload()
    assert not engine.memory.resident and engine.bytes_on_device() == 0
    assert engine.generate("a fox", **OPTIONS).token_ids == wanted
    assert engine.memory.resident and engine.bytes_on_device() == whole


def test_a_reply_that_was_under_way_cannot_go_on(engine, wanted):
    reply = engine.reply("a fox", **OPTIONS)
    next(iter(reply))
    engine.offload()
    with pytest.raises(FastQwenError, match="unloaded while this reply was written"):
        reply.result()
    assert engine.generate("a fox", **OPTIONS).token_ids == wanted


class Moves:
    """Stands in for `move`: takes note of the way, and fails when told to."""

    def __init__(self, fails=False):
        self.ways, self.fails = [], fails

    def __call__(self, groups, device):
        groups = list(groups)
        self.ways.append((len(groups), str(device)))
        if self.fails and device.type != "cpu":
            raise torch.OutOfMemoryError("no room")


@pytest.fixture
def on_gpu(engine, monkeypatch):
    """EngineMemory of a small model that believes to be on a GPU with `free[0]` bytes free."""
    free = [2**40]
    held = EngineMemory(engine.trunk, engine.mtp_head, vocab=9, graphs=False, context=4096, costs=Costs())
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: None)
    monkeypatch.setattr("torch.cuda.synchronize", lambda device: None)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (free[0], 2**40))
    moves = Moves()
    monkeypatch.setattr(memory, "move", moves)
    groups = weights(engine)
    monkeypatch.setattr(held, "_weights", lambda: groups)
    held.device = torch.device("cuda", 0)
    return held, moves, free, len(groups)


def test_too_little_memory_is_said_with_what_to_do_and_more_memory_helps(on_gpu):
    held, moves, free, count = on_gpu
    held.offload()
    free[0] = held.weight_bytes - 1
    with pytest.raises(FastQwenError, match=r"^The weights need .* GiB are free on cuda:0: .* VRAM budget"):
        held.restore()
    assert not held.resident and moves.ways == [(count, "cpu")]
    free[0] += 1
    held.restore()
    assert held.resident and moves.ways[1:] == [(count, "cuda:0")]


def test_out_of_memory_on_the_way_back_stays_torchs_error_and_leaves_the_weights_in_ram(on_gpu):
    held, moves, _, count = on_gpu
    held.offload()
    moves.fails = True
    with pytest.raises(torch.OutOfMemoryError):
        held.restore()
    assert not held.resident and moves.ways[1:] == [(count, "cuda:0"), (0, "cpu")]  # none had arrived
    moves.fails = False
    held.restore()
    assert held.resident


@pytest.fixture
def device_model(engine, monkeypatch):
    """The engine believes that a GPU runs its passes by kernels; returns DeviceModel, to break one of them."""
    pytest.importorskip("triton")
    monkeypatch.setattr(memory, "round_kernels", lambda device: (True, "checked"))
    monkeypatch.setattr(engine.memory, "_on_device", True)
    monkeypatch.setattr(engine.memory, "room_for", lambda capacity: capacity)
    monkeypatch.setattr(engine.trunk, "pass_kernels", True)
    monkeypatch.setattr(memory.DeviceModel, "_by_kernels", True)
    for name in ("_verify", "_catch_up", "_first", "_next"):
        monkeypatch.setattr(memory.DeviceModel, name, lambda model: None)
    return memory.DeviceModel


def failing(error):
    def part(model):
        raise error

    return part


@pytest.mark.parametrize("part", ["_verify", "_next"])
def test_a_kernel_that_fails_at_the_models_sizes_is_said_once_and_the_host_drives(
    engine, wanted, device_model, part, monkeypatch, caplog
):
    monkeypatch.setattr(device_model, part, failing(RuntimeError("ptxas: too many registers\nand pages of it")))
    for _ in range(2):
        assert engine.generate("a fox", **OPTIONS).token_ids == wanted
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1 and f"{part[1:]}: RuntimeError: ptxas: too many registers)" in lines[0]
    assert not engine.trunk.pass_kernels and not engine.memory.is_shared and engine.memory.resident


def test_memory_that_ends_while_passes_are_compiled_is_no_failed_kernel(engine, device_model, monkeypatch, caplog):
    monkeypatch.setattr(device_model, "_verify", failing(torch.OutOfMemoryError("no room")))
    with pytest.raises(torch.OutOfMemoryError):
        engine.memory.model_for(64, lambda done, total: None)
    assert not caplog.records and engine.trunk.pass_kernels


def test_a_failed_capture_is_said_once_and_leaves_passes_that_are_launched_one_by_one(
    engine, device_model, monkeypatch, caplog
):
    model = device_model(engine.trunk, None, capacity=64, vocab=9)
    monkeypatch.setattr("torch.cuda.CUDAGraph", failing(RuntimeError("no graphs today")).__get__(model))
    monkeypatch.setattr(engine.trunk, "captures", True)
    model._capture(model.parts, None)
    assert [record.getMessage().count("no graphs today") for record in caplog.records] == [1]
    assert model.usable and not model.captured and not model.seconds and not engine.trunk.captures


@pytest.mark.parametrize("give_up", ["free", "offload"])
def test_what_replies_share_goes_with_its_graphs_though_somebody_still_holds_it(
    engine, device_model, give_up, monkeypatch
):
    model = engine.memory.model_for(64, lambda done, total: None)
    assert model is engine.memory.model_for(32, lambda done, total: None)  # kept, made once
    graph, state = object(), weakref.ref(model.state)
    model._graphs["verify"] = graph
    getattr(engine.memory, give_up)()
    engine.memory.restore()
    assert state() is None and not model.captured and not engine.memory.is_shared
    assert engine.memory.bytes == engine.memory.weight_bytes


def test_a_larger_reply_gets_other_buffers_and_what_knew_the_old_ones_goes_with_them(engine, device_model, monkeypatch):
    small = engine.memory.model_for(64, lambda done, total: None)
    small._graphs["verify"], small.user, state = object(), object(), weakref.ref(small.state)
    large = engine.memory.model_for(65, lambda done, total: None)
    assert large is not small and large.state.capacity == large.capacity == 65
    assert state() is None and not small.captured and small.user is None  # its reply cannot go on
    assert engine.memory.model_for(64, lambda done, total: None) is large

    monkeypatch.setattr(engine.memory, "room_for", failing(FastQwenError("does not fit")))
    with pytest.raises(FastQwenError, match="does not fit"):
        engine.memory.model_for(66, lambda done, total: None)
    monkeypatch.setattr(engine.memory, "room_for", lambda capacity: capacity)
    assert engine.memory.model_for(40, lambda done, total: None).capacity == 40  # a smaller one works then
    engine.free()


def test_a_state_without_pass_kernels_has_none_even_where_they_work(engine, device_model, monkeypatch):
    from fastqwen.attention import layer as attention
    from fastqwen.deltanet import layer as delta

    for module, name in ((attention, "attention_kernels"), (attention, "prefill_kernels"), (delta, "delta_kernels")):
        monkeypatch.setattr(module, name, lambda *_: (True, "checked"))
    monkeypatch.setattr(attention, "takes", lambda *_: True)
    monkeypatch.setattr(delta.delta_decode, "supports", lambda heads: True)
    assert engine.trunk.new_state(16).runs_on_device
    engine.trunk.pass_kernels = False
    state = engine.trunk.new_state(16)
    assert not any(getattr(layer, "scratch", None) or isinstance(layer, KernelState) for layer in state.layers)


def test_what_a_reply_needs_grows_with_its_tokens(engine):
    small, large = engine.memory.reply_bytes(100), engine.memory.reply_bytes(4000)
    keys = engine.memory._cache_bytes
    assert 0 < keys(1024) < small < large and large - small >= keys(4096) - keys(1024)


@pytest.mark.parametrize("mtp", ["auto", "off"])
def test_an_engine_that_nobody_uses_goes_without_the_garbage_collector(mtp):
    gc.collect()
    gc.disable()  # no circle may keep gigabytes until the collector runs
    try:
        engine = load("demo")  # on the GPU where there is one
        engine.generate("a fox", mtp=mtp, **OPTIONS)
        parts = [weakref.ref(part) for part in (engine, engine.trunk, engine.memory, engine.prefix_cache)]
        del engine
        assert not any(part() is not None for part in parts)
    finally:
        gc.enable()


@pytest.mark.gpu
def test_a_gpu_is_given_back_and_taken_again():
    device = torch.device("cuda", 0)
    engine = load("demo", device="cuda")
    wanted = engine.generate("a fox", **OPTIONS).token_ids
    torch.cuda.synchronize()
    held = engine.bytes_on_device()
    allocated = torch.cuda.memory_allocated(device)
    engine.offload()
    assert allocated - torch.cuda.memory_allocated(device) >= held > engine.memory.weight_bytes
    assert all(tensor.device == CPU for tensor in tensors_of(engine.trunk, engine.mtp_head))
    assert engine.generate("a fox", **OPTIONS).token_ids == wanted
    engine.offload()
    after = torch.cuda.memory_allocated(device)
    for _ in range(3):
        assert engine.generate("a fox", **OPTIONS).token_ids == wanted
        engine.offload()
    assert torch.cuda.memory_allocated(device) <= after


@pytest.mark.gpu
def test_an_engine_that_nobody_uses_leaves_the_gpu_at_once():
    load("demo", device="cuda").generate("a fox", **OPTIONS)  # libraries keep workspaces of their own from now on
    gc.collect()
    before = torch.cuda.memory_allocated()
    engine = load("demo", device="cuda")
    engine.generate("a fox", **OPTIONS)
    gc.disable()  # no circle may keep gigabytes until the collector runs
    try:
        del engine
        assert torch.cuda.memory_allocated() - before < 2**20  # small tables that kernels keep for every model
    finally:
        gc.enable()
