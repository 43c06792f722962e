"""Which layers of a checkpoint are quantised, and as what: ComfyUI's markers.

A quantised layer is marked by a tensor `<layer>.comfy_quant` (uint8, UTF-8 JSON) or in the safetensors header under
`_quantization_metadata` = {"layers": {"<layer>": {same JSON}}}. The JSON names a `format`; a format's options stand
beside it or under "params" (beside it wins). A layer with neither is a plain float tensor. Files mix formats layer by
layer. Checked against ComfyUI 0.33 and comfy-kitchen 0.2.40.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .checkpoint import Checkpoint
from .errors import FastQwenError

PLAIN = {"F32": "fp32", "F16": "fp16", "BF16": "bf16"}  # safetensors dtype -> our name
MARKER = ".comfy_quant"
HEADER = "_quantization_metadata"
REMEDY = "get the file again, or use the bf16 version of this checkpoint"

# Format -> columns that share a group scale when the marker does not say.
GROUPS = {
    "asym_w4a8_int8": 16,
    "int8_tensorwise": 0,
    "float8_e4m3fn": 0,
    "float8_e5m2": 0,
    "convrot_w4a4": 0,
    "nvfp4": 16,
    "mxfp8": 32,
    "awq_w4a16": 64,
}


@dataclass(frozen=True)
class Marker:
    """What a file says of one layer. Two markers that mean the same are equal, however they are spelled.

    layer           name in the file, without `.weight`
    format          ComfyUI's name; one outside GROUPS is unknown and its options are not looked at
    group_size      columns per group scale, 0 where the format has none
    convrot         int8_tensorwise: whether the weight is rotated
    convrot_groupsize, linear_dtype    as ComfyUI names them
    full_precision  `full_precision_matrix_mult`: the writer asks not to quantise this layer's activations
    """

    layer: str
    format: str
    group_size: int = 0
    convrot: bool = False
    convrot_groupsize: int = 256
    linear_dtype: str = "int4"
    full_precision: bool = False


def read_markers(checkpoint: Checkpoint) -> dict[str, Marker]:
    """Layer name in the file -> Marker, for every layer with a weight that the file marks, known format or not.

    Raises FastQwenError for a marker that cannot be read, and where header and marker tensor contradict each other.
    """
    markers: dict[str, Marker] = {}
    for marker, place in _all_markers(checkpoint):
        earlier = markers.setdefault(marker.layer, marker)
        if earlier != marker:
            raise FastQwenError(
                f"Layer '{marker.layer}' is marked as {_told(marker)} in {place} and as {_told(earlier)} elsewhere in "
                f"'{checkpoint.path}': the file contradicts itself; {REMEDY}."
            )
    return markers


def marked_formats(checkpoint: Checkpoint) -> dict[str, str]:
    """Layer name in the file -> format name, for every layer that the file marks."""
    return {layer: marker.format for layer, marker in read_markers(checkpoint).items()}


def require_plain(checkpoint: Checkpoint):
    """Refuses to quantise by name what is not stored as bf16, fp16 or fp32."""
    packed = {name: f"packed already ({format})" for name, format in marked_formats(checkpoint).items()}
    others = {name: entry.dtype for name, entry in checkpoint.entries.items() if entry.dtype not in PLAIN}
    packed |= {name: f"stored as {dtype}" for name, dtype in others.items()}
    if packed:
        name, how = next(iter(packed.items()))
        raise FastQwenError(
            f"'{name}' is {how}: quantise the bf16, fp16 or fp32 version of this checkpoint, or use it without "
            "quantising."
        )


def _told(marker: Marker) -> str:
    said = [marker.format] + [f"group_size {marker.group_size}"] * (marker.group_size > 0)
    said += ["convrot"] * marker.convrot + ["full_precision_matrix_mult"] * marker.full_precision
    return ", ".join(said)


def _all_markers(checkpoint: Checkpoint) -> Iterator[tuple[Marker, str]]:
    for file, metadata in checkpoint.headers.items():
        for layer, value in _header_layers(file, metadata).items():
            if layer + ".weight" in checkpoint:
                yield _marker(layer, value), f"the header of '{file.name}'"
    for name in checkpoint.entries:
        layer = name.removesuffix(MARKER)
        # A marker without its weight stays unread and is reported with the other tensors that nobody uses.
        if layer != name and layer + ".weight" in checkpoint:
            yield _marker(layer, _marker_json(checkpoint, name)), f"tensor '{name}'"


def _marker_json(checkpoint: Checkpoint, name: str):
    entry = checkpoint.entries[name]
    if entry.dtype != "U8" or len(entry.shape) != 1:
        raise FastQwenError(
            f"Marker '{name}' is {entry.dtype} {list(entry.shape)}, expected a row of uint8: the file is "
            f"damaged; {REMEDY}."
        )
    try:
        return json.loads(bytes(checkpoint.peek(name).tolist()).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FastQwenError(f"Marker '{name}' is not UTF-8 JSON ({error}): the file is damaged; {REMEDY}.") from None


def _header_layers(file: Path, metadata: dict[str, str]) -> dict:
    if HEADER not in metadata:
        return {}
    try:
        layers = json.loads(metadata[HEADER])["layers"]
    except (ValueError, KeyError, TypeError, RecursionError):
        layers = None
    if not isinstance(layers, dict):
        raise FastQwenError(
            f"The header of '{file}' has a '{HEADER}' entry that is not "
            f'{{"layers": {{...}}}} in JSON: the file is damaged; {REMEDY}.'
        )
    return layers


def _marker(layer: str, value) -> Marker:
    name = value.get("format") if isinstance(value, dict) else None
    if not isinstance(name, str):
        raise FastQwenError(
            f"The quantisation marker of layer '{layer}' names no format: the file is damaged; {REMEDY}."
        )
    if name not in GROUPS:
        return Marker(layer, name)
    options = _Options(layer, value)
    return Marker(
        layer,
        name,
        # mxfp8 and nvfp4 are defined with one group size; the other formats without groups have none to say.
        group_size=options.whole("group_size", GROUPS[name]) if GROUPS[name] else 0,
        convrot=options.flag("convrot") if name == "int8_tensorwise" else False,
        convrot_groupsize=options.whole("convrot_groupsize", 256),
        linear_dtype=options.word("linear_dtype", ("int4", "int8")),
        full_precision=options.flag("full_precision_matrix_mult"),
    )


class _Options:
    """Typed reads of one marker's options; a null is as good as absent."""

    def __init__(self, layer: str, value: dict):
        params = value.get("params")
        if params is not None and not isinstance(params, dict):
            raise FastQwenError(
                f"The quantisation marker of layer '{layer}' has \"params\" that are no object: the file is damaged; "
                f"{REMEDY}."
            )
        self.layer = layer
        self.values = {k: v for k, v in (params or {}).items() if v is not None}
        self.values |= {k: v for k, v in value.items() if v is not None}

    def whole(self, key: str, default: int) -> int:
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._refusal(key, value, "a positive whole number")
        return value

    def flag(self, key: str) -> bool:
        value = self.values.get(key, False)
        if value not in (False, True):
            raise self._refusal(key, value, "true or false")
        return bool(value)

    def word(self, key: str, allowed: tuple[str, ...]) -> str:
        value = self.values.get(key, allowed[0])
        if value not in allowed:
            raise self._refusal(key, value, " or ".join(allowed))
        return value

    def _refusal(self, key, value, wanted) -> FastQwenError:
        return FastQwenError(
            f"The quantisation marker of layer '{self.layer}' has {key} = {json.dumps(value)}, expected {wanted}: "
            f"{REMEDY}."
        )
