"""Codes of 4 and 6 bits with an e4m3 scale per group of 16: the search, and the packing of bytes.

The encoder works on x = W_rot / s_channel with s_channel = absmax of the row / 127, in units of the int8 grid: fit
each group's scale by alternating least squares against the unrounded levels, round it to e4m3, then try the e4m3
scales around it and keep the one whose int8 grid, round(level * s_rel), fits best. A second, slightly smaller
s_channel is tried too; each row keeps the better one.

The 16 levels of 4-bit codes are the Lloyd-Max table of a group-normalised Gaussian, which rotated weights are close
to; 6-bit levels are code - 32.
"""

import torch
from torch import Tensor

GROUP = 16
CODEBOOK = (
    -0.980602, -0.794529, -0.638165, -0.500986, -0.377321, -0.263187, -0.155210, -0.050720,
    0.052541, 0.156985, 0.265284, 0.379533, 0.502636, 0.638953, 0.794876, 0.980671,
)  # fmt: skip
ROUNDS = 2
# e4m3 scales tried to each side. Relative error on Gaussian weights with 0, 1, 2, 3, 6 of them and one s_channel:
# 4 bits 0.0730, 0.0719, 0.0714, 0.0711, 0.0710; 6 bits 0.0229, 0.0206, 0.0202, 0.0201, 0.0200.
NEIGHBOURS = 3
# s_channel as multiples of absmax / 127. Little for Gaussian rows (0.3%), but a fifth or more of the error of a row
# that one huge value dominates: its groups share one magnitude, which e4m3's steps of 1/16 to 1/8 hit or miss at once.
ROW_SCALES = (1.0, 0.99)
# Bytes of 128 and 4.5: the largest scales in files that ComfyUI's own encoder writes, so that no reader meets new
# ground. At 4.5 the outermost 6-bit levels pass 127 and rely on the clamp, as in those files.
LARGEST_SCALE = {4: 0x70, 6: 0x49}


class GroupEncoder:
    """Fills a layer's `weight`, `weight_s_rel`, `weight_s_channel` and codebook, block of rows by block of rows."""

    def __init__(self, tensors: dict[str, Tensor], bits: int):
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

    def __call__(self, block: slice, x: Tensor, scale: Tensor) -> Tensor:
        """Writes the rows of `block`; x [R, K] in units of scale [R]. Returns squared errors [R] float64."""
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
