"""Whether DeltaNet layers run by kernels on a device: decided once, by a check against the reference."""

import functools

import torch

from ..kernels import delta_decode, delta_prefill, delta_rule
from ..kernels.delta_decode import Heads, Weights
from ..weights.backend import decide


@functools.cache
def delta_kernels(device: torch.device) -> tuple[bool, str]:
    """(whether to use the kernels, why). A failure is logged once and the torch path taken."""
    return decide(device, "DeltaNet", wrong_result)


def wrong_result(device: torch.device) -> str | None:
    """Runs the kernels on small random data; what differs from the reference or from itself, or None."""
    random = torch.Generator().manual_seed(0)
    heads = Heads(1, 2, 32, 32)
    taps, rate, dt_bias, norm = (torch.randn(*shape, generator=random) for shape in ((4, 128), (2,), (2,), (32,)))
    weights = Weights(heads, *(part.to(device) for part in (taps, -rate.abs(), dt_bias, norm)), eps=1e-6)
    inputs = [torch.randn(8, size, generator=random).to(device) for size in (128, 64, 2, 2)]
    passes = ((-1, 0, 0, 1, 1), ()), ((-1,), (0, 1, 4)), ((), (0,))  # (parents, pending)
    found, state = _run(delta_decode.delta_decode, inputs, weights, passes)
    wanted, wanted_state = _run(delta_decode.reference, inputs, weights, passes)
    for ours, theirs in zip((*found, state), (*wanted, wanted_state), strict=True):
        if not _close(ours, theirs):
            return "results differ from the reference"
    plain = delta_decode.allocate(heads, dtype=torch.float32, device=device)
    for turn, slot in enumerate((0, 1, 4, 0)):  # the same tokens one at a time
        row, pending = [part[[slot] * 8] for part in inputs], (0,) if turn else ()
        out = _launch(delta_decode.delta_decode, row, weights, plain, (-1,), turn % 2, pending)
    _launch(delta_decode.delta_decode, inputs, weights, plain, (), 0, (0,))
    if not (torch.equal(out[0], found[1][0]) and torch.equal(plain.recurrent, state)):
        return "a token in a tree has other bits than alone"
    prompt = [torch.cat([part[[slot]] for slot in (0, 1, 4, 0)]) for part in inputs]
    empty = {"window": torch.zeros(3, heads.channels, device=device), "recurrent": torch.zeros_like(state)}
    out, _, recurrent = delta_prefill.prefill(prompt, weights, **empty)
    if not (_close(out[3], wanted[1][0]) and _close(recurrent, wanted_state)):
        return "a prompt differs from its tokens"
    return None if _chunks_are_right(random, device) else "chunks differ from the reference"


def _chunks_are_right(random, device):
    """Two or three chunks of one head, the last of them not full, in either form, at once and one after another."""
    q, k, v = (torch.randn(70, 1, 32, generator=random).to(device) for _ in range(3))
    q, k = (x / x.norm(dim=-1, keepdim=True) for x in (q, k))
    g, beta = (torch.rand(70, 1, generator=random).to(device) for _ in range(2))
    state = torch.randn(1, 32, 32, generator=random).to(device)
    wanted = delta_rule.chunked(state, q, k, v, -g, beta)
    # The narrow form rounds operands to 11 bits and loses the root of 26 such roundings at most, each 2^-12 on average.
    for dtype, bound in ((torch.float32, 3e-5), (torch.float16, 26**0.5 * 2.0**-12)):
        inputs = [*(x.to(dtype) for x in (q, k, v)), -g, beta]
        found = delta_prefill.chunked(state, *inputs)
        if not all(_close(ours, theirs, bound) for ours, theirs in zip(found, wanted, strict=True)):
            return False
        after, parts = state, []
        for start, end in ((0, delta_prefill.CHUNK), (delta_prefill.CHUNK, 70)):
            part, after = delta_prefill.chunked(after, *(x[start:end] for x in inputs))
            parts.append(part)
        if not (torch.equal(torch.cat(parts), found[0]) and torch.equal(after, found[1])):
            return False
    return True


def _close(found, wanted, bound=3e-5):
    # Some hundred roundings of 2^-20 or 2^-24 stay far below, and a prompt's products of bf16 halves, off by 2^-18 on
    # average and a few in turn, below half of it; a wrong formula does not.
    return bool((found - wanted).norm() <= bound * wanted.norm())


def _run(function, inputs, weights, passes):
    state = delta_decode.allocate(weights.heads, dtype=torch.float32, device=inputs[0].device)
    outs = [
        _launch(function, inputs, weights, state, parents, turn % 2, pending)
        for turn, (parents, pending) in enumerate(passes)
    ]
    return outs, state.recurrent


def _launch(function, inputs, weights, state, parents, buffer, pending):
    device = inputs[0].device
    words = delta_decode.control_words(parents, buffer=buffer, pending=pending)
    control = torch.tensor(words, dtype=torch.int32, device=device)
    if function is delta_decode.reference:
        return function(inputs, weights, state, control)
    steps, out = delta_decode.allocate_steps(weights.heads, device), torch.full_like(inputs[1], float("nan"))
    return function(inputs, weights, state, control=control, steps=steps, out=out)
