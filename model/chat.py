"""Messages to prompt ids through a chat template, with every special token coming from the template.

User text stays text. Before rendering, each name of an added token in it is broken by a marker, a Unicode noncharacter
that occurs in none of the messages; after rendering, the text is cut at the unbroken names, which only the template
can have written, and the marker is dropped from the rest. So the ids equal those of the Hugging Face library's
apply_chat_template wherever the messages spell no special token.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import jinja2
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..weights.checkpoint import read_json
from ..weights.errors import FastQwenError
from ..weights.files import is_file, is_folder, not_opened
from .tokenizer import Tokenizer

OWN_TEMPLATE = Path(__file__).with_name("chat_template.jinja")
REQUIRED_NAMES = ("<|im_start|>", "<|im_end|>", "<think>", "</think>")
NONCHARACTERS = tuple(map(chr, range(0xFDD0, 0xFDF0)))
MESSAGE_KEYS = {"system": {"role", "content"}, "user": {"role", "content"}}
MESSAGE_KEYS["assistant"] = {"role", "content", "reasoning_content"}
PART_TYPES = {"text": "text", "image": "image", "image_url": "image", "video": "video"}


class ChatTemplate:
    """A chat template bound to a tokenizer.

    `source` is the Jinja text, by default our own rendering of the format in Qwen3.5's model card; `origin` is the
    name that errors give it. Raises FastQwenError when the template does not parse, or when our own is to be used
    with a tokenizer that lacks its tokens.
    """

    def __init__(self, tokenizer: Tokenizer, source: str | None = None, origin: str = "the built-in chat template"):
        self._tokenizer = tokenizer
        self._origin = origin
        if source is None:
            source = OWN_TEMPLATE.read_text(encoding="utf-8")
            missing = [name for name in REQUIRED_NAMES if tokenizer.token_id(name) is None]
            if missing:
                raise FastQwenError(
                    f"The tokenizer of '{tokenizer.origin}' has no {' or '.join(missing)}, which the chat format "
                    "needs: use the tokenizer of a Qwen3.5, 3.6 or 3.8 checkpoint."
                )
        self._source = source
        try:
            self._template = _environment().from_string(source)
        except Exception as error:  # beside its own errors Jinja raises Python's: nested too deep, numbers too long
            raise FastQwenError(
                f"The chat template of '{origin}' does not parse ({_reason(error)}): replace it."
            ) from None

    @classmethod
    def load(cls, path: Path, tokenizer: Tokenizer) -> "ChatTemplate":
        """The checkpoint's own template if it or its tokenizer's folder brings one, else ours.

        `path` is the checkpoint's file or folder. In each folder chat_template.jinja goes before the entry
        chat_template of tokenizer_config.json. Raises FastQwenError naming a file that is there but unusable.
        """
        beside = Path(path) if is_folder(Path(path)) else Path(path).parent
        for folder in (beside, tokenizer.folder):
            found = _template_of(folder) if folder is not None else None
            if found is not None:
                return cls(tokenizer, *found)
        return cls(tokenizer)

    def prompt_ids(
        self,
        prompt: str | Sequence[dict],
        system: str | None = None,
        thinking: bool = False,
        raw: bool = False,
        images: int = 0,
        videos: int = 0,
    ) -> list[int]:
        """The token ids of a prompt, ready for the model.

        `prompt` is one user message, or a conversation: messages {"role", "content", "reasoning_content"} with roles
        system (first only), user and assistant; a content is a string or a list of {"type": "text", "text": ...},
        {"type": "image"} and {"type": "video"}, whose pixels travel apart from the prompt. `system` (ignored when
        empty) goes in front. `images` and `videos` put that many places, images first, before the text
        of a string prompt.
        `thinking` opens the reply inside a reasoning section, otherwise an empty one is closed for it.
        `raw` applies no template: the string is the whole prompt, and names of special tokens in it are meant.

        Raises FastQwenError for malformed messages, or when the template refuses them.
        """
        if raw:
            return self._raw_ids(prompt, system, images + videos)
        messages = _conversation(prompt, system, [{"type": "image"}] * images + [{"type": "video"}] * videos)
        marker = self._unused_character(messages)
        marked = [self._marked(message, marker) for message in messages]
        return self._tokenizer.encode_template(self._render(marked, thinking), marker)

    def _raw_ids(self, prompt, system, images):
        if not isinstance(prompt, str) or not prompt:
            raise FastQwenError("A raw prompt must be a string that is not empty: write it, or use the chat template.")
        if system or images:
            raise FastQwenError(
                "A raw prompt takes no system text and places no images: write them into it, or use the chat template."
            )
        return self._tokenizer.encode_template(prompt)

    def _unused_character(self, messages):
        used = set(self._source + json.dumps(messages, ensure_ascii=False))
        free = next((character for character in NONCHARACTERS if character not in used), None)
        if free is None:
            raise FastQwenError(
                "The prompt holds all 32 noncharacters U+FDD0 to U+FDEF, one of which must be free: remove one."
            )
        return free

    def _marked(self, message, marker):
        """The message with its texts' token names broken. Role and part types are fixed words and stay."""
        message, mark = _reasoning_apart(message, marker), self._tokenizer.mark_names
        if "reasoning_content" in message:
            message["reasoning_content"] = mark(message["reasoning_content"], marker)
        if isinstance(message["content"], str):
            message["content"] = mark(message["content"], marker)
        else:
            message["content"] = [
                part | {"text": mark(part["text"], marker)} if part["type"] == "text" else part
                for part in message["content"]
            ]
        return message

    def _render(self, messages, thinking):
        try:
            return self._template.render(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=True,
                enable_thinking=bool(thinking),
                **self._tokenizer.named,
            )
        except Exception as error:  # a template is a program of the checkpoint's author: it can fail in any way
            raise FastQwenError(
                f"The chat template of '{self._origin}' refused the messages: {_reason(error)}."
            ) from error


def _reason(error):
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def _conversation(prompt, system, places):
    """A list of new messages in one form: known keys only, contents strings or lists of typed parts."""
    if isinstance(prompt, str):
        text = {"type": "text", "text": prompt}
        messages = [{"role": "user", "content": [*places, text] if places else prompt}]
    elif not isinstance(prompt, (list, tuple)) or not prompt:
        raise FastQwenError(f"A prompt must be a string or a list of messages with at least one, not {prompt!r:.80}.")
    elif places:
        raise FastQwenError("Messages place their images themselves: put {'type': 'image'} parts into a content.")
    else:
        messages = [_message(message, f"Message {number}") for number, message in enumerate(prompt, start=1)]
    if system:
        if not isinstance(system, str):
            raise FastQwenError(f"The system text must be a string, not {type(system).__name__}.")
        messages.insert(0, {"role": "system", "content": system})
    roles = [message["role"] for message in messages]
    if "system" in roles[1:]:
        raise FastQwenError("A conversation takes one system text, as its first message: join them there.")
    if "user" not in roles:
        raise FastQwenError("A conversation needs a user message: add one.")
    return messages


def _message(message, where):
    role = message.get("role") if isinstance(message, dict) else None
    if not isinstance(role, str) or role not in MESSAGE_KEYS:
        raise FastQwenError(f"{where} must be a dict with the role system, user or assistant, not {message!r:.80}.")
    unknown = set(message) - MESSAGE_KEYS[role]
    if unknown:
        raise FastQwenError(f"{where} ({role}) has the unsupported key {sorted(map(str, unknown))[0]!r}: remove it.")
    content = message.get("content")
    if content is None:
        content = ""
    elif isinstance(content, (list, tuple)):
        content = [_part(part, where) for part in content]
    elif not isinstance(content, str):
        raise FastQwenError(f"{where} ({role}) has a content that is no string or list of parts: {content!r:.80}.")
    done = {"role": role, "content": content}
    if message.get("reasoning_content") is not None:
        if not isinstance(message["reasoning_content"], str):
            raise FastQwenError(f"{where} ({role}) has a reasoning_content that is no string: write it as text.")
        done["reasoning_content"] = message["reasoning_content"]
    return done


def _part(part, where):
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or kind not in PART_TYPES:
        raise FastQwenError(f"{where} has a part that is of no type among {', '.join(PART_TYPES)}: {part!r:.80}.")
    if kind != "text":
        return {"type": PART_TYPES[kind]}
    if not isinstance(part.get("text"), str):
        raise FastQwenError(f"{where} has a text part whose 'text' is no string: {part!r:.80}.")
    return {"type": "text", "text": part["text"]}


def _reasoning_apart(message, marker):
    """Moves reasoning written inline as <think>...</think> in an assistant's text to reasoning_content.

    The template would do it itself, were the two names not broken by then. It splits the trimmed text and keeps the
    spaces in front of the answer, which a second trim would take away: the marker, no white space, holds them.
    """
    message, content = dict(message), message["content"]
    if not isinstance(content, str) and all(part["type"] == "text" for part in content):
        content = "".join(part["text"] for part in content)
    if message["role"] != "assistant" or "reasoning_content" in message or "</think>" not in content:
        return message
    content = content.strip()
    reasoning = content.partition("</think>")[0].rstrip("\n").rpartition("<think>")[2].lstrip("\n")
    answer = content.rpartition("</think>")[2].lstrip("\n")
    return message | {
        "reasoning_content": reasoning,
        "content": marker + answer if answer[:1].isspace() else answer,
    }


class _Generation(Extension):
    """Reads through {% generation %} blocks, which mark training targets and print their body as it is."""

    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment():
    """The Jinja dialect of Hugging Face chat templates; sandboxed, for a template is code from a download."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message):
    raise jinja2.TemplateError(message)


def _template_of(folder):
    """(source, origin) of a folder's chat template, or None."""
    file = folder / "chat_template.jinja"
    if is_file(file):
        try:
            return file.read_text(encoding="utf-8"), str(file)
        except OSError as error:
            raise not_opened(file, error) from None
        except UnicodeDecodeError as error:
            raise FastQwenError(f"'{file}' cannot be read ({error}): download the file again.") from None
    file = folder / "tokenizer_config.json"
    source = read_json(file).get("chat_template") if is_file(file) else None
    if isinstance(source, list):
        named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
        if not isinstance(named.get("default"), str):
            raise FastQwenError(f"'{file}' has chat templates {sorted(map(str, named))} but no 'default': name one so.")
        source = named["default"]
    if source is not None and not isinstance(source, str):
        raise FastQwenError(f"'{file}' has a chat_template that is not text: download the file again.")
    return None if source is None else (source, str(file))
