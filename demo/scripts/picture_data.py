"""Training rows about drawn pictures: token ids, 3-D positions and what to draw.

A row is one conversation about one set of pictures, with the chat template's text, in a form of fixed size: so many
temporal pairs, so many patches each. Ids are marked as in build_data.py. Positions follow the released models: text
counts on, the cells of a picture have its start plus their row and column, the text after it follows the longer side.
"""

import multiprocessing
import os
import pathlib
import random
from dataclasses import dataclass

import moving
import numpy as np
import pictures
import scenes
from build_data import ANSWER, PAD
from corpus.mix import END, START, TEXT_END
from tokenizers import Tokenizer

IMAGE, VIDEO = "<|image_pad|>", "<|video_pad|>"
OPEN, CLOSE = "<|vision_start|>", "<|vision_end|>"
SYSTEMS = ("You are a helpful assistant.", "You describe pictures.", "Answer briefly.")
RATES = (1, 2, 4, 8, 12, 16, 24, 25, 30)  # frames a second
BLOCK = 512  # rows encoded at once
TURNS = (1, 3, 4, 5)  # most rows have room for four short ones, and every one teaches
LONG = ("caption", "style", "what is where")


@dataclass(frozen=True)
class Form:
    """count temporal pairs of rows x columns patches; length ids a row; moving: the frames of a pair may differ.

    video: all rows are videos (True), several images (False), or either (None).
    """

    count: int
    rows: int
    columns: int
    length: int
    moving: bool
    share: int
    video: bool | None = None

    @property
    def cells(self) -> int:
        return self.rows * self.columns // 4


FORMS = {
    "square": Form(1, 8, 8, 128, False, 40),
    "wide": Form(1, 6, 8, 128, False, 8),
    "tall": Form(1, 8, 6, 128, False, 8),
    "wider": Form(1, 6, 10, 128, False, 7),
    "taller": Form(1, 10, 6, 128, False, 7),
    "flat": Form(1, 4, 10, 128, False, 3),
    # All frames of a video share 65,536 pixels: the more there are, the smaller they become.
    "pair": Form(1, 10, 10, 128, True, 3, True),
    "two": Form(2, 8, 8, 128, True, 8),
    "two wide": Form(2, 6, 10, 128, True, 3),
    "two 4:3": Form(2, 6, 8, 128, True, 3),
    "three": Form(3, 8, 8, 192, True, 4, False),
    "three frames": Form(3, 6, 6, 128, True, 4, True),
    "three frames wide": Form(3, 4, 8, 128, True, 2, True),
    "four": Form(4, 8, 8, 192, True, 3, False),
    "four frames": Form(4, 4, 4, 128, True, 3, True),
    "four frames wide": Form(4, 4, 6, 128, True, 2, True),
}


def shown(rng: random.Random, sample: dict) -> str:
    """The pictures' part of a user message, one pad for each picture."""
    count = len(sample["frames"])
    if not sample["video"]:
        return f"{OPEN}{IMAGE}{CLOSE}" * count
    fps, total = rng.choice(RATES), rng.randint(2 * count, 60)
    at = np.linspace(0, total - 1, 2 * count).round() / fps
    inner = "".join(f"<{(at[2 * i] + at[2 * i + 1]) / 2:.1f} seconds>{OPEN}{VIDEO}{CLOSE}" for i in range(count))
    # transformers 5.24 leaves the template's own marks around the groups; the models' authors and our engine do not.
    return f"{OPEN}{inner}{CLOSE}" if rng.random() < 0.15 else inner


def conversation(rng: random.Random, sample: dict, turns: list[tuple[str, str, str]]) -> list[tuple[str, bool]]:
    """Pieces of the chat template's text; True: an answer. Only the last turn has a thinking block."""
    system = f"{START}system\n{rng.choice(SYSTEMS)}{END}\n" if rng.random() < 0.08 else ""
    pieces, head = [], system
    for number, (question, answer, _) in enumerate(turns):
        user = shown(rng, sample) + question if number == 0 else question
        head += f"{START}user\n{user}{END}\n{START}assistant\n"
        if number + 1 < len(turns):
            pieces += [(head, False), (answer + END, True)]
            head = "\n"
        elif rng.random() < 0.05:
            caption = next(t[1] for t in sample["turns"] if t[2] == "caption")
            thought = f"I look at the picture. {caption}\n</think>\n\n"
            pieces += [(head + "<think>\n", False), (thought + answer + END, True)]
        else:
            pieces += [(head + "<think>\n\n</think>\n\n", False), (answer + END, True)]
    return pieces


def positions(pads: np.ndarray, form: Form) -> np.ndarray:
    """(3, T): time, row and column positions of ids whose picture cells are marked in pads (T,)."""
    out, at, now = np.zeros((3, len(pads)), np.int64), 0, 0
    down, across = form.rows // 2, form.columns // 2
    cell_rows, cell_columns = np.divmod(np.arange(form.cells), across)
    starts = np.flatnonzero(pads & ~np.concatenate([[False], pads[:-1]]))
    for start in starts:
        out[:, at:start] = now + np.arange(start - at)
        now += start - at
        at = start + form.cells
        out[:, start:at] = now
        out[1, start:at] += cell_rows
        out[2, start:at] += cell_columns
        now += max(down, across)
    out[:, at:] = now + np.arange(len(pads) - at)
    return out


def chosen(rng: random.Random, turns: list[tuple], wanted: int | None) -> list[tuple]:
    """One row's questions. Of several one at most is long, and mostly last: what it says need not be seen again."""
    wanted = wanted or rng.choice(TURNS)
    if wanted == 1:
        return [rng.choice(turns)]
    short, long = ([turn for turn in turns if (turn[2] in LONG) == which] for which in (False, True))
    told = [rng.choice(long)] if rng.random() < 0.4 else []
    each = [turn for turn in short if turn[2] == "each"]
    if each and rng.random() < 0.6:  # the best practice: as many look-ups as there are shapes
        short = [turn for turn in short if turn[2] != "each"]
        asked = [rng.choice(each), *rng.sample(short, max(0, wanted - 2 - len(told)))]
        rng.shuffle(asked)
    else:
        asked = rng.sample(short, min(wanted - len(told), len(short)))
    return told + asked if rng.random() < 0.2 else asked + told


class Writer:
    """Turns samples into rows with one tokenizer."""

    def __init__(self, checkpoint: pathlib.Path):
        self.tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
        self.end = self.tokenizer.token_to_id(TEXT_END)
        self.pads = [self.tokenizer.token_to_id(t) for t in (IMAGE, VIDEO)]

    def rows(self, rng: random.Random, form: Form, count: int, turns=None) -> list[tuple]:
        """Up to `count` rows (ids, positions, drawn numbers, kind of the last question); too long ones are left out.

        turns: so many questions each and the held-out mix of pictures; without it, what practice needs, and rows that
        are too long lose their first questions.
        """
        samples, size = [], (form.rows * 16, form.columns * 16)
        for _ in range(count):
            if form.moving:
                sample = moving.sequence(rng, form.count, form.video)
            else:
                sample = scenes.still(rng, size=size, practice=turns is None)
            samples.append((sample, chosen(rng, sample["turns"], turns)))
        out, long = self._encoded(rng, form, samples)
        while long and not turns:
            more, long = self._encoded(rng, form, [(sample, asked[1:]) for sample, asked in long if len(asked) > 1])
            out += more
        return out

    def _encoded(self, rng, form: Form, samples: list[tuple]) -> tuple[list[tuple], list[tuple]]:
        """Rows of (sample, turns), and those that are too long."""
        texts = [conversation(rng, sample, asked) for sample, asked in samples]
        encoded = iter(self.tokenizer.encode_batch_fast([piece for text in texts for piece, _ in text]))
        out, long = [], []
        for (sample, asked), text in zip(samples, texts, strict=True):
            parts = [np.array(next(encoded).ids, np.uint16) | (ANSWER if answer else 0) for _, answer in text]
            ids = np.concatenate([*parts, np.array([self.end | ANSWER], np.uint16)])
            ids = np.repeat(ids, np.where(np.isin(ids, self.pads), form.cells, 1))
            if len(ids) > form.length:
                long.append((sample, asked))
                continue
            ids = np.concatenate([ids, np.full(form.length - len(ids), self.end | PAD, np.uint16)]).astype(np.uint16)
            frames = [pair if form.moving else pair[:1] for pair in sample["frames"]]
            drawn = np.array([[pictures.numbers(p) for p in pair] for pair in frames], np.float16)
            places = positions(np.isin(ids, self.pads), form).astype(np.uint8)
            out.append((ids, places, drawn, asked[-1][2]))
        return out, long


def collect(checkpoint, form: Form, seed: int, count: int, turns=None) -> dict:
    """Exactly `count` rows as arrays ids (N, T), positions (N, 3, T), drawn (N, pairs, frames, FIELDS), kinds."""
    rng, writer, rows = random.Random(seed), Writer(pathlib.Path(checkpoint)), []
    while len(rows) < count:
        rows += writer.rows(rng, form, min(BLOCK, count - len(rows) + 16), turns)
    ids, places, drawn, kinds = zip(*rows[:count], strict=True)
    return {"ids": np.stack(ids), "positions": np.stack(places), "drawn": np.stack(drawn), "kinds": list(kinds)}


def _alone() -> None:
    """One thread a process: as many processes as cores, each with a thread for every core, wait for each other."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _work(job: tuple) -> dict:
    return collect(*job)


def build(checkpoint: pathlib.Path, total: int, workers: int, run: int = 0) -> dict[str, dict]:
    """About `total` rows, by form, written by `workers` processes; run: a number from 0, for rows of its own."""
    shares = sum(form.share for form in FORMS.values())
    jobs, names = [], []
    for index, (name, form) in enumerate(FORMS.items()):
        wanted = max(4, total * form.share // shares)
        pieces = max(1, min(workers * 4, wanted // 2000))
        jobs += [(str(checkpoint), form, 100_000 * run + 1000 * index + i, -(-wanted // pieces)) for i in range(pieces)]
        names += [name] * pieces
    if workers == 1:
        results = [_work(job) for job in jobs]
    else:
        with multiprocessing.get_context("spawn").Pool(workers, _alone) as pool:
            results = pool.map(_work, jobs, chunksize=1)
    out = {}
    for name in FORMS:
        parts = [r for n, r in zip(names, results, strict=True) if n == name]
        out[name] = {key: np.concatenate([p[key] for p in parts]) for key in ("ids", "positions", "drawn")}
    return out
