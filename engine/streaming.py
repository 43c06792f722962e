"""Weights that do not fit on a GPU: the matrices of some layers stay in RAM and are copied to it ahead of their use.

A GPU holds two staging buffers; streamed layers take turns in them. While one layer runs, the next streamed one arrives
in the other buffer. Every pass runs all layers in order, so what comes next is known; a pass that starts elsewhere (one
was interrupted) copies what it needs when it needs it. Tensors of a streamed layer lie in its buffer for good, so
kernels find them at one address; only what is there changes.
"""

import contextlib
import mmap
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..model.block import Block
from ..model.trunk import Trunk
from ..mtp.head import MtpHead
from ..weights import FastQwenError, Projection
from .memory import by_storage, bytes_of, objects_of, put, tensors_of

BUFFERS = 2
_ALIGN = 256  # bytes, as torch's allocator has it: kernels want 16


@dataclass(frozen=True)
class Plan:
    """Which layers are streamed, in order, and how many bytes of weights then are on the device, buffers included."""

    streamed: tuple[int, ...]
    device_bytes: int


def plan(layer_bytes: Sequence[int], fixed_bytes: int, budget: int) -> Plan:
    """The fewest layers to stream so that all weights on the device take at most `budget` bytes, evenly spread, so that
    copies go on while the layers between them run.

    layer_bytes  of each layer's matrices; fixed_bytes: of everything else
    Raises FastQwenError where even streaming every layer takes more.
    """
    count, whole = len(layer_bytes), fixed_bytes + sum(layer_bytes)
    if whole <= budget:
        return Plan((), whole)
    least = whole
    for streamed in range(BUFFERS + 1, count + 1):  # as many layers as buffers would be there all the time
        chosen = tuple(turn * count // streamed for turn in range(streamed))
        sizes = [layer_bytes[index] for index in chosen]
        needed = whole - sum(sizes) + BUFFERS * max(sizes)
        if needed <= budget:
            return Plan(chosen, needed)
        least = min(least, needed)
    raise FastQwenError(
        f"A VRAM budget of {budget / 2**30:.2f} GiB is too small: with every layer streamed from RAM "
        f"{least / 2**30:.2f} GiB of weights stay on the GPU; raise it, or take a more quantised checkpoint."
    )


class Turns:
    """Which streamed layer each buffer holds. Layers are numbered in the order they run, 0 to `count` - 1."""

    def __init__(self, count: int):
        self._count = count
        self._held: list[int | None] = [None] * BUFFERS

    def buffer(self, turn: int) -> int:
        return turn % BUFFERS

    def holds(self, turn: int) -> bool:
        return self._held[self.buffer(turn)] == turn

    def emptied(self, buffer: int):
        """What is in the buffer is about to be overwritten."""
        self._held[buffer] = None

    def filled(self, turn: int):
        self._held[self.buffer(turn)] = turn

    def after(self, turn: int) -> int:
        """The next layer in this one's buffer, of the next pass if this pass has none."""
        following = turn + BUFFERS
        return following if following < self._count else self.buffer(turn)


class Copies(Protocol):
    """How layers get into buffers."""

    def start(self, buffer: int, target: Tensor, source: Tensor):
        """Copies once what was launched so far has run."""

    def wait(self, buffer: int):
        """What is launched from now on finds the buffer filled."""


class PlainCopies:
    """At once: where everything runs as it is called."""

    def start(self, buffer: int, target: Tensor, source: Tensor):
        target.copy_(source)

    def wait(self, buffer: int):
        """Nothing is under way."""


class StreamCopies:
    """On a CUDA stream of their own, beside the kernels."""

    def __init__(self, device: torch.device):
        self._device, self._stream = device, torch.cuda.Stream(device)
        self._arrived = [torch.cuda.Event() for _ in range(BUFFERS)]
        self._fence = torch.zeros(1, dtype=torch.int32, device=device)

    def start(self, buffer: int, target: Tensor, source: Tensor):
        self._stream.wait_stream(torch.cuda.current_stream(self._device))  # its last reader has run to its end
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            target.record_stream(self._stream)  # not given to anyone else before the copy is done
            self._arrived[buffer].record(self._stream)

    def wait(self, buffer: int):
        torch.cuda.current_stream(self._device).wait_event(self._arrived[buffer])
        # Kernels launched as dependents may read weights before the kernel ahead of them has ended. This one is no
        # dependent, so it starts behind the event, and the layer's first kernel behind its end.
        self._fence.add_(1)


class HostLayer:
    """One layer's matrices in RAM, and where in them each tensor lies. `bytes` is what they take anywhere."""

    def __init__(self, block: Block):
        projections = [value for value in objects_of(block) if isinstance(value, Projection)]
        tensors = tensors_of(*(projection.matrices for projection in projections))
        self._places, self.bytes = [], 0
        groups = by_storage(tensors, tensors[0].device)
        assert sum(map(len, groups)) == len(tensors), "a layer's matrices are on more than one device"
        for group in groups:
            for tensor in group:
                offset = self.bytes // tensor.itemsize + tensor.storage_offset()
                self._places.append((tensor, offset, tensor.size(), tensor.stride()))
            self.bytes += -(-group[0].untyped_storage().nbytes() // _ALIGN) * _ALIGN
        # Whole pages of its own, since they are what is locked.
        pages = torch.empty(self.bytes + 2 * mmap.PAGESIZE, dtype=torch.uint8)
        self.host = pages[-pages.data_ptr() % mmap.PAGESIZE :][: self.bytes]
        start = 0
        for group in groups:
            storage = group[0].untyped_storage()
            flat = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            self.host[start : start + flat.numel()].copy_(flat)
            start += -(-flat.numel() // _ALIGN) * _ALIGN
        self.point_to(self.host)

    @property
    def tensors(self) -> list[Tensor]:
        return [place[0] for place in self._places]

    def point_to(self, buffer: Tensor):
        """Has the tensors lie in a buffer [at least `bytes`] uint8, whatever it holds."""
        for tensor, offset, size, stride in self._places:
            start = buffer.storage_offset() // tensor.itemsize + offset
            put(tensor, buffer.untyped_storage(), start, size, stride)

    def settle(self, device: torch.device):
        """Moves the matrices to a device for good."""
        self.point_to(torch.empty(self.bytes, dtype=torch.uint8, device=device).copy_(self.host))
        self.host = None

    def pin(self) -> bool:
        """Locks the host memory's pages, so that copies run beside kernels; False where the system refuses."""
        # Registered, not allocated pinned: torch rounds that up to a power of two, which can be twice as much.
        runtime, address = torch.cuda.cudart(), self.host.data_ptr()
        size = -(-self.bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        if int(runtime.cudaHostRegister(address, size, 0)) != 0:
            with contextlib.suppress(RuntimeError):  # the refusal is reported once more, by the next launch
                torch.zeros(1, device="cuda")
            return False
        weakref.finalize(self, _unpin, address, torch.cuda.current_device()).atexit = False
        return True


def _unpin(address: int, device: int):
    torch.cuda.synchronize(device)  # a copy may be under way
    torch.cuda.cudart().cudaHostUnregister(address)


class Stream:
    """The streamed layers of a model and their buffers."""

    def __init__(self, layers: Sequence[HostLayer], device: torch.device, copies: Copies):
        self._layers, self._copies, self._turns = layers, copies, Turns(len(layers))
        size = max(layer.bytes for layer in layers)
        self._buffers = [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(BUFFERS)]
        for turn, layer in enumerate(layers):
            layer.point_to(self._buffers[self._turns.buffer(turn)])

    def begin(self, turn: int):
        """Before a layer's first kernel is launched."""
        if not self._turns.holds(turn):
            self._fetch(turn)
        self._copies.wait(self._turns.buffer(turn))

    def end(self, turn: int):
        """After its last one."""
        following = self._turns.after(turn)
        if following != turn:
            self._fetch(following)

    def _fetch(self, turn):
        buffer, source = self._turns.buffer(turn), self._layers[turn].host
        self._turns.emptied(buffer)
        self._copies.start(buffer, self._buffers[buffer][: len(source)], source)
        self._turns.filled(turn)


class StreamedBlock:
    """A model.block.Block whose matrices arrive when it runs."""

    def __init__(self, block: Block, stream: Stream, turn: int):
        self.block, self.mixer, self.mlp = block, block.mixer, block.mlp
        self._stream, self._turn = stream, turn

    def prefill(self, x: Tensor, mix: Callable[[Tensor], Tensor]) -> Tensor:
        return self._run(lambda: self.block.prefill(x, mix))

    def verify(self, x: Tensor, rows: int, mix: Callable[[Tensor], Tensor]) -> Tensor:
        return self._run(lambda: self.block.verify(x, rows, mix))

    def _run(self, layer):
        self._stream.begin(self._turn)
        x = layer()
        self._stream.end(self._turn)
        return x


class Placement:
    """Keeps a model's layers in RAM while it is loaded (`take`), then places them by a budget (`settle`).

    budget  bytes; None, or on a CPU: every layer stays where it was read
    """

    def __init__(self, device: torch.device, budget: int | None):
        self.budget, self._used = budget, budget is not None and device.type != "cpu"
        self.layers: list[HostLayer] = []
        self.streams = False  # whether some layers are read in every pass

    def take(self, block: Block) -> Block:
        """Told of every layer once it is read; its matrices go to RAM."""
        if self._used:
            self.layers.append(HostLayer(block))
        return block

    def settle(self, trunk: Trunk, head: MtpHead | None) -> list[str]:
        """Brings back what fits and streams the rest. Returns what a user should know, one sentence each.

        Raises FastQwenError for a budget that is too small.
        """
        if not self._used:
            return [] if self.budget is None else ["vram_budget is for GPUs and is not used on a CPU."]
        layers, device = self.layers, trunk.norm.device
        known = {id(tensor) for layer in layers for tensor in layer.tensors}
        fixed = [tensor for tensor in tensors_of(trunk, head) if id(tensor) not in known]
        chosen = plan([layer.bytes for layer in layers], bytes_of(by_storage(fixed, device)), self.budget)
        streamed = [layers[index] for index in chosen.streamed]
        for layer in layers:
            if layer not in streamed:
                layer.settle(device)
        if not streamed:
            return []
        self.streams = True
        pinned = device.type != "cuda" or all([layer.pin() for layer in streamed])
        stream = Stream(streamed, device, StreamCopies(device) if device.type == "cuda" else PlainCopies())
        for turn, index in enumerate(chosen.streamed):
            trunk.blocks[index] = StreamedBlock(trunk.blocks[index], stream, turn)
        size = sum(layer.bytes for layer in streamed)
        notes = [
            f"{len(streamed)} of {len(layers)} layers ({size / 2**30:.2f} GiB) are read from RAM in every pass, for a "
            f"VRAM budget of {self.budget / 2**30:.2f} GiB: slower, the same text."
        ]
        if not pinned:
            notes.append("The system refused to lock their memory: copies wait for the GPU and are slower still.")
        return notes
