"""What a checkpoint is: sizes from its tensors' shapes, the rest from its config or the family's constants.

Shapes decide sizes and layer kinds; only numbers of rows are used, so packed weights give the same answer. A
config (header key `config`, or `config.json` beside the weights) overrides the constants of family.py and must agree
with the shapes.
"""

from dataclasses import dataclass

from ..attention import AttentionConfig, RotaryConfig
from ..deltanet import DeltaNetConfig
from ..weights import Checkpoint, FastQwenError
from ..weights.formats import PLAIN, REMEDY, read_markers
from ..weights.layout import layout_of
from . import family
from .family import FULL, LINEAR
from .hf_config import HFConfig
from .names import SIGNATURE, canonical_names, require_family
from .vision_config import VisionConfig, read_vision


@dataclass(frozen=True)
class ModelConfig:
    """The text model. Sizes count values; `layer_kinds` holds LINEAR or FULL per layer.

    vision, vision_fault  the tower's sizes, or why the file's tower cannot be used; both None where it has none
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layer_kinds: tuple[str, ...]
    attention: AttentionConfig
    deltanet: DeltaNetConfig
    rotary: RotaryConfig
    rms_eps: float
    max_positions: int
    tied_head: bool
    has_mtp: bool
    declares_mtp: bool
    vision: VisionConfig | None
    vision_fault: str | None = None

    def expected_shapes(self) -> dict[str, tuple[int, ...]]:
        """Canonical name -> shape of every tensor that the text model and its MTP head read."""
        shapes = {"embed_tokens.weight": (self.vocab_size, self.hidden_size), "norm.weight": (self.hidden_size,)}
        if not self.tied_head:
            shapes["lm_head.weight"] = (self.vocab_size, self.hidden_size)
        for index, kind in enumerate(self.layer_kinds):
            shapes |= self._layer_shapes(f"layers.{index}.", kind)
        if self.has_mtp:
            shapes["mtp.fc.weight"] = (self.hidden_size, 2 * self.hidden_size)
            for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
                shapes[f"mtp.{name}.weight"] = (self.hidden_size,)
            shapes |= self._layer_shapes("mtp.layers.0.", FULL)
        return shapes

    def _layer_shapes(self, prefix, kind):
        hidden, inner = self.hidden_size, self.intermediate_size
        mixer = self.attention if kind == FULL else self.deltanet
        module = "self_attn." if kind == FULL else "linear_attn."
        shapes = {prefix + module + name: shape for name, shape in mixer.shapes(hidden).items()}
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{prefix}{name}.weight"] = (hidden,)
        for name, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner))):
            shapes[f"{prefix}mlp.{name}_proj.weight"] = shape
        return shapes


def read_config(checkpoint: Checkpoint) -> tuple[ModelConfig, dict[str, str]]:
    """The checkpoint's config and the map from canonical names to names in the file.

    Raises FastQwenError for another architecture, a size that config and shapes disagree on, and any config
    entry that this code does not implement.
    """
    names = canonical_names(checkpoint.entries)
    require_family(names, checkpoint.path)
    said = HFConfig.of(checkpoint)
    config = _Shapes(checkpoint, names).config(said)
    _require_agreement(said, config)
    return config, names


def check_shapes(checkpoint: Checkpoint, config: ModelConfig, names: dict[str, str]):
    """Refuses by name a tensor that is missing or does not fit what the config implies, from headers alone.

    Only the linear layers and the embedding may be packed; every tensor's dtype is checked too.
    """
    markers = read_markers(checkpoint)
    for name, shape in config.expected_shapes().items():
        if name not in names:
            raise FastQwenError(
                f"Tensor '{name}' is missing from '{checkpoint.path}', expected with shape {list(shape)}: {REMEDY}."
            )
        layer = names[name].removesuffix(".weight")
        if layer in markers and len(shape) != 2:
            raise FastQwenError(
                f"Tensor '{names[name]}' is marked as {markers[layer].format} and must be plain: {REMEDY}."
            )
        if layer in markers or len(shape) == 2:
            layout_of(checkpoint, layer, markers.get(layer), shape)
            continue
        entry = checkpoint.entries[names[name]]
        if entry.shape != shape:
            raise FastQwenError(
                f"Tensor '{names[name]}' has shape {list(entry.shape)}, expected {list(shape)}: {REMEDY}."
            )
        if entry.dtype not in PLAIN:
            raise FastQwenError(
                f"Tensor '{names[name]}' is stored as {entry.dtype}, expected one of {', '.join(PLAIN)}: {REMEDY}."
            )


def _require_agreement(said: HFConfig, config: ModelConfig):
    attention, deltanet = config.attention, config.deltanet
    for key, found, tensor in (
        ("vocab_size", config.vocab_size, "embed_tokens.weight"),
        ("hidden_size", config.hidden_size, SIGNATURE),
        ("intermediate_size", config.intermediate_size, "mlp.gate_proj.weight"),
        ("num_hidden_layers", len(config.layer_kinds), "layers.*"),
        ("layer_types", list(config.layer_kinds), "layers.*"),
        ("head_dim", attention.head_dim, "self_attn.q_norm.weight"),
        ("num_attention_heads", attention.heads, "self_attn.q_proj.weight"),
        ("num_key_value_heads", attention.kv_heads, "self_attn.k_proj.weight"),
        ("linear_num_key_heads", deltanet.key_heads, "linear_attn.conv1d.weight"),
        ("linear_num_value_heads", deltanet.value_heads, "linear_attn.A_log"),
        ("linear_value_head_dim", deltanet.value_dim, "linear_attn.norm.weight"),
        ("linear_conv_kernel_dim", deltanet.conv_taps, "linear_attn.conv1d.weight"),
    ):
        said.require(key, found, tensor)


class _Shapes:
    """Derives sizes from the number of rows of telling tensors."""

    def __init__(self, checkpoint: Checkpoint, names: dict[str, str]):
        self.checkpoint, self.names = checkpoint, names

    def rows(self, name: str) -> int:
        if name not in self.names:
            raise FastQwenError(f"Tensor '{name}' is missing from '{self.checkpoint.path}': it tells the model's size.")
        shape = self.checkpoint.entries[self.names[name]].shape
        if not shape or shape[0] < 1:
            raise FastQwenError(f"Tensor '{self.names[name]}' has shape {list(shape)}: at least one row is expected.")
        return shape[0]

    def config(self, said: HFConfig) -> ModelConfig:
        kinds = self._layer_kinds()
        eps = said.number("rms_norm_eps", family.RMS_EPS)
        attention = self._attention(f"layers.{kinds.index(FULL)}.self_attn.", eps)
        vision, vision_fault = read_vision(self.checkpoint, self.names, said, self.rows(SIGNATURE))
        return ModelConfig(
            vocab_size=self.rows("embed_tokens.weight"),
            hidden_size=self.rows(SIGNATURE),
            intermediate_size=self.rows("layers.0.mlp.gate_proj.weight"),
            layer_kinds=kinds,
            attention=attention,
            deltanet=self._deltanet(f"layers.{kinds.index(LINEAR)}.linear_attn.", said, eps),
            rotary=said.rotary(attention.head_dim),
            rms_eps=eps,
            max_positions=said.integer("max_position_embeddings", family.MAX_POSITIONS),
            tied_head="lm_head.weight" not in self.names,
            has_mtp="mtp.fc.weight" in self.names,
            declares_mtp=said.integer("mtp_num_hidden_layers", 0) > 0,
            vision=vision,
            vision_fault=vision_fault,
        )

    def _layer_kinds(self):
        kinds = {}
        for name in self.names:
            parts = name.split(".")
            if parts[0] == "layers" and len(parts) > 3 and parts[1].isdecimal():
                if parts[2:4] == ["linear_attn", "A_log"]:
                    kinds[int(parts[1])] = LINEAR
                elif parts[2:4] == ["self_attn", "q_norm"]:
                    kinds[int(parts[1])] = FULL
        count = max(kinds) + 1
        missing = next((index for index in range(count) if index not in kinds), None)
        if missing is not None:
            raise FastQwenError(
                f"Layer {missing} of {count} in '{self.checkpoint.path}' has neither 'linear_attn.A_log' nor "
                "'self_attn.q_norm.weight': the checkpoint is incomplete."
            )
        if FULL not in kinds.values():
            raise FastQwenError(f"'{self.checkpoint.path}' has no full-attention layer: the checkpoint is incomplete.")
        return tuple(kinds[index] for index in range(count))

    def _attention(self, prefix, eps):
        head_dim = self.rows(prefix + "q_norm.weight")
        heads = self._whole(prefix + "q_proj.weight", 2 * head_dim)
        return AttentionConfig(heads, self._whole(prefix + "k_proj.weight", head_dim), head_dim, eps)

    def _deltanet(self, prefix, said, eps):
        value_heads, value_dim = self.rows(prefix + "A_log"), self.rows(prefix + "norm.weight")
        key_dim = said.integer("linear_key_head_dim", family.LINEAR_KEY_HEAD_DIM)
        key_rows = self.rows(prefix + "conv1d.weight") - value_heads * value_dim
        if key_rows <= 0 or key_rows % (2 * key_dim):
            raise FastQwenError(
                f"Tensor '{self.names[prefix + 'conv1d.weight']}' leaves {key_rows} channels for queries and keys, "
                f"which is no multiple of two heads of {key_dim}."
            )
        key_heads = key_rows // (2 * key_dim)
        taps = self.checkpoint.entries[self.names[prefix + "conv1d.weight"]].shape[-1]
        if value_heads % key_heads:
            raise FastQwenError(f"'{prefix}' has {value_heads} value heads, no multiple of its {key_heads} key heads.")
        return DeltaNetConfig(key_heads, value_heads, key_dim, value_dim, taps, eps)

    def _whole(self, name, size):
        rows = self.rows(name)
        if rows % size:
            raise FastQwenError(f"Tensor '{self.names[name]}' has {rows} rows, expected a multiple of {size}.")
        return rows // size
