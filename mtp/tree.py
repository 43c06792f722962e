"""The shape of a draft as plain integers: which slot holds which candidate, and who is whose parent.

A verify pass has eight slots. Slot 0 is the root: the token that belongs to the text already but was not fed to the
model yet. Level L = 1, 2, ... holds the draft head's candidates for the L-th token after the root, ranked from 1.
Only the rank-1 candidate of a level has children, so a tree is a chain with leaves beside it:

    widths (3, 2):   slot 0 --- slot 1 --- slot 2      the chain: rank 1 of every level
                       |  |       +------- slot 5      level 2, rank 2
                       |  +--- slot 3                  level 1, rank 2
                       +------ slot 4                  level 1, rank 3
"""

from dataclasses import dataclass
from functools import cached_property

from ..kernels.rows import SLOTS
from ..weights.errors import FastQwenError


@dataclass(frozen=True)
class Tree:
    """A draft tree given by the number of candidates per level; no levels is plain decoding.

    widths: one int >= 1 per level, their sum at most SLOTS - 1.
    Slots are ordered chain first: 0..depth are the root and the rank-1 candidates, then the other candidates level by
    level in rank order. Levels and ranks count from 1; the root's level and rank are 0.
    Raises FastQwenError for widths that are no tuple of such ints.
    """

    widths: tuple[int, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.widths, tuple):
            raise FastQwenError(f"A draft tree's widths are {self.widths!r}; give a tuple with one int per level.")
        if any(type(width) is not int or width < 1 for width in self.widths):
            raise FastQwenError(f"A draft tree's widths are {self.widths!r}; every level needs an int of at least 1.")
        if sum(self.widths) > SLOTS - 1:
            raise FastQwenError(
                f"A draft tree's widths are {self.widths!r}, {sum(self.widths)} candidates in all; "
                f"a pass has room for {SLOTS - 1} beside the root."
            )

    @staticmethod
    def chain(length: int) -> "Tree":
        """The tree of `length` levels with one candidate each; 0 is plain decoding. Raises FastQwenError above 7."""
        if type(length) is not int or not 0 <= length < SLOTS:
            raise FastQwenError(f"A draft chain's length is {length!r}; it must be an int from 0 to {SLOTS - 1}.")
        return Tree((1,) * length)

    @cached_property
    def depth(self) -> int:
        """The number of levels."""
        return len(self.widths)

    @cached_property
    def rows(self) -> int:
        """The number of live slots: the root and every candidate."""
        return 1 + sum(self.widths)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Per slot, its level; 0 for the root."""
        leaves = (level for level, width in enumerate(self.widths, 1) for _ in range(width - 1))
        return (*range(self.depth + 1), *leaves)

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Per slot, its place in the head's list, from 1; 0 for the root."""
        leaves = (rank for width in self.widths for rank in range(2, width + 1))
        return (0, *(1 for _ in self.widths), *leaves)

    @cached_property
    def parents(self) -> tuple[int, ...]:
        """Per slot, its parent's slot; -1 for the root. The chain's slot of a level has that level's number."""
        return tuple(level - 1 for level in self.depths)

    @cached_property
    def _children(self) -> tuple[tuple[int, ...], ...]:
        # A slot that is a parent is on the chain; chain-first order lists a level's slots in rank order.
        return tuple(
            tuple(child for child, parent in enumerate(self.parents) if parent == slot) for slot in range(self.rows)
        )

    def children(self, slot: int) -> tuple[int, ...]:
        """The slots that hold the candidates for the token after `slot`'s, in rank order; () for a leaf.

        Raises FastQwenError for a slot that the tree does not have.
        """
        if not 0 <= slot < self.rows:
            raise FastQwenError(f"Slot {slot} was asked for, but {self} has slots 0 to {self.rows - 1}.")
        return self._children[slot]

    def slot(self, level: int, rank: int) -> int:
        """The slot of one candidate; level and rank count from 1. Raises FastQwenError when there is none."""
        if not (1 <= level <= self.depth and 1 <= rank <= self.widths[level - 1]):
            raise FastQwenError(f"Level {level}, rank {rank} was asked for, but {self} has no such candidate.")
        return self._children[level - 1][rank - 1]


OFF = Tree(())


def all_shapes() -> tuple[Tree, ...]:
    """The 64 trees that fill all eight slots, one per composition of 7, in lexicographic order of their widths."""
    return tuple(Tree(widths) for widths in _compositions(SLOTS - 1))


def _compositions(total: int) -> list[tuple[int, ...]]:
    if total == 0:
        return [()]
    return [(first, *rest) for first in range(1, total + 1) for rest in _compositions(total - first)]
