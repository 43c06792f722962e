"""How each layer of a checkpoint is stored: plain floats, or one of ComfyUI's quantised formats.

A quantised layer is marked by a tensor `<layer>.comfy_quant` (uint8, UTF-8 JSON with a key `format`) or in the
safetensors header under `_quantization_metadata` = {"layers": {"<layer>": {same JSON}}}.
"""

import json

from .checkpoint import Checkpoint
from .errors import FastQwenError

PLAIN = {"F32": "fp32", "F16": "fp16", "BF16": "bf16"}  # safetensors dtype -> our name
MARKER = ".comfy_quant"


def marked_formats(checkpoint: Checkpoint) -> dict[str, str]:
    """Layer name -> format name for every quantised layer that the file marks.

    The markers themselves are a few bytes each and are read here, so they never count as unread.
    """
    formats = {layer: _format_of(value, layer) for layer, value in _header_layers(checkpoint).items()}
    for name in checkpoint.entries:
        if name.endswith(MARKER):
            layer = name[: -len(MARKER)]
            try:
                value = json.loads(bytes(checkpoint.read(name).tolist()).decode("utf-8"))
            except (ValueError, TypeError) as error:
                raise FastQwenError(
                    f"Marker '{name}' is not UTF-8 JSON ({error}): the file is damaged; get it again."
                ) from None
            formats[layer] = _format_of(value, layer)
    return formats


def require_plain(checkpoint: Checkpoint):
    """Refuses by name what is not stored as bf16, fp16 or fp32."""
    marked = marked_formats(checkpoint)
    if marked:
        layer, name = next(iter(marked.items()))
        raise FastQwenError(
            f"Layer '{layer}' is stored as {name} ({len(marked)} such layers), and this version computes with "
            "bf16, fp16 and fp32 weights only: use the bf16 version of this checkpoint."
        )
    for name, entry in checkpoint.entries.items():
        if entry.dtype not in PLAIN:
            raise FastQwenError(
                f"Tensor '{name}' is stored as {entry.dtype}, and this version reads bf16, fp16 and fp32 only: "
                "use the bf16 version of this checkpoint."
            )


def _header_layers(checkpoint: Checkpoint) -> dict:
    text = checkpoint.metadata.get("_quantization_metadata")
    if text is None:
        return {}
    try:
        layers = json.loads(text)["layers"]
        return dict(layers)
    except (ValueError, KeyError, TypeError):
        raise FastQwenError(
            f"The header of '{checkpoint.path}' has a '_quantization_metadata' entry that is not "
            '{"layers": {...}} in JSON: the file is damaged; get it again.'
        ) from None


def _format_of(value, layer: str) -> str:
    name = value.get("format") if isinstance(value, dict) else None
    if not isinstance(name, str):
        raise FastQwenError(f"The quantisation marker of layer '{layer}' names no format: the file is damaged.")
    return name
