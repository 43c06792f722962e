"""Parts of an idea that must come out of a rewrite letter for letter: found, hidden while text is cleaned, put back.

Kept are quoted text, `(word:1.2)`, `<lora:name:1>`, `embedding:name`, `__wildcard__`, `{red|blue}` and listed words.
"""

import re
from dataclasses import dataclass

QUOTE, WEIGHT, TOKEN, WORD = "quote", "weight", "token", "word"

# Opening mark to closing mark: straight, typographic, French, and the Chinese corner brackets.
QUOTES = {'"': '"', "\u201c": "\u201d", "\u2018": "\u2019", "\u00ab": "\u00bb", "\u300c": "\u300d", "\u300e": "\u300f"}
_MARKS = re.escape("".join({*QUOTES, *QUOTES.values(), "'"}))
_PATTERN = re.compile(
    "|".join(
        [
            r"(?P<token><\w+:[^<>\n]+>|__[^\s_](?:\S*?[^\s_])?__|\{[^{}\n]*\|[^{}\n]*\}|\bembedding:[\w./\\-]+)",
            r"(?P<weight>\((?P<weighted>[^()\n]*):\s*-?\d*\.?\d+\s*\))",
            # The Chinese quotation marks may touch a word, an apostrophe inside one opens nothing.
            *(f"{re.escape(a)}[^{re.escape(a + b)}\n]+{re.escape(b)}" for a, b in QUOTES.items() if a != "\u2018"),
            r"(?<!\w)'[^'\n]+'(?!\w)",
            "(?<!\\w)\u2018[^\u2018\n]+?\u2019(?!\\w)",
        ]
    )
)
_FIRST_HIDDEN = 0xF0000  # private use: no model writes these


@dataclass(frozen=True)
class Part:
    """A piece of text to keep. `inner` is what it says without its marks."""

    kind: str
    text: str
    inner: str


def parts_to_keep(idea, words=()):
    """The distinct parts of an idea in order, then `words` that are in none of them."""
    found = {}
    for match in _PATTERN.finditer(idea):
        text = match[0]
        if match["token"]:
            part = Part(TOKEN, text, text)
        elif match["weight"]:
            part = Part(WEIGHT, text, match["weighted"].strip())
        else:
            part = Part(QUOTE, text, text[1:-1])
        if part.inner.strip():
            found.setdefault(text, part)
    for word in words:
        if not any(word in text for text in found):
            found[word] = Part(WORD, word, word)
    return tuple(found.values())


def split_words(text):
    """Words and phrases of a list separated by commas or lines, each once."""
    words = (word.strip() for word in re.split("[,\n\uff0c\u3001]", text))
    return tuple(dict.fromkeys(word for word in words if word))


def hide(text, parts):
    """The text with every part replaced by one private character, so that no cleaning can touch it."""
    for index, part in sorted(enumerate(parts), key=lambda item: -len(item[1].text)):
        text = text.replace(part.text, chr(_FIRST_HIDDEN + index))
    return text


def show(text, parts):
    """Undoes `hide`."""
    for index, part in enumerate(parts):
        text = text.replace(chr(_FIRST_HIDDEN + index), part.text)
    return text


def put_back(text, parts, tags=False):
    """The text with each part in it letter for letter, and the parts for which no place was found.

    A part that was written another way (other quotation marks, other case, without its weight) is replaced where it
    stands. One that is gone is appended, except quoted text: without its place it would say something else.
    """
    lost = []
    for part in parts:
        if _present(text, part):
            continue
        place = _place(text, part)
        if place:
            text = text[: place[0]] + part.text + text[place[1] :]
        elif part.kind == QUOTE:
            lost.append(part)
        else:
            text = _appended(text, part.text, tags)
    return text, lost


def _present(text, part):
    return part.text in text if part.kind != WORD else bool(re.search(_whole(part.text), text))


def _place(text, part):
    """Where a part stands in another form: (start, end), or None."""
    if part.kind == TOKEN:
        return None
    inner = _whole(part.inner)
    if part.kind == QUOTE:
        inner = f"[{_MARKS}]?{inner}[{_MARKS}]?"
    elif part.kind == WEIGHT:
        inner = rf"\(\s*{inner}\s*(?::[^()]*)?\)|{inner}"
    match = re.search(inner, text) or re.search(inner, text, re.IGNORECASE)
    return match and match.span()


def _whole(word):
    """A pattern for the word that finds no "cat" in "category"; scripts without spaces have no such limit."""
    before = r"(?<![A-Za-z0-9])" if re.match("[A-Za-z0-9]", word) else ""
    after = r"(?![A-Za-z0-9])" if re.search("[A-Za-z0-9]$", word) else ""
    return before + re.escape(word) + after


def _appended(text, part, tags):
    text = text.rstrip(" ,\uff0c")
    if part.startswith("<") or not text:
        return f"{text} {part}".strip()
    end = text[-1] if text[-1] in ".\u3002" and not tags else ""
    return f"{text[: len(text) - len(end)]}, {part}{end}"
