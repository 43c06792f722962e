"""Layers that are read from RAM in every pass: which, in what order, and that the text stays the same."""

import mmap

import pytest
import torch
from fastqwen.engine import SamplingSettings, load
from fastqwen.engine.memory import by_storage, bytes_of, tensors_of
from fastqwen.engine.streaming import BUFFERS, HostLayer, Placement, PlainCopies, Stream, StreamedBlock, plan
from fastqwen.weights import FastQwenError

CPU = torch.device("cpu")
OPTIONS = {"settings": SamplingSettings(temperature=1.0, top_k=0, top_p=1.0), "seed": 3, "max_tokens": 6}


def test_nothing_is_streamed_where_everything_fits():
    assert plan([10] * 8, 20, 100) == plan([10] * 8, 20, 10**9)
    assert plan([10] * 8, 20, 100).streamed == ()


def test_as_few_layers_are_streamed_as_the_budget_allows_evenly_spread():
    for budget in range(40, 100):
        chosen = plan([10] * 8, 20, budget)
        assert chosen.device_bytes <= budget
        count = len(chosen.streamed)
        assert chosen.device_bytes == 20 + 10 * (8 - count) + 10 * BUFFERS
        assert budget < chosen.device_bytes + 10 or count == BUFFERS + 1  # one layer less: no room, or no gain
        gaps = [b - a for a, b in zip(chosen.streamed, chosen.streamed[1:], strict=False)]
        assert max(gaps) - min(gaps) <= 1


def test_buffers_are_as_large_as_the_largest_streamed_layer():
    sizes = [30, 10, 10, 10, 10, 10]
    for budget in range(110, 180):
        chosen = plan(sizes, 50, budget)
        kept = sum(size for index, size in enumerate(sizes) if index not in chosen.streamed)
        buffers = BUFFERS * max((sizes[index] for index in chosen.streamed), default=0)
        assert chosen.device_bytes == 50 + kept + buffers <= budget


def test_a_budget_that_is_too_small_is_refused_with_what_is_needed():
    with pytest.raises(FastQwenError, match=r"budget of 1.00 GiB is too small: .* 4.00 GiB of weights stay"):
        plan([2**30] * 8, 2 * 2**30, 2**30)


class Layer:
    """A layer of one byte, its number; the stream tells it where it lies."""

    def __init__(self, number):
        self.host, self.bytes = torch.full((1,), number, dtype=torch.uint8), 1

    def point_to(self, buffer):
        self.buffer = buffer


class LateCopies:
    """Copies that arrive as late as is allowed, when they are waited for; the old bytes go at once. Of two into one
    buffer, which run one after the other, the later stays."""

    def __init__(self):
        self.under_way, self.started = {}, []

    def start(self, buffer, target, source):
        self.under_way[buffer] = (target, source)
        self.started.append(int(source))
        target.fill_(99)

    def wait(self, buffer):
        if buffer in self.under_way:
            target, source = self.under_way.pop(buffer)
            target.copy_(source)


@pytest.mark.parametrize("count", [3, 4, 7])
def test_every_layer_finds_its_own_bytes_and_is_copied_once_a_pass_one_layer_ahead(count):
    layers, copies = [Layer(number) for number in range(count)], LateCopies()
    stream = Stream(layers, CPU, copies)
    for turn in [*range(count)] * 3:
        stream.begin(turn)
        assert int(layers[turn].buffer) == turn
        copied = len(copies.started)
        stream.end(turn)
        following = turn + BUFFERS if turn + BUFFERS < count else turn % BUFFERS
        assert copies.started[copied:] == ([following] if following != turn else [])
    for number in range(count):
        alone = count == 3 and number == 1  # of three layers the middle one has a buffer to itself
        assert copies.started.count(number) in ((1,) if alone else (3, 4))  # each pass, and ahead of a fourth


def test_a_pass_that_was_cut_short_is_followed_by_a_right_one():
    layers = [Layer(number) for number in range(5)]
    for cut in range(5):
        stream = Stream(layers, CPU, LateCopies())
        for turns in (range(5), range(cut), range(5)):
            for turn in turns:
                stream.begin(turn)
                assert int(layers[turn].buffer) == turn
                stream.end(turn)
        stream.begin(cut)  # broken off inside a layer
        for turn in range(5):
            stream.begin(turn)
            assert int(layers[turn].buffer) == turn
            stream.end(turn)


def test_a_copy_that_fails_leaves_no_layer_that_passes_for_another():
    class Broken(PlainCopies):
        broken = False

        def start(self, buffer, target, source):
            target.fill_(99)
            if self.broken:
                raise KeyboardInterrupt
            super().start(buffer, target, source)

    layers, copies = [Layer(number) for number in range(3)], Broken()
    stream = Stream(layers, CPU, copies)
    stream.begin(0)
    copies.broken = True
    with pytest.raises(KeyboardInterrupt):
        stream.end(0)
    copies.broken = False
    stream.begin(0)
    assert int(layers[0].buffer) == 0


@pytest.mark.parametrize("model", ["demo", "demo-bf16"])
def test_a_streamed_model_writes_the_same_text(model):
    engine = load(model, device="cpu")
    wanted = engine.generate("a fox", **OPTIONS).token_ids
    trunk, head = engine.trunk, engine.mtp_head
    whole = bytes_of(by_storage(tensors_of(trunk, head), CPU))
    placement = Placement(0)
    for block in trunk.blocks:
        placement.take(block)
    layers = [layer.bytes for layer in placement._layers]
    placement.budget = whole - (len(layers) - 4) * min(layers) // 2
    [note] = placement.settle(trunk, head)
    streamed = [block for block in trunk.blocks if isinstance(block, StreamedBlock)]
    assert note.startswith(f"{len(streamed)} of {len(layers)} layers") and len(streamed) > BUFFERS
    assert engine.generate("a fox", **OPTIONS).token_ids == wanted


def test_only_matrices_are_streamed_and_come_back_as_they_were():
    block = load("demo-bf16", device="cpu").trunk.blocks[0]
    before = {id(tensor): tensor.clone() for tensor in tensors_of(block)}
    layer = HostLayer(block)
    assert {id(tensor) for tensor in layer.tensors} < before.keys()
    # Vectors are read where states are made, which is not when the layer runs.
    assert not {id(block.mixer.taps), id(block.mixer.rate), id(block.mlp.gate_up.norm.weight)} & set(
        map(id, layer.tensors)
    )
    assert layer.bytes >= sum(tensor.nbytes for tensor in layer.tensors)
    assert layer.host.data_ptr() % mmap.PAGESIZE == 0
    assert all(torch.equal(tensor, before[id(tensor)]) for tensor in layer.tensors)
    layer.settle(CPU)
    assert all(torch.equal(tensor, before[id(tensor)]) for tensor in tensors_of(block))


def test_a_budget_that_is_no_number_of_bytes_is_refused():
    for wrong in (0, -1, True):
        with pytest.raises(FastQwenError, match="vram_budget"):
            load("demo", vram_budget=wrong)


@pytest.mark.gpu
@pytest.mark.parametrize("mtp", ["off", "3"])
@pytest.mark.parametrize("model", ["demo", "demo-w4a8", "demo-bf16"])
def test_text_on_a_gpu_is_the_same_with_and_without_streaming(model, mtp):
    options = OPTIONS | {"max_tokens": 60, "mtp": mtp}
    plain = load(model, device="cuda")
    wanted = plain.generate("a fox in the snow", **options).token_ids
    whole = plain.memory.weight_bytes
    layers = sum(HostLayer(block).bytes for block in plain.trunk.blocks)
    for share in (0.1, 0.4):
        engine = load(model, device="cuda", vram_budget=int(whole - share * layers))
        assert "are read from RAM in every pass" in engine.notes[0] and "refused" not in " ".join(engine.notes)
        assert engine.memory.weight_bytes <= whole - share * layers
        for _ in range(2):
            assert engine.generate("a fox in the snow", **options).token_ids == wanted
        engine.offload()
        assert engine.generate("a fox in the snow", **options).token_ids == wanted
