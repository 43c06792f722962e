"""Presets of the prompt enhancer: the built-in ones and the user's own, one JSON file each, chosen by file name."""

import json
import os
from dataclasses import dataclass, field

from ..weights import FastQwenError
from .preset_texts import BUILT_IN

SENTENCES, TAGS = "sentences", "tags"
LENGTHS = ("short", "medium", "long")
ENGLISH, CHINESE = "English", "Chinese"
SUFFIX = ".json"
MOST_BYTES = 100_000
MOST_SHOWN = 60  # characters of a name in a message
EXAMPLE = '{"instruction": "You write prompts for ...", "style": "sentences", "negative": ""}'
TEXTS = ("instruction", "style", "language", "prefix", "negative")


@dataclass(frozen=True)
class Preset:
    """How one family of models wants its prompts.

    instruction  the system text that asks for them
    style        "sentences" or "tags": how the answer is put on one line and what its length counts
    language     what the models read, where that is one language only; "" where the idea's own will do
    prefix       goes in front of every prompt
    negative     the negative prompt; "" for models that have none
    words        the size of a short, medium and long prompt, in words or tags
    """

    name: str
    instruction: str
    style: str = SENTENCES
    language: str = ""
    prefix: str = ""
    negative: str = ""
    words: dict = field(default_factory=lambda: {"short": 40, "medium": 90, "long": 160})

    @property
    def tags(self):
        """Whether prompts are lists of tags."""
        return self.style == TAGS


def preset_names(folder):
    """The built-in presets, then those of the user's files that have other names, in name order."""
    return [*BUILT_IN, *sorted(_files(folder).keys() - BUILT_IN.keys())]


def preset(name, folder):
    """The preset of a name; a user's file goes before a built-in one. Raises FastQwenError, one sentence."""
    files = _files(folder)
    if name in files:
        return _read(name, files[name])
    if name in BUILT_IN:
        return Preset(name, **BUILT_IN[name])
    shown = name if len(name) <= MOST_SHOWN else name[:MOST_SHOWN] + "..."
    hint = f", or put {name}{SUFFIX} into '{folder}'" if _is_file_name(name) else ""
    raise FastQwenError(f"There is no preset named {shown!r}: choose one of {', '.join(preset_names(folder))}{hint}.")


def parse(name, text):
    """A preset from a JSON text. Raises FastQwenError that names the key and what it must be."""
    where = f"The preset '{name}{SUFFIX}'"
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        place = f" ({error})" if isinstance(error, ValueError) else ""
        raise FastQwenError(f"{where} is not valid JSON{place}: write it as {EXAMPLE}.") from None
    if not isinstance(data, dict):
        raise FastQwenError(f"{where} holds a {type(data).__name__} where an object is needed: write {EXAMPLE}.")
    unknown = sorted(data.keys() - {*TEXTS, "words"})
    if unknown:
        raise FastQwenError(f"{where} has the unknown key {unknown[0]!r:.60}: use {', '.join(TEXTS)} and words.")
    for key in TEXTS:
        if not isinstance(data.get(key, ""), str):
            raise FastQwenError(f"{where} has {data[key]!r:.60} as {key!r}: it must be text in quotation marks.")
    if not data.get("instruction", "").strip():
        raise FastQwenError(
            f"{where} needs the key 'instruction' with a text: say there how the prompt is to be written."
        )
    for key, choices in (("style", (SENTENCES, TAGS)), ("language", ("", ENGLISH, CHINESE))):
        if data.get(key, choices[0]) not in choices:
            raise FastQwenError(
                f"{where} has {data[key]!r:.60} as {key!r}: use one of {', '.join(map(repr, choices))}."
            )
    if "words" in data:
        data["words"] = _words(where, data["words"])
    return Preset(name, **data)


def _words(where, words):
    numbers = isinstance(words, dict) and all(
        key in LENGTHS and isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 2000
        for key, value in words.items()
    )
    if not numbers:
        raise FastQwenError(
            f"{where} has {words!r:.60} as 'words': give whole numbers from 1 to 2000 for some of {', '.join(LENGTHS)}."
        )
    merged = {**Preset("", "").words, **words}
    if not merged["short"] <= merged["medium"] <= merged["long"]:
        lengths = ", ".join(f"{key} {merged[key]}" for key in LENGTHS)
        raise FastQwenError(f"{where} comes to {lengths} as 'words': give all three, none smaller than the one before.")
    return merged


def _is_file_name(name):
    """Whether a file can have the name in a folder, on Windows too."""
    bad = any(mark in name for mark in '/\\:*?"<>|') or not name.isprintable()
    return 0 < len(name) <= MOST_SHOWN and not bad and name == name.strip(" .")


def _files(folder):
    """Name to path of the user's presets. A folder that is not there holds none."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return {}
    return {
        entry.name[: -len(SUFFIX)]: entry.path
        for entry in entries
        if entry.name.lower().endswith(SUFFIX) and len(entry.name) > len(SUFFIX) and entry.is_file()
    }


def _read(name, path):
    try:
        with open(path, "rb") as file:
            raw = file.read(MOST_BYTES + 1)
        text = raw.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise FastQwenError(f"The preset '{name}{SUFFIX}' cannot be read ({error}): save it as UTF-8.") from None
    if len(raw) > MOST_BYTES:
        raise FastQwenError(f"The preset '{name}{SUFFIX}' is larger than {MOST_BYTES} bytes: shorten it.")
    return parse(name, text)
