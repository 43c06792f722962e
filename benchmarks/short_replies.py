"""`auto` against `off` on short replies: whether looking for a better tree costs more than it brings.

python -m fastqwen.benchmarks.short_replies [--model demo | --shape 9b|27b|small] [--prompts 30] [--lengths 16 32 64]
    [--repeats 5]

Every reply is written with both, in turn, the same text; its decode time is the median of the repeats. "fresh": `auto`
knows what an engine knows that has captured its passes, and nothing of earlier replies. "kept": it goes on through the
prompts of a length, as in use. Prints the total times by length, their ratio, and the worst reply's ratio; the promise
is that `auto` is never more than 3% slower. For the demo: demo model, synthetic text. `--shape` writes a checkpoint of
random weights to the system's temporary folder and reads the demo's tokens with it: no draft is ever right, the worst
that can be.
"""

import argparse
import copy
import json
import tempfile
from pathlib import Path
from statistics import median

import torch

from ..engine import SamplingSettings, load, resolve_path
from ..option_types import whole
from ..weights import FastQwenError
from .same_text import PROMPTS
from .scripts import one_sentence

SETTINGS = {"greedy": SamplingSettings(greedy=True), "temperature 0.7": SamplingSettings(presence_penalty=0.3)}
MODES = ("off", "auto")


class Knowledge:
    """What an engine has learnt of acceptance and cost, taken back to a start."""

    def __init__(self, engine):
        engine.generate("x", settings=SETTINGS["greedy"], max_tokens=1, mtp="auto")  # compiles and captures
        self._engine, self._costs = engine, copy.deepcopy(engine._costs)

    def forget(self):
        self._engine._statistics.clear()
        self._engine._costs = copy.deepcopy(self._costs)


def times(engine, knowledge, prompts, length: int, settings, repeats: int, fresh: bool) -> tuple[dict, int]:
    """(median decode seconds of every reply, by mode; tokens in all)."""
    found = {mode: [[] for _ in prompts] for mode in MODES}
    tokens = 0
    for repeat in range(repeats):
        knowledge.forget()
        for place, prompt in enumerate(prompts):
            texts = []
            for mode in MODES if (place + repeat) % 2 else MODES[::-1]:
                if fresh:
                    knowledge.forget()
                result = engine.generate(prompt, settings=settings, seed=place, max_tokens=length, mtp=mode)
                found[mode][place].append(result.report.decode_seconds)
                texts.append(result.token_ids)
            if texts[0] != texts[1]:
                raise AssertionError(f"drafting changed the text of {prompt!r}")
            tokens += len(texts[0]) if repeat == 0 else 0
    return {mode: [median(seconds) for seconds in replies] for mode, replies in found.items()}, tokens


def measure(engine, knowledge, prompts, length: int, kind: str, repeats: int) -> dict:
    """One row of the table."""
    row = {"sampling": kind, "max_tokens": length}
    for name in ("fresh", "kept"):
        seconds, row["tokens"] = times(engine, knowledge, prompts, length, SETTINGS[kind], repeats, name == "fresh")
        off, auto = (sum(seconds[mode]) for mode in MODES)
        # Replies of a token or two have no decode time worth a ratio.
        ratios = [a / b for b, a in zip(seconds["off"], seconds["auto"], strict=True) if b > 0.1 * off / len(prompts)]
        row |= {
            f"{name}_off_ms": round(1e3 * off, 2), f"{name}_auto_ms": round(1e3 * auto, 2),
            f"{name}_auto_over_off": round(auto / off, 3), f"{name}_worst_reply": round(max(ratios), 3),
        }  # fmt: skip
    return row


def random_engine(shape: str, device: str):
    """An engine over random weights whose replies do not end before their length. Raises FastQwenError for a real size
    without a GPU: minutes would go by drawing its numbers and hours reading them."""
    if shape != "small" and not torch.cuda.is_available():
        raise FastQwenError(f"--shape {shape} needs a GPU and found none: take --shape small, or --model demo.")
    from .random_file import small_config, write_random_checkpoint
    from .random_model import model_config

    config = small_config() if shape == "small" else model_config(shape)
    with tempfile.TemporaryDirectory(prefix="fastqwen-") as folder:
        path = Path(folder) / "random.safetensors"
        write_random_checkpoint(path, config, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
        engine = load(path, device=device, tokenizer=resolve_path("demo-bf16"))
    engine.tokenizer.stop_ids = ()
    return engine


@one_sentence()
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--shape", choices=("9b", "27b", "small"), help="random weights of this size instead")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--prompts", type=whole(1), default=30)
    parser.add_argument("--lengths", type=whole(2, "tokens"), nargs="+", default=[16, 32, 64])
    parser.add_argument("--repeats", type=whole(1), default=5)
    arguments = parser.parse_args()
    name, device = arguments.shape or arguments.model, arguments.device
    engine = random_engine(name, device) if arguments.shape else load(name, device=device)
    knowledge, rows = Knowledge(engine), []
    # Every fifth of the list, then the next: all kinds of text whatever number is taken.
    prompts = [prompt for start in range(5) for prompt in PROMPTS[start::5]][: arguments.prompts]
    for kind in SETTINGS:
        for length in arguments.lengths:
            rows.append(measure(engine, knowledge, prompts, length, kind, arguments.repeats))
            print("  " + ", ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    where = {"device": str(engine.device)}
    if engine.device.type == "cuda":
        from .timing import provenance

        where = provenance()
    facts = {"what": "auto against off, short replies", "model": name, "prompts": len(prompts)}
    print(json.dumps({**facts, "repeats": arguments.repeats, **where, "rows": rows}))


if __name__ == "__main__":
    main()
