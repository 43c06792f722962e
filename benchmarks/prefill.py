"""Times packed linears over many rows on a GPU: records to tiles to int8 products, beside what could be done instead.

python -m fastqwen.benchmarks.prefill [--rows 512 2048] [--sweep]

For each shape, in one run: the library's int8 product of the same size (the matrix rate), ours from the packed bytes
(with and without the preparation of the activations), and decoding to bf16 with a bf16 product. Correctness first.
"""

import argparse
import json

import torch
import torch.nn.functional as F

from ..kernels import int8_gemm, packed_linear, prepare
from ..kernels.int8_matmul import scaled
from ..kernels.packed import Layout
from ..option_types import whole
from ..weights.packed_linear import RecordLinear
from .linear_sweep import random_weight
from .timing import graph_microseconds, main_gpu

SHAPES = ((12288, 4096), (24576, 4096), (4096, 12288), (4096, 4096), (34816, 5120), (5120, 17408))
TILES = [
    (128, 256, 128, 8, 3), (128, 256, 128, 8, 4), (128, 256, 64, 8, 4), (128, 128, 128, 8, 4), (128, 128, 128, 4, 4),
    (256, 128, 128, 8, 3), (64, 256, 128, 8, 4), (128, 128, 256, 8, 3),
]  # fmt: skip


def measure(layout: Layout, rows: int, device: torch.device) -> dict:
    """Microseconds of each way for one matrix, and ours as a part of the matrix rate."""
    weight = random_weight(layout, device)
    linear = RecordLinear(weight, rotated=True)
    x = torch.randn(rows, layout.columns, dtype=torch.bfloat16, device=device)
    slabs = torch.arange(layout.rows // 16, dtype=torch.int32, device=device)
    grid = packed_linear.unpack(weight, slabs)
    x8, x_scale = prepare.prepare_many(x)
    wanted = scaled(torch._int_mm(x8, grid.t()), weight.channel_scale, x_scale, None, torch.bfloat16)
    if not torch.equal(linear(x8, x_scale, None, torch.bfloat16), wanted):
        raise AssertionError(f"{layout} differs from the library's integer product")

    def ours():
        linear(x8, x_scale, None, torch.bfloat16)

    def with_preparation():
        linear(*prepare.prepare_many(x), None, torch.bfloat16)

    def dequantised():
        decoded = packed_linear.unpack(weight, slabs).to(torch.bfloat16) * weight.channel_scale.bfloat16()[:, None]
        F.linear(x, decoded)

    whole = (grid.float() * weight.channel_scale[:, None]).bfloat16()
    times = {
        "int8_library": lambda: torch._int_mm(x8, grid.t()),
        "bf16_alone": lambda: F.linear(x, whole),
        "unpack": lambda: packed_linear.unpack(weight, slabs),
        "ours": ours,
        "ours_with_preparation": with_preparation,
        "dequantised_bf16": dequantised,
    }
    row = {name: round(graph_microseconds([call] * 4, 8), 1) for name, call in times.items()}
    operations = 2 * rows * layout.rows * layout.columns
    return row | {
        "library_tops": round(operations / row["int8_library"] / 1e6),
        "ours_tops": round(operations / row["ours"] / 1e6),
        "of_library_percent": round(100 * row["int8_library"] / row["ours"], 1),
    }


def sweep(rows: int, device: torch.device):
    """Times the tile configurations of the product alone."""
    for columns, k in SHAPES[:3]:
        x8 = torch.randint(-127, 128, (rows, k), dtype=torch.int8, device=device)
        grid = torch.randint(-127, 128, (columns, k), dtype=torch.int8, device=device)
        x_scale, channel_scale = torch.rand(rows, device=device), torch.rand(columns, device=device)
        out = torch.empty(rows, columns, dtype=torch.bfloat16, device=device)
        found = []
        for config in TILES:
            try:
                call = lambda c=config: int8_gemm.int8_gemm(x8, x_scale, grid, channel_scale, out=out, config=c)  # noqa
                found.append((round(graph_microseconds([call] * 4, 8), 1), config))
            except Exception as error:  # a tile too large for this GPU's shared memory
                print(json.dumps({"config": config, "error": str(error)[:80]}))
        found.sort()
        print(json.dumps({"what": "int8 gemm", "rows": rows, "n": columns, "k": k, "best": found[:5]}), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=whole(1), nargs="+", default=[512, 2048])
    parser.add_argument("--bits", type=int, nargs="+", default=[4])
    parser.add_argument("--sweep", action="store_true", help="time the tiles of the product instead")
    arguments = parser.parse_args()
    device = main_gpu("benchmarks.prefill")
    for rows in arguments.rows:
        if arguments.sweep:
            sweep(rows, device)
            continue
        for bits in arguments.bits:
            for columns, k in SHAPES:
                row = measure(Layout(bits, columns, k), rows, device)
                print(
                    json.dumps({"what": "prefill", "rows": rows, "bits": bits, "n": columns, "k": k} | row), flush=True
                )


if __name__ == "__main__":
    main()
