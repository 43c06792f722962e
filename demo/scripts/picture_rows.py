"""Rows about pictures on the device: what the loss weighs, and the pixels to draw."""

import numpy as np
import torch
import torch.nn.functional as F
from build_data import ANSWER, ID, PAD

QUESTION_WEIGHT = 0.01  # drawn by chance: nearly all of it is noise; a picture's cells weigh nothing
SHORT = 5  # ids of an answer like "Blue." with its end: each weighs 1


def answer_weights(answer: torch.Tensor) -> torch.Tensor:
    """Weights (B, T) of answers' ids (True in `answer`), 0 elsewhere: a long answer's are lighter.

    Most of a long answer follows from its first words, and would drown the ids that only the picture tells.
    """
    starts = answer & ~F.pad(answer, (1, 0))[:, :-1]
    which = starts.cumsum(1) * answer
    length = torch.zeros_like(which).scatter_add(1, which, answer.long()).gather(1, which)
    return (SHORT / length.clamp_min(1)).sqrt().clamp(max=1) * answer


class PictureRows:
    """One form's rows on the device, in a new random order every epoch."""

    def __init__(self, arrays: dict, form, batch: int, pads, device):
        self.ids = torch.from_numpy(arrays["ids"].view(np.int16)).to(device)
        self.positions = torch.from_numpy(arrays["positions"]).to(device)
        self.drawn = torch.from_numpy(arrays["drawn"]).to(device)
        self.form, self.batch, self.device = form, min(batch, len(self.ids)), device
        self.pads, self.at = torch.tensor(pads, device=device), len(self.ids)

    def next(self) -> dict[str, torch.Tensor]:
        """ids, weights (B, T), positions (B, 3, T), where (cells), drawn (B * pairs, frames, FIELDS)."""
        if self.at + self.batch > len(self.ids):
            self.order, self.at = torch.randperm(len(self.ids), device=self.device), 0
        which = self.order[self.at : self.at + self.batch]
        self.at += self.batch
        rows = self.ids[which].int()
        ids = (rows & ID).long()
        cells = torch.isin(ids, self.pads)
        filled = rows & PAD != 0
        weights = answer_weights((rows & ANSWER != 0) & ~filled)
        weights = torch.where(weights > 0, weights, QUESTION_WEIGHT) * ~(cells | filled)
        return {
            "ids": ids, "weights": weights, "positions": self.positions[which].long(),
            "where": cells.flatten().nonzero()[:, 0], "drawn": self.drawn[which].float().flatten(0, 1),
        }  # fmt: skip

    def pairs(self, count: int) -> torch.Tensor:
        """Drawn pairs (count, 2 or 1, FIELDS) at random, for the tower alone."""
        drawn = self.drawn[torch.randint(len(self.drawn), (count,), device=self.device)]
        pick = torch.randint(drawn.shape[1], (count,), device=self.device)
        return drawn[torch.arange(count, device=self.device), pick].float()
