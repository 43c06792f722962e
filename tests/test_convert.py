"""Quantising a checkpoint: which tensor becomes what, the file, and what is refused."""

import json
import os
import shutil
from dataclasses import fields

import pytest
import quantised
import tiny
import torch
from fastqwen.model.config import read_config
from fastqwen.model.convert import choose, convert
from fastqwen.weights import Checkpoint, FastQwenError, Reader
from fastqwen.weights.decode import to_grid
from fastqwen.weights.quantize import encode
from fastqwen.weights.stored import read_layer
from safetensors import safe_open
from safetensors.torch import load_file, save_file

LAYER = "model.language_model.layers."
# Heads of 64 so that every mixer's width is a multiple of 256, and an inner width that is not.
WIDE = {
    "num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "hidden_size": 256, "intermediate_size": 320, "head_dim": 64, "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """name -> bf16 folder: a tied and an untied model, both with an MTP head."""
    root = tmp_path_factory.mktemp("convert")
    return {
        name: tiny.save_folder(tiny.oracle(name, **WIDE, **more), root / name, mtp=True, dtype=torch.bfloat16)
        for name, more in (("gqa4", {}), ("untied", {"num_attention_heads": 4, "linear_num_value_heads": 4}))
    }


@pytest.fixture
def target(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "new.safetensors"


def quantise(folder, target, format="w4a8", **options):
    result = convert(Checkpoint.open(folder), target, format, **options)
    return result, load_file(target)


def source(folder):
    return load_file(folder / "model.safetensors")


def stored_formats(tensors):
    marked = {name.removesuffix(".comfy_quant") for name in tensors if name.endswith(".comfy_quant")}
    return {layer: quantised.marker(quantised.sides(tensors, layer)) for layer in marked}


def test_linear_layers_are_packed_and_everything_else_is_as_it_was(folders, target):
    result, tensors = quantise(folders["gqa4"], target)
    before, marked = source(folders["gqa4"]), stored_formats(tensors)
    for name, tensor in before.items():
        layer = name.removesuffix(".weight")
        if layer in marked:
            assert tensors[name].dtype == torch.int8
        else:
            assert torch.equal(tensors[name], tensor) and tensors[name].dtype == tensor.dtype, name
    kinds = {layer.rsplit("layers.", 1)[-1].split(".", 1)[-1] for layer in marked}
    assert kinds == {
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
        "linear_attn.in_proj_qkv", "linear_attn.out_proj", "mlp.gate_proj", "mlp.up_proj", "linear_attn.in_proj_z",
        "fc", "language_model.embed_tokens",
    }  # fmt: skip
    assert {layer.name for layer in result.layers} == set(marked)
    assert result.bytes_after == target.stat().st_size
    assert result.bytes_before == sum(tensor.nbytes for tensor in before.values())


def test_a_width_that_the_format_cannot_hold_stays_and_is_reported(folders, target):
    result, tensors = quantise(folders["gqa4"], target)
    assert tensors[LAYER + "0.mlp.down_proj.weight"].shape == (256, 320)
    assert result.plain[LAYER + "0.mlp.down_proj"] == "320 input columns, no multiple of 256"
    assert all(layer.endswith("mlp.down_proj") for layer in result.plain) and len(result.plain) == 4
    assert any("left as they are (320" in line for line in result.lines())


@pytest.mark.parametrize("format", ["w4a8", "w6a8", "int8"])
def test_every_packed_layer_holds_what_encode_gives_and_its_error_is_reported(folders, target, format):
    result, tensors = quantise(folders["gqa4"], target, format)
    before = source(folders["gqa4"])
    for layer in result.layers:
        weight = before[layer.name + ".weight"]
        found = quantised.sides(tensors, layer.name)
        wanted = encode(weight, layer.format).tensors
        assert all(torch.equal(found[k].view(torch.uint8), t.view(torch.uint8)) for k, t in wanted.items())
        assert (layer.rows, layer.columns) == tuple(weight.shape)
        assert layer.relative_error == pytest.approx(quantised.relative(quantised.decode(found), weight), rel=1e-3)
        assert layer.relative_error < {"w4a8": 0.073, "w6a8": 0.021, "int8": 0.0085}[layer.format]
    value = json.loads(json.dumps(result.to_dict()))
    assert [layer["relative_error"] for layer in value["layers"]] == [layer.relative_error for layer in result.layers]
    assert value["mean_error"] == pytest.approx(result.mean_error)


def test_tied_tables_are_rotated_int8_and_tables_of_their_own_plain_int8(folders, target):
    table = "model.language_model.embed_tokens"
    for format in ("w4a8", "w6a8", "int8"):
        _, tied = quantise(folders["gqa4"], target, format, overwrite=True)
        rotated = {"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 256}
        assert stored_formats(tied)[table] == rotated
        _, untied = quantise(folders["untied"], target, format, overwrite=True)
        marked = stored_formats(untied)
        assert marked[table] == {"format": "int8_tensorwise"}
        assert marked["lm_head"]["format"] == ("int8_tensorwise" if format == "int8" else "asym_w4a8_int8")


def test_the_header_holds_the_config_text_and_the_file_is_read_as_the_same_model(folders, target):
    quantise(folders["untied"], target)
    text = (folders["untied"] / "config.json").read_text()
    with safe_open(target, "pt") as opened:
        assert opened.metadata() == {"format": "pt", "config": text}
    assert read_config(Checkpoint.open(target))[0] == read_config(Checkpoint.open(folders["untied"]))[0]


def test_a_single_file_source_passes_its_header_config_on(folders, target, tmp_path):
    single = tmp_path / "single.safetensors"
    save_file(source(folders["gqa4"]), single, metadata={"config": '{"model_type": "qwen3_5"}', "author": "me"})
    quantise(single, target)
    with safe_open(target, "pt") as opened:
        assert opened.metadata() == {"format": "pt", "author": "me", "config": '{"model_type": "qwen3_5"}'}


def test_a_sharded_source_gives_the_bytes_of_the_single_file(folders, target, tmp_path):
    _, whole = quantise(folders["gqa4"], target)
    shards = tmp_path / "shards"
    shards.mkdir()
    shutil.copy(folders["gqa4"] / "config.json", shards)
    tensors, weight_map = source(folders["gqa4"]), {}
    for index in range(3):
        part = dict(list(tensors.items())[index::3])
        save_file(part, shards / f"part-{index}.safetensors")
        weight_map |= dict.fromkeys(part, f"part-{index}.safetensors")
    (shards / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    _, parts = quantise(shards, target, overwrite=True)
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name].view(torch.uint8), parts[name].view(torch.uint8)) for name in whole)


def test_kept_layers_are_those_the_patterns_name(folders, target):
    keep = ["mtp.*", "*.layers.0.*", LAYER + "1.mlp.up_proj", "*embed_tokens.weight"]
    result, tensors = quantise(folders["gqa4"], target, keep=keep)
    before, marked = source(folders["gqa4"]), stored_formats(tensors)
    kept = [name for name, reason in result.plain.items() if reason == "--keep"]
    assert LAYER + "1.mlp.up_proj" in kept and "mtp.fc" in kept and LAYER + "0.linear_attn.out_proj" in kept
    assert "model.language_model.embed_tokens" in kept and not set(kept) & set(marked)
    assert all(torch.equal(tensors[name + ".weight"], before[name + ".weight"]) for name in kept)
    assert LAYER + "1.mlp.gate_proj" in marked and LAYER + "2.mlp.up_proj" in marked
    with pytest.raises(FastQwenError, match="'layers.77.*' matches no tensor"):
        quantise(folders["gqa4"], target, keep=["layers.77.*"], overwrite=True)


def test_choices_can_be_had_without_a_file(folders):
    checkpoint = Checkpoint.open(folders["untied"])
    config, names = read_config(checkpoint)
    choices = {c.name: c for c in choose(checkpoint, names, "w6a8", tied_head=config.tied_head)}
    assert list(choices) == list(checkpoint.entries)
    assert choices["lm_head.weight"].format == "w6a8"
    assert choices[LAYER + "0.linear_attn.in_proj_a.weight"].format is None
    assert choices[LAYER + "0.linear_attn.conv1d.weight"].format is None
    with pytest.raises(FastQwenError, match="w3"):
        choose(checkpoint, names, "w3", tied_head=True)


def test_a_vision_tower_is_copied(folders, target, tmp_path):
    folder = tmp_path / "seeing"
    shutil.copytree(folders["gqa4"], folder)
    tower = {
        "model.visual.patch_embed.proj.weight": torch.randn(256, 3, 2, 4, 4).bfloat16(),
        "model.visual.blocks.0.mlp.linear_fc1.weight": torch.randn(512, 256).bfloat16(),
        "model.visual.blocks.0.attn.qkv.weight": torch.randn(768, 256).bfloat16(),
    }
    save_file(source(folders["gqa4"]) | tower, folder / "model.safetensors")
    _, tensors = quantise(folder, target)
    assert all(torch.equal(tensors[name], tensor) for name, tensor in tower.items())


def damaged(folder, tmp_path, change):
    copy = tmp_path / "damaged"
    shutil.copytree(folder, copy)
    tensors = source(folder)
    change(tensors)
    save_file(tensors, copy / "model.safetensors")
    return copy


def refusal(folder, target, **options):
    with pytest.raises(FastQwenError) as refused:
        quantise(folder, target, **options)
    assert os.listdir(target.parent) == []
    return str(refused.value)


def test_weights_that_are_not_finite_are_named_and_nothing_is_left(folders, target, tmp_path):
    name = LAYER + "2.mlp.up_proj.weight"
    folder = damaged(folders["gqa4"], tmp_path, lambda tensors: tensors[name][3].fill_(float("inf")))
    assert name in refusal(folder, target)
    quantise(folder, target, keep=[name])


def test_packed_sources_are_refused_by_name(folders, target, tmp_path):
    quantise(folders["gqa4"], target)
    with pytest.raises(FastQwenError, match="packed already"):
        quantise(target, target.with_name("second.safetensors"))
    target.unlink()
    name = LAYER + "0.mlp.up_proj.weight"
    folder = damaged(
        folders["gqa4"], tmp_path, lambda tensors: tensors.update({name: tensors[name].to(torch.float8_e4m3fn)})
    )
    message = refusal(folder, target)
    assert name in message and "F8_E4M3" in message


def test_another_architecture_is_refused(target, tmp_path):
    save_file({"model.layers.0.self_attn.q_proj.weight": torch.zeros(2, 2)}, tmp_path / "llama.safetensors")
    assert "Llama" in refusal(tmp_path / "llama.safetensors", target)


def test_the_source_itself_is_never_the_target(folders, tmp_path):
    folder = tmp_path / "source"
    shutil.copytree(folders["gqa4"], folder)
    before = (folder / "model.safetensors").read_bytes()
    (tmp_path / "link.safetensors").symlink_to(folder / "model.safetensors")
    for path in (folder / "model.safetensors", folder / ".." / "source" / "model.safetensors"):
        with pytest.raises(FastQwenError, match="source itself"):
            quantise(folder, path, overwrite=True)
    with pytest.raises(FastQwenError, match="source itself"):
        quantise(folder, tmp_path / "link.safetensors", overwrite=True)
    assert (folder / "model.safetensors").read_bytes() == before


def test_ctrl_c_leaves_nothing(folders, target):
    def stop(done, total):
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantise(folders["gqa4"], target, on_progress=stop)
    assert os.listdir(target.parent) == []


def test_progress_reaches_the_whole_of_the_source(folders, target):
    calls = []
    result, _ = quantise(folders["gqa4"], target, on_progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (result.bytes_before, result.bytes_before) and calls == sorted(calls)


@pytest.mark.parametrize("format", ["w4a8", "w6a8", "int8"])
def test_our_reader_finds_the_layers_that_encode_made(folders, target, format):
    result, tensors = quantise(folders["untied"], target, format)
    before = source(folders["untied"])
    checkpoint = Checkpoint.open(target)
    names = read_config(checkpoint)[1]
    canonical = {stored: name for name, stored in names.items()}
    reader = Reader(checkpoint, names, torch.device("cpu"), torch.float32)
    for layer in result.layers:
        name = canonical[layer.name + ".weight"].removesuffix(".weight")
        found = read_layer(reader, name, (layer.rows, layer.columns))
        assert torch.equal(to_grid(found).values, quantised.grid(quantised.sides(tensors, layer.name)))
        rotated = layer.format != "int8" or name != "embed_tokens"
        made = encode(before[layer.name + ".weight"], layer.format, rotated=rotated).stored(name)
        for field in fields(made):
            a, b = getattr(found, field.name), getattr(made, field.name)
            assert torch.equal(a.float(), b.float()) if isinstance(a, torch.Tensor) else a == b, field.name


def test_comfy_kitchens_layouts_read_the_file(folders, target):
    pytest.importorskip("comfy_kitchen")
    from comfy_kitchen.tensor import AsymW4A8Int8Layout, QuantizedTensor, TensorWiseINT8Layout

    for format in ("w4a8", "w6a8", "int8"):
        result, tensors = quantise(folders["untied"], target, format, overwrite=True)
        for layer in result.layers:
            sides = quantised.sides(tensors, layer.name)
            said = quantised.marker(sides)
            common = {"orig_dtype": torch.float32, "orig_shape": (layer.rows, layer.columns)}
            if said["format"] == "asym_w4a8_int8":
                layout, params = "AsymW4A8Int8Layout", AsymW4A8Int8Layout.Params(
                    scale=sides["weight_s_rel"], s_channel=sides["weight_s_channel"],
                    codebook=sides.get("weight_codebook"), group_size=said["group_size"],
                    convrot_groupsize=said["convrot_groupsize"], **common,
                )  # fmt: skip
            else:
                layout, params = (
                    "TensorWiseINT8Layout",
                    TensorWiseINT8Layout.Params(
                        scale=sides["weight_scale"], convrot=said.get("convrot", False), **common
                    ),
                )
            found = QuantizedTensor(sides["weight"], layout, params).dequantize()
            assert quantised.relative(found, quantised.decode(sides)) < 1e-5
