"""Everything the trunk remembers of one sequence."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ..attention import KVCache
from ..deltanet import DeltaNetState, KernelState


class TrunkState:
    """Per-layer states, the committed length, and the rotary position of the next text token.

    `capacity` is how many tokens may be committed; a pass may stage eight more.
    """

    def __init__(self, layers: Sequence[KVCache | DeltaNetState], capacity: int):
        self.layers, self.capacity = list(layers), capacity
        self.length = 0
        self.next_position = 0

    def commit(self, path: Sequence[int]):
        """Keeps the staged rows of `path`: slots from the root along parents."""
        for layer in self.layers:
            layer.commit(path)
        self.length += len(path)
        self.next_position += len(path)

    def reset(self):
        """Forgets the sequence: ready for another of up to `capacity` tokens, in the same memory."""
        with torch.inference_mode():
            for layer in self.layers:
                layer.reset()
        self.length = self.next_position = 0

    def rows(self, start: int) -> list[Tensor]:
        """Keys and values of all attention layers from token `start` on, as they are stored: views, for `restore`."""
        return [x for layer in self._caches for x in layer.rows(start, self.length)]

    def recurrent(self) -> list[Tensor]:
        """Window and recurrent state of every other layer, for `restore`. Views; nothing may be pending."""
        return [x for layer in self._recurrent_layers for x in (layer.window, layer.recurrent)]

    def restore(
        self, rows: Iterable[Sequence[Tensor]], recurrent: Sequence[Tensor], *, length: int, next_position: int
    ):
        """Brings an empty state to where copies of `rows`, one part behind the other, and of `recurrent` were taken:
        the same bytes."""
        for part in rows:
            width = len(part) // max(1, len(self._caches))
            for index, cache in enumerate(self._caches):
                cache.restore(part[index * width : (index + 1) * width])
        for index, layer in enumerate(self._recurrent_layers):
            device = layer.recurrent.device
            layer.replace(*(x.to(device, copy=True) for x in recurrent[2 * index : 2 * index + 2]))
        self.length, self.next_position = length, next_position

    @property
    def device(self) -> torch.device:
        first = self.layers[0]
        return (first.keys.numbers if isinstance(first, KVCache) else first.recurrent).device

    @property
    def _caches(self):
        return [layer for layer in self.layers if isinstance(layer, KVCache)]

    @property
    def _recurrent_layers(self):
        return [layer for layer in self.layers if not isinstance(layer, KVCache)]

    def flush(self):
        """Writes what is still pending, so that every layer holds its committed state."""
        for layer in self.layers:
            if isinstance(layer, DeltaNetState):
                layer.flush()

    @property
    def runs_on_device(self) -> bool:
        """Whether every layer's pass is kernels that read what changes between passes on the device."""
        return all(
            layer.scratch is not None if isinstance(layer, KVCache) else isinstance(layer, KernelState)
            for layer in self.layers
        )

    @property
    def prompts_by_kernels(self) -> bool:
        """Whether prompt tokens pass every layer by kernels alone."""
        return self.runs_on_device and all(layer.prefill_kernel for layer in self.layers if isinstance(layer, KVCache))

    @property
    def buffer(self) -> int:
        """The buffer that the next pass of the DeltaNet layers fills: they all take turns."""
        return next((layer.buffer for layer in self.layers if isinstance(layer, KernelState)), 0)

    def adopt(self, *, length: int, position: int, buffer: int, pending: Sequence[int], move: tuple[int, int] | None):
        """Takes over after passes that the device controlled (kernels/rounds.py)."""
        self.length, self.next_position = length, position
        for layer in self.layers:
            if isinstance(layer, KVCache):
                layer.adopt(length, move)
            else:
                layer.adopt(buffer, pending)

    @property
    def bytes(self) -> int:
        """Bytes of keys and values."""
        return sum(layer.bytes for layer in self.layers if isinstance(layer, KVCache))
