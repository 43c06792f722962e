"""Typed reads of a Hugging Face config.json, and refusal of what this code does not implement."""

import json
import sys
from collections.abc import Iterable

from ..attention import RotaryConfig
from ..weights import Checkpoint, FastQwenError, read_json
from . import family

# Entries that change the mathematics: key -> the values that this code implements.
IMPLEMENTED = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "attn_output_gate": (True,),
    "output_gate_type": ("swish", "silu"),
    "mlp_only_layers": ([], None),
    "mtp_use_dedicated_embeddings": (False,),
    "num_experts": (0, None),
}
MODEL_TYPES = ("qwen3_5", "qwen3_5_text")


class HFConfig:
    """The text part of a config. `where` names it in messages; an empty config leaves every default in force."""

    def __init__(self, config: dict, where: str):
        self.where = where
        self.text = self._object(config, "text_config") or config
        self.vision = self._object(config, "vision_config") or {}
        model_type = config.get("model_type", MODEL_TYPES[0])
        if model_type not in MODEL_TYPES:
            raise FastQwenError(f"{where} is for model_type '{model_type}'; FastQwen runs '{MODEL_TYPES[0]}' (dense).")
        for key, values in IMPLEMENTED.items():
            if key in self.text and self.text[key] not in values:
                raise FastQwenError(
                    f"{where} sets {key} to {self.text[key]!r}, which is not implemented (only {values[0]!r} is)."
                )

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "HFConfig":
        """The config in the safetensors header (key `config`), else config.json beside the weights, else none."""
        if "config" in checkpoint.metadata:
            return cls(_in_header(checkpoint, "config"), _where(checkpoint, "config"))
        beside = _config_beside(checkpoint)
        return cls(read_json(beside), f"'{beside}'") if beside else cls({}, "no config")

    def integer(self, key: str, default: int) -> int:
        value = self.text.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise FastQwenError(f"{self.where} sets {key} to {value!r}; a whole number is expected.")
        return value

    def number(self, key: str, default: float) -> float:
        return self._number(self.text, key, default)

    def rotary(self, head_dim: int) -> RotaryConfig:
        """From `rope_parameters`, or the older `rope_theta`, `partial_rotary_factor` and `rope_scaling`."""
        rope = self._object(self.text, "rope_parameters")
        if rope is None:
            older = {key: self.text[key] for key in ("rope_theta", "partial_rotary_factor") if key in self.text}
            rope = (self._object(self.text, "rope_scaling") or {}) | older
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind not in ("default", "mrope"):
            raise FastQwenError(
                f"{self.where} asks for rope_type '{kind}', which is not implemented: set it to 'default' "
                "(contexts up to max_position_embeddings)."
            )
        if rope.get("mrope_interleaved", True) is not True:
            raise FastQwenError(f"{self.where} sets mrope_interleaved to false, which is not implemented.")
        sections = rope.get("mrope_section", list(family.MROPE_SECTIONS))
        if not _is_three_counts(sections):
            raise FastQwenError(f"{self.where} sets mrope_section to {sections!r}; three whole numbers are expected.")
        factor = self._number(rope, "partial_rotary_factor", family.PARTIAL_ROTARY_FACTOR)
        dim = int(head_dim * factor)
        if dim < 2 or dim % 2 or dim > head_dim:
            raise FastQwenError(f"{self.where} rotates {dim} of {head_dim} head dimensions; an even number is needed.")
        return RotaryConfig(self._number(rope, "rope_theta", family.ROPE_THETA), dim, tuple(sections))

    def require(self, key: str, found: int | bool | list, tensor: str):
        """Refuses a config entry that disagrees with what the tensors' shapes say."""
        said = self.text.get(key)
        if said is not None and said != found:
            raise FastQwenError(
                f"{self.where} says {key} is {said!r}, but the shape of '{tensor}' gives {found!r}: "
                "the config belongs to another checkpoint."
            )

    def _object(self, config, key):
        value = config.get(key)
        if value is not None and not isinstance(value, dict):
            raise FastQwenError(f"{self.where} holds a {key} that is not a JSON object.")
        return value

    def _number(self, config, key, default):
        value = config.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= sys.float_info.max:
            raise FastQwenError(f"{self.where} sets {key} to {value!r:.80}; a positive number is expected.")
        return float(value)


def config_text(checkpoint: Checkpoint) -> str | None:
    """The text of the config that `HFConfig.of` reads, unchanged, or None."""
    if "config" in checkpoint.metadata:
        return checkpoint.metadata["config"]
    beside = _config_beside(checkpoint)
    return beside.read_text(encoding="utf-8") if beside else None


def other_texts(checkpoint: Checkpoint, names: Iterable[str]) -> dict[str, str]:
    """Key -> text of those files of `names` beside the weights that `read_other` reads; the header's own keep it."""
    beside = {name.removesuffix(".json"): checkpoint.folder / name for name in names}
    if not _config_beside(checkpoint):
        return {}
    return {
        key: file.read_text(encoding="utf-8")
        for key, file in beside.items()
        if key not in checkpoint.metadata and file.exists()
    }


def read_other(checkpoint: Checkpoint, name: str) -> dict:
    """The JSON object of the config file `name`: of the safetensors header, under the name without ".json"; else of the
    file beside the weights, where the folder is the checkpoint's own; else empty."""
    key, file = name.removesuffix(".json"), checkpoint.folder / name
    if key in checkpoint.metadata:
        return _in_header(checkpoint, key)
    return read_json(file) if file.exists() and _config_beside(checkpoint) else {}


def _where(checkpoint, key):
    return f"The {key} in the header of '{checkpoint.path}'"


def _in_header(checkpoint, key) -> dict:
    """The JSON object of a key of the safetensors header that is there."""
    try:
        value = json.loads(checkpoint.metadata[key])
    except (ValueError, RecursionError) as error:
        raise FastQwenError(f"{_where(checkpoint, key)} is not JSON ({error}): get the file again.") from None
    if not isinstance(value, dict):
        raise FastQwenError(f"{_where(checkpoint, key)} is not a JSON object: get the file again.")
    return value


def _config_beside(checkpoint):
    beside = checkpoint.folder / "config.json"
    if not beside.exists():
        return None
    # Beside a single file in a shared folder, a config.json may belong to something else altogether.
    ours = checkpoint.path.is_dir() or read_json(beside).get("model_type") in MODEL_TYPES
    return beside if ours else None


def _is_three_counts(value) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(isinstance(n, int) and n >= 0 for n in value)
