"""The planner: its counts, its costs, its choice, and whole replies on made-up texts and machines."""

import json
import random

import pytest
from fastqwen.mtp.acceptance import Accepted
from fastqwen.mtp.estimates import Costs, Statistics, expected_tokens, on_line
from fastqwen.mtp.planner import OPTIONS, PROBE, Fixed, Planner, choose
from fastqwen.mtp.tree import OFF, Tree, all_shapes

ONE = Tree.chain(1)
NEVER = [[0.0] * 7] * 7


def rates_of(chain, others=(0.0, 0.0, 0.0)):
    """q[level][rank] from rank 1 by level, and the shares of what rank 1 leaves that ranks 2 to 4 get."""
    return [[first, *((1 - first) * share for share in others), 0.0, 0.0, 0.0] for first in chain]


# Shaped like published acceptance figures of structured text, technical prose and stories.
TEXTS = {
    "structured": rates_of([0.94, 0.93, 0.92, 0.91, 0.90, 0.89, 0.88], (0.5, 0.2, 0.1)),
    "prose": rates_of([0.80, 0.74, 0.70, 0.66, 0.62, 0.60, 0.58], (0.4, 0.17, 0.1)),
    "story": rates_of([0.62, 0.59, 0.47, 0.45, 0.43, 0.42, 0.41], (0.37, 0.16, 0.09)),
}
# Draft seconds and verify seconds of a tree; a plain pass takes one second.
MACHINES = {
    "GPU, rows are free": lambda tree: (0.10 * tree.depth, 1 + 0.005 * (tree.rows - 1)),
    "GPU, drafts are dear": lambda tree: (0.17 * tree.depth, 1 + 0.01 * (tree.rows - 1)),
    "CPU, eight rows cost two": lambda tree: (0.12 * tree.depth, 1 + 0.15 * (tree.rows - 1)),
    "CPU, eight rows cost 3.5": lambda tree: (0.12 * tree.depth, 1 + 0.35 * (tree.rows - 1)),
    "CPU, proportional to rows": lambda tree: (0.25 * tree.depth, float(tree.rows)),
}


def path_of(tree, *ranks):
    return (0, *(tree.slot(level, rank) for level, rank in enumerate(ranks, 1)))


def walk(tree, rates, source):
    """A pass over text in which the target's tokens stand at the ranks that `rates` says."""
    ranks = []
    for level, width in enumerate(tree.widths):
        rank = source.choices(range(8), [*rates[level], max(0.0, 1 - sum(rates[level]))])[0] + 1
        if rank > width:
            break
        ranks.append(rank)
        if rank > 1:
            break
    path = path_of(tree, *ranks)
    return Accepted(path, tuple(range(len(path))), stop=False)


def simulate(planner, rates, machine, passes, *, seed=0, first_use=20.0, catch_up=0.0):
    """Tokens expected of the chosen trees per second, and the trees. Clocks err by 3%; first uses are slow.

    catch_up: seconds that a draft takes longer for every plain pass before it.
    """
    texts, clock, used, trees = random.Random(seed), random.Random(seed + 1000), set(), []
    tokens = seconds = 0.0
    missed = 0
    for _ in range(passes):
        tree = planner.tree()
        draft, verify = machine(tree)
        draft += catch_up * missed if tree.depth else 0.0
        missed = 0 if tree.depth else missed + 1
        tokens += expected_tokens(tree.widths, rates)
        seconds += draft + verify
        slow = 1.0 if bool(tree.depth) in used else first_use
        used.add(bool(tree.depth))
        planner.observe(
            tree,
            walk(tree, rates, texts),
            cut=False,
            draft_seconds=draft * clock.gauss(1, 0.03) * slow,
            verify_seconds=verify * clock.gauss(1, 0.03) * slow,
        )
        trees.append(tree)
    return tokens / seconds, trees


def best_fixed(rates, machine):
    return max(expected_tokens(tree.widths, rates) / sum(machine(tree)) for tree in OPTIONS)


def mean(values):
    values = list(values)
    return sum(values) / len(values)


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


# ---- the choice ------------------------------------------------------------------------------------------------------


def test_options_are_off_short_chains_and_every_full_tree():
    assert OPTIONS[0] == OFF and len(OPTIONS) == len(set(OPTIONS)) == 70
    assert set(OPTIONS) == {OFF, *(Tree.chain(n) for n in range(1, 6)), *all_shapes()}


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("rates", [*TEXTS.values(), NEVER], ids=[*TEXTS, "never"])
def test_known_rates_and_costs_give_the_best_option(rates, machine):
    chosen = choose(OPTIONS, rates, lambda tree: sum(machine(tree)), OFF, gain=1.0)
    assert expected_tokens(chosen.widths, rates) / sum(machine(chosen)) == best_fixed(rates, machine)


def test_the_current_tree_stays_unless_another_gains_three_percent():
    rates = [[0.5, 0.0]]
    assert choose([OFF, ONE], rates, lambda tree: 1.47 if tree.depth else 1.0, OFF) == OFF
    assert choose([OFF, ONE], rates, lambda tree: 1.45 if tree.depth else 1.0, OFF) == ONE
    assert choose([OFF, ONE], rates, lambda tree: 1.53 if tree.depth else 1.0, ONE) == ONE
    assert choose([OFF, ONE], rates, lambda tree: 1.55 if tree.depth else 1.0, ONE) == OFF


# ---- whole replies ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("rates", [*TEXTS.values(), NEVER], ids=[*TEXTS, "never"])
def test_a_cold_start_is_within_three_percent_of_the_best_option_over_400_passes(rates, machine):
    speeds = [simulate(Planner(), rates, machine, 400, seed=seed)[0] for seed in range(8)]
    best = best_fixed(rates, machine)
    assert mean(speeds) > 0.97 * best
    assert min(speeds) > 0.90 * best  # three misses in a row at the start


@pytest.mark.parametrize("passes", [64, 100, 400])
@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_useless_drafts_lose_at_most_three_percent(machine, passes):
    for seed in range(24 if passes == 64 else 4):
        assert simulate(Planner(), NEVER, machine, passes, seed=seed)[0] > 0.97


@pytest.mark.parametrize("first_use", [1.0, 1.4, 3.0, 500.0])
@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_a_short_reply_from_cold_loses_at_most_three_percent_however_slow_the_first_passes(machine, first_use):
    for seed in range(8):
        assert simulate(Planner(), NEVER, machine, 64, seed=seed, first_use=first_use)[0] > 0.97


def test_a_first_draft_slowed_alone_does_not_keep_drafting_away():
    """Plain passes were warm, the head was compiled in its first use, and that draft missed."""
    planner, trees, machine = Planner(), [], MACHINES["GPU, rows are free"]
    for number in range(40):
        trees.append(planner.tree())
        draft, verify = machine(trees[-1])
        rates, slow = (NEVER, 50.0) if number == 2 else (TEXTS["structured"], 1.0)
        path = walk(trees[-1], rates, random.Random(number))
        planner.observe(trees[-1], path, cut=False, draft_seconds=draft * slow, verify_seconds=verify)
    assert trees[2:4] == [ONE, ONE] and trees[-1].depth >= 3


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_useless_drafts_lose_little_where_each_plain_pass_makes_the_next_probe_dearer(machine):
    for catch_up in (0.005, 0.02):
        assert simulate(Planner(), NEVER, machine, 100, catch_up=catch_up)[0] > 0.965


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_useless_drafts_after_a_reply_with_good_ones_lose_at_most_three_percent(machine):
    statistics, costs = Statistics(), Costs()
    simulate(Planner(statistics, costs), TEXTS["structured"], machine, 200)
    assert simulate(Planner(statistics, costs), NEVER, machine, 100, first_use=1.0)[0] > 0.97


@pytest.mark.parametrize("machine", [*MACHINES.values()][:4], ids=[*MACHINES][:4])
def test_a_change_of_the_text_midway_is_followed(machine):
    for before, after in [("structured", "story"), ("story", "structured"), ("prose", "structured")]:
        best = best_fixed(TEXTS[after], machine)
        speeds = []
        for seed in range(4):
            planner = Planner()
            simulate(planner, TEXTS[before], machine, 400, seed=seed)
            simulate(planner, TEXTS[after], machine, 200, seed=seed + 50, first_use=1.0)
            speeds.append(simulate(planner, TEXTS[after], machine, 200, seed=seed + 90, first_use=1.0)[0])
        assert mean(speeds) > 0.95 * best


def test_drafts_stop_when_they_turn_useless_and_come_back_by_probes():
    machine, planner = MACHINES["GPU, rows are free"], Planner()
    simulate(planner, TEXTS["prose"], machine, 200)
    speed, trees = simulate(planner, NEVER, machine, 600, first_use=1.0)
    assert speed > 0.97
    _, trees = simulate(planner, NEVER, machine, 400, first_use=1.0)
    probes = [place for place, tree in enumerate(trees) if tree.depth]
    assert all(trees[place] == ONE for place in probes)
    assert {later - earlier for earlier, later in zip(probes, probes[1:], strict=False)} == {PROBE + 1}
    _, trees = simulate(planner, TEXTS["structured"], machine, 600, first_use=1.0)
    assert all(tree.depth >= 4 for tree in trees[-20:] if tree != OFF)
    assert sum(tree == OFF for tree in trees[-20:]) <= 1


def test_a_second_reply_starts_with_what_the_first_one_showed():
    statistics, costs = Statistics(), Costs()
    simulate(Planner(statistics, costs), TEXTS["structured"], MACHINES["GPU, rows are free"], 100)
    assert Planner(statistics, costs).tree().depth >= 4


def test_the_first_passes_are_plain_then_chains_of_one():
    _, trees = simulate(Planner(), TEXTS["prose"], MACHINES["GPU, rows are free"], 4)
    assert trees == [OFF, OFF, ONE, ONE]


def test_trees_depend_on_nothing_but_what_was_observed():
    runs = [simulate(Planner(), TEXTS["story"], MACHINES["GPU, drafts are dear"], 150, seed=7)[1] for _ in range(2)]
    assert runs[0] == runs[1]


def test_scores_are_plain_json_types_with_the_best_options_first():
    planner = Planner()
    assert planner.scores()["options"] == [] and planner.scores()["current"] == "off"
    simulate(planner, TEXTS["prose"], MACHINES["GPU, rows are free"], 100)
    scores = json.loads(json.dumps(planner.scores()))
    speeds = [option["tokens_per_second"] for option in scores["options"]]
    assert len(speeds) == 5 and speeds == sorted(speeds, reverse=True)
    best = scores["options"][0]
    assert best["tokens_per_second"] == pytest.approx(best["tokens"] / best["seconds"])
    assert scores["current"] == "-".join(map(str, planner.tree().widths))


@pytest.mark.parametrize("tree", [OFF, *(Tree.chain(n) for n in range(2, 6)), Tree((3, 2))], ids=str)
def test_a_fixed_tree_stays_whatever_happens(tree):
    assert set(simulate(Fixed(tree), NEVER, MACHINES["CPU, proportional to rows"], 40)[1]) == {tree}
    assert json.loads(json.dumps(Fixed(tree).scores()))["options"] == []


def test_costs_measured_before_any_reply_spare_the_planner_its_first_measurements():
    costs = Costs()
    costs.expect(verify_seconds=0.002, first_seconds=0.0003, next_seconds=0.0002)
    assert costs.known(OFF) and costs.known(Tree.chain(1))
    assert costs.seconds(Tree.chain(5)) == pytest.approx(0.002 + 0.0003 + 4 * 0.0002)
    assert Planner(Statistics(), costs).tree().depth > 0
    for _ in range(2):  # what is then observed counts instead
        costs.observe(OFF, 0.0, 0.003, missed=0)
    assert costs.seconds(OFF) == 0.003
