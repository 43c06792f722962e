"""One sequence on one model: the committed tokens and the trunk's state for them."""

import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from ..model.state import TrunkState
from ..model.trunk import Trunk
from ..weights import FastQwenError
from .media import Embedded
from .prompt_reuse import PromptReuse

GIVEN_BACK = "What replies share was given back while this reply was written: run it again."


class Session:
    """`tokens` are committed and the state is theirs; `hidden` is the final hidden state [H] of the last of them.
    `reuse` is where beginnings of prompts are looked for and kept, if anywhere.

    An exception inside a pass marks the session invalid, since some layers may have moved and others not; between
    passes it is always whole. An invalid session refuses further use.
    """

    def __init__(self, trunk: Trunk, capacity: int, state: TrunkState | None = None):
        """state: an empty one that can hold `capacity` tokens, where there is one to use again."""
        self.trunk, self.capacity = trunk, capacity
        with torch.inference_mode():
            self.state = trunk.new_state(capacity) if state is None else state
        self.tokens: list[int] = []
        self.valid = True
        self.reuse: PromptReuse | None = None
        self._rows: Tensor | None = None  # hidden states of the staged rows

    @property
    def room(self) -> int:
        """How many more tokens can be committed."""
        return self.capacity - len(self.tokens)

    def prefill(
        self,
        ids: Sequence[int],
        on_chunk: Callable[[int], bool] = lambda done: False,
        *,
        on_hidden: Callable[[Tensor, Tensor, Tensor], None] = lambda embeddings, hidden, positions: None,
        pictures: Embedded | None = None,
    ) -> Tensor | None:
        """Commits prompt tokens in chunks at absolute multiples of the trunk's, cut where `reuse` has a use for it.

        on_chunk  called with the number of tokens done after every chunk; True ends the prefill there
        on_hidden  told of every chunk's embeddings and final hidden states [T, H] and rotary positions [3, T]
        pictures   what stands in these ids' picture tokens, and where all of them stand
        Returns the logits [V] float32 after the last token, or None if it was ended early.
        """
        if not ids or len(ids) > self.room:
            raise FastQwenError(f"A prompt of {len(ids)} tokens was given where 1 to {self.room} fit.")
        reuse = None if self.tokens else self.reuse  # of an empty session: decoding leaves other bits than a prompt
        if reuse is not None and pictures is not None:
            reuse.contents = pictures.contents()
        first = self.state.next_position
        done = self._resume(ids, reuse)
        if done and on_chunk(done):
            return None
        while done < len(ids):
            started = time.perf_counter()
            left = self.trunk.chunk - len(self.tokens) % self.trunk.chunk
            chunk = ids[done : done + left if reuse is None else reuse.next_end(done)]
            with self._pass():
                embeddings = self.trunk.embed(chunk)
                if pictures is None:
                    start = self.state.next_position
                    places = torch.arange(start, start + len(chunk), device=self.trunk.device).expand(3, -1)
                else:
                    pictures.fill(done, embeddings)
                    places = first + pictures.positions[:, done : done + len(chunk)]
                hidden = self.trunk.prefill(embeddings, self.state, places)
                on_hidden(embeddings, hidden, places)
                self.tokens += chunk
            done += len(chunk)
            if reuse is not None:
                with torch.inference_mode():
                    reuse.keep(self.state, len(chunk), time.perf_counter() - started)
            if on_chunk(done):
                return None
        with torch.inference_mode():
            return self.trunk.logits(hidden[-1])

    def _resume(self, ids, reuse):
        if reuse is None:
            return 0
        with self._pass():
            known = reuse.resume(ids, self.state)
            self.tokens += ids[:known]
        return known

    def verify(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        """One pass over a tree of up to eight rows; nothing is committed. Returns logits [SLOTS, V] float32."""
        with self._pass():
            self._rows, logits = self.trunk.verify(tokens, parents, self.state)
        return logits

    def commit(self, path: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """Keeps the staged slots of `path`, which hold `tokens`; returns their final hidden states [len(path), H]."""
        if len(path) > self.room:
            raise FastQwenError(f"{len(path)} tokens were accepted where {self.room} fit.")
        with self._pass():
            self.state.commit(path)
            self.tokens += tokens
            return self._rows[list(path)]

    @contextmanager
    def _pass(self):
        if not self.valid:
            raise FastQwenError("This session was interrupted inside a pass and cannot go on: start a new one.")
        if not self.state.layers:  # engine/device_model.py's release
            raise FastQwenError(GIVEN_BACK)
        self.valid = False
        with torch.inference_mode():
            yield
        self.valid = True
