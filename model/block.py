"""One decoder layer: a mixer and a SwiGLU MLP, each behind a norm and added to the residual."""

from collections.abc import Callable

from torch import Tensor

from ..weights import Norm, Reader


class MLP:
    """x + down(silu(gate h) * up h), h = norm x."""

    def __init__(self, reader: Reader, prefix: str, norm: Norm):
        self.gate_up = reader.projection(prefix, ("gate_proj", "up_proj"), norm=norm)
        self.down = reader.projection(prefix, ("down_proj",), swiglu=True)

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, H] -> [T, H]."""
        return self.down(self.gate_up.joined(x), x)[0]

    def verify(self, x: Tensor, rows: int) -> Tensor:
        """x [SLOTS, H] -> [SLOTS, H]."""
        return self.down.verify(self.gate_up.verify_joined(x, rows), rows, x)[0]


class Block:
    """x = mixer(x);  x = mlp(x).  Each adds to the residual. `mixer` is a GatedAttention or a GatedDeltaNet."""

    def __init__(self, mixer, mlp: MLP):
        self.mixer, self.mlp = mixer, mlp

    def prefill(self, x: Tensor, mix: Callable[[Tensor], Tensor]) -> Tensor:
        """x [T, H] -> [T, H]; `mix` runs the mixer's own prefill."""
        return self.mlp(mix(x))

    def verify(self, x: Tensor, rows: int, mix: Callable[[Tensor], Tensor]) -> Tensor:
        """x [SLOTS, H] -> [SLOTS, H]; `mix` runs the mixer's own verify."""
        return self.mlp.verify(mix(x), rows)


def read_block(reader: Reader, prefix: str, mixer: Callable[[Norm], object], rms_eps: float) -> Block:
    """The layer `prefix`; `mixer` makes its mixer from the norm before it."""
    mlp = MLP(reader, prefix + "mlp.", reader.norm(prefix + "post_attention_layernorm", rms_eps))
    return Block(mixer(reader.norm(prefix + "input_layernorm", rms_eps)), mlp)
