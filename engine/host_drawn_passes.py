"""Rounds on a GPU whose tokens the host draws, for settings that kernels/sampling.py does not take.

Everything else of a round is the device's, captured as ever. Between the pass and its acceptance the host walks the
tree with engine/sampling.py over the logits on the device, so what it draws is the reference by itself, and hands over
what it drew where it came by. Drafts only propose: they come from the nearest settings that the kernels take.
"""

from dataclasses import replace

import torch

from ..kernels.sampling import MAX_TOP_K, supports
from ..mtp.acceptance import accept
from ..mtp.head_drafts import Planner
from .device_model import DeviceModel
from .device_passes import DevicePasses
from .sampling import Sampler, SamplingSettings
from .session import Session


def drafting_settings(settings: SamplingSettings) -> SamplingSettings:
    """The nearest settings that are drawn on the device."""
    if supports(greedy=settings.is_greedy, top_k=settings.top_k):
        return settings
    return replace(settings, top_k=MAX_TOP_K)


class HostDrawnPasses(DevicePasses):
    """The passes of one reply with any settings. One round at a time: the next one needs this one's tokens."""

    queued = 1

    def __init__(self, model: DeviceModel, session: Session, planner: Planner, settings: SamplingSettings, **options):
        """As DevicePasses, with any settings."""
        super().__init__(model, session, planner, drafting_settings(settings), **options)
        self._sampler = Sampler(settings, self._seed, model.vocab)
        self._text: list[int] = []

    def _draw_first(self, logits):
        self._text = [self._drawn(logits, ())]
        return self._text[0]

    def _verify(self, tree):
        model, round = self._model, self._model.round
        model.run("rows")
        tokens = round.tokens.tolist()
        drawn, errors = [-1] * len(tokens), [0] * len(tokens)  # -1: where the walk does not come by, nobody looks

        def draw(slot, above):
            errors[slot] = 1  # should nothing be drawn
            drawn[slot] = self._drawn(model.logits[slot].float(), above)
            errors[slot] = 0
            return drawn[slot]

        room = min(self._max_tokens - len(self._text), self.session.room)
        try:
            accepted = accept(tree, tokens[: tree.rows], draw, stop_ids=self._stop_ids, room=room)
        except BaseException:  # the pass has run and will not be accepted
            self.session.valid = False
            raise
        self._text += accepted.tokens
        round.drawn.copy_(torch.tensor(drawn))
        round.errors.copy_(torch.tensor(errors, dtype=torch.int32))
        model.run("accept")

    def _drawn(self, row, above):
        history = torch.tensor([*self._text, *above], dtype=torch.long, device=row.device)
        return self._sampler.draw(row, history, len(history))
