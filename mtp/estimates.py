"""What the planner knows: how often drafts are right, and how long passes take."""

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from statistics import median_low

from ..kernels.rows import SLOTS
from .tree import OFF, Tree

LEVELS = SLOTS - 1


class Counts:
    """Where the target's tokens stood in the head's lists.

    A pass that finds the token at rank r says "not here" for the ranks before r and nothing about those after. So
    counts are kept for "here, given at no rank before", and a narrow tree's misses do not count against ranks that
    it never showed.
    """

    # Before anything is known: 0.5 at level 1, each level a little below the one before (the surer, the less), and the
    # ranks after the first q1/2, q1/3, ... of what the ranks before leave: published acceptance figures look so.
    FIRST, DROP = 0.5, 0.3
    WEIGHT = 2.0  # of the prior, in observations

    def __init__(self) -> None:
        self._seen = [[0.0] * LEVELS for _ in range(LEVELS)]  # [level][rank], both from 0
        self._here = [[0.0] * LEVELS for _ in range(LEVELS)]

    @property
    def observations(self) -> float:
        """Of level 1."""
        return self._seen[0][0]

    def fade(self, memory: float) -> None:
        """Scale the counts down to at most `memory` observations of level 1. The prior returns as they fade."""
        passes = self.observations
        if passes > memory:
            for counts in (self._seen, self._here):
                counts[:] = [[count * memory / passes for count in level] for level in counts]

    def rates(self) -> list[list[float]]:
        """q[level][rank], both from 0: the token stands there, given rank 1 at all earlier levels."""
        table, expected = [], self.FIRST
        for seen, here in zip(self._seen, self._here, strict=True):
            left, level = 1.0, []
            for rank in range(LEVELS):
                prior = level[0] / (rank + 1) if level else expected
                share = (here[rank] + self.WEIGHT * prior) / (seen[rank] + self.WEIGHT)
                level.append(left * share)
                left *= 1 - share
            table.append(level)
            expected = level[0] * (1 - self.DROP * (1 - level[0]))
        return table


class Statistics(Counts):
    """The counts that the planner goes by, and those of the long run. Keep one per kind of sampling, across replies.

    Old counts fade as passes with drafts are observed, and between replies.
    """

    # Rank 1 of the first two levels, the mean over kinds of text of published figures (benchmarks/profiles.py), and for
    # how many observations that stands. Deeper levels follow what is seen here: fixed figures there would keep
    # predictable text from deep trees.
    USUAL, USUAL_WEIGHT = (0.787, 0.753), 2.0
    LONG_RUN = 1024  # observations that the long run's counts remember, and up to twice as many

    def __init__(self) -> None:
        super().__init__()
        self.long_run = Counts()

    def expect_usual(self) -> None:
        """Begins with published figures, which fade like observations, unless something was observed. They hope for
        more than the prior: for planners that know at once what a pass costs."""
        if not self.observations:
            for first, seen, here in zip(self.USUAL, self._seen, self._here, strict=False):
                seen[0], here[0] = self.USUAL_WEIGHT, self.USUAL_WEIGHT * first

    def observe(self, tree: Tree, path: Sequence[int], *, cut: bool, memory: float) -> None:
        """A pass with drafts. path: the accepted slots, root first. cut: its end says nothing about the level after it.
        memory: the most observations that are kept, this one among them."""
        self.fade(memory - 1)
        old, ranks, level = self.long_run, tree.ranks, 0
        for slot in path[1:]:
            rank = ranks[slot]
            self._look(level, rank)
            self._here[level][rank - 1] += 1
            old._here[level][rank - 1] += 1
            level += 1
        if tree.children(path[-1]) and not cut:
            self._look(level, tree.widths[level])
        if old._seen[0][0] > 2 * self.LONG_RUN:  # at once, since scaling takes longer than counting
            old.fade(self.LONG_RUN)

    def _look(self, level: int, ranks: int) -> None:
        seen, old = self._seen[level], self.long_run._seen[level]
        for rank in range(ranks):
            seen[rank] += 1
            old[rank] += 1


class Experience:
    """Statistics by kind of sampling, of the KINDS that were used last: settings may be other ones in every reply."""

    KINDS = 64

    def __init__(self) -> None:
        self._kept: dict[Hashable, Statistics] = {}

    def of(self, kind: Hashable) -> Statistics:
        """What replies of this kind showed; empty before the first one."""
        self._kept[kind] = self._kept.pop(kind, None) or Statistics()  # the last used stands last
        if len(self._kept) > self.KINDS:
            del self._kept[next(iter(self._kept))]
        return self._kept[kind]

    def clear(self) -> None:
        self._kept.clear()


def expected_tokens(widths: Sequence[int], rates: Sequence[Sequence[float]]) -> float:
    """1 + sum over levels of q[1][1] * ... * q[level-1][1] * (q[level][1] + ... + q[level][width]).

    rates: q[level][rank], both from 0, as Statistics.rates gives them.
    """
    tokens, reached = 1.0, 1.0
    for width, level in zip(widths, rates, strict=False):
        tokens += reached * sum(level[:width])
        reached *= level[0]
    return tokens


def on_line(points: Mapping[int, float], x: int) -> float:
    """The value at x of the line through the two points next to it; a single point's line starts at the origin.

    Beyond the outer points the line is carried on, but more rows or levels are never taken to cost less.
    """
    if x in points:
        return points[x]
    known = sorted(points.items()) if len(points) > 1 else [(0, 0.0), *points.items()]
    above = next((place for place, (other, _) in enumerate(known) if other > x), len(known))
    place = min(max(above, 1), len(known) - 1)
    (x0, y0), (x1, y1) = known[place - 1], known[place]
    slope = (y1 - y0) / (x1 - x0)
    if not x0 < x < x1:
        slope = max(slope, 0.0)
    return y1 + slope * (x - x1) if x > x0 else max(y0 - slope * (x0 - x), 0.0)


class Costs:
    """Seconds of a pass by its tree. Keep one per loaded model.

    The middle of the last nine measurements counts (the lower of two), and one alone does not: a first use is slow.
    """

    EXPECTED = 3
    EACH_ROW = 0.005  # of a plain pass, what one more row takes where rows are nearly free: benchmarks/README.md

    def __init__(self) -> None:
        self._samples: dict[tuple[str, int], deque[float]] = {}
        # By rows; by depth; and under 0 what the head takes to catch up, for one plain pass that it missed.
        self._points: dict[str, dict[int, float]] = {"verify": {}, "draft": {}, "catch up": {}}
        self._expected: set[tuple[str, int]] = set()  # points that no reply has measured yet
        self._first_plain: float | None = None
        self._found: dict[tuple[int, int], float] = {}  # by rows and depth, from these points

    def expect(self, *, verify_seconds: float, first_seconds: float, next_seconds: float) -> None:
        """What was measured before any reply, on a device where rows are nearly free: a plain verify pass, the first
        draft level, each further one. Holds until two passes of a size were observed; of a plain one it is as good as
        EXPECTED observations, since everything is judged by that, and what else is still expected grows as it does:
        passes over no text are shorter than a reply's."""
        if OFF.rows not in self._points["verify"]:
            self._samples["verify", OFF.rows] = deque([verify_seconds] * self.EXPECTED, maxlen=9)
        grown = self._points["verify"].get(OFF.rows, verify_seconds) / verify_seconds
        expected = {("verify", rows): verify_seconds * (1 + self.EACH_ROW * (rows - 1)) for rows in (1, 2, SLOTS)}
        expected |= {("draft", depth): first_seconds + (depth - 1) * next_seconds for depth in (1, 2)}
        for (part, size), seconds in expected.items():
            if size not in self._points[part]:
                self._points[part][size] = grown * seconds
                self._expected.add((part, size))
        self._first_plain = verify_seconds if self._first_plain is None else self._first_plain
        self._found.clear()

    def observe(self, tree: Tree, draft_seconds: float, verify_seconds: float, *, missed: int) -> None:
        """missed: the plain passes just before this one, whose tokens the head takes in now if it drafts."""
        if self._first_plain is None and not tree.depth:
            self._first_plain = verify_seconds
        self._add("verify", tree.rows, verify_seconds)
        usual = self._points["draft"].get(tree.depth)
        if missed and usual is not None:
            self._add("catch up", 0, (draft_seconds - usual) / missed)
        elif tree.depth:  # until its depth was measured any measurement is welcome
            self._add("draft", tree.depth, draft_seconds)

    def _add(self, part: str, size: int, seconds: float) -> None:
        samples = self._samples.setdefault((part, size), deque(maxlen=9))
        samples.append(seconds)
        if len(samples) > 1:
            self._expected.discard((part, size))
            seconds, before = median_low(samples), self._points[part].get(size)
            if (part, size) == ("verify", OFF.rows) and before:
                for other, point in self._expected:
                    self._points[other][point] *= seconds / before
            self._points[part][size] = seconds
            self._found.clear()

    def plain_passes(self, tree: Tree, seconds: float) -> float:
        """One measurement of a tree in plain passes, which must be known, and corrected if it was a first use.

        A row and a level cost no more than a plain pass each. What took longer was compiling or warming up: it is
        taken to have been slowed as much as the first plain pass was. If it still took longer it says nothing, and 1
        is returned: only machines whose rows are nearly free compile.
        """
        passes, limit = seconds / self.seconds(OFF), tree.rows + tree.depth
        if passes > limit:
            passes *= min(self.seconds(OFF) / (self._first_plain or 1e-9), 1.0)
        return max(passes, 1.0) if passes <= limit else 1.0

    def known(self, tree: Tree, *, missed: int = 0) -> bool:
        """Whether passes with this tree's rows and depth, and catching up if that is due, were measured."""
        caught_up = not (missed and tree.depth) or 0 in self._points["catch up"]
        return tree.rows in self._points["verify"] and tree.depth in (0, *self._points["draft"]) and caught_up

    def seconds(self, tree: Tree, *, missed: int = 0) -> float:
        """Of one pass: measured, or on a line through what was measured. At least one tree must be known."""
        size = tree.rows, tree.depth
        if size not in self._found:
            draft = on_line({0: 0.0, **self._points["draft"]}, tree.depth)  # the first level and each next one: a line
            # A reply's first pass begins on an idle device and takes less: no reason to think that rows cost less.
            plain = self._points["verify"].get(OFF.rows, 1e-9)
            self._found[size] = max(on_line(self._points["verify"], tree.rows), plain) + draft
        catch_up = missed * max(self._points["catch up"].get(0, 0.0), 0.0) if missed and tree.depth else 0.0
        return self._found[size] + catch_up
