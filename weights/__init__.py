"""Checkpoint files in, tensors ready to compute with out."""

from .checkpoint import Checkpoint, TensorEntry, read_json
from .errors import FastQwenError
from .linear import Linear
from .projection import Norm, Projection
from .reader import Reader

__all__ = ["Checkpoint", "FastQwenError", "Linear", "Norm", "Projection", "Reader", "TensorEntry", "read_json"]
