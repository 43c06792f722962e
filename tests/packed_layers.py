"""Random layers of every packed format, as ComfyUI's files hold them, and readers over such files."""

import json

import pytest
import torch
from fastqwen.model.names import canonical_names
from fastqwen.weights import Checkpoint, FastQwenError, Reader
from fastqwen.weights.stored import read_layer
from safetensors.torch import save_file

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
E8M0 = getattr(torch, "float8_e8m0fnu", torch.uint8)  # torch 2.6 has no such dtype; files may hold its bytes
PREFIX = "model.language_model."
NAME = "layers.0.mlp.up_proj"
LAYER = PREFIX + NAME
CODEBOOK = torch.tensor(
    [-0.980602, -0.794529, -0.638165, -0.500986, -0.377321, -0.263187, -0.155210, -0.050720]
    + [0.052541, 0.156985, 0.265284, 0.379533, 0.502636, 0.638953, 0.794876, 0.980671]
)  # fmt: skip


def up(size, multiple):
    return -(-size // multiple) * multiple


def pack(codes, bits):
    """Codes [N, K] -> int8 rows: even columns in the low nibbles, then (6 bits) four pairs of top bits a byte."""
    codes = codes.int()
    rows = (codes[:, 0::2] & 15) | (codes[:, 1::2] & 15) << 4
    if bits == 6:
        top = codes.unflatten(1, (-1, 4)) >> 4
        rows = torch.cat([rows, top[..., 0] | top[..., 1] << 2 | top[..., 2] << 4 | top[..., 3] << 6], dim=1)
    return rows.to(torch.uint8).view(torch.int8).contiguous()


def swizzle(scales):
    """[R, C] in plain order -> padded, tile by tile, element by element: the definition spelled out."""
    rows, columns = up(scales.shape[0], 128), up(scales.shape[1], 4)
    result = torch.zeros(rows * columns, dtype=scales.dtype)
    for r in range(scales.shape[0]):
        for c in range(scales.shape[1]):
            tile = (r // 128) * (columns // 4) + c // 4
            result[tile * 512 + (r % 32) * 16 + (r % 128 // 32) * 4 + c % 4] = scales[r, c]
    return result.view(rows, columns)


class Maker:
    """Seeded layers. Each method gives (tensors by last name piece, marker JSON)."""

    def __init__(self, seed=0):
        self.random = torch.Generator().manual_seed(seed)

    def integers(self, low, high, *shape):
        return torch.randint(low, high + 1, shape, generator=self.random)

    def scale(self, *shape):
        return torch.rand(shape, generator=self.random) * 0.01 + 1e-4

    def e4m3(self, *shape):
        return self.integers(0x51, 0x70, *shape).to(torch.uint8).view(E4M3)  # as writers choose, about 4 to 127

    def plain(self, n, k, dtype=torch.bfloat16):
        return {"weight": torch.randn(n, k, generator=self.random).to(dtype)}, None

    def asym(self, n, k, bits=4, group=16, codebook=True, **options):
        codes = self.integers(int(bits == 6), 2**bits - 1, n, k)
        tensors = {
            "weight": pack(codes, bits),
            "weight_s_rel": self.e4m3(n, k // group),
            "weight_s_channel": self.scale(n),
        }
        if codebook and bits == 4:
            tensors["weight_codebook"] = CODEBOOK.clone()
        return tensors, {"format": "asym_w4a8_int8", "group_size": group, "convrot_groupsize": 256} | options

    def int8(self, n, k, per_row=True, **options):
        tensors = {
            "weight": self.integers(-128, 127, n, k).to(torch.int8),
            "weight_scale": self.scale(n, 1) if per_row else self.scale(),
        }
        return tensors, {"format": "int8_tensorwise"} | options

    def fp8(self, n, k, dtype=E4M3, **options):
        weight = torch.randn(n, k, generator=self.random).to(dtype)
        name = "float8_e4m3fn" if dtype == E4M3 else "float8_e5m2"
        return {"weight": weight, "weight_scale": self.scale(), "input_scale": self.scale()}, {"format": name} | options

    def convrot_w4a4(self, n, k, **options):
        tensors = {"weight": pack(self.integers(-7, 7, n, k) & 15, 4), "weight_scale": self.scale(n)}
        return tensors, {"format": "convrot_w4a4", "convrot_groupsize": 256, "linear_dtype": "int4"} | options

    def nvfp4(self, n, k, **options):
        rows, columns = up(n, 16), up(k, 16)
        tensors = {
            "weight": self.integers(0, 255, rows, columns // 2).to(torch.uint8),
            "weight_scale": swizzle(self.e4m3(rows, columns // 16).view(torch.uint8)).view(E4M3),
            "weight_scale_2": self.scale(),
        }
        return tensors, {"format": "nvfp4"} | options

    def mxfp8(self, n, k, **options):
        rows, columns = up(n, 32), up(k, 32)
        tensors = {
            "weight": torch.randn(rows, columns, generator=self.random).to(E4M3),
            "weight_scale": swizzle(self.integers(110, 127, rows, columns // 32).to(torch.uint8)).view(E8M0),
        }
        return tensors, {"format": "mxfp8"} | options

    def awq(self, n, k, dtype=torch.bfloat16, group=64, **options):
        tensors = {
            "weight": pack(self.integers(0, 15, n, k), 4),
            "weight_scale": self.scale(k // group, n).to(dtype),
            "weight_zeros": (self.scale(k // group, n) - 0.005).to(dtype),
        }
        return tensors, {"format": "awq_w4a16", "group_size": group} | options


def marker(value):
    """The tensor `<layer>.comfy_quant`."""
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return torch.tensor(list(text), dtype=torch.uint8)


def write(file, layers, header=False):
    """Writes {file's layer name: (tensors, marker JSON or None)}; markers go to tensors or to the header."""
    tensors, said = {}, {}
    for layer, (parts, value) in layers.items():
        tensors |= {f"{layer}.{leaf}": tensor for leaf, tensor in parts.items()}
        if value is not None and header:
            said[layer] = value
        elif value is not None:
            tensors[layer + ".comfy_quant"] = marker(value)
    metadata = {"_quantization_metadata": json.dumps({"layers": said})} if header else None
    save_file(tensors, file, metadata=metadata)
    return file


def reader(path):
    checkpoint = Checkpoint.open(path)
    return Reader(checkpoint, canonical_names(checkpoint.entries), torch.device("cpu"), torch.float32)


def same_bits(a, b):
    """Equal in shape, dtype and every bit: tells 0 from -0, as torch.equal does not."""
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


# Format -> (maker method and arguments, rows and columns, our name).
LAYERS = {
    "plain": (("plain",), (24, 40), "plain"),
    "w4a8": (("asym", 4), (24, 512), "w4a8"),
    "w6a8": (("asym", 6), (24, 512), "w6a8"),
    "int8": (("int8",), (24, 40), "int8"),
    "fp8 e4m3": (("fp8",), (24, 40), "fp8"),
    "fp8 e5m2": (("fp8", E5M2), (24, 40), "fp8"),
    "convrot_w4a4": (("convrot_w4a4",), (24, 512), "convrot_w4a4"),
    "nvfp4": (("nvfp4",), (24, 40), "nvfp4"),
    "mxfp8": (("mxfp8",), (24, 40), "mxfp8"),
    "awq": (("awq",), (24, 128), "awq"),
}


def make(kind, seed=0):
    """A layer of a kind of LAYERS: (tensors by last name piece, marker JSON)."""
    (method, *options), shape, _ = LAYERS[kind]
    return getattr(Maker(seed), method)(*shape, *options)


def file_with(tmp_path, layer, header=False):
    return write(tmp_path / "x.safetensors", {LAYER: layer}, header)


def refusal(path, shape=None):
    """The one sentence with which reading the layer is refused; it says what to do."""
    with pytest.raises(FastQwenError) as caught:
        read_layer(reader(path), NAME, shape)
    message = str(caught.value)
    assert "\n" not in message and any(words in message for words in ("get the file again", "use a ", "use the bf16"))
    return message
