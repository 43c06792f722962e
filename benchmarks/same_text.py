"""Whether every drafting setting writes the same token ids: the promise, swept over prompts and kinds of sampling.

python -m fastqwen.benchmarks.same_text [--model demo] [--prompts 50] [--first 0] [--tokens 300] [--seconds S]
    [--draft-rows N] [--top-k 40] [--past-stops]

Off, auto, chains of 2 to 5 and ten random draft trees, each greedy and at temperatures 0.7 and 1.0 with top-k, top-p,
min-p and both penalties on. `--draft-rows` drafts from a shortlist; with `--top-k 0` the host draws on a GPU. With
`--past-stops` no token ends a reply, so each has `--tokens` tokens unless the model's context ends it. Prints a line of
JSON with the number of replies, of tokens and of replies that differ from plain decoding's. Ends early after
`--seconds`, between two prompts, and says how many were done.
"""

import argparse
import json
import random
import time

from ..engine import GREEDY, SamplingSettings, load
from ..mtp.tree import OFF, all_shapes
from ..option_types import draft_rows, whole
from .scripts import one_sentence

SUBJECTS = ("a lighthouse", "a red kite", "an old clock", "a fox in the snow", "a bowl of fruit", "a harbour at night",
            "a paper boat", "a market stall", "two birds", "a glass bridge")  # fmt: skip
REQUESTS = ("Write a prompt for a picture of {}.", "Write a short story about {}.", "List five words about {}.",
            "Write a function that draws {}.", "{}")  # fmt: skip
PROMPTS = [request.format(subject) for request in REQUESTS for subject in SUBJECTS]


def kinds_of_sampling(top_k: int) -> dict[str, SamplingSettings]:
    """Greedy and two temperatures with everything on."""
    return {"greedy": GREEDY} | {
        f"temperature {temperature}": SamplingSettings(
            temperature=temperature, top_k=top_k, top_p=0.95, min_p=0.02, repetition_penalty=1.1, presence_penalty=0.3
        )
        for temperature in (0.7, 1.0)
    }


def sweep(engine, *, prompts, tokens: int, seconds: float, top_k: int = 40) -> dict:
    """Replies, tokens and differing replies by kind of sampling."""
    shapes = random.Random(0).sample(all_shapes(), 10)
    settings = [OFF, "auto", "2", "3", "4", "5", *shapes]
    started, done = time.perf_counter(), 0
    kinds = kinds_of_sampling(top_k)
    counts = {kind: {"replies": 0, "tokens": 0, "differing": 0} for kind in kinds}
    for prompt in prompts:
        if time.perf_counter() - started > seconds:
            break
        for kind, sampling in kinds.items():
            wanted = None
            for mtp in settings:
                found = engine.generate(prompt, settings=sampling, seed=done, max_tokens=tokens, mtp=mtp).token_ids
                wanted = found if wanted is None else wanted
                counts[kind]["replies"] += 1
                counts[kind]["tokens"] += len(found)
                counts[kind]["differing"] += found != wanted
        done += 1
    return {
        "prompts": done, "settings": len(settings), "shapes": ["-".join(map(str, tree.widths)) for tree in shapes],
        "seconds": round(time.perf_counter() - started, 1), **counts,
    }  # fmt: skip


@one_sentence()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="demo")
    parser.add_argument("--prompts", type=whole(1), default=len(PROMPTS))
    parser.add_argument("--first", type=whole(0), default=0)
    parser.add_argument("--tokens", type=whole(1), default=300)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--draft-rows", type=draft_rows, default=0)
    parser.add_argument("--top-k", type=whole(0), default=40)
    parser.add_argument("--past-stops", action="store_true")
    arguments = parser.parse_args()
    engine = load(arguments.model, draft_rows=arguments.draft_rows)
    if arguments.past_stops:
        engine.tokenizer.stop_ids = ()  # what every reply reads at its start, for passes on a GPU too
    prompts = PROMPTS[arguments.first : arguments.first + arguments.prompts]
    found = sweep(
        engine, prompts=prompts, tokens=arguments.tokens, seconds=arguments.seconds, top_k=arguments.top_k
    )  # fmt: skip
    options = {
        "draft_rows": arguments.draft_rows, "top_k": arguments.top_k, "tokens_each": arguments.tokens,
        "past_stops": arguments.past_stops,
    }  # fmt: skip
    where = {"device": str(engine.device)}
    if engine.device.type == "cuda":
        from .timing import provenance

        where = provenance()
    facts = {"what": "same text", "model": arguments.model, "first": arguments.first, **options}
    print(json.dumps({**facts, **where, **found}))


if __name__ == "__main__":
    main()
