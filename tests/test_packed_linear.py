"""The packed linear kernels against the integer reference: exact, for every shape, split and number of rows.

On a CPU the portable form runs under Triton's interpreter; on a GPU both forms run.
"""

import pytest
import torch
from fastqwen.kernels import packed, packed_linear
from fastqwen.kernels.packed import Layout
from fastqwen.kernels.packed_linear import Config, PackedWeight, PlainRows, magnitude_table, reference, scale_window

pytest.importorskip("triton")
ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
CODEBOOK = torch.tensor([
    -0.980602, -0.794529, -0.638165, -0.500986, -0.377321, -0.263187, -0.155210, -0.050720,
    0.052541, 0.156985, 0.265284, 0.379533, 0.502636, 0.638953, 0.794876, 0.980671,
])  # fmt: skip
FORMS = [pytest.param(True, id="portable"), pytest.param(False, id="nvidia", marks=pytest.mark.gpu)]
# The interpreter cuts a float32 to bf16 instead of rounding it, so bf16 outputs are compared on a GPU only.
DTYPES = [pytest.param(torch.float32, id="fp32"), pytest.param(torch.bfloat16, id="bf16", marks=pytest.mark.gpu)]
# K with one record, an odd number of them, wide and narrow records; N down to one slab.
SHAPES = [(16, 256), (48, 768), (64, 1024), (16, 2560), (32, 3584)]
SOME = Config(4, 40, True)
LARGE = [(512, 5120), (512, 9216), (4096, 4096), (512, 12288), (528, 17408)]


def generator(seed):
    return torch.Generator().manual_seed(seed)


def random_weight(bits, rows, columns, seed=0, scales=(0x58, 0x70)):
    """(PackedWeight on DEVICE, int8 grid [N, K] on the CPU)."""
    layout = Layout(bits, rows, columns)
    storage = torch.randint(0, 256, (layout.bytes,), dtype=torch.uint8, generator=generator(seed))
    split = rows * layout.code_bytes
    low, high = scales
    storage[split:] = torch.randint(low, high, storage[split:].shape, generator=generator(seed + 1)).to(torch.uint8)
    codes, scale_bytes = storage[:split].view(rows, -1), storage[split:].view(rows, -1)
    levels = packed.level_table(CODEBOOK, 4 if bits == 8 else bits)
    grid = packed.grid_of(codes, scale_bytes, layout, levels).clone()
    window = scale_window(scale_bytes) if bits == 4 else -1
    table = magnitude_table(levels)[None] if bits == 4 else torch.empty(0, dtype=torch.int32)
    packed.to_records(storage, layout)
    channel_scale = torch.rand(rows, generator=generator(seed + 2)) * 1e-2 + 1e-4
    return PackedWeight(storage.to(DEVICE), layout, channel_scale.to(DEVICE), table.to(DEVICE), window), grid


def random_rows(columns, rows=8, seed=5):
    """Prepared activations: x8 [8, K] and x_scale [8] on the CPU; rows past `rows` are zero."""
    x8 = torch.randint(-127, 128, (8, columns), generator=generator(seed)).to(torch.int8)
    x_scale = torch.rand(8, generator=generator(seed + 1)) * 1e-2 + 1e-4
    x8[rows:], x_scale[rows:] = 0, 1.0
    return x8, x_scale


def kernel_order(x8):
    """[8, K] -> [K / 64, 8, 64] on DEVICE."""
    return x8.view(8, -1, 64).transpose(0, 1).contiguous().to(DEVICE)


def run(weight, x8, x_scale, *, portable, config=SOME, residual=None, dtype=torch.float32, joint=None):
    out = torch.full((8, weight.layout.rows), float("nan"), dtype=dtype, device=DEVICE)
    residual = None if residual is None else residual.to(DEVICE)
    result = packed_linear.packed_linear(
        kernel_order(x8), x_scale.to(DEVICE), weight, residual=residual, out=out, config=config, joint=joint,
        portable=portable,
    )  # fmt: skip
    return result.cpu()


@pytest.mark.parametrize("portable", FORMS)
@pytest.mark.parametrize("bits", [4, 6, 8])
@pytest.mark.parametrize("rows,columns", SHAPES + [pytest.param(*s, marks=pytest.mark.gpu) for s in LARGE])
def test_every_shape_is_exact(portable, bits, rows, columns):
    weight, grid = random_weight(bits, rows, columns, scales=(0x58, 0x70) if bits == 4 else (0x30, 0x4C))
    x8, x_scale = random_rows(columns)
    wanted = reference(x8, x_scale, grid, weight.channel_scale.cpu())
    assert torch.equal(run(weight, x8, x_scale, portable=portable), wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("bits", [4, 6, 8])
@pytest.mark.parametrize("config", [(1, 1), (1, 132), (2, 3), (4, 264), (8, 7), (8, 999), (16, 132)])
@pytest.mark.parametrize("early", [False, True])
def test_every_split_is_exact(bits, config, early):
    weight, grid = random_weight(bits, 1040, 2560, scales=(0x58, 0x70) if bits == 4 else (0x30, 0x4C))
    x8, x_scale = random_rows(2560)
    wanted = reference(x8, x_scale, grid, weight.channel_scale.cpu())
    assert torch.equal(run(weight, x8, x_scale, portable=False, config=Config(*config, early)), wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("bits", [4, 6, 8])
@pytest.mark.parametrize("blocks,parts", [(64, 2), (64, 5), (60, 3), (132, 2), (264, 4), (1, 7)])
def test_slabs_cut_into_parts_are_exact_in_every_launch(bits, blocks, parts):
    """1040 rows are 65 slabs: one is cut, five, all of them in several turns, or none."""
    weight, grid = random_weight(bits, 1040, 2560, scales=(0x58, 0x70) if bits == 4 else (0x30, 0x4C))
    config = Config(2, blocks, False, parts=parts)
    joint = packed_linear.new_joint(weight.layout, config, DEVICE)
    assert (joint is None) == (blocks == 1)
    for seed in range(3):  # each launch finds the zeros that the one before left
        x8, x_scale = random_rows(2560, seed=seed)
        residual = torch.randn(8, 1040, generator=generator(seed))
        wanted = reference(x8, x_scale, grid, weight.channel_scale.cpu(), residual)
        found = run(weight, x8, x_scale, portable=False, config=config, residual=residual, joint=joint)
        assert torch.equal(found, wanted)
    assert joint is None or not (joint.sums.any() or joint.counts.any())


def test_a_launch_that_cuts_slabs_wants_room_for_their_sums():
    layout, config = Layout(4, 1040, 512), Config(2, 60, False, parts=3)
    assert packed_linear.cut_slabs(layout, config) == 5 and packed_linear.cut_slabs(layout, Config(2, 60, False)) == 0
    joint = packed_linear.new_joint(layout, config, torch.device("cpu"))
    assert joint.sums.numel() == 5 * 128 and joint.counts.numel() == 5
    weight, _ = random_weight(4, 1040, 512)
    for wrong in (None, packed_linear.new_joint(layout, Config(2, 61, False, parts=3), torch.device("cpu"))):
        with pytest.raises(ValueError, match="5 slabs are cut"):
            run(weight, *random_rows(512), portable=False, config=config, joint=wrong)


def test_few_slabs_of_a_last_turn_are_cut_and_many_are_not():
    for rows, columns, cut in (
        (17408, 5120, 32),
        (34816, 5120, 64),
        (5120, 17408, 56),
        (24576, 4096, 0),
        (4096, 4096, 0),
    ):
        layout = Layout(4, rows, columns)
        assert packed_linear.cut_slabs(layout, packed_linear.launch_config(layout, 132)) == cut


@pytest.mark.parametrize("portable", FORMS)
@pytest.mark.parametrize("bits", [4, 6, 8])
def test_a_row_does_not_depend_on_the_others(portable, bits):
    weight, _ = random_weight(bits, 48, 768)
    x8, x_scale = random_rows(768)
    full = run(weight, x8, x_scale, portable=portable)
    for rows in (1, 3, 7):
        part = run(weight, *random_rows(768, rows), portable=portable)
        assert torch.equal(part[:rows], full[:rows]) and not part[rows:].any()
    moved = run(weight, x8.roll(3, 0), x_scale.roll(3, 0), portable=portable)
    assert torch.equal(moved, full.roll(3, 0))


@pytest.mark.parametrize("portable", FORMS)
@pytest.mark.parametrize("bits", [4, 6, 8])
@pytest.mark.parametrize("dtype", DTYPES)
def test_residual_is_added_in_float32_before_the_one_rounding(portable, bits, dtype):
    weight, grid = random_weight(bits, 48, 768)
    x8, x_scale = random_rows(768)
    residual = (torch.randn(8, 48, generator=generator(9)) * 3).to(dtype)
    wanted = reference(x8, x_scale, grid, weight.channel_scale.cpu(), residual).to(dtype)
    assert torch.equal(run(weight, x8, x_scale, portable=portable, residual=residual, dtype=dtype), wanted)


@pytest.mark.parametrize("portable", FORMS)
def test_every_scale_byte_and_code_is_decoded_exactly(portable):
    """All 127 finite e4m3 scales without a sign (wider than the register window), every code beside each."""
    for bits, count in ((4, 16), (6, 64)):
        rows, columns = 128, 256 * (count // 16)
        layout = Layout(bits, rows, columns)
        codes = torch.arange(columns).remainder(count).expand(rows, -1).to(torch.uint8)
        scales = torch.arange(rows).clamp(max=126).to(torch.uint8)[:, None].expand(-1, columns // 16)
        storage = torch.cat([packed.bytes_of(codes, layout).flatten(), scales.flatten()])
        levels = packed.level_table(CODEBOOK, bits)
        grid = packed.grid_of(packed.bytes_of(codes, layout), scales, layout, levels)
        table = magnitude_table(levels)[None] if bits == 4 else torch.empty(0, dtype=torch.int32)
        packed.to_records(storage, layout)
        weight = PackedWeight(storage.to(DEVICE), layout, torch.ones(rows, device=DEVICE), table.to(DEVICE), -1)
        x8, x_scale = random_rows(columns)
        assert torch.equal(run(weight, x8, x_scale, portable=portable), reference(x8, x_scale, grid, torch.ones(rows)))
        slabs = torch.arange(rows // 16, dtype=torch.int32, device=DEVICE)
        assert torch.equal(packed_linear.unpack(weight, slabs, portable=portable).cpu(), grid)


@pytest.mark.parametrize("portable", FORMS)
@pytest.mark.parametrize("scales", [(0x58, 0x70), (0, 0x7F)], ids=["window", "any"])
@pytest.mark.parametrize("bits", [4, 6, 8])
@pytest.mark.parametrize("rows,columns", [(64, 256), (48, 768), (32, 1024), (32, 2560)])
def test_unpacked_slabs_are_the_grid(bits, rows, columns, scales, portable):
    weight, grid = random_weight(bits, rows, columns, scales=scales)
    slabs = torch.tensor([1, 0, 1], dtype=torch.int32, device=DEVICE)
    found = packed_linear.unpack(weight, slabs, portable=portable).cpu()
    assert torch.equal(found, torch.cat([grid[16:32], grid[:16], grid[16:32]]))


def stacked(columns=768, scales=(0x58, 0x70)):
    """Three 4-bit matrices with codebooks of their own as one: (PackedWeight, int8 grid)."""
    parts, tables, grids, counts = [], [], [], (16, 48, 32)
    for index, rows in enumerate(counts):
        layout = Layout(4, rows, columns)
        storage = torch.randint(0, 256, (layout.bytes,), dtype=torch.uint8, generator=generator(index))
        split = rows * layout.code_bytes
        drawn = torch.randint(*scales, storage[split:].shape, generator=generator(index + 10))
        storage[split:] = drawn.to(torch.uint8)
        levels = packed.level_table(CODEBOOK * (1 - 0.2 * index), 4)
        grids.append(packed.grid_of(storage[:split].view(rows, -1), storage[split:].view(rows, -1), layout, levels))
        tables.append(magnitude_table(levels))
        packed.to_records(storage, layout)
        parts.append(storage)
    layout = Layout(4, sum(counts), columns)
    table_of = torch.repeat_interleave(torch.arange(3, dtype=torch.int32), torch.tensor([n // 16 for n in counts]))
    window = scales[0] if scales[1] - scales[0] < 32 else -1
    weight = PackedWeight(
        torch.cat(parts).to(DEVICE), layout, torch.rand(layout.rows, generator=generator(7)).to(DEVICE),
        torch.stack(tables).to(DEVICE), window, table_of.to(DEVICE),
    )  # fmt: skip
    return weight, torch.cat(grids)


@pytest.mark.parametrize("portable", FORMS)
@pytest.mark.parametrize("scales", [(0x58, 0x70), (0, 0x7F)], ids=["window", "any"])
def test_stacked_matrices_keep_their_own_levels(portable, scales):
    weight, grid = stacked(scales=scales)
    x8, x_scale = random_rows(768)
    wanted = reference(x8, x_scale, grid, weight.channel_scale.cpu())
    for blocks in (1, 2, 40):
        config = Config(4, blocks, blocks == 1)
        assert torch.equal(run(weight, x8, x_scale, portable=portable, config=config), wanted)
    slabs = torch.tensor([5, 0, 1, 3], dtype=torch.int32, device=DEVICE)
    found = packed_linear.unpack(weight, slabs, portable=portable).cpu()
    assert torch.equal(found, grid.view(-1, 16, 768)[slabs.cpu().long()].flatten(0, 1))


@pytest.mark.gpu
@pytest.mark.parametrize("warps", [1, 2, 4, 8])
@pytest.mark.parametrize("columns,plain_rows", [(768, 1), (4096, 64), (5120, 96)])
def test_plain_rows_run_beside_packed_ones_and_each_slot_alone(warps, columns, plain_rows):
    weight, grid = random_weight(4, 1040, columns)
    x8, x_scale = random_rows(columns)
    x = torch.randn(8, columns, generator=generator(3)).bfloat16().to(DEVICE)
    plain = torch.randn(plain_rows, columns, generator=generator(4)).bfloat16().to(DEVICE)

    def both(x):
        out = torch.full((8, 1040), float("nan"), device=DEVICE)
        beside = PlainRows(x, plain, torch.full((8, plain_rows), float("nan"), device=DEVICE))
        packed_linear.packed_linear(
            kernel_order(x8), x_scale.to(DEVICE), weight, plain=beside, out=out, config=Config(warps, 99, False)
        )  # fmt: skip
        return out.cpu(), beside.out

    out, found = both(x)
    assert torch.equal(out, reference(x8, x_scale, grid, weight.channel_scale.cpu()))
    wanted = x.double() @ plain.double().T
    bound = columns * 2.0**-24 * (x.double().abs() @ plain.double().abs().T)  # a sum of K exact products in float32
    assert ((found.double() - wanted).abs() <= bound).all()
    lone = torch.zeros_like(x)
    lone[5] = x[2]
    assert torch.equal(both(lone)[1][5], found[2])


def test_plain_rows_are_refused_by_the_portable_form():
    weight, _ = random_weight(4, 16, 256)
    x8, x_scale = random_rows(256)
    beside = PlainRows(*(torch.zeros(8, 256, device=DEVICE),) * 3)
    with pytest.raises(ValueError, match="call float_linear"):
        packed_linear.packed_linear(
            kernel_order(x8), x_scale.to(DEVICE), weight, plain=beside, out=torch.empty(8, 16, device=DEVICE),
            config=Config(4, 8, False), portable=True,
        )  # fmt: skip


def test_window_holds_thirty_two_neighbouring_bytes_or_says_no():
    assert scale_window(torch.tensor([0x51, 0x70], dtype=torch.uint8)) == 0x51
    assert scale_window(torch.tensor([0x50, 0x70], dtype=torch.uint8)) == -1
    assert scale_window(torch.tensor([0x7D], dtype=torch.uint8)) == 0x60  # the table's rows end at 0x7F


def test_levels_that_do_not_split_by_sign_are_refused():
    with pytest.raises(ValueError, match="codes 0-7"):
        magnitude_table(packed.level_table(CODEBOOK.flip(0), 4))


@pytest.mark.parametrize("what", ["x8", "x_scale", "out", "residual", "strides"])
def test_wrong_inputs_are_refused_by_name(what):
    weight, _ = random_weight(4, 16, 256)
    good = {
        "x8": torch.zeros(4, 8, 64, dtype=torch.int8, device=DEVICE),
        "x_scale": torch.ones(8, device=DEVICE),
        "out": torch.empty(8, 16, device=DEVICE),
        "residual": None,
    }
    bad = {
        "x8": {"x8": good["x8"].float()},
        "x_scale": {"x_scale": torch.ones(7, device=DEVICE)},
        "out": {"out": torch.empty(8, 16, dtype=torch.float16, device=DEVICE)},
        "residual": {"residual": torch.empty(8, 16, dtype=torch.bfloat16, device=DEVICE)},
        "strides": {"out": torch.empty(16, 8, device=DEVICE).T},
    }[what]
    call = good | bad
    with pytest.raises(ValueError, match="out" if what == "strides" else what):
        packed_linear.packed_linear(
            call["x8"], call["x_scale"], weight, residual=call["residual"], out=call["out"], config=Config(4, 8, False),
            portable=not ON_GPU,
        )  # fmt: skip
