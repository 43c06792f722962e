"""The row contract: a row's bits, and the state its path leaves, are those of decoding its tokens one at a time."""

import copy

import pytest
import tiny
import torch
from fastqwen.attention import KVCache
from fastqwen.kernels import rows
from fastqwen.model.load import load_model
from fastqwen.mtp.tree import OFF, Tree, all_shapes
from fastqwen.weights import Checkpoint

PROMPT = 125  # so that the rows of a pass lie on both sides of a part boundary at 128
VOCABULARY = 320


@pytest.fixture(scope="module", params=tiny.WHERE)
def trunk(request, tmp_path_factory):
    device, dtype, kv = request.param
    folder = tiny.save_folder(tiny.oracle("gqa4"), tmp_path_factory.mktemp("rows"))
    return load_model(Checkpoint.open(folder), torch.device(device), dtype, kv=kv).trunk


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def start(trunk):
    """A state with a prompt and one pending token."""
    with torch.inference_mode():
        state = trunk.new_state(PROMPT + 64)
        trunk.prefill(trunk.embed(random_tokens(PROMPT, 1)), state)
        trunk.verify([7], [-1], state)
        state.commit([0])
    return state


def random_tokens(count, seed):
    return torch.randint(0, VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


class OneAtATime:
    """Plain decoding of any token sequence after `start`, remembered by prefix."""

    def __init__(self, trunk, start):
        self.trunk, self.states = trunk, {(): (copy.deepcopy(start), None)}

    def after(self, tokens):
        """(state, logits of the last token) after decoding `tokens`."""
        if tokens not in self.states:
            state = copy.deepcopy(self.after(tokens[:-1])[0])
            logits = self.trunk.verify([tokens[-1]], [-1], state)[1][0]
            state.commit([0])
            self.states[tokens] = (state, logits)
        return self.states[tokens]


@pytest.fixture(scope="module")
def sequential(trunk, start):
    return OneAtATime(trunk, start)


def assert_same_state(found, wanted):
    assert (found.length, found.next_position) == (wanted.length, wanted.next_position)
    for mine, theirs in zip(found.layers, wanted.layers, strict=True):
        if hasattr(mine, "keys"):
            assert mine.length == theirs.length == found.length
            for one, other in ((mine.keys, theirs.keys), (mine.values, theirs.values)):
                assert torch.equal(one.numbers[:, : mine.length], other.numbers[:, : mine.length])
                assert one.scales is None or torch.equal(one.scales[:, : mine.length], other.scales[:, : mine.length])
        else:
            assert torch.equal(mine.window, theirs.window)
            assert torch.equal(mine.recurrent, theirs.recurrent)


def flushed(state):
    state = copy.deepcopy(state)
    state.flush()
    return state


@pytest.mark.parametrize("tree", all_shapes(), ids=lambda tree: "-".join(map(str, tree.widths)))
def test_every_row_and_path_of_every_shape_equals_one_token_at_a_time(trunk, start, sequential, tree):
    tokens = random_tokens(8, seed=sum(w * 8**i for i, w in enumerate(tree.widths)))
    state = copy.deepcopy(start)
    _, logits = trunk.verify(tokens, tree.parents, state)
    for slot in range(tree.rows):
        path = rows.ancestors(tree.parents, slot)
        wanted_state, wanted_logits = sequential.after(tuple(tokens[s] for s in path))
        assert torch.equal(logits[slot], wanted_logits)
        kept = copy.deepcopy(state)
        kept.commit(path)
        assert_same_state(flushed(kept), flushed(wanted_state))


def test_pass_after_an_accepted_leaf_equals_one_token_at_a_time(trunk, start, sequential):
    tree, tokens = Tree((2, 3, 2)), random_tokens(8, seed=5)
    for slot in range(tree.rows):
        path = rows.ancestors(tree.parents, slot)
        state = copy.deepcopy(start)
        trunk.verify(tokens, tree.parents, state)
        state.commit(path)
        _, logits = trunk.verify([11, 12], [-1, 0], state)
        taken = tuple(tokens[s] for s in path)
        assert torch.equal(logits[0], sequential.after((*taken, 11))[1])
        assert torch.equal(logits[1], sequential.after((*taken, 11, 12))[1])


def test_alternating_deep_and_empty_drafts_leaves_no_stale_state(trunk, start):
    """Passes of random shapes and random accepted paths against plain decoding of the same tokens."""
    generator = torch.Generator().manual_seed(0)
    shapes = [OFF, Tree.chain(3), OFF, Tree.chain(2), OFF, *all_shapes()]
    state, plain = copy.deepcopy(start), copy.deepcopy(start)
    for _ in range(14):
        tree = shapes[int(torch.randint(len(shapes), (1,), generator=generator))]
        tokens = torch.randint(0, VOCABULARY, (tree.rows,), generator=generator).tolist()
        _, logits = trunk.verify(tokens, tree.parents, state)
        path = rows.ancestors(tree.parents, int(torch.randint(tree.rows, (1,), generator=generator)))
        state.commit(path)
        for slot in path:
            _, wanted = trunk.verify([tokens[slot]], [-1], plain)
            plain.commit([0])
            assert torch.equal(logits[slot], wanted[0])
        if state.length > PROMPT + 40:
            break
    assert_same_state(flushed(state), flushed(plain))


def test_dead_slots_and_unused_cache_memory_change_nothing(trunk, start):
    clean, dirty = copy.deepcopy(start), copy.deepcopy(start)
    for layer in dirty.layers:
        if hasattr(layer, "keys"):
            for stored in (layer.keys, layer.values):
                # Unused int8 slots hold any bytes; what makes them NaN is their scale.
                tensor = stored.numbers if stored.scales is None else stored.scales
                tensor[:, layer.length :] = float("nan")
    for tree in (OFF, Tree.chain(5), Tree((4, 3))):
        tokens = random_tokens(tree.rows, seed=9)
        wanted = trunk.verify(tokens, tree.parents, clean)[1]
        found = trunk.verify(tokens, tree.parents, dirty)[1]
        assert torch.equal(found[: tree.rows], wanted[: tree.rows])
        assert not found[tree.rows :].any()


def test_a_pass_that_is_not_committed_leaves_no_trace(trunk, start):
    state = copy.deepcopy(start)
    first = trunk.verify([5, 6, 7], [-1, 0, 1], state)[1]
    trunk.verify([1, 2, 3, 4], [-1, 0, 0, 0], state)
    again = trunk.verify([5, 6, 7], [-1, 0, 1], state)[1]
    assert torch.equal(first, again)


def test_pending_tokens_are_replayed_exactly_once(trunk, start):
    state = copy.deepcopy(start)
    trunk.verify([5, 6], [-1, 0], state)
    state.commit([0, 1])
    once, twice = flushed(state), flushed(state)
    twice.flush()
    assert_same_state(once, twice)


def test_slots_may_come_in_any_order(trunk, start, sequential):
    """The same tree with a leaf before the chain's continuation."""
    parents, tokens = [-1, 0, 0, 2, 2], [1, 2, 3, 4, 5]
    state = copy.deepcopy(start)
    _, logits = trunk.verify(tokens, parents, state)
    for slot in range(5):
        path = rows.ancestors(parents, slot)
        wanted_state, wanted = sequential.after(tuple(tokens[s] for s in path))
        assert torch.equal(logits[slot], wanted)
        kept = copy.deepcopy(state)
        kept.commit(path)
        assert_same_state(flushed(kept), flushed(wanted_state))


@pytest.mark.parametrize(
    "parents", [(), (0,), (-1, 1), (-1, 2, 0), (-1, -1), (-1, 0, 0, 1, 2), (-1,) + (0,) * 8], ids=str
)
def test_parents_that_are_no_draft_tree_are_refused(trunk, start, parents):
    with pytest.raises(ValueError):
        trunk.verify([1] * len(parents), list(parents), copy.deepcopy(start))


@pytest.mark.parametrize("path", [(), (1,), (2, 0), (0, 1, 2), (0, 3)], ids=str)
def test_paths_that_do_not_run_along_parents_are_refused(trunk, start, path):
    state = copy.deepcopy(start)
    trunk.verify([1, 2, 3], [-1, 0, 0], state)
    with pytest.raises(ValueError):
        state.commit(path)


def test_rows_on_both_sides_of_position_32768_equal_one_token_at_a_time_and_the_next_text_is_as_before(trunk, start):
    """There plain torch cuts the prefix into longer parts. Keys and values before it are random, and some beyond it are
    not numbers: nobody may look there."""
    next_text = [1, 2, 3, 4], Tree.chain(3).parents
    _, before_that = trunk.verify(*next_text, copy.deepcopy(start))
    generator, before = torch.Generator().manual_seed(8), 32763
    state = trunk.new_state(before + 32)
    for layer in state.layers:
        if isinstance(layer, KVCache):
            shape = before, *layer.keys.numbers.shape[::2]
            layer.append(*(torch.randn(shape, generator=generator).to(trunk.device, trunk.dtype) for _ in range(2)))
            for stored in (layer.keys, layer.values):
                if stored.scales is None:
                    stored.numbers[:, before:] = float("nan")
    state.length = state.next_position = before
    tokens, alone, chain = random_tokens(16, 9), copy.deepcopy(state), []
    wanted = []
    for token in tokens:
        wanted.append(trunk.verify([token], [-1], alone)[1][0])
        alone.commit([0])
    for first in (0, 8):
        chain += trunk.verify(tokens[first : first + 8], Tree.chain(7).parents, state)[1]
        state.commit(range(8))
    assert all(torch.equal(found, right) for found, right in zip(chain, wanted, strict=True))
    for ours, theirs in zip(state.layers, alone.layers, strict=True):
        if not isinstance(ours, KVCache):
            ours.flush(), theirs.flush()
            assert ours.recurrent.dtype == torch.float32 and torch.equal(ours.recurrent, theirs.recurrent)
    _, after_that = trunk.verify(*next_text, copy.deepcopy(start))
    assert all(map(torch.equal, after_that, before_that))
