"""Perplexity of the demo's formats on prose that no grammar wrote and no training row saw.

    python demo/scripts/perplexity.py TEXT_FOLDER CHECKPOINT [CHECKPOINT ...]

TEXT_FOLDER: what gather_text.py wrote; the packages marked held_out in its sources.json are read. Each text is scored
alone, in windows of 512 tokens, by the library's own prefill on a CPU. Needs the package installed (pip install -e .).
"""

import json
import lzma
import math
import pathlib
import sys

import torch
from fastqwen.engine import load

WINDOW = 512


def held_out_texts(folder: pathlib.Path) -> list[str]:
    sources = json.loads((folder / "sources.json").read_text("utf-8"))
    held = {source["package"] for source in sources if source["held_out"]}
    with lzma.open(folder / "text.jsonl.xz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [row["text"] for row in rows if row["package"] in held and row["kind"] == "prose"]


@torch.inference_mode()
def nats_per_token(engine, texts: list[str]) -> tuple[float, int]:
    total, count = 0.0, 0
    for text in texts:
        ids = engine.tokenizer.encode_plain(text)
        for start in range(0, len(ids) - 1, WINDOW):
            window = ids[start : start + WINDOW + 1]
            state = engine.trunk.new_state(WINDOW)
            logits = engine.trunk.logits(engine.trunk.prefill(engine.trunk.embed(window[:-1]), state))
            scores = torch.log_softmax(logits.double(), -1)
            total -= scores[torch.arange(len(window) - 1), torch.tensor(window[1:])].sum().item()
            count += len(window) - 1
    return total / count, count


def main() -> None:
    texts = held_out_texts(pathlib.Path(sys.argv[1]))
    rows = []
    for path in sys.argv[2:]:
        nats, count = nats_per_token(load(path, device="cpu"), texts)
        rows.append({"checkpoint": pathlib.Path(path).name, "tokens": count, "perplexity": round(math.exp(nats), 3)})
        print(json.dumps(rows[-1]), flush=True)


if __name__ == "__main__":
    main()
