"""A prompt that was read before: `python -m fastqwen.benchmarks.prefix_cache --shape 9b --tokens 4200 16500`.

Random weights of a real size. Of each length: milliseconds to the first token without a cache, with one that is empty
and so copies what it keeps, and with the prompt in it. First it is checked that all three leave the same state.
"""

import argparse
import json
import time
from statistics import median

import torch

from ..engine.device_model import DeviceModel
from ..engine.prefix_cache import PrefixCache, PromptReuse
from ..mtp.tree import Tree
from .decode import _ids, _passes
from .random_model import random_model
from .timing import provenance


def prefilled(model, ids, cache):
    """(milliseconds of a prompt, its session, its passes, logits)."""
    session, passes = _passes(model, Tree.chain(1), len(ids), 8)
    if cache is not None:
        session.reuse = PromptReuse(cache, "bench", model.trunk.chunk, passes)
    torch.cuda.synchronize()
    started = time.perf_counter()
    logits = session.prefill(ids, on_hidden=passes.prompt)
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - started), session, passes, logits


def state(session, passes, logits):
    """Copies of everything behind a prompt."""
    held = [tensor for layer in session.state.rows(0) for tensor in layer]
    held += [*passes.prompt_cache.rows(0, len(session.tokens) - 1), *passes.waiting_row, logits]
    return [tensor.clone() for tensor in held]


def check(model, ids):
    """Raises AssertionError where a prompt that was found leaves other bits."""
    cache = PrefixCache(2**40)
    _, *rest = prefilled(model, ids, None)
    wanted = state(*rest)
    for _ in range(2):
        _, *rest = prefilled(model, ids, cache)
        assert all(torch.equal(a, b) for a, b in zip(state(*rest), wanted, strict=True))
    assert rest[0].reuse.tokens > 0


def measure(model, tokens: int) -> dict:
    ids = _ids(tokens)
    cache = PrefixCache(2**40)
    without = median(prefilled(model, ids, None)[0] for _ in range(3))
    empty = []
    for _ in range(3):
        cache.clear()
        empty.append(prefilled(model, ids, cache)[0])
    found = []
    for _ in range(3):
        ms, session, _, _ = prefilled(model, ids, cache)
        found.append(ms)
    return {
        "tokens": tokens, "found": session.reuse.tokens, "without_ms": round(without, 1),
        "empty_ms": round(median(empty), 1), "found_ms": round(median(found), 1),
        "kept_MiB": round(cache.bytes / 2**20, 1),
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=("9b", "27b"), default="9b")
    parser.add_argument("--tokens", type=int, nargs="+", default=[2100, 4200, 16500])
    arguments = parser.parse_args()
    trunk, mtp, _ = random_model(arguments.shape, torch.device("cuda"), bits=4, head="w4a8", kv="int8")
    model = DeviceModel(trunk, mtp, capacity=max(arguments.tokens) + 64, vocab=trunk.config.vocab_size)
    prefilled(model, _ids(2100), None)  # compiles
    check(model, _ids(2100))
    print(f"{torch.cuda.get_device_name()}, {arguments.shape}: a prompt that was found leaves the same bits")
    rows = [measure(model, tokens) for tokens in arguments.tokens]
    for row in rows:
        print("  " + ", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    print(json.dumps({"what": "bench prefix cache", "shape": arguments.shape, **provenance(), "rows": rows}))


if __name__ == "__main__":
    main()
