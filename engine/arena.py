"""Memory of captured passes where torch allocates by cudaMallocAsync, as it does inside ComfyUI.

What that allocator hands out during a capture has no address before the graph runs: Triton refuses such tensors, and
giving one back after a capture that failed ends the process. So a pass is run once more before, which shows how much it
makes, and while it is captured every `torch.empty` takes its memory from one run of bytes that is there already.
Nothing of it is used twice in a pass: a few tens of megabytes, and no lifetime to get wrong.
"""

import contextlib
import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_ALIGN = 256  # bytes, as torch's allocators have it
_OURS = Path(__file__).resolve().parent.parent
_aten = torch.ops.aten
_COPY_UNLESS_CONTIGUOUS = (_aten.contiguous.default, _aten.reshape.default, _aten.flatten.using_ints)


def captures_need_arena(device: torch.device) -> bool:
    """Whether tensors that are made during a capture cannot be used by kernels of the same capture."""
    return device.type == "cuda" and torch.cuda.get_allocator_backend() == "cudaMallocAsync"


def arena_for(run: Callable[..., object], *arguments, device: torch.device) -> "Arena | NoArena":
    """What to capture `run(*arguments)` in. It has run before, so all that it keeps for later is there."""
    if not captures_need_arena(device):
        return NoArena()
    arena = Arena(device)
    with arena:
        run(*arguments)
    arena.allocate()
    return arena


NoArena = contextlib.nullcontext


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Without Python's garbage collector: what it finds during a capture, anybody's, may be memory that was there
    before, and cudaMallocAsync warns of giving such back."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Arena(TorchDispatchMode):
    """While it is active, counts what uninitialised tensors of a device take, or, after `allocate`, gives them memory.

    With memory of its own it refuses, by a RuntimeError that says where, operations that would take memory elsewhere.
    """

    def __init__(self, device: torch.device):
        super().__init__()
        self._device, self._memory = device, None
        self.bytes = self._at = 0

    def allocate(self):
        """As many bytes as were counted."""
        self._memory = torch.empty(self.bytes, dtype=torch.uint8, device=self._device)

    def __enter__(self):
        self._at = 0
        return super().__enter__()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        made = _uninitialised(func, args, kwargs)
        if made is None:
            if self._memory is not None and _makes_memory(func, args, kwargs):
                raise RuntimeError(f"{func} takes memory while a pass is captured, at {_where()}")
            return func(*args, **kwargs)
        shape, dtype, device = made
        if device.type != self._device.type:
            return func(*args, **kwargs)
        start = self._at
        size = torch.Size(shape).numel() * dtype.itemsize
        self._at += -(-size // _ALIGN) * _ALIGN
        if self._memory is None:
            self.bytes = max(self.bytes, self._at)
            return func(*args, **kwargs)
        if start + size > len(self._memory):
            raise RuntimeError("a pass that is captured makes more than it did before")
        return self._memory[start : start + size].view(dtype).view(shape)


def _uninitialised(func, args, kwargs) -> tuple[tuple[int, ...], torch.dtype, torch.device] | None:
    """(shape, dtype, device) of what an operation makes if it only makes room; None for other operations."""
    if func is _aten.empty.memory_format:
        shape, dtype, device = args[0], torch.get_default_dtype(), torch.device("cpu")
    elif func is _aten.new_empty.default:
        shape, dtype, device = args[1], args[0].dtype, args[0].device
    elif func is _aten.empty_like.default:
        shape, dtype, device = args[0].shape, args[0].dtype, args[0].device
    else:
        return None
    given = kwargs.get("dtype"), kwargs.get("device")
    return tuple(shape), dtype if given[0] is None else given[0], device if given[1] is None else torch.device(given[1])


def _where() -> str:
    """Files and lines of our callers, the innermost three, without this file's."""
    places, frame = [], sys._getframe()
    while frame is not None and len(places) < 3:
        file = Path(frame.f_code.co_filename).resolve()
        if file.is_relative_to(_OURS) and file != Path(__file__).resolve():
            name = file.relative_to(_OURS)
            place = f"{name.as_posix()}:{frame.f_lineno}"
            # An environment inside our folder holds torch's own files.
            if place not in places and "site-packages" not in name.parts:
                places.append(place)
        frame = frame.f_back
    return " < ".join(places)


def _makes_memory(func, args, kwargs) -> bool:
    """Whether an operation returns a tensor that is neither one of its arguments nor a view of one."""
    tensor: Tensor | None = next((argument for argument in args if isinstance(argument, Tensor)), None)
    if tensor is not None and func in _COPY_UNLESS_CONTIGUOUS:
        return not tensor.is_contiguous()
    if tensor is not None and func is _aten.to.dtype:
        return args[1] != tensor.dtype
    return any("Tensor" in str(result.type) and result.alias_info is None for result in func._schema.returns)
