"""What is in a checkpoint, read from headers alone."""

from dataclasses import asdict, dataclass

from ..weights import Checkpoint, TensorEntry
from ..weights.formats import PLAIN, read_markers
from ..weights.layout import layout_of
from .config import ModelConfig, read_config

# First piece of a canonical name that matches decides the group; the order is the order of display.
GROUPS = (
    ("mtp.", "mtp"),
    ("visual.", "vision"),
    ("embed_tokens.", "embedding"),
    ("lm_head.", "head"),
    (".linear_attn.", "deltanet"),
    (".self_attn.", "attention"),
    (".mlp.", "mlp"),
    ("norm", "norms"),
)


@dataclass(frozen=True)
class Group:
    """Tensors that belong together: how many, their parameters, stored bytes, and tensors per format.

    A packed layer counts as one tensor of its format, scales and all; its parameters are rows times columns.
    """

    name: str
    tensors: int
    parameters: int
    bytes: int
    formats: dict[str, int]


@dataclass(frozen=True)
class Summary:
    """The config and the tensor groups of a checkpoint."""

    config: ModelConfig
    groups: tuple[Group, ...]

    @property
    def parameters(self) -> int:
        return sum(group.parameters for group in self.groups)

    @property
    def bytes(self) -> int:
        return sum(group.bytes for group in self.groups)

    def to_dict(self) -> dict:
        """Everything, as JSON-able values."""
        return {
            "architecture": "qwen3_5",
            "config": asdict(self.config),
            "parameters": self.parameters,
            "bytes": self.bytes,
            "mtp": self.config.has_mtp,
            "vision": self.config.vision is not None,
            "groups": [asdict(group) for group in self.groups],
        }

    def lines(self) -> list[str]:
        """The same for people, without the path."""
        config, attention, deltanet = self.config, self.config.attention, self.config.deltanet
        kinds = config.layer_kinds
        lines = [
            f"{len(kinds)} layers ({kinds.count('linear_attention')} DeltaNet, {kinds.count('full_attention')} "
            f"attention), hidden {config.hidden_size}, inner {config.intermediate_size}, "
            f"vocabulary {config.vocab_size}",
            f"attention: query heads {attention.heads} x {attention.head_dim}, "
            f"key-value heads {attention.kv_heads} x {attention.head_dim}",
            f"DeltaNet: key heads {deltanet.key_heads} x {deltanet.key_dim}, value heads {deltanet.value_heads} x "
            f"{deltanet.value_dim}",
            f"head: {'tied' if config.tied_head else 'own'}; MTP head: {'present' if config.has_mtp else 'absent'}; "
            f"vision tower: {'present' if config.vision else 'incomplete' if config.vision_fault else 'absent'}",
        ]
        for group in self.groups:
            formats = ", ".join(f"{count} {name}" for name, count in group.formats.items())
            lines.append(
                f"{group.name:<10} {group.parameters:>15,} parameters {group.bytes / 1e6:>12,.1f} MB   {formats}"
            )
        return [*lines, f"{'all':<10} {self.parameters:>15,} parameters {self.bytes / 1e6:>12,.1f} MB"]


def summarise(checkpoint: Checkpoint) -> Summary:
    """Raises FastQwenError for a file of another architecture and for a packed layer whose tensors do not fit."""
    config, names = read_config(checkpoint)
    markers, shapes = read_markers(checkpoint), config.expected_shapes()
    members: dict[str, list[tuple[str | None, int, TensorEntry]]] = {}
    for name, stored_name in names.items():
        entry = checkpoint.entries[stored_name]
        layer = stored_name.rsplit(".", 1)[0]
        kind, parameters = PLAIN.get(entry.dtype, entry.dtype), entry.values
        if layer in markers:
            kind, parameters = None, 0  # a scale, a codebook or the marker: part of the weight beside it
            if stored_name == layer + ".weight":
                found = layout_of(checkpoint, layer, markers[layer], shapes.get(name))
                kind, parameters = found.format, found.rows * found.columns
        members.setdefault(_group_of(name), []).append((kind, parameters, entry))
    order = [name for _, name in GROUPS] + ["other"]
    return Summary(config, tuple(_group(name, members[name]) for name in order if name in members))


def _group_of(name: str) -> str:
    return next((group for piece, group in GROUPS if piece in name), "other")


def _group(name, members) -> Group:
    formats: dict[str, int] = {}
    for kind, _, _ in members:
        if kind is not None:
            formats[kind] = formats.get(kind, 0) + 1
    parameters = sum(count for _, count, _ in members)
    return Group(name, sum(formats.values()), parameters, sum(entry.bytes for *_, entry in members), formats)
