"""How a multiprocessor's memory is split into L1 and shared memory while a kernel runs.

NVIDIA's multiprocessors have one memory for both (256 KB on compute capability 9.0) and set the split anew for each
kernel. A kernel that names no split keeps the one it finds if its own shared memory fits, and an attention or a GEMM
leaves one behind with little L1. Every load on its way to registers holds a line of the L1, so kernels that live from
many bytes on their way then wait for lines: the linears of a whole pass took 2.29 ms instead of 2.08 with half of the
memory given away (9B, eight rows, one H200; benchmarks/README.md). Such kernels say what they need, and so does the
merge that follows attention's parts, for kernels behind it that name nothing. It is a hint to the driver and changes no
result.
Source: CUDA driver API, cuFuncSetAttribute, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT.
"""

import ctypes
import logging
import sys
from functools import cache

import torch

PREFERRED_SHARED_MEMORY_CARVEOUT = 9  # of the driver's function attributes
LITTLE = 16  # KB for all blocks of a multiprocessor, each at most 2 KB of its own and 1 KB of the driver's

_log = logging.getLogger(__name__)
_told: set[int] = set()  # functions, by handle


def prefer_shared(launched, device: torch.device, kilobytes: int = LITTLE) -> None:
    """Has the kernel that a Triton launch returned run with so much of a multiprocessor's memory as shared memory.

    From its next launch on, and in every graph captured from then on; later calls return at once. The driver knows
    percent and takes the next size that the hardware has (on 9.0: 0, 8, 16, 32, 64, 100, 132, 164, 196, 228 KB).
    Nothing happens where there is no such split: on AMD, interpreted, or with a driver that refuses.
    """
    function = getattr(launched, "function", None)
    if not isinstance(function, int) or function in _told:
        return
    _told.add(function)
    driver = _driver()
    if driver is None:
        return
    whole = torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor
    percent = kilobytes * 1024 * 100 // whole  # rounded down: a percent more would take the next size
    status = driver.cuFuncSetAttribute(ctypes.c_void_p(function), PREFERRED_SHARED_MEMORY_CARVEOUT, percent)
    if status:
        _log.info("the driver answered %d to a split of L1 and shared memory: it chooses one itself", status)


@cache
def _driver():
    """The CUDA driver that torch has loaded, or None."""
    if torch.version.cuda is None or torch.version.hip is not None:
        return None
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        return (ctypes.WinDLL if sys.platform == "win32" else ctypes.CDLL)(name)
    except OSError as error:
        _log.info("%s is not found (%s): the driver splits L1 and shared memory itself", name, error)
        return None
