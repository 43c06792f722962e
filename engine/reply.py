"""A reply being written, and a finished one."""

from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass

import torch

from ..weights import FastQwenError
from ..weights.backend import launching_on
from .loop import OnStep, run
from .media import Embedded
from .memory import EngineMemory
from .passes import Passes
from .report import STOP_TEXT, Meter, Report
from .text import Delta, ReplyText


@dataclass(frozen=True)
class Result:
    """A finished reply: the answer, the reasoning before it, the kept token ids (no stop token), the numbers."""

    text: str
    thinking: str
    token_ids: tuple[int, ...]
    report: Report


class Reply:
    """A reply being written. Iterating runs the model and yields Deltas; `result()` runs whatever is left.

    embed     gives what stands in the prompt's picture tokens, or None where the reply was ended meanwhile
    memory    the model's: a reply cannot go on once it was given up
    capacity  how many tokens it may have, its prompt included
    After an exception (a callback's, say) `result()` raises it again.
    """

    def __init__(
        self,
        ids: list[int],
        text: ReplyText,
        meter: Meter,
        make_passes: Callable[[], Passes],
        *,
        stop_ids: Collection[int],
        max_tokens: int,
        on_step: OnStep,
        memory: EngineMemory,
        capacity: int,
        embed: Callable[[], Embedded | None] | None = None,
    ):
        self.prompt_ids, self.embed = ids, embed
        self._memory, self._capacity = memory, capacity
        self._text, self._meter = text, meter
        self._tokens: list[int] = []
        self._result: Result | None = None
        self._error: BaseException | None = None

        def new_tokens():
            meter.start()
            pictures = None
            if embed is not None:  # first, so that room for keys and values is counted with the tower in place
                pictures = embed()
                if pictures is None:
                    return
            passes = make_passes()
            epoch = memory.epoch
            try:
                for tokens in run(
                    passes, ids, stop_ids=stop_ids, max_tokens=max_tokens, on_step=on_step, meter=meter,
                    pictures=pictures,
                ):  # fmt: skip
                    yield tokens
                    if memory.epoch != epoch:
                        raise FastQwenError("The model was unloaded while this reply was written: run it again.")
            finally:
                meter.planner = passes.report()
                meter.reused(passes.session.reuse)
                passes.session.reuse = None  # each refers to the other: nobody would free them but the collector

        self._deltas = _on_device(self._run(new_tokens()), memory.device)

    @property
    def bytes_needed(self) -> int:
        """About what it will allocate beside what is there."""
        return self._memory.reply_bytes(self._capacity)

    def __iter__(self) -> Iterator[Delta]:
        return self._deltas

    def result(self) -> Result:
        """The finished reply; runs it to the end first."""
        for _ in self._deltas:
            pass
        if self._error is not None:
            raise self._error
        if self._result is None:
            raise RuntimeError("this reply was closed before its end")
        return self._result

    def _run(self, passes):
        try:
            with closing(passes):  # a stop text leaves them in the middle, and the report wants to know how they went
                for tokens in passes:
                    used = self._text.tokens_used
                    deltas = self._text.push(tokens)
                    self._tokens += tokens[: self._text.tokens_used - used]
                    yield from deltas
                    if self._text.stopped:
                        self._meter.stop_reason = STOP_TEXT
                        break
            yield from self._text.finish()
        except GeneratorExit:  # closed by who read it, which is no error
            raise
        except BaseException as error:
            self._error = error
            raise
        text, thinking = self._text.text, self._text.thinking
        self._result = Result(text, thinking, tuple(self._tokens), self._meter.report(len(self._tokens)))


def _on_device(deltas: Generator[Delta], device: torch.device) -> Iterator[Delta]:
    """The deltas, each made with `device` as torch's current one, which between them is again what their reader has."""
    try:
        while True:
            with launching_on(device):
                delta = next(deltas, None)
            if delta is None:
                return
            yield delta
    finally:
        with launching_on(device):
            deltas.close()
