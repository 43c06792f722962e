"""Beginnings of prompts that were read before, kept in RAM: the same system prompt or conversation is not read twice.

An entry is what a session holds at a multiple of the trunk's chunk: the keys and values of the chunk before it, the
DeltaNet states and, where a reply drafted, the MTP head's rows and the hidden state its next row needs. Entries form
chains from the start of a prompt, and prompts are cut at the same multiples whether or not they are found here, so
that a prompt that was found gives the same bits as one that was not.
"""

import time
from array import array
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..model.state import TrunkState
from ..mtp.drafts import PromptRows

DEFAULT_BYTES = 256 * 2**20


@dataclass(eq=False)
class Entry:
    """One chunk of a chain. Tensors are on the CPU; `layers` as TrunkState.rows gives them, `head` the head's rows and
    the waiting row; `seconds` is what reading the chunk took."""

    layers: list[tuple[Tensor, ...]]
    head: tuple[Tensor, ...] | None
    next_position: int
    seconds: float
    bytes: int


class PrefixCache:
    """Chains of entries under a budget. What was used longest ago goes first, ends of chains before their starts."""

    def __init__(self, budget_bytes: int = DEFAULT_BYTES):
        self.budget_bytes = budget_bytes
        # (entry before it, or the settings a chain belongs to; content of the chunk) -> entry, longest unused first.
        # An entry is always newer than those behind it, so the first is the end of a chain.
        self._entries: OrderedDict[tuple[Hashable, Hashable], Entry] = OrderedDict()

    def __len__(self):
        return len(self._entries)

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self._entries.values())

    def clear(self):
        self._entries.clear()

    def chain(self, settings: Hashable, chunks: Sequence[Hashable]) -> list[Entry]:
        """The entries of as many of the first chunks as are known; they count as used."""
        keys, found = [], []
        for chunk in chunks:
            keys.append((found[-1] if found else settings, chunk))
            entry = self._entries.get(keys[-1])
            if entry is None:
                break
            found.append(entry)
        for key in reversed(keys[: len(found)]):
            self._entries.move_to_end(key)
        return found

    def make_room(self, needed: int, keep: Sequence[Entry]) -> bool:
        """Drops what was used longest ago until `needed` bytes fit; False if that would take an entry of `keep`."""
        if needed > self.budget_bytes:
            return False
        kept = set(keep)
        while self.bytes + needed > self.budget_bytes:
            key, entry = next(iter(self._entries.items()))
            if entry in kept:
                return False
            del self._entries[key]
        return True

    def add(self, settings: Hashable, chunks: Sequence[Hashable], entry: Entry) -> bool:
        """Puts `entry` behind the chain of all chunks but the last; False if that is no longer here."""
        before = self.chain(settings, chunks[:-1])
        if len(before) < len(chunks) - 1:
            return False
        self._entries[(before[-1] if before else settings, chunks[-1])] = entry
        self.chain(settings, chunks)
        return True


@dataclass
class PromptReuse:
    """One session's use of a cache. `tokens` were found, which saved about `seconds_saved`.

    settings  what else a state depends on: kinds of numbers, say
    chunk     tokens between entries
    contents  (index of its first token, anything hashable) of what stands in the prompt and is not told by token ids
    """

    cache: PrefixCache
    settings: Hashable
    chunk: int
    rows: PromptRows
    contents: Sequence[tuple[int, Hashable]] = ()
    tokens: int = 0
    seconds_saved: float = 0.0
    _chunks: list[Hashable] = field(default_factory=list)
    _whole: bool = True  # every chunk so far is in the cache

    def resume(self, ids: Sequence[int], state: TrunkState) -> int:
        """Brings an empty state as far into a prompt as is known, at least one token before its end, whose logits are
        not kept. Returns how many tokens that is."""
        started = time.perf_counter()
        chunks = [self._key(ids, start) for start in range(0, len(ids) - self.chunk, self.chunk)]
        found = self.cache.chain(self.settings, chunks)
        if self.rows.prompt_cache is not None:  # entries of replies that drafted nothing have no rows of the head
            found = found[: next((n for n, entry in enumerate(found) if entry.head is None), len(found))]
        if not found:
            return 0
        last = found[-1]
        self.tokens = len(found) * self.chunk
        state.restore([entry.layers for entry in found], length=self.tokens, next_position=last.next_position)
        self._restore_head(found)
        self._chunks = chunks[: len(found)]
        self.seconds_saved = max(0.0, sum(entry.seconds for entry in found) - (time.perf_counter() - started))
        return self.tokens

    def keep(self, ids: Sequence[int], state: TrunkState, seconds: float):
        """Told after every chunk of a prompt, whose tokens are ids[:state.length]; keeps those that are whole."""
        start = state.length - self.chunk
        if state.length % self.chunk or not self._whole:
            return
        self._chunks.append(self._key(ids, start))
        known = self.cache.chain(self.settings, self._chunks)
        head = self._head_rows(start)
        if len(known) == len(self._chunks):  # by a reply that drafted nothing
            if known[-1].head is None and head is not None and self._fits(head, known):
                known[-1].head = _copies(head)
                known[-1].bytes += _bytes(head)
            self._whole = known[-1].head is not None or head is None
            return
        layers = state.rows(start)
        needed = sum(map(_bytes, layers)) + _bytes(head or ())
        self._whole = len(known) == len(self._chunks) - 1 and self.cache.make_room(needed, known)
        if self._whole:
            copies = [_copies(part) for part in layers]
            entry = Entry(copies, None if head is None else _copies(head), state.next_position, seconds, needed)
            self._whole = self.cache.add(self.settings, self._chunks, entry)

    def _key(self, ids, start):
        end = start + self.chunk
        return array("q", ids[start:end]).tobytes(), tuple(x for x in self.contents if start <= x[0] < end)

    def _fits(self, head, known):
        return self.cache.make_room(_bytes(head), known)

    def _head_rows(self, start) -> tuple[Tensor, ...] | None:
        """The head's rows of a chunk: it is one row behind."""
        cache = self.rows.prompt_cache
        return None if cache is None else (*cache.rows(max(start - 1, 0), cache.length), *self.rows.waiting_row)

    def _restore_head(self, found: Sequence[Entry]):
        cache, last = self.rows.prompt_cache, found[-1]
        if cache is None:
            return
        for entry in found:
            cache.restore(entry.head[:-2])
        hidden, positions = (x.to(cache.keys.numbers.device, copy=True) for x in last.head[-2:])
        self.rows.resume(hidden, positions, last.next_position)


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _copies(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor) for tensor in tensors)
