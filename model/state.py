"""Everything the trunk remembers of one sequence."""

from collections.abc import Sequence

from ..attention import KVCache
from ..deltanet import DeltaNetState


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

    def flush(self):
        """Writes what is still pending, so that every layer holds its committed state."""
        for layer in self.layers:
            if isinstance(layer, DeltaNetState):
                layer.flush()

    @property
    def bytes(self) -> int:
        """Bytes of keys and values."""
        return sum(layer.bytes for layer in self.layers if isinstance(layer, KVCache))
