"""Float weights -> 4-bit, 6-bit and int8 layers in ComfyUI's file layout.

    i8    = clamp(round_half_even(level[code] * s_rel), -127, 127)     what a file means: a plain int8 matrix
    W_rot = i8 * s_channel                                             in the rotated basis (kernels/rotation.py)

One s_channel per row (fp32), one s_rel per group of 16 columns (e4m3), one code per weight. The encoder works on
x = W_rot / s_channel with s_channel = absmax of the row / 127, in units of the int8 grid: fit each group's scale by
alternating least squares against the unrounded levels, round it to e4m3, then try the e4m3 scales around it and keep
the one whose int8 grid fits best. A second, slightly smaller s_channel is tried too and each row keeps the better.

Layouts are ComfyUI's `asym_w4a8_int8` and `int8_tensorwise`; the 16 levels are the Lloyd-Max table of a
group-normalised Gaussian, which rotated weights are close to.
"""

import json
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kernels.rotation import BLOCK, rotate
from .errors import FastQwenError

FORMATS = ("w4a8", "w6a8", "int8")
GROUP = 16
CODEBOOK = (
    -0.980602, -0.794529, -0.638165, -0.500986, -0.377321, -0.263187, -0.155210, -0.050720,
    0.052541, 0.156985, 0.265284, 0.379533, 0.502636, 0.638953, 0.794876, 0.980671,
)  # fmt: skip
ROUNDS = 2
# e4m3 scales tried to each side. Relative error on Gaussian weights with 0, 1, 2, 3, 6 of them and one s_channel:
# 4 bits 0.0730, 0.0719, 0.0714, 0.0711, 0.0710; 6 bits 0.0229, 0.0206, 0.0202, 0.0201, 0.0200.
NEIGHBOURS = 3
# s_channel as multiples of absmax / 127. Little for Gaussian rows (0.3%), but a fifth of the error of a row that one
# huge value dominates: its groups share one magnitude, which e4m3's steps of 1/16 to 1/8 hit or miss all at once.
ROW_SCALES = (1.0, 0.99)
# Rows rotated at once, at absolute multiples of this: a matrix product may round differently for other row counts.
ROTATED_ROWS = 16
# Bytes of 128 and 4.5: the largest scales in files that ComfyUI's own encoder writes, so that no reader meets new
# ground. At 4.5 the outermost 6-bit levels pass 127 and rely on the clamp, as in those files.
LARGEST_SCALE = {4: 0x70, 6: 0x49}
# Values per block: on a CPU a block's dozen temporaries then stay in the cache; a GPU wants few launches.
CPU_BLOCK, GPU_BLOCK = 1 << 18, 1 << 24


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
    return sides | {"comfy_quant": (torch.uint8, (len(_marker_bytes(format, rotated)),))}


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
    marked = torch.tensor(list(_marker_bytes(format, rotated)), dtype=torch.uint8)
    tensors = {key: torch.empty(shape, dtype=dtype, device=weight.device) for key, (dtype, shape) in sides.items()}
    tensors["comfy_quant"] = marked
    quantise = _Int8(tensors) if format == "int8" else _Grouped(tensors, 4 if format == "w4a8" else 6)
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


def _marker_bytes(format, rotated):
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


class _Grouped:
    """4-bit and 6-bit codes with an e4m3 scale per group of 16."""

    def __init__(self, tensors, bits):
        self.bits, self.tensors = bits, tensors
        codes = tensors["weight"]
        if bits == 4:
            self.levels = torch.tensor(CODEBOOK, device=codes.device)
            tensors["weight_codebook"].copy_(self.levels)
        else:
            self.levels = torch.arange(-31.0, 32.0, device=codes.device)  # code 0 stays unused
        self.middles = (self.levels[1:] + self.levels[:-1]) / 2
        self.top, self.largest = 1.0 if bits == 4 else 31.0, LARGEST_SCALE[bits]
        self.code_table, self.grid_table = self._tables()

    def __call__(self, block, x, scale):
        """As _Int8."""
        x = x.unflatten(1, (-1, GROUP))
        fitted = self._fit(x)
        best = None
        for factor in ROW_SCALES:
            s_rel, lost = self._best_scales(x / factor, fitted / factor)
            lost = lost.sum(1, dtype=torch.float64) * factor**2
            found = (s_rel, torch.full_like(scale, factor), lost)
            if best is not None:
                better = lost < best[2]
                found = tuple(torch.where(_like(better, a), a, b) for a, b in zip(found, best, strict=True))
            best = found
        s_rel, factor, lost = best
        cells = _cells(s_rel, _half_units(x / factor[:, None, None]))
        codes = self.code_table.index_select(0, cells).reshape(x.shape[0], -1)
        self.tensors["weight"][block] = (_pack4(codes) if self.bits == 4 else _pack6(codes)).view(torch.int8)
        self.tensors["weight_s_rel"][block] = s_rel.to(torch.uint8).view(torch.float8_e4m3fn)
        self.tensors["weight_s_channel"][block] = scale * factor
        return lost

    def _tables(self):
        """For every e4m3 scale and every half-unit cell of x: the best code, and the grid value it decodes to.

        Grid values are integers, so the nearest one changes only at multiples of 1/2: the cell floor(2 x) and the
        scale's byte decide it exactly. Flat, 512 cells a scale, cell 0 for floor(2 x) = -255.
        """
        device = self.levels.device
        scales = torch.arange(self.largest + 1, dtype=torch.uint8, device=device).view(torch.float8_e4m3fn).float()
        grid = (scales[:, None] * self.levels).round().clamp_(-127, 127)  # [scales, levels]
        cells = (torch.arange(512, device=device) - 254.5) / 2
        nearest = torch.searchsorted((grid[:, 1:] + grid[:, :-1]) / 2, cells.expand(len(scales), -1).contiguous())
        values = grid.gather(1, nearest).flatten()
        return (nearest + (0 if self.bits == 4 else 1)).to(torch.uint8).flatten(), values

    def _fit(self, x):
        """x [R, G, 16] -> group scales [R, G] by alternating least squares from absmax; 1 for a group of zeros."""
        absmax = x.abs().amax(-1)
        scale = torch.where(absmax > 0, absmax / self.top, 1.0)
        for _ in range(ROUNDS):
            ratio = x / scale[..., None]
            if self.bits == 4:
                nearest = torch.bucketize(ratio, self.middles, out_int32=True).flatten()
                level = self.levels.index_select(0, nearest).view_as(x)
            else:
                level = ratio.round_().clamp_(-31, 31)
            power = _sum16(level * level)
            scale = torch.where((absmax > 0) & (power > 0), _sum16(x * level) / power, scale)
        return scale

    def _best_scales(self, x, fitted):
        """The e4m3 byte of each group and its squared error, [R, G] both."""
        middle = fitted.clamp(max=448).to(torch.float8_e4m3fn).view(torch.uint8).int()
        half_units = _half_units(x)
        best, lost = None, None
        for offset in sorted(range(-NEIGHBOURS, NEIGHBOURS + 1), key=abs):
            candidate = (middle + offset).clamp_(1, self.largest)
            grid = self.grid_table.index_select(0, _cells(candidate, half_units)).view_as(x)
            error = _sum16((x - grid).square_())
            if best is None:
                best, lost = candidate, error
            else:
                better = error < lost
                best, lost = torch.where(better, candidate, best), torch.where(better, error, lost)
        return best, lost


def _half_units(x):
    """floor(2 x) + 255, the cell of x in a scale's part of the tables; beyond the grid's ends, the outermost."""
    return (x * 2).floor_().clamp_(-255, 256).int() + 255


def _cells(scales, half_units):
    return (scales[..., None] * 512 + half_units).flatten()


def _like(mask, tensor):
    return mask[:, None] if tensor.ndim == 2 else mask


def _sum16(x):
    # Halving, not sum(): its order may depend on how many groups there are, and the result must not.
    for width in (8, 4, 2, 1):
        x = x[..., :width] + x[..., width:]
    return x[..., 0]


def _pack4(codes):
    """[R, K] uint8 codes below 16 -> [R, K/2], even column in the low nibble."""
    return codes[:, 0::2] | codes[:, 1::2] << 4


def _pack6(codes):
    """[R, K] uint8 codes below 64 -> [R, 3K/4]: low nibbles as _pack4, then top 2 bits, column c at bit 2 * (c % 4)."""
    high = codes >> 4
    pairs = high[:, 0::4] | high[:, 1::4] << 2 | high[:, 2::4] << 4 | high[:, 3::4] << 6
    return torch.cat((_pack4(codes & 15), pairs), 1)
