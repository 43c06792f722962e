"""Passes that attend by kernels: close to plain torch, the row contract through a trunk, and how they are chosen."""

import copy
from types import SimpleNamespace

import pytest
import tiny
import torch
from fastqwen.attention import KINDS, KVCache, backend
from fastqwen.engine.backends import choices
from fastqwen.kernels import decode_attention
from fastqwen.kernels.attention_control import LENGTH, TILE, new_control
from fastqwen.kernels.rows import ancestors
from fastqwen.model.load import load_model
from fastqwen.mtp.tree import Tree
from fastqwen.weights import Checkpoint

pytest.importorskip("triton")
ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
PROMPT = 60  # the rows of a pass lie on both sides of a tile's end at 64
TREE, TOKENS = Tree((2, 1, 1, 2, 1)), [7, 19, 300, 41, 5, 88, 120, 9]


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module", params=["int8", "fp32"])
def trunk(request, tmp_path_factory):
    folder = tiny.save_folder(tiny.oracle("gqa4"), tmp_path_factory.mktemp("attention"))
    return load_model(Checkpoint.open(folder), DEVICE, torch.float32, kv=request.param).trunk


def state_of(trunk, monkeypatch, by_kernel):
    monkeypatch.setattr(
        "fastqwen.attention.layer.attention_kernels", lambda device, kind: (by_kernel, "said by a test")
    )
    state = trunk.new_state(PROMPT + 32)
    assert all((layer.scratch is not None) == by_kernel for layer in state.layers if hasattr(layer, "keys"))
    prompt = torch.randint(0, 320, (PROMPT,), generator=torch.Generator().manual_seed(1)).tolist()
    trunk.prefill(trunk.embed(prompt), state)
    return state


def test_logits_are_close_to_plain_torchs_over_two_passes_with_an_accepted_leaf_between(trunk, monkeypatch):
    states = [state_of(trunk, monkeypatch, by_kernel) for by_kernel in (True, False)]
    leaf = TREE.slot(4, 2)
    for tree, tokens in ((TREE, TOKENS), (Tree((1,)), [11, 12])):
        found, wanted = (trunk.verify(tokens, tree.parents, state)[1] for state in states)
        # A weight is off by 2^-11 of itself with an int8 cache; with fp32 by 2^-18, and by as much of a score of up to
        # 2^4 bits, where products are sums of tf32's. Logits have a spread of about one, and four layers of this model
        # amplify a relative error of attention's output by less than four.
        limit = 2**-9 if trunk.kv == "int8" else 2**-12
        assert (found - wanted).abs().max() < limit
        assert wanted[0].std() > 0.3 and not found[len(tokens) :].any()
        if tree is TREE:
            for state in states:
                state.commit(ancestors(tree.parents, leaf))


def test_a_row_of_a_pass_equals_one_token_at_a_time(trunk, monkeypatch):
    start = state_of(trunk, monkeypatch, True)
    logits = trunk.verify(TOKENS, TREE.parents, copy.deepcopy(start))[1]
    states = {(): start}  # by path, which has a parent's before its own
    for leaf in (TREE.depth, TREE.slot(1, 2), TREE.slot(4, 2)):
        path = tuple(ancestors(TREE.parents, leaf))
        for end, slot in enumerate(path):
            if path[: end + 1] in states:
                continue
            state = states[path[: end + 1]] = copy.deepcopy(states[path[:end]])
            alone = trunk.verify([TOKENS[slot]], [-1], state)[1][0]
            assert torch.equal(alone, logits[slot])
            state.commit([0])


def test_kernels_are_used_on_a_gpu_whose_results_are_the_references():
    assert backend.attention_kernels(torch.device("cpu"), "int8") == (False, "plain torch on cpu")
    found = {choice.operation: choice.backend for choice in choices(torch.device("cpu"))}
    assert found["decode_attention"] == found["attention_append"] == "torch"
    assert backend.takes(16, 4, 256) and backend.takes(24, 4, 256) and not backend.takes(4, 4, 80)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_this_gpu_passes_the_self_check(kind):
    assert backend._wrong_result(torch.device("cuda"), kind) is None
    assert backend.attention_kernels(torch.device("cuda"), kind)[0]


@pytest.mark.parametrize("kind", ["int8", "fp32"])
def test_self_check_compares_with_the_reference(kind, monkeypatch):
    dtype = torch.bfloat16 if ON_GPU else torch.float32  # the interpreter cuts to bf16
    assert backend._wrong_result(DEVICE, kind, dtype) is None
    monkeypatch.setattr(backend, "decode_row", lambda q, *rest: torch.ones_like(q, dtype=torch.float32))
    assert backend._wrong_result(DEVICE, kind, dtype) == f"{kind}: attention differs"


def test_self_check_has_parts_of_many_tiles_and_a_block_with_two_parts(monkeypatch):
    seen = []

    def spied(*arguments, control, workspace, **rest):
        seen.append((int(control[LENGTH]), workspace.parts, workspace.blocks))
        return decode_attention.decode_attention(*arguments, control=control, workspace=workspace, **rest)

    monkeypatch.setattr(backend, "decode_attention", spied)
    assert backend._wrong_result(DEVICE, "int8", torch.bfloat16 if ON_GPU else torch.float32) is None
    assert all(length > 3 * TILE * parts and 1 < parts > blocks for length, parts, blocks in seen) and seen


def test_where_attention_in_ptx_is_wrong_tritons_own_form_is_used(monkeypatch, caplog):
    device, checks = torch.device("cpu"), []
    monkeypatch.setattr(decode_attention, "_WITHOUT_TEXT", set())
    monkeypatch.setattr(decode_attention, "_text_runs", lambda device: device not in decode_attention._WITHOUT_TEXT)

    def wrong_result(device, kind):
        checks.append(device in decode_attention._WITHOUT_TEXT)
        if not checks[-1]:
            raise RuntimeError("no such instruction\nmore")

    monkeypatch.setattr(backend, "_wrong_result", wrong_result)
    assert backend._wrong_attention(device, "int8") is None and checks == [False, True]
    assert "no such instruction)" in caplog.text and "Triton's own form" in caplog.text
    monkeypatch.setattr(backend, "_wrong_result", lambda device, kind: "attention differs")
    assert backend._wrong_attention(device, "int8") == "attention differs"  # nothing is left to try


def test_where_ptx_never_ran_a_failure_is_said_as_it_is(monkeypatch, caplog):
    monkeypatch.setattr(decode_attention, "_WITHOUT_TEXT", set())
    monkeypatch.setattr(backend, "_wrong_result", lambda device, kind: "attention differs")
    assert backend._wrong_attention(torch.device("cpu"), "int8") == "attention differs" and not caplog.text


@pytest.mark.gpu
def test_a_device_without_its_number_is_the_same_device(monkeypatch):
    monkeypatch.setattr(decode_attention, "_WITHOUT_TEXT", set())
    assert decode_attention.avoid_text(torch.device("cuda")) and not decode_attention.avoid_text(torch.device("cuda"))
    assert not decode_attention._text_runs(torch.empty(0, device="cuda").device)


class Launches:
    """Stands in for the kernel of the text: what a launch reserves, and the forms that were launched."""

    def __init__(self, reserved):
        self.reserved, self.launched = reserved, []

    def warmup(self, *arguments, grid, **options):
        return SimpleNamespace(metadata=SimpleNamespace(shared=self.reserved))

    def __getitem__(self, grid):
        return lambda *arguments, **options: self.launched.append(options)


@pytest.mark.parametrize("short", [0, 1])
def test_the_staged_form_runs_only_where_its_launch_reserves_what_it_uses(monkeypatch, caplog, short):
    """Beyond what is reserved it would write into other memory, or end the process."""
    block = pytest.importorskip("fastqwen.kernels._attention_block_kernel")
    staged, direct = (block.form(128, 2, True, False, staged) for staged in (True, False))
    kernel = Launches(block.reserved_bytes(staged) - short)
    monkeypatch.setattr(block, "decode_attention_block_kernel", kernel)
    monkeypatch.setattr(decode_attention, "_capability", lambda device: (9, 0))
    monkeypatch.setattr(decode_attention, "_RESERVED", {})
    cache = KVCache(1, 128, capacity=64, kind="int8", device="cpu")
    workspace = decode_attention.allocate(2, 1, 128, slots=cache.keys.numbers.shape[1], device="cpu")
    q = torch.zeros(8, 2, 128, dtype=torch.bfloat16)
    for _ in range(2):
        decode_attention._parts_by_text(q, cache.keys, cache.values, new_control("cpu"), workspace, False)
    assert [options["FORM"] for options in kernel.launched] == [direct if short else staged] * 2
    assert all(options["SHARED_TILES"] == (0 if short else block.shared_tiles(staged)) for options in kernel.launched)
    assert caplog.text.count("bytes of shared memory") == short
