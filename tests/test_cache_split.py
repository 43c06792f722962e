"""The split of L1 and shared memory: asked for once per kernel, in percent, and never an error."""

import ctypes
from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl
from fastqwen.kernels import cache_split
from fastqwen.kernels.cache_split import PREFERRED_SHARED_MEMORY_CARVEOUT, prefer_shared

H200 = 228 * 1024


class Driver:
    def __init__(self, status=0):
        self.calls, self.status = [], status

    def cuFuncSetAttribute(self, function, attribute, value):
        self.calls.append((function.value, attribute, value))
        return self.status


@pytest.fixture
def driver(monkeypatch):
    made = Driver()
    monkeypatch.setattr(cache_split, "_driver", lambda: made)
    monkeypatch.setattr(cache_split, "_told", set())
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(shared_memory_per_multiprocessor=H200)
    )
    return made


def test_a_kernel_is_told_once(driver):
    one, other = SimpleNamespace(function=1234), SimpleNamespace(function=99)
    for launched in (one, one, other, one):
        prefer_shared(launched, torch.device("cuda"))
    assert driver.calls == [(1234, PREFERRED_SHARED_MEMORY_CARVEOUT, 7), (99, PREFERRED_SHARED_MEMORY_CARVEOUT, 7)]


@pytest.mark.parametrize(("kilobytes", "percent"), [(0, 0), (8, 3), (16, 7), (64, 28), (228, 100)])
def test_percent_never_asks_for_the_next_size_of_the_hardware(driver, kilobytes, percent):
    prefer_shared(SimpleNamespace(function=1), torch.device("cuda"), kilobytes)
    assert driver.calls[0][2] == percent
    assert percent * H200 <= kilobytes * 1024 * 100


def test_an_interpreted_launch_asks_for_nothing(driver):
    prefer_shared(None, torch.device("cpu"))
    assert driver.calls == []


def test_a_driver_that_refuses_is_no_error(driver, caplog):
    driver.status = 1
    with caplog.at_level("INFO"):
        prefer_shared(SimpleNamespace(function=5), torch.device("cuda"))
    assert "answered 1" in caplog.text


def test_without_a_driver_nothing_happens(driver, monkeypatch):
    monkeypatch.setattr(cache_split, "_driver", lambda: None)
    prefer_shared(SimpleNamespace(function=5), torch.device("cuda"))
    assert driver.calls == []


@triton.jit
def kernel(x):
    tl.store(x, 1)


@pytest.mark.gpu
def test_the_driver_keeps_what_packed_linears_ask_for():
    if torch.version.hip is not None:
        pytest.skip("needs an NVIDIA GPU")
    x = torch.zeros(1, dtype=torch.int32, device="cuda")
    launched = kernel[(1,)](x)
    prefer_shared(launched, x.device)
    found = ctypes.c_int()
    status = cache_split._driver().cuFuncGetAttribute(
        ctypes.byref(found), PREFERRED_SHARED_MEMORY_CARVEOUT, ctypes.c_void_p(launched.function)
    )
    whole = torch.cuda.get_device_properties(x.device).shared_memory_per_multiprocessor
    assert (status, found.value) == (0, 16 * 1024 * 100 // whole)
    kernel[(1,)](x)
    assert x.item() == 1
