"""A quantised checkpoint through the whole engine: what it computes, and the promises that hold for plain ones."""

import copy
import json

import pytest
import tiny
import torch
from fastqwen.engine import GREEDY, FastQwenError, load
from fastqwen.kernels import rows
from fastqwen.model.convert import convert
from fastqwen.model.load import load_model
from fastqwen.mtp.tree import Tree
from fastqwen.weights import Checkpoint
from fastqwen.weights.packed_linear import PackedLinear, RecordLinear
from safetensors.torch import load_file, save_file

CPU = torch.device("cpu")
WIDE = tiny.ONE_OF_EACH | {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64, "linear_value_head_dim": 64}
FORMATS = ("w4a8", "w6a8", "int8")
ENCODER_ERROR = {"w4a8": 0.071, "w6a8": 0.020, "int8": 0.007}  # relative L2 on Gaussian weights, tests/test_quantize.py


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.save_tokenizer(tiny.save_folder(tiny.oracle("gqa4", **WIDE), tmp_path_factory.mktemp("wide"), mtp=True))


@pytest.fixture(scope="module", params=FORMATS)
def packed(request, folder):
    """The same model in one packed file, beside its tokenizer."""
    target = folder / f"{request.param}.safetensors"
    convert(Checkpoint.open(folder), target, request.param)
    return target


def trunk_of(path, device=CPU, kv=None):
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    return load_model(Checkpoint.open(path), device, dtype, kv=kv).trunk


def logits(trunk, ids):
    with torch.inference_mode():
        return trunk.logits(trunk.prefill(trunk.embed(ids), trunk.new_state(len(ids))))


def test_layers_stay_packed_and_are_close_to_the_plain_model(folder, packed):
    plain, quantised = trunk_of(folder), trunk_of(packed)
    assert isinstance(quantised.embedding, PackedLinear) and quantised.head.matrices[0][0] is quantised.embedding
    assert isinstance(quantised.blocks[0].mlp.down.matrices[0][0], PackedLinear)
    ids = torch.randint(0, 300, (60,), generator=torch.Generator().manual_seed(1)).tolist()
    wanted = logits(plain, ids)
    # How much a random error of the size that the format's encoder leaves, with int8 activations' own 0.01 on top,
    # moves the logits of this model: the yardstick. Zeros would be off by 1.
    size = (ENCODER_ERROR[packed.stem] ** 2 + 0.01**2) ** 0.5
    yardstick = relative(logits(with_noise(trunk_of(folder), size), ids), wanted)
    assert 0.2 * yardstick < relative(logits(quantised, ids), wanted) < min(2 * yardstick, 0.8)


def with_noise(trunk, size):
    """The plain trunk with a relative random error in every matrix."""
    generator = torch.Generator().manual_seed(4)
    groups = [p for b in trunk.blocks for p in (*vars(b.mixer).values(), *vars(b.mlp).values())]
    for group in groups:
        for layer, _ in getattr(group, "matrices", ()):
            noise = torch.randn(layer.weight.shape, generator=generator)
            layer.weight += noise * size * layer.weight.square().mean().sqrt()
    return trunk


def relative(found, wanted):
    return ((found - wanted).norm() / wanted.norm()).item()


def test_a_packed_layer_computes_what_the_format_means(packed):
    """Against float64 on the decoded weights, with the activations rounded as the definition says."""
    trunk = trunk_of(packed)
    layer = trunk.blocks[0].mlp.gate_up.matrices[0][0]
    x = torch.randn(5, 256, generator=torch.Generator().manual_seed(2))
    x8, x_scale = torch.randint(-127, 128, (5, 256)).to(torch.int8), torch.rand(5) + 0.1
    weights = layer.grid.double() * layer.channel_scale.double()[:, None]
    wanted = (x8.double() * x_scale.double()[:, None]) @ weights.T
    found = layer(x8, x_scale, None, torch.float32)
    assert ((found - wanted).norm() / wanted.norm()).item() < 4 * 2**-24  # two rounded products and a rounded sum
    # And from activations: the rotation cancels, so rounding them to int8 is all that is lost.
    rotated = layer.weight_rows(torch.arange(layer.grid.shape[0]), torch.float32)
    norm = trunk.blocks[0].mlp.gate_up.norm
    direct = norm(x) @ rotated.T
    through = trunk.blocks[0].mlp.gate_up(x)[0]
    assert ((through - direct).norm() / direct.norm()).item() < 0.02


def test_embedding_lookup_reads_the_packed_table(folder, packed):
    plain, quantised = trunk_of(folder), trunk_of(packed)
    ids = list(range(0, 320, 7))
    wanted = plain.embed(ids)
    assert ((quantised.embed(ids) - wanted).norm() / wanted.norm()).item() < 0.01  # an int8 table: about 0.007


@pytest.mark.parametrize("where", tiny.WHERE)
@pytest.mark.parametrize("widths", [(7,), (1,) * 7, (3, 2, 1, 1), (2, 3, 2)], ids=str)
def test_rows_of_a_packed_model_equal_one_token_at_a_time(packed, where, widths):
    trunk, tree = trunk_of(packed, torch.device(where[0]), where[2]), Tree(widths)
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, 300, (8,), generator=generator).tolist()
    with torch.inference_mode():
        start = trunk.new_state(200)
        trunk.prefill(trunk.embed(torch.randint(0, 300, (126,), generator=generator).tolist()), start)
        found = trunk.verify(tokens, tree.parents, copy.deepcopy(start))[1]
        alone = {(): start}  # states by path; a slot's parent comes before it
        for slot in range(tree.rows):
            path = tuple(rows.ancestors(tree.parents, slot))
            state = alone[path] = copy.deepcopy(alone[path[:-1]])
            assert torch.equal(found[slot], trunk.verify([tokens[slot]], [-1], state)[1][0])
            state.commit([0])


def test_every_tensor_of_a_packed_file_is_used_and_its_mtp_head_loaded(packed):
    engine = load(packed, device="cpu")
    assert engine.mtp_head is not None
    # The one thing to say: without kernels 4 and 6 bits are widened to 8.
    expected = [] if packed.stem == "int8" else ["no kernels (plain torch on cpu)"]
    assert [note.split(": ")[1].rstrip(".") for note in engine.notes] == expected


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter's turn is on a CPU")
def test_the_kernels_path_computes_what_the_torch_path_does(packed, monkeypatch):
    """The whole model from records, stacked groups and all, under Triton's interpreter."""
    pytest.importorskip("triton")
    grid_form = trunk_of(packed)
    monkeypatch.setattr("fastqwen.weights.reader.packed_kernels", lambda device: (True, "asked for by a test"))
    monkeypatch.setattr("fastqwen.weights.linear.float_kernels", lambda device, dtype: (True, "asked for by a test"))
    records = trunk_of(packed)
    assert isinstance(records.head.matrices[0][0], RecordLinear)
    assert len(records.blocks[0].mlp.gate_up.matrices) == 1  # gate and up are one matrix
    assert len(records.blocks[0].mixer.inputs.matrices) == 2  # qkv and z stacked; b and a plain, stacked too
    ids = [3, 1, 4]
    assert torch.equal(records.embed(ids), grid_form.embed(ids))
    tokens, tree, results = [7, 8, 9], Tree((2,)), []
    with torch.inference_mode():
        for trunk in (records, grid_form):
            state = trunk.new_state(32)
            prompt = trunk.logits(trunk.prefill(trunk.embed(ids), state))
            results.append((prompt, trunk.verify(tokens, tree.parents, state)[1][:3]))
    # The norm's sum and SwiGLU's exponential may round apart, which can move single activation codes by one.
    assert all(relative(found, wanted) < 2e-3 for found, wanted in zip(*results, strict=True))


def test_quantising_while_loading_gives_the_bits_of_the_written_file(folder, packed):
    wanted = load(packed, device="cpu")
    found = load(folder, device="cpu", quantize=packed.stem)
    assert any("layers were quantised while loading" in note for note in found.notes)
    ids = [3, 1, 4, 1, 5]
    assert torch.equal(logits(found.trunk, ids), logits(wanted.trunk, ids))


def test_quantising_a_packed_file_while_loading_is_refused(packed):
    with pytest.raises(FastQwenError, match="packed already"):
        load(packed, device="cpu", quantize="w6a8")


def test_kept_layers_stay_plain_beside_packed_ones(folder, tmp_path):
    target = tmp_path / "mixed.safetensors"
    convert(Checkpoint.open(folder), target, "w4a8", keep=["*layers.0.mlp.up_proj*", "mtp.*"])
    (tmp_path / "tokenizer.json").write_text((folder / "tokenizer.json").read_text())
    engine = load(target)
    group = engine.trunk.blocks[0].mlp.gate_up.matrices
    assert [isinstance(layer, PackedLinear) for layer, _ in group] == [True, False]
    assert not isinstance(engine.mtp_head.fc.matrices[0][0], PackedLinear)
    assert engine.generate("x", settings=GREEDY, max_tokens=5).token_ids


def test_plain_body_with_a_packed_mtp_head_loads_all_of_it(folder, tmp_path):
    target = tmp_path / "head.safetensors"
    convert(Checkpoint.open(folder), target, "w6a8", keep=["model.*"])
    (tmp_path / "tokenizer.json").write_text((folder / "tokenizer.json").read_text())
    engine = load(target, device="cpu")
    assert not isinstance(engine.trunk.embedding, PackedLinear)
    head, plain = engine.mtp_head, load(folder, device="cpu").mtp_head
    assert all(isinstance(group.matrices[0][0], PackedLinear) for group in (head.fc, head.block.mlp.down))
    generator = torch.Generator().manual_seed(6)
    embeddings, hidden = torch.randn(9, 256, generator=generator), torch.randn(9, 256, generator=generator)
    with torch.inference_mode():
        found, wanted = (
            each.prefill(embeddings, hidden, torch.arange(9).expand(3, -1), cache=mtp_cache(each))
            for each in (head, plain)
        )
    assert 0 < relative(found, wanted) < 0.2  # six-bit weights through one layer; zeros would be off by 1


def mtp_cache(head):
    return head.block.mixer.new_cache(capacity=16, kind="fp32", device=CPU)


def test_formats_without_a_kernel_are_decoded_and_said(folder, tmp_path):
    """An fp8 layer between plain ones."""
    tensors = load_file(folder / "model.safetensors")
    layer = "model.language_model.layers.0.mlp.up_proj"
    weight = tensors[layer + ".weight"]
    scale = weight.abs().max() / 448
    tensors[layer + ".weight"] = (weight / scale).to(torch.float8_e4m3fn)
    tensors[layer + ".weight_scale"] = scale
    marker = json.dumps({"format": "float8_e4m3fn"}).encode()
    tensors[layer + ".comfy_quant"] = torch.tensor(list(marker), dtype=torch.uint8)
    other = tmp_path / "fp8"
    other.mkdir()
    save_file(tensors, other / "model.safetensors")
    for name in ("config.json", "tokenizer.json"):
        (other / name).write_text((folder / name).read_text())
    engine = load(other, device="cpu")
    assert any("1 layers stored as fp8" in note and "kept as float32, 0.2 MiB" in note for note in engine.notes)
    repacked = load(other, device="cpu", repack=True)
    assert any("re-packed as W6A8, 0.1 MiB" in note for note in repacked.notes)
    ids = [5, 6, 7, 8]
    wanted, found = logits(trunk_of(folder), ids), logits(engine.trunk, ids)
    assert 0 < relative(logits(repacked.trunk, ids), found) < 0.05
    assert 0 < ((found - wanted).norm() / wanted.norm()).item() < 0.05
