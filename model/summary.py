"""What is in a checkpoint, read from headers alone."""

from dataclasses import asdict, dataclass

from ..weights import Checkpoint, TensorEntry
from ..weights.formats import PLAIN, marked_formats
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
    """Tensors that belong together: how many, their stored values and bytes, and tensors per format."""

    name: str
    tensors: int
    values: int
    bytes: int
    formats: dict[str, int]


@dataclass(frozen=True)
class Summary:
    """The config and the tensor groups of a checkpoint. Values are as stored: two 4-bit codes count as one."""

    config: ModelConfig
    groups: tuple[Group, ...]

    @property
    def values(self) -> int:
        return sum(group.values for group in self.groups)

    @property
    def bytes(self) -> int:
        return sum(group.bytes for group in self.groups)

    def to_dict(self) -> dict:
        """Everything, as JSON-able values."""
        return {
            "architecture": "qwen3_5",
            "config": asdict(self.config),
            "values": self.values,
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
            f"attention: {attention.heads} query and {attention.kv_heads} key-value heads of {attention.head_dim}",
            f"DeltaNet: {deltanet.key_heads} key heads of {deltanet.key_dim}, {deltanet.value_heads} value heads of "
            f"{deltanet.value_dim}",
            f"head: {'tied' if config.tied_head else 'own'}; MTP head: {'present' if config.has_mtp else 'absent'}; "
            f"vision tower: {'present' if config.vision else 'absent'}",
        ]
        for group in self.groups:
            formats = ", ".join(f"{count} {name}" for name, count in group.formats.items())
            lines.append(f"{group.name:<10} {group.values:>15,} values {group.bytes / 1e6:>12,.1f} MB   {formats}")
        return [*lines, f"{'all':<10} {self.values:>15,} values {self.bytes / 1e6:>12,.1f} MB"]


def summarise(checkpoint: Checkpoint) -> Summary:
    """Raises FastQwenError for a file of another architecture."""
    config, names = read_config(checkpoint)
    marked = marked_formats(checkpoint)
    members: dict[str, list[tuple[str, TensorEntry]]] = {}
    for name, stored_name in names.items():
        entry = checkpoint.entries[stored_name]
        layer = stored_name.rsplit(".", 1)[0]
        kind = marked.get(layer, PLAIN.get(entry.dtype, entry.dtype))
        members.setdefault(_group_of(name), []).append((kind, entry))
    order = [name for _, name in GROUPS] + ["other"]
    return Summary(config, tuple(_group(name, members[name]) for name in order if name in members))


def _group_of(name: str) -> str:
    return next((group for piece, group in GROUPS if piece in name), "other")


def _group(name, members) -> Group:
    formats: dict[str, int] = {}
    for kind, _ in members:
        formats[kind] = formats.get(kind, 0) + 1
    entries = [entry for _, entry in members]
    return Group(name, len(entries), sum(e.values for e in entries), sum(e.bytes for e in entries), formats)
