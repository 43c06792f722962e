"""Acceptance profiles: they hold what was published, and what is drawn from them has their rates."""

import random
import statistics

import pytest
from fastqwen.benchmarks.profiles import PROFILES, SHAPES
from fastqwen.mtp.planner import OPTIONS
from fastqwen.mtp.tree import OFF, Tree


def accepted_share(profile, drafts):
    """Drafts accepted of those drafted, by a chain."""
    return (profile.expected_tokens(Tree.chain(drafts)) - 1) / drafts


def test_the_profiles_fit_the_published_shares_of_accepted_drafts():
    """One curve for several sources: code with 2 drafts is furthest off, 90.7% where 94.5% were published."""
    published = {
        ("predictable", 2): (0.945, 0.945), ("predictable", 3): (0.887, 0.898), ("predictable", 5): (0.804, 0.804),
        ("prose", 2): (0.673, 0.673), ("prose", 5): (0.436, 0.436),
        ("story", 2): (0.494, 0.494), ("story", 5): (0.251, 0.251),
    }  # fmt: skip
    for (name, drafts), (low, high) in published.items():
        assert low - 0.04 < accepted_share(PROFILES[name], drafts) < high + 0.04, (name, drafts)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_shares_are_probabilities_and_the_first_candidate_is_the_likeliest(profile):
    assert len(profile.rates) == 7
    for level in profile.rates:
        assert len(level) == 7 and sum(level) <= 1 and min(level) >= 0
        assert level == sorted(level, reverse=True)
    assert profile.rates[0][:4] == [profile.rank1[0], *profile.others]
    assert profile.source


def test_deeper_levels_scale_the_other_ranks_with_what_rank_one_leaves():
    rates = PROFILES["story"].rates
    assert rates[2][1] == pytest.approx(0.14 * (1 - 0.47) / (1 - 0.62))


@pytest.mark.parametrize("tree", [Tree.chain(3), Tree((7,)), Tree((3, 2, 1, 1)), Tree((1, 1, 5))], ids=str)
@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_drawn_paths_have_the_expected_length_and_the_shares_of_every_leaf(profile, tree):
    source, draws = random.Random(4), 4000
    paths = [profile.draw(tree, source) for _ in range(draws)]
    lengths = [len(path) for path in paths]
    # Four deviations of the mean.
    bound = 4 * statistics.pstdev(lengths) / draws**0.5
    assert abs(statistics.mean(lengths) - profile.expected_tokens(tree)) < bound
    for rank in range(1, tree.widths[0] + 1):
        share = sum(tree.slot(1, rank) in path for path in paths) / draws
        assert abs(share - profile.rates[0][rank - 1]) < 4 * (0.25 / draws) ** 0.5
    for path in set(paths):
        assert path[0] == 0
        assert all(tree.parents[slot] == parent for parent, slot in zip(path, path[1:], strict=False))


def test_the_same_seed_draws_the_same_paths_and_off_accepts_only_its_root():
    profile, tree = PROFILES["prose"], Tree((3, 2, 2))
    one, other = random.Random(7), random.Random(7)
    assert [profile.draw(tree, one) for _ in range(50)] == [profile.draw(tree, other) for _ in range(50)]
    assert profile.draw(OFF, one) == (0,)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_the_shapes_are_the_planners_and_most_tokens_come_with_all_rows(profile):
    table = {tree: profile.expected_tokens(tree) for tree in SHAPES}
    assert set(SHAPES) == set(OPTIONS) and len(SHAPES) == 70
    assert table[OFF] == min(table.values()) == 1 and max(table, key=table.get).rows == 8
