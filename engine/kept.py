"""Copies of tensors in RAM, from which a GPU can take them back without waiting for them.

All of a copy lies in one run of bytes, cut into pieces that are page-locked where there is a GPU. Copies to and from
them are queued on its stream like kernels: the host goes on, and a prompt's next pass does not begin later. Pieces are
powers of two because torch rounds what it locks up to one.
"""

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

_ALIGN = 16  # bytes between starts of tensors: any dtype can be read there
_SMALLEST = 1 << 20  # bytes of the last piece, unless all fits a smaller one


def bytes_for(tensors: Sequence[Tensor]) -> int:
    """Bytes that `Kept` of these takes."""
    whole = sum(map(_aligned, tensors))
    return sum(_pieces(whole)) if _on_gpu(tensors) else whole


class Kept:
    """Copies of tensors, all of one device. `bytes` is what they take in RAM."""

    def __init__(self, tensors: Sequence[Tensor]):
        self._places = [(tensor.dtype, tensor.shape) for tensor in tensors]
        self._whole, self.bytes = sum(map(_aligned, tensors)), bytes_for(tensors)
        flat = torch.empty(self._whole, dtype=torch.uint8, device=tensors[0].device if tensors else "cpu")
        for target, tensor in zip(self._views(flat), tensors, strict=True):
            target.copy_(tensor)
        self._pieces = [flat]
        if flat.is_cuda:
            self._pieces = [_locked(size) for size in _pieces(self._whole)]
            for piece, part in zip(self._pieces, self._parts(flat), strict=True):
                piece[: len(part)].copy_(part, non_blocking=True)

    def on(self, device: torch.device) -> list[Tensor]:
        """The tensors on a device, on a CPU the copies themselves."""
        flat = self._pieces[0]
        if device.type != "cpu":
            flat = torch.empty(self._whole, dtype=torch.uint8, device=device)
            for piece, part in zip(self._pieces, self._parts(flat), strict=True):
                part.copy_(piece[: len(part)], non_blocking=True)
        return self._views(flat)

    def _parts(self, flat):
        sizes = [len(piece) for piece in self._pieces]
        sizes[-1] = self._whole - sum(sizes[:-1])
        return flat.split(sizes)

    def _views(self, flat):
        found, start = [], 0
        for dtype, shape in self._places:
            size = shape.numel() * dtype.itemsize
            found.append(flat[start : start + size].view(dtype).view(shape))
            start += -(-size // _ALIGN) * _ALIGN
        return found


def _aligned(tensor):
    return -(-tensor.nbytes // _ALIGN) * _ALIGN


def _on_gpu(tensors):
    return any(tensor.is_cuda for tensor in tensors)


def _pieces(whole: int) -> list[int]:
    """Sizes of pieces that hold `whole` bytes: powers of two, the largest first."""
    found = []
    while whole > 0:
        size = 1 << (whole.bit_length() - 1)  # the largest that it fills
        if whole <= _SMALLEST:
            size = 1 << (whole - 1).bit_length()
        found.append(size)
        whole -= size
    return found


def _locked(size):
    try:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    except RuntimeError as error:  # the system locks no more pages: copies then wait, and are right all the same
        logger.debug("FastQwen: %d bytes are not page-locked (%s).", size, error)
        return torch.empty(size, dtype=torch.uint8)
