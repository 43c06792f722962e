"""Conv window and recurrent state of one DeltaNet layer, committed one pass late.

A verify pass never writes the state: it stages a few small rows per token (the conv input and the rule's
k, v, g, beta) in one of two buffers. `commit` names the accepted slots; the next pass, or `flush`, replays them
through the same `step` that produced the pass's own outputs and so writes the committed state once.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ..kernels import delta_decode, delta_prefill, delta_rule
from ..kernels.rows import SLOTS, check_path
from ..weights.backend import dependent_launch


class DeltaNetState(ABC):
    """window [J-1, C] in the compute dtype, recurrent [Hv, dk, dv] float32; committed but for the pending path."""

    window: Tensor
    recurrent: Tensor

    def __init__(self):
        self._index = 0  # the buffer that the next pass fills
        self._parents: tuple[int, ...] = ()
        self._pending: tuple[int, ...] = ()  # slots of the other buffer, not yet replayed

    def commit(self, path: Sequence[int]):
        """Accepts the staged slots of `path`; they are replayed by the next pass or `flush`."""
        check_path(self._parents, path)
        self._pending, self._parents = tuple(path), ()

    def reset(self):
        """Forgets the sequence, a pending path included. What is left are zeros; kernels find them where they were."""
        self._pending = self._parents = ()
        self._clear()

    @abstractmethod
    def _clear(self):
        """Zeros in everything that the next prompt or pass reads."""

    @abstractmethod
    def flush(self):
        """Replays the pending path, if any: the window and the recurrent state are then the committed ones."""

    @abstractmethod
    def replace(self, window: Tensor, recurrent: Tensor):
        """Sets the committed state after prompt tokens."""


@dataclass
class Staged:
    """What one pass leaves per slot: columns [SLOTS, C] (conv input), k [SLOTS, Hv, dk], v [SLOTS, Hv, dv], g and
    beta [SLOTS, Hv]."""

    columns: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor


class PlainState(DeltaNetState):
    """The state of a layer that runs in plain torch."""

    def __init__(self, window: Tensor, recurrent: Tensor):
        super().__init__()
        self.window, self.recurrent = window, recurrent
        self._buffers: list[Staged | None] = [None, None]

    def stage(self, staged: Staged, parents: Sequence[int]):
        """Keeps a pass's rows until `commit`. The pending path must have been replayed (`flush`) before."""
        assert not self._pending, "a pass was staged over a pending path"
        self._buffers[self._index], self._parents = staged, tuple(parents)
        self._index = 1 - self._index

    def flush(self):
        if not self._pending:
            return
        staged = self._buffers[1 - self._index]
        recurrent = self.recurrent
        for slot in self._pending:
            recurrent = delta_rule.step(recurrent, staged.k[slot], staged.v[slot], staged.g[slot], staged.beta[slot])
        columns = torch.cat([self.window, staged.columns[list(self._pending)]])
        self.recurrent, self.window = recurrent, columns[-self.window.shape[0] :].clone()
        self._pending = ()

    def _clear(self):  # new tensors: the state only ever replaces its own, and a caller may hold one
        self.window, self.recurrent = torch.zeros_like(self.window), torch.zeros_like(self.recurrent)
        self._buffers = [None, None]

    def replace(self, window: Tensor, recurrent: Tensor):
        assert not self._pending, "prompt tokens were run over a pending path"
        self.window, self.recurrent = window, recurrent


class KernelState(DeltaNetState):
    """The state of a layer that runs by kernels: a pass is one launch, which replays what is pending."""

    def __init__(
        self,
        weights: delta_decode.Weights,
        *,
        dtype: torch.dtype,
        device: torch.device,
        scratch: dict[delta_decode.Heads, Tensor] | None = None,
    ):
        """scratch: shared by layers whose passes run one after another; filled here."""
        super().__init__()
        self._weights = weights
        scratch = {} if scratch is None else scratch
        if weights.heads not in scratch:
            scratch[weights.heads] = delta_decode.allocate_steps(weights.heads, device)
        self._steps = scratch[weights.heads]
        self._state = delta_decode.allocate(weights.heads, dtype=dtype, device=device)

    @property
    def window(self) -> Tensor:
        return self._state.windows[1 - self._index]

    @property
    def recurrent(self) -> Tensor:
        return self._state.recurrent

    def run(self, inputs: Sequence[Tensor], parents: Sequence[int]) -> Tensor:
        """The pass of a layer: qkv, z, b and a of eight slots (delta_decode.delta_decode) -> [SLOTS, Hv * dv]."""
        control = _control(tuple(parents), self._index, self._pending, self._state.recurrent.device)
        out = self.launch(inputs, control)
        self._index, self._pending, self._parents = 1 - self._index, (), tuple(parents)
        return out

    def launch(self, inputs: Sequence[Tensor], control: Tensor) -> Tensor:
        """The same with a control tensor (kernels/delta_decode.py) that is on the device already: what it says of the
        buffer and the pending path holds, and is not kept here (`adopt`)."""
        heads, device = self._weights.heads, self._state.recurrent.device
        out = inputs[0].new_empty(SLOTS, heads.value_heads * heads.value_dim)
        return delta_decode.delta_decode(
            inputs, self._weights, self._state, control=control, steps=self._steps, out=out,
            dependent=dependent_launch(device),
        )  # fmt: skip

    def adopt(self, buffer: int, pending: Sequence[int]):
        """Takes over from launches that the device controlled: the next pass fills `buffer`, `pending` is to replay."""
        self._index, self._pending, self._parents = buffer, tuple(pending), ()

    @property
    def buffer(self) -> int:
        """The buffer that the next pass fills."""
        return self._index

    def prefill(self, inputs: Sequence[Tensor]) -> Tensor:
        """Prompt tokens: qkv, z, b, a of T rows (delta_prefill.prefill) -> [T, Hv * dv]; the state moves past them."""
        self.flush()
        state = {"window": self.window, "recurrent": self.recurrent}
        out, window, recurrent = delta_prefill.prefill(inputs, self._weights, **state)
        self.replace(window, recurrent)
        return out

    def flush(self):
        if self._pending:
            heads = self._weights.heads
            sizes = heads.channels, heads.value_heads * heads.value_dim, heads.value_heads, heads.value_heads
            self.run([self._state.windows.new_empty(SLOTS, size) for size in sizes], ())

    def _clear(self):
        # Staged rows need none: only a pending path reads them. The buffer's index stays what a captured pass expects.
        self._state.recurrent.zero_()
        self._state.windows.zero_()

    def replace(self, window: Tensor, recurrent: Tensor):
        assert not self._pending, "prompt tokens were run over a pending path"
        self.window.copy_(window)
        self.recurrent.copy_(recurrent)


@lru_cache(maxsize=64)
def _control(parents, buffer, pending, device):
    """One upload for all layers of a pass."""
    words = delta_decode.control_words(parents, buffer=buffer, pending=pending)
    return torch.tensor(words, dtype=torch.int32, device=device)
