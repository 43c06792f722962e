"""Direct launches of compiled kernels: the key, and when Triton is asked instead."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from fastqwen.kernels import launch as module

pytest.importorskip("triton")
from triton.compiler import CompiledKernel  # noqa: E402

DEVICE, STREAM = 3, 77


class Compiled(CompiledKernel):
    """What a call of a kernel returns: it keeps what it was run with."""

    function, packed_metadata = "function", "metadata"

    def __init__(self):
        self.runs = []

    @property
    def run(self):
        return lambda *words: self.runs.append(words)


class Kernel:
    """A kernel of the signature (x, n, SIZE, KIND) that counts Triton's launches."""

    arg_names = ["x", "n", "SIZE", "KIND"]

    def __init__(self):
        self.pre_run_hooks, self.made, self.calls = [], [], 0

    def __getitem__(self, grid):
        def run(*arguments, **constants):
            self.calls += 1
            self.made.append(Compiled())
            return self.made[-1]

        return run


@pytest.fixture
def runtime(monkeypatch):
    """Direct launches on over a driver that is none; returns Triton's switches."""
    switches = SimpleNamespace(launch_enter_hook=SimpleNamespace(calls=[]), launch_exit_hook=None)
    driver = SimpleNamespace(get_current_device=lambda: DEVICE, get_current_stream=lambda device: STREAM + device)
    monkeypatch.setattr(module, "_found", [(driver, switches, Kernel)])
    monkeypatch.setattr(module, "_kept", {})
    monkeypatch.setattr(module, "_on", True)
    return switches


def test_the_second_launch_runs_the_compiled_kernel_with_everything_in_the_signatures_order(runtime):
    kernel, x, other = Kernel(), torch.zeros(32), torch.ones(32)
    module.launch(kernel, (5,), x, 7, KIND="k", num_warps=4, SIZE=64)
    module.launch(kernel, (6, 2), other, 9, KIND="k", num_warps=4, SIZE=64)
    assert kernel.calls == 1
    ((*words,),) = kernel.made[0].runs
    assert words[:9] == [6, 2, 1, STREAM + DEVICE, "function", "metadata", None, None, None]
    assert words[9] is other and words[10:] == [9, 64, "k"]


@pytest.mark.parametrize(
    "other",
    [
        {"x": torch.zeros(32, dtype=torch.float16)},
        {"x": torch.zeros(33)[1:]},
        {"n": 1},
        {"n": 16},
        {"n": 2.0},
        {"SIZE": 128},
        {"SIZE": 64.0},
        {"SIZE": True},
        {"num_warps": 8},
    ],
    ids=str,
)
def test_whatever_may_need_another_kernel_is_launched_by_triton_first(runtime, other):
    kernel = Kernel()
    for change in ({}, other, {}, other):
        values = {"x": torch.zeros(32), "n": 7, "SIZE": 1 if other.get("SIZE") is True else 64, "num_warps": 4} | change
        module.launch(kernel, (1,), values.pop("x"), values.pop("n"), KIND="k", **values)
    assert kernel.calls == 2 and [len(made.runs) for made in kernel.made] == [1, 1]


def test_unusual_launches_are_left_to_triton(runtime, monkeypatch):
    kernel, x = Kernel(), torch.zeros(32)

    def twice(*arguments, **constants):
        before = kernel.calls
        for _ in range(2):
            module.launch(kernel, (1,), *arguments, **constants)
        return kernel.calls - before

    constants = {"SIZE": 64, "KIND": "k"}
    assert twice(x, 2**31, **constants) == twice(x, None, **constants) == twice(x, True, **constants) == 2
    assert twice(x, 7, SIZE=64) == 2  # a constant has a default of its own
    kernel.pre_run_hooks.append(print)
    assert twice(x, 7, **constants) == 2
    kernel.pre_run_hooks.clear()
    runtime.launch_enter_hook.calls.append(print)
    assert twice(x, 7, **constants) == 2
    runtime.launch_enter_hook.calls.clear()
    assert module.use_direct(False) and twice(x, 7, **constants) == 2
    assert not module.use_direct(True) and twice(x, 7, **constants) == 1
    monkeypatch.setattr(module, "_found", [None])
    assert twice(x, 7, **constants) == 2


def test_arguments_of_one_key_are_one_to_triton():
    """Against Triton's own function, for every pair of arguments."""
    jit = pytest.importorskip("triton.runtime.jit")
    if not hasattr(jit, "native_specialize_impl"):
        pytest.skip("another version of Triton, where nothing is launched directly")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend

    backend, bytes_ = make_backend(GPUTarget("cuda", 90, 32)), torch.zeros(256, dtype=torch.uint8)
    values = [0, 1, 2, 15, 16, 17, 48, -1, -16, 2**31 - 1, -(2**31), 0.0, 1.0, 16.0, float("nan")]
    values += [bytes_[start:] for start in (0, 1, 8, 16, 24)]
    values += [bytes_[:64].view(dtype) for dtype in (torch.int8, torch.int32, torch.bfloat16, torch.float16)]
    for one, two in itertools.combinations(values, 2):
        if module.specialisation((one,)) == module.specialisation((two,)):
            for specialised in (True, False):
                found = [jit.native_specialize_impl(backend, x, False, specialised, True) for x in (one, two)]
                assert found[0] == found[1], (one, two)
