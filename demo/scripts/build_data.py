"""Writes the tokenised training rows of the demo checkpoint.

    python demo/scripts/build_data.py TEXT_FOLDER CHECKPOINT_FOLDER OUT_FOLDER [--tokens 200e6] [--workers 16]

Every process writes its own grammar samples (its own seed), encodes them and packs whole samples into rows of ROW ids.
rows.npy     (rows, ROW) uint16: low 12 bits the id; ANSWER marks ids of answers, PAD marks filling without loss
heldout.npy  uint16 ids of prose from packages that no training row saw; heldout_chat.npy rows of unseen samples
eval.json    held-out requests (chat template text) and the number of bytes behind heldout.npy
"""

import argparse
import json
import lzma
import multiprocessing
import pathlib
import random
import sys
import time

import numpy as np
from tokenizers import Tokenizer

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from corpus import mix  # noqa: E402

ROW = 512
ANSWER, PAD, ID = 0x8000, 0x4000, 0x0FFF
BLOCK = 4096  # samples encoded at once


class Packer:
    """Best fit of whole samples into OPEN rows at a time; a row is closed with padding."""

    OPEN = 48

    def __init__(self, end_id: int):
        self.rows, self.open, self.pad = [], [], end_id | PAD

    def add(self, ids: np.ndarray) -> None:
        fits = [r for r in self.open if r[0] + len(ids) <= ROW]
        if fits:
            row = max(fits, key=lambda r: r[0])
        else:
            if len(self.open) >= self.OPEN:
                self._close(max(self.open, key=lambda r: r[0]))
            row = [0, []]
            self.open.append(row)
        row[0] += len(ids)
        row[1].append(ids)
        if row[0] > ROW - 24:  # shorter than nearly every sample
            self._close(row)

    def _close(self, row) -> None:
        self.open.remove(row)
        self.rows.append(np.concatenate([*row[1], np.full(ROW - row[0], self.pad, np.uint16)]))

    def finish(self) -> np.ndarray:
        while self.open:
            self._close(self.open[0])
        return np.stack(self.rows).astype(np.uint16)


def pieces(rng: random.Random, extra: list[str], functions: list[dict], count: int) -> list[tuple[str, str]]:
    """`count` conversations as (text before the answer, answer)."""
    out = []
    for _ in range(count):
        roll = rng.random()
        if roll < 0.03:
            out.append(mix.two_turns(mix.draw(rng, extra), mix.draw(rng, extra)))
        elif roll < 0.04 and functions:
            out.append(mix.layout(rng.choice(functions)))
        else:
            out.append(mix.layout(mix.draw(rng, extra)))
    return out


def encode(tokenizer: Tokenizer, parts: list[tuple[str, str]], end_id: int) -> list[np.ndarray]:
    """Ids of each conversation with ANSWER set from the answer's first id to the closing <|endoftext|>."""
    befores, answers = (tokenizer.encode_batch_fast([p[i] for p in parts]) for i in (0, 1))
    out = []
    for before, answer in zip(befores, answers, strict=True):
        out.append(np.array(before.ids + [i | ANSWER for i in answer.ids] + [end_id | ANSWER], np.uint16))
    return out


def work(job: tuple) -> np.ndarray:
    """One process's rows of chat samples."""
    seed, wanted, folder, checkpoint = job
    rng = random.Random(seed)
    tokenizer = Tokenizer.from_file(str(pathlib.Path(checkpoint) / "tokenizer.json"))
    end_id = tokenizer.token_to_id(mix.TEXT_END)
    extra = (pathlib.Path(folder) / "words.txt").read_text("utf-8").split()
    functions = documented_functions(read_rows(folder)[0])
    packer = Packer(end_id)
    while len(packer.rows) < wanted:
        for ids in encode(tokenizer, pieces(rng, extra, functions, BLOCK), end_id):
            if len(ids) <= ROW:
                packer.add(ids)
    return packer.finish()[:wanted]


def read_rows(folder) -> tuple[list[dict], list[dict]]:
    """(rows to train on, held-out rows) of the gathered text."""
    held = {
        s["package"] for s in json.loads((pathlib.Path(folder) / "sources.json").read_text("utf-8")) if s["held_out"]
    }
    with lzma.open(pathlib.Path(folder) / "text.jsonl.xz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [r for r in rows if r["package"] not in held], [r for r in rows if r["package"] in held]


def documented_functions(rows: list[dict]) -> list[dict]:
    """Docstring -> function samples from permissively licensed sources."""
    out = []
    for row in rows:
        if row["kind"] == "code" and '"""' in row["text"] and len(row["text"]) < 500:
            doc = row["text"].split('"""')[1].strip().split("\n")[0].strip()
            if 15 < len(doc) < 90 and doc.endswith("."):
                out.append(
                    {
                        "system": "",
                        "user": "Write this Python function: " + doc,
                        "thinking": "",
                        "answer": "```python\n" + row["text"] + "\n```",
                    }
                )
    return out


def prose_rows(tokenizer: Tokenizer, rows: list[dict], wanted: int, end_id: int) -> np.ndarray:
    """`wanted` rows cut from the gathered text in random order, repeated as needed."""
    rng, stream = np.random.default_rng(3), []
    encoded = [np.array(e.ids + [end_id], np.uint16) for e in tokenizer.encode_batch_fast([r["text"] for r in rows])]
    total = sum(map(len, encoded))
    for _ in range(wanted * ROW // total + 1):
        stream += [encoded[i] for i in rng.permutation(len(encoded))]
    return np.concatenate(stream)[: wanted * ROW].reshape(-1, ROW)


def evaluation(out: pathlib.Path, tokenizer: Tokenizer, held: list[dict], extra: list[str], end_id: int) -> None:
    """Writes what training never sees."""
    texts = [r["text"] for r in held if r["kind"] == "prose"]
    ids = [e.ids + [end_id] for e in tokenizer.encode_batch_fast(texts)]
    np.save(out / "heldout.npy", np.array([i for part in ids for i in part], np.uint16))
    rng = random.Random(10**9)
    packer = Packer(end_id)
    for item in encode(tokenizer, pieces(rng, extra, [], 1200), end_id):
        if len(item) <= ROW:
            packer.add(item)
    np.save(out / "heldout_chat.npy", packer.finish())
    requests = [mix.layout(mix.draw(rng, extra))[0] for _ in range(64)]
    (out / "eval.json").write_text(
        json.dumps({"requests": requests, "heldout_bytes": sum(len(t.encode()) for t in texts)}), "utf-8"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", type=pathlib.Path)
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--tokens", type=float, default=200e6)
    parser.add_argument("--prose", type=float, default=0.06, help="share of rows cut from the gathered text")
    parser.add_argument("--workers", type=int, default=multiprocessing.cpu_count())
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    started = time.time()
    tokenizer = Tokenizer.from_file(str(args.checkpoint / "tokenizer.json"))
    end_id = tokenizer.token_to_id(mix.TEXT_END)
    total = int(args.tokens / ROW)
    prose = int(total * args.prose)
    each = -(-(total - prose) // args.workers)
    jobs = [(100 + i, each, str(args.texts), str(args.checkpoint)) for i in range(args.workers)]
    with multiprocessing.get_context("spawn").Pool(args.workers) as pool:
        running = pool.map_async(work, jobs)
        training, held = read_rows(args.texts)
        evaluation(args.out, tokenizer, held, (args.texts / "words.txt").read_text("utf-8").split(), end_id)
        rows = np.concatenate([prose_rows(tokenizer, training, prose, end_id), *running.get()])
    np.random.default_rng(1).shuffle(rows)
    np.save(args.out / "rows.npy", rows)
    part = rows[: 1 << 14]
    pad, answers = float((part & PAD != 0).mean()), float((part & ANSWER != 0).mean())
    text = f"{rows.size / 1e6:.1f} M ids in {len(rows)} rows, padding {pad:.3f}, answers {answers:.3f}"
    print(f"{text}, {time.time() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main()
