"""A session without a model, for tests of the loop: every row's logits are a function of the text before it."""

import torch
from fastqwen.engine.loop import generate
from fastqwen.engine.report import Meter
from fastqwen.kernels.rows import SLOTS

CPU = torch.device("cpu")


class ScriptedSession:
    """Interface of engine.session.Session. `logits_after`: (tokens so far) -> logits [V] float32 of the next one."""

    def __init__(self, logits_after, capacity):
        self._logits_after, self._capacity = logits_after, capacity
        self.tokens: list[int] = []
        self.staged: tuple[int, ...] = ()
        self.rows: torch.Tensor | None = None  # logits [SLOTS, V] of the last pass

    @property
    def room(self):
        return self._capacity - len(self.tokens)

    def prefill(self, ids, on_chunk=lambda done: False, *, on_hidden=None, pictures=None):
        self.tokens += ids
        on_chunk(len(ids))
        return self._logits_after(tuple(self.tokens))

    def verify(self, tokens, parents):
        texts = []
        for token, parent in zip(tokens, parents, strict=True):
            texts.append((*(texts[parent] if parent >= 0 else tuple(self.tokens)), token))
        live = [self._logits_after(text) for text in texts]
        self.rows = torch.stack(live + [torch.full_like(live[0], float("nan"))] * (SLOTS - len(live)))
        self.staged, self._texts = tuple(tokens), texts
        return self.rows

    def commit(self, path, tokens):
        assert path[0] == 0 and len(path) <= self.room
        assert list(tokens) == [self.staged[slot] for slot in path]
        assert self._texts[path[-1]] == (*self.tokens, *tokens)  # every slot follows its parent
        self.tokens += tokens
        return torch.zeros(len(path), 1)


class Drafts:
    """A drafter of one tree whose tokens `guess` gives: (tree, reply) -> tokens of slots 1..rows-1."""

    def __init__(self, tree, guess):
        self._tree, self._guess = tree, guess
        self.paths, self.cuts = [], []

    def prompt(self, embeddings, hidden, positions):
        """Not called by a scripted session."""

    def tree(self):
        return self._tree

    def draft(self, tree, reply):
        return self._guess(tree, reply)

    def observe(self, outcome):
        self.paths.append(outcome.accepted.path)
        self.cuts.append(outcome.cut)


def run(session, drafter, sampler, *, prompt, max_tokens, stop_ids=()):
    """(text, why it ended) of a reply through the real loop."""
    meter = Meter(CPU)
    passes = generate(
        session, list(prompt), drafter, sampler,
        stop_ids=stop_ids, max_tokens=max_tokens, on_step=lambda progress: None, meter=meter,
    )  # fmt: skip
    return [token for new in passes for token in new], meter.stop_reason
