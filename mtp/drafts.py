"""What the generate loop asks a drafter for."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from .acceptance import Accepted
from .tree import OFF, Tree


class Drafter(Protocol):
    """Chooses a tree for the next pass, fills it, and learns what was accepted."""

    def tree(self) -> Tree:
        """The shape of the next pass."""

    def draft(self, tree: Tree, reply: Sequence[int], hidden: Tensor) -> Sequence[int]:
        """Token ids for slots 1..rows-1.

        reply   the reply so far; its last token is the root
        hidden  the trunk's final hidden state [H] at the last committed token
        """

    def observe(self, tree: Tree, accepted: Accepted):
        """Told after every pass."""


class NoDrafts:
    """Plain decoding: every pass is the root alone."""

    def tree(self) -> Tree:
        return OFF

    def draft(self, tree: Tree, reply: Sequence[int], hidden: Tensor) -> Sequence[int]:
        return ()

    def observe(self, tree: Tree, accepted: Accepted):
        """Nothing to learn."""
