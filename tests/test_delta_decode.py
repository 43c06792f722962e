"""The deferred DeltaNet step: the definition in float64, the row contract bit for bit, a state that is written once."""

import copy

import pytest
import torch
from delta_sequences import DEVICE, OneAtATime, Sequence, definition, generator, make_weights, relative
from fastqwen.kernels.delta_decode import Heads, allocate, allocate_steps, control_words, delta_decode, reference
from fastqwen.kernels.rows import ancestors
from fastqwen.mtp.tree import OFF, Tree, all_shapes

pytest.importorskip("triton")
ON_GPU = torch.cuda.is_available()
UNIT = 2.0**-24
# The interpreter takes 0.1 s a head and launch, so without a GPU the sweeps take small heads and some of the shapes.
SWEPT = Heads(2, 4, 128, 128) if ON_GPU else Heads(1, 2, 16, 16)
WITHOUT_GPU = {(7,), (1,) * 7, (2, 3, 2)}
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")


def same(found, wanted):
    return all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.fixture(scope="module")
def one_at_a_time():
    """Two tokens are committed and one is pending."""
    start = Sequence(make_weights(SWEPT), torch.bfloat16)
    start.run("ab", (-1, 0))
    start.accept(1)
    start.run("c", (-1,))
    start.accept(0)
    return OneAtATime(start)


def check_every_path(one_at_a_time, tree, order=None):
    """All rows and paths of a tree; a token is (level, rank), so that shapes share what they have in common."""
    slots = order or range(tree.rows)  # slot of ours -> slot of the tree
    parents = [slots.index(tree.parents[slot]) if slot else -1 for slot in slots]
    tokens = [(tree.depths[slot], tree.ranks[slot]) for slot in slots]
    sequence = copy.deepcopy(one_at_a_time.after(())[0])
    before = sequence.committed()
    out = sequence.run(tokens, parents)
    assert not out[tree.rows :].any(), "dead slots give zeros"
    recurrent = sequence.state.recurrent
    assert torch.equal(recurrent, before[1]), "a pass writes what was pending and nothing of its own rows"
    for slot in range(tree.rows):
        path = tuple(tokens[at] for at in ancestors(parents, slot))
        assert torch.equal(out[slot], one_at_a_time.after(path)[1])
        sequence.accept(slot)
        assert same(sequence.committed(), one_at_a_time.committed(path))


@pytest.mark.parametrize(
    "tree",
    [pytest.param(t, marks=() if t.widths in WITHOUT_GPU else pytest.mark.gpu) for t in all_shapes()],
    ids=lambda tree: "-".join(map(str, tree.widths)),
)
def test_every_row_and_path_of_every_shape_equals_one_token_at_a_time(one_at_a_time, tree):
    check_every_path(one_at_a_time, tree)


@pytest.mark.parametrize("tree,order", [(OFF, None), (Tree((2, 2)), [0, 3, 1, 4, 2])], ids=["off", "leaves_first"])
def test_few_rows_and_other_slot_orders_equal_one_token_at_a_time(one_at_a_time, tree, order):
    check_every_path(one_at_a_time, tree, order)


def alternate(heads, passes, seed):
    """Random shapes and accepted paths, a third of them without drafts, against plain decoding of the same tokens."""
    random, shapes = generator(seed), all_shapes()
    sequence = Sequence(make_weights(heads, seed), torch.bfloat16)
    plain = copy.deepcopy(sequence)
    pick = lambda count: int(torch.randint(count, (), generator=random))  # noqa: E731
    for turn in range(passes):
        tree = (OFF, Tree.chain(1 + pick(3)), shapes[pick(len(shapes))])[pick(3)]
        out = sequence.run([(turn, slot) for slot in range(tree.rows)], tree.parents)
        sequence.accept(pick(tree.rows))
        for slot in sequence.pending:
            assert torch.equal(out[slot], plain.run([(turn, slot)], (-1,))[0])
            plain.accept(0)
        if turn % 50 == 0 or turn == passes - 1:
            assert same(sequence.committed(), plain.committed())
        if pick(8) == 0:  # the end of a reply: the next one starts with nothing pending
            sequence.run((), ())


def test_random_shapes_and_draftless_steps_leave_the_state_of_plain_decoding():
    alternate(Heads(1, 1, 16, 16), 10, seed=1)


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [Heads(2, 4, 128, 128), Heads(1, 3, 128, 128)], ids=["2x4", "1x3"])
def test_a_thousand_random_passes_leave_the_state_of_plain_decoding(heads):
    alternate(heads, 1000, seed=2)


def test_a_pending_path_is_consumed_once_and_a_dropped_pass_leaves_no_trace():
    sequence = Sequence(make_weights(SWEPT), torch.bfloat16)
    sequence.run("ab", (-1, 0))
    sequence.accept(1)
    wanted = sequence.committed()
    first = sequence.run("cde", (-1, 0, 0))
    sequence.run("xyz", (-1, 0, 1))  # neither pass was accepted
    assert torch.equal(sequence.run("cde", (-1, 0, 0)), first)
    assert same(sequence.committed(), wanted)
    sequence.run((), ())
    assert same(sequence.committed(), wanted)


# Without a GPU every rate at one size and every size at one rate: what a rate is plays no part in the indices.
RATES = {"never_forgets": 1e-6, "forgets": 1.0, "forgets_at_once": 200.0}
SMALL, *OTHERS = Heads(2, 2, 32, 16), Heads(1, 3, 32, 32), Heads(1, 1, 128, 128)


@pytest.mark.parametrize(
    "heads,rate",
    [
        *(pytest.param(SMALL, rate, id=f"{SMALL}-{name}") for name, rate in RATES.items()),
        *(pytest.param(heads, 1.0, id=f"{heads}-forgets") for heads in OTHERS),
        *(
            pytest.param(heads, RATES[name], id=f"{heads}-{name}", marks=pytest.mark.gpu)
            for heads in OTHERS
            for name in ("never_forgets", "forgets_at_once")
        ),
    ],
)
def test_outputs_and_state_are_the_float64_definition(heads, rate):
    weights, tree = make_weights(heads, rate=rate), Tree((1, 2, 1))
    sequence = Sequence(weights, torch.float32)
    sequence.run("abcde", (-1, 0, 1, 2, 3))
    sequence.accept(4)
    tokens = "fghij"
    out = sequence.run(tokens, tree.parents)
    for slot in range(tree.rows):
        path = ("a", "b", "c", "d", "e", *(tokens[at] for at in ancestors(tree.parents, slot)))
        wanted, wanted_state = definition(weights, [sequence.token(token) for token in path])
        # Per token: k, q and v carry the four products and SiLU (8 units), the norm's sum and root (4); a sum over
        # keys and the update add 8. The tokens' errors add up, and are all that an output carries: its gated norm
        # divides by its own size, and roundings of a sum of products of either sign shrink as the sum does.
        bound = len(path) * 20 * UNIT
        assert relative(out[slot], wanted) < bound
        sequence.accept(slot)
        window, recurrent = sequence.committed()
        assert relative(recurrent, wanted_state) < bound
        assert torch.equal(window.cpu(), torch.stack([sequence.token(token)[0] for token in path[-3:]]))


def test_kernel_equals_the_reference_over_passes():
    heads = Heads(2, 4, 128, 128) if ON_GPU else Heads(1, 2, 32, 32)
    kernel = Sequence(make_weights(heads), torch.float32)
    plain = Sequence(make_weights(heads), torch.float32, reference)
    for tokens, parents, slot in (("ab", (-1, 0), 1), ("cdefg", (-1, 0, 0, 2, 2), 4), ("h", (-1,), 0), ("", (), None)):
        found, wanted = kernel.run(tokens, parents), plain.run(tokens, parents)
        # Each is within half of the float64 test's bound of the definition.
        if tokens:
            assert relative(found, wanted.cpu().double()) < 2 * 7 * 20 * UNIT
        for sequence in (kernel, plain) if tokens else ():
            sequence.accept(slot)
    assert relative(kernel.state.recurrent, plain.state.recurrent.cpu().double()) < 2 * 7 * 20 * UNIT
    assert torch.equal(kernel.state.windows, plain.state.windows)


def test_control_names_turns_ancestors_and_committed_columns():
    words = control_words((-1, 0, 0, 2, 0), buffer=1, pending=(0, 3))
    assert words[:3] == [1, 2, 5] and words[4:6] == [0, 3]
    assert words[48:53] == [0 + 16, 1, 4, 2 + 16, 3], "a parent's leaves come before the child that has children"
    assert [words[48 + words[16 + slot]] % 16 for slot in range(5)] == [0, 1, 2, 3, 4]
    assert [words[24 + slot : 48 : 8] for slot in range(5)] == [
        [-1, -2, -3], [0, -1, -2], [0, -1, -2], [2, 0, -1], [0, -1, -2],
    ]  # fmt: skip
    assert control_words((), buffer=0)[:3] == [0, 0, 0]


def test_what_does_not_fit_is_refused_with_the_remedy():
    heads = Heads(1, 2, 16, 16)
    weights, state = make_weights(heads), allocate(heads, dtype=torch.float32, device=DEVICE)
    good = [torch.zeros(8, size, device=DEVICE) for size in (heads.channels, 32, 2, 2)]
    control = torch.zeros(64, dtype=torch.int32, device=DEVICE)
    options = {"control": control, "steps": allocate_steps(heads, DEVICE), "out": torch.zeros(8, 32, device=DEVICE)}
    with pytest.raises(ValueError, match=r"z must be torch.float32 \[8, 32\]"):
        delta_decode([good[0], good[1][:, :16], *good[2:]], weights, state, **options)
    with pytest.raises(ValueError, match="windows must be torch.bfloat16"):
        delta_decode([part.bfloat16() for part in good], weights, state, **options)
    with pytest.raises(ValueError, match="call out.contiguous()"):
        delta_decode(good, weights, state, **options | {"out": torch.zeros(32, 8, device=DEVICE).T})
    with pytest.raises(ValueError, match="use plain torch"):
        allocate(Heads(1, 2, 24, 16), dtype=torch.float32, device=DEVICE)
    with pytest.raises(ValueError, match="parent"):
        control_words((-1, -1), buffer=0)


@pytest.mark.gpu
@pytest.mark.parametrize("dependent", [False, True])
def test_one_graph_serves_every_shape(dependent):
    """A captured launch, replayed with other control words and inputs, gives the bits of plain launches."""
    if dependent and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("dependent launches need compute capability 9.0")
    heads = Heads(2, 4, 128, 128)
    weights, plain = make_weights(heads), Sequence(make_weights(heads), torch.bfloat16)
    state = allocate(heads, dtype=torch.bfloat16, device=DEVICE)
    sizes = (heads.channels, 512, 4, 4)
    inputs = [torch.zeros(8, size, dtype=torch.bfloat16, device=DEVICE) for size in sizes]
    control = torch.tensor(control_words((), buffer=0), dtype=torch.int32, device=DEVICE)
    steps, out = allocate_steps(heads, DEVICE), torch.zeros(8, 512, dtype=torch.bfloat16, device=DEVICE)
    launch = lambda: delta_decode(  # noqa: E731
        inputs, weights, state, control=control, steps=steps, out=out, dependent=dependent
    )
    launch()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    for turn, (tree, slot) in enumerate([(Tree((2, 3, 2)), 6), (OFF, 0), (Tree.chain(7), 7), (Tree((7,)), 3)] * 3):
        tokens = [(turn, at) for at in range(tree.rows)]
        words = control_words(tree.parents, buffer=plain.buffer, pending=plain.pending)
        control.copy_(torch.tensor(words, dtype=torch.int32))
        for part, rows in zip(inputs, zip(*map(plain.token, tokens), strict=True), strict=True):
            part.fill_(float("nan"))
            part[: tree.rows] = torch.stack(rows).to(DEVICE)
        wanted = plain.run(tokens, tree.parents)
        graph.replay()
        assert torch.equal(out, wanted)
        assert torch.equal(state.recurrent, plain.state.recurrent)
        plain.accept(slot)
