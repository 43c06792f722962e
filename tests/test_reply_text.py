"""Streaming: deltas join to the final text, characters stay whole, reasoning is apart, stop texts cut anywhere."""

import random

import pytest
from fastqwen.engine.text import Delta, ReplyText
from fastqwen.weights.errors import FastQwenError

from .vocabularies import real_template, real_tokenizer, tiny_tokenizer

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"
CHINESE = "\u4f60\u597d\uff0c\u4e16\u754c\uff01"
REPLACEMENT = "\ufffd"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_tokenizer(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def think(tiny):
    """The two section ids: (open, close)."""
    return tiny.token_id("<think>"), tiny.token_id("</think>")


def byte_ids(tokenizer, data):
    """One token per byte: the finest split there is, in the middle of characters too."""
    table = {tokenizer.decode_bytes([token]): token for token in range(256)}
    return [table[bytes([value])] for value in data]


def random_pushes(rng, ids):
    pushes = []
    while ids:
        size = rng.randrange(0, 5)
        pushes.append(ids[:size])
        ids = ids[size:]
    return pushes


def stream(reply, pushes):
    """Pushes all, finishes, and checks what holds for every stream. Returns the deltas."""
    deltas = [delta for ids in pushes for delta in reply.push(ids)]
    deltas += reply.finish()
    assert all(isinstance(delta, Delta) and delta.text for delta in deltas)
    assert "".join(delta.text for delta in deltas if delta.kind == "answer") == reply.text
    assert "".join(delta.text for delta in deltas if delta.kind == "thinking") == reply.thinking
    assert reply.finish() == []
    return deltas


def answer_of(tokenizer, ids, **kwargs):
    reply = ReplyText(tokenizer, **kwargs)
    stream(reply, [[token] for token in ids])
    return reply.text


def random_characters(rng, count):
    alphabet = ["a", "b", " ", "\n", "\u00e9", "\u4e2d", "\u4e3d", "\u0928\u0947", "\U0001f600", FAMILY, "\u200d"]
    return "".join(rng.choice(alphabet) for _ in range(count))


def test_random_text_in_random_pushes_joins_to_the_text_without_replacement_characters(tiny):
    rng = random.Random(1)
    for _ in range(400):
        text = random_characters(rng, rng.randrange(0, 40))
        ids = rng.choice([tiny.encode_plain(text), byte_ids(tiny, text.encode())])
        text = tiny.decode_bytes(ids).decode()
        reply = ReplyText(tiny)
        deltas = stream(reply, random_pushes(rng, ids))
        assert reply.text == text.strip()
        assert not any(REPLACEMENT in delta.text for delta in deltas)
        assert reply.tokens_used == len(ids) and not reply.stopped


def test_real_tokens_of_chinese_and_joined_emoji_stream_whole():
    tokenizer = real_tokenizer()
    text = f"{CHINESE} {FAMILY} \u0928\u092e\u0938\u094d\u0924\u0947 \U00020000 \U0001f44d\U0001f3fd ok"
    ids = tokenizer.encode_plain(text)
    reply = ReplyText(tokenizer)
    deltas = stream(reply, [[token] for token in ids])
    assert reply.text == text and len(deltas) > 5
    assert not any(REPLACEMENT in delta.text for delta in deltas)


def test_a_cut_inside_a_character_leaves_nothing_of_it(tiny):
    data = (CHINESE + FAMILY).encode()
    for length in range(len(data) + 1):
        text = answer_of(tiny, byte_ids(tiny, data[:length]))
        assert text == data[:length].decode("utf-8", "ignore")


def test_only_really_invalid_bytes_become_replacement_characters(tiny):
    rng, fragments = random.Random(4), b"\x80\xbf\xc3\xa9\xe4\xb8\xad\xed\xa0\xf0\x9f\x98a\xff"
    for _ in range(300):
        data = b"x" + bytes(rng.choices(fragments, k=9)) + b"y"
        ids = byte_ids(tiny, data)
        reply = ReplyText(tiny)
        stream(reply, random_pushes(rng, ids))
        assert reply.text == data.decode("utf-8", "replace")


def test_characters_are_emitted_with_their_last_byte(tiny):
    reply = ReplyText(tiny)
    ids = byte_ids(tiny, "\u4e2d\U0001f600".encode())
    shown = ["".join(delta.text for delta in reply.push([token])) for token in ids]
    assert shown == ["", "", "\u4e2d", "", "", "", "\U0001f600"]


def test_white_space_is_held_until_something_follows(tiny):
    reply = ReplyText(tiny)
    steps = [" \n", "a", " ", " b", "\n", "\n", "c \t", " "]
    shown = ["".join(d.text for d in reply.push(byte_ids(tiny, step.encode()))) for step in steps]
    assert shown == ["", "a", "", "  b", "", "", "\n\nc", ""]
    assert reply.finish() == [] and reply.text == "a  b\n\nc"


def test_thinking_starts_inside_the_reasoning_and_its_end_token_opens_the_answer(tiny, think):
    ids = [*byte_ids(tiny, b"why\n"), think[1], *byte_ids(tiny, b"\n\nbecause")]
    reply = ReplyText(tiny, thinking=True)
    assert stream(reply, [ids]) == [Delta("thinking", "why"), Delta("answer", "because")]
    assert (reply.thinking, reply.text) == ("why", "because")


def test_reasoning_that_never_ends_leaves_an_empty_answer(tiny):
    reply = ReplyText(tiny, thinking=True, stop=["y"])
    assert stream(reply, [byte_ids(tiny, b"why \xe4\xb8")]) == [Delta("thinking", "why")]
    assert reply.text == "" and not reply.stopped


def test_without_thinking_a_leading_end_token_is_dropped(tiny, think):
    assert answer_of(tiny, [think[1], *byte_ids(tiny, b"\n\nyes")]) == "yes"
    assert answer_of(tiny, [*byte_ids(tiny, b"a"), think[1], *byte_ids(tiny, b" b")]) == "a b"


def test_reasoning_opened_by_the_model_stays_out_of_the_answer(tiny, think):
    ids = [think[0], *byte_ids(tiny, b"hm"), think[1], *byte_ids(tiny, b"A "), think[0], *byte_ids(tiny, b" hm")]
    ids += [think[1], *byte_ids(tiny, b"B")]
    rng = random.Random(6)
    for _ in range(50):
        reply = ReplyText(tiny)
        stream(reply, random_pushes(rng, ids))
        assert (reply.thinking, reply.text) == ("hm hm", "A B")


def test_section_tokens_never_appear_as_text(tiny, think):
    rng = random.Random(7)
    letters = byte_ids(tiny, b"ab \n")
    for _ in range(300):
        ids = [rng.choice([*letters, *think, tiny.token_id("<|im_end|>")]) for _ in range(rng.randrange(12))]
        reply = ReplyText(tiny, thinking=rng.random() < 0.5)
        for delta in stream(reply, random_pushes(rng, ids)):
            assert "<" not in delta.text


def test_a_character_cut_off_by_the_end_of_reasoning_is_dropped(tiny, think):
    reply = ReplyText(tiny, thinking=True)
    stream(reply, [[*byte_ids(tiny, b"a\xe4\xb8"), think[1], *byte_ids(tiny, b"b")]])
    assert (reply.thinking, reply.text) == ("a", "b")


def test_control_tokens_are_no_text_and_tags_are(tiny):
    names = ("<|im_start|>", "<tool_call>", "<|im_end|>", "</tool_call>", "<|endoftext|>")
    ids = [tiny.token_id(name) for name in names]
    assert answer_of(tiny, ids) == "<tool_call></tool_call>"


def test_typed_tags_of_reasoning_are_text(tiny):
    assert answer_of(tiny, byte_ids(tiny, b"a <think> b </think>")) == "a <think> b </think>"


def test_stop_text_cuts_at_every_position_whatever_the_pushes(tiny):
    rng, stop = random.Random(9), "\u4e2dEND\U0001f600"
    for before in range(8):
        text = f"{CHINESE} E\u4e2dE"[:before]
        ids = byte_ids(tiny, (text + stop + " more").encode())
        needed = len((text + stop).encode())
        for _ in range(6):
            reply = ReplyText(tiny, stop=[stop])
            stream(reply, random_pushes(rng, ids))
            assert reply.stopped and reply.tokens_used == needed
            assert reply.text == text.strip()


def test_every_two_push_boundary_gives_the_same_cut(tiny):
    ids = byte_ids(tiny, " x\u00e9 \n\nUser\U0001f600: y\n\nUser\U0001f600:".encode())
    for boundary in range(len(ids) + 1):
        reply = ReplyText(tiny, stop=("\n\nUser\U0001f600:",))
        stream(reply, [ids[:boundary], ids[boundary:]])
        assert reply.text == "x\u00e9" and reply.stopped and reply.tokens_used == 16


def test_stop_text_in_the_middle_of_a_token_cuts_there_and_uses_that_token(tiny):
    ids = tiny.encode_plain("hello hello hello")
    assert len(ids) == 3
    reply = ReplyText(tiny, stop="lo h")
    assert stream(reply, [ids]) == [Delta("answer", "hel")]
    assert reply.tokens_used == 2


def test_of_two_stop_texts_in_one_token_the_first_complete_one_cuts(tiny):
    assert len(tiny.encode_plain("hello")) == 1
    for ids in (tiny.encode_plain("hello"), byte_ids(tiny, b"hello")):
        assert answer_of(tiny, ids, stop=["hello", "l"]) == "he"


def test_nothing_is_consumed_after_a_stop_text(tiny):
    reply = ReplyText(tiny, stop="b")
    assert reply.push(byte_ids(tiny, b"abc")) == [Delta("answer", "a")]
    assert reply.tokens_used == 2 and reply.push(byte_ids(tiny, b"def")) == []
    assert reply.tokens_used == 2 and reply.finish() == [] and reply.text == "a"


def test_a_tail_that_might_become_a_stop_text_is_held_back_and_released(tiny):
    reply = ReplyText(tiny, stop=["abac"])
    shown = ["".join(d.text for d in reply.push([token])) for token in byte_ids(tiny, b"xabaxabab")]
    assert shown == ["x", "", "", "", "abax", "", "", "", "ab"]
    assert reply.finish() == [Delta("answer", "ab")] and reply.text == "xabaxabab" and not reply.stopped


def first_complete(text, stops):
    """The oracle: characters one by one until a stop text is complete; where it starts, and where it ends."""
    begin = len(text) - len(text.lstrip())
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop) and len(stop) <= end]
        starts = [start for start in starts if text[start:end].strip() or start >= begin]
        if starts:
            return min(starts), end
    return None


def test_random_stop_texts_cut_where_the_first_is_complete(tiny):
    rng, hits = random.Random(12), 0
    for _ in range(3000):
        text = "".join(rng.choices("ab \n\u4e2d", k=rng.randrange(0, 16)))
        stops = ["".join(rng.choices("ab \n\u4e2d", k=rng.randrange(1, 5))) for _ in range(rng.randrange(4))]
        reply = ReplyText(tiny, stop=stops)
        deltas = stream(reply, random_pushes(rng, byte_ids(tiny, text.encode())))
        cut = first_complete(text, stops)
        hits += cut is not None
        assert reply.stopped == (cut is not None)
        assert reply.text == (text if cut is None else text[: cut[0]]).strip(), (text, stops)
        assert reply.tokens_used == len((text if cut is None else text[: cut[1]]).encode())
        assert not any(stop in reply.text for stop in stops if stop.strip() == stop)
        assert "".join(delta.text for delta in deltas) == reply.text
    assert 500 < hits < 2900


def test_stop_texts_do_not_cut_the_reasoning(tiny, think):
    reply = ReplyText(tiny, thinking=True, stop=["END"])
    stream(reply, [[*byte_ids(tiny, b"an END here"), think[1], *byte_ids(tiny, b"yes END no")]])
    assert (reply.thinking, reply.text, reply.stopped) == ("an END here", "yes", True)


def test_white_space_stop_is_not_found_in_front_of_the_answer(tiny):
    assert answer_of(tiny, byte_ids(tiny, b"\n\nfirst\n\nsecond"), stop="\n\n") == "first"
    assert answer_of(tiny, byte_ids(tiny, b"\nUser: hi"), stop="\nUser:") == ""


def test_stop_text_at_the_very_start_leaves_an_empty_answer(tiny):
    reply = ReplyText(tiny, stop="ab")
    assert stream(reply, [byte_ids(tiny, b"abc")]) == [] and reply.stopped and reply.tokens_used == 2


@pytest.mark.parametrize("stop", ["", [""], ["a", ""], [3], [None]])
def test_stop_text_that_is_empty_or_no_string_is_refused(stop, tiny):
    with pytest.raises(FastQwenError, match="stop text"):
        ReplyText(tiny, stop=stop)


def test_unknown_id_is_told_and_leaves_earlier_text_intact(tiny):
    reply = ReplyText(tiny)
    with pytest.raises(FastQwenError, match="Token id 9999"):
        reply.push([*byte_ids(tiny, b"ab"), 9999])
    assert reply.tokens_used == 2 and reply.text == "ab"


def test_pushing_after_the_end_is_a_programming_error(tiny):
    reply = ReplyText(tiny)
    reply.finish()
    with pytest.raises(RuntimeError, match="finished"):
        reply.push([97])


def test_prompt_and_reply_agree_on_where_the_reply_starts():
    tokenizer = real_tokenizer()
    for thinking in (False, True):
        prompt = real_template().prompt_ids("Hi", thinking=thinking)
        last = next(token for token in reversed(prompt) if tokenizer.token_id("<think>") <= token)
        assert (last == tokenizer.token_id("<think>")) == thinking
        reply = ReplyText(tokenizer, thinking=thinking)
        stream(reply, [tokenizer.encode_plain("Hello.")])
        assert (reply.thinking, reply.text) == (("Hello.", "") if thinking else ("", "Hello."))
