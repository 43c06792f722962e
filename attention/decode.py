"""A decode pass's attention by kernels: what its layers share on the device."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..kernels.attention_append import append
from ..kernels.attention_control import new_control, write_control
from ..kernels.decode_attention import Workspace, allocate, decode_attention
from ..weights.backend import dependent_launch
from .cache import KVCache


class DecodeScratch:
    """One control tensor and one workspace for all layers of a sequence, made by the first pass."""

    def __init__(self):
        self._control: Tensor | None = None
        self._written: tuple[int, tuple[int, ...]] | None = None
        self._workspace: Workspace | None = None

    def control(self, length: int, parents: Sequence[int], device: torch.device) -> Tensor:
        """The control tensor of a pass; written by its first layer."""
        if self._control is None:
            self._control = new_control(device)
        if self._written != (length, tuple(parents)):
            write_control(self._control, length=length, parents=parents)
            self._written = length, tuple(parents)
        return self._control

    def workspace(self, heads: int, cache: KVCache) -> Workspace:
        """Room for the parts of a layer whose cache is like `cache`."""
        if self._workspace is None:
            kv_heads, slots, dim = cache.keys.numbers.shape
            self._workspace = allocate(heads, kv_heads, dim, slots=slots, device=cache.keys.numbers.device)
        return self._workspace


def stage(
    projected: tuple[Tensor, Tensor, Tensor],
    norms: tuple[Tensor, Tensor],
    rotary: tuple[Tensor, Tensor],
    *,
    eps: float,
    control: Tensor,
    cache: KVCache,
) -> Tensor:
    """Stages the rows' keys and values; returns their queries [SLOTS, heads, D] as attention takes them.

    projected, norms, rotary, eps, control  as for kernels/attention_append.py; `cache` has a scratch
    """
    query_gate = projected[0]
    heads, dim = query_gate.shape[1], query_gate.shape[2] // 2
    q = query_gate.new_empty(len(query_gate), heads, dim, dtype=cache.query_dtype(query_gate.dtype))
    return append(
        projected, norms, rotary, eps=eps, keys=cache.keys, values=cache.values, control=control, q=q,
        dependent=dependent_launch(query_gate.device),
    )  # fmt: skip


def attend(
    projected: tuple[Tensor, Tensor, Tensor],
    norms: tuple[Tensor, Tensor],
    rotary: tuple[Tensor, Tensor],
    *,
    eps: float,
    control: Tensor,
    cache: KVCache,
) -> Tensor:
    """Stages the rows' keys and values and attends: [SLOTS, heads * D], gated; dead rows zero. Arguments as `stage`."""
    query_gate = projected[0]
    q = stage(projected, norms, rotary, eps=eps, control=control, cache=cache)
    heads, dim = q.shape[1:]
    out = query_gate.new_empty(len(query_gate), heads * dim)
    return decode_attention(
        q, cache.keys, cache.values, control=control, workspace=cache.scratch.workspace(heads, cache), gate=query_gate,
        out=out, dependent=dependent_launch(query_gate.device),
    )  # fmt: skip
