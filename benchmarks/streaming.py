"""Rounds with layers that are read from RAM: `python -m fastqwen.benchmarks.streaming --shape 9b --budgets 5 4 3`.

First the demo's text with and without streaming. Then random weights of a real size under each budget: milliseconds of
a round without drafts and of a prompt, and at what rate layers arrive. The floor of a round is the streamed bytes over
the rate at which RAM pinned by the driver is copied, measured here.
"""

import argparse
import gc
import json

import torch

from ..engine import GREEDY, load
from ..engine.device_model import DeviceModel
from ..engine.memory import empty_cache
from ..engine.streaming import Placement, StreamedBlock
from ..mtp.tree import OFF, Tree
from .decode import SETTINGS, _prefill, _rounds
from .random_model import random_model
from .timing import main_gpu, provenance

CONTEXT, PROMPT = 512, 2048


def same_text(device: str):
    """Raises AssertionError where the demo's text depends on streaming."""
    plain = load("demo", device=device)
    wanted = plain.generate("a fox in the snow", settings=GREEDY, max_tokens=60).token_ids
    budget = int(0.7 * plain.memory.weight_bytes)
    streamed = load("demo", device=device, vram_budget=budget)
    print(streamed.notes[0])
    for _ in range(2):
        assert streamed.generate("a fox in the snow", settings=GREEDY, max_tokens=60).token_ids == wanted
    print("the demo's text is the same with and without streaming", flush=True)


def copy_rate(device: torch.device, size: int = 2**28) -> float:
    """GB/s from pinned RAM to the device."""
    host, target = (
        torch.empty(size, dtype=torch.uint8, pin_memory=True),
        torch.empty(size, dtype=torch.uint8, device=device),
    )
    events = [torch.cuda.Event(enable_timing=True) for _ in range(6)]
    for event in events:
        target.copy_(host, non_blocking=True)
        event.record()
    torch.cuda.synchronize(device)
    return size / min(a.elapsed_time(b) for a, b in zip(events, events[1:], strict=False)) / 1e6


def measure(shape: str, bits: int, budget: float | None, rate: float) -> dict:
    """One budget in GiB, or None for all weights on the device."""
    device = torch.device("cuda")
    placement = Placement(device, None if budget is None else int(budget * 2**30))
    trunk, mtp, _ = random_model(shape, device, bits=bits, head="w4a8", kv="int8", place=placement.take)
    placement.settle(trunk, mtp)
    streamed = [layer.bytes for layer, block in zip(placement.layers, trunk.blocks, strict=False)
                if isinstance(block, StreamedBlock)]  # fmt: skip
    model = DeviceModel(trunk, mtp, capacity=PROMPT + 512, vocab=trunk.config.vocab_size, graphs=not placement.streams)
    plain, deep = (_rounds(model, tree, CONTEXT, SETTINGS) for tree in (OFF, Tree.chain(3)))
    row = {
        "budget_GiB": budget, "streamed_layers": len(streamed), "streamed_GiB": round(sum(streamed) / 2**30, 2),
        "allocated_GiB": round(torch.cuda.memory_allocated() / 2**30, 2), "round_ms": plain["round_ms"],
        "floor_ms": round(sum(streamed) / rate / 1e6, 2), "chain_3_round_ms": deep["round_ms"],
        "GBps": round(sum(streamed) / plain["round_ms"] / 1e6, 1),
        f"prompt_{PROMPT}_ms": round(_prefill(model, PROMPT), 1),
    }  # fmt: skip
    model.release()
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=("9b", "27b"), default="9b")
    parser.add_argument("--bits", type=int, choices=(4, 6), default=4)
    parser.add_argument("--budgets", type=float, nargs="+", default=[5.0, 4.0], metavar="GB")
    arguments = parser.parse_args()
    main_gpu("benchmarks.streaming")
    same_text("cuda")
    rate = copy_rate(torch.device("cuda"))
    print(f"{torch.cuda.get_device_name()}, RAM to GPU {rate:.1f} GB/s; {arguments.shape}, W{arguments.bits}A8",
          flush=True)  # fmt: skip
    rows = []
    for budget in (None, *arguments.budgets):
        rows.append(measure(arguments.shape, arguments.bits, budget, rate))
        print("  " + ", ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
        gc.collect()
        empty_cache(torch.device("cuda"))
    print(json.dumps({"what": "bench streaming", "shape": arguments.shape, "bits": arguments.bits, **provenance(),
                      "copy_GBps": round(rate, 1), "rows": rows}))  # fmt: skip


if __name__ == "__main__":
    main()
