"""The shortened interpreter of the kernel tests computes what Triton's own does, bit for bit."""

import os

import pytest
import torch
from delta_sequences import Sequence, make_weights
from fastqwen.kernels.delta_decode import Heads
from short_interpreter import shorten

triton = pytest.importorskip("triton")
tl = triton.language
pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are not interpreted")


@triton.jit
def _spread(x, SIZE: tl.constexpr):
    return x[:, None] * tl.arange(0, SIZE)[None, :]


@triton.jit
def _wrapping_kernel(p_x, p_out, SIZE: tl.constexpr, REFUSED: tl.constexpr):
    x = tl.sort(tl.load(p_x + tl.arange(0, SIZE)), descending=True)
    tl.static_assert(not REFUSED)
    tl.store(p_out + tl.arange(0, SIZE), tl.sum(_spread(x * x, SIZE) + x[:, None], 1))


def wrapping(refused=False):
    """Sorted integers of which most products and sums leave int32."""
    x = torch.arange(8, dtype=torch.int32)[[5, 2, 7, 0, 3, 6, 1, 4]] * 123456789
    out = torch.zeros(8, dtype=torch.int32)
    _wrapping_kernel[(1,)](x, out, SIZE=8, REFUSED=refused)
    return out


def passes():
    """Outputs and state of a kernel of many device functions, over two passes."""
    sequence = Sequence(make_weights(Heads(1, 1, 16, 16)), torch.bfloat16)
    outs = [sequence.run("abc", (-1, 0, 0))]
    sequence.accept(2)
    return torch.stack([*outs, sequence.run("d", (-1,))]), sequence.state.recurrent


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
def test_launches_give_the_bits_of_tritons_own_interpreter(interpreter):
    with pytest.raises(Exception, match="AssertionError"):
        wrapping(refused=True)  # a launch that fails leaves nothing behind for the next
    short = wrapping(), *passes()
    interpreter.undo()
    try:
        whole = wrapping(), *passes()
    finally:
        shorten(interpreter)
    assert short[0].unique().numel() > 4 and short[2].any()
    for found, wanted in zip(short, whole, strict=True):
        assert torch.equal(found, wanted)
