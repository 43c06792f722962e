"""What is made while an arena is active lies in its memory, and nothing else is made."""

import pytest
import torch
from fastqwen.engine.arena import Arena

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def work(x):
    """Every way in which a pass makes room and fills it."""
    a = torch.empty(3, 5, dtype=torch.float32, device=DEVICE)
    b = x.new_empty(7, dtype=torch.int8)
    c = torch.empty_like(x)
    torch.add(x, 1, out=c)
    a.copy_(c.view(-1)[:15].view(3, 5))
    b.fill_(3)
    return a, b, c.to(torch.float32)


def counted(x):
    arena = Arena(DEVICE)
    with arena:
        work(x)
    return arena


def test_results_lie_side_by_side_in_its_memory_again_and_again():
    x = torch.arange(24.0, device=DEVICE).view(4, 6)
    wanted = work(x)
    arena = counted(x)
    assert arena.bytes == 3 * 256  # three tensors of less than that
    arena.allocate()
    places = []
    for _ in range(2):
        with arena:
            found = work(x)
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, wanted, strict=True))
        places.append([part.data_ptr() for part in found])
    first = places[0][0]
    assert places == [[first, first + 256, first + 512]] * 2
    assert {part.untyped_storage().data_ptr() for part in found} == {first}


def test_other_devices_and_passes_without_it_are_left_alone():
    x = torch.ones(4, 6, device=DEVICE)
    arena = counted(x)
    arena.allocate()
    with arena:
        assert torch.empty(10**6, device="meta").device.type == "meta"
    assert work(x)[0].untyped_storage().data_ptr() != arena._memory.data_ptr()


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x + 1, lambda x: x.to(torch.float64), lambda x: torch.cat([x, x]), lambda x: x.T.contiguous(),
        lambda x: torch.zeros(3, device=DEVICE), lambda x: x.sum(0),
    ],
    ids=["sum", "to", "cat", "contiguous", "zeros", "reduction"],
)  # fmt: skip
@torch.inference_mode()
def test_what_takes_memory_elsewhere_is_refused_by_name_and_more_than_was_counted_too(operation):
    x = torch.ones(4, 6, device=DEVICE)
    arena = counted(x)
    with arena:
        operation(x)  # while it counts anything goes
    arena.allocate()
    with pytest.raises(RuntimeError, match=r"aten.*takes memory while.*, at tests/test_arena\.py:\d+"), arena:
        operation(x)
    with pytest.raises(RuntimeError, match="makes more than it did before"), arena:
        for _ in range(4):
            torch.empty(256, dtype=torch.uint8, device=DEVICE)
