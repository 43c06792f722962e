"""A ComfyUI checkpoint file of a real size with random weights: it is read as a released one is, and means nothing."""

from dataclasses import replace
from pathlib import Path

import torch

from ..attention import AttentionConfig
from ..deltanet import DeltaNetConfig
from ..model.config import ModelConfig
from ..weights.group_codes import CODEBOOK
from ..weights.quantize import layout, marker_bytes
from ..weights.writer import DTYPE_NAMES, CheckpointWriter, TensorSpec
from .random_model import model_config

PLAIN = ("embed_tokens", "in_proj_a", "in_proj_b")  # matrices that released files leave in 16 bits
_SCALES = (0x58, 0x70)  # bytes of e4m3 group scales, as encoders write them for 4 bits


def write_random_checkpoint(path: Path, config: ModelConfig, device: torch.device, seed: int = 0):
    """Writes a text model and its MTP head, linear layers as W4A8, the rest bf16. Raises FastQwenError as the writer
    does. Numbers are drawn on `device`; the same seed gives other numbers on another kind of device.
    """
    generator = torch.Generator(device).manual_seed(seed)
    shapes = config.expected_shapes()
    with CheckpointWriter(path, _specs(shapes)) as writer:
        for name, shape in shapes.items():
            if not _packed(name, shape):
                writer.write(_in_file(name), _plain(name, shape, generator))
                continue
            layer = _in_file(name).removesuffix("weight")
            for leaf, tensor in _layer(shape, generator).items():
                writer.write(layer + leaf, tensor)


def _specs(shapes):
    for name, shape in shapes.items():
        if not _packed(name, shape):
            yield TensorSpec(_in_file(name), "BF16", shape)
            continue
        for leaf, (dtype, size) in layout(*shape, "w4a8").items():
            yield TensorSpec(_in_file(name).removesuffix("weight") + leaf, DTYPE_NAMES[dtype], size)


def _packed(name, shape):
    return len(shape) == 2 and not name.removesuffix(".weight").endswith(PLAIN)


def _in_file(name):
    return name if name.startswith(("lm_head.", "mtp.")) else "model.language_model." + name


def _plain(name, shape, generator):
    """As benchmarks/random_model.py draws them."""
    device = generator.device
    if name.endswith("A_log"):
        numbers = torch.rand(shape, generator=generator, device=device).mul_(15).add_(1).log_()
    else:
        spread = shape[1] ** -0.5 if len(shape) == 2 else 0.5 if "conv1d" in name else 0.02
        numbers = torch.empty(shape, dtype=torch.bfloat16, device=device).normal_(0, spread, generator=generator)
    return numbers.bfloat16()


def _layer(shape, generator):
    """Tensors of a W4A8 layer [rows, columns]; levels of the int8 grid have a spread of about 50."""
    device, found = generator.device, {}
    for leaf, (dtype, size) in layout(*shape, "w4a8").items():
        numbers = torch.empty(size, dtype=torch.uint8 if dtype.itemsize == 1 else torch.float32, device=device)
        if leaf == "weight":
            numbers.random_(0, 256, generator=generator)
        elif leaf == "weight_s_rel":
            numbers.random_(*_SCALES, generator=generator)
        elif leaf == "weight_s_channel":
            numbers.uniform_(0.9, 1.1, generator=generator).mul_(0.02 * shape[1] ** -0.5)
        else:
            numbers = torch.tensor(CODEBOOK if leaf == "weight_codebook" else list(marker_bytes("w4a8")), dtype=dtype)
        found[leaf] = numbers.view(dtype)
    return found


def small_config() -> ModelConfig:
    """Four small layers with the vocabulary of the released models."""
    config = model_config("9b")
    eps, dim = config.rms_eps, config.deltanet.key_dim
    return replace(
        config, hidden_size=256, intermediate_size=512, layer_kinds=config.layer_kinds[:4],
        attention=AttentionConfig(2, 1, 256, eps), deltanet=DeltaNetConfig(2, 2, dim, dim, 4, eps),
    )  # fmt: skip
