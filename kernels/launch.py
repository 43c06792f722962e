"""Launching a Triton kernel that is compiled already, without Triton's own work in Python before each launch.

`kernel[grid](...)` binds arguments by name, works out what it specialises on, prints the options to a string and looks
a compiled kernel up under that: tens of microseconds, so launches of short prompts take longer to make than to run.
Here the compiled kernel that such a call returns is kept under a key of our own and run directly from then on. The key
holds all that Triton 3.6 specialises on, and so never finds a kernel that Triton would not have found:

    the kernel and the current device
    tensors   dtype, and whether the address is a multiple of 16 bytes
    integers  whether it is 1, and whether it is a multiple of 16; those that do not fit 32 bits are left to Triton
    floats    nothing but that they are one
    constants and options (all keyword arguments)  name, type and value

Whatever else is met is launched by Triton: another version of it, its interpreter, ROCm, other kinds of arguments,
hooks. Triton's own switches for debugging count as they stood at a kernel's first launch. Off unless the environment
has FASTQWEN_DIRECT_LAUNCH=1 or `use_direct` turns it on.
"""

import os
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

_on = os.environ.get("FASTQWEN_DIRECT_LAUNCH", "") == "1"
_kept: dict[Hashable, "_Kept | None"] = {}


@dataclass(frozen=True)
class _Kept:
    """A compiled kernel and the constants that follow the positional arguments in its signature."""

    kernel: object  # the key has its id
    run: Callable
    function: object
    metadata: object
    constants: tuple


def use_direct(on: bool) -> bool:
    """Turns direct launches on or off; returns what was before."""
    global _on
    before, _on = _on, on
    return before


def launch(kernel, grid: tuple[int, ...], *arguments, **constants):
    """`kernel[grid](*arguments, **constants)`: run-time arguments by position, constants and options by name."""
    if not _on:
        kernel[grid](*arguments, **constants)
        return
    driver = _driver()
    key = None if driver is None or not _plain(kernel) else specialisation(arguments)
    if key is None:
        kernel[grid](*arguments, **constants)
        return
    device = driver.get_current_device()
    key = id(kernel), device, key, tuple(constants.items()), tuple(map(type, constants.values()))
    kept = _kept.get(key)
    if kept is None:
        compiled = kernel[grid](*arguments, **constants)
        if key not in _kept:
            _kept[key] = _keep(kernel, compiled, len(arguments), constants)
        return
    x, y, z = (*grid, 1, 1)[:3]
    kept.run(
        x, y, z, driver.get_current_stream(device), kept.function, kept.metadata, None, None, None, *arguments,
        *kept.constants,
    )  # fmt: skip


def specialisation(arguments: tuple) -> tuple | None:
    """What Triton specialises on in run-time arguments, or finer; None for arguments that it is left to judge."""
    found: list = []
    for argument in arguments:
        kind = type(argument)
        if kind is Tensor:
            found.append(argument.dtype)
            found.append(argument.data_ptr() & 15 == 0)
        elif kind is int:
            if not -(2**31) <= argument < 2**31:
                return None
            found.append("one" if argument == 1 else argument & 15 == 0)
        elif kind is float:
            found.append("float")
        else:
            return None
    return tuple(found)


def _keep(kernel, compiled, positional: int, constants: dict) -> _Kept | None:
    from triton.compiler import CompiledKernel

    names = kernel.arg_names[positional:]
    if not isinstance(compiled, CompiledKernel) or not all(name in constants for name in names):
        return None
    run = compiled.run  # loads the kernel, so that `function` is there
    return _Kept(kernel, run, compiled.function, compiled.packed_metadata, tuple(constants[name] for name in names))


_found: list = []  # the module of Triton's switches, JITFunction and the driver, once they are looked for; or None


def _driver():
    """Triton's driver where its insides are those that this file was written for and run on NVIDIA, else None."""
    if not _found:
        _found.append(_look())
    return None if _found[0] is None else _found[0][0]


def _look():
    import triton

    if not triton.__version__.startswith("3.6.") or torch.version.hip is not None or not torch.cuda.is_available():
        return None
    from triton import knobs
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    return driver.active, knobs.runtime, JITFunction


def _plain(kernel) -> bool:
    """Whether nobody wants to hear of this kernel's launches, and it is one that compiles."""
    _, runtime, kind = _found[0]
    hooks = runtime.launch_enter_hook, runtime.launch_exit_hook
    return type(kernel) is kind and not (kernel.pre_run_hooks or any(_has_calls(hook) for hook in hooks))


def _has_calls(hook) -> bool:
    return hook is not None and bool(getattr(hook, "calls", True))
