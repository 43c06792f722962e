"""Where a model's own tokens stood in its head's lists, recorded for benchmarks.replay."""

import json
from itertools import product
from pathlib import Path

import torch

from ..engine import SamplingSettings, load
from ..engine.sampling import Sampler
from ..mtp.estimates import LEVELS
from ..weights import FastQwenError
from .acceptance import TEMPERATURES
from .prompts import KINDS

Ranks = list[
    list[int]
]  # per place of a text: rank per level, from 1, 0 for not in the list; ends after the first not 1
FORMS = ("post", "pre")  # what the head is fed: its output after or before its norm (mtp/head.py)
SAMPLING = {"top_k": 20, "top_p": 0.95}


def record(engine, kind: str, temperature: float, number: int, tokens: int) -> dict[str, Ranks]:
    """Ranks at every place of one reply, to a kind's prompt of this number and with that seed, by form of the head."""
    prompts, template = KINDS[kind]
    prompt, settings = prompts[number], SamplingSettings(temperature=temperature, **SAMPLING)
    options = dict(settings=settings, seed=number, max_tokens=tokens, template=template, mtp="off")
    reply = list(engine.generate(prompt, **options).token_ids)
    ids = engine.template.prompt_ids(prompt, system=None, thinking=False, raw=not template)
    sampler = Sampler(settings, number, min(engine.tokenizer.size, engine.config.vocab_size))
    text, trunk = [*ids, *reply], engine.trunk
    with torch.inference_mode():
        embeddings = trunk.embed(text)
        hidden = trunk.prefill(embeddings, trunk.new_state(len(text)))  # kinds and tokens keep it within one chunk
        return {form: ranks_of(engine, sampler, reply, embeddings, hidden, form=form) for form in FORMS}


def ranks_of(engine, sampler: Sampler, reply: list[int], embeddings, hidden, *, form: str) -> Ranks:
    """Where a reply's tokens stand in the lists of the head, given the rows of the prompt and the reply."""
    trunk, head, start = engine.trunk, engine.mtp_head, len(embeddings) - len(reply)
    places = torch.arange(len(embeddings) + LEVELS, device=trunk.device).expand(3, -1)
    head.pre_norm = form == "pre"
    cache = head.new_cache(len(embeddings) + LEVELS, kind=trunk.kv, device=trunk.device)
    head.prefill(embeddings[1:start], hidden[: start - 1], places[:, : start - 1], cache=cache)
    ranks = []
    for count in range(1, len(reply)):
        at = start + count - 2  # the row whose next token is reply[count - 1], a pass's root
        output = head.prefill(embeddings[at + 1 : at + 2], hidden[at : at + 1], places[:, at : at + 1], cache=cache)
        committed = cache.length
        found: list[int] = []
        for level in range(min(LEVELS, len(reply) - count)):
            history = torch.tensor(reply[: count + level], device=trunk.device)
            row = trunk.logits(head.for_logits(output))[0]
            candidates = sampler.candidates(row, history, len(history), LEVELS)
            token = reply[count + level]
            found.append(candidates.index(token) + 1 if token in candidates else 0)
            if found[-1] != 1 or level + 1 == min(LEVELS, len(reply) - count):
                break
            place = places[:, at + 1 + level : at + 2 + level]
            output = head.prefill(embeddings[at + 2 + level : at + 3 + level], output, place, cache=cache)
        cache.truncate(committed)
        ranks.append(found)
    head.pre_norm = False
    return ranks


def recorded(arguments) -> dict[str, list[Ranks]]:
    """Texts' ranks by "kind/temperature/form". Raises FastQwenError for a file that holds another recording, and for
    more texts than there are prompts."""
    path = Path(arguments.record) if arguments.record else None
    most = min(len(prompts) for prompts, _ in KINDS.values())
    if arguments.texts > most:
        raise FastQwenError(f"{arguments.texts} texts were asked for; a kind has prompts for 1 to {most}.")
    if path and not path.parent.is_dir():  # told now, not after minutes of recording
        raise FastQwenError(f"'{path.parent}' is no folder: make it, or name another file for the recording.")
    made_by = {"model": arguments.model, "tokens": arguments.tokens, "texts": arguments.texts}
    made_by["sampling"] = {"temperatures": list(TEMPERATURES), **SAMPLING}
    made_by["prompts"] = {kind: list(prompts[: arguments.texts]) for kind, (prompts, _) in KINDS.items()}
    if path and path.exists():
        return _read(path, made_by)
    engine, table = load(arguments.model, device=arguments.device), {}
    for kind, temperature in product(KINDS, TEMPERATURES):
        texts = [record(engine, kind, temperature, number, arguments.tokens) for number in range(arguments.texts)]
        for form in FORMS:
            table[f"{kind}/{temperature}/{form}"] = [text[form] for text in texts]
    if path:
        unfinished = path.with_name(path.name + ".part")
        by = {"torch": torch.__version__, "device": str(engine.device)}
        unfinished.write_text(json.dumps(made_by | by | {"ranks": table}))
        unfinished.replace(path)
    return table


def _read(path: Path, made_by: dict) -> dict[str, list[Ranks]]:
    try:
        found = json.loads(path.read_text())
        others = [f"{key} {str(found[key])[:60]}" for key, value in made_by.items() if found[key] != value]
        table = found["ranks"]
    except (OSError, ValueError, KeyError, TypeError):
        raise FastQwenError(f"'{path}' is no recording of this benchmark: give a new name, or delete it.") from None
    if others:
        raise FastQwenError(f"'{path}' was recorded with {', '.join(others)}: not what is asked for now.")
    return table
