"""Plain layers in a decode pass: all eight slots in one launch where the kernel works, each row alone elsewhere.

Under Triton's interpreter on a CPU, as if the kernel's self-check had passed there.
"""

import copy

import pytest
import tiny
import torch
from fastqwen.kernels import float_linear, rows
from fastqwen.model.load import load_model
from fastqwen.mtp.tree import Tree
from fastqwen.weights import Checkpoint, Linear, Norm, Projection, backend

pytest.importorskip("triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CPU = torch.device("cpu")


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setattr("fastqwen.weights.linear.float_kernels", lambda device, dtype: (True, "asked for by a test"))


def weight(rows, columns, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, columns, generator=generator) * columns**-0.5).to(DEVICE)


def inputs(columns, seed=1):
    return torch.randn(8, columns, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def groups():
    """(projection, width of its input, whether it takes a residual); K = 100 has no kernel."""
    norm = Norm(inputs(128)[0] * 0.1, 1e-6)
    two = [(Linear(weight(48, 128)), (32, 16)), (Linear(weight(5, 128, 2)), (5,))]
    yield Projection(two, norm=norm), 128, False
    yield Projection([(Linear(weight(64, 128)), (64,))], swiglu=True), 256, True
    yield Projection([(Linear(weight(64, 192)), (64,))]), 192, True
    yield Projection([(Linear(weight(64, 96)), (64,))], swiglu=True), 192, True
    yield Projection([(Linear(weight(64, 100)), (64,))]), 100, True


def test_which_layers_have_a_kernel(kernel):
    assert Linear(weight(3, 64)).by_kernel
    assert Linear(weight(3, 96)).by_kernel
    assert not Linear(weight(3, 100)).by_kernel
    assert not Linear(weight(3, 64).double()).by_kernel


@pytest.mark.skipif(DEVICE.type == "cuda", reason="there is a GPU")
def test_without_a_gpu_no_layer_uses_the_kernel():
    assert not Linear(weight(3, 64)).by_kernel
    assert backend.float_kernels(CPU, torch.float32) == (False, "plain torch on cpu")


@pytest.mark.parametrize("index", range(5))
def test_rows_of_a_group_are_right_and_their_own(kernel, index):
    group, width, has_residual = list(groups())[index]
    x = inputs(width)
    residual = (inputs(64, seed=3),) if has_residual else ()
    found = group.verify(x, 8, *residual)
    wanted = group(x, *residual)
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        # float32 sums of up to 192 products in two orders, of values around 1: a few units in the last place
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    for live in (1, 3, 8):
        for slot in range(live):
            alone = torch.zeros_like(x)
            alone[0] = x[slot]
            added = tuple(torch.cat([r[slot : slot + 1], torch.zeros_like(r[1:])]) for r in residual)
            for one, other in zip(group.verify(alone, 1, *added), found, strict=True):
                assert torch.equal(one[0], other[slot]) and not one[1:].any()


def test_kernel_is_called_once_for_all_rows(kernel, monkeypatch):
    calls = []
    original = float_linear.float_linear
    monkeypatch.setattr(float_linear, "float_linear", lambda *a, **k: calls.append(1) or original(*a, **k))
    group, width, _ = list(groups())[0]
    group.verify(inputs(width), 5)
    assert len(calls) == 2  # one a matrix


@pytest.mark.skipif(DEVICE.type == "cuda", reason="the interpreter's turn is on a CPU")
def test_a_plain_model_decodes_by_the_kernel_as_by_torch(kernel, tmp_path, monkeypatch):
    """A path's rows equal its tokens decoded one at a time, bit for bit, and torch's own result within rounding."""
    folder = tiny.save_folder(tiny.oracle("untied", vocab=32, **tiny.ONE_OF_EACH), tmp_path)
    trunk = load_model(Checkpoint.open(folder), CPU, torch.float32).trunk
    assert trunk.head.matrices[0][0].by_kernel
    with monkeypatch.context() as patch:
        patch.setattr("fastqwen.weights.linear.float_kernels", lambda device, dtype: (False, ""))
        plain = load_model(Checkpoint.open(folder), CPU, torch.float32).trunk
    tree, tokens, prompt = Tree((2,)), [7, 8, 9], [3, 1, 4]
    with torch.inference_mode():
        start = trunk.new_state(32)
        trunk.prefill(trunk.embed(prompt), start)
        found = trunk.verify(tokens, tree.parents, copy.deepcopy(start))[1]
        wanted = plain.verify(tokens, tree.parents, copy.deepcopy(start))[1]
        state = copy.deepcopy(start)
        for slot in rows.ancestors(tree.parents, tree.rows - 1):
            alone = trunk.verify([tokens[slot]], [-1], state)[1][0]
            state.commit([0])
            assert torch.equal(found[slot], alone)
    assert not torch.equal(found, wanted)  # another order of the sums, so the kernel did run
    assert ((found - wanted).norm() / wanted.norm()).item() < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_self_check_passes_here(dtype):
    assert backend._wrong_float(DEVICE, dtype) is None


@pytest.mark.parametrize(
    "damage,words",
    [(lambda out: out.add_(0.1), "products"), (lambda out: out.add_(out[0] * 1e-6), "depend on the other rows")],
    ids=["wrong", "rows"],
)
def test_self_check_finds_wrong_sums_and_rows_that_touch(monkeypatch, damage, words):
    original = float_linear.float_linear
    monkeypatch.setattr(float_linear, "float_linear", lambda *a, **k: damage(original(*a, **k)))
    assert words in backend._wrong_float(DEVICE, torch.float32)


def test_a_failed_self_check_is_said_once_and_torch_taken(caplog):
    def fails(device):
        raise RuntimeError("no such instruction\nand more")

    used, reason = backend.decide(torch.device("cuda"), "plain linear", fails)
    assert not used and "RuntimeError: no such instruction" in reason and "and more" not in reason
    assert len(caplog.records) == 1 and "plain linear kernels are not used" in caplog.text
