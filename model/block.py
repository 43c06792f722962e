"""One decoder layer: a mixer and a SwiGLU MLP, each behind a norm and added to the residual."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from ..kernels.rms_norm import rms_norm
from ..kernels.rows import each_row
from ..weights import Reader


class MLP:
    """down(silu(gate x) * up x)."""

    def __init__(self, reader: Reader, prefix: str):
        self.gate, self.up = reader.linear(prefix + "gate_proj"), reader.linear(prefix + "up_proj")
        self.down = reader.linear(prefix + "down_proj")

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., H] -> [..., H]."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block:
    """x += mixer(norm x);  x += mlp(norm x).  `mixer` is a GatedAttention or a GatedDeltaNet."""

    def __init__(self, reader: Reader, prefix: str, mixer, rms_eps: float):
        self.mixer, self.mlp, self.rms_eps = mixer, MLP(reader, prefix + "mlp."), rms_eps
        self.input_norm = reader.vector(prefix + "input_layernorm.weight")
        self.mlp_norm = reader.vector(prefix + "post_attention_layernorm.weight")

    def prefill(self, x: Tensor, mix: Callable[[Tensor], Tensor]) -> Tensor:
        """x [T, H] -> [T, H]; `mix` runs the mixer's own prefill on the normed rows."""
        x = x + mix(rms_norm(x, self.input_norm, self.rms_eps))
        return x + self._mlp_branch(x)

    def verify(self, x: Tensor, rows: int, mix: Callable[[Tensor], Tensor]) -> Tensor:
        """x [SLOTS, H] -> [SLOTS, H], each live row alone; `mix` runs the mixer's own verify."""
        normed = each_row(lambda row: rms_norm(row, self.input_norm, self.rms_eps), rows, x)
        x = x + mix(normed)
        return x + each_row(self._mlp_branch, rows, x)

    def _mlp_branch(self, x):
        return self.mlp(rms_norm(x, self.mlp_norm, self.rms_eps))
