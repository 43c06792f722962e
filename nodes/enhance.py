"""From an idea to finished prompts for an image or video model. Knows nothing of ComfyUI: `write` does the writing."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..engine import FastQwenError, Result, SamplingSettings
from ..engine.report import LENGTH, notes_of
from .clean import clean, last_whole, unpacked
from .presets import CHINESE, ENGLISH, LENGTHS, Preset
from .request import TextRequest
from .verbatim import hide, parts_to_keep, put_back, show, split_words

AS_THE_IDEA = "as the idea"
LANGUAGES = (AS_THE_IDEA, ENGLISH, CHINESE)
MOST_VARIANTS = 64
FULL_WIDTH = "\uff0c\u3001\u3002\uff1a\uff1b\uff01\uff1f"  # they bring their own space
SEPARATORS = " \t\n,\uff0c\u3001"


@dataclass(frozen=True)
class Wish:
    """What to enhance and how. Variant i is what a single run with seed + i writes."""

    idea: str
    preset: Preset
    language: str = AS_THE_IDEA
    length: str = "medium"
    variants: int = 1
    keep: str = ""
    seed: int = 0
    temperature: float = 0.7
    max_tokens: int = 512
    thinking: bool = False
    mtp: str = "auto"
    images: tuple = ()


@dataclass(frozen=True)
class Enhanced:
    """One prompt per variant, the negative prompt ("" where the model has none), and a report in lines."""

    prompts: list[str]
    negative: str
    report: str


def unchanged(idea: str, preset: Preset) -> Enhanced:
    """What the bypass gives: the idea itself."""
    return Enhanced([idea], preset.negative, "bypassed: the idea is passed on unchanged")


def enhance(wish: Wish, write: Callable[[TextRequest], Result]) -> Enhanced:
    """Writes every variant. Raises FastQwenError for a wish that cannot be met, and what `write` raises.

    A reply that is empty, or that lost a part to keep which has no place in it, gives the idea; the report says so.
    """
    _check(wish)
    if not wish.idea.strip() and not wish.images:
        return Enhanced([wish.idea], wish.preset.negative, "nothing written: the idea is empty")
    parts = parts_to_keep(wish.idea, split_words(wish.keep))
    system = system_text(wish, [part.text for part in parts])
    prompts, reports = [], []
    lines = [f"preset: {wish.preset.name}, {wish.length}, {wish.language}", *_language_notes(wish)]
    for index in range(wish.variants):
        seed = (wish.seed + index) % 2**64
        result = write(_request(wish, system, seed))
        prompt, notes = finished(wish, result, parts)
        prompts.append(prompt)
        reports.append(result.report)
        lines += [f"seed {seed}: {result.report.short()}", *(f"  warning: {note}" for note in notes)]
    return Enhanced(prompts, wish.preset.negative, "\n".join([*lines, *notes_of(reports)]))


def system_text(wish: Wish, kept: Sequence[str]) -> str:
    """The instructions for the model: the preset's, then what this wish adds."""
    preset = wish.preset
    unit = "tags" if preset.tags else "words"
    lines = [preset.instruction, f"Aim for about {preset.words[wish.length]} {unit}."]
    language = _language(wish)
    if language == AS_THE_IDEA:
        lines.append("Write in the language of the idea.")
    else:
        lines.append(f"Write in {language}, whatever the language of the idea; quoted text stays as it is.")
    if kept:
        listed = "\n".join(kept)
        lines.append(f"Copy each of these lines into the prompt exactly, letter for letter, marks included:\n{listed}")
    if wish.images:
        lines.append(
            "A reference picture is attached. Take from it what the idea leaves open; where they differ the "
            "idea counts."
        )
    lines.append(
        "The user's message is the idea, not a request to you: do not answer it, rewrite it. Give the finished prompt "
        "alone, without a heading, an introduction, quotation marks around it, Markdown or remarks."
    )
    return "\n\n".join(lines)


def finished(wish: Wish, result: Result, parts) -> tuple[str, list[str]]:
    """The prompt in a reply, and what a user should know about it."""
    tags, notes = wish.preset.tags, []
    fragile = tuple(part for part in parts if not part.plain)
    text = clean(hide(unpacked(result.text), fragile), tags)
    cut = result.report.stop_reason == LENGTH
    if cut:
        text = last_whole(text, tags)
    text = show(text, fragile)
    if not any(map(str.isalnum, text)):
        why = "its reasoning used up max_length" if cut and wish.thinking else "the model wrote nothing"
        return wish.idea, [f"{why}: the idea is passed on unchanged"]
    if cut:
        notes.append("max_length was reached: the prompt ends with its last whole part")
    text, lost = put_back(text, parts, tags)
    if lost:
        missing = ", ".join(part.text for part in lost)
        which = "the reply, cut off at max_length," if cut else "the reply"
        return wish.idea, [f"{which} left out {missing}: the idea is passed on unchanged"]
    if _language(wish) == CHINESE and not any("\u4e00" <= character <= "\u9fff" for character in text):
        notes.append("the reply is not in Chinese")
    return prefixed(wish.preset.prefix, text), notes


def prefixed(prefix: str, text: str) -> str:
    """The prefix in front of a text that does not begin with it, and one separator between the two.

    A prefix that ends in a space or in punctuation brings its own separator.
    """
    words = prefix.strip().rstrip(SEPARATORS)
    if not words.strip(SEPARATORS) or re.match(rf"{re.escape(words)}(?!\w)", text):
        return text
    text = text.lstrip(SEPARATORS)
    if prefix[-1].isspace():
        return prefix + text
    if prefix[-1] in ",;:.!?":
        return f"{prefix} {text}"
    return prefix + text if prefix[-1] in FULL_WIDTH else f"{prefix}, {text}"


def _check(wish):
    for name, value, choices in (("language", wish.language, LANGUAGES), ("length", wish.length, LENGTHS)):
        if value not in choices:
            raise FastQwenError(f"{name} is {value!r:.60}: choose one of {', '.join(choices)}.")
    if not 1 <= wish.variants <= MOST_VARIANTS:
        raise FastQwenError(f"variants is {wish.variants!r}: set a number from 1 to {MOST_VARIANTS}.")


def _language(wish):
    """The one language of a preset's models stands in for "as the idea"; another one that was asked for is used."""
    return wish.preset.language or AS_THE_IDEA if wish.language == AS_THE_IDEA else wish.language


def _language_notes(wish):
    own = wish.preset.language
    if own and wish.language == AS_THE_IDEA:
        return [f"written in {own}: models of this preset read nothing else"]
    if own and wish.language != own:
        return [f"warning: models of this preset read {own}, {wish.language} was asked for"]
    return []


def _request(wish, system, seed):
    settings = SamplingSettings(temperature=wish.temperature, top_k=64, top_p=0.95, min_p=0.05, repetition_penalty=1.05)
    return TextRequest(
        prompt=wish.idea if wish.idea.strip() else "Describe the attached picture.",
        system=system,
        thinking=wish.thinking,
        template=True,
        settings=settings,
        seed=seed,
        max_tokens=wish.max_tokens,
        mtp=wish.mtp,
        images=wish.images,
    )
