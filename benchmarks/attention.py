"""Times decode attention and the append before it on a GPU, correctness first.

python -m fastqwen.benchmarks.attention [--shape 9b 27b] [--kind int8 bf16] [--lengths 2048 ...] [--rows 8 1]
                                     [--forms kept wide-merge ...]

Every shape and kind is first checked: each row against the torch reference, and each row of a tree against the same row
decoded alone, bit for bit. Then calls over caches that together exceed the L2 in one CUDA graph, each launch a
programmatic dependent of the one before; median of the replays. Bytes are those of the keys, values and scales that
are seen, to be read beside the machine's own read ceiling, measured in the same run. `merge_us` is the merge launched
alone, so the parts take about the rest. `--forms` times other forms of the kernels in the same run. Prints one line a
case and JSON last.
"""

import argparse
import json
from dataclasses import replace
from itertools import product

import torch

from ..attention import KVCache
from ..engine.memory import empty_cache
from ..kernels import decode_attention as kernels
from ..kernels._attention_ptx_tile import STAMPS, TURN_STAMPS
from ..kernels.attention import decode_row
from ..kernels.attention_append import append
from ..kernels.attention_control import new_control, write_control
from ..kernels.decode_attention import _merge, allocate, decode_attention
from ..kernels.rows import cache_offsets, depths
from ..option_types import whole
from .timing import gpu, graph_microseconds, main_gpu, provenance, read_ceiling

HEADS = {"9b": (16, 4), "27b": (24, 4), "0.8b": (8, 2)}  # query and key-value heads of 256
DIM, HALF, EPS = 256, 32, 1e-6
LENGTHS = (2048, 8192, 32768, 131072)
TREE = (-1, 0, 1, 2, 0, 0, 1, 1)  # a chain of four, four leaves
# 9B, int8, 8 rows: length -> gate us, goal us
TARGETS = {2048: (10, 7), 8192: (14, 11), 32768: (32, 24)}
# Settings of kernels/decode_attention.py that differ from those in use.
FORMS = {
    "kept": {},
    "triton": {"BY_TEXT": False},
    "direct": {"TEXT": {"staged": False}},
    "in-turn": {"TEXT": {"staged": False, "overlapped": False}},
    "ahead-0": {"AHEAD": 0},
    "ahead-4": {"AHEAD": 4},
    "late": {"EARLY": False},
    "blocks-2": {"BLOCKS": 2},
    "merge-2-blocks": {"MERGE_BLOCKS": 2},
    "merge-9": {"MERGE_TURNS": 9},
    "merge-2-blocks-17": {"MERGE_BLOCKS": 2, "MERGE_TURNS": 17},
    "wide-merge": {"MERGE_WARPS": 8},
    "wide-merge-17": {"MERGE_WARPS": 8, "MERGE_TURNS": 17},
}
# Times of a block's steps; and wrong on purpose, without the loads after a part's first tile, products or both.
PARTIAL = {
    "stamps": {"TEXT": {"stamps": True}},
    "direct-stamps": {"TEXT": {"staged": False, "stamps": True}},
    "no-loads": {"TEXT": {"without": ("loads",)}},
    "no-products": {"TEXT": {"without": ("scores", "sums")}},
    "direct-no-products": {"TEXT": {"staged": False, "without": ("scores", "sums")}},
    "no-loads-no-products": {"TEXT": {"without": ("loads", "scores", "sums")}},
}
USED = {name: getattr(kernels, name) for settings in (FORMS | PARTIAL).values() for name in settings}
CALLS, ROTATE_BYTES = 32, 300e6


def random_cache(kv_heads: int, length: int, kind: str) -> KVCache:
    """A cache of `length` tokens whose stored numbers are random."""
    cache = KVCache(kv_heads, DIM, capacity=length + 8, kind=kind, device=torch.device("cuda"))
    for stored in (cache.keys, cache.values):
        if kind == "int8":
            stored.numbers.random_(-127, 128)
            stored.scales.uniform_(0.005, 0.03)
        else:
            stored.numbers.normal_()
    cache.length = length
    return cache


class Pass:
    """The tensors of one layer's attention, and its calls."""

    def __init__(self, shape: str, kind: str, length: int, rows: int, blocks: int | None, copies: int):
        self.heads, self.kv_heads = HEADS[shape]
        self.caches = [random_cache(self.kv_heads, length, kind) for _ in range(copies)]
        self.new_workspace(blocks)
        self.control, self.parents = new_control("cuda"), TREE[:rows]
        write_control(self.control, length=length, parents=self.parents)
        half = {"dtype": torch.bfloat16, "device": "cuda"}
        self.q = torch.randn(8, self.heads, DIM, **half)
        self.projected = (
            torch.randn(8, self.heads, 2 * DIM, **half),
            torch.randn(8, self.kv_heads, DIM, **half),
            torch.randn(8, self.kv_heads, DIM, **half),
        )
        self.norms = torch.randn(DIM, device="cuda") * 0.1, torch.randn(DIM, device="cuda") * 0.1
        self.rotary = torch.randn(8, HALF, device="cuda").cos(), torch.randn(8, HALF, device="cuda").sin()
        self.out = torch.empty(8, self.heads * DIM, **half)

    def new_workspace(self, blocks: int | None):
        slots = self.caches[0].keys.numbers.shape[1]
        self.workspace = allocate(self.heads, self.kv_heads, DIM, slots=slots, device="cuda", blocks=blocks)

    def attend(self, cache: KVCache, out: torch.Tensor | None = None):
        return decode_attention(
            self.q, cache.keys, cache.values, control=self.control, workspace=self.workspace,
            gate=self.projected[0], out=self.out if out is None else out, dependent=True,
        )  # fmt: skip

    def merge(self, cache: KVCache):
        _merge(
            self.q, cache.keys, cache.values, self.control, self.workspace, self.projected[0], self.out, True
        )  # fmt: skip

    def append(self, cache: KVCache):
        append(
            self.projected, self.norms, self.rotary, eps=EPS, keys=cache.keys, values=cache.values,
            control=self.control, q=self.q, dependent=True,
        )  # fmt: skip


def choose(form: str) -> None:
    """Has the next launches be of this form."""
    for name, value in (USED | (FORMS | PARTIAL)[form]).items():
        setattr(kernels, name, value)


def check(shape: str, kind: str) -> None:
    """Raises AssertionError where a row is off the reference's or differs from the row decoded alone."""
    for length in (0, 130, 2047, 4500):
        case = Pass(shape, kind, length, 8, None, 1)
        cache, level, offset = case.caches[0], depths(TREE), cache_offsets(TREE)
        out = torch.full((8, case.heads * DIM), float("nan"), device="cuda")
        case.attend(cache, out=out)
        gates = case.projected[0][..., DIM:].float().sigmoid().flatten(1)
        together, q, gate = out.clone(), case.q.clone(), case.projected[0].clone()
        for row in range(8):
            wanted = decode_row(q[row], cache.read, length + level[row], length + offset[row]).flatten() * gates[row]
            error = (together[row] - wanted).abs().max() / wanted.abs().max()
            assert error < 4e-3, f"{kind}, {length} tokens, row {row}: {error:.1e} off"
            case.q[0], case.projected[0][0] = q[row], gate[row]
            write_control(case.control, length=length + level[row], parents=(-1,))
            case.control[16] = offset[row] - level[row]
            case.attend(cache, out=out)
            assert torch.equal(out[0], together[row]), f"{kind}, {length} tokens, row {row} differs alone"
            assert not out[1:].any(), "dead rows are not zero"
            case.q.copy_(q)
            case.projected[0].copy_(gate)


def bench(shape: str, kind: str, length: int, rows: int, blocks: int | None, forms, ceiling: float):
    """A row of the table for each form, over the same caches."""
    heads, kv_heads = HEADS[shape]
    size = {"int8": 1, "bf16": 2, "fp32": 4}[kind]
    seen = 2 * kv_heads * length * (DIM * size + (4 if kind == "int8" else 0))
    case = Pass(shape, kind, length, rows, blocks, max(2, min(CALLS, int(ROTATE_BYTES // seen) + 1)))
    turns = [case.caches[i % len(case.caches)] for i in range(CALLS)]
    for form in forms:
        choose(form)
        case.new_workspace(blocks)
        times = {
            "us": graph_microseconds([lambda c=c: case.attend(c) for c in turns]),
            "merge_us": graph_microseconds([lambda c=c: case.merge(c) for c in turns]),
        }
        if form == "kept":
            times["append_us"] = graph_microseconds([lambda c=c: case.append(c) for c in turns])
            times["all_us"] = graph_microseconds([lambda c=c: (case.append(c), case.attend(c)) for c in turns])
        row = {"form": form, "shape": shape, "kind": kind, "length": length, "rows": rows}
        row |= {"blocks": case.workspace.blocks} | {name: round(time, 2) for name, time in times.items()}
        row |= {"GBps": round(seen / times["us"] / 1e3)}
        row |= {"percent_of_ceiling": round(100 * seen / times["us"] / 1e3 / ceiling, 1)}
        if (shape, kind, rows) == ("9b", "int8", 8) and length in TARGETS:
            row |= dict(zip(("gate_us", "goal_us"), TARGETS[length], strict=True))
        yield row


def timeline(shape: str, length: int, form: str) -> dict:
    """[median, last] over blocks: microseconds from when the first block had waited to each of STAMPS, in a chain.

    And, for blocks with a part of three tiles and more, the median cycles of each step of a turn, TURN_STAMPS.
    """
    choose(form)
    copies = max(2, int(ROTATE_BYTES // (2 * HEADS[shape][1] * length * DIM)) + 1)
    case = Pass(shape, "int8", length, 8, None, min(CALLS, copies))
    words = torch.zeros(16 * (case.workspace.blocks + 1), dtype=torch.int32, device="cuda")
    case.workspace = replace(case.workspace, counter=words)
    graph_microseconds([lambda c=c: case.attend(c) for c in case.caches], 3)
    choose("kept")
    words = words[16:].view(-1, 16).cpu().long()
    stamps, turns = words.split((len(STAMPS), 16 - len(STAMPS)), 1)
    stamps = stamps[stamps[:, -1] != 0]
    times = ((stamps - stamps[:, 1].min()) / 1e3).sort(0).values
    found = {
        name: [round(float(x), 2) for x in (times[len(times) // 2, i], times[-1, i])] for i, name in enumerate(STAMPS)
    }
    turns = turns[turns[:, len(TURN_STAMPS) - 1] != 0]
    steps = turns.diff(dim=1) % 2**32
    found |= {f"{name}_cycles": int(steps[:, i].median()) for i, name in enumerate(TURN_STAMPS[1:]) if len(steps)}
    return found


def bench_attention(
    shapes=("9b",), kinds=("int8",), lengths=LENGTHS, rows=(8, 1), blocks=(None,), forms=("kept",)
) -> dict:
    """Checks, then times every combination; prints a line each. Returns what is printed last as JSON."""
    gpu("the attention benchmark")
    ceiling = read_ceiling(torch.device("cuda"))
    print(f"{torch.cuda.get_device_name()}, read ceiling {ceiling:.0f} GB/s", flush=True)
    found = []
    for shape in shapes:
        for kind in kinds:
            checked = [form for form in forms if not form.endswith("stamps")]
            for form in checked:
                choose(form)
                if form in FORMS:  # the others are wrong on purpose
                    check(shape, kind)
                    print(f"  {shape} {kind} {form}: every row right, and the same alone", flush=True)
            for length, count, number in product(lengths, rows, blocks):
                for row in bench(shape, kind, length, count, number, checked, ceiling):
                    found.append(row)
                    print("  " + ", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
                empty_cache(torch.device("cuda"))
            for form, length in product(forms, lengths):
                if form.endswith("stamps") and kind == "int8":
                    found.append({"form": form, "shape": shape, "length": length} | timeline(shape, length, form))
                    print("  [median, last] " + ", ".join(f"{k} {v}" for k, v in found[-1].items()), flush=True)
    choose("kept")
    return {"what": "bench attention", **provenance(), "read_ceiling_GBps": round(ceiling), "rows": found}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", nargs="+", choices=tuple(HEADS), default=["9b"])
    parser.add_argument("--kind", nargs="+", choices=("int8", "bf16", "fp32"), default=["int8"])
    parser.add_argument("--lengths", nargs="+", type=whole(1), default=list(LENGTHS))
    parser.add_argument("--rows", nargs="+", type=whole(1), default=[8, 1])
    parser.add_argument(
        "--blocks", nargs="+", type=whole(1), default=[None], help="blocks of the parts' launch, to compare"
    )
    parser.add_argument("--forms", nargs="+", choices=(*FORMS, *PARTIAL), default=["kept"])
    arguments = parser.parse_args()
    main_gpu("benchmarks.attention")
    summary = bench_attention(
        arguments.shape, arguments.kind, arguments.lengths, arguments.rows, arguments.blocks, arguments.forms
    )  # fmt: skip
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
