"""Drafts accepted a pass, by kind of text and temperature: what coupling and a prefilled head bring.

python -m fastqwen.benchmarks.acceptance [--model demo-bf16] [--tokens 150] [--seeds 3] [--kinds story ...]
    [--contexts 4096 32768 ...]

Chains of three drafts. "coupled" is what runs; "argmax" drafts the head's most likely token instead of the one that the
target's noise favours; "empty" starts the head without the prompt's rows. Every text is checked to be that of plain
decoding. With `--contexts`, drafts are coupled and prose is repeated in front of a prompt until both have so many
tokens. For the demo, everything is demo model, synthetic text.
"""

import argparse
import json
from itertools import product

import torch

from ..engine import SamplingSettings, load
from ..engine.loop import generate
from ..engine.report import Meter
from ..engine.sampling import Sampler
from ..engine.session import Session
from ..mtp.drafts import NoDrafts
from ..mtp.head_drafts import HeadDrafts
from ..mtp.planner import Fixed
from ..mtp.tree import Tree
from ..option_types import whole
from .prompts import KINDS
from .scripts import one_sentence

VARIANTS = ("coupled", "argmax", "empty")
TEMPERATURES = (0.0, 0.7, 1.0)


class EmptyStart(HeadDrafts):
    """A head that has not seen the prompt."""

    def prompt(self, embeddings, hidden, positions):
        self._hidden, self._places = [hidden[-1:]], [positions[:, -1:]]
        self._next = int(positions.max()) + 1


def reply(engine, ids, settings, seed, tokens, variant=None):
    """(text, meter) of a reply with chains of three drafts; plain decoding without a variant."""
    sampler = Sampler(settings, seed, min(engine.tokenizer.size, engine.config.vocab_size))

    def candidates(logits, text, count):
        if variant == "argmax":
            return torch.topk(logits[: sampler.vocab_size], count).indices.tolist()
        return sampler.candidates(logits, torch.tensor(text, device=logits.device), len(text), count)

    session, meter = Session(engine.trunk, len(ids) + tokens), Meter(engine.device)
    drafter = NoDrafts()
    if variant is not None:
        kind = EmptyStart if variant == "empty" else HeadDrafts
        drafter = kind(engine.mtp_head, engine.trunk, Fixed(Tree.chain(3)), candidates, len(ids) + tokens)
    passes = generate(
        session, ids, drafter, sampler, stop_ids=frozenset(engine.tokenizer.stop_ids), max_tokens=tokens,
        on_step=lambda progress: None, meter=meter,
    )  # fmt: skip
    return [token for new in passes for token in new], meter


def prompt_ids(engine, kind: str, context: int = 0) -> list[int]:
    """A kind's prompt; where it is to have `context` tokens, behind as much prose."""
    prompts, template = KINDS[kind]
    ids = engine.template.prompt_ids(prompts[0], system=None, thinking=False, raw=not template)
    prose = engine.template.prompt_ids(KINDS["plain prose"][0][0] + " ", raw=True)
    before = max(0, context - len(ids))
    return (prose * (before // len(prose) + 1))[:before] + ids


def measure(
    engine, kind: str, temperature: float, tokens: int, seeds: int, *, context: int = 0, variants=VARIANTS
) -> dict:
    """Drafts accepted a pass of every variant, over `seeds` replies."""
    ids = prompt_ids(engine, kind, context)
    settings = SamplingSettings(temperature=temperature, top_k=20, top_p=0.95)
    found = {variant: [0, 0] for variant in variants}
    for seed in range(seeds if temperature else 1):
        wanted, _ = reply(engine, ids, settings, seed, tokens)
        for variant in variants:
            text, meter = reply(engine, ids, settings, seed, tokens, variant)
            if text != wanted:
                raise AssertionError(f"{kind}, {temperature}, {variant}: drafting changed the text")
            found[variant][0] += meter.accepted
            found[variant][1] += meter.passes
    rates = {variant: round(accepted / max(passes, 1), 2) for variant, (accepted, passes) in found.items()}
    return {"kind": kind, "temperature": temperature, "context": len(ids), **rates}


@one_sentence()
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo-bf16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tokens", type=whole(1), default=150)
    parser.add_argument("--seeds", type=whole(1), default=3)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--contexts", type=whole(0), nargs="+", default=[0], metavar="TOKENS")
    arguments = parser.parse_args()
    engine = load(arguments.model, device=arguments.device)
    rows, variants = [], VARIANTS if arguments.contexts == [0] else VARIANTS[:1]
    for kind, temperature, context in product(arguments.kinds, TEMPERATURES, arguments.contexts):
        row = measure(engine, kind, temperature, arguments.tokens, arguments.seeds, context=context, variants=variants)
        rows.append(row)
        print("  " + ", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    print(json.dumps({"what": "drafts accepted a pass, chain of 3", "model": arguments.model, "rows": rows}))


if __name__ == "__main__":
    main()
