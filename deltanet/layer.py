"""The gated DeltaNet mixer: three layers in four.

q | k | v = silu(conv(W_qkv h));  z = W_z h;  beta = sigmoid(W_b h);  g = -exp(A_log) softplus(W_a h + dt_bias)
q, k <- x / sqrt(sum x^2 + 1e-6) over the head, q also * dk^-1/2;  value head h uses key head h // (Hv / Hk)
o = gated delta rule (kernels/delta_rule.py);  out = W_out gated_rms_norm(o, z)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kernels import delta_decode, delta_rule
from ..kernels.causal_conv import causal_conv
from ..kernels.rms_norm import gated_rms_norm
from ..kernels.rows import SLOTS, ancestors, each_row
from ..weights import Norm, Reader
from .backend import delta_kernels
from .state import DeltaNetState, KernelState, PlainState, Staged

L2_EPS = 1e-6  # inside the square root of the q and k norms; source: Qwen3.5 in transformers 5.24


@dataclass(frozen=True)
class DeltaNetConfig:
    """Heads and head sizes of keys and values (value_heads is a multiple of key_heads), taps of the conv, norm eps."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_taps: int
    rms_eps: float

    @property
    def keys(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        return 2 * self.keys + self.values

    def shapes(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """Tensor name within the layer -> shape."""
        return {
            "in_proj_qkv.weight": (self.channels, hidden),
            "in_proj_z.weight": (self.values, hidden),
            "in_proj_b.weight": (self.value_heads, hidden),
            "in_proj_a.weight": (self.value_heads, hidden),
            "out_proj.weight": (hidden, self.values),
            "conv1d.weight": (self.channels, 1, self.conv_taps),
            "A_log": (self.value_heads,),
            "dt_bias": (self.value_heads,),
            "norm.weight": (self.value_dim,),
        }


class GatedDeltaNet:
    """One DeltaNet layer's weights, the norm before it included; the state is passed in."""

    def __init__(self, reader: Reader, prefix: str, config: DeltaNetConfig, norm: Norm):
        self.config = config
        self.inputs = reader.projection(prefix, ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"), norm=norm)
        self.out = reader.projection(prefix, ("out_proj",))
        self.taps = reader.vector(prefix + "conv1d.weight")[:, 0].contiguous()
        # float32 whatever the file stores: exp(A_log) sets how long a head remembers.
        self.rate = -torch.exp(reader.vector(prefix + "A_log"))
        self.dt_bias, self.gated_norm = reader.vector(prefix + "dt_bias"), reader.vector(prefix + "norm.weight")

    def new_state(
        self, *, dtype: torch.dtype, device: torch.device, scratch: dict | None = None, kernels: bool = True
    ) -> DeltaNetState:
        """An empty state; its kind decides how passes run: by the kernel where `kernels`, device and heads allow it.

        Layers whose passes run one after another may share a `scratch`, empty at first.
        """
        c = self.config
        heads = delta_decode.Heads(c.key_heads, c.value_heads, c.key_dim, c.value_dim)
        if kernels and c.conv_taps == delta_decode.TAPS and delta_decode.supports(heads) and delta_kernels(device)[0]:
            taps = self.taps.T.contiguous()
            weights = delta_decode.Weights(heads, taps, self.rate, self.dt_bias, self.gated_norm, c.rms_eps)
            return KernelState(weights, dtype=dtype, device=device, scratch=scratch)
        window = torch.zeros(c.conv_taps - 1, c.channels, dtype=dtype, device=device)
        return PlainState(window, torch.zeros(c.value_heads, c.key_dim, c.value_dim, device=device))

    def prefill(self, x: Tensor, *, state: DeltaNetState) -> Tensor:
        """T prompt rows: x [T, H] -> x plus this layer's output, [T, H]; the state moves past them."""
        if isinstance(state, KernelState):
            return self.out(state.prefill(self.inputs(x)), x)[0]
        state.flush()
        columns, z, g, beta = self._gates(*self.inputs(x))
        q, k, v = self._split(causal_conv(columns, state.window, self.taps))
        o, recurrent = delta_rule.chunked(state.recurrent, q, k, v, g, beta)
        window = torch.cat([state.window, columns])[-(self.config.conv_taps - 1) :].clone()
        state.replace(window, recurrent)
        return self.out(self._gated(o, z), x)[0]

    def verify(self, x: Tensor, *, parents: Sequence[int], state: DeltaNetState) -> Tensor:
        """Up to eight tree rows: x [SLOTS, H] -> x plus this layer's output, [SLOTS, H].

        The state is written only by replaying what is pending.
        """
        rows = len(parents)
        if isinstance(state, KernelState):
            mixed = state.run(self.inputs.verify(x, rows), parents)
            return self.out.verify(mixed, rows, x)[0]
        state.flush()
        columns, z, g, beta = each_row(self._gates, rows, *self.inputs.verify(x, rows))
        paths = [ancestors(parents, row) for row in range(rows)]
        windows = self._windows(columns, state.window, paths)
        q, k, v = each_row(self._convolve, rows, columns, windows)
        state.stage(Staged(columns, k, v, g, beta), parents)

        o = v.new_zeros(SLOTS, self.config.value_heads, self.config.value_dim)
        reached = {-1: state.recurrent}  # slot -> state after it; a leaf's is dropped with this pass
        for row in range(rows):
            after = delta_rule.step(reached[parents[row]], k[row], v[row], g[row], beta[row])
            o[row] = delta_rule.read(after, q[row])
            if row in parents:
                reached[row] = after
        return self.out.verify(each_row(self._gated, rows, o, z), rows, x)[0]

    def decode(self, x: Tensor, *, control: Tensor, state: KernelState) -> Tensor:
        """`verify` by kernels alone: rows, tree and pending path are read from `control` (kernels/delta_decode.py) on
        the device."""
        mixed = state.launch(self.inputs.verify(x, SLOTS), control)
        return self.out.verify(mixed, SLOTS, x)[0]

    def _windows(self, columns, window, paths):
        """The conv window of each row: the last J-1 columns along its own ancestors, [SLOTS, J-1, C]."""
        windows = window.new_zeros(SLOTS, *window.shape)
        for row, path in enumerate(paths):
            windows[row] = torch.cat([window, columns[list(path[:-1])]])[-window.shape[0] :]
        return windows

    def _gates(self, qkv, z, b, a):
        """What the projections give -> conv input [..., C] and z [..., Hv * dv] as they are, g and beta [..., Hv]."""
        g = self.rate * F.softplus(a.float() + self.dt_bias)
        return qkv, z, g, torch.sigmoid(b).float()

    def _convolve(self, column, window):
        return tuple(part[0] for part in self._split(causal_conv(column[None], window, self.taps)))

    def _split(self, mixed):
        """mixed [T, C] float32 -> q, k [T, Hv, dk], v [T, Hv, dv]; keys repeated for their value heads."""
        c = self.config
        q, k, v = mixed.split([c.keys, c.keys, c.values], -1)
        repeat = c.value_heads // c.key_heads
        q = _l2_norm(q.view(-1, c.key_heads, c.key_dim)) * c.key_dim**-0.5
        k = _l2_norm(k.view(-1, c.key_heads, c.key_dim))
        v = v.reshape(-1, c.value_heads, c.value_dim)
        return q.repeat_interleave(repeat, 1), k.repeat_interleave(repeat, 1), v

    def _gated(self, o, z):
        """o [..., Hv, dv] float32, z [..., Hv * dv] -> [..., Hv * dv]."""
        return gated_rms_norm(o, z.view(o.shape), self.gated_norm, self.config.rms_eps).flatten(-2)


def _l2_norm(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + L2_EPS)
