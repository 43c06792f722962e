"""Acceptance profiles: how often drafts are right on three kinds of text, fitted to published figures.

A benchmark on random weights accepts nothing by itself. It draws from a profile instead which drafts count as right, so
that nobody's text decides the score.
"""

import random
from dataclasses import dataclass

from ..mtp.estimates import LEVELS, expected_tokens
from ..mtp.tree import OFF, Tree, all_shapes


@dataclass(frozen=True)
class Profile:
    """Where the target's token stands in the head's lists.

    rank1   per level: at rank 1, given rank 1 at all earlier levels
    others  at level 1: at rank 2, 3, ...; deeper levels scale them by (1 - rank1[level]) / (1 - rank1[0])
    source  the published figures that rank1 fits. Those of `others` are not published: they are assumed, from the
            remark that in creative writing the right token is usually among the first three, and kept modest.
    """

    rank1: tuple[float, ...]
    others: tuple[float, ...]
    source: str

    @property
    def rates(self) -> list[list[float]]:
        """q[level][rank], both from 0, as mtp/estimates.py wants them; ranks beyond the known ones have 0."""
        table = []
        for first in self.rank1:
            scale = (1 - first) / (1 - self.rank1[0])
            ranks = [first, *(share * scale for share in self.others)]
            table.append(ranks + [0.0] * (LEVELS - len(ranks)))
        return table

    def draw(self, tree: Tree, source: random.Random) -> tuple[int, ...]:
        """The accepted slots of one pass, root first. One number is drawn a level, so equal seeds give equal paths."""
        path = [0]
        for level, (width, shares) in enumerate(zip(tree.widths, self.rates, strict=False), 1):
            place, rank = source.random(), 1
            while rank <= width and place >= shares[rank - 1]:
                place -= shares[rank - 1]
                rank += 1
            if rank > width:
                break
            path.append(tree.slot(level, rank))
            if rank > 1:
                break
        return tuple(path)

    def expected_tokens(self, tree: Tree) -> float:
        """The mean number of tokens a pass, the one after the path included."""
        return expected_tokens(tree.widths, self.rates)


PROFILES = {
    "predictable": Profile(
        (0.94, 0.93, 0.92, 0.91, 0.90, 0.89, 0.88),
        (0.03, 0.012, 0.006),
        "fits published chain figures: Qwen3.6-27B structured output 88.7-89.8% accepted with 3 drafts, 3.66-3.69 "
        "tokens a round (NInfer README); code, temperature 0: 94.5% with 2 drafts, 80.4% with 5 (bradrlaw/ai-server PR "
        "12)",
    ),
    "prose": Profile(
        (0.80, 0.74, 0.70, 0.66, 0.62, 0.60, 0.58),
        (0.08, 0.035, 0.02),
        "fits technical prose, temperature 1: 67.3% with 2 drafts, 43.6% with 5 (bradrlaw/ai-server PR 12); long "
        "reasoning 73-79% with 3 (NInfer README)",
    ),
    "story": Profile(
        (0.62, 0.59, 0.47, 0.45, 0.43, 0.42, 0.41),
        (0.14, 0.06, 0.035),
        "fits creative writing, temperature 1, argmax drafts: 49.4% with 2 drafts, 25.1% with 5 (bradrlaw/ai-server "
        "PR 12)",
    ),
}
SHAPES = (OFF, *(Tree.chain(depth) for depth in range(1, 6)), *all_shapes())
