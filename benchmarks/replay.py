"""Which tree is best, and how near `auto` comes: replayed over where a model's own tokens stood in its head's lists.

python -m fastqwen.benchmarks.replay [--model demo-bf16] [--tokens 100] [--texts 14] [--record FILE]

Texts are written by plain decoding. At each of their places the head drafts a chain of seven lists of seven, and the
rank of the text's own token is noted per level, as far as rank 1 goes. Every shape and the planner then run over these
ranks with the pass times of a GPU (PASS_TIMES), so one recording serves every tree and any machine. `--record` keeps
the ranks in a file, or takes them from it if it is there.

"once": one pass over the texts of a row, the planner started cold. "on": the same texts ten times over, one
planner for all, which is what a server of one kind of text sees. "first": every text by itself, the planner started
cold on each. For the demo: demo model, synthetic text.
"""

import argparse
import json
import statistics
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import torch

from ..engine import SamplingSettings, load
from ..engine.sampling import Sampler
from ..mtp.acceptance import Accepted
from ..mtp.estimates import LEVELS, Costs, Statistics
from ..mtp.planner import OPTIONS, Planner, name
from ..mtp.tree import Tree
from ..weights import FastQwenError
from .acceptance import TEMPERATURES
from .prompts import KINDS
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


FORMS = ("post", "pre")  # what the head is fed: its output after or before its norm (mtp/head.py)
SAMPLING = {"top_k": 20, "top_p": 0.95}
PASS_TIMES = PassTimes(2.08, 0.238, 0.220, "measured: 9B, W4A8, on an H200 (results/bench_decode_h200.jsonl)")


def record(engine, kind: str, temperature: float, number: int, tokens: int) -> dict[str, Ranks]:
    """Ranks at every place of one reply, to a kind's prompt of this number and with that seed, by form of the head."""
    prompts, template = KINDS[kind]
    prompt, settings = prompts[number], SamplingSettings(temperature=temperature, **SAMPLING)
    options = dict(settings=settings, seed=number, max_tokens=tokens, template=template, mtp="off")
    reply = list(engine.generate(prompt, **options).token_ids)
    ids = engine.template.prompt_ids(prompt, system=None, thinking=False, raw=not template)
    sampler = Sampler(settings, number, min(engine.tokenizer.size, engine.config.vocab_size))
    text, trunk = [*ids, *reply], engine.trunk
    with torch.inference_mode():
        embeddings = trunk.embed(text)
        hidden = trunk.prefill(embeddings, trunk.new_state(len(text)))  # kinds and tokens keep it within one chunk
        return {form: ranks_of(engine, sampler, reply, embeddings, hidden, form=form) for form in FORMS}


def ranks_of(engine, sampler: Sampler, reply: list[int], embeddings, hidden, *, form: str) -> Ranks:
    """Where a reply's tokens stand in the lists of the head, given the rows of the prompt and the reply."""
    trunk, head, start = engine.trunk, engine.mtp_head, len(embeddings) - len(reply)
    places = torch.arange(len(embeddings) + LEVELS, device=trunk.device).expand(3, -1)
    head.pre_norm = form == "pre"
    cache = head.new_cache(len(embeddings) + LEVELS, kind=trunk.kv, device=trunk.device)
    head.prefill(embeddings[1:start], hidden[: start - 1], places[:, : start - 1], cache=cache)
    ranks = []
    for count in range(1, len(reply)):
        at = start + count - 2  # the row whose next token is reply[count - 1], a pass's root
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
    """A planner that starts cold, over the texts: what it wrote a millisecond, and the same with every pass at its
    shape's mean over all places of the texts.

    The mean takes chance out of a few passes: which of a text's places happened to start one.
    """
    known, costs = Statistics(), Costs()
    costs.expect(  # as an engine does that has captured its passes
        verify_seconds=times.verify / 1e3, first_seconds=times.first_level / 1e3, next_seconds=times.next_level / 1e3
    )
    _, speed, shapes = replay(texts, times, lambda: Planner(known, costs))
    trees = {name(tree): tree for tree in OPTIONS}
    spent = sum(count * sum(times.of(trees[shape])) for shape, count in shapes.items())
    expected = sum(count * fixed(texts, trees[shape], times)[0] for shape, count in shapes.items())
    most = max(shapes, key=lambda shape: shapes[shape])
    return dict(tokens=expected / sum(shapes.values()), speed=expected / spent, replayed=speed, shape=most)


def first_replies(texts: list[Ranks], best: Tree, times: PassTimes) -> dict:
    """Shares of speed, the mean over texts and the least, with a planner that starts cold on each.

    "first" is of the best shape of the row, "first_own" of the one that is best for this text alone, in hindsight.
    """
    row, own = [], []
    for text in (text for text in texts if text):
        speed = auto([text], times)["speed"]
        row.append(speed / fixed([text], best, times)[1])
        own.append(speed / max(fixed([text], tree, times)[1] for tree in OPTIONS))
    return {
        "first": statistics.mean(row), "first_least": min(row),
        "first_own": statistics.mean(own), "first_own_least": min(own),
    }  # fmt: skip


def measure(kind: str, temperature: float, texts: list[Ranks], times: PassTimes) -> dict:
    """One row of the table."""
    speeds = {tree: fixed(texts, tree, times) for tree in OPTIONS}
    best = max(speeds, key=lambda tree: speeds[tree][1])
    found = {"once": auto(texts, times), "on": auto(texts * 10, times)}
    row = {"kind": kind, "temperature": temperature, "places": sum(map(len, texts)), "best": name(best)}
    row |= {"best_tokens": speeds[best][0], "best_speed": speeds[best][1], "off_speed": 1 / times.verify}
    for which, result in found.items():
        row |= {f"auto_{which}_{key}": value for key, value in result.items()}
        row[f"auto_{which}_share"] = result["speed"] / speeds[best][1]
    row |= first_replies(texts, best, times)
    return {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}


def chain_accepted(texts: list[Ranks], depth: int) -> float:
    """Drafts accepted a pass of a chain, over all places."""
    return fixed(texts, Tree.chain(depth), PASS_TIMES)[0] - 1


def recorded(arguments) -> dict[str, list[Ranks]]:
    """Texts' ranks by "kind/temperature/form". Raises FastQwenError for a file that holds another recording, and for
    more texts than there are prompts."""
    path = Path(arguments.record) if arguments.record else None
    most = min(len(prompts) for prompts, _ in KINDS.values())
    if not 1 <= arguments.texts <= most:
        raise FastQwenError(f"{arguments.texts} texts were asked for; a kind has prompts for 1 to {most}.")
    made_by = {"model": arguments.model, "tokens": arguments.tokens, "texts": arguments.texts}
    made_by["sampling"] = {"temperatures": list(TEMPERATURES), **SAMPLING}
    made_by["prompts"] = {kind: list(prompts[: arguments.texts]) for kind, (prompts, _) in KINDS.items()}
    if path and path.exists():
        return _read(path, made_by)
    engine, table = load(arguments.model, device=arguments.device), {}
    for kind, temperature in product(KINDS, TEMPERATURES):
        texts = [record(engine, kind, temperature, number, arguments.tokens) for number in range(arguments.texts)]
        for form in FORMS:
            table[f"{kind}/{temperature}/{form}"] = [text[form] for text in texts]
    if path:
        unfinished = path.with_name(path.name + ".part")
        by = {"torch": torch.__version__, "device": str(engine.device)}
        unfinished.write_text(json.dumps(made_by | by | {"ranks": table}))
        unfinished.replace(path)
    return table


def _read(path: Path, made_by: dict) -> dict[str, list[Ranks]]:
    try:
        found = json.loads(path.read_text())
        others = [f"{key} {str(found[key])[:60]}" for key, value in made_by.items() if found[key] != value]
        table = found["ranks"]
    except (OSError, ValueError, KeyError, TypeError):
        raise FastQwenError(f"'{path}' is no recording of this benchmark: give a new name, or delete it.") from None
    if others:
        raise FastQwenError(f"'{path}' was recorded with {', '.join(others)}: not what is asked for now.")
    return table


@one_sentence()
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo-bf16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--texts", type=int, default=14)
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
    print(json.dumps({**facts, "tokens": arguments.tokens, "texts": arguments.texts, "rows": rows}))


if __name__ == "__main__":
    main()
