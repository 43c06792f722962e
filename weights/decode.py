"""What the bytes of a stored layer mean.

    code        4 bits: even column in the low nibble (nvfp4: in the high one)
                6 bits: low nibbles as at 4 bits, then the codes' top 2 bits, column c in byte c//4 at bit 2(c%4)
    w4a8, w6a8  level = codebook[code], or code - 8; at 6 bits code - 32
                grid  = clamp(round_half_even(level * group_scale), -127, 127)        in float32
    int8        grid  = the byte
    these three W = grid * channel_scale
    convrot_w4a4    W = code as signed 4 bits * channel_scale
    fp8             W = value * channel_scale
    nvfp4           W = e2m1(code) * (channel_scale * group_scale)
    mxfp8           W = value * 2^(e - 127)
    awq             W = (code - 8) * group_scale + zero
    rotated layers mean W H (kernels/rotation.py); nvfp4's column scale belongs to the input, x * p.

Each product and sum is rounded once in float32, in the order written. Checked against comfy-kitchen 0.2.40's plain
torch backend, bit for bit.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..kernels.rotation import rotate
from .block_scales import e8m0_to_float, unswizzle
from .stored import StoredLayer

_BLOCK_VALUES = 1 << 22  # rows are decoded in blocks of about this many weights, so that scratch stays small
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclass(frozen=True)
class Grid:
    """A packed layer as the plain int8 matrix that it means: W (or W H where rotated) = values * channel_scale.

    values         int8 [N, K]; -128 only where an int8 layer stores it
    channel_scale  float32 [N]
    """

    values: Tensor
    channel_scale: Tensor
    rotated: bool


def to_grid(stored: StoredLayer) -> Grid:
    """The int8 grid of a w4a8, w6a8 or int8 layer; ValueError for another format."""
    if stored.format not in _GRIDS:
        raise ValueError(f"'{stored.name}' is {stored.format}, which has no int8 grid")
    values = torch.empty(stored.rows, stored.columns, dtype=torch.int8)
    for rows in _row_blocks(stored):
        values[rows] = _GRIDS[stored.format](stored, rows)
    return Grid(values, stored.channel_scale, stored.rotated)


def to_float(stored: StoredLayer, dtype: torch.dtype = torch.float32) -> Tensor:
    """The weight [N, K] of any format, so that y = x W^T: un-rotated, a column scale multiplied in.

    Computed in float32, then rounded once to `dtype`.
    """
    weight = torch.empty(stored.rows, stored.columns, dtype=dtype)
    decode = _DECODERS[stored.format](stored)
    for rows in _row_blocks(stored):
        block = decode(rows)
        if stored.rotated:
            block = rotate(block)
        weight[rows] = block if stored.column_scale is None else block * stored.column_scale
    return weight


def unpack_codes(stored: StoredLayer, rows: slice = slice(None)) -> Tensor:
    """The unsigned codes of some rows of a w4a8, w6a8, convrot_w4a4, nvfp4 or awq layer: uint8 [R, K]."""
    packed, columns = stored.codes[rows].view(torch.uint8), stored.columns
    nibbles = packed[:, : columns // 2] if stored.format == "w6a8" else packed
    low, high = nibbles & 15, nibbles >> 4
    pair = (high, low) if stored.format == "nvfp4" else (low, high)
    codes = torch.stack(pair, dim=-1).flatten(1)[:, :columns]
    if stored.format != "w6a8":
        return codes
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)
    top = (packed[:, columns // 2 :, None] >> shifts) & 3
    return codes | top.flatten(1) << 4


def _row_blocks(stored: StoredLayer):
    step = max(1, _BLOCK_VALUES // stored.columns)
    for start in range(0, stored.rows, step):
        yield slice(start, min(start + step, stored.rows))


def _grouped_grid(stored: StoredLayer, rows: slice) -> Tensor:
    codes = unpack_codes(stored, rows)
    if stored.codebook is not None:
        levels = stored.codebook[codes.int()]
    else:
        levels = codes.float() - (32 if stored.format == "w6a8" else 8)
    levels = levels.unflatten(1, (-1, stored.group)) * stored.scales[rows].float().unsqueeze(-1)
    return levels.round_().clamp_(-127, 127).flatten(1).to(torch.int8)


def _stored_grid(stored: StoredLayer, rows: slice) -> Tensor:
    return stored.codes[rows]


def _signed_nibbles(stored: StoredLayer, rows: slice) -> Tensor:
    return (unpack_codes(stored, rows) ^ 8).to(torch.int8) - 8


def _per_channel(values: Callable[[StoredLayer, slice], Tensor]):
    """The decoder of a format whose weight is values * channel_scale."""

    def decoder(stored: StoredLayer) -> Callable[[slice], Tensor]:
        return lambda rows: values(stored, rows).float() * stored.channel_scale[rows, None]

    return decoder


def _plain(stored: StoredLayer) -> Callable[[slice], Tensor]:
    return lambda rows: stored.codes[rows].float()


def _nvfp4(stored: StoredLayer) -> Callable[[slice], Tensor]:
    scales = unswizzle(stored.scales).view(torch.float8_e4m3fn)
    values = torch.tensor(_E2M1 + tuple(-value for value in _E2M1))

    def decode(rows: slice) -> Tensor:
        total = stored.channel_scale[rows, None] * scales[rows].float()
        return values[unpack_codes(stored, rows).int()] * _spread(total, stored)

    return decode


def _mxfp8(stored: StoredLayer) -> Callable[[slice], Tensor]:
    scales = e8m0_to_float(unswizzle(stored.scales))
    return lambda rows: stored.codes[rows, : stored.columns].float() * _spread(scales[rows], stored)


def _awq(stored: StoredLayer) -> Callable[[slice], Tensor]:
    scales, zeros = stored.scales.float().t(), stored.zeros.float().t()

    def decode(rows: slice) -> Tensor:
        levels = unpack_codes(stored, rows).float() - 8
        return levels * _spread(scales[rows], stored) + _spread(zeros[rows], stored)

    return decode


def _spread(scales: Tensor, stored: StoredLayer) -> Tensor:
    """One scale per group -> one per column [R, K]; padding falls off."""
    return scales.repeat_interleave(stored.group, dim=1)[:, : stored.columns]


_GRIDS = {"w4a8": _grouped_grid, "w6a8": _grouped_grid, "int8": _stored_grid}
_DECODERS = {format: _per_channel(grid) for format, grid in _GRIDS.items()} | {
    "fp8": _per_channel(_stored_grid),
    "convrot_w4a4": _per_channel(_signed_nibbles),
    "plain": _plain,
    "nvfp4": _nvfp4,
    "mxfp8": _mxfp8,
    "awq": _awq,
}
