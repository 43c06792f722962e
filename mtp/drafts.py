"""What the generate loop asks a drafter for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from .acceptance import Accepted
from .tree import OFF, Tree


@dataclass(frozen=True)
class Outcome:
    """A verify pass, as a drafter is told of it.

    tree, accepted  what was drafted and what became text
    hidden          the trunk's final hidden states [len(accepted.path), H] of the committed rows; None where they
                    stay on the device
    cut             the walk was ended by a stop token, the length or the capacity: its last level says nothing
    draft_seconds, verify_seconds  wall time, or the GPU's own
    """

    tree: Tree
    accepted: Accepted
    hidden: Tensor | None
    cut: bool
    draft_seconds: float
    verify_seconds: float


class Drafter(Protocol):
    """Chooses a tree for the next pass, fills it, and learns what was accepted."""

    def prompt(self, embeddings: Tensor, hidden: Tensor, positions: Tensor):
        """Told of every chunk of the prompt: embeddings and final hidden states [T, H], rotary positions [3, T]."""

    def tree(self) -> Tree:
        """The shape of the next pass."""

    def draft(self, tree: Tree, reply: Sequence[int]) -> Sequence[int]:
        """Token ids for slots 1..rows-1. reply: the reply so far; its last token is the root."""

    def observe(self, outcome: Outcome):
        """Told after every pass."""

    def report(self) -> dict:
        """What a report says of the drafting: plain JSON types."""


class NoDrafts:
    """Plain decoding: every pass is the root alone, and nothing is kept."""

    def prompt(self, embeddings: Tensor, hidden: Tensor, positions: Tensor):
        """Nothing to prepare."""

    def tree(self) -> Tree:
        return OFF

    def draft(self, tree: Tree, reply: Sequence[int]) -> Sequence[int]:
        return ()

    def observe(self, outcome: Outcome):
        """Nothing to learn."""

    def report(self) -> dict:
        return {}
