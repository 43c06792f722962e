"""Teaches the vision tower alone what each cell of a drawn picture shows, before the text model sees any of it.

Cells are classified by their own row: colours and shapes against the text model's embeddings of those words, so that a
picture's rows start out in words it knows; places, middles and grounds by heads that are dropped afterwards.
"""

import time

import evaluate
import pictures
import torch
import torch.nn.functional as F
import vision
from torch import nn

PLACE_WORDS = {"across": ("left", "centre", "right"), "down": ("top", "centre", "bottom")}
CLASSES = {"place": 9, "middle": 2, "ground": 11, "second colour": 12, "second ground": 11}


class Heads(nn.Module):
    """Row (N, S, 256) -> {what: logits}."""

    def __init__(self, words: dict[str, torch.Tensor]):
        super().__init__()
        self.known = {what: F.normalize(rows.float(), dim=1) for what, rows in words.items()}
        self.none = nn.ParameterDict({what: nn.Parameter(torch.randn(1, vision.OUT) * 0.06) for what in words})
        self.free = nn.ModuleDict({what: nn.Linear(vision.OUT, size) for what, size in CLASSES.items()})

    def forward(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        rows = F.layer_norm(rows.float(), (vision.OUT,))
        said = {what: rows @ torch.cat([known, self.none[what]]).T for what, known in self.known.items()}
        return said | {what: head(rows) for what, head in self.free.items()}


def word_ids(tokenizer, device) -> dict[str, torch.Tensor]:
    """The first ids of the names of colours, shapes and places."""
    pick = lambda names: torch.tensor([tokenizer.encode(" " + n).ids[0] for n in names], device=device)  # noqa: E731
    known = {"colour": pictures.NAMES, "shape": pictures.SHAPES} | PLACE_WORDS
    return {what: pick(names) for what, names in known.items()}


def words_loss(model, seen: torch.Tensor, labels: dict, ids: dict) -> torch.Tensor:
    """Cross-entropy of every object's colour, shape and place, read off its middle's row by the words' embeddings.

    In training all weights: the text model finds a shape by its name only where the rows say it as the text does.
    """
    place = labels["place"]
    across, down = ((value.masked_fill(place < 0, -100)) for value in (place % 3, place // 3))
    labels = labels | {"across": across, "down": down}
    rows, total = F.layer_norm(seen.float(), (vision.OUT,)).flatten(0, 1), 0.0
    for what, words in ids.items():
        known = F.normalize(model.embed(words).detach().float(), dim=1)
        target = labels[what].masked_fill(labels["middle"] == 0, -100).flatten()
        target = target.masked_fill(target == len(words), -100)  # a ring's middle may be empty
        logits = (rows @ known.T).float()
        each = F.cross_entropy(logits, target, ignore_index=-100, reduction="sum")
        total = total + each / (target >= 0).sum().clamp_min(1)
    return total


def example(drawn: torch.Tensor, height: int, width: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Patches and class numbers of pairs of frames drawn (N, 2 or 1, FIELDS); one frame stands for both."""
    count, given = drawn.shape[:2]
    soft = torch.rand(count * given, 1, 1, device=drawn.device) * 2 + 0.6
    pixels, shares = pictures.render(drawn.flatten(0, 1), height, width, soft)
    truth = pictures.cells(drawn.flatten(0, 1), shares)
    pixels = pictures.worn(pixels).view(count, given, 3, height, width)
    pairs = {what: value.view(count, given, -1) for what, value in truth.items()}
    labels = {what: value[:, 0] for what, value in pairs.items()}
    labels["second colour"] = pairs["colour"][:, -1]
    length = labels["colour"].shape[1]
    grounds = drawn[:, :, 0].long().unsqueeze(2).expand(-1, -1, length)
    labels["ground"], labels["second ground"] = grounds[:, 0], grounds[:, -1]
    return vision.patches_of(pixels), labels


def loss_of(said: dict, labels: dict) -> torch.Tensor:
    """Cross-entropy of all questions, each a mean over the cells asked about; of shapes only the objects' cells count.

    Four cells in five are empty, and most others hold a piece that could be of any shape; a middle counts four times.
    """
    total = 0.0
    for what, logits in said.items():
        each = F.cross_entropy(logits.flatten(0, 1), labels[what].flatten(), ignore_index=-100, reduction="none")
        weight = (labels[what] >= 0).float()
        if what == "shape":
            weight = weight * (0.05 + (labels[what] < logits.shape[-1] - 1) + 3 * labels["middle"])
        total = total + (each * weight.flatten()).sum() / weight.sum().clamp_min(1)
    return total


def right(said: dict, labels: dict) -> dict[str, float]:
    """Share of cells right by question; of colours and shapes only those with an object, for the others are easy."""
    shares = {}
    for what, logits in said.items():
        asked = labels[what] >= 0
        if what in ("colour", "shape"):
            asked = asked & (labels[what] < logits.shape[-1] - 1)
        shares[what] = round((logits.argmax(-1) == labels[what])[asked].float().mean().item(), 3)
    return shares


def train(model, tokenizer, sources: list, seconds: float, batch: int, device, rate: float = 3e-3) -> list:
    """Trains model.visual for `seconds`; sources: (rows, columns, grid, draw), draw(count) -> (count, 2 or 1, FIELDS).

    Ends by giving the tower's rows the size of the text embeddings. Returns [[step, seconds, loss, right...], ...].
    """
    table = model.trunk.embed_tokens.weight.detach()
    heads = Heads({k: table[v].clone() for k, v in word_ids(tokenizer, device).items() if k not in PLACE_WORDS}).to(
        device
    )
    parameters = [*model.visual.parameters(), *heads.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    started, step, curve, progress = time.time(), 0, [], 0.0
    while progress < 1:
        progress = (time.time() - started) / seconds
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 100) * max(0.03, 1 - progress)
        rows, columns, grid, draw = sources[step % len(sources)]
        patches, labels = example(draw(batch), rows * 16, columns * 16)
        with evaluate.autocast(device):
            seen = model.visual(patches, grid)
        said = heads(seen)
        loss = loss_of(said, labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        step += 1
        if step % 200 == 0 or step in (1, 50) or progress >= 1:
            shares = right(said, labels)
            curve.append([step, round(time.time() - started, 1), round(loss.item(), 4), shares])
            print(f"tower step {step} {curve[-1][1]} s loss {loss.item():.3f} {shares}", flush=True)
    with torch.no_grad():
        scale = model.trunk.embed_tokens.weight.square().mean().sqrt() / seen.float().square().mean().sqrt()
        model.visual.merger.linear_fc2.weight *= scale
        model.visual.merger.linear_fc2.bias *= scale
    return curve
