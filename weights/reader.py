"""Hands out a checkpoint's tensors under canonical names, on the right device and in the right dtype."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from .checkpoint import Checkpoint
from .decode import to_float, to_grid
from .formats import Marker, read_markers
from .linear import Linear
from .packed_linear import PackedLinear
from .projection import Norm, Projection
from .stored import read_layer

ON_A_GRID = ("w4a8", "w6a8", "int8")


class Reader:
    """Reads by canonical name (`layers.0.mlp.up_proj.weight`), whatever prefix the file uses.

    names    canonical name -> name in the file
    device   where tensors go
    dtype    the compute dtype of linear weights and embeddings
    shapes   canonical name -> shape the model expects, so that padding of packed layers is told apart
    on_read  called with (bytes read so far, bytes of the whole checkpoint) after every tensor
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        names: Mapping[str, str],
        device: torch.device,
        dtype: torch.dtype,
        *,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        on_read: Callable[[int, int], None] = lambda done, total: None,
    ):
        self.checkpoint, self.names, self.device, self.dtype = checkpoint, names, device, dtype
        self.shapes, self._on_read, self._bytes_read = shapes or {}, on_read, 0
        self._decoded: dict[str, int] = {}  # format -> layers of it that were decoded to the compute dtype

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor, contiguous, in `dtype` (default: the compute dtype)."""
        stored = self.raw(name)
        # A fresh allocation: a view into the mapped file would keep the file's alignment and its page faults.
        return torch.empty(stored.shape, device=self.device, dtype=dtype or self.dtype).copy_(stored)

    def raw(self, name: str) -> Tensor:
        """The tensor on the CPU in the dtype it is stored in; it may be a view into the mapped file."""
        stored = self.checkpoint.read(self.names[name])
        self._bytes_read += stored.nbytes
        self._on_read(self._bytes_read, self.checkpoint.bytes)
        return stored

    @cached_property
    def markers(self) -> dict[str, Marker]:
        """Layer name in the file -> what the file says of it, for quantised layers."""
        return read_markers(self.checkpoint)

    def vector(self, name: str) -> Tensor:
        """A small tensor kept in float32: norm weights, gates, convolution taps."""
        return self.tensor(name, torch.float32)

    def linear(self, name: str) -> Linear | PackedLinear:
        """The linear layer `<name>.weight`: packed formats on an int8 grid stay packed, others are decoded."""
        if self.names[name + ".weight"].removesuffix(".weight") not in self.markers:
            return Linear(self.tensor(name + ".weight"))
        stored = read_layer(self, name, self.shapes.get(name + ".weight"))
        if stored.format in ON_A_GRID and not stored.full_precision:
            return PackedLinear(to_grid(stored), self.device)
        self._decoded[stored.format] = self._decoded.get(stored.format, 0) + 1
        return Linear(to_float(stored, self.dtype).to(self.device))

    @property
    def notes(self) -> list[str]:
        """What a user should know about layers that were not taken as they are, one sentence each."""
        bits = 8 * torch.empty(0, dtype=self.dtype).element_size()
        return [
            f"{count} layers stored as {name} were decoded and take {bits} bits a weight: no kernel computes with "
            f"{name} yet."
            for name, count in self._decoded.items()
        ]

    def norm(self, name: str, eps: float) -> Norm:
        """The (1 + w) norm `<name>.weight`."""
        return Norm(self.vector(name + ".weight"), eps)

    def projection(self, prefix: str, names: Sequence[str], *, norm: Norm | None = None, swiglu=False) -> Projection:
        """The group of linear layers `<prefix><name>.weight` that read one input."""
        return Projection([self.linear(prefix + name) for name in names], norm=norm, swiglu=swiglu)
