"""The vision tower's sizes from its tensors' shapes, and why a tower cannot be used."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..weights import Checkpoint, FastQwenError
from ..weights.formats import PLAIN, read_markers
from ..weights.layout import layout_of
from . import family
from .hf_config import HFConfig

PREFIX = "visual."
# Entries of vision_config that change the mathematics: key -> the values that this code implements.
IMPLEMENTED = {"hidden_act": ("gelu_pytorch_tanh",), "deepstack_visual_indexes": ([], None), "in_channels": (3,)}


@dataclass(frozen=True)
class VisionConfig:
    """The vision tower's sizes.

    patch_size, temporal_size  pixels along a side of a patch, and frames in one
    merge_size  patches along a side of one token
    positions   rows of the learned position table, a square
    out_size    the text model's hidden size
    rope_theta  base of the rotary frequencies
    """

    hidden_size: int
    intermediate_size: int
    depth: int
    heads: int
    patch_size: int
    temporal_size: int
    merge_size: int
    positions: int
    out_size: int
    rope_theta: float

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Canonical name -> shape of every tensor of the tower."""
        hidden, inner, merged = self.hidden_size, self.intermediate_size, self.hidden_size * self.merge_size**2
        patch = (3, self.temporal_size, self.patch_size, self.patch_size)
        layers = {"patch_embed.proj": (hidden, *patch), "merger.norm": (hidden,)}
        layers |= {"merger.linear_fc1": (merged, merged), "merger.linear_fc2": (self.out_size, merged)}
        for index in range(self.depth):
            block = f"blocks.{index}."
            layers |= {block + "norm1": (hidden,), block + "norm2": (hidden,)}
            layers |= {block + "attn.qkv": (3 * hidden, hidden), block + "attn.proj": (hidden, hidden)}
            layers |= {block + "mlp.linear_fc1": (inner, hidden), block + "mlp.linear_fc2": (hidden, inner)}
        shapes = {PREFIX + "pos_embed.weight": (self.positions, hidden)}
        for name, shape in layers.items():
            shapes[f"{PREFIX}{name}.weight"], shapes[f"{PREFIX}{name}.bias"] = shape, shape[:1]
        return shapes


def read_vision(
    checkpoint: Checkpoint, names: Mapping[str, str], said: HFConfig, hidden_size: int
) -> tuple[VisionConfig | None, str | None]:
    """(the tower's config, None), or (None, why the file has none that can be used): text needs no tower, so a
    damaged one is no reason to refuse the file.

    hidden_size  the text model's
    """
    if not any(name.startswith(PREFIX) for name in names):
        return None, None
    try:
        config = _sizes(checkpoint, names, said)
        if config.out_size != hidden_size:
            raise FastQwenError(f"it gives {config.out_size} values a token where the text model takes {hidden_size}.")
        _check(checkpoint, names, config)
    except FastQwenError as error:
        return None, str(error)
    return config, None


def _sizes(checkpoint, names, said):
    def shape(name, dimensions=2):
        found = checkpoint.entries[names[PREFIX + name]].shape if PREFIX + name in names else None
        if found is None or len(found) != dimensions or 0 in found:
            what = "is missing" if found is None else f"has shape {list(found)}"
            raise FastQwenError(f"tensor '{PREFIX}{name}' {what}.")
        return found

    for key, values in IMPLEMENTED.items():
        if key in said.vision and said.vision[key] not in values:
            raise FastQwenError(f"{said.where} sets {key} to {said.vision[key]!r}, which is not implemented.")
    hidden, channels, temporal, patch, width = shape("patch_embed.proj.weight", 5)
    blocks = {name.split(".")[2] for name in names if name.startswith(PREFIX + "blocks.")}
    merge = math.isqrt(shape("merger.linear_fc1.weight")[0] // hidden)
    positions = shape("pos_embed.weight")[0]
    heads = said.vision.get("num_heads", family.VISION_HEADS.get(hidden, family.VISION_HEADS_OTHERS))
    if not isinstance(heads, int) or heads < 1 or hidden % (4 * heads):
        raise FastQwenError(f"{hidden} values do not make {heads!r} heads of a multiple of four.")
    if (channels, temporal, width) != (3, family.VISION_FRAMES, patch) or merge < 1:
        raise FastQwenError(f"tensor '{PREFIX}patch_embed.proj.weight' makes no square patches of two colour frames.")
    if math.isqrt(positions) ** 2 != positions:
        raise FastQwenError(f"'{PREFIX}pos_embed.weight' has {positions} rows, no square number.")
    rope = said.vision.get("rope_parameters") or {}
    return VisionConfig(
        hidden_size=hidden,
        intermediate_size=shape("blocks.0.mlp.linear_fc1.weight")[0],
        depth=len(blocks),
        heads=heads,
        patch_size=patch,
        temporal_size=temporal,
        merge_size=merge,
        positions=positions,
        out_size=shape("merger.linear_fc2.weight")[0],
        rope_theta=float(rope.get("rope_theta", family.VISION_ROPE_THETA)),
    )


def _check(checkpoint, names, config):
    """Refuses by name a tensor that is missing or does not fit, from headers alone."""
    markers = read_markers(checkpoint)
    for name, shape in config.shapes().items():
        if name not in names:
            raise FastQwenError(f"tensor '{name}' is missing.")
        layer = names[name].removesuffix(".weight")
        if layer in markers and len(shape) == 2:
            layout_of(checkpoint, layer, markers[layer], shape)
            continue
        entry = checkpoint.entries[names[name]]
        if entry.shape != shape or entry.dtype not in PLAIN or layer in markers:
            raise FastQwenError(
                f"tensor '{names[name]}' is {entry.dtype} of shape {list(entry.shape)}, expected "
                f"{' or '.join(PLAIN)} of shape {list(shape)}."
            )
