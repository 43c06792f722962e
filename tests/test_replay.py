"""The replay of shapes: what passes yield over recorded ranks, by hand, and a planner on them."""

from collections import Counter

import pytest
from fastqwen.benchmarks.prompts import KINDS
from fastqwen.benchmarks.replay import OPTIONS, PassTimes, Row, measure, walk
from fastqwen.mtp.tree import OFF, Tree

TIMES = PassTimes(verify=2.0, first_level=0.5, next_level=0.25, source="made up")
EASY, HARD = [[1, 1]] * 7 + [[1]], [[2], [0]] * 4


def test_the_slots_that_a_pass_accepts_by_hand():
    tree = Tree((2, 2))
    assert walk(tree, [1, 1]) == (0, 1, 2) and walk(tree, [1, 2]) == (0, 1, tree.slot(2, 2))
    assert walk(tree, [2]) == (0, tree.slot(1, 2)) and walk(tree, [1, 3]) == (0, 1)
    assert walk(tree, [0]) == walk(tree, [3]) == walk(OFF, [1, 1]) == (0,)


def test_speeds_over_all_places_and_by_text_by_hand():
    row, chain, wide = Row([EASY, [], HARD], TIMES), Tree.chain(2), Tree((2,))
    assert row.milliseconds(OFF) == 2 and row.milliseconds(chain) == 2.75 and row.milliseconds(wide) == 2.5
    assert [row.tokens(chain, 0), row.tokens(chain, 1), row.tokens(chain)] == [23 / 8, 1, 31 / 16]
    assert [row.tokens(wide, 0), row.tokens(wide, 1), row.tokens(wide)] == [2, 1.5, 1.75]
    assert row.speed(Counter([chain])) == pytest.approx(31 / 16 / 2.75)
    assert row.speed(Counter({chain: 3, wide: 1})) == pytest.approx((3 * 31 / 16 + 1.75) / (3 * 2.75 + 2.5))
    # Eight tokens each: the easy text takes 8 / (23 / 8) passes of the chain, the hard one 8.
    assert row.speed_by_text([(0, Counter([chain])), (1, Counter([chain]))]) == pytest.approx(16 / (64 / 23 + 8) / 2.75)
    apart = [(0, Counter({chain: 3})), (1, Counter({wide: 2}))]  # each text with a shape of its own
    assert row.speed_by_text(apart) == pytest.approx(16 / (64 / 23 * 2.75 + 16 / 3 * 2.5))


def test_the_best_shape_is_the_fastest_option_and_auto_is_never_far_above_it():
    row, texts = Row([EASY, HARD], TIMES), [EASY * 4, HARD * 4, EASY * 3]
    assert row.best()[1] == max(row.speed(Counter([tree])) for tree in OPTIONS)
    table = measure("code", 0.0, texts, TIMES)
    assert (table["texts"], table["places"]) == (3, 88)
    for share in ("auto_once_share", "auto_on_share", "auto_starts_share"):
        assert 0.5 < table[share] <= 1.0001  # at all places' mean no mixture of shapes is better than the best
    assert table["auto_starts_share_least"] <= table["auto_starts_share"]
    assert 0.5 < table["first_own_least"] <= table["first_own"] <= 1.0001


def test_every_kind_has_14_different_prompts():
    assert all(len(set(prompts)) == len(prompts) == 14 for prompts, _ in KINDS.values())
