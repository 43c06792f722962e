"""The record layout: reversible, in place, and the meaning of every byte."""

import pytest
import torch
from fastqwen.kernels import packed
from fastqwen.kernels.packed import Layout

SHAPES = [(16, 256), (48, 768), (32, 1024), (512, 512), (16, 3584), (64, 2560)]


def random_storage(layout, seed=0):
    return torch.randint(0, 256, (layout.bytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("bits", [4, 6, 8])
@pytest.mark.parametrize("rows,columns", SHAPES)
def test_records_and_rows_are_inverse_in_place(bits, rows, columns):
    layout = Layout(bits, rows, columns)
    storage = random_storage(layout)
    before = storage.clone()
    address = storage.data_ptr()
    packed.to_records(storage, layout)
    assert not torch.equal(storage, before)
    codes, scales = packed.read_rows(storage, layout, 0, rows // 16)
    split = rows * layout.code_bytes
    assert torch.equal(codes.flatten(), before[:split]) and torch.equal(scales.flatten(), before[split:])
    packed.to_rows(storage, layout)
    assert torch.equal(storage, before) and storage.data_ptr() == address


@pytest.mark.parametrize("bits", [4, 6, 8])
def test_codes_and_bytes_are_inverse(bits):
    layout = Layout(bits, 16, 512)
    codes = torch.randint(0, 2**bits, (16, 512), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    codes = codes.view(torch.int8) if bits == 8 else codes
    assert torch.equal(packed.codes_of(packed.bytes_of(codes, layout), layout), codes)


@pytest.mark.parametrize("bits", [4, 6, 8])
@pytest.mark.parametrize("columns", [256, 1024])
def test_every_lane_finds_its_fragment_in_sixteen_bytes(bits, columns):
    """Spells out the address of every code and scale, byte by byte, from the layout's own words."""
    layout = Layout(bits, 32, columns)
    storage = random_storage(layout, seed=2)
    split = layout.rows * layout.code_bytes
    codes = packed.codes_of(storage[:split].view(32, -1).clone(), layout).view(torch.uint8)
    scales = storage[split:].view(32, -1).clone()
    packed.to_records(storage, layout)
    size = layout.record_columns
    record_bytes = layout.slab_bytes // (columns // size)
    generator = torch.Generator().manual_seed(3)
    for _ in range(400):
        row, column = (int(torch.randint(limit, (1,), generator=generator)) for limit in (32, columns))
        record = (row // 16 * (columns // size) + column // size) * record_bytes
        half, g, j, t, c = row % 16 // 8, row % 8, column % size // 64, column % 64 // 16, column % 16
        lane = 4 * g + t
        if bits == 8:
            assert storage[record + j * 1024 + half * 512 + lane * 16 + c] == codes[row, column]
            continue
        low = int(storage[record + j * 512 + lane * 16 + half * 8 + c // 2]) >> 4 * (c % 2) & 15
        top = 0
        if bits == 6:
            word = record + size * 8 + j // 2 * 512 + lane * 16 + j % 2 * 8 + half * 4
            top = int(storage[word + c % 8 // 2]) >> (2 * (c % 2) + 4 * (c // 8)) & 3
        assert low | top << 4 == codes[row, column]
        at = record + size * (8 if bits == 4 else 12) + lane * (size // 32) + j * 2 + half
        assert storage[at] == scales[row, column // 16]


def test_level_tables_hold_every_scale_and_code():
    codebook = torch.linspace(-1, 1, 16)
    values = packed.e4m3_values()
    four, six = packed.level_table(codebook, 4), packed.level_table(None, 6)
    for byte in (0, 1, 0x38, 0x51, 0x70, 0x7E):
        scale = float(values[byte])
        for code in range(16):
            wanted = max(-127, min(127, round(float(torch.tensor(scale) * codebook[code]))))
            assert four[byte, code] == wanted
        for code in range(64):
            assert six[byte, code] == max(-127, min(127, round((code - 32) * scale)))
    assert not four[0x7F].any()


def test_extra_memory_of_the_repack_is_the_scales_and_one_slab():
    """Counts what is allocated while the storage is interleaved."""
    from torch.utils._python_dispatch import TorchDispatchMode

    layout = Layout(4, 4096, 1024)
    storage = random_storage(layout)

    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, (tuple, list)) else [result]:
                if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() != storage.data_ptr():
                    self.size = max(self.size, tensor.untyped_storage().nbytes())
            return result

    with Largest() as seen:
        packed.to_records(storage, layout)
    assert 0 < seen.size <= max(layout.rows * layout.scale_bytes, layout.slab_bytes)


@pytest.mark.parametrize("bits,rows,columns", [(5, 16, 256), (4, 8, 256), (4, 16, 128), (4, 0, 256)])
def test_shapes_without_a_record_layout_are_refused(bits, rows, columns):
    with pytest.raises(ValueError, match="record layout"):
        Layout(bits, rows, columns)


def test_storage_of_another_size_or_dtype_is_refused():
    layout = Layout(4, 16, 256)
    for storage in (torch.zeros(5, dtype=torch.uint8), torch.zeros(layout.bytes, dtype=torch.int8)):
        with pytest.raises(ValueError, match="uint8"):
            packed.to_records(storage, layout)


@pytest.mark.parametrize("bits", [4, 6, 8])
@pytest.mark.parametrize("columns", [256, 512, 768])
def test_copied_rows_are_the_sources_wherever_they_lie(bits, columns):
    source, target = Layout(bits, 64, columns), Layout(bits, 32, columns)
    storage, kept = random_storage(source, seed=5), random_storage(target, seed=6)
    before = kept.clone()
    generator = torch.Generator().manual_seed(7)
    rows, places = torch.randperm(64, generator=generator)[:20], torch.randperm(32, generator=generator)[:20]
    packed.copy_rows(storage, rows, kept, places, target, packed.row_places(target))
    others = [place for place in range(32) if place not in places.tolist()]
    for found, wanted, old in zip(
        packed.read_rows(kept, target, 0, 2), packed.read_rows(storage, source, 0, 4),
        packed.read_rows(before, target, 0, 2), strict=True,
    ):  # fmt: skip
        assert torch.equal(found[places], wanted[rows]) and torch.equal(found[others], old[others])
