"""Times packed_linear over its launch configurations on real shapes, correctness first; finds the launch table's rows.

python -m fastqwen.benchmarks.linear_sweep [--bits 4 6 8] [--shapes 34816x5120 ...] [--beside 96]

Blocks are so many a multiprocessor, or "even": as many as make every one take the same number of slabs, where the last
slab of a few blocks would otherwise run alone. Or those last slabs are cut into parts. --beside adds plain rows to the
launch, as DeltaNet's a and b are.
"""

import argparse
import itertools
import json

import torch

from ..kernels import packed
from ..kernels.packed import Layout
from ..kernels.packed_linear import (
    Config,
    PackedWeight,
    PlainRows,
    cut_slabs,
    magnitude_table,
    new_joint,
    packed_linear,
    reference,
)
from ..option_types import whole
from .timing import graph_microseconds, main_gpu, read_ceiling

SHAPES = [
    (4096, 4096), (8192, 4096), (10240, 4096), (12288, 4096), (24576, 4096), (4096, 12288), (248320, 4096),
    (5120, 6144), (14336, 5120), (16384, 5120), (17408, 5120), (34816, 5120), (5120, 17408), (248320, 5120),
]  # fmt: skip
CODEBOOK = torch.linspace(-0.98, 0.98, 16)
ALL = 10**6  # a block for each slab
# (warps, blocks a multiprocessor, registers), each with early loads and without, and for its even number of blocks
CONFIGS = [
    (1, 16, None), (1, ALL, None), (2, 4, None), (2, 8, None), (2, 9, 112), (2, ALL, None), (4, 3, None), (4, 4, None),
    (4, 5, 100), (4, ALL, None), (8, 2, None), (8, ALL, None),
]  # fmt: skip
CALLS = 40  # in one graph: its own launch is a few microseconds
MAX_COPY_BYTES = 300e6  # weights are rotated through more memory than the L2


def random_weight(layout: Layout, device: torch.device) -> PackedWeight:
    """Random records; only their statistics matter here."""
    storage = torch.randint(0, 256, (layout.bytes,), dtype=torch.uint8, device=device)
    records = storage.view(-1, layout.slab_bytes // (layout.columns // layout.record_columns))
    if layout.bits != 8:
        low, high = (0x58, 0x70) if layout.bits == 4 else (0x37, 0x4A)
        tail = layout.record_columns
        records[:, -tail:] = torch.randint(low, high, records[:, -tail:].shape, dtype=torch.uint8, device=device)
    table = (
        magnitude_table(packed.level_table(CODEBOOK, 4))[None]
        if layout.bits == 4
        else torch.empty(0, dtype=torch.int32)
    )
    channel_scale = torch.rand(layout.rows, device=device) * 1e-3
    return PackedWeight(storage, layout, channel_scale, table.to(device), 0x51 if layout.bits == 4 else -1)


def check(weight: PackedWeight, config, device: torch.device, dependent: bool) -> bool:
    """Exact against the integer reference on the first slabs."""
    layout = weight.layout
    x8 = torch.randint(-127, 128, (8, layout.columns), dtype=torch.int8, device=device)
    x_scale = torch.rand(8, device=device) * 1e-2
    out = torch.full((8, layout.rows), float("nan"), device=device)
    packed_linear(x8.view(8, -1, 64).transpose(0, 1).contiguous(), x_scale, weight, out=out, config=config,
                  joint=new_joint(layout, config, device), dependent=dependent)  # fmt: skip
    slabs = min(4, layout.rows // 16)
    codes, scales = packed.read_rows(weight.storage, layout, 0, slabs)
    levels = packed.level_table(CODEBOOK, 4 if layout.bits == 8 else layout.bits).to(device)
    grid = packed.grid_of(codes, scales, layout, levels)
    rows = slabs * 16
    wanted = reference(x8, x_scale, grid, weight.channel_scale[:rows])
    return bool(torch.equal(out[:, :rows], wanted)) and bool(torch.isfinite(out).all())


def time_config(weights: list[PackedWeight], config, beside: int = 0) -> float:
    """Microseconds a call, each over another copy of the weights; with `beside` plain rows in the same launch."""
    layout, device = weights[0].layout, weights[0].storage.device
    x8 = torch.randint(-127, 128, (layout.columns // 64, 8, 64), dtype=torch.int8, device=device)
    x_scale = torch.rand(8, device=device)
    out = torch.empty(8, layout.rows, dtype=torch.bfloat16, device=device)
    plain = [None] * len(weights)
    if beside:
        x = torch.randn(8, layout.columns, dtype=torch.bfloat16, device=device)
        matrices = torch.randn(len(weights), beside, layout.columns, dtype=torch.bfloat16, device=device)
        plain = [PlainRows(x, matrix, out.new_empty(8, beside)) for matrix in matrices]
    pairs = (list(zip(weights, plain, strict=True)) * CALLS)[: max(CALLS, len(weights))]
    joint = new_joint(layout, config, device)
    calls = [
        lambda w=w, p=p: packed_linear(x8, x_scale, w, out=out, plain=p, config=config, joint=joint, dependent=True)
        for w, p in pairs
    ]
    return graph_microseconds(calls, 8)


def configs(layout: Layout, multiprocessors: int) -> list[Config]:
    """Every launch to try on a matrix."""
    found = []
    slabs, records = layout.rows // packed.SLAB, layout.columns // layout.record_columns
    for (warps, units, registers), early in itertools.product(CONFIGS, (False, True)):
        resident = units * multiprocessors
        blocks = min(resident, slabs)
        turns = -(-slabs // blocks)
        found += [Config(warps, count, early, registers) for count in {blocks, -(-slabs // turns)}]
        # Each warp of a part has one record, or two.
        parts = {-(-records // (warps * each)) for each in (1, 2)} | {2} if units != ALL and not early else set()
        cut = [Config(warps, resident, early, registers, count) for count in parts if count > 1]
        found += [config for config in cut if cut_slabs(layout, config)]
    return list(dict.fromkeys(found))


def sweep(layout: Layout, device: torch.device, beside: int = 0) -> dict:
    """The best configurations of one shape: microseconds, warps, blocks, whether early, registers, parts."""
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    copies = max(2, min(24, int(MAX_COPY_BYTES // layout.bytes)))
    weights = [random_weight(layout, device) for _ in range(copies)]
    found = []
    for config in configs(layout, multiprocessors):
        if not check(weights[0], config, device, True):
            return {"WRONG": str(config)}
        time = round(time_config(weights, config, beside), 2)
        found.append((time, config.warps, config.blocks, config.early, config.registers or 0, config.parts))
    found.sort()
    return {"us": found[0][0], "GBps": round(layout.bytes / found[0][0] / 1e3), "best": found[:6]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bits", type=int, nargs="+", default=[4, 6, 8])
    parser.add_argument("--shapes", nargs="+", default=[f"{rows}x{columns}" for rows, columns in SHAPES])
    parser.add_argument("--beside", type=whole(0), default=0)
    arguments = parser.parse_args()
    device = main_gpu("benchmarks.linear_sweep")
    print(json.dumps({"what": "read_ceiling", "GBps": round(read_ceiling(device))}), flush=True)
    for bits, shape in itertools.product(arguments.bits, arguments.shapes):
        rows, columns = map(int, shape.split("x"))
        row = {"bits": bits, "n": rows, "k": columns, "beside": arguments.beside}
        print(json.dumps(row | sweep(Layout(bits, rows, columns), device, arguments.beside)), flush=True)


if __name__ == "__main__":
    main()
