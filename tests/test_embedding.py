"""The embedding lookup of a decode pass has the bits of plain torch, which looks up a prompt's."""

from dataclasses import replace

import pytest
import torch
from fastqwen.kernels.embedding import Table, embed_rows, reference
from fastqwen.weights.decode import to_grid
from fastqwen.weights.packed_linear import RecordLinear
from fastqwen.weights.quantize import encode

pytest.importorskip("triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# The interpreter cuts a float32 to bf16 instead of rounding it.
DTYPES = [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)]
IDS = [5, 0, 47, 16, 31, 5, 20, 33]


def stored_layers(format, columns):
    """Two layers of one format, the second with other levels where there are any: two codebooks in one table."""
    weight = torch.randn(48, columns, generator=torch.Generator().manual_seed(columns))
    first, second = (encode(part, format).stored("layer") for part in (weight[:32], weight[32:]))
    if format == "w4a8":
        second = replace(second, codebook=torch.linspace(-1, 1, 16))
    return first, second


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("format,columns", [("int8", 256), ("int8", 768), ("w6a8", 512), ("w4a8", 1024)])
def test_rows_of_records_have_the_bits_of_plain_torch(format, columns, dtype):
    stored = stored_layers(format, columns)
    grids = [to_grid(layer) for layer in stored]
    grid, scale = torch.cat([grid.values for grid in grids]), torch.cat([grid.channel_scale for grid in grids])
    records = RecordLinear.of(stored, DEVICE)
    for rotated in (True, False):
        table = Table(records.weight, rotated)
        for ids in (torch.tensor(IDS), torch.tensor(IDS[2:3], dtype=torch.int32)):
            out = torch.full((len(ids), columns), float("nan"), dtype=dtype, device=DEVICE)
            assert embed_rows(table, ids.to(DEVICE), out=out) is out
            assert torch.equal(out.cpu(), reference(grid, ids.long(), scale, rotated=rotated, dtype=dtype))


@pytest.mark.parametrize("columns", [64, 640])
def test_rows_of_a_plain_table_are_copied(columns):
    table = torch.randn(48, columns, device=DEVICE)
    ids = torch.tensor(IDS, device=DEVICE)
    out = torch.full((8, columns), float("nan"), device=DEVICE)
    assert torch.equal(embed_rows(Table(table), ids, out=out), table[ids])


def test_wrong_inputs_are_refused_by_name():
    table, ids, out = Table(torch.ones(48, 64, device=DEVICE)), torch.tensor([3, 4], device=DEVICE), torch.empty(2, 64)
    with pytest.raises(ValueError, match="ids must be"):
        embed_rows(table, ids.float(), out=out.to(DEVICE))
    for wrong in (out[:, :32].contiguous(), out.double(), out[:1]):
        with pytest.raises(ValueError, match="out must be"):
            embed_rows(table, ids, out=wrong.to(DEVICE))
