"""Memory of the keys and values of a 9B model, computed and as a GPU's allocator counts it.

python -m fastqwen.benchmarks.cache_memory [--tokens 32768] [--layers 8]
"""

import argparse
import json

import torch

from ..attention import KVCache, cache_bytes
from ..option_types import whole
from .attention import DIM, HEADS
from .timing import main_gpu, provenance


def measure(kind: str, tokens: int, layers: int) -> dict:
    """Bytes by the formula, by the tensors and by the allocator, of the caches of all layers."""
    kv_heads = HEADS["9b"][1]
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    caches = [
        KVCache(kv_heads, DIM, capacity=tokens, kind=kind, device=torch.device("cuda")) for _ in range(layers)
    ]  # fmt: skip
    torch.cuda.synchronize()
    allocated = torch.cuda.memory_allocated() - before
    return {
        "kind": kind,
        "computed": layers * cache_bytes(kv_heads, DIM, capacity=tokens, kind=kind),
        "tensors": sum(cache.bytes for cache in caches),
        "allocated": allocated,
        "allocated_MiB": round(allocated / 2**20, 1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=whole(1), default=32768)
    parser.add_argument("--layers", type=whole(1), default=8, help="attention layers (default: the 9B model's 8)")
    arguments = parser.parse_args()
    main_gpu("benchmarks.cache_memory")
    rows = [measure(kind, arguments.tokens, arguments.layers) for kind in ("int8", "bf16")]
    for row in rows:
        print("  " + ", ".join(f"{key} {value}" for key, value in row.items()))
    print(json.dumps({"what": "cache memory", "tokens": arguments.tokens, **provenance(), "rows": rows}))


if __name__ == "__main__":
    main()
