"""DeltaNet layers that run by kernels: the trunk's logits and states are those of the plain path."""

import copy

import pytest
import tiny
import torch
from fastqwen.deltanet import backend, layer
from fastqwen.deltanet.state import KernelState, PlainState
from fastqwen.engine.backends import choices
from fastqwen.kernels import delta_decode, delta_prefill
from fastqwen.model.load import load_model
from fastqwen.mtp.tree import Tree
from fastqwen.weights import Checkpoint

pytest.importorskip("triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(scope="module")
def trunk(tmp_path_factory):
    folder = tiny.save_folder(tiny.oracle("untied"), tmp_path_factory.mktemp("kernel"))
    return load_model(Checkpoint.open(folder), DEVICE, torch.float32).trunk


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


def states(trunk, monkeypatch):
    """An empty state by the kernel and one in plain torch."""
    made = []
    for kernel in (True, False):
        monkeypatch.setattr(layer, "delta_kernels", lambda device, kernel=kernel: (kernel, ""))
        made.append(trunk.new_state(64))
    return made


def test_passes_prompts_and_flushes_by_the_kernel_equal_plain_torch(trunk, monkeypatch):
    ours, theirs = states(trunk, monkeypatch)
    assert isinstance(ours.layers[0], KernelState) and isinstance(theirs.layers[0], PlainState)
    tree = Tree((2, 1))
    for prompt, path in (([5, 6, 7], [0, 1, 2]), ([8], [0, 3])):
        results = []
        for state in (ours, theirs):
            hidden = trunk.prefill(trunk.embed(prompt), state)
            after, logits = trunk.verify([1, 2, 3, 4], tree.parents, state)
            state.commit(path)
            results.append((hidden, after, logits))
        for found, wanted in zip(*results, strict=True):
            # Layers amplify what the kernel's own test bounds; the logits' spread is about one.
            assert (found - wanted).abs().max() < 1e-4
    for state in (ours, theirs):
        state.flush()
    for found, wanted in zip(ours.layers, theirs.layers, strict=True):
        if isinstance(found, KernelState):
            assert torch.allclose(found.window, wanted.window, atol=1e-4)
            assert (found.recurrent - wanted.recurrent).norm() < 1e-4 * wanted.recurrent.norm()


def test_a_path_by_the_kernel_equals_its_tokens_one_at_a_time(trunk, monkeypatch):
    start, _ = states(trunk, monkeypatch)
    trunk.prefill(trunk.embed([5, 6, 7]), start)
    tree, plain = copy.deepcopy(start), copy.deepcopy(start)
    logits = trunk.verify([1, 2, 3, 4], [-1, 0, 0, 2], tree)[1]
    tree.commit([0, 2, 3])
    for slot, token in ((0, 1), (2, 3), (3, 4)):
        assert torch.equal(trunk.verify([token], [-1], plain)[1][0], logits[slot])
        plain.commit([0])
    tree.flush()
    plain.flush()
    for found, wanted in zip(tree.layers, plain.layers, strict=True):
        if isinstance(found, KernelState):
            assert torch.equal(found.window, wanted.window) and torch.equal(found.recurrent, wanted.recurrent)


def test_self_check_passes_the_kernel_and_names_what_differs(monkeypatch):
    assert backend.wrong_result(DEVICE) is None
    right = delta_decode.delta_decode

    def off(inputs, weights, state, **options):
        """A pending path counts for its length, as where a token had other bits when replayed."""
        out = right(inputs, weights, state, **options)
        pending = int(options["control"][1])
        state.recurrent.mul_(1 + 2.0**-22 if pending == 3 else 1)
        return out

    monkeypatch.setattr(delta_decode, "delta_decode", off)
    assert "other bits" in backend.wrong_result(DEVICE)
    monkeypatch.setattr(delta_decode, "delta_decode", lambda *a, **o: right(*a, **o).mul_(1.001))
    assert "differ from the reference" in backend.wrong_result(DEVICE)
    monkeypatch.setattr(delta_decode, "delta_decode", right)
    chunked = delta_prefill.chunked
    monkeypatch.setattr(delta_prefill, "chunked", lambda state, *rows: chunked(state * 1.01, *rows))
    assert "chunks differ" in backend.wrong_result(DEVICE)


def test_without_a_gpu_the_plain_path_is_taken_and_said():
    used, reason = backend.delta_kernels(torch.device("cpu"))
    assert not used and "cpu" in reason
    found = {choice.operation: choice for choice in choices(torch.device("cpu"))}
    for operation in ("delta_decode", "delta_prefill"):
        assert found[operation].backend == "torch" and found[operation].reason == reason
