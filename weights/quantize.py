"""Float weights -> 4-bit, 6-bit and int8 layers in ComfyUI's file layout.

    i8    = clamp(round_half_even(level[code] * s_rel), -127, 127)     what a file means: a plain int8 matrix
    W_rot = i8 * s_channel                                             in the rotated basis (kernels/rotation.py)

One s_channel per row (fp32), one s_rel per group of 16 columns (e4m3), one code per weight; how codes and scales are
found is in group_codes.py. int8 layers are rounded to the grid itself, with one scale per row.

Layouts are those of ComfyUI's `asym_w4a8_int8` and `int8_tensorwise`.
"""

import json
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kernels.rotation import BLOCK, rotate
from .errors import FastQwenError
from .group_codes import CODEBOOK, GROUP, GroupEncoder
from .stored import StoredLayer

FORMATS = ("w4a8", "w6a8", "int8")
# Rows rotated at once, at absolute multiples of this: a matrix product may round differently for other row counts.
ROTATED_ROWS = 16
# Values per block. On a CPU a dozen temporaries should stay in the cache, yet be worth sharing among threads.
CPU_BLOCK, GPU_BLOCK = 1 << 19, 1 << 24


@dataclass(frozen=True)
class EncodedLayer:
    """A layer as it goes into a file.

    tensors         last piece of the tensor name (`weight`, `weight_s_rel`, `comfy_quant`, ...) -> tensor
    marker          what `comfy_quant` says
    relative_error  |W - decoded W| / |W|, Frobenius norms; 0 for a layer of zeros
    """

    format: str
    tensors: dict[str, Tensor]
    marker: dict
    relative_error: float

    def stored(self, name: str) -> StoredLayer:
        """The layer as if it had been read from a file, for computing with it at once; on the encoder's device."""
        sides, grouped = self.tensors, self.format != "int8"
        rows = sides["weight"].shape[0]
        return StoredLayer(
            name=name,
            format=self.format,
            rows=rows,
            columns=sides["weight_s_rel"].shape[1] * GROUP if grouped else sides["weight"].shape[1],
            codes=sides["weight"],
            group=GROUP if grouped else 0,
            rotated=grouped or "convrot" in self.marker,
            scales=sides.get("weight_s_rel"),
            channel_scale=sides["weight_s_channel"] if grouped else sides["weight_scale"][:, 0].clone(),
            codebook=sides.get("weight_codebook"),
        )


def marker(format: str, *, rotated: bool = True) -> dict:
    """The JSON object that marks a layer of this format for ComfyUI."""
    if format == "int8":
        rotation = {"convrot": True, "convrot_groupsize": BLOCK} if rotated else {}
        return {"format": "int8_tensorwise"} | rotation
    return {"format": "asym_w4a8_int8", "group_size": GROUP, "convrot_groupsize": BLOCK}


def layout(rows: int, columns: int, format: str, *, rotated: bool = True) -> dict[str, tuple[torch.dtype, tuple]]:
    """Last piece of the tensor name -> (dtype, shape) of everything `encode` returns for a [rows, columns] weight.

    Raises FastQwenError for an unknown format and for columns that it cannot hold.
    """
    if format not in FORMATS:
        raise FastQwenError(f"Format '{format}' is not one of {', '.join(FORMATS)}.")
    if (rotated or format != "int8") and (columns % BLOCK or not columns):
        raise FastQwenError(f"{columns} input columns are no multiple of {BLOCK}, which {format} needs.")
    if format == "int8":
        sides = {"weight": (torch.int8, (rows, columns)), "weight_scale": (torch.float32, (rows, 1))}
    else:
        code_bytes = columns // 2 if format == "w4a8" else columns // 4 * 3
        sides = {
            "weight": (torch.int8, (rows, code_bytes)),
            "weight_s_rel": (torch.float8_e4m3fn, (rows, columns // GROUP)),
            "weight_s_channel": (torch.float32, (rows,)),
        }
        if format == "w4a8":
            sides["weight_codebook"] = (torch.float32, (len(CODEBOOK),))
    return sides | {"comfy_quant": (torch.uint8, (len(marker_bytes(format, rotated=rotated)),))}


def encode(
    weight: Tensor, format: str, *, name: str = "weight", rotated: bool = True, block_rows: int | None = None
) -> EncodedLayer:
    """Quantises one linear layer or embedding table, on the weight's own device.

    weight      [N, K] of any float dtype; K a multiple of 256 (unless not rotated)
    format      "w4a8", "w6a8" or "int8"
    name        names the tensor in errors
    rotated     False leaves an int8 layer in its own basis; the other two are always rotated
    block_rows  rows worked on at once; bounds the memory and never changes the result

    Raises FastQwenError for an unknown format, a K that the format cannot hold, and weights that are not finite.
    """
    if weight.ndim != 2 or not weight.is_floating_point():
        raise FastQwenError(
            f"Tensor '{name}' is {weight.dtype} of shape {list(weight.shape)}: a float matrix is wanted."
        )
    rows, columns = weight.shape
    rotated = rotated or format != "int8"
    sides = layout(rows, columns, format, rotated=rotated)
    marked = torch.tensor(list(marker_bytes(format, rotated=rotated)), dtype=torch.uint8)
    tensors = {key: torch.empty(shape, dtype=dtype, device=weight.device) for key, (dtype, shape) in sides.items()}
    tensors["comfy_quant"] = marked
    quantise = _Int8(tensors) if format == "int8" else GroupEncoder(tensors, 4 if format == "w4a8" else 6)
    if block_rows is None:
        block_rows = (CPU_BLOCK if weight.device.type == "cpu" else GPU_BLOCK) // max(1, columns)
    block_rows = max(1, block_rows // ROTATED_ROWS) * ROTATED_ROWS
    lost = torch.zeros(rows, dtype=torch.float64, device=weight.device)
    whole = torch.zeros_like(lost)
    for start in range(0, rows, block_rows):
        block = slice(start, min(start + block_rows, rows))
        x = weight[block].float()
        x = _rotated(x) if rotated else x
        absmax = x.abs().amax(1)
        _require_finite(absmax, start, name)
        # A row of zeros (or of numbers so small that dividing by their scale overflows) gets 1: it decodes to zeros.
        scale = absmax / 127
        scale = torch.where(scale < torch.finfo(torch.float32).tiny, torch.ones_like(scale), scale)
        unit = x / scale[:, None]
        # Squared in units of the grid, then scaled in float64: the squares themselves may leave float32's range.
        lost[block] = quantise(block, unit, scale) * scale.double() ** 2
        whole[block] = unit.square().sum(1, dtype=torch.float64) * scale.double() ** 2
    norm = float(whole.sum().sqrt())
    error = float(lost.sum().sqrt()) / norm if norm else 0.0
    return EncodedLayer(format, tensors, marker(format, rotated=rotated), error)


def _rotated(x):
    tiles = x.split(ROTATED_ROWS)
    last = F.pad(tiles[-1], (0, 0, 0, ROTATED_ROWS - len(tiles[-1])))
    return torch.cat([rotate(tile) for tile in (*tiles[:-1], last)])[: len(x)]


def marker_bytes(format: str, *, rotated: bool = True) -> bytes:
    """`marker` as it stands in a `comfy_quant` tensor."""
    return json.dumps(marker(format, rotated=rotated)).encode("utf-8")


def _require_finite(absmax, start, name):
    finite = torch.isfinite(absmax)
    if not finite.all():
        row = start + int((~finite).nonzero()[0])
        raise FastQwenError(
            f"Tensor '{name}' holds NaN, infinite or absurdly large values in row {row}: the file is damaged; get it "
            "again, or keep this tensor as it is."
        )


class _Int8:
    """Rounds to the int8 grid itself."""

    def __init__(self, tensors):
        self.codes, self.scale = tensors["weight"], tensors["weight_scale"]

    def __call__(self, block, x, scale):
        """Writes the rows of `block`; x [R, K] in units of scale [R]. Returns squared errors [R] float64."""
        grid = x.round().clamp_(-127, 127)
        self.codes[block] = grid.to(torch.int8)
        self.scale[block, 0] = scale
        return (x - grid).square_().sum(1, dtype=torch.float64)
