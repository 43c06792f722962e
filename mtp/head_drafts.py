"""Drafts from the checkpoint's MTP head: a chain of its own first choices, with the next best of each level beside it.

The head's row for position p takes the trunk's hidden state there and the token after it, and proposes the token after
that. A round begins with the rows of all tokens that were committed since the last one, from the trunk's true hidden
states (the rows that drafts left are dropped), and the last of them gives level 1. Level L + 1 takes the head's own
output and its first choice of level L. What the head proposes can only cost or save time: the target decides.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from ..attention import KVCache
from ..model.trunk import Trunk
from .drafts import Outcome
from .head import MtpHead
from .tree import Tree

# (logits [V], the reply's tokens before the one to draft, how many) -> that many distinct ids, best first
Candidates = Callable[[Tensor, Sequence[int], int], list[int]]
MAX_WAITING = 256  # committed rows the head may be behind while nothing is drafted


class Planner(Protocol):
    """Chooses trees; mtp/planner.py."""

    def tree(self) -> Tree: ...

    def observe(self, tree: Tree, accepted, *, cut: bool, draft_seconds: float, verify_seconds: float): ...

    def scores(self) -> dict: ...


class HeadDrafts:
    """One sequence's drafter. `capacity` is the trunk state's; what a draft adds lies behind it."""

    def __init__(self, head: MtpHead, trunk: Trunk, planner: Planner, candidates: Candidates, capacity: int):
        self._head, self._trunk, self._planner, self._candidates = head, trunk, planner, candidates
        self._logits = trunk.logits if head.short is None else head.short.logits
        with torch.inference_mode():
            self._cache = head.new_cache(
                capacity, kind=trunk.kv, device=trunk.device, kernels=trunk.pass_kernels
            )  # fmt: skip
        # Committed rows whose own row the head has not made yet: hidden states [n, H] and rotary positions [3, n].
        self._hidden: list[Tensor] = []
        self._places: list[Tensor] = []
        self._next = 0  # rotary position of the next token, the root of a tree

    def prompt(self, embeddings: Tensor, hidden: Tensor, positions: Tensor):
        """Makes the rows of the prompt whose next token is known: all but the last."""
        following = embeddings if self._hidden else embeddings[1:]
        rows, places = torch.cat([*self._hidden, hidden]), torch.cat([*self._places, positions], 1)
        if len(following):
            self._head.extend(following, rows[:-1], places[:, :-1], cache=self._cache)
        self._hidden, self._places = [rows[-1:]], [places[:, -1:]]
        self._next = max(self._next, int(positions.max()) + 1)

    @property
    def prompt_cache(self) -> KVCache:
        return self._cache

    @property
    def waiting_row(self) -> tuple[Tensor, Tensor]:
        return self._hidden[-1], self._places[-1]

    def resume(self, hidden: Tensor, positions: Tensor, next_position: int):
        self._hidden, self._places, self._next = [hidden], [positions], next_position

    def tree(self) -> Tree:
        return self._planner.tree()

    def draft(self, tree: Tree, reply: Sequence[int]) -> list[int]:
        if self._head.short is not None and len(reply) == 1:  # drawn behind the prompt, by no pass
            self._head.short.add(reply)
        waiting = sum(map(len, self._hidden))
        if tree.depth == 0 and waiting < MAX_WAITING:
            return []
        with torch.inference_mode():
            output = self._catch_up(reply[-waiting:])
            return self._levels(tree, list(reply), output)

    def observe(self, outcome: Outcome):
        count = len(outcome.hidden)
        self._hidden.append(outcome.hidden)
        self._places.append(self._text_places(count))
        self._next += count
        if self._head.short is not None:
            self._head.short.add(outcome.accepted.tokens)
        self._planner.observe(
            outcome.tree, outcome.accepted, cut=outcome.cut, draft_seconds=outcome.draft_seconds,
            verify_seconds=outcome.verify_seconds,
        )  # fmt: skip

    def report(self) -> dict:
        return self._planner.scores()

    def _catch_up(self, following: Sequence[int]) -> Tensor:
        """Makes the rows that wait, each with the token after it; returns the last one's output [1, H]."""
        hidden, places = torch.cat(self._hidden), torch.cat(self._places, 1)
        self._hidden, self._places = [], []
        return self._head.prefill(self._trunk.embed(following), hidden, places, cache=self._cache)[-1:]

    def _levels(self, tree: Tree, text: list[int], output: Tensor) -> list[int]:
        committed = self._cache.length
        lists: list[list[int]] = []
        for level, width in enumerate(tree.widths, 1):
            lists.append(self._candidates(self._logits(self._head.for_logits(output))[0], text, width))
            text.append(lists[-1][0])
            if level < tree.depth:
                place = self._text_places(1) + level - 1
                output = self._head.prefill(self._trunk.embed(text[-1:]), output, place, cache=self._cache)
        self._cache.truncate(committed)
        return [lists[tree.depths[slot] - 1][tree.ranks[slot] - 1] for slot in range(1, tree.rows)]

    def _text_places(self, count: int) -> Tensor:
        return torch.arange(self._next, self._next + count, device=self._trunk.device).expand(3, -1)
