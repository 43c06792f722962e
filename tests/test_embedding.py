"""The embedding lookup of a decode pass has the bits of plain torch, which looks up a prompt's."""

import pytest
import torch
from fastqwen.kernels.embedding import embed_rows, reference

pytest.importorskip("triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# The interpreter cuts a float32 to bf16 instead of rounding it.
DTYPES = [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)]


def inputs(rows, k, vocab=300):
    random = torch.Generator().manual_seed(k + rows)
    grid = torch.randint(-127, 128, (16 * rows, k), generator=random).to(torch.int8)
    ids = torch.randint(0, vocab, (rows,), generator=random)
    return grid.to(DEVICE), ids.to(DEVICE), (torch.rand(vocab, generator=random) + 0.1).to(DEVICE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rotated", [True, False])
@pytest.mark.parametrize("rows,k", [(1, 256), (8, 768), pytest.param(8, 5120, marks=pytest.mark.gpu)])
def test_rows_have_the_bits_of_plain_torch(rows, k, rotated, dtype):
    grid, ids, scale = inputs(rows, k)
    for numbers in (ids, ids.to(torch.int32)):
        out = torch.full((rows, k), float("nan"), dtype=dtype, device=DEVICE)
        found = embed_rows(grid, numbers, scale, rotated=rotated, out=out)
        assert found is out and torch.equal(out, reference(grid, ids, scale, rotated=rotated, dtype=dtype))


def test_wrong_inputs_are_refused_by_name():
    grid, ids, scale = inputs(2, 512)
    out = torch.empty(2, 512, device=DEVICE)
    for words, change in (
        ("grid must be", {"grid": grid[:16]}),
        ("ids must be", {"ids": ids.float()}),
        ("channel_scale must be", {"channel_scale": scale.double()}),
        ("out must be", {"out": out.double()}),
    ):
        with pytest.raises(ValueError, match=words):
            embed_rows(**{"grid": grid, "ids": ids, "channel_scale": scale, "out": out, "rotated": True} | change)
    with pytest.raises(ValueError, match="no multiple of 256"):
        embed_rows(grid[:, :384].contiguous(), ids, scale, rotated=True, out=out[:, :384].contiguous())
