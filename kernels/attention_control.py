"""What a decode pass tells its attention kernels: one int32 tensor, read on the device, the same for all layers.

    0      committed length              8..15   depth of each row, 0 for the root
    1      live rows, 0 to 8            16..23   offset of each row's key and value past the committed length
    2, 3   move: from slot, to slot; -1 for none
    4..7   unused

A row sees the slots below length + depth: the committed ones and its ancestors, for a row with children lies at its
depth (kernels/rows.py). So depths say all that a mask would. A leaf lies wherever there was room; if it is accepted,
the next pass's `move` puts its bytes where its depth belongs, before that pass's own rows are written.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from .rows import cache_offsets, depths

CONTROL = 24
LENGTH, ROWS, MOVE, DEPTHS, OFFSETS = 0, 1, 2, 8, 16
TILE = 64  # slots; every part of kernels/attention.py is a multiple of it
FLOATS = (torch.bfloat16, torch.float16, torch.float32)
STORED = (torch.int8, torch.bfloat16, torch.float32)
HEAD_DIMS = (32, 64, 128, 256)


def new_control(device) -> Tensor:
    """The control tensor of a pass on `device`: nothing committed, no rows, no move."""
    control = torch.zeros(CONTROL, dtype=torch.int32)
    control[MOVE : MOVE + 2] = -1
    return control.to(device)


def write_control(control: Tensor, *, length: int, parents: Sequence[int], move: tuple[int, int] | None = None):
    """Fills a control tensor from the host.

    length   committed tokens
    parents  of the live rows, as in kernels/rows.py
    move     (from, to): a slot whose stored key and value are copied before this pass's rows are written
    """
    host = torch.zeros(CONTROL, dtype=torch.int32)
    host[LENGTH], host[ROWS] = length, len(parents)
    host[MOVE : MOVE + 2] = torch.tensor((-1, -1) if move is None else move)
    host[DEPTHS : DEPTHS + len(parents)] = torch.tensor(depths(parents))
    host[OFFSETS : OFFSETS + len(parents)] = torch.tensor(cache_offsets(parents))
    control.copy_(host)


def want(name: str, tensor: Tensor, shape: Sequence[int], dtypes: Sequence[torch.dtype], device: torch.device):
    """Raises ValueError unless the tensor has this shape and one of these dtypes, on the cache's device."""
    if tuple(tensor.shape) != tuple(shape) or tensor.dtype not in dtypes:
        raise ValueError(f"{name} must be {dtypes[0]} {list(shape)}, got {tensor.dtype} {list(tensor.shape)}")
    if tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device}, the cache on {device}: move them to one device")


def check_cache(keys, values, control: Tensor | None):
    """Raises ValueError unless keys and values (attention/cache.py's Stored) and control, if any, fit the kernels."""
    numbers = keys.numbers
    kv_heads, slots, dim = numbers.shape
    if dim not in HEAD_DIMS:
        raise ValueError(f"head dimension {dim}: {HEAD_DIMS} are handled")
    if slots % TILE:
        raise ValueError(
            f"{slots} slots in the cache: a multiple of {TILE} is wanted, as attention/cache.py makes them"
        )
    for name, stored in (("keys", keys), ("values", values)):
        want(name, stored.numbers, numbers.shape, (numbers.dtype,), numbers.device)
        if stored.numbers.dtype not in STORED or not stored.numbers.is_contiguous():
            raise ValueError(f"{name} must be contiguous int8, bf16 or fp32, got {stored.numbers.dtype}")
        if (stored.scales is None) != (numbers.dtype != torch.int8):
            raise ValueError(f"{name}: int8 numbers and no others come with scales")
        if stored.scales is not None:
            want(f"{name}' scales", stored.scales, (kv_heads, slots), (torch.float32,), numbers.device)
    if control is not None:
        want("control", control, (CONTROL,), (torch.int32,), numbers.device)
