"""Acceptance on scripted targets: every count, every stop, every room, and equality with plain decoding."""

import itertools
import random

import pytest
from fastqwen.mtp.acceptance import Accepted, accept
from fastqwen.mtp.tree import OFF, Tree, all_shapes
from fastqwen.weights import FastQwenError

TREES = [*all_shapes(), *(Tree.chain(length) for length in range(8))]
ROOT = 1000
STOP = 7
PLENTY = 100


class Script:
    """A target that goes on with `tokens` as long as it is asked along them, and records what it was asked."""

    def __init__(self, tokens):
        self.tokens = tokens
        self.calls = []

    def __call__(self, slot, ancestors):
        assert list(ancestors) == self.tokens[: len(ancestors)]
        self.calls.append((slot, ancestors))
        return self.tokens[len(ancestors)]


def draft_of(tree, script, hits):
    """Tokens per slot: level L holds script[L - 1] at rank hits[L - 1] (0: nowhere), all others are wrong."""
    wrong = itertools.count(500)
    tokens = [ROOT]
    for slot in range(1, tree.rows):
        level = tree.depths[slot]
        right = level <= len(hits) and tree.ranks[slot] == hits[level - 1]
        tokens.append(script[level - 1] if right else next(wrong))
    return tokens


def accepted_paths(tree):
    """Every way to be accepted: ranks per level, of which all but the last are 1."""
    yield ()
    for level, width in enumerate(tree.widths, 1):
        for rank in range(1, width + 1):
            yield (1,) * (level - 1) + (rank,)


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_every_accepted_path_of_every_shape(tree):
    counts = set()
    for hits in accepted_paths(tree):
        script = list(range(10, 20))
        target = Script(script)
        result = accept(tree, draft_of(tree, script, hits), target, stop_ids=(STOP,), room=PLENTY)
        path = (0, *(tree.slot(level, rank) for level, rank in enumerate(hits, 1)))
        assert result == Accepted(path, tuple(script[: len(hits) + 1]), False)
        assert target.calls == [(slot, tuple(script[:depth])) for depth, slot in enumerate(path)]
        counts.add(len(hits))
    assert counts == set(range(tree.depth + 1))


def test_an_accepted_leaf_ends_the_path_even_if_the_next_level_would_match():
    tree = Tree((2, 1))
    tokens = [ROOT, 10, 21, 20]  # slot 2 continues slot 1, the target goes through slot 3
    result = accept(tree, tokens, Script([20, 21, 22]), stop_ids=(), room=PLENTY)
    assert result == Accepted((0, 3), (20, 21), False)


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_a_stop_token_at_every_place_is_neither_emitted_nor_committed(tree):
    for place in range(tree.depth + 1):
        script = [10, 11, 12, 13, 14, 15, 16, 17]
        script[place] = STOP
        target = Script(script)
        # the draft holds the stop token too, and its continuation
        result = accept(tree, draft_of(tree, script, (1,) * tree.depth), target, stop_ids={STOP, 8}, room=PLENTY)
        assert result == Accepted(tuple(range(place + 1)), tuple(script[:place]), True)
        assert len(target.calls) == place + 1


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_room_at_every_place_ends_the_text_and_keeps_its_last_token_unfed(tree):
    script = list(range(10, 20))
    for room in range(1, tree.depth + 3):
        target = Script(script)
        result = accept(tree, draft_of(tree, script, (1,) * tree.depth), target, stop_ids=(STOP,), room=room)
        count = min(room, tree.depth + 1)
        assert result == Accepted(tuple(range(count)), tuple(script[:count]), False)
        assert len(target.calls) == count


def test_a_stop_token_in_the_last_place_of_the_room_counts_as_a_stop():
    tree = Tree.chain(3)
    tokens = [ROOT, 10, STOP, 12]
    assert accept(tree, tokens, Script([10, STOP, 12]), stop_ids=(STOP,), room=2) == Accepted((0, 1), (10,), True)
    assert accept(tree, tokens, Script([10, STOP, 12]), stop_ids=(STOP,), room=1) == Accepted((0,), (10,), False)


def test_of_equal_siblings_the_lowest_rank_is_taken():
    tree = Tree((3, 1))
    assert accept(tree, [ROOT, 9, 30, 20, 20], Script([20, 1]), stop_ids=(), room=PLENTY).path == (0, 3)
    assert accept(tree, [ROOT, 20, 30, 20, 20], Script([20, 1]), stop_ids=(), room=PLENTY).path == (0, 1)
    assert accept(tree, [ROOT, 20, 30, 20, 20], Script([20, 30, 1]), stop_ids=(), room=PLENTY).path == (0, 1, 2)


def test_a_candidate_of_another_level_or_the_root_itself_is_not_accepted():
    tree = Tree((1, 2))
    assert accept(tree, [ROOT, 10, 11, 12], Script([12]), stop_ids=(), room=PLENTY) == Accepted((0,), (12,), False)
    assert accept(tree, [ROOT, 10, 11, 12], Script([ROOT]), stop_ids=(), room=PLENTY) == Accepted((0,), (ROOT,), False)


def test_dead_slots_are_not_read():
    assert accept(Tree((1,)), [ROOT, 9, 10, 10], Script([10]), stop_ids=(), room=PLENTY) == Accepted((0,), (10,), False)


def random_target(seed):
    """A deterministic next-token function of the whole text, over few tokens so that drafts often hit."""

    def next_token(text):
        return random.Random(f"{seed} {text}").choice([1, 2, 3, 4, 5, 6, STOP] if len(text) > 4 else [1, 2, 3])

    return next_token


def decode(next_token, choose_tree, *, root, room, guess):
    """Run passes to the end. Returns fed tokens, emitted tokens, (fed length, text) of every draw, and why it ended."""
    fed, emitted, draws = [], [], []
    while True:
        tree = choose_tree()
        tokens = [root, *(guess() for _ in range(tree.rows - 1))]

        def draw(slot, ancestors, root=root, fed=tuple(fed)):
            text = (*fed, root, *ancestors)
            draws.append(text)
            return next_token(text)

        result = accept(tree, tokens, draw, stop_ids=(STOP,), room=room - len(emitted))
        fed += [tokens[slot] for slot in result.path]
        emitted += result.tokens
        if result.stop or len(emitted) == room:
            return fed, emitted, draws, result.stop
        root = result.tokens[-1]


@pytest.mark.parametrize("seed", range(40))
def test_any_drafts_give_the_text_state_and_draws_of_plain_decoding(seed):
    next_token = random_target(seed)
    for room in (1, 2, 3, 7, 40):
        plain = decode(next_token, lambda: OFF, root=ROOT, room=room, guess=None)
        for tree in [*all_shapes()[seed % 8 :: 8], Tree.chain(1), Tree.chain(5), None]:
            source = random.Random(seed)
            choose = (lambda tree=tree: tree) if tree else (lambda source=source: source.choice(TREES))
            guess = lambda source=source: source.choice([1, 2, 3, 4, STOP])  # noqa: E731
            assert decode(next_token, choose, root=ROOT, room=room, guess=guess) == plain


def test_both_endings_occur_in_the_comparison_with_plain_decoding():
    endings = {decode(random_target(seed), lambda: OFF, root=ROOT, room=7, guess=None)[3] for seed in range(40)}
    assert endings == {True, False}


def test_too_few_tokens_and_no_room_are_refused():
    with pytest.raises(FastQwenError, match="3 slots"):
        accept(Tree((1, 1)), [ROOT, 1], Script([1]), stop_ids=(), room=1)
    with pytest.raises(FastQwenError, match="at least 1"):
        accept(OFF, [ROOT], Script([1]), stop_ids=(), room=0)


@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_draft_behind_which_nothing_can_be_drawn_is_left_to_be_the_next_root(place):
    def target(slot, ancestors):
        if len(ancestors) == place:
            raise FastQwenError("no finite logit")
        return 10 + len(ancestors)

    found = accept(Tree.chain(3), [ROOT, 10, 11, 12], target, stop_ids=(), room=PLENTY)
    assert found == Accepted(tuple(range(place)), tuple(range(10, 10 + place)), False)
    with pytest.raises(FastQwenError, match="no finite"):
        accept(OFF, [found.tokens[-1]], lambda slot, _: target(slot, (0,) * place), stop_ids=(), room=PLENTY)


def test_an_error_in_the_draw_passes_through():
    def broken(slot, ancestors):
        raise RuntimeError("row")

    with pytest.raises(RuntimeError, match="row"):
        accept(OFF, [ROOT], broken, stop_ids=(), room=1)
