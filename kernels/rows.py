"""The row contract of a decode pass: eight slots, any tree of drafts, bits that depend on the row alone.

A pass holds up to eight rows: slot 0 is the token that follows the committed text, the others are drafts.
`parents[slot]` is the slot a row follows (-1 for slot 0). Only one row of each depth may have children, so the
rows with children form a chain and each of them can lie in the cache at its true position.

In plain torch a row is computed alone, on contiguous operands of one fixed shape: libraries choose another
code path per row count, and vectorised loops treat the tail of a larger tensor differently, so computing rows
together would let their number change their bits.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

SLOTS = 8


def depths(parents: Sequence[int]) -> tuple[int, ...]:
    """Depth of every row, 0 for the root. Raises ValueError on what is not a tree with one chain of parents."""
    if not 1 <= len(parents) <= SLOTS or parents[0] != -1:
        raise ValueError(f"parents {tuple(parents)}: 1 to {SLOTS} rows are wanted, the first with parent -1")
    result = [0]
    for slot, parent in enumerate(parents[1:], start=1):
        if not 0 <= parent < slot:
            raise ValueError(f"parents {tuple(parents)}: slot {slot} must follow an earlier slot")
        result.append(result[parent] + 1)
    inner = {parent for parent in parents if parent >= 0}
    if len({result[slot] for slot in inner}) != len(inner):
        raise ValueError(f"parents {tuple(parents)}: two rows of one depth have children")
    return tuple(result)


def ancestors(parents: Sequence[int], slot: int) -> tuple[int, ...]:
    """Slots from the root down to and including `slot`."""
    path = [slot]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    return tuple(reversed(path))


def cache_offsets(parents: Sequence[int]) -> tuple[int, ...]:
    """Where each row's key and value lie past the committed length: a permutation of 0..rows-1.

    A row with children lies at its depth, which is its true position; leaves fill the offsets that are left.
    """
    depth = depths(parents)
    inner = {parent for parent in parents if parent >= 0}
    free = iter(sorted(set(range(len(parents))) - {depth[slot] for slot in inner}))
    return tuple(depth[slot] if slot in inner else next(free) for slot in range(len(parents)))


def check_path(parents: Sequence[int], path: Sequence[int]):
    """Raises ValueError unless `path` runs from the root along parents."""
    if not path or max(path) >= len(parents) or tuple(path) != ancestors(parents, path[-1]):
        raise ValueError(f"path {tuple(path)} does not run from the root along parents {tuple(parents)}")


def each_row(function: Callable[..., Tensor | tuple[Tensor, ...]], rows: int, *inputs: Tensor):
    """Applies `function` to every live row alone.

    inputs   tensors [SLOTS, ...]; `function` gets one contiguous row of each
    Returns tensors [SLOTS, ...] (a tuple if `function` returns one); dead slots are zero.
    """
    results = [function(*(tensor[slot].clone() for tensor in inputs)) for slot in range(rows)]
    if isinstance(results[0], tuple):
        return tuple(_in_slots(column) for column in zip(*results, strict=True))
    return _in_slots(results)


def _in_slots(results: Sequence[Tensor]) -> Tensor:
    slots = results[0].new_zeros((SLOTS, *results[0].shape))
    torch.stack(tuple(results), out=slots[: len(results)])
    return slots
