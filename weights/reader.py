"""Hands out a checkpoint's tensors under canonical names, on the right device and in the right dtype."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from ..kernels.rotation import BLOCK
from .backend import packed_kernels
from .checkpoint import Checkpoint
from .decode import to_float, to_grid
from .formats import Marker, read_markers
from .linear import Linear
from .packed_linear import BITS, PackedLinear, RecordLinear, as_int8, stack_key, why_not_records
from .projection import Norm, Projection
from .quantize import encode
from .stored import StoredLayer, read_layer

W6A8_BITS = 6.5  # a weight: its code, and its share of a group's scale


class Reader:
    """Reads by canonical name (`layers.0.mlp.up_proj.weight`), whatever prefix the file uses.

    names    canonical name -> name in the file
    device   where tensors go
    dtype    the compute dtype of linear weights and embeddings
    shapes   canonical name -> shape the model expects, so that padding of packed layers is told apart
    encodings  name in the file of a plain layer's weight -> (format, rotated) to quantise it to as it is read
    repack   layers of formats without a kernel become W6A8 instead of the compute dtype
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
        encodings: Mapping[str, tuple[str, bool]] | None = None,
        repack: bool = False,
        on_read: Callable[[int, int], None] = lambda done, total: None,
    ):
        self.checkpoint, self.names, self.device, self.dtype = checkpoint, names, device, dtype
        self.shapes, self.encodings, self.repack = shapes or {}, encodings or {}, repack
        self._on_read, self._bytes_read = on_read, 0
        self._errors: list[float] = []  # relative errors of the layers quantised here
        self._decoded: dict[str, tuple[int, int]] = {}  # format without a kernel -> (layers, weights) of it
        self._unpacked: dict[str, int] = {}  # why layers run from int8 instead of their own bits -> their weights

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
        return self._matrices([name])[0][0]

    def _matrices(self, names: Sequence[str]) -> list[tuple[Linear | PackedLinear, tuple[int, ...]]]:
        """The matrices of layers that read one input, each with the numbers of rows of the layers stacked in it."""
        found: list[tuple[Linear | PackedLinear, tuple[int, ...]]] = []
        stack: list[StoredLayer] = []

        def end_stack():
            if stack:
                found.append((RecordLinear.of(stack, self.device), tuple(stored.rows for stored in stack)))
                stack.clear()

        for name in names:
            original = self._stored(name)
            if isinstance(original, Linear):
                end_stack()
                rows = (original.weight.shape[0],)
                if found and isinstance(found[-1][0], Linear):
                    before, sizes = found.pop()
                    original, rows = Linear(torch.cat([before.weight, original.weight])), (*sizes, *rows)
                found.append((original, rows))
                continue
            stored = self._for_kernels(original)
            if stored is None:
                end_stack()
                found.append((PackedLinear(to_grid(original), self.device), (original.rows,)))
                continue
            if stack and stack_key(stack[0]) != stack_key(stored):
                end_stack()
            stack.append(stored)
        end_stack()
        return found

    def _stored(self, name):
        """A layer on an int8 grid as it is stored, or as it is quantised here; any other as a Linear."""
        encoding = self.encodings.get(self.names[name + ".weight"])
        if encoding is not None:
            weight = self.raw(name + ".weight").to(self.device)
            encoded = encode(weight, encoding[0], name=self.names[name + ".weight"], rotated=encoding[1])
            self._errors.append(encoded.relative_error)
            return encoded.stored(name)
        if self.names[name + ".weight"].removesuffix(".weight") not in self.markers:
            return Linear(self.tensor(name + ".weight"))
        stored = read_layer(self, name, self.shapes.get(name + ".weight"))
        if stored.format in BITS and not stored.full_precision:
            return stored
        layers, weights = self._decoded.get(stored.format, (0, 0))
        self._decoded[stored.format] = layers + 1, weights + stored.rows * stored.columns
        if self.repack and stored.columns % BLOCK == 0:
            return encode(to_float(stored).to(self.device), "w6a8", name=name + ".weight").stored(name)
        return Linear(to_float(stored, self.dtype).to(self.device))

    def _for_kernels(self, stored):
        """The layer in a form that the record kernels take: its own bits, else its int8 grid; None without kernels."""
        usable, how = packed_kernels(self.device)
        reason = why_not_records(stored) if usable else f"no kernels ({how})"
        if reason is None:
            return stored
        if stored.format != "int8":
            self._unpacked[reason] = self._unpacked.get(reason, 0) + stored.rows * stored.columns
        grid = as_int8(stored)
        return grid if usable and why_not_records(grid) is None else None

    @property
    def notes(self) -> list[str]:
        """What a user should know about layers that were not taken as they are, one sentence each."""
        bits = W6A8_BITS if self.repack else 8 * torch.empty(0, dtype=self.dtype).element_size()
        became = "re-packed as W6A8" if self.repack else f"kept as {str(self.dtype).removeprefix('torch.')}"
        unpacked = [
            f"Packed weights run from 8 bits instead of their own, {count / 2**20:.1f} MiB: {reason}."
            for reason, count in self._unpacked.items()
        ]
        if self._errors:
            mean = sum(self._errors) / len(self._errors)
            unpacked.append(f"{len(self._errors)} layers were quantised while loading, mean relative error {mean:.4f}.")
        return unpacked + [
            f"{layers} layers stored as {name} were decoded exactly and {became}, {weights * bits / 2**23:.1f} MiB: "
            f"no kernel computes with {name}."
            for name, (layers, weights) in self._decoded.items()
        ]

    def norm(self, name: str, eps: float) -> Norm:
        """The (1 + w) norm `<name>.weight`."""
        return Norm(self.vector(name + ".weight"), eps)

    def projection(self, prefix: str, names: Sequence[str], *, norm: Norm | None = None, swiglu=False) -> Projection:
        """The group of linear layers `<prefix><name>.weight` that read one input."""
        return Projection(self._matrices([prefix + name for name in names]), norm=norm, swiglu=swiglu)
