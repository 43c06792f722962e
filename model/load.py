"""Checkpoint -> trunk: checks every shape before the first byte is read."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..weights import Checkpoint, Reader
from ..weights.formats import require_plain
from .block import Block
from .config import ModelConfig, check_shapes, read_config
from .convert import choose
from .trunk import Trunk


@dataclass(frozen=True)
class LoadedModel:
    """A trunk, its config, and the reader from which an MTP head can still be read."""

    config: ModelConfig
    trunk: Trunk
    reader: Reader


def default_kv(device: torch.device) -> str:
    """int8 on a GPU, where reading them is what a long context costs; fp32 on a CPU, where int8 reads no faster."""
    return "fp32" if device.type == "cpu" else "int8"


def load_model(
    checkpoint: Checkpoint,
    device: torch.device,
    dtype: torch.dtype,
    on_read: Callable[[int, int], None] = lambda done, total: None,
    *,
    quantize: str | None = None,
    repack: bool = False,
    kv: str | None = None,
    place: Callable[[Block], Block] = lambda block: block,
) -> LoadedModel:
    """on_read is told (bytes done, bytes in all) after every tensor.

    quantize  quantises plain weights as `fastqwen quantize --format` would, in memory
    kv        how keys and values are kept, a key of attention.KINDS; default_kv decides if it is None
    repack    layers of formats without a kernel become W6A8 instead of `dtype`
    place     given every layer as soon as it is read; what it returns takes the layer's place

    Raises FastQwenError for another architecture, or a missing, wrong-shaped or damaged tensor.
    """
    config, names = read_config(checkpoint)
    check_shapes(checkpoint, config, names)
    encodings = {}
    if quantize is not None:
        require_plain(checkpoint)
        choices = choose(checkpoint, names, quantize, tied_head=config.tied_head)
        encodings = {choice.name: (choice.format, choice.rotated) for choice in choices if choice.format is not None}
    reader = Reader(
        checkpoint,
        names,
        device,
        dtype,
        shapes=config.expected_shapes(),
        encodings=encodings,
        repack=repack,
        on_read=on_read,
    )
    return LoadedModel(config, Trunk(reader, config, kv or default_kv(device), place=place), reader)
