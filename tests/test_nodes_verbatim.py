"""Parts that must survive letter for letter: what is one, where it is put back, and that nothing is lost in silence."""

import random
import re
import time

import pytest
from fastqwen.nodes.verbatim import WORD, parts_to_keep, put_back, split_words


def texts(idea, keep=""):
    return [part.text for part in parts_to_keep(idea, split_words(keep))]


def rewritten(idea, keep, reply, tags=False):
    """The text, and what of it was reported as lost."""
    text, lost = put_back(reply, parts_to_keep(idea, split_words(keep)), tags)
    return text, [part.text for part in lost]


@pytest.mark.parametrize(
    "idea,keep,reply,text",
    [
        ('a "Fox" hat', "fox", 'A sign "Fox" hangs.', 'A sign "Fox" hangs, fox.'),
        ('"red" (red:1.3)', "", '"red" ball', '"red" ball, (red:1.3)'),
        ("a girl (smile:1.2), (smile:1.4)", "", "A girl, smile", "A girl, (smile:1.2), (smile:1.4)"),
        ("(fox:1.3), (red fox:1.2)", "", "a red fox, a fox", "a (red fox:1.2), a (fox:1.3)"),
        ("((fox:1.2) snow:1.3), (fox:1.2)", "", "((fox:1.2) snow:1.3)", "((fox:1.2) snow:1.3), (fox:1.2)"),
        ("(mia:1.2)", "Mia", "Mia runs.", "Mia runs, (mia:1.2)."),
        ("(fox:1.2)", "", "<lora:fox:1> __fox__ embedding:fox", "<lora:fox:1> __fox__ embedding:fox, (fox:1.2)"),
        ("embedding:nice.", "", "embedding:nicer.", "embedding:nicer, embedding:nice."),
        ("a cat", "cat", "A __cat__ category of cat_ears", "A __cat__ category of cat_ears, cat"),
        ("a cafe", "caf", "A caf\u00e9, a cafe\u0301", "A caf\u00e9, a cafe\u0301, caf"),
        ('(cat:1.2) says "cat"', "", "a cat says 'cat'", 'a (cat:1.2) says "cat"'),
        ('a fox says "hi" now', 'fox says "hi"', 'A fox says "hi" there', 'A fox says "hi" there'),
        ("x", "red hat, hat box", "a red hat box", "a red hat box"),
    ],
)
def test_a_part_is_never_written_into_another_one(idea, keep, reply, text):
    assert rewritten(idea, keep, reply) == (text, [])


@pytest.mark.parametrize(
    "idea,keep,reply,lost",
    [
        ('(cat:1.2) says "cat"', "", "a (cat:1.2) says meow", '"cat"'),
        ('__fox__ and "fox"', "cat", "cat with red", '"fox"'),
        ('(a "cat":1.2) and "cat"', "", '(a "cat":1.2)', '"cat"'),
    ],
)
def test_quoted_text_whose_words_stand_only_in_another_part_is_lost(idea, keep, reply, lost):
    assert rewritten(idea, keep, reply)[1] == [lost]


def test_a_listed_word_inside_a_part_counts_as_a_whole_word_in_its_letter_case_only():
    assert texts('a "Fox hat" foxes', "Fox, hat, fox, hats") == ['"Fox hat"', "fox", "hats"]


WORDS = ("fox", "Fox", "red", "red fox", "cat", "OPEN", "the", "\u732b")
FORMS = (
    '"{}"',
    "'{}'",
    "\u201c{}\u201d",
    "({}:1.2)",
    "({}:1.4)",
    "<lora:{}:1>",
    "__{}__",
    "({} (a\\):1.1)",
    "{{{}|b}}",
)
NESTED = ('"{}"', "({}:1.3)", "(a {}:1.2)", "{{{}|c}}")


def random_part(rng):
    part = rng.choice(FORMS).format(rng.choice(WORDS).replace(" ", rng.choice(" _")))
    return rng.choice(NESTED).format(part) if rng.random() < 0.2 else part


def random_reply(rng, idea):
    """The idea with pieces of it changed the way models do it: dropped, other marks, other case, no marks."""
    pieces = []
    for piece in [*idea, *rng.choices(WORDS, k=2)]:
        bare = re.sub(r"[^\w ]|lora|1\d*$", "", piece.replace("__", "")).strip() or "x"
        pieces.append(rng.choice([piece, piece, "", bare, bare.upper(), f"'{bare}'", f"({bare}:1.1)", f"a {bare} b"]))
    rng.shuffle(pieces)
    return rng.choice([" ", ", ", ". "]).join(piece for piece in pieces if piece) + rng.choice(["", "."])


def stands(text, part, parts):
    """The oracle: other parts that hold this one are blacked out, then it must still be there."""
    if part.kind == WORD:
        letter = "[^\\W\u4e00-\u9fff]"
        at_ends = [rf"(?<!{letter})" * bool(re.match(letter, part.text)), rf"(?!{letter})" * (part.text[-1] < "\u4e00")]
        return bool(re.search(at_ends[0] + re.escape(part.text) + at_ends[1], text))
    for other in sorted(parts, key=lambda other: -len(other.text)):
        if part.text in other.text and other != part and other.kind != WORD:
            text = text.replace(other.text, "#")
    return part.text in text


def test_every_part_of_a_random_mixture_is_in_the_text_or_reported_as_lost():
    rng, whole, lost_ones = random.Random(5), 0, 0
    for _ in range(600):
        pieces = [random_part(rng) for _ in range(rng.randrange(1, 5))]
        parts = parts_to_keep(" and ".join(pieces), tuple(rng.sample(WORDS, rng.randrange(3))))
        reply = random_reply(rng, pieces)
        text, lost = put_back(reply, parts, tags=rng.random() < 0.5)
        for part in parts:
            assert stands(text, part, parts) == (part not in lost), (parts, reply, text, lost)
        before = [part for part in parts if stands(reply, part, parts)]
        assert not set(before) & set(lost), (parts, reply, text, lost)
        assert lost or put_back(text, parts) == (text, []), "a whole text is left as it is"
        whole, lost_ones = whole + (not lost), lost_ones + bool(lost)
    assert whole > 100 and lost_ones > 100


@pytest.mark.parametrize(
    "idea,found",
    [
        (r"(hatsune miku \(vocaloid\):1.2), snow", [r"(hatsune miku \(vocaloid\):1.2)"]),
        ("((fox:1.2) snow:1.3)", ["((fox:1.2) snow:1.3)"]),
        ("(a fox (red):1.2)", ["(a fox (red):1.2)"]),
        ("((fox:1.2), (((cat:.5", ["(fox:1.2)"]),
        ("(a (b (c:1.1):1.2)", ["(b (c:1.1):1.2)"]),
        (r"fox \(red:1.2\), fox_(red)", []),
        ("(fox: +1.2 ) (cat:1.) (a:b:-1) (at 5:30pm) (:1.2)", ["(fox: +1.2 )", "(cat:1.)", "(a:b:-1)"]),
        ("{a|{b|(c:1.2)}} {d}", ["{a|{b|(c:1.2)}}"]),
        ('"a (b" c:1.2)', ['"a (b"']),
        ("(a\nb:1.2)", []),
    ],
)
def test_brackets_nest_and_a_backslash_takes_their_meaning(idea, found):
    assert texts(idea) == found


def test_a_weight_with_brackets_is_put_back_however_they_were_written():
    weight = r"(miku \(vocaloid\):1.2)"
    for reply in ("a miku (vocaloid), b", r"a miku \(vocaloid\), b", r"a (Miku \(vocaloid\):1.5), b"):
        assert rewritten(weight, "", reply) == (f"a {weight}, b", [])


def test_hostile_text_is_read_in_linear_time():
    # All of them take 0.3 s; a reader that starts over at every mark takes 10^8 steps and more for one of them.
    start = time.process_time()
    for piece in (
        "(",
        "(:",
        "{|",
        "(:1.2",
        "<a:",
        "__a ",
        "'a",
        "\u2018a",
        '"',
        "(a:" + "1" * 50,
        "\\(",
        "embedding:.",
    ):
        parts_to_keep(piece * 5000)
    assert len(texts("(" * 5000 + ":1.2)" * 5000)) == 1
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    "idea,found",
    [
        ('the 12" record and 7" single', []),
        ('5\'10" tall and 6" wide', []),
        ("6'' wide, 7'' high", []),
        ('a 12" record says "OPEN"', ['"OPEN"']),
        ('"size 12" and "B 7"', ['"size 12"', '"B 7"']),
    ],
)
def test_inches_and_feet_are_no_quotation_marks(idea, found):
    assert texts(idea) == found


@pytest.mark.parametrize(
    "quoted,reply",
    [
        ('"the"', "The fox stands in the snow."),
        ('"the"', "A fox in the snow"),
        ('"I"', "I see a cat"),
        ('"open"', "A fox at an open door"),
        ('"Fox"', "Fox in snow. Fox"),
        ('"Fox"', "Snow. Fox"),
        ('"in the"', "A fox in the snow"),
        ('"OPEN"', "An open door"),
        ('"OPEN"', "OPEN, and OPEN again"),
        ('"n"', "rock'n'roll"),
        ('"OPEN"', 'A sign "OPEN now"'),
        ('"\u732b"', "\u4e00\u53ea\u767d\u732b"),
    ],
)
def test_words_that_may_be_others_are_not_quoted(quoted, reply):
    assert rewritten(quoted, "", reply) == (reply, [quoted])


@pytest.mark.parametrize(
    "quoted,reply,text",
    [
        ('"OPEN"', "A sign OPEN.", 'A sign "OPEN".'),
        ('"Fox"', "A sign Fox hangs", 'A sign "Fox" hangs'),
        ('"the"', "A sign \u201cThe\u201d hangs", 'A sign "the" hangs'),
        ('"Hello"', 'He says "Hello," and waves', 'He says "Hello", and waves'),
        ('"come in we are open"', "A sign: come in we are open", 'A sign: "come in we are open"'),
        ('"\u8425\u4e1a\u4e2d"', "\u5199\u7740\u8425\u4e1a\u4e2d", '\u5199\u7740"\u8425\u4e1a\u4e2d"'),
    ],
)
def test_words_that_can_only_be_the_quoted_ones_are_quoted(quoted, reply, text):
    assert rewritten(quoted, "", reply) == (text, [])


def test_a_private_character_in_a_reply_stands_for_no_part():
    assert rewritten("(fox:1.2)", "", "a \U000f0000 cat \U0010fffd") == ("a  cat, (fox:1.2)", [])
    assert rewritten('"\U000f0000"', "", "a cat") == ("a cat", ['"\U000f0000"'])
