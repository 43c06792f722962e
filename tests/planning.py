"""Texts and machines on which tests try the planner, and a reply simulated on them."""

import random
from collections import deque

from fastqwen.mtp.acceptance import Accepted
from fastqwen.mtp.estimates import expected_tokens
from fastqwen.mtp.planner import OPTIONS
from fastqwen.mtp.tree import Tree

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


def simulate(planner, rates, machine, passes, *, seed=0, first_use=20.0, catch_up=0.0, ahead=0, error=0.03):
    """Tokens expected of the chosen trees per second, and the trees. First uses are slow.

    error: of the clocks. ahead: for so many passes more than one the trees are asked for before one is observed.
    catch_up: seconds that a draft takes longer for every plain pass before it.
    """
    texts, clock, used, trees = random.Random(seed), random.Random(seed + 1000), set(), []
    tokens = seconds = 0.0
    missed = 0
    asked = deque(planner.tree() for _ in range(ahead))
    for _ in range(passes):
        asked.append(planner.tree())
        tree = asked.popleft()
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
            draft_seconds=draft * clock.gauss(1, error) * slow,
            verify_seconds=verify * clock.gauss(1, error) * slow,
        )
        trees.append(tree)
    return tokens / seconds, trees


def best_fixed(rates, machine):
    return max(expected_tokens(tree.widths, rates) / sum(machine(tree)) for tree in OPTIONS)


def mean(values):
    values = list(values)
    return sum(values) / len(values)
