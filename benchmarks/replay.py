"""Which tree is best, and how near `auto` comes: replayed over where a model's own tokens stood in its head's lists.

python -m fastqwen.benchmarks.replay [--model demo-bf16] [--tokens 120] [--seeds 2] [--record FILE]

Texts are written by plain decoding. At each of their places the head drafts a chain of seven lists of seven, and the
rank of the text's own token is noted per level, as far as rank 1 goes. Every shape and the planner then run over these
ranks with the pass times of a GPU (PASS_TIMES), so one recording serves every tree and any machine. `--record` keeps
the ranks in a file, or takes them from it if it is there.

"once": one pass over the texts of a row, the planner started cold. "on": the same texts ten times over, one
planner for all, which is what a server of one kind of text sees. For the demo: demo model, synthetic text.
"""

import argparse
import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ..engine import SamplingSettings, load
from ..engine.sampling import Sampler
from ..mtp.acceptance import Accepted
from ..mtp.estimates import LEVELS, Costs, Statistics
from ..mtp.planner import OPTIONS, Planner, name
from ..mtp.tree import Tree
from ..weights import FastQwenError
from .acceptance import KINDS, TEMPERATURES
from .scripts import one_sentence

Ranks = list[
    list[int]
]  # per place of a text: rank per level, from 1, 0 for not in the list; ends after the first not 1


@dataclass(frozen=True)
class PassTimes:
    """Milliseconds. Rows are free: a pass reads the same weights for one row as for eight."""

    verify: float
    first_level: float
    next_level: float
    source: str

    def of(self, tree: Tree) -> tuple[float, float]:
        """(draft, verify) milliseconds of one pass."""
        draft = self.first_level + (tree.depth - 1) * self.next_level if tree.depth else 0.0
        return draft, self.verify


PASS_TIMES = PassTimes(2.08, 0.238, 0.220, "measured: 9B, W4A8, on an H200 (results/bench_decode_h200.jsonl)")


def record(engine, kind: str, temperature: float, seed: int, tokens: int, *, pre_norm: bool = False) -> Ranks:
    """Ranks at every place of one reply. `pre_norm`: see mtp/head.py."""
    prompt, template = KINDS[kind]
    settings = SamplingSettings(temperature=temperature, top_k=20, top_p=0.95)
    options = dict(settings=settings, seed=seed, max_tokens=tokens, template=template, mtp="off")
    reply = list(engine.generate(prompt, **options).token_ids)
    ids = engine.template.prompt_ids(prompt, system=None, thinking=False, raw=not template)
    sampler = Sampler(settings, seed, min(engine.tokenizer.size, engine.config.vocab_size))
    text, trunk, head = [*ids, *reply], engine.trunk, engine.mtp_head
    head.pre_norm = pre_norm
    with torch.inference_mode():
        embeddings, places = trunk.embed(text), torch.arange(len(text) + LEVELS, device=trunk.device).expand(3, -1)
        hidden = trunk.prefill(embeddings, trunk.new_state(len(text)))  # kinds and tokens keep it within one chunk
        cache = head.new_cache(len(text) + LEVELS, kind=trunk.kv, device=trunk.device)
        head.prefill(embeddings[1 : len(ids)], hidden[: len(ids) - 1], places[:, : len(ids) - 1], cache=cache)
        ranks = []
        for count in range(1, len(reply)):
            at = len(ids) + count - 2  # the row whose next token is reply[count - 1], a pass's root
            output = head.prefill(embeddings[at + 1 : at + 2], hidden[at : at + 1], places[:, at : at + 1], cache=cache)
            committed = cache.length
            found: list[int] = []
            for level in range(min(LEVELS, len(reply) - count)):
                history = torch.tensor(reply[: count + level], device=trunk.device)
                row = trunk.logits(head.for_logits(output))[0]
                candidates = sampler.candidates(row, history, len(history), LEVELS)
                token = reply[count + level]
                found.append(candidates.index(token) + 1 if token in candidates else 0)
                if found[-1] != 1 or level + 1 == min(LEVELS, len(reply) - count):
                    break
                place = places[:, at + 1 + level : at + 2 + level]
                output = head.prefill(embeddings[at + 2 + level : at + 3 + level], output, place, cache=cache)
            cache.truncate(committed)
            ranks.append(found)
    head.pre_norm = False
    return ranks


def walk(tree: Tree, found: list[int]) -> tuple[int, ...]:
    """The slots that a pass at a place with these ranks accepts, root first."""
    path = [0]
    for level, (width, rank) in enumerate(zip(tree.widths, found, strict=False), 1):
        if not 1 <= rank <= width:
            break
        path.append(tree.slot(level, rank))
        if rank > 1:
            break
    return tuple(path)


def replay(texts: list[Ranks], times: PassTimes, planner_of) -> tuple[float, float, dict[str, int]]:
    """(tokens a pass, tokens a millisecond, passes by shape) over whole texts; `planner_of`: a planner for each."""
    tokens = passes = milliseconds = 0
    shapes: dict[str, int] = {}
    for ranks in texts:
        planner, place = planner_of(), 0
        while place < len(ranks):
            tree = planner.tree()
            path, (draft, verify) = walk(tree, ranks[place]), times.of(tree)
            cut = place + len(path) > len(ranks)
            accepted = Accepted(path, tuple(range(len(path))), stop=False)
            planner.observe(tree, accepted, cut=cut, draft_seconds=draft / 1e3, verify_seconds=verify / 1e3)
            new = min(len(path), len(ranks) - place)
            tokens, passes, milliseconds, place = tokens + new, passes + 1, milliseconds + draft + verify, place + new
            shapes[name(tree)] = shapes.get(name(tree), 0) + 1
    return tokens / passes, tokens / milliseconds, shapes


def fixed(texts: list[Ranks], tree: Tree, times: PassTimes) -> tuple[float, float]:
    """(tokens a pass, tokens a millisecond) of one shape: the mean over all places of the texts."""
    lengths = [len(walk(tree, found)) for ranks in texts for found in ranks]
    tokens = statistics.mean(lengths)
    return tokens, tokens / sum(times.of(tree))


def auto(texts: list[Ranks], times: PassTimes) -> dict:
    """The planner over the texts: what it wrote a millisecond, and the same with every pass at its shape's mean.

    The mean takes chance out of a few passes: which of a text's places happened to start one.
    """

    def run(texts):
        known, costs = Statistics(), Costs()
        costs.expect(  # as an engine does that has captured its passes
            verify_seconds=times.verify / 1e3, first_seconds=times.first_level / 1e3,
            next_seconds=times.next_level / 1e3,
        )  # fmt: skip
        tokens, speed, shapes = replay(texts, times, lambda: Planner(known, costs))
        trees = {name(tree): tree for tree in OPTIONS}
        means = {shape: fixed(texts, trees[shape], times)[0] for shape in shapes}
        spent = sum(count * sum(times.of(trees[shape])) for shape, count in shapes.items())
        expected = sum(count * means[shape] for shape, count in shapes.items())
        most = max(shapes, key=lambda shape: shapes[shape])
        return dict(tokens=expected / sum(shapes.values()), speed=expected / spent, replayed=speed, shape=most)

    return {"once": run(texts), "on": run(texts * 10)}


def measure(kind: str, temperature: float, texts: list[Ranks], times: PassTimes) -> dict:
    """One row of the table."""
    speeds = {tree: fixed(texts, tree, times) for tree in OPTIONS}
    best = max(speeds, key=lambda tree: speeds[tree][1])
    found = auto(texts, times)
    row = {"kind": kind, "temperature": temperature, "places": sum(map(len, texts)), "best": name(best)}
    row |= {"best_tokens": speeds[best][0], "best_speed": speeds[best][1], "off_speed": 1 / times.verify}
    for which, result in found.items():
        row |= {f"auto_{which}_{key}": value for key, value in result.items()}
        row[f"auto_{which}_share"] = result["speed"] / speeds[best][1]
    return {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}


def chain_accepted(texts: list[Ranks], depth: int) -> float:
    """Drafts accepted a pass of a chain, over all places."""
    return fixed(texts, Tree.chain(depth), PASS_TIMES)[0] - 1


def recorded(arguments) -> dict[str, list[Ranks]]:
    """Texts' ranks by "kind/temperature/post or pre". Raises FastQwenError for a file that holds another recording."""
    path = Path(arguments.record) if arguments.record else None
    made_by = {"model": arguments.model, "tokens": arguments.tokens, "seeds": arguments.seeds}
    if path and path.exists():
        return _read(path, made_by)
    engine, table = load(arguments.model, device=arguments.device), {}
    for kind in KINDS:
        for temperature in TEMPERATURES:
            for form in ("post", "pre"):
                seeds = range(arguments.seeds if temperature else 1)
                make = [record(engine, kind, temperature, s, arguments.tokens, pre_norm=form == "pre") for s in seeds]
                table[f"{kind}/{temperature}/{form}"] = make
    if path:
        unfinished = path.with_name(path.name + ".part")
        unfinished.write_text(json.dumps(made_by | {"ranks": table}))
        unfinished.replace(path)
    return table


def _read(path: Path, made_by: dict) -> dict[str, list[Ranks]]:
    try:
        found = json.loads(path.read_text())
        same = all(found[key] == value for key, value in made_by.items())
        table = found["ranks"]
    except (OSError, ValueError, KeyError, TypeError):
        raise FastQwenError(f"'{path}' is no recording of this benchmark: give a new name, or delete it.") from None
    if not same:
        raise FastQwenError(f"'{path}' records { ({key: found[key] for key in made_by}) }, asked for is {made_by}.")
    return table


@one_sentence()
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo-bf16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--record")
    arguments = parser.parse_args()
    table, rows = recorded(arguments), []
    for kind in KINDS:
        for temperature in TEMPERATURES:
            post, pre = (table[f"{kind}/{temperature}/{form}"] for form in ("post", "pre"))
            if not any(post):
                continue
            row = measure(kind, temperature, post, PASS_TIMES)
            for depth in (3, 5):
                row[f"chain{depth}_post"] = round(chain_accepted(post, depth), 3)
                row[f"chain{depth}_pre"] = round(chain_accepted(pre, depth), 3)
            rows.append(row)
            print("  " + ", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    facts = {"what": "best shape and auto, replayed", "model": arguments.model, "pass_times_ms": asdict(PASS_TIMES)}
    print(json.dumps({**facts, "tokens": arguments.tokens, "seeds": arguments.seeds, "rows": rows}))


if __name__ == "__main__":
    main()
