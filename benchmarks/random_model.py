"""A model of real sizes with random weights, made on the GPU: what takes time is there, what would be said is not."""

from collections.abc import Callable, Sequence

import torch

from ..attention import AttentionConfig, RotaryConfig
from ..deltanet import DeltaNetConfig
from ..kernels.packed import Layout
from ..model import family
from ..model.block import Block
from ..model.config import ModelConfig
from ..model.trunk import Trunk
from ..mtp.head import MtpHead
from ..mtp.short_head import ShortHead
from ..weights import Norm, Projection
from ..weights.linear import Linear
from ..weights.packed_linear import RecordLinear
from .linear_sweep import random_weight

HEADS = {"w4a8": 4, "w6a8": 6, "int8": 8, "bf16": 16}
# (hidden, intermediate, layers, query heads, key-value heads, key heads, value heads) of the released sizes
_SIZES = {"9b": (4096, 12288, 32, 16, 4, 16, 32), "27b": (5120, 17408, 64, 24, 4, 16, 48)}
_VOCABULARY, _HEAD_DIM = 248320, 256
_CONTROL = 33  # control tokens, at the vocabulary's end


def model_config(shape: str) -> ModelConfig:
    """The config of a released size, "9b" or "27b"."""
    hidden, inner, layers, heads, kv_heads, key_heads, value_heads = _SIZES[shape]
    dim = family.LINEAR_KEY_HEAD_DIM
    return ModelConfig(
        vocab_size=_VOCABULARY,
        hidden_size=hidden,
        intermediate_size=inner,
        layer_kinds=(family.LINEAR, family.LINEAR, family.LINEAR, family.FULL) * (layers // 4),
        attention=AttentionConfig(heads, kv_heads, _HEAD_DIM, family.RMS_EPS),
        deltanet=DeltaNetConfig(key_heads, value_heads, dim, dim, 4, family.RMS_EPS),
        rotary=RotaryConfig(family.ROPE_THETA, int(_HEAD_DIM * family.PARTIAL_ROTARY_FACTOR), family.MROPE_SECTIONS),
        rms_eps=family.RMS_EPS,
        max_positions=family.MAX_POSITIONS,
        tied_head=False,
        has_mtp=True,
        declares_mtp=True,
        vision=None,
    )


class RandomReader:
    """What a weights.Reader gives, random: linear layers of `bits` bits, the output head as HEADS names it, DeltaNet's
    b and a and the embedding table plain. `bytes` counts the weights that a pass reads; the table is not among them."""

    def __init__(self, config: ModelConfig, device: torch.device, *, bits: int, head: str):
        self.device, self.dtype = device, torch.bfloat16
        self._bits, self._head, self._shapes = bits, head, config.expected_shapes()
        self.bytes = 0

    def vector(self, name: str) -> torch.Tensor:
        shape = self._shapes[name]
        if name.endswith("A_log"):
            return torch.rand(shape, device=self.device).mul_(15).add_(1).log_()
        return torch.randn(shape, device=self.device) * (0.5 if "conv1d" in name else 0.02)

    def norm(self, name: str, eps: float) -> Norm:
        return Norm(self.vector(name + ".weight"), eps)

    def linear(self, name: str) -> Linear | RecordLinear:
        bits = 16 if name == "embed_tokens" else HEADS[self._head]
        matrix = self._matrix(self._shapes[name + ".weight"], bits)
        if name == "embed_tokens":
            self.bytes -= matrix.weight.nbytes
        return matrix

    def projection(self, prefix: str, names: Sequence[str], *, norm: Norm | None = None, swiglu=False) -> Projection:
        plain = [name for name in names if name in ("in_proj_b", "in_proj_a")]
        packed = [name for name in names if name not in plain]
        matrices = []
        for group, bits in ((packed, self._bits), (plain, 16)):
            if group:
                rows = tuple(self._shapes[f"{prefix}{name}.weight"][0] for name in group)
                columns = self._shapes[f"{prefix}{group[0]}.weight"][1]
                matrices.append((self._matrix((sum(rows), columns), bits), rows))
        return Projection(matrices, norm=norm, swiglu=swiglu)

    def _matrix(self, shape, bits):
        if bits == 16:
            weight = torch.randn(shape, dtype=torch.bfloat16, device=self.device).mul_(shape[1] ** -0.5)
            self.bytes += weight.nbytes
            return Linear(weight)
        weight = random_weight(Layout(bits, *shape), self.device)
        # Levels of the grid have a spread of about 50.
        weight.channel_scale.uniform_(0.9, 1.1).mul_(0.02 * shape[1] ** -0.5)
        self.bytes += weight.storage.nbytes + weight.channel_scale.nbytes
        return RecordLinear(weight, rotated=True)


def random_model(
    shape: str,
    device: torch.device,
    *,
    bits: int,
    head: str,
    kv: str,
    draft_rows: int = 0,
    draft_format: str | None = None,
    place: Callable[[Block], Block] = lambda block: block,
) -> tuple[Trunk, MtpHead, dict]:
    """(trunk, MTP head, bytes): bytes of weights that a verify pass reads, "trunk", and that a draft level adds: the
    head's own layer, "draft", and the output head again, "output", or what drafts read of it.

    draft_rows, draft_format  mtp/short_head.py's, 0 and None for the whole head as it is
    place  as for the Trunk
    """
    config = model_config(shape)
    torch.manual_seed(0)
    reader = RandomReader(config, device, bits=bits, head=head)
    trunk = Trunk(reader, config, kv, place=place)
    of_trunk = reader.bytes
    mtp = MtpHead(reader, config)
    output = trunk.head.matrices[0][0]
    if draft_rows or draft_format:
        rows, always = draft_rows or _VOCABULARY, range(_VOCABULARY - _CONTROL, _VOCABULARY)
        mtp.short = ShortHead(
            output, rows, vocab=_VOCABULARY, always=always, format=draft_format, dtype=trunk.dtype
        )  # fmt: skip
    read = sum(map(_bytes, mtp.short.matrices)) if mtp.short else _bytes(output)
    return trunk, mtp, {"trunk": of_trunk, "draft": reader.bytes - of_trunk, "output": read}


def _bytes(matrix: Linear | RecordLinear) -> int:
    return matrix.weight.nbytes if isinstance(matrix, Linear) else matrix.weight.storage.nbytes
