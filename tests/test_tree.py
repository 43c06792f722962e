"""The draft tree: slot order, parents and children, and what is refused."""

import pickle

import pytest
from fastqwen.mtp.tree import OFF, SLOTS, Tree, all_shapes
from fastqwen.weights import FastQwenError


def test_a_tree_written_out():
    tree = Tree((3, 2, 1))
    assert (tree.depth, tree.rows) == (3, 7)
    assert tree.parents == (-1, 0, 1, 2, 0, 0, 1)
    assert tree.depths == (0, 1, 2, 3, 1, 1, 2)
    assert tree.ranks == (0, 1, 1, 1, 2, 3, 2)
    assert [tree.children(slot) for slot in range(7)] == [(1, 4, 5), (2, 6), (3,), (), (), (), ()]
    assert [tree.slot(1, rank) for rank in (1, 2, 3)] == [1, 4, 5]
    assert [tree.slot(2, rank) for rank in (1, 2)] == [2, 6]
    assert tree.slot(3, 1) == 3


def test_off_is_the_root_alone():
    assert Tree(()) == OFF == Tree.chain(0)
    assert (OFF.depth, OFF.rows, OFF.parents, OFF.depths, OFF.ranks) == (0, 1, (-1,), (0,), (0,))
    assert OFF.children(0) == ()


@pytest.mark.parametrize("length", range(SLOTS))
def test_a_chain_numbers_its_slots_by_level(length):
    tree = Tree.chain(length)
    assert tree.widths == (1,) * length
    assert tree.parents == tuple(range(-1, length))
    assert tree.depths == tuple(range(length + 1))


def test_all_shapes_are_the_64_compositions_of_seven():
    shapes = all_shapes()
    assert len(shapes) == len(set(shapes)) == 64
    assert all(sum(shape.widths) == 7 and shape.rows == SLOTS for shape in shapes)
    assert [shape.widths for shape in shapes] == sorted(shape.widths for shape in shapes)
    assert Tree((7,)) in shapes and Tree.chain(7) in shapes


@pytest.mark.parametrize("tree", [*all_shapes(), *(Tree.chain(n) for n in range(7)), Tree((2,)), Tree((1, 3))], ids=str)
def test_every_description_of_a_tree_agrees(tree):
    assert len(tree.parents) == len(tree.depths) == len(tree.ranks) == tree.rows <= SLOTS
    # chain first
    assert tree.depths[: tree.depth + 1] == tuple(range(tree.depth + 1))
    assert all(rank == 1 for rank in tree.ranks[1 : tree.depth + 1])
    assert list(tree.depths[tree.depth + 1 :]) == sorted(tree.depths[tree.depth + 1 :])
    for slot in range(1, tree.rows):
        parent = tree.parents[slot]
        assert 0 <= parent < slot and parent <= tree.depth
        assert tree.depths[parent] == tree.depths[slot] - 1
        assert tree.slot(tree.depths[slot], tree.ranks[slot]) == slot
        assert tree.children(parent)[tree.ranks[slot] - 1] == slot
    for level, width in enumerate(tree.widths, 1):
        assert len(tree.children(level - 1)) == width
    assert sum(len(tree.children(slot)) for slot in range(tree.rows)) == tree.rows - 1


def test_trees_are_values():
    tree = Tree((2, 1))
    assert tree.children(0) == (1, 3)  # fills caches, which must not count as content
    assert tree == Tree((2, 1)) and hash(tree) == hash(Tree((2, 1))) and tree != Tree((1, 2))
    assert pickle.loads(pickle.dumps(tree)) == tree
    with pytest.raises(AttributeError):
        tree.widths = (1,)


WRONG_WIDTHS = [(0,), (1, 0), (-1,), (8,), (4, 4), (1,) * 8, [1, 1], 3, (True,), (1.0,), "11", None]


@pytest.mark.parametrize("widths", WRONG_WIDTHS, ids=str)
def test_wrong_widths_are_refused_with_what_was_found(widths):
    with pytest.raises(FastQwenError, match="widths are"):
        Tree(widths)


@pytest.mark.parametrize("length", [-1, 8, 1.0, True, None])
def test_wrong_chain_lengths_are_refused(length):
    with pytest.raises(FastQwenError, match="chain"):
        Tree.chain(length)


def test_slots_that_do_not_exist_are_refused():
    tree = Tree((2, 1))
    for level, rank in [(0, 1), (3, 1), (1, 0), (1, 3), (2, 2), (-1, 1), (1, -1)]:
        with pytest.raises(FastQwenError, match="no such candidate"):
            tree.slot(level, rank)
    for slot in (-1, 4):
        with pytest.raises(FastQwenError, match="slots 0 to 3"):
            tree.children(slot)
