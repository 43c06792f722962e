"""The one generate loop: plain decoding is a draft tree without drafts."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence

import torch

from ..mtp.acceptance import accept
from ..mtp.drafts import Drafter, Outcome
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
    """Yields the reply's new token ids, one or more at a time, without the stop token.

    on_step is called after every prefill chunk and every pass; True ends the reply there. The reason it ended
    is left in meter.stop_reason. Exceptions of on_step pass through with the session whole.
    """
    started = time.perf_counter()
    meter.prompt_tokens = len(prompt)
    logits = session.prefill(
        prompt, lambda done: bool(on_step(Progress("prefill", done, len(prompt)))), on_hidden=drafter.prompt
    )  # fmt: skip
    meter.prefilled(time.perf_counter() - started)
    if logits is None:
        meter.stop_reason = INTERRUPTED
        return

    def drawn(row, ancestors):
        history = torch.tensor([*reply, *ancestors], dtype=torch.long, device=row.device)
        return sampler.draw(row, history, len(history))

    reply: list[int] = []
    first = drawn(logits, ())
    if first in stop_ids:
        meter.stop_reason = STOP_TOKEN
        return
    new = (first,)
    while True:
        reply += new
        meter.drew(len(new))
        yield new
        if len(reply) >= max_tokens or session.room < 1:
            meter.stop_reason = LENGTH
            return
        if on_step(Progress("decode", len(reply), max_tokens, meter.tokens_per_second)):
            meter.stop_reason = INTERRUPTED
            return
        room = min(max_tokens - len(reply), session.room)
        accepted = _one_pass(session, drafter, reply, drawn, stop_ids, room, meter)
        new = accepted.tokens
        if accepted.stop:
            if new:
                meter.drew(len(new))
                yield new
            meter.stop_reason = STOP_TOKEN
            return


def _one_pass(session, drafter, reply, drawn, stop_ids, room, meter):
    """Draft, verify, accept, commit."""
    tree = drafter.tree()
    started = time.perf_counter()
    tokens = (reply[-1], *drafter.draft(tree, reply))
    drafted = time.perf_counter()
    logits = session.verify(tokens, tree.parents)
    accepted = accept(
        tree, tokens, lambda slot, ancestors: drawn(logits[slot], ancestors), stop_ids=stop_ids, room=room
    )
    hidden = session.commit(accepted.path, [tokens[slot] for slot in accepted.path])
    cut = accepted.stop or len(accepted.tokens) == room
    outcome = Outcome(tree, accepted, hidden, cut, drafted - started, time.perf_counter() - drafted)
    meter.verified(outcome)
    drafter.observe(outcome)
    return accepted
