"""The tokenizer on text: equal to its peers, and no special token ever comes from ordinary text."""

import random
import unicodedata

import pytest
import tokenizers
from fastqwen.model.tokenizer import Tokenizer, load_tokenizer
from fastqwen.model.tokenizer_sources import from_tokenizer_json
from fastqwen.weights.errors import FastQwenError

from .plain_texts import TEXTS, random_text
from .vocabularies import peer_encoder, real_source, real_tokenizer, tiny_added, tiny_json, tiny_tokenizer, write_json


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_tokenizer(tmp_path_factory.mktemp("tiny"))


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
    seen = real_source()[1]
    assert seen == sorted(seen) and seen[-1] == (248044, 248044) and 5 < len(seen) < 50


def test_marked_text_holds_no_name_and_only_gains_markers():
    rng, marker = random.Random(3), "\ufdd7"
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


def test_names_that_overlap_are_all_broken(tmp_path):
    data = tiny_json()
    data["added_tokens"] += [
        tiny_added()[0] | {"id": 300 + i, "content": name} for i, name in enumerate(["<a><b>", "<b>c", "><"])
    ]
    tokenizer = Tokenizer(from_tokenizer_json(write_json(tmp_path / "tokenizer.json", data)))
    for text in ("<a><b>c", "<|im_<|im_end|>end|><<|im_end|>|im_end|>"):
        assert tokenizer.encode_template(tokenizer.mark_names(text, "\ufdd0"), "\ufdd0") == tokenizer.encode_plain(text)


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


def test_half_a_character_is_refused_with_its_place(tiny):
    with pytest.raises(FastQwenError, match=r"half a character \(U\+D83D\) after 'ab'"):
        tiny.encode_plain("ab\ud83d")


def test_hole_in_the_vocabulary_is_an_unknown_id(tmp_path):
    data = tiny_json()
    data["added_tokens"].append(tiny_added()[0] | {"id": 300, "content": "<|far|>"})
    tokenizer = Tokenizer(from_tokenizer_json(write_json(tmp_path / "tokenizer.json", data)))
    assert tokenizer.size == 301 and tokenizer.decode_bytes([300, 104]) == b"<|far|>h"
    with pytest.raises(FastQwenError, match="Token id 280 is not in the vocabulary"):
        tokenizer.decode_bytes([280])
