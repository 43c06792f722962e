"""One caption for each picture, for people or for training an image model. Knows nothing of ComfyUI."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from ..engine import FastQwenError, Result, SamplingSettings
from ..engine.report import LENGTH
from .clean import clean, last_whole
from .request import TextRequest
from .verbatim import contains, split_words

OWN = "only the prompt"
STYLES = {
    "sentence": "Describe the picture in one plain sentence: the main subject, what it does and where it is.",
    "paragraph": (
        "Describe the picture in one paragraph: the main subject and how it looks, what it does, the surroundings, the "
        "other things with their places, the light, the colours, and the medium or style. Say only what can be seen."
    ),
    "tags": (
        "List what the picture shows as short lower-case tags on one line, separated by commas, most important first: "
        "the subjects and how many, their looks, clothing, pose and actions, objects, the place, the view, the light, "
        "the style. No sentences."
    ),
    "training": (
        "Write a caption for training an image model with this picture. State in two or three plain sentences what can "
        "be seen and would otherwise be taken for a part of every picture: subject, action, clothing, objects, "
        "background, framing, light, medium. Be literal; no guesses, no moods, no praise."
    ),
    OWN: "",
}
_OPENINGS = re.compile(
    r"^(?:in )?(?:this|the|an?) (?:image|picture|photo(?:graph)?|painting|drawing) (?:shows|depicts|features|displays|"
    r"captures|contains|presents|is of|we see|there (?:is|are))\s+",
    re.IGNORECASE,
)
_SENTENCE = re.compile("(?<=[.!?])\\s+|(?<=[\u3002\uff01\uff1f])")


@dataclass(frozen=True)
class CaptionWish:
    """How to caption. What a picture gets does not depend on the others: every one is written with the same seed.

    prompt     added to the style's instruction, or the whole of it with the style OWN
    trigger    a word that every caption begins with, unless it is in it
    prefix, suffix  put around every caption as they are
    exclude    words and phrases, separated by commas; a sentence or tag with one of them is left out
    max_words  longer captions end with the last whole sentence or tag that fits; 0: no limit
    """

    style: str = "paragraph"
    prompt: str = ""
    trigger: str = ""
    prefix: str = ""
    suffix: str = ""
    exclude: str = ""
    max_words: int = 0
    seed: int = 0
    temperature: float = 0.7
    max_tokens: int = 512
    thinking: bool = False

    @property
    def tags(self):
        """Whether captions are lists of tags."""
        return self.style == "tags"


def captions(wish: CaptionWish, pictures, write: Callable[[TextRequest], Result]) -> tuple[list[str], str]:
    """A caption per picture [H, W, C], and a report in lines. Raises FastQwenError and what `write` raises."""
    if wish.style not in STYLES:
        raise FastQwenError(f"style is {wish.style!r}: choose one of {', '.join(STYLES)}.")
    instruction = instruction_text(wish)
    texts, lines = [], []
    for number, picture in enumerate(pictures, start=1):
        result = write(_request(wish, instruction, picture))
        text, notes = finished(wish, result)
        texts.append(text)
        report, rate = result.report, result.report.tokens_per_second or 0
        lines.append(f"picture {number}: {report.new_tokens} tokens, {rate:.1f} tokens/s, {report.stop_reason}")
        lines += [f"  warning: {note}" for note in notes]
    return texts, "\n".join(lines)


def instruction_text(wish: CaptionWish) -> str:
    """What the model is asked. Raises FastQwenError if there is nothing to ask."""
    lines = [STYLES[wish.style], wish.prompt.strip()]
    if not any(lines):
        raise FastQwenError(f"The style is {OWN!r} and the prompt is empty: write what is to be said of the pictures.")
    if wish.max_words:
        lines.append(f"Use at most {wish.max_words} words.")
    if wish.trigger.strip():
        lines.append(f"Call the main subject {wish.trigger.strip()}, spelled exactly so.")
    excluded = split_words(wish.exclude)
    if excluded:
        lines.append(f"Do not mention: {', '.join(excluded)}.")
    lines.append("Answer with the caption alone.")
    return "\n\n".join(line for line in lines if line)


def finished(wish: CaptionWish, result: Result) -> tuple[str, list[str]]:
    """The caption in a reply with trigger, prefix and suffix, and what a user should know about it."""
    text, notes = clean(result.text, wish.tags), []
    if result.report.stop_reason == LENGTH:
        text = last_whole(text, wish.tags)
        notes.append("max_length was reached: the caption ends with its last whole part")
    text = without_opening(text)
    text, dropped = without(text, split_words(wish.exclude), wish.tags)
    if dropped:
        notes.append(f"left out with its words: {'; '.join(dropped)}")
    if wish.max_words:
        text = within(text, wish.max_words, wish.tags)
    if not text:
        notes.append("nothing is left of the caption" if result.text.strip() else "the model wrote nothing")
    trigger = wish.trigger.strip()
    if trigger and not contains(text, trigger):
        text = f"{trigger}, {text}" if text else trigger
    return f"{wish.prefix}{text}{wish.suffix}", notes


def without_opening(text: str) -> str:
    """Without "The image shows" and the like in front."""
    match = _OPENINGS.match(text)
    rest = text[match.end() :] if match else text
    return rest[:1].upper() + rest[1:] if match else text


def without(text: str, excluded, tags: bool) -> tuple[str, list[str]]:
    """The text without the sentences or tags that hold one of the words, in any case; and those."""
    parts = _parts(text, tags)
    dropped = [part for part in parts if any(contains(part.lower(), word.lower()) for word in excluded)]
    return _joined([part for part in parts if part not in dropped], tags), dropped


def within(text: str, most: int, tags: bool) -> str:
    """The text's first sentences or tags with at most `most` words, or where the first is longer its first words."""
    kept, words = [], 0
    for part in _parts(text, tags):
        words += len(part.split())
        if words > most:
            break
        kept.append(part)
    return _joined(kept, tags) if kept else " ".join(text.split()[:most]).rstrip(" ,;:")


def _parts(text, tags):
    if tags:
        return [tag.strip() for tag in text.split(",") if tag.strip()]
    return [part for part in _SENTENCE.split(text) if part]


def _joined(parts, tags):
    return (", " if tags else " ").join(parts)


def _request(wish, instruction, picture):
    return TextRequest(
        prompt=instruction,
        system=None,
        thinking=wish.thinking,
        template=True,
        settings=SamplingSettings(temperature=wish.temperature, top_p=0.8, top_k=20),
        seed=wish.seed,
        max_tokens=wish.max_tokens,
        mtp="auto",
        images=(picture,),
    )
