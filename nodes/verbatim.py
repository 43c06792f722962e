"""Parts of an idea that must come out of a rewrite letter for letter: found, hidden while text is cleaned, put back.

Kept are quoted text, `(word:1.2)`, `<lora:name:1>`, `embedding:name`, `__wildcard__`, `{red|blue}` and listed words.

A marked part stands in a text where it is there with its marks and is no piece of another part: `(fox:1.2)` inside
`((fox:1.2) snow:1.3)` does not count for a second `(fox:1.2)` of the idea. A listed word stands wherever it is a whole
word in its own letter case, inside other parts too: "fox" is kept by `"a fox"`, not by `"Fox"` and not by "foxes".
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
            r"(?P<token><\w+:[^<>\n]+>|__[^\s_](?:\S*?[^\s_])?__|\bembedding:[\w./\\-]*\w)",
            # Behind a digit a straight mark means inches or feet: 12", 5'10", 6''.
            r"(?<!\d)(?<!\d')\"[^\"\n]+\"",
            # The Chinese quotation marks may touch a word, an apostrophe inside one opens nothing.
            *(f"{a}[^{a}{b}\n]+{b}" for a, b in QUOTES.items() if a not in '\u2018"'),
            r"(?<!\w)(?<!\d')'[^'\n]+'(?!\w)",
            "(?<!\\w)\u2018[^\u2018\n]+?\u2019(?!\\w)",
        ]
    )
)
_WEIGHT_NUMBER = re.compile(r"\s*[+-]?(?:\d+\.?\d*|\.\d+)\s*")
_FIRST_HIDDEN = 0xF0000  # private use: no model writes these
_PRIVATE = re.compile("[\U000f0000-\U0010ffff]")

# Scripts whose words touch each other: Thai to Khmer, Chinese, Japanese, Korean (particles follow the word).
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f"
_UNSPACED += "\U00020000-\U0003ffff"
_UNSPACED_LETTER = re.compile(f"[{_UNSPACED}]")
_LETTER = re.compile(rf"[^\W{_UNSPACED}]|[\u0300-\u036f]")  # an accent may be a character of its own


@dataclass(frozen=True)
class Part:
    """A piece of text to keep. `inner` is what it says without its marks."""

    kind: str
    text: str
    inner: str

    @property
    def plain(self):
        """Whether it looks like any other words of a text, so that cleaning has nothing to take from it."""
        return self.kind == WORD and all(character.isalnum() or character == " " for character in self.text)


def parts_to_keep(idea, words=()):
    """The distinct parts of an idea in order, then `words` that are in none of them."""
    found = {}
    for part in _marked(idea):
        if part.inner.strip():
            found.setdefault(part.text, part)
    for word in words:
        if not any(_has_word(text, word) for text in found):
            found[word] = Part(WORD, word, word)
    return tuple(found.values())


def split_words(text):
    """Words and phrases of a list separated by commas or lines, each once."""
    words = (word.strip() for word in re.split("[,\n\uff0c\u3001]", text))
    return tuple(dict.fromkeys(word for word in words if word))


def hide(text, parts):
    """The text with every part that stands in it replaced by one private character, so that no edit can touch it."""
    text = _PRIVATE.sub("", text)
    # Marked parts first: a listed phrase may hold one. Then the longest: it may hold others.
    for index, part in sorted(enumerate(parts), key=lambda item: (item[1].kind == WORD, -len(item[1].text))):
        if part.text in text:
            for match in reversed(list(_matches(_exactly(part), text, whole=part.kind == WORD))):
                text = text[: match.start()] + _hidden(index) + text[match.end() :]
    return text


def show(text, parts):
    """Undoes `hide`."""
    return _PRIVATE.sub(lambda match: parts[ord(match[0]) - _FIRST_HIDDEN].text, text)


def put_back(text, parts, tags=False):
    """The text with each part in it letter for letter, and the parts for which that is not so.

    A part that was written another way (other quotation marks, other case, without its weight) is replaced where it
    stands, but never inside another part. One that is gone is appended, except quoted text: without its place it would
    say something else. The parts that are returned as lost are those that do not stand in the returned text.
    """
    text = hide(text, parts)
    missing = [(index, part) for index, part in enumerate(parts) if not _stands(index, part, text, parts)]
    # What is in quotation marks belongs to quoted text; of several parts that fit a place the longest says most.
    order = {QUOTE: 0, WEIGHT: 1, TOKEN: 2, WORD: 3}
    for index, part in sorted(missing, key=lambda item: (order[item[1].kind], -len(item[1].text))):
        place = _place(text, part)
        if place and not _stands(index, part, text, parts):
            start, end, kept_behind = place
            text = text[:start] + _hidden(index) + kept_behind + text[end:]
    for index, part in missing:
        if part.kind != QUOTE and not _stands(index, part, text, parts):
            text = _appended(text, _hidden(index), tags, bare=part.text.startswith("<"))
    text = show(text, parts)
    hidden = hide(text, parts)
    return text, [part for index, part in enumerate(parts) if not _stands(index, part, hidden, parts)]


def _marked(text):
    """The marked parts of a text, left to right; what is inside one is no part of its own. Linear in the text."""
    brackets, position = _bracketed(text), 0
    starts, match = sorted(brackets, reverse=True), _PATTERN.search(text)
    while match or starts:
        if match and match.start() < position:
            match = _PATTERN.search(text, position)
        elif match and (not starts or match.start() < starts[-1]):
            yield _marked_part(match)
            position = match.end()
        else:
            start = starts.pop()
            if start >= position:
                part, position = brackets[start]
                yield part


def _marked_part(match):
    text = match[0]
    return Part(TOKEN, text, text) if match["token"] else Part(QUOTE, text, text[1:-1])


def _bracketed(text):
    """Start to (part, end) of every `(text:1.2)` and `{a|b}`. Brackets nest, a backslash takes a bracket's meaning."""
    found, open_brackets = {}, {"(": [], "{": []}
    for match in re.finditer(r"\\.|[(){}:|\n]", text):
        mark, position = match[0], match.start()
        if mark == "\n":
            open_brackets = {"(": [], "{": []}
        elif mark in "({":
            open_brackets[mark].append([position, None])
        elif mark in ":|":
            levels = open_brackets["(" if mark == ":" else "{"]
            if levels:
                levels[-1][1] = position
        elif mark in ")}":
            levels, end = open_brackets["(" if mark == ")" else "{"], match.end()
            start, divider = levels.pop() if levels else (0, None)
            if divider is None:
                continue
            if mark == "}":
                found[start] = Part(TOKEN, text[start:end], text[start:end]), end
            elif _WEIGHT_NUMBER.fullmatch(text, divider + 1, position):
                found[start] = Part(WEIGHT, text[start:end], text[start + 1 : divider].strip()), end
    return found


def _hidden(index):
    return chr(_FIRST_HIDDEN + index)


def _stands(index, part, hidden, parts):
    """Whether a part stands in a text in which the parts are hidden."""
    return _hidden(index) in hidden or (part.kind == WORD and _has_word(show(hidden, parts), part.text))


def _exactly(part):
    """A pattern for the part itself: not `embedding:a` in `embedding:ab`, no weight behind a backslash."""
    text = re.escape(part.text)
    if part.kind == WORD:
        return text
    if part.text[0] in "'\u2018":
        return rf"(?<!\w){text}(?!\w)"
    if part.kind == WEIGHT:
        return rf"(?<!\\){text}"
    if part.text.startswith("embedding:"):
        return rf"\b{text}(?![\w/\\-]|\.\w)"
    return text


def _place(text, part):
    """Where a part stands in another form: (start, end, what to write behind it), or None."""
    if part.kind == TOKEN:
        return None
    if part.kind == QUOTE:
        return _quoted_place(text, part.inner)
    inner = re.escape(part.inner)
    if part.kind == WEIGHT:
        inner = re.sub(r"(?:\\\\)?\\([()])", r"\\\\?\\\1", inner)  # brackets with and without their backslash
    forms = [rf"(?<!\\)\(\s*{inner}\s*(?::[^()]*)?\)"] if part.kind == WEIGHT else []
    for form in [*forms, inner]:
        for flags in (0, re.IGNORECASE):
            found = _outside_tokens(form, text, flags)
            if found:
                return *found[0].span(), ""
    return None


def _outside_tokens(pattern, text, flags):
    """The whole matches outside of tokens that the model made up: a name inside <lora:...> is no word of the text."""
    found = list(_matches(pattern, text, True, flags))
    taken = [match.span() for match in _PATTERN.finditer(text) if match["token"]] if found else []
    return [match for match in found if not any(a < match.end() and match.start() < b for a, b in taken)]


def _quoted_place(text, inner):
    """In other marks, with a full stop or comma that was drawn into them; else without marks, if no doubt is left."""
    written = re.escape(inner)
    double = re.sub("['\u2018\u2019]", "", _MARKS)
    form = rf"(?:[{double}]|(?<!\w)['\u2018\u2019]){written}([.,]?)(?:[{double}]|['\u2019](?!\w))"
    match = re.search(form, text) or re.search(form, text, re.IGNORECASE)
    if match:
        return *match.span(), match[1]
    found = _outside_tokens(written, text, re.IGNORECASE)
    if len(found) != 1:
        return None
    start, end = found[0].span()
    beside = text[max(start - 1, 0) : start] + text[end : end + 1]
    if found[0][0] != inner or re.search(f"[{_MARKS}]", beside) or not _unmistakable(inner, text[:start]):
        return None
    return start, end, ""


def _unmistakable(inner, before):
    """Whether words that occur once, in this letter case and without marks, are the quoted ones and no others.

    A word such as "the" or "open" may be anything. Three words of ten letters are no chance, nor are three characters
    of a script without spaces, nor a capital that no start of a sentence explains ("I" is always one).
    """
    letters = sum(map(str.isalpha, inner))
    if len(_UNSPACED_LETTER.findall(inner)) >= 3 or (letters >= 10 and len(inner.split()) >= 3):
        return True
    cased = re.sub(r"\bI\b", "i", inner)
    before = before.rstrip()
    first_counts = bool(before) and before[-1] not in ".!?\u3002\uff01\uff1f"
    return letters >= 3 and any(map(str.isupper, cased if first_counts else cased[1:]))


def _has_word(text, word):
    return word in text and any(_matches(re.escape(word), text, True))


def _matches(pattern, text, whole, flags=0):
    """The matches one behind the other; with `whole` those that find no "cat" in "category".

    Scripts without spaces have no such limit. It is no part of the pattern: its character class takes 10 ms to compile.
    """
    pattern = re.compile(pattern, flags)
    match = pattern.search(text)
    while match:
        start, end = match.span()
        inside = whole and (_joined(text[max(start - 1, 0) : start + 1]) or _joined(text[end - 1 : end + 1]))
        if not inside:
            yield match
        match = pattern.search(text, start + 1 if inside else end)


def _joined(pair):
    return len(pair) == 2 and all(map(_LETTER.match, pair))


def _appended(text, part, tags, bare):
    text = text.rstrip(" ,\uff0c")
    if bare or not text:
        return f"{text} {part}".strip()
    end = text[-1] if text[-1] in ".\u3002" and not tags else ""
    return f"{text[: len(text) - len(end)]}, {part}{end}"
