"""DeltaNet over a prompt: the definition in float64, and bits that depend on the chunk grid alone."""

import pytest
import torch
from delta_sequences import DEVICE, Sequence, definition, generator, make_weights, relative
from fastqwen.kernels import delta_rule
from fastqwen.kernels.delta_decode import Heads
from fastqwen.kernels.delta_prefill import CHUNK, chunked, prefill

pytest.importorskip("triton")
ON_GPU = torch.cuda.is_available()
UNIT = 2.0**-24
HEADS = [Heads(1, 3, 32, 16), Heads(2, 2, 16, 64), *([Heads(16, 48, 128, 128)] if ON_GPU else [Heads(1, 1, 128, 128)])]
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")


def rule_inputs(heads, tokens, gate=1.0, seed=0):
    """state, q, k, v, g, beta; memory behind the last token holds NaN."""
    random = generator(seed, tokens)
    hk, hv, dk, dv = heads.key_heads, heads.value_heads, heads.key_dim, heads.value_dim
    unit = lambda x: x / x.norm(dim=-1, keepdim=True)  # noqa: E731
    q, k = (unit(torch.randn(tokens, hk, dk, generator=random)) for _ in range(2))
    v = torch.randn(tokens, hv, dv, generator=random)
    g, beta = -torch.rand(tokens, hv, generator=random) * gate, torch.rand(tokens, hv, generator=random)
    state = torch.randn(hv, dk, dv, generator=random).to(DEVICE)
    return [state, *(_before_poison(tensor) for tensor in (q, k, v, g, beta))]


def narrow_inputs(*arguments, outlier=1.0):
    """The same for the narrow form; one value in a hundred `outlier` times as large."""
    state, q, k, v, g, beta = rule_inputs(*arguments)
    v = torch.where(torch.arange(v.numel(), device=DEVICE).view(v.shape) % 100 == 7, v * outlier, v)
    return [state, *(_before_poison(x.half()) for x in (q, k, v)), g, beta]


def _before_poison(tensor):
    longer = torch.full((tensor.shape[0] + CHUNK, *tensor.shape[1:]), float("nan"), dtype=tensor.dtype)
    longer[: tensor.shape[0]] = tensor.cpu()
    return longer.to(DEVICE)[: tensor.shape[0]]


def wanted(state, q, k, v, g, beta):
    """The rule's own steps in float64."""
    repeat = v.shape[1] // q.shape[1]
    q, k = (x.repeat_interleave(repeat, 1) for x in (q, k))
    state, q, k, v, g, beta = (x.cpu().double() for x in (state, q, k, v, g, beta))
    outputs = []
    for t in range(len(q)):
        state = delta_rule.step(state, k[t], v[t], g[t], beta[t])
        outputs.append(delta_rule.read(state, q[t]))
    return torch.stack(outputs), state


# A product is off by one unit in float32, in three terms of 11 bits by 2^-21 on average: eight units. A token carries
# those of its convolution and norm (4), the state, the inverse, the mix and the update: eight in turn, the last four
# independent between tokens, so that those of 100 tokens are ten times those of one.
BOUND = (8 if ON_GPU else 1) * (4 + 4 * 10) * UNIT
# The walk's products in bf16 halves: either operand is off by 2^-18 at most and the dropped product is as small, of
# either sign, together 2^-18 on average. A chunk has four in turn, and the four chunks of 100 tokens, which are
# independent, twice those of one.
HALVES = 4 * 2 * 2.0**-18
BOUND += HALVES if ON_GPU else 0
# The narrow form rounds operands to 11 bits, off by 2^-11 at most and 2^-12 on average, of either sign. What a token
# gets passes eight such roundings (the state, what it predicts, M, the writes for either use, the mix, the outputs, and
# the state as earlier chunks read it) and the inverse's five doublings three each: off by the root of 23. Errors of
# chunks are independent and relative to their own writes, so more chunks are no worse.
NARROW = 23**0.5 * 2.0**-12


@pytest.mark.parametrize("tokens", [1, 31, 32, 33, 100])
@pytest.mark.parametrize("gate", [1e-6, 1.0, 40.0], ids=["never_forgets", "forgets", "forgets_at_once"])
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_chunks_equal_the_float64_steps_from_any_state(heads, gate, tokens):
    inputs = rule_inputs(heads, tokens, gate)
    before = inputs[0].clone()
    found, state = chunked(*inputs)
    expected, expected_state = wanted(*inputs)
    assert relative(found, expected) < BOUND
    assert relative(state, expected_state) < BOUND
    assert torch.equal(inputs[0], before)


@pytest.mark.parametrize("gate", [1e-6, 1.0], ids=["never_forgets", "forgets"])
def test_products_of_bf16_halves_lose_no_more_than_their_halves(gate):
    inputs = rule_inputs(Heads(1, 2, 32, 64), 100, gate)
    (found, state), (expected, expected_state) = chunked(*inputs, halves=True), wanted(*inputs)
    # The interpreter cuts off where a GPU rounds: twice the error in either half, and always to one side.
    bound = BOUND if ON_GPU else BOUND + 4 * HALVES
    assert relative(found, expected) < bound and relative(state, expected_state) < bound


@pytest.mark.parametrize("tokens", [1, 64, 150])
@pytest.mark.parametrize("gate", [1e-6, 1.0, 40.0], ids=["never_forgets", "forgets", "forgets_at_once"])
@pytest.mark.parametrize("heads", HEADS[: None if ON_GPU else 2], ids=str)
def test_the_narrow_form_loses_no_more_than_its_roundings(heads, gate, tokens):
    inputs = narrow_inputs(heads, tokens, gate)
    before = inputs[0].clone()
    (found, state), (expected, expected_state) = chunked(*inputs), wanted(*inputs)
    assert relative(found, expected) < NARROW and relative(state, expected_state) < NARROW
    assert torch.equal(inputs[0], before)


def test_the_narrow_form_survives_outliers():
    inputs = narrow_inputs(HEADS[0], 150, 0.01, outlier=100.0)
    (found, state), (expected, expected_state) = chunked(*inputs), wanted(*inputs)
    assert relative(found, expected) < NARROW and relative(state, expected_state) < NARROW


@pytest.mark.parametrize("narrow", [False, True])
def test_one_key_over_and_over_is_no_harder(narrow):
    """Ones all over the triangular system: sums of its powers would cancel from 10^8 down to one."""
    state, q, k, v, g, beta = (narrow_inputs if narrow else rule_inputs)(Heads(1, 1, 16, 16), 2 * CHUNK)
    k.copy_(k[0].clone())
    g.zero_()
    beta.fill_(1.0)
    found, after = chunked(state, q, k, v, g, beta)
    expected, expected_state = wanted(state, q, k, v, g, beta)
    bound = NARROW if narrow else BOUND
    assert relative(found, expected) < bound and relative(after, expected_state) < bound


def test_numbers_beyond_fp16_end_at_its_largest_and_nan_stays():
    """A state of 10^6 is read as 65504; values of 10^6 are stored as that."""
    inputs = narrow_inputs(Heads(1, 1, 16, 16), 3)
    inputs[0].fill_(1e6)
    inputs[4].zero_()
    inputs[5].zero_()
    found, state = chunked(*inputs)
    read = 65504.0 * inputs[1].float().sum(2, keepdim=True)
    assert torch.allclose(found.float(), read.clamp(-65504.0, 65504.0).expand(found.shape), rtol=2.0**-10)
    assert (state == 1e6).all()
    inputs[0].fill_(float("nan"))
    assert chunked(*inputs)[0].isnan().all()
    heads = HEADS[0]
    rows = prompt(heads, 2, torch.bfloat16)
    rows[0][:, 2 * heads.key_heads * heads.key_dim :] = 1e6
    out, _, recurrent = prefill(rows, make_weights(heads), narrow=True, **empty(heads, torch.bfloat16))
    assert out.isfinite().all() and recurrent.isfinite().all()


def prompt(heads, tokens, dtype):
    """qkv, z, b, a as columns of one matrix, each row of it followed by other data."""
    random = generator("prompt", tokens)
    sizes = (heads.channels, heads.value_heads * heads.value_dim, heads.value_heads, heads.value_heads)
    whole = torch.randn(tokens, sum(sizes), generator=random).to(dtype)
    return list(_before_poison(whole).split(sizes, 1))


def empty(heads, dtype):
    window = torch.zeros(3, heads.channels, dtype=dtype, device=DEVICE)
    return {
        "window": window,
        "recurrent": torch.zeros(heads.value_heads, heads.key_dim, heads.value_dim, device=DEVICE),
    }


# In the narrow form q, k and v are rounded as well.
@pytest.mark.parametrize("narrow,bound", [(False, BOUND), (True, (23 + 3) ** 0.5 * 2.0**-12)], ids=["exact", "narrow"])
@pytest.mark.parametrize("tokens", [1, 3, 40])
def test_a_prompt_is_the_float64_definition(tokens, narrow, bound):
    heads = HEADS[0]
    weights, inputs = make_weights(heads), prompt(heads, tokens, torch.float32)
    out, window, recurrent = prefill(inputs, weights, narrow=narrow, **empty(heads, torch.float32))
    rows = [[part[t].cpu() for part in inputs] for t in range(tokens)]
    for count in sorted({1, tokens // 2 + 1, tokens}):
        expected, expected_state = definition(weights, rows[:count])
        assert relative(out[count - 1], expected) < bound
    assert relative(recurrent, expected_state) < bound
    columns = torch.cat([torch.zeros(3, heads.channels), inputs[0].cpu()])
    assert torch.equal(window.cpu(), columns[-3:])


@pytest.mark.parametrize("dtype,narrow", [(torch.float32, False), (torch.bfloat16, True)], ids=["exact", "narrow"])
def test_a_prompt_continued_at_a_chunk_boundary_has_the_bits_of_the_whole(dtype, narrow):
    heads, tokens, cut, options = HEADS[0], 70, CHUNK, {"narrow": narrow}
    weights, inputs = make_weights(heads), prompt(heads, tokens, dtype)
    out, window, recurrent = prefill(inputs, weights, **empty(heads, dtype), **options)
    first, *state = prefill([part[:cut] for part in inputs], weights, **empty(heads, dtype), **options)
    rest, *state = prefill(
        [part[cut:] for part in inputs], weights, window=state[0], recurrent=state[1], **options
    )  # fmt: skip
    assert torch.equal(torch.cat([first, rest]), out)
    assert torch.equal(state[0], window) and torch.equal(state[1], recurrent)


@pytest.mark.parametrize("passes", [8, pytest.param(1250, marks=pytest.mark.gpu)])
def test_a_long_run_of_passes_leaves_what_the_tokens_as_a_prompt_leave(passes):
    """Eight tokens a pass, ten thousand on a GPU: what the rule writes over takes its roundings along, so the bound is
    that of a short run."""
    heads = HEADS[0]
    weights = make_weights(heads)
    sequence, chain = Sequence(weights, torch.float32), (-1, 0, 1, 2, 3, 4, 5, 6)
    for turn in range(passes):
        out = sequence.run([(turn, slot) for slot in range(8)], chain)
        sequence.accept(7)
    rows = [sequence.token((turn, slot)) for turn in range(passes) for slot in range(8)]
    inputs = [torch.stack(part).to(DEVICE) for part in zip(*rows, strict=True)]
    expected, window, recurrent = prefill(inputs, weights, **empty(heads, torch.float32))
    found_window, found = sequence.committed()
    assert torch.equal(found_window, window)
    assert relative(found, recurrent.cpu().double()) < BOUND
    assert relative(out, expected[-8:].cpu().double()) < BOUND


def test_decoding_continues_from_a_prompt():
    heads = HEADS[0]
    weights, tokens = make_weights(heads), "abcdefg"
    plain, sequence = (Sequence(weights, torch.float32) for _ in range(2))
    inputs = [torch.stack(part).to(DEVICE) for part in zip(*map(plain.token, tokens[:5]), strict=True)]
    _, window, recurrent = prefill(inputs, weights, **empty(heads, torch.float32))
    sequence.state.windows[1].copy_(window)
    sequence.state.recurrent.copy_(recurrent)
    plain.run(tokens[:5], (-1, 0, 1, 2, 3))
    plain.accept(4)
    found, expected = (s.run(tokens[5:], (-1, 0)) for s in (sequence, plain))
    assert relative(found, expected.cpu().double()) < BOUND


def test_what_does_not_fit_is_refused_with_the_remedy():
    heads = Heads(1, 2, 16, 16)
    state, q, k, v, g, beta = rule_inputs(heads, 3)
    with pytest.raises(ValueError, match=r"k must be torch.float32 \[3, 1, 16\]"):
        chunked(state, q, k.repeat(1, 2, 1), v, g, beta)
    with pytest.raises(ValueError, match="call v.contiguous()"):
        chunked(state, q, k, v.transpose(1, 2).contiguous().transpose(1, 2), g, beta)
    with pytest.raises(ValueError, match="use delta_rule.chunked"):
        chunked(state[..., :8].contiguous(), q, k, v[..., :8].contiguous(), g, beta)
    inputs = prompt(heads, 3, torch.bfloat16)
    with pytest.raises(ValueError, match="window must be torch.bfloat16"):
        prefill(inputs, make_weights(heads), **empty(heads, torch.float32))
    with pytest.raises(ValueError, match="at least one token"):
        prefill([part[:0] for part in inputs], make_weights(heads), **empty(heads, torch.bfloat16))
