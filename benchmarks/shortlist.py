"""Drafts accepted a pass by how many rows of the output head they may choose from, and how these are kept.

python -m fastqwen.benchmarks.shortlist [--model demo-bf16] [--rows 512 1024 2048 0] [--formats kept w4a8]
    [--temperature 0 0.7] [--tokens 150] [--seeds 2]

Chains of three drafts, by kind of text and temperature; 0 rows are all. "alone" leaves out the tokens of the prompt and
the reply, so the control tokens and the first rows remain. "kept" is the head's own rows, a format a copy quantised to
it. Every text is checked to be that of plain decoding. For the demo, everything is demo model, synthetic text, and its
vocabulary of 4,096 is small: it shows what is lost where, not how much a real head of 248,320 rows loses at a given
number.
"""

import argparse
import json

from ..engine import SamplingSettings, load
from ..mtp.short_head import ShortHead
from ..option_types import whole
from ..weights.quantize import FORMATS
from .acceptance import reply
from .prompts import KINDS
from .scripts import one_sentence

KEPT = "kept"


class FirstRows(ShortHead):
    """A shortlist without the tokens at hand."""

    def begin(self, prompt):
        super().begin(())

    def add(self, tokens):
        pass


def short_head(engine, rows: int, kind: type, format: str | None) -> ShortHead | None:
    """The engine's output head cut to `rows` rows, 0 for all, and its copy in a format; None for the head as it is."""
    if not rows and format is None:
        return None
    tokenizer, trunk = engine.tokenizer, engine.trunk
    always = [tokenizer.token_id(name) for name in tokenizer.special_names]
    return kind(
        trunk.head.matrices[0][0], rows or engine.config.vocab_size, vocab=engine.vocab, always=always, format=format,
        dtype=trunk.dtype,
    )  # fmt: skip


def short_heads(engine, rows: list[int], formats: list[str]) -> dict[str, ShortHead | None]:
    """The table's columns."""
    variants = {}
    for count in rows:
        for name in formats:
            column = str(count or "all")
            if name != KEPT:
                variants[f"{column} {name}"] = short_head(engine, count, ShortHead, name)
                continue
            variants[column] = short_head(engine, count, ShortHead, None)
            if count:
                variants[f"{column} alone"] = short_head(engine, count, FirstRows, None)
    return variants


def measure(engine, kind: str, temperature: float, variants: dict, tokens: int, seeds: int) -> dict:
    """Drafts accepted a pass by variant, over `seeds` replies, and their tokens."""
    prompts, template = KINDS[kind]
    ids = engine.template.prompt_ids(prompts[0], system=None, thinking=False, raw=not template)
    settings = SamplingSettings(temperature=temperature, top_k=20, top_p=0.95)
    found, count = {name: [0, 0] for name in variants}, 0
    for seed in range(seeds if temperature else 1):
        wanted, _ = reply(engine, ids, settings, seed, tokens)
        count += len(wanted)
        for name, short in variants.items():
            engine.mtp_head.short = short
            if short is not None:
                short.begin(ids)
            text, meter = reply(engine, ids, settings, seed, tokens, "coupled")
            if text != wanted:
                raise AssertionError(f"{kind}, {temperature}, {name}: drafting changed the text")
            found[name][0] += meter.accepted
            found[name][1] += meter.passes
    rates = {name: round(accepted / max(passes, 1), 2) for name, (accepted, passes) in found.items()}
    return {"kind": kind, "temperature": temperature, "tokens": count, **rates}


@one_sentence()
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo-bf16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rows", type=whole(0), nargs="+", default=[512, 1024, 2048, 0])
    parser.add_argument("--formats", nargs="+", choices=[KEPT, *FORMATS], default=[KEPT])
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 0.7])
    parser.add_argument("--tokens", type=whole(1), default=150)
    parser.add_argument("--seeds", type=whole(1), default=2)
    arguments = parser.parse_args()
    engine = load(arguments.model, device=arguments.device)
    variants = short_heads(engine, arguments.rows, arguments.formats)
    table = []
    for kind in KINDS:
        for temperature in arguments.temperature:
            table.append(measure(engine, kind, temperature, variants, arguments.tokens, arguments.seeds))
            print("  " + ", ".join(f"{key} {value}" for key, value in table[-1].items()), flush=True)
    print(json.dumps({"what": "drafts accepted a pass, chain of 3, by rows", "model": arguments.model, "rows": table}))


if __name__ == "__main__":
    main()
