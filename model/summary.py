"""What is in a checkpoint, read from headers alone."""

from dataclasses import dataclass

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
