"""Where a checkpoint says how its layers are stored, and what of that is refused."""

import json

import pytest
import torch
from fastqwen.weights import Checkpoint, FastQwenError
from fastqwen.weights.formats import marked_formats, read_markers, require_plain
from fastqwen.weights.stored import read_layer
from packed_layers import LAYER, LAYERS, NAME, Maker, file_with, make, marker, reader, refusal, write
from safetensors import safe_open
from safetensors.torch import save_file


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("header", [False, True], ids=["marker", "header"])
def test_every_format_is_read_from_marker_or_header_each_tensor_once(tmp_path, kind, header):
    _, shape, format = LAYERS[kind]
    source = reader(file_with(tmp_path, make(kind), header))
    progress = []
    source._on_read = lambda done, total: progress.append(done)
    layer = read_layer(source, NAME, shape)
    assert (layer.name, layer.format, layer.rows, layer.columns) == (NAME, format, *shape)
    assert source.checkpoint.unread() == []
    assert len(progress) == len(make(kind)[0]) and progress == sorted(progress)
    with pytest.raises(AssertionError, match="read twice"):
        read_layer(source, NAME, shape)


@pytest.mark.parametrize("kind", [kind for kind in LAYERS if kind not in ("nvfp4", "mxfp8")])
def test_shape_is_told_by_the_file_where_nothing_is_padded(tmp_path, kind):
    layer = read_layer(reader(file_with(tmp_path, make(kind))), NAME)
    assert (layer.rows, layer.columns) == LAYERS[kind][1]


@pytest.mark.parametrize("kind,stored", [("nvfp4", (32, 48)), ("mxfp8", (32, 64))])
def test_padding_counts_only_when_no_shape_is_expected(tmp_path, kind, stored):
    layer = read_layer(reader(file_with(tmp_path, make(kind))), NAME)
    assert (layer.rows, layer.columns) == stored


@pytest.mark.parametrize(
    "value",
    [
        {"format": "asym_w4a8_int8", "group_size": 32, "full_precision_matrix_mult": True},
        {"format": "asym_w4a8_int8", "params": {"group_size": 32, "full_precision_matrix_mult": True}},
        {"format": "asym_w4a8_int8", "group_size": 32, "params": {"group_size": 64, "full_precision_matrix_mult": 1}},
        {
            "format": "asym_w4a8_int8",
            "group_size": None,
            "params": {"group_size": 32, "full_precision_matrix_mult": True},
        },
    ],
    ids=["top", "params", "top wins", "null is absent"],
)
def test_options_stand_at_the_top_or_under_params(tmp_path, value):
    tensors, _ = Maker().asym(4, 256, group=32)
    layer = read_layer(reader(file_with(tmp_path, (tensors, value))), NAME)
    assert (layer.group, layer.full_precision, layer.columns) == (32, True, 256)


@pytest.mark.parametrize("where", ["top", "params"])
def test_int8_is_rotated_only_where_the_marker_says_convrot(tmp_path, where):
    tensors, value = Maker().int8(4, 256)
    assert not read_layer(reader(file_with(tmp_path, (tensors, value))), NAME).rotated
    said = {"convrot": True, "convrot_groupsize": 256}
    value = value | (said if where == "top" else {"params": said})
    assert read_layer(reader(file_with(tmp_path, (tensors, value))), NAME).rotated


def test_files_mix_formats_layer_by_layer_and_header_with_markers(tmp_path):
    layers = {f"model.layers.{i}.mlp.up_proj": make(kind, i) for i, kind in enumerate(LAYERS)}
    path = write(tmp_path / "x.safetensors", layers)
    headed = {name: value for index, (name, (_, value)) in enumerate(layers.items()) if value and index % 2}
    with safe_open(path, "pt") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    tensors = {name: t for name, t in tensors.items() if name.removesuffix(".comfy_quant") not in headed}
    save_file(tensors, path, metadata={"_quantization_metadata": json.dumps({"layers": headed})})
    source = reader(path)
    for index, (_, shape, format) in enumerate(LAYERS.values()):
        layer = read_layer(source, f"layers.{index}.mlp.up_proj", shape)
        assert (layer.format, layer.rows, layer.columns) == (format, *shape)
    assert source.checkpoint.unread() == []


def test_each_shards_header_speaks_for_the_layers_it_names(tmp_path):
    layers = {f"model.layers.{i}.mlp.up_proj": make(kind, i) for i, kind in enumerate(("w4a8", "int8", "plain"))}
    weight_map = {}
    for index, (name, layer) in enumerate(layers.items()):
        shard = write(tmp_path / f"model-{index}.safetensors", {name: layer}, header=True).name
        weight_map |= {f"{name}.{leaf}": shard for leaf in layer[0]}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    source = reader(tmp_path)
    formats = [read_layer(source, f"layers.{index}.mlp.up_proj").format for index in range(3)]
    assert formats == ["w4a8", "int8", "plain"] and source.checkpoint.unread() == []


def test_markers_may_be_asked_for_again_and_count_as_read(tmp_path):
    checkpoint = Checkpoint.open(file_with(tmp_path, make("w4a8")))
    assert read_markers(checkpoint) == read_markers(checkpoint)
    assert marked_formats(checkpoint) == {LAYER: "asym_w4a8_int8"}
    assert LAYER + ".comfy_quant" not in checkpoint.unread()


def test_marker_of_a_weight_that_is_not_there_marks_nothing_and_stays_reported(tmp_path):
    save_file(
        {"gone.comfy_quant": marker({"format": "nvfp4"}), "x.weight": torch.zeros(2, 2)}, tmp_path / "x.safetensors"
    )
    checkpoint = Checkpoint.open(tmp_path / "x.safetensors")
    assert read_markers(checkpoint) == {} and "gone.comfy_quant" in checkpoint.unread()


def test_header_and_marker_that_agree_are_fine_however_they_are_spelled(tmp_path):
    tensors, value = make("w4a8")
    tensors["comfy_quant"] = marker({"format": value["format"], "params": {"group_size": 16}})
    assert read_layer(reader(file_with(tmp_path, (tensors, value), header=True)), NAME).format == "w4a8"


@pytest.mark.parametrize("other", [{"format": "convrot_w4a4"}, {"format": "asym_w4a8_int8", "group_size": 32}])
def test_header_and_marker_that_differ_are_refused(tmp_path, other):
    tensors, value = make("w4a8")
    path = file_with(tmp_path, (tensors | {"comfy_quant": marker(other)}, value), header=True)
    message = refusal(path)
    assert LAYER in message and other["format"] in message and "contradicts itself" in message


@pytest.mark.parametrize(
    "value,words",
    [
        (b"\xff\xfe{", "not UTF-8 JSON"),
        (b"{", "not UTF-8 JSON"),
        (b"[" * 100_000, "not UTF-8 JSON"),
        ([1], "names no format"),
        ({"format": 3}, "names no format"),
        ({"group_size": 16}, "names no format"),
        ({"format": "asym_w4a8_int8", "params": [16]}, "no object"),
        ({"format": "asym_w4a8_int8", "group_size": "many"}, 'group_size = "many"'),
        ({"format": "asym_w4a8_int8", "group_size": 0}, "group_size = 0"),
        ({"format": "asym_w4a8_int8", "group_size": True}, "group_size = true"),
        ({"format": "asym_w4a8_int8", "group_size": 12}, "group_size 12"),
        ({"format": "asym_w4a8_int8", "convrot_groupsize": 64}, "blocks of 64"),
        ({"format": "int8_tensorwise", "convrot": "yes"}, 'convrot = "yes"'),
        ({"format": "convrot_w4a4", "linear_dtype": "fp4"}, 'linear_dtype = "fp4"'),
        ({"format": "nvfp4", "group_size": 32}, "group_size 32"),
    ],
    ids=str,
)
def test_marker_that_makes_no_sense_is_refused_by_layer(tmp_path, value, words):
    tensors, _ = make("w4a8")
    message = refusal(file_with(tmp_path, (tensors | {"comfy_quant": marker(value)}, None)))
    assert LAYER in message and words in message


@pytest.mark.parametrize("text", ["{", "[]", '{"layers": [["a", 1]]}', "3"])
def test_header_that_makes_no_sense_is_refused_by_file(tmp_path, text):
    save_file({LAYER + ".weight": torch.zeros(2, 2)}, tmp_path / "x.safetensors", {"_quantization_metadata": text})
    message = refusal(tmp_path / "x.safetensors")
    assert str(tmp_path / "x.safetensors") in message and "_quantization_metadata" in message


def test_marker_tensor_of_another_dtype_is_refused(tmp_path):
    tensors, _ = make("w4a8")
    message = refusal(file_with(tmp_path, (tensors | {"comfy_quant": torch.zeros(4)}, None)))
    assert LAYER + ".comfy_quant" in message and "F32 [4]" in message


def test_unknown_format_is_refused_by_name_with_what_would_work(tmp_path):
    tensors, _ = make("w4a8")
    message = refusal(file_with(tmp_path, (tensors, {"format": "svdquant_w4a4", "group_size": {"odd": 1}})))
    for words in (LAYER, "'svdquant_w4a4'", "bf16", "asym_w4a8_int8", "awq_w4a16"):
        assert words in message


def test_plain_is_required_by_layer_or_tensor_name(tmp_path):
    with pytest.raises(FastQwenError, match=f"{LAYER}.*nvfp4"):
        require_plain(Checkpoint.open(file_with(tmp_path, make("nvfp4"))))
    with pytest.raises(FastQwenError, match=f"{LAYER}.weight.*F8_E4M3"):
        require_plain(Checkpoint.open(file_with(tmp_path, (make("fp8 e4m3")[0], None))))
    require_plain(Checkpoint.open(file_with(tmp_path, make("plain"))))
