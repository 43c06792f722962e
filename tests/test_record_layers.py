"""From a stored layer to records: what fits the kernels, what is relabelled, and what runs from 8 bits instead."""

import dataclasses

import pytest
import torch
from fastqwen.kernels import packed
from fastqwen.kernels.packed import Layout
from fastqwen.weights import packed_linear
from fastqwen.weights.decode import to_grid
from fastqwen.weights.packed_linear import RecordLinear, as_int8, why_not_records
from fastqwen.weights.quantize import encode

pytest.importorskip("triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def stored_layer(format, rows=48, columns=512, seed=0):
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * 0.02
    return encode(weight, format).stored("layer")


def grid_of(records):
    from fastqwen.kernels.packed_linear import unpack

    slabs = torch.arange(records.weight.layout.rows // 16, dtype=torch.int32, device=DEVICE)
    return unpack(records.weight, slabs, portable=DEVICE.type == "cpu").cpu()


@pytest.mark.parametrize("format", ["w4a8", "w6a8", "int8"])
def test_records_hold_the_grid_of_the_file(format):
    stored = stored_layer(format)
    assert why_not_records(stored) is None
    records = RecordLinear.of([stored], DEVICE)
    assert torch.equal(grid_of(records), to_grid(stored).values)
    assert records.weight.storage.numel() == Layout({"w4a8": 4, "w6a8": 6, "int8": 8}[format], 48, 512).bytes


@pytest.mark.parametrize("format", ["w4a8", "w6a8", "int8"])
def test_stacked_layers_are_their_grids_one_after_the_other(format):
    group = [stored_layer(format, rows, seed=rows) for rows in (16, 48, 32)]
    records = RecordLinear.of(group, DEVICE)
    assert torch.equal(grid_of(records), torch.cat([to_grid(stored).values for stored in group]))
    assert torch.equal(records.channel_scale.cpu(), torch.cat([stored.channel_scale for stored in group]))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_codebooks_in_any_order_are_relabelled(seed):
    """Levels of both signs mixed; a level of zero may go to either half."""
    order = torch.randperm(16, generator=torch.Generator().manual_seed(seed))
    levels = torch.cat([torch.linspace(-1, -0.1, 7), torch.zeros(1), torch.linspace(0.1, 0.8, 8)])[order]
    stored = dataclasses.replace(stored_layer("w4a8"), codebook=levels)
    assert why_not_records(stored) is None
    assert torch.equal(grid_of(RecordLinear.of([stored], DEVICE)), to_grid(stored).values)


def test_float32_scales_that_e4m3_holds_are_narrowed():
    stored = stored_layer("w6a8")
    wide = dataclasses.replace(stored, scales=stored.scales.float())
    assert why_not_records(wide) is None
    assert torch.equal(grid_of(RecordLinear.of([wide], DEVICE)), to_grid(stored).values)


def misfits():
    four = stored_layer("w4a8")
    scales = four.scales.float()
    yield "multiple of 16", stored_layer("w4a8", rows=40)
    yield "e4m3", dataclasses.replace(four, scales=scales * 1.01)
    yield "negative", dataclasses.replace(four, scales=(-scales).to(torch.float8_e4m3fn))
    yield "more than eight", dataclasses.replace(four, codebook=torch.linspace(-1, 0.2, 16))
    yield "groups of 32", dataclasses.replace(four, group=32, scales=four.scales[:, ::2].contiguous())


def test_a_prompts_rows_have_the_same_bits_in_tiles_of_any_size(monkeypatch):
    stored, made = stored_layer("w6a8", 80, 256), []
    for slabs, most in ((2, 1), (2, 4 * 16 * 256), (512, 1)):  # tiles of 2; 5 slabs as 3 and 2; all at once
        monkeypatch.setattr(packed_linear, "TILE_SLABS", slabs)
        monkeypatch.setattr(packed_linear, "WHOLE_BYTES", most)
        made.append(RecordLinear.of([stored], DEVICE))
    assert [[len(tile[0]) for tile in each._large_tiles] for each in made] == [[2, 2, 1], [3, 2], [5]]
    generator = torch.Generator().manual_seed(0)
    x8 = torch.randint(-127, 128, (9, 256), generator=generator, dtype=torch.int8).to(DEVICE)
    scale, residual = torch.rand(9, generator=generator).to(DEVICE), torch.randn(9, 80, generator=generator).to(DEVICE)
    results = [each(x8, scale, added, torch.float32) for each in made for added in (None, residual)]
    monkeypatch.setattr(packed_linear, "FEW_ROWS", 8)
    results += [made[1](x8, scale, added, torch.float32) for added in (None, residual)]  # the small tiles
    assert all(torch.equal(result, results[turn % 2]) for turn, result in enumerate(results))


@pytest.mark.parametrize("word,stored", list(misfits()), ids=[word for word, _ in misfits()])
def test_layers_that_do_not_fit_say_why_and_mean_the_same_in_8_bits(word, stored):
    assert word in why_not_records(stored)
    grid = as_int8(stored)
    assert torch.equal(to_grid(grid).values, to_grid(stored).values)
    if stored.rows % 16 == 0:
        assert why_not_records(grid) is None
        assert torch.equal(grid_of(RecordLinear.of([grid], DEVICE)), to_grid(stored).values)


def test_record_layer_rows_are_looked_up_un_rotated():
    stored = stored_layer("int8", rows=64)
    records = RecordLinear.of([stored], DEVICE)
    ids = torch.tensor([5, 63, 5, 0], device=DEVICE)
    found = records.weight_rows(ids, torch.float32).cpu()
    from fastqwen.weights.decode import to_float

    wanted = to_float(stored)[ids.cpu()]
    assert ((found - wanted).norm() / wanted.norm()).item() < 64 * 2**-24  # 256 additions in another order


@pytest.mark.gpu
@pytest.mark.parametrize("bits", [4, 6])
def test_repacking_on_a_gpu_needs_the_scales_and_a_little_more(bits):
    layout = Layout(bits, 8192, 4096)
    storage = torch.randint(0, 256, (layout.bytes,), dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    packed.to_records(storage, layout)
    extra = torch.cuda.max_memory_allocated() - before
    # The scales, one slab, and the slab's unpacked pieces (a byte for each pair of bits at most).
    assert extra <= layout.rows * layout.scale_bytes + 16 * layout.slab_bytes
