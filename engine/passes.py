"""The passes of a reply: draft, verify, accept, commit. Here driven by the host, one after another."""

import time
from collections.abc import Collection
from typing import Protocol

import torch
from torch import Tensor

from ..attention import KVCache
from ..mtp.acceptance import accept
from ..mtp.drafts import Drafter, Outcome, PromptRows
from .sampling import Sampler
from .session import Session


class Passes(PromptRows, Protocol):
    """What the generate loop asks for, on a CPU or a GPU."""

    session: Session

    def first(self, logits: Tensor) -> int:
        """The reply's first token, from the logits [V] behind the prompt."""

    def next(self) -> Outcome:
        """One pass over what follows. Not called once the reply is complete."""

    def close(self):
        """Leaves the session committed. Called once, whatever ended the reply."""

    def report(self) -> dict:
        """What a report says of the drafting."""


class HostPasses:
    """Passes that wait for each other: the host draws every token, in plain torch.

    stop_ids, max_tokens  end the reply
    """

    def __init__(
        self, session: Session, drafter: Drafter, sampler: Sampler, *, stop_ids: Collection[int], max_tokens: int
    ):
        self.session, self._drafter, self._sampler = session, drafter, sampler
        self._stop_ids, self._max_tokens = stop_ids, max_tokens
        self._reply: list[int] = []

    def prompt(self, embeddings: Tensor, hidden: Tensor, positions: Tensor):
        self._drafter.prompt(embeddings, hidden, positions)

    @property
    def prompt_cache(self) -> KVCache | None:
        return self._drafter.prompt_cache

    @property
    def waiting_row(self) -> tuple[Tensor, Tensor]:
        return self._drafter.waiting_row

    def resume(self, hidden: Tensor, positions: Tensor, next_position: int):
        self._drafter.resume(hidden, positions, next_position)

    def first(self, logits: Tensor) -> int:
        self._reply = [self._drawn(logits, ())]
        return self._reply[0]

    def next(self) -> Outcome:
        reply, session = self._reply, self.session
        room = min(self._max_tokens - len(reply), session.room)
        tree = self._drafter.tree()
        started = time.perf_counter()
        tokens = (reply[-1], *self._drafter.draft(tree, reply))
        drafted = time.perf_counter()
        logits = session.verify(tokens, tree.parents)
        accepted = accept(
            tree, tokens, lambda slot, above: self._drawn(logits[slot], above), stop_ids=self._stop_ids, room=room
        )  # fmt: skip
        hidden = session.commit(accepted.path, [tokens[slot] for slot in accepted.path])
        cut = accepted.stop or len(accepted.tokens) == room
        outcome = Outcome(tree, accepted, hidden, cut, drafted - started, time.perf_counter() - drafted)
        reply += accepted.tokens
        self._drafter.observe(outcome)
        return outcome

    def close(self):
        """Nothing is under way between calls."""

    def report(self) -> dict:
        return self._drafter.report()

    def _drawn(self, row, above):
        history = torch.tensor([*self._reply, *above], dtype=torch.long, device=row.device)
        return self._sampler.draw(row, history, len(history))
