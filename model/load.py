"""Checkpoint -> trunk: checks every shape before the first byte is read."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..weights import Checkpoint, Reader
from .config import ModelConfig, check_shapes, read_config
from .trunk import Trunk


@dataclass(frozen=True)
class LoadedModel:
    """A trunk, its config, and the reader from which an MTP head can still be read."""

    config: ModelConfig
    trunk: Trunk
    reader: Reader


def load_model(
    checkpoint: Checkpoint,
    device: torch.device,
    dtype: torch.dtype,
    on_read: Callable[[int, int], None] = lambda done, total: None,
) -> LoadedModel:
    """on_read is told (bytes done, bytes in all) after every tensor.

    Raises FastQwenError for another architecture, or a missing, wrong-shaped or damaged tensor.
    """
    config, names = read_config(checkpoint)
    check_shapes(checkpoint, config, names)
    reader = Reader(checkpoint, names, device, dtype, shapes=config.expected_shapes(), on_read=on_read)
    return LoadedModel(config, Trunk(reader, config), reader)
