"""Beginnings of prompts that were read before, kept in RAM: the same system prompt or conversation is not read twice.

An entry is what a session holds at some place of a prompt: the keys and values since the entry before it, the DeltaNet
states and, where a reply drafted, the MTP head's rows and the hidden state its next row needs. Entries form chains from
the start of a prompt. They lie where passes of a prompt may end without changing a bit (engine/prompt_reuse.py), so
that a prompt that was found gives the same bits as one that was not.
"""

from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from .kept import Kept

DEFAULT_BYTES = 256 * 2**20
REMEMBERED = 16  # prompts whose tokens are known, so that what they share is seen


class Prompt:
    """Token ids, and what stands in them that they do not tell: (index of its first token, anything hashable)."""

    def __init__(self, ids: Sequence[int], contents: Sequence[tuple[int, Hashable]] = ()):
        self._ids, self.contents = array("i", ids).tobytes(), tuple(contents)
        self._width = array("i").itemsize

    def __len__(self):
        return len(self._ids) // self._width

    def part(self, start: int, end: int) -> Hashable:
        """Tokens start..end-1, by what they are told apart from others at the same place."""
        inside = tuple(x for x in self.contents if start <= x[0] < end)
        return self._ids[start * self._width : end * self._width], inside

    def shared(self, other: "Prompt") -> int:
        """How many tokens at the start are the same."""
        low, high = 0, min(len(self), len(other))
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.part(0, middle) == other.part(0, middle) else (low, middle - 1)
        return low


@dataclass(eq=False)
class Entry:
    """A link of a chain, up to token `end` of a prompt.

    rows       keys and values since the link before it, as TrunkState.rows gives them
    recurrent  as TrunkState.recurrent gives it
    head       the MTP head's rows since then and the waiting row, or None
    seconds    what reading its tokens took;  extra: a pass was made for it that the prompt would not have had
    """

    end: int
    rows: Kept
    recurrent: Kept
    head: Kept | None
    next_position: int
    seconds: float
    tokens: int
    extra: bool

    @property
    def bytes(self) -> int:
        return self.rows.bytes + self.recurrent.bytes + (0 if self.head is None else self.head.bytes)


@dataclass
class Speed:
    """Of passes over prompts: the fewest seconds one took, and the fewest a token of one took."""

    fixed: float = float("inf")
    per_token: float = float("inf")

    def passed(self, tokens: int, seconds: float):
        self.fixed, self.per_token = min(self.fixed, seconds), min(self.per_token, seconds / tokens)

    def saved(self, entry: Entry) -> float:
        """About what an entry's tokens would have taken. The first pass of all compiled kernels: hence the bound."""
        seconds = min(entry.seconds, self.fixed + entry.tokens * self.per_token)
        return seconds - self.fixed if entry.extra else seconds


@dataclass
class PrefixCache:
    """Chains of entries under a budget. What was used longest ago goes first, ends of chains before their starts."""

    budget_bytes: int = DEFAULT_BYTES
    # (entry before it, or the settings a chain belongs to; what its tokens are) -> entry, longest unused first.
    # An entry is always newer than those behind it, so the first is the end of a chain.
    _entries: OrderedDict[tuple[Hashable, Hashable], Entry] = field(default_factory=OrderedDict)
    _prompts: deque[tuple[Hashable, Prompt]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    _speeds: dict[Hashable, Speed] = field(default_factory=dict)

    def __len__(self):
        return len(self._entries)

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self._entries.values())

    def clear(self):
        self._entries.clear()
        self._prompts.clear()

    def speed(self, settings: Hashable) -> Speed:
        return self._speeds.setdefault(settings, Speed())

    def remember(self, settings: Hashable, prompt: Prompt) -> int:
        """How many tokens a prompt shares with one of those before it; it is then one of them."""
        known = [(prompt.shared(other), other) for of, other in self._prompts if of == settings]
        for shared, other in known:
            if shared == len(prompt) == len(other):  # again and again with other seeds, it counts once
                self._prompts.remove((settings, other))
        self._prompts.append((settings, prompt))
        return max((shared for shared, _ in known), default=0)

    def longest(self, settings: Hashable, prompt: Prompt, usable: Callable[[Entry], bool]) -> list[Entry]:
        """The chain of usable entries that reaches furthest into a prompt; they count as used."""
        chains: list[list[Entry]] = [[]]
        for chain in chains:  # which grows meanwhile
            before, start = (chain[-1], chain[-1].end) if chain else (settings, 0)
            chains += [
                [*chain, entry]
                for (parent, part), entry in self._entries.items()
                if parent == before and part == prompt.part(start, entry.end) and usable(entry)
            ]
        found = max(chains, key=lambda chain: chain[-1].end if chain else 0)
        self._use(settings, prompt, found)
        return found

    def following(self, settings: Hashable, prompt: Prompt, chain: Sequence[Entry], end: int) -> Entry | None:
        """The entry behind a chain that ends at token `end`."""
        return self._entries.get(_key(settings, prompt, chain, end))

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

    def add(self, settings: Hashable, prompt: Prompt, chain: Sequence[Entry], entry: Entry) -> bool:
        """Puts `entry` behind a chain; False if that is no longer here."""
        if not set(chain) <= set(self._entries.values()):
            return False
        self._entries[_key(settings, prompt, chain, entry.end)] = entry
        self._use(settings, prompt, [*chain, entry])
        return True

    def _use(self, settings, prompt, chain):
        for count in reversed(range(len(chain))):
            self._entries.move_to_end(_key(settings, prompt, chain[:count], chain[count].end))


def _key(settings, prompt, chain, end):
    return (chain[-1], prompt.part(chain[-1].end, end)) if chain else (settings, prompt.part(0, end))
