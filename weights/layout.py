"""Which tensors a layer of each format consists of, with their shapes and dtypes: checked from headers alone.

N = rows (output features), K = columns (input features), g = group size, rM(x) = x rounded up to a multiple of M.

    format        weight                                     scales beside it
    plain         fp32 / fp16 / bf16 [N, K]                  -
    w4a8, w6a8    int8 [N, K/2] or [N, 3K/4]                 weight_s_rel [N, K/g], weight_s_channel [N],
                                                             w4a8 only: weight_codebook [16] or none
    int8          int8 [N, K]                                weight_scale, one number or [N, 1]
    fp8           float8 e4m3 or e5m2 [N, K]                 weight_scale, input_scale or none
    convrot_w4a4  int8 [N, K/2]                              weight_scale [N]
    nvfp4         uint8 [r16(N), r16(K)/2]                   weight_scale [r128(N), r4(r16(K)/16)], weight_scale_2,
                                                             input_scale, pre_quant_scale [K] or none
    mxfp8         float8 e4m3 [r32(N), r32(K)]               weight_scale [r128(N), r4(r32(K)/32)], input_scale or none
    awq           int8 [N, K/2]                              weight_scale, weight_zeros [K/g, N]

Checked against comfy-kitchen 0.2.40. What the bytes mean is in decode.py.
"""

from dataclasses import dataclass

from ..kernels.rotation import BLOCK
from .checkpoint import Checkpoint
from .errors import FastQwenError
from .formats import GROUPS, MARKER, PLAIN, REMEDY, Marker

FLOATS = tuple(PLAIN)
E4M3 = ("F8_E4M3", "U8")  # float8 side tensors may be saved as uint8 views
E8M0 = ("F8_E8M0", "U8")
ONE_NUMBER = ((), (1,))

# Marker's format -> ours; the two widths of asym_w4a8_int8 are told apart by the row.
NAMES = {
    "asym_w4a8_int8": "w4a8",
    "int8_tensorwise": "int8",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "convrot_w4a4": "convrot_w4a4",
    "nvfp4": "nvfp4",
    "mxfp8": "mxfp8",
    "awq_w4a16": "awq",
}


@dataclass(frozen=True)
class Part:
    """One tensor of a layer: the last piece of its name, the dtypes and the shapes that are right for it."""

    leaf: str
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    optional: bool = False


@dataclass(frozen=True)
class Layout:
    """A layer as its headers describe it.

    layer    name in the file
    format   one of the left column above
    rows, columns    N and K without padding
    group    columns per group scale, 0 where there is none
    rotated  the weight is W H, see kernels/rotation.py
    full_precision   the writer asks not to quantise this layer's activations
    leaves   the last name pieces of the tensors that are there
    """

    layer: str
    format: str
    rows: int
    columns: int
    group: int
    rotated: bool
    full_precision: bool
    leaves: tuple[str, ...]


def layout_of(
    checkpoint: Checkpoint, layer: str, marker: Marker | None, shape: tuple[int, int] | None = None
) -> Layout:
    """Describes the layer `<layer>.weight` without reading it.

    marker  what formats.read_markers found for the layer; None means plain
    shape   the expected (rows, columns); default: what is stored, padding included
    Raises FastQwenError that names the tensor: format not known, tensor missing, one too many, shape or dtype wrong.
    """
    if marker is not None and marker.format not in GROUPS:
        raise FastQwenError(
            f"Layer '{layer}' is stored as '{marker.format}', which FastQwen does not know: use a checkpoint in "
            f"bf16 or one of {', '.join(GROUPS)}."
        )
    if layer + ".weight" not in checkpoint:
        raise FastQwenError(f"Tensor '{layer}.weight' is missing from '{checkpoint.path}': {REMEDY}.")
    stored = checkpoint.entries[layer + ".weight"].shape
    if len(stored) != 2 or 0 in stored:
        raise FastQwenError(f"Tensor '{layer}.weight' has shape {list(stored)}, expected a matrix [N, K]: {REMEDY}.")
    rows, columns = shape or _stored_shape(checkpoint, layer, marker)
    if marker is not None:
        _require_multiples(layer, marker, columns)
    parts = _parts(marker, rows, columns)
    leaves = _require_parts(checkpoint, layer, _told(marker, rows, columns), parts)
    format = NAMES[marker.format] if marker else "plain"
    if format == "w4a8" and stored[1] * 4 == columns * 3:
        format = "w6a8"
        _require_six_bits(layer, marker, leaves)
    return Layout(
        layer,
        format,
        rows,
        columns,
        group=marker.group_size if marker else 0,
        rotated=_rotated(marker),
        full_precision=marker.full_precision if marker else False,
        leaves=leaves,
    )


def _rotated(marker: Marker | None) -> bool:
    return marker is not None and (marker.format in ("asym_w4a8_int8", "convrot_w4a4") or marker.convrot)


def _stored_shape(checkpoint: Checkpoint, layer: str, marker: Marker | None) -> tuple[int, int]:
    rows, width = checkpoint.entries[layer + ".weight"].shape
    name = marker.format if marker else "plain"
    if name in ("convrot_w4a4", "nvfp4", "awq_w4a16"):
        return rows, 2 * width
    if name != "asym_w4a8_int8":
        return rows, width
    scales = checkpoint.entries.get(layer + ".weight_s_rel")
    if scales is None or len(scales.shape) != 2:
        raise FastQwenError(
            f"Tensor '{layer}.weight_s_rel' is {'missing' if scales is None else 'no matrix'}, and '{layer}' is "
            f"{name}, whose group scales it holds: {REMEDY}."
        )
    return rows, scales.shape[1] * marker.group_size


def _require_multiples(layer: str, marker: Marker, columns: int):
    """Refuses a number of columns or a block size that the format cannot have."""
    group, fixed = marker.group_size, {"nvfp4": 16, "mxfp8": 32}.get(marker.format)
    if fixed and group != fixed:
        raise FastQwenError(f"Layer '{layer}' is {marker.format} with group_size {group}, expected {fixed}: {REMEDY}.")
    if marker.format == "asym_w4a8_int8" and (group < 4 or group % 16 and 16 % group):
        raise FastQwenError(
            f"Layer '{layer}' is {marker.format} with group_size {group}, expected 4, 8 or a multiple of 16: {REMEDY}."
        )
    if _rotated(marker) and marker.convrot_groupsize != BLOCK:
        raise FastQwenError(
            f"Layer '{layer}' is rotated in blocks of {marker.convrot_groupsize} columns, and FastQwen un-rotates "
            f"blocks of {BLOCK} only: use a checkpoint with convrot_groupsize {BLOCK}, or the bf16 version."
        )
    for size, what in ((BLOCK if _rotated(marker) else 1, "rotation block"), (group or 1, "group")):
        if (columns % size or columns % 2 and marker.format == "awq_w4a16") and not fixed:
            raise FastQwenError(
                f"Layer '{layer}' is {marker.format} with {columns} columns, no multiple of its {what} of {size}: "
                f"{REMEDY}."
            )


def _require_six_bits(layer: str, marker: Marker, leaves: tuple[str, ...]):
    if "weight_codebook" in leaves:
        raise FastQwenError(
            f"Tensor '{layer}.weight_codebook' stands beside 6-bit codes, which never have a codebook: {REMEDY}."
        )
    if marker.group_size % 16:
        raise FastQwenError(
            f"Layer '{layer}' has 6-bit codes with group_size {marker.group_size}, expected a multiple of 16: {REMEDY}."
        )


def _parts(marker: Marker | None, rows: int, columns: int) -> tuple[Part, ...]:
    """The tensors of a layer by its marker and its shape without padding."""
    if marker is None:
        return (Part("weight", FLOATS, ((rows, columns),)),)
    group = marker.group_size
    half = Part("weight", ("I8",), ((rows, columns // 2),))
    one, channel = Part("weight_scale", FLOATS, ONE_NUMBER), (rows, 1)
    input_scale = Part("input_scale", FLOATS, ONE_NUMBER, optional=True)
    match marker.format:
        case "asym_w4a8_int8":
            return (
                Part("weight", ("I8",), ((rows, columns // 2), (rows, columns * 3 // 4))),
                Part("weight_s_rel", (*E4M3, "F32"), ((rows, columns // group),)),
                Part("weight_s_channel", FLOATS, ((rows,),)),
                Part("weight_codebook", FLOATS, ((16,),), optional=True),
            )
        case "int8_tensorwise":
            return Part("weight", ("I8",), ((rows, columns),)), Part("weight_scale", FLOATS, (*ONE_NUMBER, channel))
        case "float8_e4m3fn":
            return Part("weight", ("F8_E4M3",), ((rows, columns),)), one, input_scale
        case "float8_e5m2":
            return Part("weight", ("F8_E5M2",), ((rows, columns),)), one, input_scale
        case "convrot_w4a4":
            return half, Part("weight_scale", FLOATS, ((rows,), channel))
        case "awq_w4a16":
            groups = ((columns // group, rows),)
            return half, Part("weight_scale", FLOATS, groups), Part("weight_zeros", FLOATS, groups)
        case "mxfp8":
            n, k = _up(rows, 32), _up(columns, 32)
            scales = Part("weight_scale", E8M0, ((_up(n, 128), _up(k // 32, 4)),))
            return Part("weight", ("F8_E4M3",), ((n, k),)), scales, input_scale
    n, k = _up(rows, 16), _up(columns, 16)
    return (
        Part("weight", ("U8",), ((n, k // 2),)),
        Part("weight_scale", E4M3, ((_up(n, 128), _up(k // 16, 4)),)),
        Part("weight_scale_2", FLOATS, ONE_NUMBER),
        Part("pre_quant_scale", FLOATS, ((columns,),), optional=True),
        input_scale,
    )


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _told(marker: Marker | None, rows: int, columns: int) -> str:
    return f"{marker.format if marker else 'a plain tensor'} of {rows} rows and {columns} columns"


def _require_parts(checkpoint: Checkpoint, layer: str, told: str, parts: tuple[Part, ...]) -> tuple[str, ...]:
    """The leaves that are there; refuses what is missing, wrong or not part of the format."""
    leaves = []
    for part in parts:
        name = f"{layer}.{part.leaf}"
        entry = checkpoint.entries.get(name)
        if entry is None:
            if not part.optional:
                raise FastQwenError(f"Tensor '{name}' is missing, and '{layer}' is {told}: {REMEDY}.")
            continue
        if entry.shape not in part.shapes:
            expected = " or ".join(str(list(shape)) for shape in part.shapes)
            raise FastQwenError(
                f"Tensor '{name}' has shape {list(entry.shape)}, expected {expected} for {told}: {REMEDY}."
            )
        if entry.dtype not in part.dtypes:
            raise FastQwenError(
                f"Tensor '{name}' is stored as {entry.dtype}, expected {' or '.join(part.dtypes)} for {told}: {REMEDY}."
            )
        leaves.append(part.leaf)
    _refuse_strangers(checkpoint, layer, told, {part.leaf for part in parts})
    return tuple(leaves)


def _refuse_strangers(checkpoint: Checkpoint, layer: str, told: str, known: set[str]):
    """A side tensor that the format does not have would change what the weight means."""
    known = known | {"bias", MARKER.removeprefix(".")}
    prefix = layer + "."
    for name in checkpoint.entries:
        if name.startswith(prefix) and name[len(prefix) :] not in known:
            raise FastQwenError(
                f"Tensor '{name}' stands beside {told}, which has no such tensor: the layer is of a kind that FastQwen "
                "does not read; use the bf16 version of this checkpoint."
            )
