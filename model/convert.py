"""A checkpoint with plain weights -> one quantised file in ComfyUI's formats, layer by layer."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase

import torch

from ..weights import Checkpoint, FastQwenError
from ..weights.files import exists, expanded
from ..weights.formats import require_plain
from ..weights.quantize import BLOCK, FORMATS, encode, layout
from ..weights.writer import DTYPE_NAMES, CheckpointWriter, TensorSpec
from .config import check_shapes, read_config
from .hf_config import config_text, other_texts
from .image_rules import FILES as IMAGE_FILES

# The linear layers by the last pieces of their canonical names. What is not here stays as it is: norms, convolutions,
# A_log, dt_bias, the two gate projections (a few rows each, and they steer the recurrence) and the vision tower.
LINEAR_LAYERS = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.out_proj",
    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
)  # fmt: skip
HEADS = ("mtp.fc", "lm_head")
EMBEDDING = "embed_tokens"
WORST = 10


@dataclass(frozen=True)
class Choice:
    """What becomes of one tensor.

    name     its name in the file
    format   of weights/quantize.py, or None: stays as it is
    rotated  whether an int8 table is stored in the rotated basis
    reason   why a layer that could have been quantised stays: "--keep" or its width
    """

    name: str
    format: str | None = None
    rotated: bool = True
    reason: str | None = None

    @property
    def layer(self) -> str:
        return self.name.removesuffix(".weight")


@dataclass(frozen=True)
class LayerResult:
    """One quantised layer; relative_error is |W - decoded W| / |W|."""

    name: str
    format: str
    rows: int
    columns: int
    relative_error: float


@dataclass(frozen=True)
class Conversion:
    """What was written: the layers, the layers that stayed plain (name -> reason), bytes before and after, notes."""

    path: str
    format: str
    layers: tuple[LayerResult, ...]
    plain: dict[str, str]
    bytes_before: int
    bytes_after: int
    notes: tuple[str, ...] = ()

    @property
    def mean_error(self) -> float:
        return sum(layer.relative_error for layer in self.layers) / max(1, len(self.layers))

    def to_dict(self) -> dict:
        """Everything, as JSON-able values."""
        return asdict(self) | {"mean_error": self.mean_error}

    def lines(self) -> list[str]:
        """For people: sizes, the mean error and the worst layers."""
        sizes = f"{self.bytes_before / 1e6:,.1f} MB -> {self.bytes_after / 1e6:,.1f} MB"
        lines = [f"{self.path}: {len(self.layers)} layers quantised ({self.format}), {sizes}"]
        if self.layers:
            worst = sorted(self.layers, key=lambda layer: -layer.relative_error)[:WORST]
            lines.append(f"  relative error: mean {self.mean_error:.4f}, the {len(worst)} largest:")
            lines += [f"  {layer.relative_error:.4f}  {layer.format:<5} {layer.name}" for layer in worst]
        for reason in dict.fromkeys(self.plain.values()):
            names = [name for name, why in self.plain.items() if why == reason]
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            lines.append(f"  left as they are ({reason}): {', '.join(names[:3])}{more}")
        return lines + [f"  note: {note}" for note in self.notes]


def choose(
    checkpoint: Checkpoint, names: Mapping[str, str], format: str, *, tied_head: bool, keep: Iterable[str] = ()
) -> list[Choice]:
    """Decides for every tensor of a checkpoint, in file order.

    names   canonical name -> name in the file
    format  of the linear layers; the embedding table is int8 in every format, the only packed form ComfyUI looks up
    keep    patterns as of a shell (`*`, `?`, `[...]`) on names in the file, with or without `.weight`

    Raises FastQwenError for an unknown format and a pattern that no tensor matches.
    """
    if format not in FORMATS:
        raise FastQwenError(f"Format '{format}' is not one of {', '.join(FORMATS)}.")
    canonical = {stored: name for name, stored in names.items()}
    kept = _matching(checkpoint.entries, keep)
    choices = []
    for name, entry in checkpoint.entries.items():
        layer = canonical[name].removesuffix(".weight")
        table = layer == EMBEDDING
        if not (table or _is_linear(layer)) or layer == canonical[name]:
            choices.append(Choice(name))
        elif name in kept:
            choices.append(Choice(name, reason="--keep"))
        elif table:
            # A tied table is a linear layer too. Rotation spreads the few large features of the last hidden state
            # before it is rounded to int8: on the demo the logits' error falls from 0.0082 to 0.0057.
            choices.append(Choice(name, "int8", rotated=tied_head and entry.shape[1] % BLOCK == 0))
        elif entry.shape[1] % BLOCK:
            choices.append(Choice(name, reason=f"{entry.shape[1]} input columns, no multiple of {BLOCK}"))
        else:
            choices.append(Choice(name, format))
    return choices


def convert(
    checkpoint: Checkpoint,
    target,
    format: str,
    *,
    keep: Iterable[str] = (),
    device: torch.device | str = "cpu",
    overwrite: bool = False,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Conversion:
    """Writes `target` (.safetensors): same names, markers per quantised layer, the config's text in the header, and
    where there is a vision tower those that say how pictures are prepared.

    device       where the encoder computes; one layer at a time is there
    on_progress  told (bytes of the source done, bytes in all) after every tensor

    Raises FastQwenError for another architecture, weights that are packed already or not finite, and a target that
    cannot be written; nothing is left at `target` then.
    """
    target = expanded(target)
    config, names = read_config(checkpoint)
    require_plain(checkpoint)
    check_shapes(checkpoint, config, names)
    _require_other_file(checkpoint, target)
    choices = choose(checkpoint, names, format, tied_head=config.tied_head, keep=keep)
    metadata = {key: text for key, text in checkpoint.metadata.items() if key != "_quantization_metadata"}
    metadata["format"] = "pt"
    text = config_text(checkpoint)
    if text is not None:
        metadata["config"] = text
    if config.vision is not None:
        metadata |= other_texts(checkpoint, IMAGE_FILES)
    layers, done = [], 0
    with CheckpointWriter(target, _specs(checkpoint, choices), metadata, overwrite=overwrite) as writer:
        for choice in choices:
            weight = checkpoint.read(choice.name)
            if choice.format is None:
                writer.write(choice.name, weight)
            else:
                layers.append(_write_layer(writer, choice, weight.to(device)))
            done += weight.nbytes
            on_progress(done, checkpoint.bytes)
    plain = {choice.layer: choice.reason for choice in choices if choice.reason}
    notes = _tokenizer_note(checkpoint.folder, target.parent)
    return Conversion(str(target), format, tuple(layers), plain, checkpoint.bytes, writer.bytes, notes)


def _tokenizer_note(source, folder):
    if not (source / "tokenizer.json").exists() or (folder / "tokenizer.json").exists():
        return ()
    return (f"the tokenizer is not in the file: copy tokenizer.json from '{source}' beside it, or give --tokenizer.",)


def _write_layer(writer, choice, weight) -> LayerResult:
    encoded = encode(weight, choice.format, name=choice.name, rotated=choice.rotated)
    for side, tensor in encoded.tensors.items():
        writer.write(f"{choice.layer}.{side}", tensor)
    return LayerResult(choice.layer, choice.format, *weight.shape, encoded.relative_error)


def _specs(checkpoint, choices):
    for choice in choices:
        entry = checkpoint.entries[choice.name]
        if choice.format is None:
            yield TensorSpec(choice.name, entry.dtype, entry.shape)
            continue
        for side, (dtype, shape) in layout(*entry.shape, choice.format, rotated=choice.rotated).items():
            yield TensorSpec(f"{choice.layer}.{side}", DTYPE_NAMES[dtype], shape)


def _is_linear(layer):
    return layer in HEADS or (layer.startswith(("layers.", "mtp.layers.")) and layer.endswith(LINEAR_LAYERS))


def _matching(names, patterns) -> set[str]:
    kept = set()
    for pattern in patterns:
        found = {
            name for name in names if fnmatchcase(name, pattern) or fnmatchcase(name.removesuffix(".weight"), pattern)
        }
        if not found:
            raise FastQwenError(
                f"--keep '{pattern}' matches no tensor: `*` stands for any characters, as in '*.layers.0.*' or 'mtp.*'."
            )
        kept |= found
    return kept


def _require_other_file(checkpoint, target):
    for file in {entry.file for entry in checkpoint.entries.values()}:
        if exists(target) and target.samefile(file):
            raise FastQwenError(f"'{target}' is a file of the source itself: choose another name.")
