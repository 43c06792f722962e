"""Linear layers whose weights are an int8 grid: packed formats run on it exactly as the file means them.

Two forms with the same results: the grid itself, one byte a weight, in plain torch; and the file's own bits as records
in GPU memory, read by kernels. Both take activations that kernels/prepare.py made.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..kernels import embedding, int8_gemm, packed, packed_linear, rotation
from ..kernels.int8_matmul import int8_matmul, scaled
from ..kernels.packed import Layout
from ..kernels.packed_linear import PackedWeight, PlainRows
from .backend import dependent_launch
from .decode import Grid, to_grid
from .stored import StoredLayer

BITS = {"w4a8": 4, "w6a8": 6, "int8": 8}
TILE_SLABS = 512  # 8192 rows of a matrix are unpacked at once for a prompt: 32 MiB at K = 4096, which stay in the L2
# Up to FEW_ROWS rows a prompt waits for its launches rather than for memory: then as few tiles as WHOLE_BYTES allow.
FEW_ROWS, WHOLE_BYTES = 512, 128 << 20


class PackedLinear:
    """y = (x8 grid^T) * channel_scale * x_scale.

    grid           int8 [N, K]
    channel_scale  float32 [N]
    rotated        the grid is of W H, so activations are rotated too
    """

    def __init__(self, grid: Grid, device: torch.device):
        self.grid = grid.values.to(device).contiguous()
        self.channel_scale, self.rotated = grid.channel_scale.to(device), grid.rotated

    @property
    def table(self) -> embedding.Table | None:
        """What lookups of a decode pass read by kernels; None: they are `embed`'s."""
        return None

    def __call__(self, x8: Tensor, x_scale: Tensor, residual: Tensor | None, dtype: torch.dtype) -> Tensor:
        """x8 int8 [R, K], x_scale float32 [R], residual [R, N] or None -> [R, N] in `dtype`."""
        return scaled(int8_matmul(x8, self.grid), self.channel_scale, x_scale, residual, dtype)

    def weight_rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """The weights [len(ids), K] of some rows, un-rotated: an embedding lookup reads the packed table."""
        rows = self._grid_rows(ids).float() * self.channel_scale[ids, None]
        # The exact form: a token's embedding must not depend on how many tokens are looked up with it.
        return (rotation.rotate_exactly(rows) / 16 if self.rotated else rows).to(dtype)

    def embed(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """`weight_rows` of the few rows of a decode pass, the same bits."""
        return self.weight_rows(ids, dtype)

    def first_rows(self, count: int) -> "PackedLinear":
        """A layer of the first `count` rows, over the same memory."""
        return PackedLinear(Grid(self.grid[:count], self.channel_scale[:count], self.rotated), self.grid.device)

    def empty_rows(self, count: int) -> "PackedLinear":
        """A layer of `count` rows of zeros, for `copy_rows` to fill."""
        grid = Grid(self.grid.new_zeros(count, self.grid.shape[1]), self.channel_scale.new_zeros(count), self.rotated)
        return PackedLinear(grid, self.grid.device)

    def copy_rows(self, source: "PackedLinear", rows: Tensor, places: Tensor):
        """Takes rows of a layer of the same form: rows and places int64 [R]. Nothing waits for the device."""
        self.grid[places] = source.grid[rows]
        self.channel_scale[places] = source.channel_scale[rows]

    def _grid_rows(self, ids):
        return self.grid[ids]


class RecordLinear(PackedLinear):
    """The same over records in GPU memory: `decode` is the kernel for the eight rows of a decode pass."""

    def __init__(self, weight: PackedWeight, rotated: bool):
        self.weight, self.channel_scale, self.rotated = weight, weight.channel_scale, rotated
        device = weight.storage.device
        self._row_places: Tensor | None = None
        slabs = torch.arange(weight.layout.rows // packed.SLAB, dtype=torch.int32, device=device)
        self._tiles = self._cut(slabs, TILE_SLABS)
        most = max(TILE_SLABS, WHOLE_BYTES // (packed.SLAB * weight.layout.columns))
        self._large_tiles = self._cut(slabs, -(-len(slabs) // -(-len(slabs) // most)))
        # The other form is NVIDIA's own instructions; ROCm and Triton's interpreter run the portable one.
        self._portable = device.type != "cuda" or torch.version.hip is not None
        processors = 8 if self._portable else torch.cuda.get_device_properties(device).multi_processor_count
        configs = [packed_linear.launch_config(weight.layout, processors, beside) for beside in (False, True)]
        joints = [None if self._portable else packed_linear.new_joint(weight.layout, c, device) for c in configs]
        self._launches = list(zip(configs, joints, strict=True))  # alone, and with plain rows beside it

    @classmethod
    def of(cls, group: Sequence[StoredLayer], device: torch.device) -> "RecordLinear":
        """One matrix of the layers of `group` stacked on N: their codes and scales go into one storage on `device`.

        Each layer's part is copied there once and interleaved in place. `stack_key` must be the same for all.
        """
        bits, columns = BITS[group[0].format], group[0].columns
        layouts = [Layout(bits, stored.rows, columns) for stored in group]
        storage = torch.empty(sum(layout.bytes for layout in layouts), dtype=torch.uint8, device=device)
        start = 0
        for stored, layout in zip(group, layouts, strict=True):
            part = storage[start : start + layout.bytes]
            codes, scales = _row_bytes(stored)
            part[: codes.numel()] = codes.reshape(-1).to(device)
            part[codes.numel() :] = scales.reshape(-1).to(device)
            packed.to_records(part, layout)
            start += layout.bytes
        table, window, table_of = torch.empty(0, dtype=torch.int32), -1, None
        if bits == 4:
            table, table_of = _tables(group)
            bytes_used = torch.cat([_e4m3_bytes(stored.scales).unique() for stored in group])
            window = packed_linear.scale_window(bytes_used)
            table_of = None if table_of is None else table_of.to(device)
        channel_scale = torch.cat([stored.channel_scale for stored in group]).to(device)
        whole = Layout(bits, sum(layout.rows for layout in layouts), columns)
        weight = PackedWeight(storage, whole, channel_scale, table.to(device), window, table_of)
        return cls(weight, group[0].rotated)

    @property
    def takes_plain_rows(self) -> bool:
        """Whether a small plain matrix on the same input can run in the launch of `decode`."""
        return not self._portable

    def decode(
        self,
        x8: Tensor,
        x_scale: Tensor,
        residual: Tensor | None,
        dtype: torch.dtype,
        *,
        plain: PlainRows | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """x8 int8 [K / 64, 8, 64], x_scale float32 [8], residual [8, N] or None -> [8, N] in `dtype`.

        plain   a few plain rows to run in the same launch, only where `takes_plain_rows`
        out     where the result goes, contiguous; default: new memory
        """
        if out is None:
            out = torch.empty(8, self.weight.layout.rows, dtype=dtype, device=x8.device)
        config, joint = self._launches[plain is not None]
        return packed_linear.packed_linear(
            x8, x_scale, self.weight, residual=residual, plain=plain, out=out, config=config, joint=joint,
            portable=self._portable, dependent=dependent_launch(x8.device),
        )  # fmt: skip

    def __call__(self, x8: Tensor, x_scale: Tensor, residual: Tensor | None, dtype: torch.dtype) -> Tensor:
        out = torch.empty(x8.shape[0], self.weight.layout.rows, dtype=dtype, device=x8.device)
        if residual is not None:
            residual = residual.to(dtype).contiguous()
        tiles = self._large_tiles if x8.shape[0] <= FEW_ROWS else self._tiles
        for slabs, channel_scale, rows in tiles:
            part, added = out, residual
            if len(tiles) > 1:
                part, added = out[:, rows], None if residual is None else residual[:, rows]
            tile = packed_linear.unpack(self.weight, slabs, portable=self._portable)
            int8_gemm.int8_gemm(x8, x_scale, tile, channel_scale, residual=added, out=part)
        return out

    def _cut(self, slabs, count):
        """Tiles of `count` slabs: (their numbers, their rows' channel scales, their rows)."""
        rows = [
            slice(first * packed.SLAB, min(first + count, len(slabs)) * packed.SLAB)
            for first in range(0, len(slabs), count)
        ]
        return [(part, self.channel_scale[where], where) for part, where in zip(slabs.split(count), rows, strict=True)]

    @property
    def table(self) -> embedding.Table:
        """What lookups of a decode pass read."""
        return embedding.Table(self.weight, self.rotated)

    def embed(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """One launch, where `weight_rows` has thirty."""
        out = torch.empty(len(ids), self.weight.layout.columns, dtype=dtype, device=ids.device)
        return embedding.embed_rows(self.table, ids, out=out, dependent=dependent_launch(ids.device))

    def first_rows(self, count: int) -> "RecordLinear":
        """A layer of the first `count` rows, a multiple of 16: slabs lie one after another, so it is a view."""
        whole = self.weight
        layout = Layout(whole.layout.bits, count, whole.layout.columns)
        table_of = None if whole.table_of is None else whole.table_of[: count // packed.SLAB]
        part = whole.storage[: layout.bytes], layout, whole.channel_scale[:count]
        return RecordLinear(PackedWeight(*part, whole.table, whole.window, table_of), self.rotated)

    def empty_rows(self, count: int) -> "RecordLinear":
        """A layer of `count` rows of zeros, a multiple of 16, for `copy_rows` to fill. Raises ValueError where this one
        has several codebooks: a slab's rows share one."""
        whole = self.weight
        if whole.table_of is not None:
            raise ValueError("rows of several codebooks cannot share a slab")
        layout = Layout(whole.layout.bits, count, whole.layout.columns)
        storage = whole.storage.new_zeros(layout.bytes)
        weight = PackedWeight(storage, layout, whole.channel_scale.new_zeros(count), whole.table, whole.window)
        return RecordLinear(weight, self.rotated)

    def copy_rows(self, source: "RecordLinear", rows: Tensor, places: Tensor):
        if self._row_places is None:
            self._row_places = packed.row_places(self.weight.layout).to(self.weight.storage.device)
        target, whole = self.weight, source.weight
        packed.copy_rows(whole.storage, rows, target.storage, places, target.layout, self._row_places)
        self.channel_scale[places] = source.channel_scale[rows]

    def _grid_rows(self, ids):
        slabs = packed_linear.unpack(self.weight, (ids // packed.SLAB).to(torch.int32), portable=self._portable)
        return slabs.view(len(ids), packed.SLAB, -1)[torch.arange(len(ids), device=ids.device), ids % packed.SLAB]


def why_not_records(stored: StoredLayer) -> str | None:
    """Why a layer's own bits do not fit the record kernels, or None if they do."""
    if stored.rows % packed.SLAB:
        return f"{stored.rows} rows are no multiple of {packed.SLAB}"
    if stored.columns % 256:
        return f"{stored.columns} columns are no multiple of 256"
    if stored.format == "int8":
        return None
    if stored.group != packed.GROUP:
        return f"groups of {stored.group}"
    scales = _e4m3_bytes(stored.scales)
    if scales is None:
        return "scales that e4m3 does not hold exactly"
    if bool((scales > 127).any()):
        return "negative scales"
    if stored.format == "w4a8" and _relabel(stored.codebook) is None:
        return "a codebook with more than eight levels of one sign"
    return None


def as_int8(stored: StoredLayer) -> StoredLayer:
    """The same int8 grid as an int8 layer: exactly the same results from one byte a weight."""
    grid = to_grid(stored)
    return StoredLayer(
        name=stored.name, format="int8", rows=stored.rows, columns=stored.columns, codes=grid.values,
        rotated=grid.rotated, channel_scale=grid.channel_scale,
    )  # fmt: skip


def stack_key(stored: StoredLayer) -> tuple:
    """Layers with equal keys can be one matrix: same width of codes, same input."""
    return stored.format, stored.columns, stored.rotated


def _tables(group: Sequence[StoredLayer]) -> tuple[Tensor, Tensor | None]:
    """Magnitudes int32 [tables, 256, 4] of the codebooks of a stack of 4-bit layers, and the table of each slab."""
    codebooks: list[Tensor] = []
    table_of = []
    for stored in group:
        codebook = packed.level_codebook(stored.codebook)
        known = [index for index, other in enumerate(codebooks) if torch.equal(other, codebook)]
        if not known:
            codebooks.append(codebook)
        table_of += [known[0] if known else len(codebooks) - 1] * (stored.rows // packed.SLAB)
    tables = [
        packed_linear.magnitude_table(packed.level_table(codebook[_relabel(codebook).argsort()], 4))
        for codebook in codebooks
    ]
    return torch.stack(tables), torch.tensor(table_of, dtype=torch.int32) if len(tables) > 1 else None


def _row_bytes(stored: StoredLayer) -> tuple[Tensor, Tensor]:
    """Codes and scales of a layer as bytes of rows (kernels/packed.py); 4-bit codes with negative levels first."""
    codes = stored.codes.view(torch.uint8)
    if stored.format == "int8":
        return codes, codes.new_empty(0)
    if stored.format == "w4a8":
        codes = _relabelled(codes, _relabel(stored.codebook))
    return codes, _e4m3_bytes(stored.scales)


def _e4m3_bytes(scales: Tensor) -> Tensor | None:
    """Scales as e4m3 bytes, uint8 [N, K/16]; None where float32 scales are not e4m3 values."""
    if scales.dtype == torch.float8_e4m3fn:
        return scales.view(torch.uint8)
    narrow = scales.to(torch.float8_e4m3fn)
    return narrow.view(torch.uint8) if torch.equal(narrow.float(), scales) else None


def _relabel(codebook: Tensor | None) -> Tensor | None:
    """New code of each old code, int64 [16]: its level's rank. None unless 0-7 then are <= 0 and 8-15 >= 0."""
    levels = packed.level_codebook(codebook)
    order = levels.argsort(stable=True)
    if levels[order[7]] > 0 or levels[order[8]] < 0:
        return None
    return order.argsort()


def _relabelled(codes: Tensor, relabel: Tensor) -> Tensor:
    """Bytes of two codes each, with every code replaced."""
    if torch.equal(relabel, torch.arange(16)):
        return codes
    byte = torch.arange(256)
    table = (relabel[byte & 15] | relabel[byte >> 4] << 4).to(torch.uint8)
    return table.to(codes.device)[codes.long()]
