"""A layer of a checkpoint as it is stored: its tensors, read once and checked, nothing decoded yet.

What is checked beside shapes and dtypes (layout.py), because a damaged scale turns a reply into noise much later:
    channel, tensor and column scales    0 < scale < 10000
    group scales, zeros, codebook        finite and below 10000 in magnitude (a group scale may be 0: a flat group)
    6-bit codes                          1..63; 0 is never written, so it tells another layout or damage
    float8 weights                       no NaN or infinity
Weights of trained models have magnitudes around 0.02, so a scale of 10000 is no scale.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .block_scales import e8m0_to_float, unswizzle
from .errors import FastQwenError
from .formats import REMEDY
from .layout import Layout, layout_of

if TYPE_CHECKING:  # the reader builds layers from what is read here
    from .reader import Reader

LIMIT = 1e4
_CHECK_VALUES = 1 << 22  # values looked at together, so that scratch stays small


@dataclass(frozen=True)
class StoredLayer:
    """The tensors of one layer on the CPU. N rows (outputs), K columns (inputs), padding not counted.

    name            canonical, such as "layers.0.mlp.up_proj"
    format          "plain", "w4a8", "w6a8", "int8", "fp8", "convrot_w4a4", "nvfp4", "mxfp8" or "awq"
    codes           `<name>.weight` as stored, padding included; it may be a view into the mapped file
    group           columns per group scale, 0 where there is none
    rotated         what the codes mean is W H (kernels/rotation.py)
    full_precision  the file asks not to quantise this layer's activations
    scales          group scales as stored: w4a8 and w6a8 float8_e4m3fn or float32 [N, K/g], awq float [K/g, N],
                    nvfp4 uint8 (e4m3) and mxfp8 uint8 (e8m0), swizzled
    channel_scale   float32 [N]: one per row, a single number of the file repeated (int8, fp8, nvfp4 too)
    codebook        w4a8: float32 [16], None where level = code - 8
    zeros           awq: float [K/g, N]
    column_scale    nvfp4: float32 [K] that the input is multiplied with (`pre_quant_scale`)
    input_scale     float32 []: the file's static scale of the activations; FastQwen scales them per row instead
    """

    name: str
    format: str
    rows: int
    columns: int
    codes: Tensor
    group: int = 0
    rotated: bool = False
    full_precision: bool = False
    scales: Tensor | None = None
    channel_scale: Tensor | None = None
    codebook: Tensor | None = None
    zeros: Tensor | None = None
    column_scale: Tensor | None = None
    input_scale: Tensor | None = None


def read_layer(reader: "Reader", name: str, shape: tuple[int, int] | None = None) -> StoredLayer:
    """Reads and checks `<name>.weight` and every tensor that belongs to it, each once.

    name   canonical name without `.weight`: a linear layer or the embedding
    shape  expected (rows, columns); default: what the file says, padding of nvfp4 and mxfp8 then included
    Raises FastQwenError that names the tensor, what was found and what to do.
    """
    stored_name = reader.names.get(name + ".weight")
    if stored_name is None:
        raise FastQwenError(f"Tensor '{name}.weight' is missing from '{reader.checkpoint.path}': {REMEDY}.")
    layer = stored_name.removesuffix(".weight")
    layout = layout_of(reader.checkpoint, layer, reader.markers.get(layer), shape)
    tensors = {leaf: reader.raw(f"{name}.{leaf}") for leaf in layout.leaves}
    stored = _assemble(name, layout, tensors)
    _check(layer, stored, tensors)
    return stored


def _assemble(name: str, layout: Layout, tensors: dict[str, Tensor]) -> StoredLayer:
    scales, zeros = None, None
    # Only these have one scale per group under `weight_scale`; the others have one per row or tensor there.
    channel = tensors.get("weight_s_channel", tensors.get("weight_scale"))
    match layout.format:
        case "w4a8" | "w6a8":
            scales = tensors["weight_s_rel"]
            scales = scales.view(torch.float8_e4m3fn) if scales.dtype == torch.uint8 else scales
        case "awq":
            scales, zeros, channel = tensors["weight_scale"], tensors["weight_zeros"], None
        case "nvfp4":
            scales, channel = tensors["weight_scale"].view(torch.uint8), tensors["weight_scale_2"]
        case "mxfp8":
            scales, channel = tensors["weight_scale"].view(torch.uint8), None
    return StoredLayer(
        name=name,
        format=layout.format,
        rows=layout.rows,
        columns=layout.columns,
        codes=tensors["weight"],
        group=layout.group,
        rotated=layout.rotated,
        full_precision=layout.full_precision,
        scales=scales,
        channel_scale=None if channel is None else channel.float().reshape(-1).expand(layout.rows).contiguous(),
        codebook=_float(tensors.get("weight_codebook")),
        zeros=zeros,
        column_scale=_float(tensors.get("pre_quant_scale")),
        input_scale=_float(tensors.get("input_scale")),
    )


def _float(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.float()


def _check(layer: str, stored: StoredLayer, tensors: dict[str, Tensor]):
    """Refuses values that no writer of the format makes, by the rules at the head of this file."""
    _check_codes(f"{layer}.weight", stored)
    for leaf, tensor in tensors.items():
        if leaf == "weight":
            continue
        if leaf == "weight_s_rel" or leaf == "weight_scale" and stored.scales is not None:
            _require(f"{layer}.{leaf}", _group_scales(stored), positive=False)
        else:
            _require(f"{layer}.{leaf}", tensor, positive=leaf not in ("weight_codebook", "weight_zeros"))


def _group_scales(stored: StoredLayer) -> Tensor:
    """The group scales that are used, as numbers: what lies in the padding of a block format does not matter."""
    if stored.format not in ("nvfp4", "mxfp8"):
        return stored.scales
    scales = unswizzle(stored.scales)[: stored.rows, : -(-stored.columns // stored.group)]
    return scales.contiguous().view(torch.float8_e4m3fn) if stored.format == "nvfp4" else e8m0_to_float(scales)


def _require(name: str, tensor: Tensor, positive: bool):
    flat = tensor.reshape(-1)
    for start in range(0, len(flat), _CHECK_VALUES):
        values = flat[start : start + _CHECK_VALUES].float()
        # NaN fails every comparison.
        good = (values > 0) & (values < LIMIT) if positive else values.abs() < LIMIT
        if not good.all():
            first = int(good.logical_not().nonzero()[0])
            place = start + first if tensor.dim() < 2 else list(divmod(start + first, tensor.shape[1]))
            rule = f"above 0 and below {LIMIT:g}" if positive else f"finite and below {LIMIT:g} in magnitude"
            raise FastQwenError(
                f"Tensor '{name}' holds {values[first].item():g} at {place}, expected every value {rule}: the file is "
                f"damaged or badly made; {REMEDY}."
            )


def _check_codes(name: str, stored: StoredLayer):
    find = {"w6a8": _zero_codes, "fp8": _not_finite, "mxfp8": _not_finite}.get(stored.format)
    if find is None:
        return
    step = max(1, _CHECK_VALUES // stored.columns)
    for start in range(0, stored.rows, step):
        bad = find(stored.codes[start : min(start + step, stored.rows)], stored.columns).any(dim=1)
        if bad.any():
            what = "the 6-bit code 0 (codes are 1..63)" if stored.format == "w6a8" else "a NaN or an infinity"
            raise FastQwenError(
                f"Tensor '{name}' holds {what} in row {start + int(bad.nonzero()[0])}: the file is damaged or of "
                f"another layout; {REMEDY}."
            )


def _not_finite(codes: Tensor, columns: int) -> Tensor:
    magnitude = codes[:, :columns].view(torch.uint8) & 0x7F
    return magnitude == 0x7F if codes.dtype == torch.float8_e4m3fn else magnitude >= 0x7C


def _zero_codes(codes: Tensor, columns: int) -> Tensor:
    """[R, K/4] bool: whether one of four neighbouring 6-bit codes is 0, without unpacking them."""
    low = codes[:, : columns // 2].contiguous().view(torch.int16)  # four nibbles
    high = codes[:, columns // 2 :].view(torch.uint8).to(torch.int16)  # four pairs of bits
    high = (high | high << 4) & 0x0F0F
    high = (high | high << 2) & 0x3333  # each pair now lies under its nibble
    code = low | high  # a nibble of this is 0 where low nibble and pair are both 0
    # Subtracting 1 from every nibble sets the top bit of a 0. int16 arithmetic wraps; -0x7778 is 0x8888.
    return (code - 0x1111) & ~code & -0x7778 != 0
