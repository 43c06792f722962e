"""A reply's token ids to text while it is being written: whole characters, reasoning apart, cut at stop texts.

The joined deltas of a kind are its final text exactly, so nothing is emitted that could still change: not the first
bytes of a character, not white space that may turn out to be trailing, not the beginning of a possible stop text.
What is emitted does not depend on how the ids are split into pushes.
"""

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..model.tokenizer import Tokenizer
from ..weights.errors import FastQwenError

THINKING, ANSWER = "thinking", "answer"


@dataclass(frozen=True)
class Delta:
    """New text of one kind, "thinking" or "answer"; never empty."""

    kind: str
    text: str


def stop_texts(stop: str | Sequence[str]) -> tuple[str, ...]:
    """One stop text or several as a tuple. Raises FastQwenError for one that is empty or no string."""
    if not isinstance(stop, (str, Sequence)):
        raise FastQwenError(f"Stop texts must be strings in a list, not {stop!r:.80}.")
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if not all(isinstance(text, str) and text for text in stops):
        raise FastQwenError(f"A stop text must be a string that is not empty: remove it from {stops!r:.80}.")
    return stops


class ReplyText:
    """Turns pushed ids into deltas.

    `thinking` tells how the prompt ended: inside an open reasoning section (True) or after a closed one (False). The
    ids of <think> and </think> switch sections wherever the model writes them and are never text; a </think> outside
    reasoning is dropped. Control tokens are dropped too. `stop` texts, one or several, cut the answer, never the
    reasoning. Raises FastQwenError for an empty stop text.
    """

    def __init__(self, tokenizer: Tokenizer, thinking: bool = False, stop: str | Sequence[str] = ()):
        stops = stop_texts(stop)
        self._tokenizer = tokenizer
        self._kinds = {tokenizer.token_id("<think>"): THINKING, tokenizer.token_id("</think>"): ANSWER}
        self._kinds.pop(None, None)
        self._channels = {THINKING: _Channel(()), ANSWER: _Channel(stops)}
        self._utf8 = _utf8_decoder()
        self._kind = THINKING if thinking else ANSWER
        self._finished = False
        self.tokens_used = 0

    @property
    def text(self) -> str:
        """The answer emitted so far; after `finish` the whole of it."""
        return self._channels[ANSWER].emitted

    @property
    def thinking(self) -> str:
        """The reasoning emitted so far; after `finish` the whole of it."""
        return self._channels[THINKING].emitted

    @property
    def stopped(self) -> bool:
        """Whether a stop text was found. `tokens_used` then counts the ids up to the one that completed it."""
        return self._channels[ANSWER].stopped

    def push(self, ids: Iterable[int]) -> list[Delta]:
        """The text that these ids complete, in order. Ids after a completed stop text are not consumed.

        Raises FastQwenError for an id that is not in the vocabulary.
        """
        if self._finished:
            raise RuntimeError("the reply is finished")
        deltas = []
        for token in ids:
            if self.stopped:
                break
            piece = self._advance(token)
            self.tokens_used += 1
            if piece:
                deltas.append(Delta(self._kind, piece))
        return _joined(deltas)

    def finish(self) -> list[Delta]:
        """Ends the reply: emits held-back text; drops trailing white space and the first bytes of a character."""
        deltas = []
        if not self._finished:
            self._finished = True
            for kind, channel in self._channels.items():
                rest = channel.flush()
                if rest:
                    deltas.append(Delta(kind, rest))
        return deltas

    def _advance(self, token):
        if token in self._kinds:
            self._kind = self._kinds[token]
            self._utf8 = _utf8_decoder()  # a character cut off by the end of its section is dropped
            return ""
        if self._tokenizer.is_special(token):
            return ""
        return self._channels[self._kind].add(self._utf8.decode(self._tokenizer.decode_bytes([token])))


class _Channel:
    """One kind's text: emits what is settled, holds the rest."""

    def __init__(self, stops):
        self._stops = stops
        self._heads = {text[:cut] for text in stops for cut in range(1, len(text))}
        self._longest = max(map(len, stops), default=1) - 1
        self._held = ""
        self._parts = []
        self.stopped = False

    @property
    def emitted(self):
        return "".join(self._parts)

    def add(self, text):
        """Appends decoded text and returns what is settled by it."""
        if not text:
            return ""
        self._held += text
        cut = self._stop_start()
        if cut is not None:
            self.stopped = True
            self._held = self._held[:cut]
            return self.flush()
        tail = next((n for n in range(min(self._longest, len(self._held)), 0, -1) if self._held[-n:] in self._heads), 0)
        return self._emit(len(self._held[: len(self._held) - tail].rstrip()))

    def flush(self):
        """Returns the held text without trailing white space."""
        rest = self._emit(len(self._held.rstrip()))
        self._held = ""
        return rest

    def _emit(self, length):
        settled, self._held = self._held[:length], self._held[length:]
        if not self._parts:
            settled = settled.lstrip()
        if settled:
            self._parts.append(settled)
        return settled

    def _stop_start(self):
        """Where to cut the held text: at the stop text that is complete first, the longer of two that end together.

        Taking the first to be complete makes the cut independent of token boundaries. A stop text of white space
        alone is not looked for in front of the answer, where white space is not part of the text.
        """
        begin = 0 if self._parts else len(self._held) - len(self._held.lstrip())
        found = []
        for stop in self._stops:
            start = self._held.find(stop, 0 if stop.strip() else begin)
            if start >= 0:
                found.append((start + len(stop), start))
        return min(found)[1] if found else None


def _utf8_decoder():
    return codecs.getincrementaldecoder("utf-8")("replace")


def _joined(deltas):
    joined = []
    for delta in deltas:
        if joined and joined[-1].kind == delta.kind:
            joined[-1] = Delta(delta.kind, joined[-1].text + delta.text)
        else:
            joined.append(delta)
    return joined
