"""The one generate loop: plain decoding is a draft tree without drafts."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence

from ..mtp.drafts import Drafter
from .media import Embedded
from .passes import HostPasses, Passes
from .report import INTERRUPTED, LENGTH, STOP_TOKEN, Meter, Progress
from .sampling import Sampler
from .session import Session

OnStep = Callable[[Progress], bool | None]


def generate(
    session: Session,
    prompt: Sequence[int],
    drafter: Drafter,
    sampler: Sampler,
    *,
    stop_ids: Collection[int],
    max_tokens: int,
    on_step: OnStep,
    meter: Meter,
) -> Iterator[tuple[int, ...]]:
    """`run` with passes that the host drives."""
    passes = HostPasses(session, drafter, sampler, stop_ids=stop_ids, max_tokens=max_tokens)
    return run(passes, prompt, stop_ids=stop_ids, max_tokens=max_tokens, on_step=on_step, meter=meter)


def run(
    passes: Passes,
    prompt: Sequence[int],
    *,
    stop_ids: Collection[int],
    max_tokens: int,
    on_step: OnStep,
    meter: Meter,
    pictures: Embedded | None = None,
) -> Iterator[tuple[int, ...]]:
    """Yields the reply's new token ids, one or more at a time, without the stop token.

    pictures  what stands in the prompt's picture tokens
    on_step is called after every prefill chunk and every pass; True ends the reply there. The reason it ended
    is left in meter.stop_reason. Exceptions of on_step pass through with the session whole.
    """
    try:
        yield from _run(passes, prompt, stop_ids, max_tokens, on_step, meter, pictures)
    finally:
        passes.close()


def _run(passes, prompt, stop_ids, max_tokens, on_step, meter, pictures):
    session = passes.session
    started = time.perf_counter()
    meter.prompt_tokens = len(prompt)
    logits = session.prefill(
        prompt, lambda done: bool(on_step(Progress("prefill", done, len(prompt)))), on_hidden=passes.prompt,
        pictures=pictures,
    )  # fmt: skip
    if logits is None:
        meter.prefilled(time.perf_counter() - started)
        meter.stop_reason = INTERRUPTED
        return
    first = passes.first(logits)
    meter.prefilled(time.perf_counter() - started)
    if first in stop_ids:
        meter.stop_reason = STOP_TOKEN
        return
    new, count = (first,), 0
    while True:
        count += len(new)
        meter.drew(len(new))
        yield new
        if count >= max_tokens or session.room < 1:
            meter.stop_reason = LENGTH
            return
        if on_step(Progress("decode", count, max_tokens, meter.tokens_per_second)):
            meter.stop_reason = INTERRUPTED
            return
        outcome = passes.next()
        meter.verified(outcome)
        new = outcome.accepted.tokens
        if outcome.accepted.stop:
            if new:
                meter.drew(len(new))
                yield new
            meter.stop_reason = STOP_TOKEN
            return
