"""A model's reply to the prompt in it: no preamble, no Markdown, no quotation marks around the whole, one line."""

import json
import re

from .verbatim import QUOTES

_FENCE = re.compile(r"^\s*```[^\n]*\n(.*?)\n?```\s*$", re.DOTALL)
_FENCE_LINE = re.compile(r"^[ \t]*```[\w+-]*[ \t]*$", re.MULTILINE)
_JSON_KEYS = {"prompt", "positive_prompt", "positive", "enhanced_prompt", "text", "caption", "description"}
_THING = r"(?:prompt|caption|description|version|rewrite|output|result|tags?)s?"
_NUMBERED = rf"(?:{_THING}|option|variant|variation)(?: (?:#|no\. ?)?\d{{1,2}})?"
_KIND = (
    r"(?:(?:the|your|a|an|my|new|final|full|enhanced|improved|refined|rewritten|revised|expanded|detailed|optimi[sz]ed|"
    r"polished|positive|image|video|text-to-image|text-to-video|english|chinese|flux|sdxl|wan|ltx-2)\s+)*"
)
_HERE = (
    r"(?:here(?:['\u2019]s| is| are)|below is)\b[^\n:.]{0,100}(?:"
    rf"\b{_THING}\b[^\n:.]{{0,60}}:\s*|:\s*\n)|"
    r"here(?:['\u2019]s| is) (?:it|one|(?:the|your) idea)\b[^\n:.]{0,60}:\s*|"
    r"here (?:it is|you go|you are)\s*[:!]\s*|"
    r"i(?:['\u2019]ve| have)\b[^\n:.]{0,100}(?:"
    rf"\b(?:{_THING}|it|one|idea)\b[^\n:.]{{0,60}}:\s*|:\s*\n)"
)
_YES = r"(?:sure(?: thing)?|certainly|of course|okay|ok|absolutely|great|got it)\b"
_PREAMBLES = (
    r"#{1,6} [^\n]{1,60}\n\s*",  # a title
    # A yes goes with the introduction behind it or is a line of its own; else it may begin what is told.
    rf"{_YES}[^\n:]{{0,40}}?[!,.:]+\s+(?:{_HERE})",
    rf"{_YES}[!,.:]+[ \t]*\n\s*",
    _HERE,
    rf"{_KIND}{_NUMBERED}(?: \([^)\n]*\))?\s*[*_]*:\s*(?=\S|\n)",
    # "Good, (here is) the (optimised) prompt:" in Chinese, with either colon.
    "(?:\u597d\u7684[\uff0c,\u3002\uff01!]*\\s*)?[^\\n:\uff1a\uff0c,\u3002]{0,16}"
    "(?:\u63d0\u793a\u8bcd|\u63cf\u8ff0)[^\\n:\uff1a\uff0c,\u3002]{0,8}[:\uff1a]\\s*",
)
_PREAMBLE = re.compile(rf"^[\s*_>]*(?:{'|'.join(_PREAMBLES)})[*_]*\s*", re.IGNORECASE)
_NEGATIVE = re.compile(
    r"(?:^[\s*#>-]*negative(?: prompt)?|\bnegative prompt)\s*[*_]*\s*[:\uff1a].*",
    re.IGNORECASE | re.MULTILINE | re.DOTALL,
)
_CHATTER = re.compile(
    r"^[\s*_(]*(?:let me know|would you like|feel free|i hope|if you(?:['\u2019]d)? (?:like|want|need)|note\s*:|"
    r"this (?:prompt|version|description) )",
    re.IGNORECASE,
)
_RULE = re.compile(r"^\s*(?:[-*_=]\s*){3,}$")
_LINE_MARK = re.compile(r"^\s*(?:#{1,6}\s+|>\s+|[-*+\u2022]\s+|\d{1,2}[.)]\s+)")


def clean(reply, tags=False):
    """The prompt inside a reply, possibly empty. With `tags` lines are joined by commas, otherwise by spaces."""
    text = reply.strip()
    fence = _FENCE.match(text)
    text = fence[1].strip() if fence else _FENCE_LINE.sub("", text).replace("```", "")
    text = _without_preamble(text)
    text = _NEGATIVE.sub("", text)
    text = _without_chatter(text)
    lines = [_LINE_MARK.sub("", line).strip() for line in text.splitlines() if not _RULE.match(line)]
    text = _plain(_joined([line for line in lines if line], tags))
    return _without_preamble(text)


def unpacked(reply):
    """The prompt of a reply that is a JSON object with one text under a name such as "prompt"; else the reply."""
    text = _without_preamble(reply)
    fence = _FENCE.match(text)
    text = fence[1].strip() if fence else text
    if not (text.startswith("{") and text.endswith("}")):
        return reply
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return reply
    texts = [value for key, value in data.items() if re.sub(r"[\s-]", "_", key.lower()) in _JSON_KEYS]
    return texts[0] if len(texts) == 1 and isinstance(texts[0], str) else reply


def last_whole(text, tags=False):
    """A text that was cut off by its length, up to its last whole sentence or tag; all of it if little would stay."""
    ends = [match.end() for match in re.finditer(",", text)] if tags else []
    ends = ends or [match.end() for match in re.finditer("[.!?](?=\\s|$)|[\u3002\uff01\uff1f]", text)]
    if not ends or ends[-1] < len(text) / 3:
        return text
    return text[: ends[-1]].rstrip(" ,")


def _without_preamble(text):
    """Preambles and marks around the whole come in any order, and more than one deep."""
    for _ in range(4):
        before = text
        text = _unquoted(text.strip())
        match = _PREAMBLE.match(text)
        if match and text[match.end() :].strip():
            text = text[match.end() :].strip()
        if text == before:
            break
    return text


def _unquoted(text):
    for opening, closing in (*QUOTES.items(), ("'", "'"), ("`", "`"), ("**", "**")):
        inner = text[len(opening) : -len(closing)]
        wrapped = text.startswith(opening) and text.endswith(closing) and inner.strip()
        # A mark inside shows that the first one closes before the end: "a" and "b".
        if wrapped and opening not in inner and (closing == "'" or closing not in inner):
            return inner.strip()
    return text


def _without_chatter(text):
    paragraphs = re.split(r"\n\s*\n", text)
    while len(paragraphs) > 1 and _CHATTER.match(paragraphs[-1]):
        paragraphs.pop()
    return "\n\n".join(paragraphs)


def _plain(text):
    """Without bold, italic and code marks. Two underscores stay: they are wildcards here."""
    text = re.sub(r"\*\*(\S(?:.*?\S)?)\*\*", r"\1", text)
    text = re.sub(r"(?<![\w*])\*(\S(?:[^*]*?\S)?)\*(?![\w*])", r"\1", text)
    return re.sub(r"`([^`]+)`", r"\1", text).replace("**", "")


def _joined(lines, tags):
    if not tags:
        return " ".join(lines)
    tag_list = [tag.strip() for tag in ",".join(lines).split(",")]
    return ", ".join(tag for tag in tag_list if tag)
