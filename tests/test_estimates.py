"""What the planner knows: expected tokens by hand and by walks, counts that fade, costs that warm up."""

import random

import pytest
from fastqwen.benchmarks.profiles import PROFILES
from fastqwen.mtp.estimates import Costs, Experience, Statistics, expected_tokens, on_line
from fastqwen.mtp.planner import Planner
from fastqwen.mtp.tree import OFF, Tree, all_shapes
from planning import ONE, TEXTS, mean, path_of, walk

# ---- expected tokens -------------------------------------------------------------------------------------------------


def test_expected_tokens_by_hand():
    rates = [[0.5, 0.25, 0.125], [0.5, 0.25, 0.0], [0.5, 0.0, 0.0]]
    assert expected_tokens((), rates) == 1
    assert expected_tokens((1,), rates) == 1.5
    assert expected_tokens((3,), rates) == 1.875
    assert expected_tokens((2, 1), rates) == 1 + 0.75 + 0.5 * 0.5
    assert expected_tokens((3, 2, 1), rates) == 1 + 0.875 + 0.5 * 0.75 + 0.25 * 0.5


def test_expected_tokens_are_the_mean_of_walks():
    rates, source = TEXTS["story"], random.Random(3)
    for tree in (Tree((3, 2, 2)), Tree.chain(7), Tree((7,))):
        found = mean(len(walk(tree, rates, source).path) for _ in range(4000))
        # Path lengths lie in 1..8, so their deviation is below 3.5: four of the mean's are 0.22.
        assert abs(found - expected_tokens(tree.widths, rates)) < 0.22


# ---- statistics ------------------------------------------------------------------------------------------------------


def test_the_prior_is_cautious_and_each_level_and_rank_expects_less():
    rates = Statistics().rates()
    assert rates[0][0] == 0.5
    assert rates[0][1] == pytest.approx(0.5 * 0.25)  # half of q1, of what rank 1 leaves
    assert rates[1][0] == pytest.approx(0.5 * (1 - 0.3 * 0.5))
    firsts = [level[0] for level in rates]
    assert firsts == sorted(firsts, reverse=True)
    assert all(level == sorted(level, reverse=True) and sum(level) < 1 for level in rates)


def test_counts_by_hand():
    statistics, tree = Statistics(), Tree((3, 2))
    statistics.observe(tree, path_of(tree, 1, 1), cut=False, memory=100)
    statistics.observe(tree, path_of(tree, 1), cut=False, memory=100)  # level 2: at no rank
    statistics.observe(tree, path_of(tree, 3), cut=False, memory=100)
    statistics.observe(tree, path_of(tree), cut=False, memory=100)  # level 1: at no rank
    rates = statistics.rates()
    first = (2 + 2 * 0.5) / (4 + 2)
    second = (0 + 2 * first / 2) / (2 + 2)
    third = (1 + 2 * first / 3) / (2 + 2)
    left = 1 - first
    assert rates[0][:3] == pytest.approx([first, left * second, left * (1 - second) * third])
    assert rates[1][0] == pytest.approx((1 + 2 * first * (1 - 0.3 * left)) / (2 + 2))


@pytest.mark.parametrize("tree", [*all_shapes(), *(Tree.chain(n) for n in range(1, 6))], ids=str)
def test_a_cut_level_is_no_observation_but_accepted_ones_are(tree):
    for count in range(tree.depth):
        path = path_of(tree, *(1,) * count)
        cut, uncut, shorter = Statistics(), Statistics(), Statistics()
        cut.observe(tree, path, cut=True, memory=100)
        uncut.observe(tree, path, cut=False, memory=100)
        assert uncut.rates()[count][0] < cut.rates()[count][0]
        if count:  # a chain of just the accepted levels, all found, says the same
            shorter.observe(Tree.chain(count), path_of(Tree.chain(count), *(1,) * count), cut=False, memory=100)
        assert cut.rates() == shorter.rates()


def test_a_pass_that_ends_in_a_leaf_or_a_whole_chain_says_nothing_of_later_levels():
    for tree, ranks in [(Tree((2, 2)), (2,)), (Tree((2, 2)), (1, 2)), (Tree.chain(2), (1, 1))]:
        cut, uncut = Statistics(), Statistics()
        cut.observe(tree, path_of(tree, *ranks), cut=True, memory=100)
        uncut.observe(tree, path_of(tree, *ranks), cut=False, memory=100)
        assert cut.rates() == uncut.rates()


def test_the_share_of_every_rank_is_found_from_narrow_and_wide_trees_alike():
    statistics, source = Statistics(), random.Random(5)
    truth = TEXTS["prose"]
    trees = [Tree.chain(3), Tree((4, 3)), Tree((2, 2, 2)), Tree((3, 2, 2))]
    for number in range(6000):
        tree = trees[number % 4]
        statistics.observe(tree, walk(tree, truth, source).path, cut=False, memory=1e9)
    found = statistics.rates()
    # At least 1500 passes saw each of these: a share's deviation is below 0.5 / sqrt(1500 * 0.8) = 0.0145, of the
    # ranks a third of that or less matters; 0.05 is more than three of them.
    for level, ranks in [(0, 4), (1, 3), (2, 2)]:
        assert found[level][:ranks] == pytest.approx(truth[level][:ranks], abs=0.05)


def test_old_counts_fade_to_what_came_last():
    statistics = Statistics()
    for _ in range(500):
        statistics.observe(ONE, path_of(ONE, 1), cut=False, memory=20)
    assert statistics.rates()[0][0] > 0.95
    for _ in range(60):  # three times the memory: 0.05 of the old is left
        statistics.observe(ONE, path_of(ONE), cut=False, memory=20)
    assert statistics.rates()[0][0] < 0.15
    statistics.fade(0)
    assert statistics.rates() == Statistics().rates()


def test_the_long_run_keeps_what_the_recent_counts_forget_and_forgets_slowly_itself():
    statistics = Statistics()
    for number in range(100):
        statistics.observe(ONE, path_of(ONE, *(1,) * (number < 50)), cut=False, memory=8)
    assert statistics.observations == 8 and statistics.rates()[0][0] < 0.15
    statistics.fade(0)
    assert statistics.long_run.observations == 100
    assert statistics.long_run.rates()[0][0] == pytest.approx((50 + 2 * 0.5) / 102)
    most = 0.0
    for _ in range(3 * statistics.LONG_RUN):
        statistics.observe(ONE, path_of(ONE, 1), cut=False, memory=8)
        most = max(most, statistics.long_run.observations)
    assert most == 2 * statistics.LONG_RUN
    assert statistics.long_run.observations >= statistics.LONG_RUN and statistics.long_run.rates()[0][0] > 0.98


# ---- costs -----------------------------------------------------------------------------------------------------------


def test_values_on_lines_by_hand():
    assert on_line({4: 2.0}, 6) == 3.0 and on_line({4: 2.0}, 2) == 1.0
    points = {1: 1.0, 2: 1.5, 6: 1.9}
    assert [on_line(points, x) for x in (1, 2, 4, 8)] == pytest.approx([1.0, 1.5, 1.7, 2.1])
    assert on_line({1: 1.0, 3: 0.9}, 2) == pytest.approx(0.95)
    assert on_line({1: 1.0, 3: 0.9}, 8) == 0.9  # never cheaper with more rows
    assert on_line({2: 1.0, 3: 0.9}, 1) == 1.0
    assert on_line({2: 1.0, 3: 5.0}, 1) == 0.0


def measured(*passes):
    costs = Costs()
    for tree, draft, verify, missed in passes:
        for _ in range(2):
            costs.observe(tree, draft, verify, missed=missed)
    return costs


def test_one_measurement_in_plain_passes_is_cut_to_what_a_warm_one_may_take():
    costs = Costs()
    for seconds in (4.0, 1.0, 1.0):  # the first plain pass took four times as long
        costs.observe(OFF, 0.0, seconds, missed=0)
    assert costs.plain_passes(ONE, 1.2) == 1.2
    assert costs.plain_passes(ONE, 2.9) == 2.9
    assert costs.plain_passes(ONE, 6.0) == 1.5  # more than rows and levels cost: slowed as the first plain pass was
    assert costs.plain_passes(ONE, 3.2) == 1.0  # never less than a plain pass
    assert costs.plain_passes(ONE, 100.0) == 1.0  # slowed by something else: no measurement


def test_one_measurement_is_not_trusted_and_a_slow_first_use_does_not_stay():
    costs = Costs()
    costs.observe(OFF, 0.0, 90.0, missed=0)
    assert not costs.known(OFF)
    costs.observe(OFF, 0.0, 1.0, missed=0)
    assert costs.known(OFF) and costs.seconds(OFF) == 1.0
    for seconds in (1.1, 1.2, 1.1):
        costs.observe(OFF, 0.0, seconds, missed=0)
    assert costs.seconds(OFF) == 1.1


def test_costs_of_trees_that_were_never_run_follow_rows_and_depth():
    costs = measured((OFF, 0.0, 1.0, 0), (ONE, 0.3, 1.2, 0), (Tree((2, 1)), 0.5, 1.6, 0))
    assert costs.known(ONE) and costs.known(Tree((2, 1))) and not costs.known(Tree((1, 1)))
    assert costs.seconds(Tree((1, 1))) == pytest.approx(1.4 + 0.5)
    # verify goes on by 0.2 a row; the first level takes 0.3 and each next one 0.2
    assert costs.seconds(Tree.chain(5)) == pytest.approx(2.0 + 0.3 + 4 * 0.2)
    assert costs.seconds(Tree((7,))) == pytest.approx(2.4 + 0.3)


def test_catching_up_after_plain_passes_is_kept_apart_and_grows_with_them():
    costs = measured((OFF, 0.0, 1.0, 0), (ONE, 0.5, 1.0, 0), (ONE, 2.0, 1.0, 3))
    assert costs.seconds(ONE) == 1.5
    assert costs.seconds(ONE, missed=3) == 3.0 and costs.seconds(ONE, missed=1) == 2.0
    assert costs.seconds(Tree((1, 1)), missed=3) == pytest.approx(1.0 + 2 * 0.5 + 1.5)
    assert costs.seconds(OFF, missed=3) == 1.0


def test_without_other_measurements_a_draft_that_catches_up_stands_for_all():
    costs = measured((OFF, 0.0, 1.0, 0), (ONE, 2.0, 1.0, 3))
    assert costs.seconds(ONE) == costs.seconds(ONE, missed=3) == 3.0


def test_costs_measured_before_any_reply_spare_the_planner_its_first_measurements():
    costs = Costs()
    costs.expect(verify_seconds=0.002, first_seconds=0.0003, next_seconds=0.0002)
    assert costs.known(OFF) and costs.known(Tree.chain(1))
    assert costs.seconds(Tree.chain(5)) == pytest.approx(0.002 * (1 + 5 * costs.EACH_ROW) + 0.0003 + 4 * 0.0002)
    assert Planner(Statistics(), costs).tree().depth > 0
    for _ in range(2):  # what is then observed counts instead
        costs.observe(ONE, 0.0004, 0.003, missed=0)
    assert costs.seconds(ONE) == pytest.approx(0.0034)
    for _ in range(costs.EXPECTED + 1):  # of plain passes once it is the greater part
        assert costs.seconds(OFF) == 0.002
        costs.observe(OFF, 0.0, 0.003, missed=0)
    assert costs.seconds(OFF) == 0.003


def test_more_rows_never_cost_less_than_one_whatever_the_first_pass_of_a_reply_took():
    """It begins on an idle device: 1.95 ms instead of 2.00 on a 9B. Drafts of the next replies looked cheap."""
    costs = measured(*((OFF, 0.0, 2.0, 0),) * 3, (ONE, 0.24, 1.95, 0), (ONE, 0.24, 2.01, 0))
    assert costs.seconds(ONE) == pytest.approx(2.24)


def test_what_is_only_expected_grows_with_what_plain_passes_turn_out_to_take():
    costs = Costs()
    costs.expect(verify_seconds=0.002, first_seconds=0.0003, next_seconds=0.0002)
    shares = {tree: costs.seconds(tree) / costs.seconds(OFF) for tree in (ONE, Tree.chain(3), Tree((7,)))}
    for _ in range(9):
        costs.observe(OFF, 0.0, 0.0022, missed=0)
    assert costs.seconds(OFF) == 0.0022
    for tree, share in shares.items():
        assert costs.seconds(tree) == pytest.approx(0.0022 * share)
    for _ in range(2):
        costs.observe(ONE, 0.0004, 0.003, missed=0)
    costs.expect(verify_seconds=0.001, first_seconds=0.0001, next_seconds=0.0001)  # captured again: all stays
    for _ in range(9):
        costs.observe(OFF, 0.0, 0.0020, missed=0)
    assert costs.seconds(ONE) == pytest.approx(0.0034)  # measured: it stays
    later = Costs()  # a plain pass was measured before anything was captured
    for _ in range(2):
        later.observe(OFF, 0.0, 0.0022, missed=0)
    later.expect(verify_seconds=0.002, first_seconds=0.0003, next_seconds=0.0002)
    assert later.seconds(ONE) == pytest.approx(0.0022 * shares[ONE])


def test_statistics_are_kept_of_the_kinds_of_sampling_that_were_used_last():
    experience = Experience()
    first = experience.of("greedy")
    first.observe(ONE, (0, 1), cut=False, memory=100)
    for number in range(Experience.KINDS - 1):
        experience.of(number)
    assert experience.of("greedy") is first  # and so it is the last used
    experience.of("one more")
    assert experience.of("greedy") is first
    for number in range(Experience.KINDS):
        experience.of(number)
    assert experience.of("greedy").rates() == Statistics().rates() != first.rates()


# ---- published figures at a start ------------------------------------------------------------------------------------


def test_the_start_is_the_mean_of_the_published_profiles_and_only_where_nothing_was_seen():
    means = [mean(profile.rank1[level] for profile in PROFILES.values()) for level in range(2)]
    assert pytest.approx(means, abs=5e-4) == Statistics.USUAL
    known, fresh = Statistics(), Statistics()
    known.observe(ONE, path_of(ONE), cut=False, memory=100)
    before = known.rates()
    known.expect_usual()
    assert known.rates() == before
    fresh.expect_usual()
    assert fresh.rates()[0][0] == pytest.approx((2 * 0.787 + 2 * 0.5) / 4)
    fresh.fade(0)
    assert fresh.rates() == Statistics().rates()
