"""What reading a layer checks - its tensors, shapes, dtypes and values - and in which words damage is refused."""

import packed_layers
import pytest
import torch
from fastqwen.weights import Checkpoint, FastQwenError
from fastqwen.weights.formats import read_markers
from fastqwen.weights.layout import layout_of
from fastqwen.weights.stored import read_layer
from packed_layers import CODEBOOK, E4M3, LAYER, LAYERS, NAME, Maker, file_with, make, reader, refusal


@pytest.mark.parametrize("kind,leaf", [(kind, leaf) for kind in LAYERS for leaf in make(kind)[0]])
def test_missing_tensor_is_refused_by_name_unless_the_format_can_do_without(tmp_path, kind, leaf):
    tensors, value = make(kind)
    del tensors[leaf]
    path = file_with(tmp_path, (tensors or {"bias": torch.zeros(1)}, value))
    if leaf in ("input_scale", "weight_codebook"):
        layer = read_layer(reader(path), NAME, LAYERS[kind][1])
        assert getattr(layer, leaf.removeprefix("weight_")) is None
    else:
        shape = None if leaf == "weight_s_rel" else LAYERS[kind][1]
        assert leaf in refusal(path, shape) and "missing" in refusal(path, shape)


@pytest.mark.parametrize("kind,leaf", [(kind, leaf) for kind in LAYERS for leaf in make(kind)[0]])
def test_tensor_of_another_shape_is_refused_with_both_shapes_before_it_is_read(tmp_path, kind, leaf):
    tensors, value = make(kind)
    tensor = tensors[leaf]
    other = tensor.new_zeros(3) if tensor.dim() < 2 else tensor.new_zeros(tensor.shape[0], tensor.shape[1] + 3)
    path = file_with(tmp_path, (tensors | {leaf: other}, value))
    message = refusal(path, LAYERS[kind][1])
    assert f"{LAYER}.{leaf}'" in message and str(list(other.shape)) in message and "expected [" in message
    source = reader(path)
    with pytest.raises(FastQwenError):
        read_layer(source, NAME, LAYERS[kind][1])
    assert f"{LAYER}.{leaf}" in source.checkpoint.unread()


@pytest.mark.parametrize("kind,leaf", [(kind, leaf) for kind in LAYERS for leaf in make(kind)[0]])
def test_tensor_of_another_dtype_is_refused_by_name(tmp_path, kind, leaf):
    tensors, value = make(kind)
    tensors[leaf] = torch.zeros(tensors[leaf].shape, dtype=torch.int64)
    message = refusal(file_with(tmp_path, (tensors, value)), LAYERS[kind][1])
    assert f"{LAYER}.{leaf}'" in message and "I64" in message


@pytest.mark.parametrize("kind", LAYERS)
def test_layer_of_another_size_than_the_model_needs_is_refused(tmp_path, kind):
    rows, columns = LAYERS[kind][1]
    for shape in ((rows + 64, columns), (rows, columns + 1024)):
        message = refusal(file_with(tmp_path, make(kind)), shape)
        assert LAYER + ".weight" in message and "expected" in message


@pytest.mark.parametrize("leaf", ["weight_correction", "scale_weight", "pre_quant_scale", "weight_scale"])
def test_side_tensor_that_the_format_does_not_have_is_refused_by_name(tmp_path, leaf):
    for kind in ("w4a8", "plain"):
        tensors, value = make(kind)
        message = refusal(file_with(tmp_path, (tensors | {leaf: torch.ones(24)}, value)))
        assert f"'{LAYER}.{leaf}'" in message and "bf16" in message


def test_unmarked_float8_weight_is_refused_by_dtype(tmp_path):
    tensors, _ = make("fp8 e4m3")
    message = refusal(file_with(tmp_path, ({"weight": tensors["weight"]}, None)))
    assert LAYER + ".weight" in message and "F8_E4M3" in message


def test_bias_is_left_to_whoever_builds_the_layer(tmp_path):
    tensors, value = make("int8")
    source = reader(file_with(tmp_path, (tensors | {"bias": torch.zeros(24)}, value)))
    read_layer(source, NAME)
    assert source.checkpoint.unread() == [LAYER + ".bias"]


def test_columns_that_do_not_fill_rotation_blocks_or_groups_are_refused(tmp_path):
    for layer, words in (
        (Maker().asym(4, 128), "128 columns, no multiple of its rotation block of 256"),
        (Maker().int8(4, 300, convrot=True), "300 columns, no multiple of its rotation block of 256"),
        (Maker().convrot_w4a4(4, 128), "128 columns, no multiple of its rotation block of 256"),
        (Maker().awq(4, 128, group=64), "96 columns, no multiple of its group of 64"),
    ):
        shape = (4, 96) if layer[1]["format"] == "awq_w4a16" else None
        assert words in refusal(file_with(tmp_path, layer), shape)


def test_six_bit_codes_refuse_a_codebook_and_fine_groups(tmp_path):
    tensors, value = make("w6a8")
    message = refusal(file_with(tmp_path, (tensors | {"weight_codebook": CODEBOOK.clone()}, value)))
    assert LAYER + ".weight_codebook" in message and "6-bit" in message
    assert "group_size 8" in refusal(file_with(tmp_path, Maker().asym(4, 256, 6, group=8)))


def test_codebook_of_another_length_is_refused_with_its_length(tmp_path):
    tensors, value = make("w4a8")
    message = refusal(file_with(tmp_path, (tensors | {"weight_codebook": torch.ones(15)}, value)))
    assert LAYER + ".weight_codebook" in message and "[15]" in message and "[16]" in message


def test_headers_alone_describe_a_layer(tmp_path):
    checkpoint = Checkpoint.open(file_with(tmp_path, make("w6a8")))
    layout = layout_of(checkpoint, LAYER, read_markers(checkpoint)[LAYER])
    assert (layout.format, layout.rows, layout.columns, layout.group, layout.rotated) == ("w6a8", 24, 512, 16, True)
    assert LAYER + ".weight" in checkpoint.unread()


POSITIVE = [
    ("w4a8", "weight_s_channel"), ("w6a8", "weight_s_channel"), ("int8", "weight_scale"), ("fp8 e4m3", "weight_scale"),
    ("fp8 e5m2", "weight_scale"), ("fp8 e4m3", "input_scale"), ("convrot_w4a4", "weight_scale"),
    ("nvfp4", "weight_scale_2"), ("nvfp4", "pre_quant_scale"),
]  # fmt: skip


def spoil(tensors, leaf, value, index=-1):
    tensors = tensors | ({"pre_quant_scale": torch.ones(40)} if leaf == "pre_quant_scale" else {})
    spoiled = tensors[leaf].clone()
    spoiled.reshape(-1)[index] = value
    return tensors | {leaf: spoiled}


@pytest.mark.parametrize("kind,leaf", POSITIVE)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 0.0, -0.01, 1e4])
def test_scale_that_is_no_scale_is_refused_by_tensor_and_value(tmp_path, kind, leaf, value):
    tensors, said = make(kind)
    message = refusal(file_with(tmp_path, (spoil(tensors, leaf, value), said)), LAYERS[kind][1])
    assert f"'{LAYER}.{leaf}' holds {value:g} at " in message


def test_refusal_says_where_in_the_tensor_the_value_is(tmp_path, monkeypatch):
    monkeypatch.setattr("fastqwen.weights.stored._CHECK_VALUES", 4)  # it lies in the second block
    tensors, said = make("int8")
    assert "holds nan at [5, 0]" in refusal(
        file_with(tmp_path, (spoil(tensors, "weight_scale", float("nan"), 5), said))
    )


@pytest.mark.parametrize("scale", [1e-30, 9999.0])
def test_scales_inside_the_rule_are_accepted(tmp_path, scale):
    tensors, said = make("int8")
    read_layer(reader(file_with(tmp_path, (spoil(tensors, "weight_scale", scale), said))), NAME)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e4])
@pytest.mark.parametrize(
    "kind,leaf",
    [("w4a8", "weight_codebook"), ("w4a8", "weight_s_rel"), ("awq", "weight_scale"), ("awq", "weight_zeros")],
)
def test_codebook_group_scales_and_zeros_must_be_finite_and_small(tmp_path, kind, leaf, value):
    tensors, said = make(kind)
    tensors[leaf] = tensors[leaf].float()
    message = refusal(file_with(tmp_path, (spoil(tensors, leaf, value), said)))
    assert f"'{LAYER}.{leaf}' holds {value:g} at " in message


@pytest.mark.parametrize("byte", [0x7F, 0xFF])
@pytest.mark.parametrize("kind", ["w4a8", "w6a8"])
@pytest.mark.parametrize("dtype", [E4M3, torch.uint8])
def test_nan_among_float8_group_scales_is_refused(tmp_path, kind, byte, dtype):
    tensors, said = make(kind)
    scales = spoil({"s": tensors["weight_s_rel"].view(torch.uint8)}, "s", byte, 40)["s"]
    message = refusal(file_with(tmp_path, (tensors | {"weight_s_rel": scales.view(dtype)}, said)))
    assert f"'{LAYER}.weight_s_rel' holds nan at [1, 8]" in message


@pytest.mark.parametrize(
    "kind,byte,words", [("nvfp4", 0x7F, "nan"), ("mxfp8", 255, "inf"), ("mxfp8", 150, "8.38861e+06")]
)
def test_block_scales_are_checked_where_they_are_used_and_not_in_the_padding(tmp_path, kind, byte, words):
    shape = LAYERS[kind][1]  # (24, 40): 3 or 2 blocks a row
    for row, column, refused in ((23, 1, True), (100, 0, False), (3, 3, False)):
        tensors, said = make(kind)
        plain = torch.zeros(128, 4, dtype=torch.uint8)
        plain[row, column] = byte
        tensors["weight_scale"] = packed_layers.swizzle(plain).view(tensors["weight_scale"].dtype)
        path = file_with(tmp_path, (tensors, said))
        if refused:
            assert f"'{LAYER}.weight_scale' holds {words} at [23, 1]" in refusal(path, shape)
        else:
            read_layer(reader(path), NAME, shape)


@pytest.mark.parametrize(
    "kind,byte", [("fp8 e4m3", 0x7F), ("fp8 e4m3", 0xFF), ("fp8 e5m2", 0x7C), ("fp8 e5m2", 0xFE), ("mxfp8", 0x7F)]
)
def test_float8_weight_with_a_nan_or_infinity_is_refused_by_row(tmp_path, kind, byte):
    tensors, said = make(kind)
    bytes = tensors["weight"].clone().view(torch.uint8)
    bytes[17, 3] = byte
    message = refusal(file_with(tmp_path, (tensors | {"weight": bytes.view(tensors["weight"].dtype)}, said)), (24, 40))
    assert f"'{LAYER}.weight'" in message and "row 17" in message


@pytest.mark.parametrize("column", [0, 1, 2, 3, 254, 255, 511])
def test_six_bit_code_0_is_refused_wherever_it_stands(tmp_path, column, monkeypatch):
    monkeypatch.setattr("fastqwen.weights.stored._CHECK_VALUES", 5 * 512)  # row 11 lies in the third block
    tensors, said = Maker().asym(24, 512, 6)
    codes = Maker(7).integers(1, 63, 24, 512)
    read_layer(reader(file_with(tmp_path, (tensors | {"weight": packed_layers.pack(codes, 6)}, said))), NAME)
    codes[11, column] = 0
    message = refusal(file_with(tmp_path, (tensors | {"weight": packed_layers.pack(codes, 6)}, said)))
    assert f"'{LAYER}.weight'" in message and "row 11" in message and "1..63" in message


def test_no_other_six_bit_code_is_taken_for_0(tmp_path):
    """Every code beside every code, at each of the four places of a group of bytes."""
    first, second = torch.meshgrid(torch.arange(1, 64), torch.arange(1, 64), indexing="ij")
    codes = torch.ones(4 * 4096, 4, dtype=torch.long)
    for place in range(4):
        codes[place * 4096 : place * 4096 + 3969, place] = first.flatten()
        codes[place * 4096 : place * 4096 + 3969, (place + 1) % 4] = second.flatten()
    tensors, said = Maker().asym(256, 256, 6)
    read_layer(
        reader(file_with(tmp_path, (tensors | {"weight": packed_layers.pack(codes.view(256, 256), 6)}, said))), NAME
    )
