"""What a pass does while it is captured takes no memory but `torch.empty`'s, and gives back none that was there before.

Both hold where torch allocates by cudaMallocAsync, as inside ComfyUI; here on a CPU, under Triton's interpreter, as if
every kernel's check had passed there, in memory taken before (engine/arena.py) and with a capture that runs it.
"""

import gc

import pytest
import tiny
import torch
from fastqwen.engine import GREEDY, arena, device_model, load
from fastqwen.engine.device_model import DeviceModel
from fastqwen.engine.sampling import Sampler
from fastqwen.kernels import float_linear, rounds
from fastqwen.weights import Linear, Norm, Projection
from fastqwen.weights.packed_linear import RecordLinear
from fastqwen.weights.quantize import encode
from torch.multiprocessing.reductions import StorageWeakRef

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter's turn is on a CPU")
CPU = torch.device("cpu")
CHECKS = (
    "weights.reader.packed_kernels", "weights.linear.float_kernels", "weights.linear.prompt_kernels",
    "deltanet.layer.delta_kernels", "attention.layer.attention_kernels", "attention.layer.prefill_kernels",
)  # fmt: skip


@pytest.fixture
def _garbage():
    """Triton's interpreter leaves circles that hold tensors; each capture begins with none. What is there before is not
    looked through again."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _kernels(monkeypatch):
    for name in CHECKS:
        monkeypatch.setattr(f"fastqwen.{name}", lambda *arguments: (True, "asked for by a test"))
    monkeypatch.setattr("fastqwen.weights.projection.rows_are_alike", lambda device: True)
    # The interpreter's time goes by blocks: few large ones.
    monkeypatch.setattr(float_linear, "launch_for", lambda rows, k, dtype: float_linear.sum_launch(64, 2, dtype))
    with torch.inference_mode():
        yield


def matrix(rows, columns):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)) * columns**-0.5


def plain(rows, columns):
    return Linear(matrix(rows, columns)), (rows,)


def packed(format, rows, columns=256):
    return RecordLinear.of([encode(matrix(rows, columns), format).stored("layer")], CPU), (rows,)


def norm(columns):
    return Norm(torch.randn(columns, generator=torch.Generator().manual_seed(7)) * 0.1, 1e-6)


def verified(*matrices, columns, residual=False, **prologue):
    """The call of a decode pass's group, with its inputs."""
    group, x = Projection(matrices, **prologue), torch.randn(8, columns, generator=torch.Generator().manual_seed(1))
    added = torch.ones(8, matrices[0][1][0]) if residual else None
    return lambda: group.verify(x, 8, added)


def joined(*matrices, columns):
    group, x = Projection(matrices, norm=norm(columns)), torch.randn(8, columns)
    return lambda: [group.verify_joined(x, 8)]


def shortlist(*matrices, columns):
    group, x, scratch = Projection(matrices), torch.randn(8, columns), torch.empty(8 * 48)
    return lambda: [group.verify_first(x, scratch)]


def lookup(table):
    ids = torch.tensor([1, 0, 31, 17, 5, 5, 2, 30])
    return lambda: [table[0].embed(ids, torch.float32)]


LAYERS = {
    "plain, norm": lambda: verified(plain(20, 80), plain(3, 80), columns=80, norm=norm(80)),
    "plain, residual": lambda: verified(plain(32, 96), columns=96, residual=True),
    "plain, swiglu": lambda: verified(plain(32, 48), columns=96, residual=True, swiglu=True),
    "packed, plain beside": lambda: verified(packed("w6a8", 32), plain(3, 256), columns=256, norm=norm(256)),
    "packed, swiglu": lambda: verified(packed("w4a8", 32), columns=512, residual=True, swiglu=True),
    "two plain side by side": lambda: joined(plain(20, 64), plain(4, 64), columns=64),
    "two formats side by side": lambda: joined(packed("w4a8", 32), packed("int8", 16), columns=256),
    "packed and plain side by side": lambda: joined(packed("int8", 32), plain(20, 256), columns=256),
    "packed shortlist": lambda: shortlist(packed("int8", 32), packed("int8", 16), columns=256),
    "plain shortlist": lambda: shortlist(plain(32, 64), plain(16, 64), columns=64),
    "packed embedding": lambda: lookup(packed("w6a8", 32)),
    "plain embedding": lambda: lookup(plain(32, 64)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_find_all_their_memory_in_an_arena(name):
    call = LAYERS[name]()
    wanted, memory = [result.clone() for result in call()], arena.Arena(CPU)
    with memory:
        call()
    memory.allocate()
    memory._memory.fill_(255)  # NaN
    with memory:
        found = call()
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, wanted, strict=True))


class Watching(arena.Arena):
    """Knows what was made while it counted."""

    made: list[StorageWeakRef] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if self._memory is None and isinstance(result, torch.Tensor):
            self.made.append(StorageWeakRef(result.untyped_storage()))
        return result


class Capture:
    """torch.cuda.graph where everything runs as it is called; `lost` is what was there before and is not at the end."""

    lost = 0

    def __init__(self, graph, **options):
        pass

    def __enter__(self):
        assert not gc.isenabled()
        gc.collect()
        self._before = [storage for storage in Watching.made if not storage.expired()]

    def __exit__(self, *error):
        Capture.lost += sum(storage.expired() for storage in self._before)


@pytest.mark.usefixtures("_garbage")
def test_every_part_of_a_round_is_captured_in_memory_that_was_there_before(tmp_path, monkeypatch, caplog):
    folder = tiny.save_folder(tiny.oracle("gqa4", **tiny.ONE_OF_EACH), tmp_path, mtp=True)
    engine = load(tiny.save_tokenizer(folder), device="cpu", dtype="fp32", kv="int8")
    monkeypatch.setattr(DeviceModel, "_warm_up", lambda *arguments: True)
    monkeypatch.setattr(DeviceModel, "_timed", lambda *arguments: 0.0)
    model = DeviceModel(engine.trunk, engine.mtp_head, capacity=64, vocab=engine.tokenizer.size)
    monkeypatch.setattr(arena, "captures_need_arena", lambda device: True)
    monkeypatch.setattr(arena, "Arena", Watching)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", Capture)
    monkeypatch.setattr(Capture, "lost", 0)
    halves = {"rows": DeviceModel._verify_rows, "accept": DeviceModel._accept}
    monkeypatch.setattr(device_model, "DEEPEST", 2)
    model._capture(model.parts | halves, None)
    assert not caplog.text and model.captured
    assert {"verify", "catch up", "first", "next", *halves} == set(model._arenas) and Capture.lost == 0
    assert set(model._drafts) == {2}
    engine.mtp_head.pre_norm = True
    model._capture({part: model.parts[part] for part in ("first", "next")}, None)
    assert not caplog.text


@pytest.mark.usefixtures("_garbage")
def test_the_heads_rows_and_lists_are_those_of_its_prefill(tmp_path, monkeypatch):
    """Ten rows wait, more than a pass takes; the ring holds them in another order than it kept their hidden states."""
    folder = tiny.save_folder(tiny.oracle("gqa4", **tiny.ONE_OF_EACH), tmp_path, mtp=True)
    engine = load(tiny.save_tokenizer(folder), device="cpu", dtype="fp32", kv="fp32")
    monkeypatch.setattr(DeviceModel, "_warm_up", lambda *arguments: True)
    model, head = DeviceModel(engine.trunk, engine.mtp_head, capacity=64, vocab=engine.vocab), engine.mtp_head
    random = torch.Generator().manual_seed(3)
    hidden = torch.randn(10, engine.config.hidden_size, generator=random)
    tokens = torch.randint(0, engine.vocab, (10,), generator=random)
    round, places = model.round, (torch.arange(10) * 5 + 2) % 16
    words = rounds.state_words(
        length=10, position=30, buffer=0, pending=(), root=int(tokens[9]), reply=1, limit=50, capacity=64, stops=(),
        waiting=10,
    )  # fmt: skip
    round.state.copy_(torch.tensor(words, dtype=torch.int32))
    round.ring.hidden[places], round.ring.rows[:10] = hidden, places.int()
    round.ring.following[:10], round.ring.positions[:10] = tokens, torch.arange(20, 30, dtype=torch.int32)
    model.run("catch up")
    model.draft(2)

    cache = head.new_cache(64, kind="fp32", device=CPU, kernels=False)
    output = head.prefill(engine.trunk.embed(tokens.tolist()), hidden, torch.arange(20, 30).expand(3, -1), cache=cache)
    sampler, text = Sampler(GREEDY, 0, engine.vocab), tokens[:0]
    for level in range(2):
        wanted = sampler.candidates(engine.trunk.logits(output[-1]), text, 1 + level, 8)
        assert round.lists[level].tolist() == wanted
        text = torch.cat([text, torch.tensor(wanted[:1])])
        place = torch.full((3, 1), 30 + level)
        output = head.prefill(engine.trunk.embed(wanted[:1]), output[-1:], place, cache=cache)
    for found, wanted in zip(model.head_cache.read(0, 11), cache.read(0, 11), strict=True):
        # Rows in groups and all together round apart: tests/test_against_transformers.py allows 2e-5 of logits.
        assert ((found - wanted).norm() / wanted.norm()).item() < 1e-4
    own = head.new_cache(64, kind="fp32", device=CPU, kernels=False)
    head.extend(engine.trunk.embed(tokens.tolist()), hidden, torch.arange(20, 30).expand(3, -1), cache=own)
    assert own.length == 10
    assert all(map(torch.equal, own.read(0, 10), (part.clone() for part in cache.read(0, 10))))
