"""Which draft tree the next verify pass gets: the one with the most expected tokens per second.

Nothing here changes the text: a tree only decides how many tokens a pass yields and how long it takes.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from .acceptance import Accepted
from .estimates import Costs, Statistics, expected_tokens
from .tree import OFF, Tree, all_shapes

ONE = Tree.chain(1)
OPTIONS = (OFF, *(Tree.chain(depth) for depth in range(1, 6)), *all_shapes())

PERIOD = 32  # passes between decisions, fewer in a reply's first passes
GAIN = 1.03  # what a change must promise: neighbouring shapes differ by less than the counts' noise
FEW, AGREED = 96, 32  # with less than FEW observations of late, any gain will do that AGREED or more of old agree with
PROBE = 64  # passes between probes while off is best
LATE, OVERDUE = 96, 0.017  # after so many plain passes a probe may lose so much for each of them
EARLY_CHECKS, EARLY_CHECK = 6, 5  # how often and after how many drafts a plain pass is measured at first
CHECK = 256  # the same later: its time grows with the context
SETTLED = 48  # passes after which their prices stand
MEMORY = 128  # observations that the counts remember
PROBE_MEMORY = 16  # the same while off, so that a few probes can bring drafting back
REPLY_MEMORY = 32  # the same between replies: another text may be another kind of text

# What a reply may have lost against plain decoding, in plain passes: 1 plus 0.01 for each of the first 64 passes, 2.5%
# of them, plus 0.012 a pass later; 0.5% are left for clocks that err by 3%. Where costs are known at once trees are
# more varied, and so each is measured less: there it is 0.006, and 0.9% are left. What drafts gained may be lost again
# up to a limit that covers the dearest tree. A reply that is to have fewer than 64 tokens stakes as much less,
# and a tenth less than that: what lies between passes counts more there, and the last pass that credit covers.
CREDIT, SHORT_CREDIT, CREDIT_LIMIT = 1.0, 0.9, 6.0
FIRST_ALLOWANCE, KNOWN_ALLOWANCE, FIRST_PASSES, ALLOWANCE = 0.01, 0.006, 64, 0.012


def expected_speeds(
    trees: Iterable[Tree], rates: Sequence[Sequence[float]], seconds: Callable[[Tree], float]
) -> dict[Tree, float]:
    """Expected tokens per second of each tree. rates: q[level][rank], both from 0; seconds: what a pass of it takes."""
    return {tree: expected_tokens(tree.widths, rates) / seconds(tree) for tree in trees}


def choose(options: Iterable[Tree], speeds: Mapping[Tree, float], current: Tree, gain: float = GAIN) -> Tree:
    """The option of the highest speed; `current`, which has one too, unless that is `gain` times as high."""
    best = max(options, key=speeds.__getitem__)
    return best if speeds[best] >= gain * speeds[current] else current


def name(tree: Tree) -> str:
    """ "off", or the widths: "3-2-1"."""
    return "-".join(map(str, tree.widths)) or "off"


class Fixed:
    """One tree for every pass: a pinned depth, or a test's shape. Interface of Planner."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def tree(self) -> Tree:
        return self._tree

    def observe(
        self, tree: Tree, accepted: Accepted, *, cut: bool, draft_seconds: float, verify_seconds: float
    ) -> None:
        """Nothing to learn."""

    def scores(self) -> dict:
        return {"current": name(self._tree), "options": []}


class Planner:
    """`auto`: chooses the tree of every pass of one reply, from what this reply and earlier ones showed.

    Without earlier ones it measures plain passes, then chains of one, and goes on from there. A tree is taken only if
    the credit covers that it accepts nothing, and chosen only if it leaves half of the credit to cheaper ones; so the
    loss against plain decoding is bounded at every moment however wrong the expected tokens are, as far as the measured
    times are right, and a few wrong drafts are not the last. Besides, a probe after LATE plain passes may cost OVERDUE
    of each. First uses, which compiling may slow, are paid for too: at what they turn out to cost once they were
    measured again. A reply of few tokens drafts only where costs are known, for finding them out is worth a longer one.

    tokens: the most that the reply may have
    """

    def __init__(
        self, statistics: Statistics | None = None, costs: Costs | None = None, *, tokens: int = FIRST_PASSES
    ) -> None:
        self.statistics = Statistics() if statistics is None else statistics
        self.costs = Costs() if costs is None else costs
        self._current = OFF
        self._wanted: Tree | None = None  # better, but more than credit allows
        share = (tokens - 1) / (FIRST_PASSES - 1)  # a prompt gives the first token
        self._credit = self._stake = CREDIT if share >= 1 else SHORT_CREDIT * share
        self._flying: deque[float] = deque()  # what passes that were not observed yet may lose
        self._passes = self._drafted = 0  # in all, and with drafts
        self._early: list[tuple[Tree, int, int, float]] = []  # first passes: tree, missed, tokens, seconds
        self._since_choice = self._since_drafts = self._since_off = 0
        self.statistics.fade(REPLY_MEMORY)
        self._warm = self._measured()  # by earlier replies: no early checks
        if self._warm:
            self.statistics.expect_usual()
            self._choose()

    def tree(self) -> Tree:
        """The tree of the next pass; it may be asked for some passes before `observe` is told of the last one."""
        tree = self._next_tree()
        loss = self._loss(tree, self._since_drafts) if tree.depth and self._measured() else 0.0
        self._flying.append(loss)
        return tree

    def _next_tree(self) -> Tree:
        # Everything is judged by the time of plain passes, so the first measurements of it are soon checked.
        check = EARLY_CHECK if not self._warm and self._drafted < EARLY_CHECKS * EARLY_CHECK else CHECK
        if not self.costs.known(OFF) or self._since_off >= check:
            return OFF
        if not self._measured():
            # Only if the credit covers what the first one seemed to cost; if that was wrong, full credit tries again.
            if self._stake < CREDIT:
                return OFF
            return ONE if self._first_loss() <= self._credit or self._credit == CREDIT else OFF
        wanted, missed = self._current, self._since_drafts
        if wanted == OFF and missed >= min(PROBE, 2 * self._drafted):
            if self._overdue(missed):
                return ONE
            wanted = ONE
        return wanted if self._affordable(wanted, missed, sum(self._flying)) else OFF

    def observe(
        self, tree: Tree, accepted: Accepted, *, cut: bool, draft_seconds: float, verify_seconds: float
    ) -> None:
        """Told after every pass.

        cut: a stop token, the length or the capacity ended the walk, so its end is no miss.
        draft_seconds, verify_seconds: how long the two parts of this pass took.
        """
        if self._flying:
            self._flying.popleft()
        missed = self._since_drafts
        paid = 0 if tree.depth and self._overdue(missed) else missed
        self.costs.observe(tree, draft_seconds, verify_seconds, missed=missed)
        self._passes += 1
        self._since_choice += 1
        self._since_drafts, self._since_off = (0, self._since_off + 1) if tree.depth else (self._since_drafts + 1, 0)
        if tree.depth:
            self._drafted += 1
            memory = PROBE_MEMORY if self._current == OFF else MEMORY
            self.statistics.observe(tree, accepted.path, cut=cut, memory=memory)
        if self.costs.known(OFF):
            self._pay(tree, paid, len(accepted.path), draft_seconds + verify_seconds)
        if not self._measured():
            return
        broke = not self._affordable(self._current)
        if broke:  # the counts promised better than this
            self.statistics.fade(PROBE_MEMORY)
        period = min(PERIOD, max(2, self._drafted // 2))
        due = tree.depth if self._current == OFF else self._since_choice >= period
        # A tree that credit forbids gives way at once, and the one that it kept away comes as soon as it may.
        if broke or due or not self._prudent(self._current) or (self._wanted and self._prudent(self._wanted)):
            self._choose()

    def scores(self) -> dict:
        """For the report, in plain JSON types: the current tree, q[level][rank], and the best five options."""
        rates = self.statistics.rates()
        options = []
        if self._measured():
            for tree in OPTIONS:
                tokens, seconds = expected_tokens(tree.widths, rates), self.costs.seconds(tree)
                speed = tokens / seconds
                options.append({"shape": name(tree), "tokens": tokens, "seconds": seconds, "tokens_per_second": speed})
            options.sort(key=lambda option: -option["tokens_per_second"])
        return {"current": name(self._current), "rates": rates, "options": options[:5]}

    def _overdue(self, missed: int) -> bool:
        """Whether a probe is made whatever the credit, which need not cover what the head has to catch up with: that
        grows by every plain pass, about as much as credit does, and would keep drafts away for the rest of a reply."""
        late = self._current == OFF and missed >= LATE and self._measured()
        return late and self._loss(ONE, missed) <= OVERDUE * missed

    def _measured(self) -> bool:
        return self.costs.known(OFF) and self.costs.known(ONE)

    def _plain_passes(self, seconds: float) -> float:
        return seconds / self.costs.seconds(OFF)

    def _affordable(self, tree: Tree, missed: int = 0, flying: float = 0.0) -> bool:
        return tree == OFF or self._loss(tree, missed) + flying <= self._credit

    def _loss(self, tree: Tree, missed: int = 0) -> float:
        """What a pass that accepts nothing loses, in plain passes."""
        return self._plain_passes(self.costs.seconds(tree, missed=missed)) - 1

    def _prudent(self, *trees: Tree) -> list[Tree]:
        """The trees that leave half of the credit, or all but one pass, or are as cheap as a chain of one."""
        most = max(self._credit / 2, self._credit - 1)
        if self._warm:
            most = max(most, min(self._loss(ONE), self._credit))
        most = (1 + most) * self.costs.seconds(OFF)
        return [tree for tree in trees if tree == OFF or self.costs.seconds(tree) <= most]

    def _first_loss(self) -> float:
        """What a chain of one that accepts nothing seems to lose, in plain passes; 0 before there was one."""
        losses = [self.costs.plain_passes(tree, seconds) - 1 for tree, _, _, seconds in self._early if tree.depth]
        return losses[-1] if losses else 0.0

    def _pay(self, tree: Tree, missed: int, tokens: int, seconds: float) -> None:
        # The first passes were priced by one or two measurements: they are priced again as more come in.
        known = [(tree, missed, tokens, seconds)]
        if len(self._early) < SETTLED:
            self._early += known
            self._credit, known = self._stake, self._early
        allowance = KNOWN_ALLOWANCE if self._warm else FIRST_ALLOWANCE
        if self._passes > FIRST_PASSES:
            allowance = ALLOWANCE
        prices: dict[tuple[Tree, int], float] = {}
        for tree, missed, tokens, seconds in known:
            if self.costs.known(tree, missed=missed):  # smoother than this one pass's time
                if (tree, missed) not in prices:
                    prices[tree, missed] = self._plain_passes(self.costs.seconds(tree, missed=missed))
                passes = prices[tree, missed]
            else:
                passes = self.costs.plain_passes(tree, seconds)
            self._credit = min(self._credit + tokens - passes, CREDIT_LIMIT)
            self._credit = max(self._credit, min(self._credit + allowance, self._stake))

    def _choose(self) -> None:
        self._since_choice = 0
        options = self._prudent(*OPTIONS)
        speeds = expected_speeds(OPTIONS, self.statistics.rates(), self.costs.seconds)
        best = self._better(OPTIONS, speeds, self._current)
        current = self._current if self._current in options else OFF
        # With all options left it is the same question.
        self._current = best if len(options) == len(OPTIONS) else self._better(options, speeds, current)
        self._wanted = None if best in options or self._current == OFF else best

    def _better(self, options: Iterable[Tree], speeds: Mapping[Tree, float], current: Tree) -> Tree:
        """As `choose` does; but while little is known of this text, small gains between trees with drafts are taken if
        the long run agrees. Later it no longer counts: the text may have changed since."""
        fastest, long_run = choose(options, speeds, current, gain=1.0), self.statistics.long_run
        best = choose((fastest,), speeds, current)
        asked = self.statistics.observations < FEW and long_run.observations >= AGREED
        if best != fastest and asked and OFF not in (current, fastest):
            usual = expected_speeds((fastest, current), long_run.rates(), self.costs.seconds)
            best = choose((fastest,), usual, current, gain=1.0)
        return best
