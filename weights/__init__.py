"""Checkpoint files in, tensors ready to compute with out."""

from .errors import FastQwenError

__all__ = ["FastQwenError"]
