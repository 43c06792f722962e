"""Packed int8-grid weights: how a 4-, 6- or 8-bit matrix lies in memory for the decode kernels.

What the codes mean (FORMATS of ComfyUI's `asym_w4a8_int8` and `int8_tensorwise`): every weight is an int8 level,

    4 bits   level = clamp(round_half_even(codebook[code] * scale), -127, 127)
    6 bits   level = clamp(round_half_even((code - 32) * scale), -127, 127)
    8 bits   level = code

with one e4m3 scale for each 16 columns of a row, and weight = level * channel_scale[row].

As loaded ("rows"), a storage of bytes holds the codes of all rows and then the scales of all rows:

    4 bits   K/2 bytes a row, even column in the low nibble
    6 bits   K/2 bytes of low nibbles, then K/4 bytes of top pairs (column c in byte c // 4 at bit 2 (c % 4))
    8 bits   K bytes a row, no scales

As the kernels read it ("records"), the same bytes are interleaved in place: a record is 16 rows x C columns, C = 512
for 4 bits where it divides K and 256 elsewhere. Lane l = 4 g + t of a warp owns rows g and g + 8 and, of every 64
columns j, the 16 columns from 16 t: an m16n8k32 fragment without a shuffle. A lane's bytes of one load are 16 in a row:

    low     [C / 64 (j)][32 lanes][row g: 8 bytes, row g + 8: 8 bytes]         (8 bits: 2 x [32 lanes][16 bytes] a j)
    top     [C / 128 (pairs of j)][32 lanes][j even: row g, row g + 8; j odd: the same], 4 bytes each (6 bits only)
    scales  [32 lanes][C / 64 (j)][row g, row g + 8], one byte each

Byte i of a 4-byte top word holds the top pairs of columns 2i, 2i + 1, 8 + 2i, 8 + 2i + 1 at bits 0, 2, 4, 6, so that
a mask and a shift place them over the nibbles of even and odd columns.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

SLAB = 16  # rows of a record
GROUP = 16  # columns of a scale
CLAMP = 127


@dataclass(frozen=True)
class Layout:
    """Sizes of one packed matrix of N rows (a multiple of 16) and K columns (a multiple of 256)."""

    bits: int
    rows: int
    columns: int

    def __post_init__(self):
        if self.bits not in (4, 6, 8) or self.rows % SLAB or self.columns % 256 or min(self.rows, self.columns) < 1:
            raise ValueError(f"a packed matrix of {self.bits} bits, {self.rows} x {self.columns}, has no record layout")

    @property
    def record_columns(self) -> int:
        # A lane keeps two records in registers; those of 6 and 8 bits are larger, so they are half as wide.
        return 512 if self.bits == 4 and self.columns % 512 == 0 else 256

    @property
    def code_bytes(self) -> int:
        """Bytes of one row's codes."""
        return self.columns * self.bits // 8

    @property
    def scale_bytes(self) -> int:
        """Bytes of one row's scales."""
        return 0 if self.bits == 8 else self.columns // GROUP

    @property
    def slab_bytes(self) -> int:
        return SLAB * (self.code_bytes + self.scale_bytes)

    @property
    def bytes(self) -> int:
        return self.rows // SLAB * self.slab_bytes


def to_records(storage: Tensor, layout: Layout):
    """Interleaves a storage of rows into records, in place. storage: uint8 [layout.bytes], contiguous.

    Slabs go from the last to the first: slab i of records ends where slab i of rows starts or later, so what is not
    yet moved is never overwritten. Extra memory: the matrix's scales and one slab.
    """
    codes, scales = _row_views(storage, layout)
    scales = scales.clone()
    records = storage.view(-1, layout.slab_bytes)
    for slab in range(layout.rows // SLAB - 1, -1, -1):
        part = slice(slab * SLAB, (slab + 1) * SLAB)
        records[slab] = _slab_to_records(codes[part], scales[part], layout)


def to_rows(storage: Tensor, layout: Layout):
    """The inverse of `to_records`, in place, with the same extra memory."""
    codes, scales = _row_views(storage, layout)
    kept = torch.empty_like(scales)
    records = storage.view(-1, layout.slab_bytes)
    for slab in range(layout.rows // SLAB):
        part = slice(slab * SLAB, (slab + 1) * SLAB)
        codes[part], kept[part] = _slab_to_rows(records[slab], layout)
    scales.copy_(kept)


def read_rows(storage: Tensor, layout: Layout, first: int, last: int) -> tuple[Tensor, Tensor]:
    """Codes and scales of slabs first..last-1 as bytes of rows, from a storage of records.

    Returns uint8 [rows, code_bytes] and uint8 [rows, scale_bytes].
    """
    records = storage.view(-1, layout.slab_bytes)[first:last]
    parts = [_slab_to_rows(record, layout) for record in records]
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def copy_rows(source: Tensor, rows: Tensor, target: Tensor, places: Tensor, layout: Layout, of_row: Tensor):
    """Copies rows of one storage of records into another, whatever their places in a slab.

    rows, places  int64 [R], of the source and of the target
    layout        of either: bits and columns are the same
    of_row        row_places(layout), on their device
    """
    found = source.view(-1, layout.slab_bytes)[(rows // SLAB)[:, None], of_row[rows % SLAB]]
    target.view(-1, layout.slab_bytes)[(places // SLAB)[:, None], of_row[places % SLAB]] = found


def row_places(layout: Layout) -> Tensor:
    """Where the bytes of each row of a slab of records lie: int64 [16, bytes of a row], in one order for all rows."""
    per, columns = layout.record_columns // 64, layout.record_columns
    if layout.bits == 8:  # [j, half, g, t, bytes]
        parts = [torch.arange(columns * SLAB).view(per, 2, 8, 4, 16).permute(1, 2, 0, 3, 4)]
    else:
        low, top = columns * 8, columns * (layout.bits - 4) * 2
        parts = [torch.arange(low).view(per, 8, 4, 2, 8).permute(3, 1, 0, 2, 4)]
        if top:  # [pair of j, g, t, j parity, half, bytes]
            parts.append(torch.arange(low, low + top).view(per // 2, 8, 4, 2, 2, 4).permute(4, 1, 0, 2, 3, 5))
        parts.append(torch.arange(low + top, low + top + columns).view(8, 4, per, 2).permute(3, 0, 1, 2))
    record = torch.cat([part.reshape(SLAB, -1) for part in parts], 1)
    starts = torch.arange(0, layout.slab_bytes, record.numel())
    return (record[:, None] + starts[:, None]).flatten(1)


def codes_of(row_bytes: Tensor, layout: Layout) -> Tensor:
    """Bytes of rows [R, code_bytes] -> codes [R, K] uint8 (int8 for 8 bits)."""
    if layout.bits == 8:
        return row_bytes.view(torch.int8)
    half = layout.columns // 2
    low = torch.stack([row_bytes[:, :half] & 15, row_bytes[:, :half] >> 4], -1).flatten(1)
    if layout.bits == 4:
        return low
    pairs = torch.stack([row_bytes[:, half:] >> shift & 3 for shift in (0, 2, 4, 6)], -1).flatten(1)
    return low | pairs << 4


def bytes_of(codes: Tensor, layout: Layout) -> Tensor:
    """The inverse of `codes_of`."""
    if layout.bits == 8:
        return codes.view(torch.uint8)
    low = codes[:, 0::2] & 15 | (codes[:, 1::2] & 15) << 4
    if layout.bits == 4:
        return low
    top = codes >> 4
    return torch.cat([low, top[:, 0::4] | top[:, 1::4] << 2 | top[:, 2::4] << 4 | top[:, 3::4] << 6], 1)


def e4m3_values(device="cpu") -> Tensor:
    """The value of every e4m3 byte, float32 [256]."""
    return torch.arange(256, dtype=torch.uint8, device=device).view(torch.float8_e4m3fn).float()


def level_codebook(codebook: Tensor | None) -> Tensor:
    """The 16 levels of 4-bit codes, float32 on the CPU; without a codebook, code - 8."""
    return torch.arange(16, dtype=torch.float32) - 8 if codebook is None else codebook.float().cpu()


def level_table(codebook: Tensor | None, bits: int) -> Tensor:
    """int8 levels by scale byte and code: [256, 16] (4 bits) or [256, 64] (6 bits). NaN scales give 0.

    codebook: float32 [16] for 4 bits (None: code - 8).
    """
    levels = torch.arange(64, dtype=torch.float32) - 32 if bits == 6 else level_codebook(codebook)
    table = (e4m3_values()[:, None].nan_to_num(0.0) * levels).round().clamp(-CLAMP, CLAMP)
    return table.to(torch.int8)


def grid_of(row_codes: Tensor, row_scales: Tensor, layout: Layout, table: Tensor) -> Tensor:
    """The int8 grid [R, K] of rows given as bytes; `table` is level_table's, on the same device."""
    codes = codes_of(row_codes, layout)
    if layout.bits == 8:
        return codes
    scales = row_scales.repeat_interleave(GROUP, 1).long()
    return table.flatten()[scales * table.shape[1] + codes.long()]


def _row_views(storage, layout):
    if storage.dtype != torch.uint8 or not storage.is_contiguous() or storage.numel() != layout.bytes:
        raise ValueError(f"a storage of {layout.bytes} contiguous uint8 is wanted, got {storage.dtype} {storage.shape}")
    split = layout.rows * layout.code_bytes
    codes = storage[:split].view(layout.rows, layout.code_bytes)
    return codes, storage[split:].view(layout.rows, layout.scale_bytes)


# Axes of a slab: half (rows g / g + 8), g, record, j within the record, t, bytes.
def _slab_to_records(codes, scales, layout):
    pieces = [_low_to_records(codes, layout)]
    if layout.bits == 6:
        pieces.append(_top_to_records(codes[:, layout.columns // 2 :], layout))
    if layout.bits != 8:
        per = layout.record_columns // 64
        view = scales.view(2, 8, -1, per, 4)
        pieces.append(view.permute(2, 1, 4, 3, 0).reshape(view.shape[2], -1))
    return torch.cat(pieces, 1).flatten()


def _low_to_records(codes, layout):
    per = layout.record_columns // 64
    if layout.bits == 8:
        # [half, g, record, j, t, 16 bytes] -> [record, j, half, g, t, 16]
        view = codes.view(2, 8, -1, per, 4, 16)
        return view.permute(2, 3, 0, 1, 4, 5).reshape(view.shape[2], -1)
    view = codes[:, : layout.columns // 2].reshape(2, 8, -1, per, 4, 8)
    return view.permute(2, 3, 1, 4, 0, 5).reshape(view.shape[2], -1)


def _top_to_records(pairs, layout):
    """Pairs as stored, [16, K/4] bytes -> [records, C/4 * 16] bytes in lane order."""
    per = layout.record_columns // 64
    fields = torch.stack([pairs >> shift & 3 for shift in (0, 2, 4, 6)], -1)  # [16, K/4, 4]: one pair a column
    columns = fields.view(2, 8, -1, per // 2, 2, 4, 2, 4, 2)  # half, g, record, jj, j parity, t, eight, i, odd
    # byte i: (eight 0, even), (eight 0, odd), (eight 1, even), (eight 1, odd) from the lowest bits up
    shifts = torch.tensor([[0, 2], [4, 6]], dtype=torch.uint8, device=pairs.device)[:, None, :]
    words = (columns << shifts).sum((6, 8), dtype=torch.uint8)  # half, g, record, jj, parity, t, i
    return words.permute(2, 3, 1, 5, 4, 0, 6).reshape(words.shape[2], -1)


def _slab_to_rows(slab, layout):
    per, columns = layout.record_columns // 64, layout.record_columns
    records = slab.view(layout.columns // columns, -1)
    count = records.shape[0]
    if layout.bits == 8:
        codes = records.view(count, per, 2, 8, 4, 16).permute(2, 3, 0, 1, 4, 5).reshape(SLAB, -1)
        return codes, slab.new_empty(SLAB, 0)
    low_end, top_end = columns * 8, columns * (8 if layout.bits == 4 else 12)
    low = records[:, :low_end].reshape(count, per, 8, 4, 2, 8).permute(4, 2, 0, 1, 3, 5).reshape(SLAB, -1)
    if layout.bits == 6:
        words = records[:, low_end:top_end].reshape(count, per // 2, 8, 4, 2, 2, 4).permute(5, 2, 0, 1, 4, 3, 6)
        shifts = torch.tensor([[0, 2], [4, 6]], dtype=torch.uint8, device=slab.device)[:, None, :]
        fields = words[..., None, :, None] >> shifts & 3  # half, g, record, jj, parity, t, eight, i, odd
        quads = fields.reshape(SLAB, -1, 4)
        packed = quads[..., 0] | quads[..., 1] << 2 | quads[..., 2] << 4 | quads[..., 3] << 6
        low = torch.cat([low, packed], 1)
    scales = records[:, top_end:].reshape(count, 8, 4, per, 2).permute(4, 1, 0, 3, 2).reshape(SLAB, -1)
    return low, scales
