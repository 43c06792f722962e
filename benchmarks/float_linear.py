"""Times the plain linear kernel against torch's F.linear at eight rows, correctness first.

python -m fastqwen.benchmarks.float_linear [--sweep]

Each shape's launch is checked against float64, and that a row's bits are its own, before it is timed. Both sides run as
CUDA graphs over weights that exceed the L2; ours as a chain of dependent launches where the GPU has them. --sweep also
times other launches, for the rows of kernels/float_linear.py's launch_for. The last line is JSON.
"""

import argparse
import json

import torch
import torch.nn.functional as F
import triton

from ..engine.memory import empty_cache
from ..kernels.float_linear import Launch, float_linear, launch_for, reference, sum_launch
from .kernels import CALLS, ROTATE_BYTES
from .timing import graph_microseconds, main_gpu, provenance, read_ceiling

SHAPES = ((64, 4096), (96, 5120), (512, 4096), (4096, 4096), (12288, 4096), (248320, 4096))
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# (rows of W a block, columns a step, warps, steps in flight)
DOTS = (
    (16, 128, 2, 6), (16, 256, 2, 4), (32, 64, 4, 8), (32, 128, 4, 3), (32, 128, 4, 4), (32, 128, 4, 5),
    (32, 128, 4, 6), (32, 256, 4, 3), (32, 256, 4, 4), (64, 64, 4, 6), (64, 128, 4, 3), (64, 128, 4, 4),
    (64, 128, 4, 5), (128, 64, 8, 4), (128, 64, 4, 4), (128, 128, 8, 3),
)  # fmt: skip
# (rows a block, warps, 16-byte vectors of a row a thread)
SUMS = (
    (1, 8, 1), (1, 8, 2), (1, 16, 1), (2, 4, 1), (2, 4, 4), (2, 8, 1), (2, 8, 2), (2, 16, 1), (4, 4, 1), (4, 8, 1),
    (4, 8, 2), (4, 16, 1), (8, 4, 1), (8, 8, 1),
)  # fmt: skip


def check(weight: torch.Tensor, launch: Launch, dependent: bool) -> str | None:
    """What is wrong with the results of a launch, on the matrix's first and last rows; None if nothing is."""
    rows, columns = weight.shape
    x = torch.randn(8, columns, device=weight.device).to(weight.dtype)

    def run(x):
        out = torch.full((8, rows), float("nan"), device=weight.device)
        return float_linear(x, weight, out=out, launch=launch, dependent=dependent)

    found = run(x)
    for part in (slice(0, 256), slice(max(0, rows - 256), rows)):
        wanted = reference(x, weight[part])
        bound = (columns + 2) * 2.0**-23 * (x.double().abs() @ weight[part].double().abs().T)
        if not bool(((found[:, part] - wanted).abs() <= bound).all()):
            return f"{launch} at {rows} x {columns} differs from float64"
    for live in range(1, 9):
        alone = torch.zeros_like(x)
        alone[8 - live :] = x[:live]
        if not torch.equal(run(alone)[8 - live :], found[:live]):
            return f"{launch} at {rows} x {columns}: a row's bits depend on its slot or its neighbours"
    return None


def launches(rows: int, columns: int, dtype: torch.dtype) -> list[Launch]:
    """What a sweep tries for a shape."""
    found = []
    if rows <= 4096 or dtype.itemsize == 4:
        found += [sum_launch(block_n, warps, dtype, vectors) for block_n, warps, vectors in SUMS]
    if dtype.itemsize == 2:
        found += [Launch("dot", *numbers) for numbers in DOTS if columns % numbers[1] == 0]
    return found


def bench_shape(rows: int, columns: int, dtype: torch.dtype, sweep: bool, ceiling: float) -> dict:
    """Microseconds and GB/s of ours and of F.linear; with `sweep` the best launches too."""
    device = torch.device("cuda")
    bytes_read = rows * columns * dtype.itemsize
    # Small matrices in hundreds, so that the L2 does not hold them; one that is larger than it by itself, once.
    copies = 1 if bytes_read > 1e9 else max(2, min(256, int(ROTATE_BYTES // bytes_read) + 1))
    weights = [torch.randn(rows, columns, dtype=dtype, device=device) for _ in range(copies)]
    calls = max(copies, CALLS) if bytes_read < 1e8 else max(4, copies)
    turns = [weights[i % copies] for i in range(calls)]
    x = torch.randn(8, columns, device=device).to(dtype)
    out = torch.empty(8, rows, dtype=dtype, device=device)
    dependent = torch.version.hip is None and torch.cuda.get_device_capability() >= (9, 0)

    def time(launch):
        wrong = check(weights[0], launch, dependent)
        if wrong is not None:
            raise AssertionError(wrong)
        run = [lambda w=w: float_linear(x, w, out=out, launch=launch, dependent=dependent) for w in turns]
        return graph_microseconds(run)

    launch = launch_for(rows, columns, dtype)
    ours = time(launch)
    torch_us = graph_microseconds([lambda w=w: F.linear(x, w) for w in turns])
    row = {
        "n": rows, "k": columns, "us": round(ours, 2), "GBps": round(bytes_read / ours / 1e3),
        "percent_of_ceiling": round(100 * bytes_read / ours / 1e3 / ceiling, 1),
        "torch_us": round(torch_us, 2), "times_faster": round(torch_us / ours, 2), "launch": str(launch),
    }  # fmt: skip
    if sweep:
        tried = []
        for other in launches(rows, columns, dtype):
            try:
                tried.append((round(time(other), 2), str(other)))
            except triton.runtime.errors.OutOfResources as error:
                print(f"    {other}: {error}")
        row["best"] = sorted(tried)[:6]
    return row


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--sweep", action="store_true", help="time other launches too")
    arguments = parser.parse_args()
    device = main_gpu("benchmarks.float_linear")
    torch.backends.cuda.matmul.allow_tf32 = False
    ceiling = read_ceiling(device)
    name = torch.cuda.get_device_name(device)
    print(f"{name}, read ceiling {ceiling:.0f} GB/s, {arguments.dtype}, eight rows", flush=True)
    found = []
    for rows, columns in SHAPES:
        row = bench_shape(rows, columns, DTYPES[arguments.dtype], arguments.sweep, ceiling)
        found.append(row)
        print("  " + ", ".join(f"{key} {value}" for key, value in row.items() if key != "best"), flush=True)
        for us, launch in row.get("best", ()):
            print(f"      {us} {launch}", flush=True)
        empty_cache(torch.device("cuda"))
    summary = {
        "what": "float_linear", **provenance(), "dtype": arguments.dtype, "read_ceiling_GBps": round(ceiling),
        "shapes": found,
    }  # fmt: skip
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
