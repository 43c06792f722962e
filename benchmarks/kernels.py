"""`fastqwen bench kernels`: the linear part of a decode pass, as it is run, on a GPU.

For each group of a layer (preparation of eight rows, then its matrices stacked in one launch) over random weights of
the real shapes: checks the result against the integer reference, then times a chain of dependent launches as a CUDA
graph over weights that exceed the L2. With `--peer`, comfy-kitchen's own calls for the same matrices run beside it,
its activation quantising included; norm and SwiGLU are left out on its side, in its favour.
"""

import json

import torch

from ..kernels import prepare
from ..kernels.packed import Layout
from ..kernels.packed_linear import PlainRows, launch_config, new_joint, packed_linear
from . import deltanet, prefill
from .attention import bench_attention
from .linear_sweep import check, random_weight
from .prefill_attention import bench_prefill_attention
from .timing import gpu, graph_microseconds, provenance, read_ceiling

# group -> (rows of its matrices, columns, prologue, layers of the model that have it); DeltaNet's a and b, which stay
# bf16, run in the launch of qkv|z
SHAPES = {
    "9b": {
        "qkv|z": ((8192, 4096), 4096, "norm", 24),
        "q|k|v": ((8192, 1024, 1024), 4096, "norm", 8),
        "out": ((4096,), 4096, "none", 32),
        "gate|up": ((12288, 12288), 4096, "norm", 32),
        "down": ((4096,), 12288, "swiglu", 32),
    },
    "27b": {
        "qkv|z": ((10240, 6144), 5120, "norm", 48),
        "q|k|v": ((12288, 1024, 1024), 5120, "norm", 16),
        "out": ((5120,), 6144, "none", 64),
        "gate|up": ((17408, 17408), 5120, "norm", 64),
        "down": ((5120,), 17408, "swiglu", 64),
    },
}
# Single matrices by size: 18, 28 and 50 MB at 4 bits, and the head.
SINGLE = ((8192, 4096), (12288, 4096), (4096, 12288), (17408, 5120), (248320, 4096))
PLAIN_ROWS = {"9b": (32, 32), "27b": (48, 48)}
CALLS = 32  # in one graph
ROTATE_BYTES = 300e6


def bench(shape: str, bits: int, peer: bool) -> dict:
    """Prints a row a group; returns the summary that is printed last as JSON."""
    device = torch.device("cuda")
    ceiling = read_ceiling(device)
    print(f"{torch.cuda.get_device_name(device)}, read ceiling {ceiling:.0f} GB/s, W{bits}A8, {shape} shapes")
    rows, ours_total, peer_total, bytes_total = [], 0.0, 0.0, 0
    for name, (sizes, columns, prologue, layers) in SHAPES[shape].items():
        plain_rows = PLAIN_ROWS[shape] if name == "qkv|z" else ()
        row = _bench_group(sizes, plain_rows, columns, prologue, bits, device, ceiling) | {"group": name}
        ours_total += row["us"] * layers
        bytes_total += row["bytes"] * layers
        if peer:
            row["peer_us"] = round(_peer_us(sizes, plain_rows, columns, bits, device), 2)
            peer_total += row["peer_us"] * layers
        rows.append(row)
        print("  " + ", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    singles = [_bench_single(rows, columns, bits, device, ceiling) for rows, columns in SINGLE]
    for row in singles:
        print("  " + ", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    summary = {
        "what": "bench kernels",
        "shape": shape,
        "bits": bits,
        **provenance(),
        "read_ceiling_GBps": round(ceiling),
        "linears_ms_a_pass": round(ours_total / 1e3, 3),
        "floor_ms": round(bytes_total / ceiling / 1e6, 3),
        "groups": rows,
        "single": singles,
    }
    if peer:
        summary |= {"peer_ms_a_pass": round(peer_total / 1e3, 3), "times_faster": round(peer_total / ours_total, 2)}
    return summary


def _bench_group(sizes, plain_rows, columns, prologue, bits, device, ceiling):
    layout = Layout(bits, sum(sizes), columns)
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    config = launch_config(layout, multiprocessors, bool(plain_rows))
    copies = max(2, min(CALLS, int(ROTATE_BYTES // layout.bytes) + 1))
    weights = [random_weight(layout, device) for _ in range(copies)]
    if not check(weights[0], config, device, dependent=True):
        raise AssertionError(f"{layout} differs from the integer reference")
    width = columns * (2 if prologue == "swiglu" else 1)
    x = torch.randn(8, width, dtype=torch.bfloat16, device=device)
    norm = {"norm": torch.randn(columns, device=device), "eps": 1e-6} if prologue == "norm" else {}
    residual = torch.randn(8, sizes[0], dtype=torch.bfloat16, device=device) if len(sizes) == 1 else None
    buffers = prepare.allocate(columns, device, normed=torch.bfloat16 if plain_rows else None)
    out = torch.empty(8, layout.rows, dtype=torch.bfloat16, device=device)
    launch = {"config": config, "joint": new_joint(layout, config, device), "dependent": True}
    plain = None
    if plain_rows:
        small = torch.randn(sum(plain_rows), columns, dtype=torch.bfloat16, device=device)
        plain = PlainRows(buffers.normed, small, out.new_empty(8, sum(plain_rows)))

    def group(weight):
        ready = prepare.prepare(x, buffers, swiglu=prologue == "swiglu", dependent=True, **norm)
        packed_linear(ready.x8, ready.x_scale, weight, residual=residual, plain=plain, out=out, **launch)

    def linear(weight):
        packed_linear(buffers.x8, buffers.x_scale, weight, residual=residual, plain=plain, out=out, **launch)

    turns = [weights[i % copies] for i in range(CALLS)]
    both = graph_microseconds([lambda w=w: group(w) for w in turns])
    alone = graph_microseconds([lambda w=w: linear(w) for w in turns])
    return {
        "rows": list(sizes), "columns": columns, "bytes": layout.bytes, "us": round(both, 2),
        "linear_us": round(alone, 2), "linear_GBps": round(layout.bytes / alone / 1e3),
        "percent_of_ceiling": round(100 * layout.bytes / both / 1e3 / ceiling, 1),
    }  # fmt: skip


def _bench_single(rows, columns, bits, device, ceiling):
    """One matrix alone, with eight live rows and with one: the same launch, so the same time is expected."""
    layout = Layout(bits, rows, columns)
    config = launch_config(layout, torch.cuda.get_device_properties(device).multi_processor_count)
    copies = max(2, min(CALLS, int(ROTATE_BYTES // layout.bytes) + 1))
    weights = [random_weight(layout, device) for _ in range(copies)]
    if not check(weights[0], config, device, dependent=True):
        raise AssertionError(f"{layout} differs from the integer reference")
    out = torch.empty(8, rows, dtype=torch.bfloat16, device=device)
    times, joint = {}, new_joint(layout, config, device)
    for live in (8, 1):
        x8 = torch.randint(-127, 128, (columns // 64, 8, 64), dtype=torch.int8, device=device)
        x8[:, live:] = 0
        x_scale = torch.ones(8, device=device)
        calls = [
            lambda w=weights[i % copies], x8=x8, x_scale=x_scale: packed_linear(
                x8, x_scale, w, out=out, config=config, joint=joint, dependent=True
            )
            for i in range(CALLS)
        ]
        times[live] = graph_microseconds(calls)
    return {
        "single": f"{rows}x{columns}", "bytes": layout.bytes, "us": round(times[8], 2),
        "GBps": round(layout.bytes / times[8] / 1e3), "us_one_row": round(times[1], 2),
        "percent_of_ceiling": round(100 * layout.bytes / times[8] / 1e3 / ceiling, 1),
    }  # fmt: skip


def _peer_us(sizes, plain_rows, columns, bits, device):
    """comfy-kitchen's packed linear, one call a matrix, and torch's for the plain ones."""
    from comfy_kitchen.backends.cuda import w4a8_packed_linear

    empty = torch.empty(0, dtype=torch.float8_e4m3fn, device=device)
    x = torch.randn(8, columns, dtype=torch.bfloat16, device=device)
    record = 512 * bits // 8 + 32
    total = sum(sizes) * columns // 512 * record
    copies = max(2, min(CALLS, int(ROTATE_BYTES // total) + 1))
    groups = []
    for _ in range(copies):
        group = []
        for rows in sizes:
            weight = torch.randint(0, 256, (rows * columns // 512, record), dtype=torch.uint8, device=device)
            weight[:, -32:] = torch.randint(0x40, 0x58, (weight.shape[0], 32), dtype=torch.uint8, device=device)
            group.append((weight.view(torch.int8).flatten(), torch.rand(rows, device=device) * 1e-3))
        groups.append(group)
    plain = [torch.randn(rows, columns, dtype=torch.bfloat16, device=device) for rows in plain_rows]

    def call(group):
        for weight, scale in group:
            w4a8_packed_linear(x, weight, empty, scale)
        for weight in plain:
            torch.nn.functional.linear(x, weight)

    return graph_microseconds([lambda g=groups[i % copies]: call(g) for i in range(CALLS)])


def bench_prompts(shape: str, bits: int, tokens: int = 2048) -> dict:
    """The same matrices over many rows: benchmarks/prefill.py's ways of doing it."""
    rows = []
    for columns, k in sorted({(sum(sizes), columns) for sizes, columns, _, _ in SHAPES[shape].values()}):
        rows.append({"n": columns, "k": k} | prefill.measure(Layout(bits, columns, k), tokens, torch.device("cuda")))
        print("  " + ", ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    return {"what": "bench prompts", "shape": shape, "bits": bits, "tokens": tokens, **provenance(), "matrices": rows}


def run(arguments) -> int:
    """The command line's `bench kernels`: a table for each part, then a line of JSON for each."""
    shape, parts = arguments.shape, arguments.parts
    gpu("bench kernels")
    summaries = []
    if "linears" in parts:
        summaries += [bench(shape, bits, arguments.peer) for bits in arguments.bits]
    if "prompts" in parts:
        summaries += [bench_prompts(shape, bits) for bits in arguments.bits]
    if "attention" in parts:
        summaries.append(bench_attention((shape,)))
    if "prefill_attention" in parts:
        summaries.append(bench_prefill_attention(shape))
    if "deltanet" in parts:
        summaries += [deltanet.bench(shape), deltanet.bench_prompt(shape)]
    for summary in summaries:
        print(json.dumps(summary))
    return 0
