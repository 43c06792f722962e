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
from captured import Captured
from torch import nn

RATE, FREE_WEIGHT = 3e-3, 0.5
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

    The text model finds a shape by its name only where the rows say it as the text does. Shapes are the hardest to
    tell, and count twice.
    """
    place, asked = labels["place"], labels["told"] == 1
    across, down = ((value.masked_fill(place < 0, -100)) for value in (place % 3, place // 3))
    labels = labels | {"across": across, "down": down}
    rows, total = F.layer_norm(seen.float(), (vision.OUT,)).flatten(0, 1), 0.0
    for what, words in ids.items():
        known = F.normalize(model.embed(words).detach().float(), dim=1)
        target = labels[what].masked_fill(~asked, -100).flatten()
        logits = (rows @ known.T).float()
        each = F.cross_entropy(logits, target, ignore_index=-100, reduction="sum")
        total = total + (2 if what == "shape" else 1) * each / (target >= 0).sum().clamp_min(1)
    return total


def example(drawn: torch.Tensor, height: int, width: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Patches and class numbers of pairs of frames drawn (N, 2 or 1, FIELDS); one frame stands for both.

    told: 1 where an object's middle lies in both frames of the pair, and is the same object as far as words go.
    """
    count, given = drawn.shape[:2]
    soft = torch.rand(count * given, 1, 1, device=drawn.device) * 2 + 0.6
    pixels, shares = pictures.render(drawn.flatten(0, 1), height, width, soft)
    truth = pictures.cells(drawn.flatten(0, 1), shares)
    pixels = pictures.worn(pixels).view(count, given, 3, height, width)
    pairs = {what: value.view(count, given, -1) for what, value in truth.items()}
    labels = {what: value[:, 0] for what, value in pairs.items()}
    same = [value[:, 0] == value[:, -1] for value in pairs.values()]
    labels["told"] = labels["middle"] * torch.stack(same).all(0)
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


@torch.no_grad()
def right(model, heads, words: dict, source, batch: int) -> dict[str, float]:
    """Share of cells right by question in a fresh batch; of colours and shapes only the middles, by their words."""
    rows, columns, grid, draw = source
    patches, labels = example(draw(batch), rows * 16, columns * 16)
    with evaluate.autocast(patches.device):
        seen = model.visual(patches, grid)
    said, shares, told = heads(seen), {}, labels["told"] == 1
    said |= {k: v[..., : len(words[k])] for k, v in said.items() if k in words}
    for what, logits in said.items():
        asked = told if what in words else labels[what] >= 0
        shares[what] = round((logits.argmax(-1) == labels[what])[asked].float().mean().item(), 3)
    return shares


class Step:
    """One form's forward and backward pass over newly drawn pairs of frames."""

    def __init__(self, model, heads: Heads, words: dict, source: tuple, batch: int, device, pool):
        self.model, self.heads, self.words, self.batch = model, heads, words, batch
        self.rows, self.columns, self.grid, self.draw = source
        self.patches, labels = self._drawn()
        self.labels = {what: value.clone() for what, value in labels.items()}
        self.call = Captured(self._loss, device, pool)

    def _drawn(self):
        return example(self.draw(self.batch), self.rows * 16, self.columns * 16)

    def _loss(self) -> torch.Tensor:
        seen = self.model.visual(self.patches, self.grid)
        named, free = words_loss(self.model, seen, self.labels, self.words), loss_of(self.heads(seen), self.labels)
        return torch.stack([named + FREE_WEIGHT * free, named, free, free])

    def __call__(self) -> torch.Tensor:
        patches, labels = self._drawn()
        self.patches.copy_(patches)
        for what, buffer in self.labels.items():
            buffer.copy_(labels[what])
        return self.call()


def train(model, tokenizer, sources: dict, order: tuple, seconds: float, batch: int, device, graph: bool) -> list:
    """Trains model.visual for `seconds` on the sources named in `order`, in turn.

    sources: {name: (rows, columns, grid, draw)}, draw(count) -> (count, 2 or 1, FIELDS). Ends by giving the tower's
    rows the size of the text embeddings. Returns [[step, seconds, loss, right...], ...].
    """
    table, words = model.trunk.embed_tokens.weight.detach(), word_ids(tokenizer, device)
    heads = Heads({k: table[v].clone() for k, v in words.items() if k not in PLACE_WORDS}).to(device)
    parameters = [*model.visual.parameters(), *heads.parameters()]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    pool = torch.cuda.graph_pool_handle() if graph else None
    steps = {name: Step(model, heads, words, source, batch, device, pool) for name, source in sources.items()}
    cuda = device.type == "cuda"
    optimizer = torch.optim.AdamW(parameters, lr=RATE, betas=(0.9, 0.98), weight_decay=0.01, fused=cuda)
    gradients = [parameter.grad for parameter in parameters]
    started, step, curve, progress = time.time(), 0, [], 0.0
    while progress < 1:
        progress = (time.time() - started) / seconds
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 200) * max(0.02, 1 - progress)
        torch._foreach_zero_(gradients)
        losses = steps[order[step % len(order)]]()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        step += 1
        if step % 16 == 0 and cuda:
            torch.cuda.synchronize()  # the clock must not run ahead of the device
        if step % 1000 == 0 or step in (1, 50, 300) or progress >= 1:
            name = order[(step // 1000) % len(order)]
            shares = right(model, heads, words, sources[name], batch)
            curve.append([step, round(time.time() - started, 1), round(losses[0].item(), 4), shares])
            print(f"tower step {step} {curve[-1][1]} s loss {losses[0].item():.3f} {name} {shares}", flush=True)
    for each in steps.values():
        each.call = None  # a step and its graph hold each other: freed here, not while the next graph is captured
    _match_sizes(model, sources[order[0]], batch)
    return curve


@torch.no_grad()
def _match_sizes(model, source: tuple, batch: int) -> None:
    """Scales the tower's rows to the mean square of the text embeddings."""
    rows, columns, grid, draw = source
    seen = model.visual(example(draw(batch), rows * 16, columns * 16)[0], grid)
    scale = model.trunk.embed_tokens.weight.square().mean().sqrt() / seen.float().square().mean().sqrt()
    model.visual.merger.linear_fc2.weight *= scale
    model.visual.merger.linear_fc2.bias *= scale
