"""The vision tower: patches of pictures in, token embeddings of the text model out.

x = W p + b + table(row, column), the learned square table read bilinearly, its corners on the grid's corners
x += proj attention(norm1 x), every frame for itself, rotary angles [row freqs | column freqs] over the whole head
x += fc2 gelu(fc1 norm2 x);  at the end the 2 x 2 patches of a token, normalised and joined, through a two-layer MLP

Source: Qwen3.5 in transformers 5.24. Attention is torch's scaled_dot_product_attention.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..attention.rotary import rotate
from ..weights import Reader
from ..weights.decode import to_float
from ..weights.stored import read_layer
from .vision_config import PREFIX, VisionConfig

EPS = 1e-6  # of the layer norms; no config entry
# Patches of a video's frames that go through the tower together. Enough rows for any GPU, and less than half a GiB of
# activations in bf16; one picture may have four times as many.
AT_ONCE = 16384


class Grid(NamedTuple):
    """Patches of a picture or a video: frames (pairs of them in a video), rows, columns."""

    frames: int
    rows: int
    columns: int


class VisionTower:
    """The tower's weights, in the reader's dtype, where the reader puts them; `restore` brings them to `device`, where
    the tower computes.

    offload  leave the weights where they are and bring them to the device for each call
    """

    def __init__(self, reader: Reader, config: VisionConfig, device: torch.device, *, offload: bool = False):
        self.config, self.device, self.dtype, self._offload = config, device, reader.dtype, offload
        self._weights = {name.removeprefix(PREFIX): _read(reader, name, shape)
                         for name, shape in config.shapes().items()}  # fmt: skip
        half = config.hidden_size // config.heads // 2
        exponents = torch.arange(0, half, 2, dtype=torch.float32) / half
        self._inverse = (1.0 / config.rope_theta**exponents).to(device)

    def __call__(self, patches: Tensor, grid: Grid) -> Tensor:
        """patches [frames * rows * columns, 3 * 2 * patch^2] of one picture or video, the patches of a token together
        -> embeddings [frames * rows * columns / merge^2, H] in the compute dtype. Frames do not see each other."""
        with torch.inference_mode():
            weights = _Layers({name: tensor.to(self.device) for name, tensor in self._weights.items()})
            around = self._angles(grid), self._table(weights, grid)
            size = grid.rows * grid.columns
            frames = max(1, AT_ONCE // size)
            return torch.cat([self._frames(part, weights, *around) for part in patches.split(frames * size)])

    def release(self) -> bool:
        """Gives back the device's memory, if it holds any: the next call brings the weights again."""
        if all(tensor.device.type == "cpu" for tensor in self._weights.values()):
            return False
        self._weights = {name: tensor.cpu() for name, tensor in self._weights.items()}
        return True

    def restore(self):
        """Brings the weights to the device to stay there, unless the tower is one that offloads."""
        if not self._offload:
            self._weights = {name: tensor.to(self.device) for name, tensor in self._weights.items()}

    def _frames(self, patches, weights, rotary, table):
        c = self.config
        x = F.linear(patches.to(self.dtype), weights["patch_embed.proj.weight"].flatten(1),
                     weights["patch_embed.proj.bias"])  # fmt: skip
        x = x.view(-1, *table.shape) + table.to(self.dtype)
        for index in range(c.depth):
            block = f"blocks.{index}."
            x = x + self._attention(weights.norm(block + "norm1", x), weights, block + "attn.", rotary)
            inner = weights.linear(block + "mlp.linear_fc1", weights.norm(block + "norm2", x))
            x = x + weights.linear(block + "mlp.linear_fc2", F.gelu(inner, approximate="tanh"))
        joined = weights.norm("merger.norm", x).view(-1, c.hidden_size * c.merge_size**2)
        return weights.linear("merger.linear_fc2", F.gelu(weights.linear("merger.linear_fc1", joined)))

    def _attention(self, x, weights, prefix, rotary):
        heads = self.config.heads
        q, k, v = weights.linear(prefix + "qkv", x).view(*x.shape[:2], 3, heads, -1).unbind(2)
        q, k = rotate(q, *rotary), rotate(k, *rotary)
        o = F.scaled_dot_product_attention(*(part.transpose(1, 2) for part in (q, k, v)))
        return weights.linear(prefix + "proj", o.transpose(1, 2).flatten(2))

    def _angles(self, grid):
        rows = torch.arange(grid.rows, device=self.device).view(-1, 1, 1).expand(-1, grid.columns, 1)
        columns = torch.arange(grid.columns, device=self.device).view(1, -1, 1).expand(grid.rows, -1, 1)
        angles = self._by_token(torch.cat([rows * self._inverse, columns * self._inverse], -1))
        return angles.cos(), angles.sin()

    def _table(self, weights, grid):
        table = weights["pos_embed.weight"].float()
        side = round(len(table) ** 0.5)
        table = table.T.view(1, -1, side, side)
        table = F.interpolate(table, (grid.rows, grid.columns), mode="bilinear", align_corners=True)
        return self._by_token(table[0].permute(1, 2, 0))

    def _by_token(self, x):
        """[rows, columns, D] -> [rows * columns, D] with the patches of a token together."""
        rows, columns, size = x.shape
        merge = self.config.merge_size
        x = x.reshape(rows // merge, merge, columns // merge, merge, size)
        return x.transpose(1, 2).reshape(rows * columns, size)


class _Layers:
    """A tower's tensors by name, applied."""

    def __init__(self, tensors: Mapping[str, Tensor]):
        self._tensors = tensors

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self[name + ".weight"], self[name + ".bias"])

    def norm(self, name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self[name + ".weight"], self[name + ".bias"], EPS)


def _read(reader, name, shape):
    """The tensor in the compute dtype; a packed layer is decoded, for no kernel of ours has a bias."""
    layer = reader.names[name].removesuffix(".weight")
    if layer in reader.markers and name.endswith(".weight"):
        return to_float(read_layer(reader, name.removesuffix(".weight"), shape), reader.dtype).to(reader.device)
    return reader.tensor(name)
