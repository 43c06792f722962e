"""Which tree is best, and how near `auto` comes: replayed over where a model's own tokens stood in its head's lists.

python -m fastqwen.benchmarks.replay [--model demo-bf16] [--tokens 100] [--texts 14] [--record FILE]

Texts are written by plain decoding, each to a prompt of its own. At each of their places the head drafts a chain of
seven lists of seven, and the rank of the text's own token is noted per level, as far as rank 1 goes. Every shape and
the planner then run over these ranks with the pass times of a GPU (PASS_TIMES), so one recording serves every tree and
any machine. `--record` keeps the ranks in a file, or takes them from it if it is there.

"once": one pass over the texts of a row, the planner started cold; "starts": the same begun with each of the texts in
turn, the mean and the least. "on": the same texts ten times over, one planner for all, which is what a server of one
kind of text sees. "first": every text by itself, the planner started cold on each. For the demo: demo model, synthetic
text.
"""

import argparse
import json
import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from ..mtp.acceptance import Accepted
from ..mtp.estimates import Costs, Statistics
from ..mtp.planner import OPTIONS, Planner, name
from ..mtp.tree import Tree
from ..option_types import whole
from .acceptance import TEMPERATURES
from .prompts import KINDS
from .ranks import Ranks, recorded
from .scripts import one_sentence


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


class Row:
    """Texts of one kind and temperature, and what passes yield in them.

    A text's places are where a pass may start. What a pass of a shape yields is the mean over places, of all texts
    ("speed") or of the text it is in ("by text"): that takes chance out of which places happened to start one. By text,
    a text takes as many passes as it needs, and a shape that fits one text is no loss for being wrong in others.
    """

    def __init__(self, texts: list[Ranks], times: PassTimes) -> None:
        self.texts, self.times = [ranks for ranks in texts if ranks], times
        self._sums: dict[Tree, list[int]] = {}

    def milliseconds(self, tree: Tree) -> float:
        return sum(self.times.of(tree))

    def tokens(self, tree: Tree, number: int | None = None) -> float:
        """Of one pass: in the text of that number, or in all."""
        if tree not in self._sums:
            self._sums[tree] = [sum(len(walk(tree, found)) for found in ranks) for ranks in self.texts]
        if number is not None:
            return self._sums[tree][number] / len(self.texts[number])
        return sum(self._sums[tree]) / sum(map(len, self.texts))

    def speed(self, shapes: Counter[Tree]) -> float:
        """Tokens a millisecond of passes with these shapes."""
        return sum(count * self.tokens(tree) for tree, count in shapes.items()) / self._spent(shapes)

    def speed_by_text(self, runs: list[tuple[int, Counter[Tree]]]) -> float:
        """The same of whole texts, each by its number and the shapes of its passes."""
        tokens = milliseconds = 0.0
        for number, shapes in runs:
            expected = sum(count * self.tokens(tree, number) for tree, count in shapes.items())
            tokens += len(self.texts[number])
            milliseconds += len(self.texts[number]) * self._spent(shapes) / expected
        return tokens / milliseconds

    def _spent(self, shapes: Counter[Tree]) -> float:
        return sum(count * self.milliseconds(tree) for tree, count in shapes.items())

    def best(self) -> tuple[Tree, float]:
        """(shape, tokens a millisecond)"""
        speeds = {tree: self.tokens(tree) / self.milliseconds(tree) for tree in OPTIONS}
        tree = max(OPTIONS, key=speeds.__getitem__)
        return tree, speeds[tree]

    def best_by_text(self) -> tuple[Tree, float]:
        every = range(len(self.texts))
        speeds = {tree: self.speed_by_text([(number, Counter([tree])) for number in every]) for tree in OPTIONS}
        tree = max(OPTIONS, key=speeds.__getitem__)
        return tree, speeds[tree]

    def planned(self, order: Iterable[int]) -> tuple[list[tuple[int, Counter[Tree]]], float]:
        """(shapes of the passes by text, tokens written a millisecond) of a planner that starts cold, over the texts
        of these numbers. It knows what passes cost, as an engine does that has captured them."""
        known, costs, runs = Statistics(), Costs(), []
        times = self.times
        costs.expect(
            verify_seconds=times.verify / 1e3, first_seconds=times.first_level / 1e3,
            next_seconds=times.next_level / 1e3,
        )  # fmt: skip
        tokens = milliseconds = 0.0
        for number in order:
            ranks, planner, place, shapes = self.texts[number], Planner(known, costs), 0, Counter()
            while place < len(ranks):
                tree = planner.tree()
                path, (draft, verify) = walk(tree, ranks[place]), times.of(tree)
                cut = place + len(path) > len(ranks)
                accepted = Accepted(path, tuple(range(len(path))), stop=False)
                planner.observe(tree, accepted, cut=cut, draft_seconds=draft / 1e3, verify_seconds=verify / 1e3)
                new = min(len(path), len(ranks) - place)
                tokens, milliseconds, place = tokens + new, milliseconds + draft + verify, place + new
                shapes[tree] += 1
            runs.append((number, shapes))
        return runs, tokens / milliseconds


def auto(row: Row, order: Iterable[int], best: float, best_by_text: float) -> dict:
    """The planner over texts in this order, and its shares of the best speeds."""
    runs, replayed = row.planned(order)
    shapes = sum((shapes for _, shapes in runs), Counter())
    speed = row.speed(shapes)
    tokens = sum(count * row.tokens(tree) for tree, count in shapes.items()) / shapes.total()
    return {
        "tokens": tokens, "speed": speed, "replayed": replayed, "shape": name(shapes.most_common(1)[0][0]),
        "share": speed / best, "share_by_text": row.speed_by_text(runs) / best_by_text,
    }  # fmt: skip


def first_replies(row: Row, best: Tree) -> dict:
    """Shares of speed, the mean over texts and the least, with a planner that starts cold on each.

    "first" is of the best shape of the row, "first_own" of the one that is best for this text alone, in hindsight.
    """
    shares, own = [], []
    for text in row.texts:
        alone = Row([text], row.times)
        ((_, shapes),) = alone.planned([0])[0]
        shares.append(alone.speed(shapes) / alone.speed(Counter([best])))
        own.append(alone.speed(shapes) / alone.best()[1])
    return {
        "first": statistics.mean(shares), "first_least": min(shares),
        "first_own": statistics.mean(own), "first_own_least": min(own),
    }  # fmt: skip


def measure(kind: str, temperature: float, texts: list[Ranks], times: PassTimes) -> dict:
    """One row of the table."""
    row, count = Row(texts, times), sum(map(bool, texts))
    (best, speed), (by_text, speed_by_text) = row.best(), row.best_by_text()
    starts = [auto(row, [(start + n) % count for n in range(count)], speed, speed_by_text) for start in range(count)]
    table = {"kind": kind, "temperature": temperature, "texts": count, "places": sum(map(len, texts))}
    table |= {"best": name(best), "best_tokens": row.tokens(best), "best_speed": speed, "off_speed": 1 / times.verify}
    table |= {"best_by_text": name(by_text), "best_speed_by_text": speed_by_text}
    on = auto(row, [*range(count)] * 10, speed, speed_by_text)
    for which, result in (("once", starts[0]), ("on", on)):
        table |= {f"auto_{which}_{key}": value for key, value in result.items()}
    for key in ("share", "share_by_text"):
        shares = [start[key] for start in starts]
        table |= {f"auto_starts_{key}": statistics.mean(shares), f"auto_starts_{key}_least": min(shares)}
    table |= first_replies(row, best)
    return {key: round(value, 4) if isinstance(value, float) else value for key, value in table.items()}


def chain_accepted(texts: list[Ranks], depth: int) -> float:
    """Drafts accepted a pass of a chain, over all places."""
    return Row(texts, PASS_TIMES).tokens(Tree.chain(depth)) - 1


@one_sentence()
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo-bf16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tokens", type=whole(1), default=100)
    parser.add_argument("--texts", type=whole(1), default=14)
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
