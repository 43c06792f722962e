"""Where a prompt is cut, what of it is found in the cache and what is kept.

Passes over a prompt end at absolute multiples of the trunk's chunk, found or not, and what they leave is kept there. A
chunk is long, on a GPU longer than most system prompts. Where the trunk gives the same bits for any cut at multiples of
its grain (Trunk.grain), a chunk is cut once more

    behind the system message that a prompt begins with, and
    behind the beginning that it shares with one of the last prompts,

if LEAST tokens or more lie between that place and what is found or kept anyway. So a system prompt is found from the
second request on, and another beginning from the third on. An extra cut costs one short pass, once. A state behind a
whole prompt is not kept: most prompts come once, and it would cost each of them a pass and a copy.

A pass of a few tokens runs by kernels that add up in another order, so a cut never makes one: nothing is kept or found
so near to a prompt's end, unless it would be cut there in any case.
"""

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..kernels.rows import SLOTS
from ..model.state import TrunkState
from ..model.tokenizer import Tokenizer
from ..mtp.drafts import PromptRows
from .kept import Kept, bytes_for
from .prefix_cache import Entry, PrefixCache, Prompt

LEAST = 128  # tokens that an extra cut must promise to save: what a pass takes whatever it reads, or less


def system_end(ids: Sequence[int], tokenizer: Tokenizer) -> int:
    """The first token behind the system message that a prompt begins with; 0 where there is none."""
    start, end = tokenizer.token_id("<|im_start|>"), tokenizer.token_id("<|im_end|>")
    if start is None or end is None or end not in ids:
        return 0
    opening = [start, *tokenizer.encode_plain("system")]
    return ids.index(end) + 1 if list(ids[: len(opening)]) == opening else 0


@dataclass
class PromptReuse:
    """One session's use of a cache. `tokens` were found, which saved about `seconds_saved`.

    settings  what else a state depends on: kinds of numbers, say
    chunk     passes end at absolute multiples of so many tokens
    grain     and may end at multiples of this, a divisor of it; 0: at no others
    system    tokens of the system message at the prompt's start
    contents  (index of its first token, anything hashable) of what stands in the prompt and is not told by token ids
    """

    cache: PrefixCache
    settings: Hashable
    chunk: int
    rows: PromptRows
    grain: int = 0
    system: int = 0
    contents: Sequence[tuple[int, Hashable]] = ()
    tokens: int = 0
    seconds_saved: float = 0.0
    _prompt: Prompt | None = None
    _cuts: list[int] = field(default_factory=list)
    _chain: list[Entry] = field(default_factory=list)
    _whole: bool = True  # all that could be kept so far is in the cache

    def resume(self, ids: Sequence[int], state: TrunkState) -> int:
        """Brings an empty state as far into a prompt as is known, at least one token before its end, whose logits are
        not kept. Returns how many tokens that is."""
        started = time.perf_counter()
        prompt = self._prompt = Prompt(ids, self.contents)
        drafts = self.rows.prompt_cache is not None  # entries of replies that drafted nothing have no rows of the head
        self._chain = self.cache.longest(
            self.settings, prompt,
            lambda entry: self._may_end(entry.end) and not (drafts and entry.head is None),
        )  # fmt: skip
        self.tokens = self._chain[-1].end if self._chain else 0
        shared = self.cache.remember(self.settings, prompt)
        if bytes_for(state.recurrent()) <= self.cache.budget_bytes:  # else nothing could be kept there
            self._cuts = self._extra_cuts(shared)
        if self._chain:
            self._restore(state)
            speed = self.cache.speed(self.settings)
            saved = sum(map(speed.saved, self._chain)) - (time.perf_counter() - started)
            self.seconds_saved = max(0.0, saved)
        return self.tokens

    def next_end(self, done: int) -> int:
        """Where the pass that begins behind `done` tokens ends, if the prompt is that long."""
        whole = done // self.chunk * self.chunk + self.chunk
        return min((cut for cut in self._cuts if done < cut < whole), default=whole)

    def keep(self, state: TrunkState, tokens: int, seconds: float):
        """Told after every pass of the prompt, `tokens` long; keeps what is to be kept there."""
        self.cache.speed(self.settings).passed(tokens, seconds)
        end, start = state.length, self._chain[-1].end if self._chain else 0
        if not self._whole or (end % self.chunk and end not in self._cuts):
            return
        head = self._head_rows(start)
        known = self.cache.following(self.settings, self._prompt, self._chain, end)
        if known is None:
            known = self._added(state, start, head, tokens, seconds)
        elif known.head is None and head is not None and self.cache.make_room(bytes_for(head), [*self._chain, known]):
            known.head = Kept(head)  # it was kept by a reply that drafted nothing
        self._whole = known is not None and (head is None or known.head is not None)
        if self._whole:
            self._chain.append(known)

    def _added(self, state, start, head, tokens, seconds) -> Entry | None:
        rows, recurrent = state.rows(start), state.recurrent()
        needed = sum(map(bytes_for, (rows, recurrent, head or ())))
        if not self.cache.make_room(needed, self._chain):
            return None
        try:
            kept = Kept(rows), Kept(recurrent), None if head is None else Kept(head)
        except torch.OutOfMemoryError:  # copies are put together on the GPU; the prompt is read without them
            return None
        extra = state.length % self.chunk != 0
        entry = Entry(state.length, *kept, state.next_position, seconds, tokens, extra)
        return entry if self.cache.add(self.settings, self._prompt, self._chain, entry) else None

    def _may_end(self, end):
        left = len(self._prompt) - end
        return left > (SLOTS if end % self.chunk else 0)

    def _extra_cuts(self, shared):
        grain, found = self.grain or self.chunk, []
        last = self.tokens
        for place in sorted((self.system, shared)):
            cut = min(place, len(self._prompt) - SLOTS - 1) // grain * grain
            if cut - max(last, cut // self.chunk * self.chunk) >= LEAST:
                found.append(cut)
                last = cut
        return found

    def _head_rows(self, start) -> tuple[Tensor, ...] | None:
        """The head's rows since token `start`: it is one row behind."""
        cache = self.rows.prompt_cache
        return None if cache is None else (*cache.rows(max(start - 1, 0), cache.length), *self.rows.waiting_row)

    def _restore(self, state):
        last, device = self._chain[-1], state.device
        # One entry's copy on the device at a time: a long beginning's together take the room of its keys and values.
        rows = (entry.rows.on(device) for entry in self._chain)
        state.restore(rows, last.recurrent.on(device), length=last.end, next_position=last.next_position)
        cache = self.rows.prompt_cache
        if cache is None:
            return
        for entry in self._chain:
            *parts, hidden, positions = entry.head.on(device)
            cache.restore(parts)
        self.rows.resume(hidden.clone(), positions.clone(), last.next_position)
