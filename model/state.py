"""Everything the trunk remembers of one sequence."""

from collections.abc import Sequence

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

    def rows(self, start: int) -> list[tuple[Tensor, ...]]:
        """What prompt tokens left, for `restore`: of an attention layer the keys and values from token `start` on, of
        any other its window and recurrent state. Views; nothing may be pending."""
        return [
            layer.rows(start, self.length) if isinstance(layer, KVCache) else (layer.window, layer.recurrent)
            for layer in self.layers
        ]

    def restore(self, parts: Sequence[Sequence[tuple[Tensor, ...]]], *, length: int, next_position: int):
        """Brings an empty state to where copies of `rows` were taken, one part behind the other; same bytes."""
        for index, layer in enumerate(self.layers):
            if isinstance(layer, KVCache):
                for part in parts:
                    layer.restore(part[index])
            else:
                device = layer.recurrent.device
                layer.replace(*(tensor.to(device, copy=True) for tensor in parts[-1][index]))
        self.length, self.next_position = length, next_position

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
