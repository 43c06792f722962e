"""Pillow's bicubic resizing of 8-bit pictures, in integers, so that a GPU gives the same bits.

Along an axis of n pixels that becomes m, scale = n / m, output i sits at c = (i + 0.5) scale and takes the pixels k of
[c - 2 s, c + 2 s], s = max(scale, 1), with weights K((k + 0.5 - c) / s), K Keys' cubic of a = -1/2, normalised to sum
to one and rounded to 22 bits behind the point. Each pass rounds to 8 bits. The horizontal one goes first, unless the
vertical one removes more than twice as many rows as the other removes columns: Pillow 13's order, found by trying it
and tested. Pillow up to 12 always begins horizontally; the order here does not depend on what is installed, so that a
picture gives the same bits everywhere.
"""

import numpy
import torch
from torch import Tensor

BITS = 22
AT_ONCE = 1 << 24  # values of one pass's sums, int32: 64 MiB


def resize(pictures: Tensor, size: tuple[int, int]) -> Tensor:
    """uint8 [B, C, H, W] -> uint8 [B, C, *size] on the same device."""
    if tuple(pictures.shape[-2:]) == tuple(size):
        return pictures
    if pictures.device.type == "cpu":
        return torch.stack([_by_pillow(picture, size) for picture in pictures])
    return by_integers(pictures, size)


def by_integers(pictures: Tensor, size: tuple[int, int]) -> Tensor:
    """`resize` on any device."""
    planes = pictures.flatten(0, -3)
    at_once = max(1, AT_ONCE // (max(planes.shape[-2], size[0]) * size[1]))
    first, second = _axes(pictures.shape[-2:], size)
    done = [_along(_along(part, 1 + first, size[first]), 1 + second, size[second]) for part in planes.split(at_once)]
    return torch.cat(done).view(*pictures.shape[:-2], *size)


def _axes(before, after) -> tuple[int, int]:
    """The order of the two passes: 0 is the vertical one."""
    rows, columns = before[0] - after[0], before[1] - after[1]
    return (0, 1) if rows > 2 * max(0, columns) else (1, 0)


def _along(planes, axis, count):
    """uint8 [P, H, W] with axis 1 or 2 resized to `count`."""
    if planes.shape[axis] == count:
        return planes
    first, weights = taps(planes.shape[axis], count)
    shape = (-1, 1) if axis == 1 else (-1,)
    last = planes.shape[axis] - 1
    total: Tensor | int = 1 << (BITS - 1)
    first, weights = first.to(planes.device), weights.to(planes.device)
    for tap in range(weights.shape[1]):
        taken = planes.index_select(axis, (first + tap).clamp(max=last))
        total = taken.int() * weights[:, tap].view(shape) + total
    return (total >> BITS).clamp(0, 255).to(torch.uint8)


def taps(n: int, m: int) -> tuple[Tensor, Tensor]:
    """For m outputs of n inputs: the first input that each takes, int64 [m], and the weights from there on, int32
    [m, taps], zero where an output takes fewer."""
    scale = n / m
    stretch = max(scale, 1.0)
    center = (torch.arange(m, dtype=torch.float64) + 0.5) * scale
    first = (center - 2 * stretch + 0.5).long().clamp(min=0)
    behind = (center + 2 * stretch + 0.5).long().clamp(max=n)
    at = first[:, None] + torch.arange(int((behind - first).max()))
    x = ((at + 0.5 - center[:, None]) / stretch).abs()
    near, far = 1.5 * x**3 - 2.5 * x**2 + 1, -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
    weights = torch.where(x < 1, near, torch.where(x < 2, far, 0.0))
    weights = torch.where(at < behind[:, None], weights, 0.0)
    weights = weights / weights.sum(1, keepdim=True)
    # Halves away from zero, where torch.round takes them to the even number.
    weights = (weights * 2**BITS).abs().add(0.5).floor() * weights.sign()
    return first, weights.int()


def _by_pillow(picture, size):
    """The same by Pillow itself, which is faster on a CPU: uint8 [3, H, W] -> uint8 [3, *size]."""
    from PIL import Image

    levels = Image.fromarray(picture.movedim(0, -1).contiguous().numpy())
    for axis in _axes(picture.shape[-2:], size):  # one axis a call, so that the order is ours
        step = (levels.width, size[0]) if axis == 0 else (size[1], levels.height)
        levels = levels.resize(step, Image.Resampling.BICUBIC)
    return torch.from_numpy(numpy.array(levels)).movedim(-1, 0)
