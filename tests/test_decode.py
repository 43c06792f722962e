"""What stored layers mean: exactly for every code and scale, and as comfy-kitchen decodes them, bit for bit."""

from fractions import Fraction

import pytest
import torch
from fastqwen.kernels.rotation import rotate
from fastqwen.weights.block_scales import unswizzle
from fastqwen.weights.decode import to_float, to_grid, unpack_codes
from fastqwen.weights.stored import StoredLayer, read_layer
from packed_layers import CODEBOOK, E4M3, E5M2, E8M0, LAYER, NAME, Maker, pack, reader, same_bits, swizzle, write

FP4 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def stored(format, rows, columns, codes, **fields):
    return StoredLayer(NAME, format, rows, columns, codes, **fields)


def through_file(tmp_path, layer, shape=None):
    return read_layer(reader(write(tmp_path / "x.safetensors", {LAYER: layer})), NAME, shape)


def clamped(value):
    """Round half to even, then clamp, on exact numbers."""
    return max(-127, min(127, round(value)))


def every_code_and_scale(bits, groups_per_scale):
    """Codes [N, 256] and e4m3 bytes [N, 16] in which every code meets every scale byte but the two NaNs."""
    scales = torch.arange(256).repeat_interleave(groups_per_scale)
    scales[scales % 128 == 127] = 0
    codes = torch.arange(256 * groups_per_scale * 16) % 2**bits
    if bits == 6:
        codes = codes.clamp(min=1)  # 0 is no code
    return codes.view(-1, 256), scales.view(-1, 16).to(torch.uint8).view(E4M3)


@pytest.mark.parametrize("bits,middle,groups", [(4, 8, 1), (6, 32, 4)])
def test_uniform_grid_is_exact_for_every_code_and_every_scale_byte(bits, middle, groups):
    codes, scales = every_code_and_scale(bits, groups)
    layer = stored(
        f"w{bits}a8", len(codes), 256, pack(codes, bits), group=16, scales=scales, channel_scale=torch.ones(len(codes))
    )
    assert torch.equal(unpack_codes(layer).long(), codes)
    values = to_grid(layer).values
    exact = [Fraction(value) for value in scales.float().flatten().tolist()]
    wanted = [clamped((code - middle) * exact[i // 16]) for i, code in enumerate(codes.flatten().tolist())]
    assert values.dtype == torch.int8 and values.flatten().tolist() == wanted
    assert {-127, 127} <= set(wanted)


def test_codebook_grid_rounds_the_float32_product_for_every_code_and_every_scale_byte():
    codes, scales = every_code_and_scale(4, 1)
    layer = stored(
        "w4a8", 16, 256, pack(codes, 4), group=16, scales=scales, channel_scale=torch.ones(16), codebook=CODEBOOK
    )
    # 24-bit level times 4-bit scale is exact in float64; one rounding to float32, as the format says.
    levels = CODEBOOK.double()[codes] * scales.double().repeat_interleave(16, dim=1)
    wanted = [clamped(value) for value in levels.float().flatten().tolist()]
    assert to_grid(layer).values.flatten().tolist() == wanted


def test_signed_four_bit_codes_are_twos_complement():
    codes = torch.arange(256).view(1, 256) % 16
    layer = stored("convrot_w4a4", 1, 256, pack(codes, 4), channel_scale=torch.tensor([0.5]))
    wanted = [(code - 16 if code > 7 else code) * 0.5 for code in codes[0].tolist()]
    assert to_float(layer)[0].tolist() == wanted


def test_nvfp4_is_exact_for_every_code_and_every_scale_byte():
    codes = torch.arange(256 * 16).view(256, 16) % 16
    bytes = torch.arange(256).view(256, 1)
    bytes[bytes % 128 == 127] = 0
    packed = (codes[:, 0::2] << 4 | codes[:, 1::2]).to(torch.uint8)  # even column high
    scales = swizzle(bytes.to(torch.uint8))
    layer = stored("nvfp4", 256, 16, packed, group=16, scales=scales, channel_scale=torch.full((256,), 0.75))
    values = torch.tensor(FP4 + [-value for value in FP4], dtype=torch.float64)[codes]
    wanted = values * bytes.to(torch.uint8).view(E4M3).double() * 0.75  # exact: 2 + 4 + 2 bits
    assert torch.equal(to_float(layer).double(), wanted)


def test_mxfp8_is_exact_for_every_exponent_that_is_a_float32():
    exponents = torch.arange(1, 255).view(-1, 1)
    codes = (torch.arange(32) + 0x30).to(torch.uint8).view(E4M3).expand(254, 32)  # 0.5 to 7.5
    padded = torch.zeros(256, 32, dtype=torch.uint8).view(E4M3)
    padded.view(torch.uint8)[:254] = codes.view(torch.uint8)
    layer = stored("mxfp8", 254, 32, padded, group=32, scales=swizzle(exponents.to(torch.uint8)))
    wanted = codes.double() * 2.0 ** (exponents.double() - 127)
    keep = wanted <= torch.finfo(torch.float32).max
    assert torch.equal(to_float(layer).double()[keep], wanted[keep])
    zero = stored("mxfp8", 254, 32, padded, group=32, scales=torch.zeros(256, 4, dtype=torch.uint8))
    assert not to_float(zero).any()


def test_unswizzle_undoes_the_order_spelled_out_element_by_element():
    scales = torch.arange(200 * 7).view(200, 7)
    assert torch.equal(unswizzle(swizzle(scales))[:200, :7], scales)


def test_awq_takes_each_group_of_columns_from_its_row_of_scales_and_zeros(tmp_path):
    tensors, marker = Maker().awq(6, 256, torch.float32)
    weight = to_float(through_file(tmp_path, (tensors, marker)))
    bytes = tensors["weight"].view(torch.uint8)
    for n, k in ((0, 0), (1, 63), (2, 64), (5, 255), (3, 130)):
        code = int(bytes[n, k // 2]) >> (4 * (k % 2)) & 15
        wanted = (code - 8) * tensors["weight_scale"][k // 64, n] + tensors["weight_zeros"][k // 64, n]
        assert weight[n, k] == wanted


def test_int8_scale_is_one_number_or_one_per_row(tmp_path):
    for per_row in (True, False):
        tensors, marker = Maker().int8(5, 20, per_row)
        layer = through_file(tmp_path, (tensors, marker))
        assert torch.equal(to_float(layer), tensors["weight"].float() * tensors["weight_scale"])
        assert torch.equal(to_grid(layer).values, tensors["weight"])
        assert layer.channel_scale.shape == (5,) and not to_grid(layer).rotated


def test_rotated_layers_come_back_un_rotated_and_their_grid_does_not(tmp_path):
    for make in (Maker().asym, Maker().int8, Maker().convrot_w4a4):
        tensors, marker = make(4, 512)
        layer = through_file(tmp_path, (tensors, marker | {"convrot": True}))
        flat = StoredLayer(**(vars(layer) | {"rotated": False}))
        assert layer.rotated and same_bits(to_float(layer), rotate(to_float(flat)))


def test_column_scale_acts_on_the_input(tmp_path):
    tensors, marker = Maker().nvfp4(16, 32)
    plain = to_float(through_file(tmp_path, (tensors, marker)))
    scale = torch.rand(32, generator=torch.Generator().manual_seed(3)) + 0.5
    scaled = to_float(through_file(tmp_path, (tensors | {"pre_quant_scale": scale}, marker)))
    assert torch.equal(scaled, plain * scale)


def test_result_does_not_depend_on_how_rows_are_cut_and_is_rounded_once(tmp_path, monkeypatch):
    maker = Maker()
    for layer in (
        maker.asym(37, 256),
        maker.asym(37, 256, 6),
        maker.nvfp4(37, 200),
        maker.mxfp8(37, 200),
        maker.awq(37, 128),
    ):
        read = through_file(tmp_path, layer, (37, 200) if layer[1]["format"] in ("nvfp4", "mxfp8") else None)
        whole = to_float(read), to_grid(read).values if read.format in ("w4a8", "w6a8") else None
        monkeypatch.setattr("fastqwen.weights.decode._BLOCK_VALUES", 5 * 256)
        if whole[1] is None:  # un-rotating is a matrix product, whose bits may follow the number of rows
            assert same_bits(to_float(read), whole[0])
        else:
            assert torch.equal(to_grid(read).values, whole[1])
        monkeypatch.undo()
        assert torch.equal(to_float(read, torch.bfloat16), whole[0].to(torch.bfloat16))


def test_formats_without_an_int8_grid_say_so(tmp_path):
    with pytest.raises(ValueError, match="fp8, which has no int8 grid"):
        to_grid(through_file(tmp_path, Maker().fp8(4, 16)))


@pytest.fixture(scope="module")
def kitchen():
    pytest.importorskip("comfy_kitchen", reason="needs comfy-kitchen")
    from comfy_kitchen.backends.eager import convrot_w4a4, quantization, w4a8_int8

    return {"w4a8": w4a8_int8, "q": quantization, "w4a4": convrot_w4a4}


def random_scales(tensors, maker):
    """Any e4m3 group scale but NaN, signs and zero included."""
    shape = tensors["weight_s_rel"].shape
    bytes = maker.integers(0, 255, *shape)
    bytes[bytes % 128 == 127] = 0
    return tensors | {"weight_s_rel": bytes.to(torch.uint8).view(E4M3)}


# 6-bit codes have no codebook and no groups below 16.
KINDS = [(4, group, codebook) for group in (4, 8, 16, 32, 256) for codebook in (True, False)]
KINDS += [(6, group, False) for group in (16, 32, 256)]


@pytest.mark.parametrize("bits,group,codebook", KINDS)
@pytest.mark.parametrize("scale_dtype", ["e4m3", "uint8 view", "fp32"])
def test_grid_and_weight_equal_comfy_kitchens(kitchen, tmp_path, bits, group, scale_dtype, codebook):
    maker = Maker(bits * group)
    tensors, marker = maker.asym(24, 768, bits, group, codebook)
    tensors = random_scales(tensors, maker)
    scales = tensors["weight_s_rel"].float() if scale_dtype == "fp32" else tensors["weight_s_rel"]
    saved = tensors | {"weight_s_rel": scales.view(torch.uint8) if scale_dtype == "uint8 view" else scales}
    layer = through_file(tmp_path, (saved, marker))
    book = tensors.get("weight_codebook")
    grid = kitchen["w4a8"]._dequant_int4_grouped_to_int8(tensors["weight"], scales, book, group)
    assert same_bits(to_grid(layer).values, grid)
    weight = kitchen["w4a8"].dequantize_w4a8_int8_weight(
        tensors["weight"], scales, tensors["weight_s_channel"], book, None, group, 256, torch.float32
    )
    assert same_bits(to_float(layer), weight)


@pytest.mark.parametrize("per_row", [True, False])
@pytest.mark.parametrize("convrot", [True, False])
def test_int8_equals_comfy_kitchens(kitchen, tmp_path, per_row, convrot):
    tensors, marker = Maker().int8(30, 512, per_row, convrot=convrot)
    q, scale = tensors["weight"], tensors["weight_scale"]
    wanted = (
        kitchen["q"].dequantize_int8_convrot_weight(q, scale, 256)
        if convrot
        else kitchen["q"].dequantize_int8_simple(q, scale)
    )
    assert same_bits(to_float(through_file(tmp_path, (tensors, marker))), wanted)


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_fp8_equals_comfy_kitchens_for_every_byte(kitchen, tmp_path, dtype):
    tensors, marker = Maker().fp8(2, 128, dtype)
    bytes = torch.arange(256).to(torch.uint8).view(2, 128)
    bytes[(bytes & 0x7F) >= (0x7F if dtype == E4M3 else 0x7C)] = 0  # NaN and infinity are refused
    tensors["weight"] = bytes.view(dtype)
    wanted = kitchen["q"].dequantize_per_tensor_fp8(tensors["weight"], tensors["weight_scale"], torch.float32)
    assert same_bits(to_float(through_file(tmp_path, (tensors, marker))), wanted)


def test_convrot_w4a4_equals_comfy_kitchens(kitchen, tmp_path):
    tensors, marker = Maker().convrot_w4a4(20, 512)
    wanted = kitchen["w4a4"].dequantize_convrot_w4a4_weight(tensors["weight"], tensors["weight_scale"])
    assert same_bits(to_float(through_file(tmp_path, (tensors, marker))), wanted)


@pytest.mark.parametrize("shape", [(16, 64), (130, 80), (7, 24), (300, 1040)])
def test_nvfp4_equals_comfy_kitchens_without_its_padding(kitchen, tmp_path, shape):
    tensors, marker = Maker().nvfp4(*shape)
    wanted = kitchen["q"].dequantize_nvfp4(
        tensors["weight"], tensors["weight_scale_2"], tensors["weight_scale"], torch.float32
    )
    weight = to_float(through_file(tmp_path, (tensors, marker), shape))
    assert same_bits(weight, wanted[: shape[0], : shape[1]].contiguous())


@pytest.mark.parametrize("shape", [(32, 64), (130, 80), (7, 24), (300, 1040)])
def test_mxfp8_equals_comfy_kitchens_without_its_padding(kitchen, tmp_path, shape):
    tensors, marker = Maker().mxfp8(*shape)
    tensors["weight_scale"].view(torch.uint8)[0, :8] = 0
    wanted = kitchen["q"].dequantize_mxfp8(tensors["weight"], tensors["weight_scale"], torch.float32)
    saved = tensors | {"weight_scale": tensors["weight_scale"].view(torch.uint8)}
    for scales in (tensors, saved):
        weight = to_float(through_file(tmp_path, (scales, marker), shape))
        assert same_bits(weight, wanted[: shape[0], : shape[1]].contiguous())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_awq_equals_comfy_kitchens(kitchen, tmp_path, dtype):
    from comfy_kitchen.tensor import TensorCoreAWQW4A16Layout as Layout

    tensors, marker = Maker().awq(12, 256, dtype)
    params = Layout.Params(
        scale=tensors["weight_scale"], zeros=tensors["weight_zeros"], orig_dtype=torch.float32, orig_shape=(12, 256)
    )
    wanted = Layout.dequantize(tensors["weight"], params)
    assert same_bits(to_float(through_file(tmp_path, (tensors, marker))), wanted)


def written_by_kitchen(kitchen, format, weight):
    """comfy-kitchen's own encoder, in the file's layout."""
    if format in ("w4a8", "w6a8"):
        packed, s_rel, s_channel, _, book = kitchen["w4a8"].quantize_w4a8_int8_weight(weight, bits=int(format[1]))
        tensors = {"weight": packed, "weight_s_rel": s_rel, "weight_s_channel": s_channel}
        return tensors | ({} if book is None else {"weight_codebook": book}), {"format": "asym_w4a8_int8"}
    if format == "int8":
        q, scale = kitchen["q"].quantize_int8_convrot_weight(weight, 256)
        return {"weight": q, "weight_scale": scale}, {"format": "int8_tensorwise", "convrot": True}
    if format == "convrot_w4a4":
        q, scale = kitchen["w4a4"].quantize_convrot_w4a4_weight(weight)
        return {"weight": q, "weight_scale": scale}, {"format": "convrot_w4a4"}
    if format == "nvfp4":
        scale = weight.abs().amax() / (448 * 6)
        q, scales = kitchen["q"].quantize_nvfp4(weight, scale, pad_16x=True)
        return {"weight": q, "weight_scale": scales, "weight_scale_2": scale}, {"format": "nvfp4"}
    q, scales = kitchen["q"].quantize_mxfp8(weight, pad_32x=True)
    return {"weight": q, "weight_scale": scales.view(E8M0)}, {"format": "mxfp8"}


# Relative L2 error on Gaussian weights. A uniform step d has error d / sqrt(12), and the largest of 512 values is about
# 3.2 sigma: 3.2 / 127 / sqrt(12) = 0.0073 for int8, 3.2 / 7 / sqrt(12) = 0.132 at 4 bits. The others are what
# comfy-kitchen's encoders were measured to reach. A nibble, group or row out of place gives an error near 1.
EXPECTED = {"w4a8": 0.072, "w6a8": 0.021, "int8": 0.0073, "convrot_w4a4": 0.132, "nvfp4": 0.095, "mxfp8": 0.027}


@pytest.mark.parametrize("format", EXPECTED)
def test_files_that_comfy_kitchen_writes_come_back_as_the_weights_they_were_made_from(kitchen, tmp_path, format):
    shape = (250, 500) if format in ("nvfp4", "mxfp8") else (250, 512)
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(4)) * 0.02
    layer = through_file(tmp_path, written_by_kitchen(kitchen, format, weight), shape)
    assert layer.format == format and (layer.rows, layer.columns) == shape
    error = ((to_float(layer) - weight).norm() / weight.norm()).item()
    assert error == pytest.approx(EXPECTED[format], rel=0.15)
