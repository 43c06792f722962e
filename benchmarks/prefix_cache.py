"""Prompts that begin alike: `python -u -m fastqwen.benchmarks.prefix_cache [--shape 9b|27b] [--long 2100 16500]`.

Random weights of a real size. First it is checked that a prompt leaves the same bits wherever its passes end, and found
in the cache or not. Then milliseconds to the first token of a 600-token system prompt with 60 tokens behind it: without
a cache, of the last 84 tokens alone, and of the first, second and third request, each with other 60 tokens, where the
system message's end is known and where only the shared beginning tells. `--long`: longer prompts without a cache, with
an empty one, and found.
"""

import argparse
import json
import time
from itertools import pairwise
from statistics import median

import torch

from ..engine.prefix_cache import PrefixCache
from ..engine.prompt_reuse import PromptReuse
from ..engine.session import Session
from ..mtp.head_drafts import HeadDrafts
from ..option_types import whole
from .random_model import random_model
from .timing import main_gpu, provenance

SYSTEM, REQUEST = 600, 60  # tokens
ROUNDS = 7


class Bench:
    """A model and one state that its prompts use one after another."""

    def __init__(self, shape: str, capacity: int):
        self.trunk, self.head, _ = random_model(shape, torch.device("cuda"), bits=4, head="w4a8", kv="int8")
        with torch.inference_mode():
            self.state = self.trunk.new_state(capacity)
        self.capacity, self.grain = capacity, self.trunk.grain(self.state)

    def _begin(self):
        self.state.reset()
        return HeadDrafts(self.head, self.trunk, None, None, self.capacity)

    def cut(self, ids, cuts):
        """Everything behind a prompt whose passes end at `cuts`, by name."""
        drafter = self._begin()
        with torch.inference_mode():
            for start, end in pairwise((0, *cuts, len(ids))):
                places = torch.arange(start, end, device="cuda").expand(3, -1)
                embeddings = self.trunk.embed(ids[start:end])
                hidden = self.trunk.prefill(embeddings, self.state, places)
                drafter.prompt(embeddings, hidden, places)
            return self._held(drafter, self.trunk.logits(hidden[-1]), len(ids))

    def ask(self, ids, cache=None, system=0):
        """(milliseconds to the first token, tokens found, a function that gives what `cut` does)."""
        drafter, reuse = self._begin(), None
        session = Session(self.trunk, self.capacity, self.state)
        if cache is not None:
            reuse = session.reuse = PromptReuse(cache, "bench", self.trunk.chunk, drafter, self.grain, system)
        torch.cuda.synchronize()
        started = time.perf_counter()
        logits = session.prefill(ids, on_hidden=drafter.prompt)
        int(logits.argmax())
        ms = 1e3 * (time.perf_counter() - started)
        return ms, 0 if reuse is None else reuse.tokens, lambda: self._held(drafter, logits, len(ids))

    def _held(self, drafter, logits, tokens):
        named = {"keys and values": self.state.rows(0), "window or state": self.state.recurrent()}
        named |= {"head": drafter.prompt_cache.rows(0, tokens - 1), "waiting": drafter.waiting_row, "logits": [logits]}
        return {f"{name} {n}": x.clone() for name, parts in named.items() for n, x in enumerate(parts)}


def ids_of(count, seed):
    return torch.randint(0, 248_000, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def requests(count):
    """Prompts with one system prompt and other tokens behind it."""
    return [ids_of(SYSTEM, 0) + ids_of(REQUEST, 1 + n) for n in range(count)]


def same(found, wanted, what):
    """Raises AssertionError with the names of what differs."""
    differ = [name for name in wanted if not torch.equal(found[name], wanted[name])]
    assert not differ, f"{what}: {len(differ)} of {len(wanted)} differ: {differ[:8]}"


def check(bench):
    prompt = requests(1)[0]
    wanted = bench.cut(prompt, ())
    for cuts in ((64,), (320,), (576,), (640,), (64, 192, 576)):
        same(bench.cut(prompt, cuts), wanted, f"cut at {cuts}")
        print(f"  cut at {cuts}: the same bits", flush=True)
    for system, hits in ((SYSTEM, (0, 576, 576)), (0, (0, 0, 576))):
        cache = PrefixCache(2**40)
        for ids, hit in zip(requests(3), hits, strict=True):
            _, tokens, held = bench.ask(ids, cache, system)
            found = held()
            assert tokens == hit, f"{tokens} tokens were found, {hit} expected"
            same(found, bench.cut(ids, ()), f"{hit} tokens found")
    print("  found in the cache or not: the same bits", flush=True)


def measure(bench) -> dict:
    """Medians of ROUNDS, each with an empty cache at first. The very first locks pages, which later ones use again."""
    prompts = requests(3)
    row = {"without_ms": round(median(bench.ask(prompts[0])[0] for _ in range(ROUNDS)), 1)}
    row["tail_ms"] = round(median(bench.ask(prompts[0][576:])[0] for _ in range(ROUNDS)), 1)
    for name, system in (("system", SYSTEM), ("shared", 0)):
        times, cache = [], PrefixCache(2**40)
        for _ in range(ROUNDS):
            cache.clear()
            times.append([bench.ask(ids, cache, system)[0] for ids in prompts])
        row[f"{name}_ms"] = [round(median(column), 1) for column in zip(*times, strict=True)]
        row[f"{name}_very_first_ms"] = round(times[0][0], 1)
    return row | {"kept_MiB": round(cache.bytes / 2**20, 1)}


def measure_long(bench, tokens: int) -> dict:
    ids, cache = ids_of(tokens, 9), PrefixCache(2**40)
    bench.ask(ids)
    without = median(bench.ask(ids)[0] for _ in range(3))
    empty = []
    for _ in range(3):
        cache.clear()
        empty.append(bench.ask(ids, cache)[0])
    found = [bench.ask(ids, cache)[:2] for _ in range(4)][1:]  # the first is cut once more, near its end
    return {
        "tokens": tokens, "found": found[-1][1], "without_ms": round(without, 1), "empty_ms": round(median(empty), 1),
        "found_ms": round(median(ms for ms, _ in found), 1), "kept_MiB": round(cache.bytes / 2**20, 1),
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=("9b", "27b"), default="9b")
    parser.add_argument("--long", type=whole(1), nargs="*", default=[], metavar="TOKENS")
    arguments = parser.parse_args()
    main_gpu("benchmarks.prefix_cache")
    started = time.perf_counter()

    def say(text):
        print(f"{time.perf_counter() - started:5.1f} s  {text}", flush=True)

    bench = Bench(arguments.shape, max([SYSTEM + REQUEST, *arguments.long]) + 64)
    say(f"{torch.cuda.get_device_name()}, {arguments.shape}, W4A8; cut at multiples of {bench.grain}")
    bench.ask(requests(1)[0])
    say("kernels compiled")
    check(bench)
    say("checked")
    rows = [measure(bench)]
    rows += [measure_long(bench, tokens) for tokens in arguments.long]
    for row in rows:
        print("  " + ", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    say("done")
    summary = {"what": "bench prefix cache", "shape": arguments.shape, "grain": bench.grain}
    print(json.dumps({**summary, **provenance(), "rows": rows}), flush=True)


if __name__ == "__main__":
    main()
