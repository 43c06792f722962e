"""Captions of images for training sets: what the model is asked, and its reply made fit for a caption file.

A caption is one line. The text functions need no model: `finish` turns a reply into a caption, `captions` asks for one
per image. caption_files.py finds the images and writes the files.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..weights import FastQwenError
from .report import LENGTH

STYLES = {
    "short": "Describe this image in one short sentence. Write only the sentence.",
    "detailed": "Describe this image in one detailed paragraph: the subject, its surroundings, colours, light and "
    "composition. Write only the paragraph.",
    "tags": "List tags for this image: short lowercase descriptions of what is visible, separated by commas. "
    "Write only the tags.",
    "booru": "List booru tags for this image: lowercase tags as on an image board, separated by commas, the most "
    "important first. Write only the tags.",
    "json": 'Describe this image as a JSON object with the keys "caption" (one sentence) and "tags" (a list of short '
    "strings). Write only the JSON.",
}
TAG_STYLES = ("tags", "booru")
# Scripts without spaces: each of their characters counts as a word.
_IDEOGRAPH = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_WORD = re.compile(f"[{_IDEOGRAPH}][\u3001\u3002\uff01\uff0c\uff1f]?|[^\\s{_IDEOGRAPH}]+")
_SENTENCE_END = re.compile("[.!?\u2026\u3002\uff01\uff1f][\"')\\]\u201d\u2019]*$")
_BULLET = re.compile(r"^(?:[-*\u2022]\s+|\d+[.)]\s+)")
_FENCE = re.compile(r"^```\w*\s*\n(.*?)\n?```$", re.DOTALL)
_QUOTES = {'"': '"', "\u201c": "\u201d", "`": "`"}


@dataclass(frozen=True)
class CaptionOptions:
    """How an image is asked about and what becomes of the reply.

    style      a key of STYLES: the question, and how the reply is read. None with a prompt of one's own: plain text
    prompt     the question instead of the style's; "" asks nothing, the image alone is sent
    trigger    put first, as it is written; a tag equal to it is dropped
    prefix     put between the trigger and the reply; suffix behind the reply. Tags in the tag styles
    exclude    tags that are left out (tag styles and JSON), whatever their case
    max_words  the reply is cut behind the last whole sentence, else the last word, within so many words; in the tag
               styles behind the last tag. Trigger, prefix and suffix do not count
    """

    style: str | None = None
    prompt: str | None = None
    trigger: str = ""
    prefix: str = ""
    suffix: str = ""
    exclude: tuple[str, ...] = ()
    max_words: int | None = None

    def __post_init__(self):
        if self.style is not None and self.style not in STYLES:
            raise FastQwenError(f"The caption style {self.style!r} is unknown: choose one of {', '.join(STYLES)}.")
        if self.max_words is not None and self.max_words < 1:
            raise FastQwenError(f"max_words is {self.max_words}: at least 1 word is needed.")
        if self.exclude and self.reads_as not in (*TAG_STYLES, "json"):
            raise FastQwenError(
                "exclude leaves out tags, and a sentence has none: choose the style tags, booru or json, or ask for "
                "the words to be avoided in the prompt."
            )

    @property
    def reads_as(self) -> str:
        """The style by which a reply is read; "plain" for a prompt without a style."""
        return self.style or ("short" if self.prompt is None else "plain")

    @property
    def question(self) -> str:
        """The text that goes beside the image."""
        return STYLES[self.reads_as] if self.prompt is None else self.prompt


def captions(engine, images: Iterable, options: CaptionOptions, **reply_options) -> Iterator[str]:
    """One caption per image, as they are finished.

    images         tensors [H, W, C], uint8 or floats from 0 to 1
    reply_options  as of Engine.reply: settings, seed, max_tokens, ...

    Raises FastQwenError for a model without a vision tower and a reply that is no caption.
    """
    ask = asker(engine, options, **reply_options)
    for image in images:
        yield ask(image)


def asker(engine, options: CaptionOptions, **reply_options) -> Callable[[object], str]:
    """The function from an image to its caption. Raises FastQwenError for a model without a vision tower."""
    if engine.config.vision is None:
        raise FastQwenError(
            "This model takes no images: its checkpoint has no vision tower (tensors 'model.visual.*'); use one that "
            "has, such as the released Qwen3.5 files."
        )

    def ask(image):
        result = engine.reply(options.question, images=[image], **reply_options).result()
        return finish(result.text, options, cut=result.report.stop_reason == LENGTH)

    return ask


def finish(text: str, options: CaptionOptions, *, cut: bool = False) -> str:
    """A model's reply -> the caption, one line. cut: the reply ended at the token limit.

    Raises FastQwenError for a reply without text and, in the style json, one that is no JSON object.
    """
    text = text.strip()
    if not text:
        why = "the token limit was reached before the answer began: raise it" if cut else "ask in another way"
        raise FastQwenError(f"The model wrote nothing ({why}).")
    if options.reads_as == "json":
        return _json(text, options, cut)
    if options.reads_as in TAG_STYLES:
        tags = _finish_tags(split_tags(text, cut=cut), options, whole=True)
        if not tags:
            raise FastQwenError(f"The model wrote no tag that is not excluded: {shown(text)}")
        return ", ".join(tags)
    return _finish_prose(text, options)


def split_tags(text: str, *, cut: bool = False) -> list[str]:
    """Tags of a reply: lowercase, in order, without duplicates; lists, numbers, quotes and full stops are undone.

    cut: the last tag may be half a tag, and is dropped where there are others.
    """
    text = _unfenced(text)
    pieces = [
        _BULLET.sub("", piece.strip()) for line in text.splitlines() for piece in re.split("[,;\uff0c\u3001]", line)
    ]
    if cut and len(pieces) > 1:
        pieces.pop()
    return unique(_tag(piece) for piece in pieces)


def unique(tags: Iterable[str]) -> list[str]:
    """The tags without empty ones and repetitions. `long_hair` and `Long hair` are one tag, as it was written first."""
    first: dict[str, str] = {}
    for tag in tags:
        if tag:
            first.setdefault(tag_key(tag), tag)
    return list(first.values())


def tag_key(tag: str) -> str:
    """What two spellings of a tag have in common."""
    return " ".join(tag.replace("_", " ").casefold().split())


def cut_words(text: str, count: int) -> str:
    """The first sentences within `count` words, or the first `count` words where not even one sentence fits."""
    words = list(_WORD.finditer(text))
    if len(words) <= count:
        return text
    for index in range(count - 1, -1, -1):
        follows = text[words[index + 1].start()]
        if _SENTENCE_END.search(words[index].group()) and not follows.islower():
            return text[: words[index].end()]
    return text[: words[count - 1].end()].rstrip(" ,;:\uff0c\u3001-")


def shown(text: str, limit: int = 80) -> str:
    """The beginning of a reply, for a message."""
    line = " ".join(text.split())
    return repr(line if len(line) <= limit else line[:limit] + "...")


def _tag(piece):
    piece = " ".join(piece.split()).strip("\"'`*\u201c\u201d ").rstrip(".\u3002 ")
    return piece.lower()


def _finish_tags(tags: Sequence[str], options: CaptionOptions, whole: bool) -> list[str]:
    """Excluded tags out, words counted, trigger first; prefix and suffix where the tags are the whole caption."""
    unwanted = {tag_key(tag) for tag in options.exclude}
    kept, words = [], 0
    for tag in tags:
        if tag_key(tag) in unwanted:
            continue
        words += len(_WORD.findall(tag))
        if whole and options.max_words is not None and words > options.max_words:
            kept = kept or [cut_words(tag, options.max_words)]
            break
        kept.append(tag)
    trigger = " ".join(options.trigger.split())
    if not whole:
        return unique([trigger, *kept])
    return unique([trigger, *split_tags(options.prefix), *kept, *split_tags(options.suffix)]) if kept else []


def _finish_prose(text: str, options: CaptionOptions) -> str:
    text = " ".join(_unfenced(text).split())
    closing = _QUOTES.get(text[0]) if text else None
    if closing and len(text) > 1 and text[-1] == closing and closing not in text[1:-1]:
        text = text[1:-1].strip()
    if not text:
        raise FastQwenError("The model wrote nothing but quotation marks: ask in another way.")
    if options.max_words is not None:
        text = cut_words(text, options.max_words)
    prefix, suffix = (" ".join(part.split()) for part in (options.prefix, options.suffix))
    text = f"{prefix} {text}" if prefix else text
    if suffix:
        text += suffix if suffix[0] in ".,;:!?" else f" {suffix}"
    trigger = " ".join(options.trigger.split())
    return f"{trigger}, {text}" if trigger else text


def _json(text: str, options: CaptionOptions, cut: bool) -> str:
    value = _object(text, cut)
    caption, tags = value.get("caption"), value.get("tags")
    has_caption = isinstance(caption, str) and bool(caption.strip())
    has_tags = isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)
    if options.prompt is None and not (has_caption and has_tags):
        raise FastQwenError(f"The model's JSON lacks a 'caption' text or a 'tags' list of texts: {shown(text)}")
    if options.trigger and not (has_caption or has_tags):
        raise FastQwenError(f"The model's JSON has no 'caption' and no 'tags' for the trigger: {shown(text)}")
    if has_caption:
        value["caption"] = _finish_prose(caption, options)
    if has_tags:
        value["tags"] = _finish_tags(unique(_tag(tag) for tag in tags), options, whole=False)
    return json.dumps(value, ensure_ascii=False)


def _object(text, cut):
    """The JSON object of a reply: alone, in a code fence, or between other words."""
    decoder = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)
    try:
        return decoder.raw_decode(text, text.index("{"))[0]
    except (ValueError, RecursionError):
        why = " (cut at the token limit: raise it)" if cut else ""
        raise FastQwenError(f"The model did not write a JSON object{why}: {shown(text)}") from None


def _finite(text):
    value = float(text)
    return value if math.isfinite(value) else _no_constant(text)


def _no_constant(name):
    raise ValueError(f"{name} is no JSON value")


def _unfenced(text):
    text = text.strip()
    fence = _FENCE.match(text)
    return fence.group(1).strip() if fence else text
