"""Conv window and recurrent state of one DeltaNet layer, committed one pass late.

A verify pass never writes the state: it stages a few small rows per token (the conv input and the rule's
k, v, g, beta) in one of two buffers. `commit` names the accepted slots; the next pass, or `flush`, replays them
through the same `step` that produced the pass's own outputs and so writes the committed state once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..kernels import delta_rule
from ..kernels.rows import check_path


@dataclass
class Staged:
    """What one pass leaves per slot: columns [SLOTS, C] (conv input), k [SLOTS, Hv, dk], v [SLOTS, Hv, dv], g and
    beta [SLOTS, Hv]."""

    columns: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor


class DeltaNetState:
    """window [J-1, C] in the compute dtype, recurrent [Hv, dk, dv] float32; committed but for the pending path."""

    def __init__(self, window: Tensor, recurrent: Tensor):
        self.window, self.recurrent = window, recurrent
        self._buffers: list[Staged | None] = [None, None]
        self._index = 0  # the buffer that the next pass fills
        self._parents: tuple[int, ...] = ()
        self._pending: tuple[int, ...] = ()  # slots of the other buffer, not yet replayed

    def stage(self, staged: Staged, parents: Sequence[int]):
        """Keeps a pass's rows until `commit`. The pending path must have been replayed (`flush`) before."""
        assert not self._pending, "a pass was staged over a pending path"
        self._buffers[self._index], self._parents = staged, tuple(parents)

    def commit(self, path: Sequence[int]):
        """Accepts the staged slots of `path`; they are replayed by the next `flush`."""
        check_path(self._parents, path)
        self._pending, self._parents = tuple(path), ()
        self._index = 1 - self._index

    def flush(self):
        """Replays the pending path, if any: the window and the recurrent state are then the committed ones."""
        if not self._pending:
            return
        staged = self._buffers[1 - self._index]
        recurrent = self.recurrent
        for slot in self._pending:
            recurrent = delta_rule.step(recurrent, staged.k[slot], staged.v[slot], staged.g[slot], staged.beta[slot])
        columns = torch.cat([self.window, staged.columns[list(self._pending)]])
        self.recurrent, self.window = recurrent, columns[-self.window.shape[0] :].clone()
        self._pending = ()

    def replace(self, window: Tensor, recurrent: Tensor):
        """Sets the committed state after prompt tokens."""
        assert not self._pending, "prompt tokens were run over a pending path"
        self.window, self.recurrent = window, recurrent
