"""What the generate loop asks a drafter for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ..attention import KVCache
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


class PromptRows(Protocol):
    """What an MTP head keeps of a prompt: a row of every token but the last, whose next token is not known yet."""

    def prompt(self, embeddings: Tensor, hidden: Tensor, positions: Tensor):
        """Told of every chunk of the prompt: embeddings and final hidden states [T, H], rotary positions [3, T]."""

    @property
    def prompt_cache(self) -> KVCache | None:
        """The cache that holds the rows; None where none are made, and then the rest is not called."""

    @property
    def waiting_row(self) -> tuple[Tensor, Tensor]:
        """Final hidden state [1, H] and rotary positions [3, 1] of the last token so far."""

    def resume(self, hidden: Tensor, positions: Tensor, next_position: int):
        """Goes on behind a beginning whose rows were put into the cache; the waiting row and the rotary position of the
        token after it are as they were there."""


class Drafter(PromptRows, Protocol):
    """Chooses a tree for the next pass, fills it, and learns what was accepted."""

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

    prompt_cache = None

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
