"""Each operation's plain-torch reference against its definition in float64.

Bounds: `ROUNDING` allows a few float32 roundings (2^-24 each) on values of order one; sums over n terms get a
factor sqrt(n) on top, stated where it is used.
"""

import pytest
import torch
import torch.nn.functional as F
from fastqwen.kernels import attention, causal_conv, delta_rule, rms_norm
from fastqwen.kernels.attention_control import TILE
from fastqwen.kernels.rows import each_row

ROUNDING = 8 * 2**-24


def randn(*shape, seed=0, scale=1.0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def relative(found, wanted):
    return ((found.double() - wanted).norm() / wanted.norm()).item()


@pytest.mark.parametrize("size", [1, 63, 128, 1000])
def test_rms_norm_equals_its_definition(size):
    x, weight = randn(3, size, seed=1), randn(size, seed=2)
    wide = x.double()
    wanted = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * (1 + weight.double())
    assert relative(rms_norm.rms_norm(x, weight, 1e-6), wanted) < ROUNDING


def test_gated_rms_norm_equals_its_definition():
    o, z, weight = randn(5, 128, seed=1), randn(5, 128, seed=2), randn(128, seed=3)
    wide, gate = o.double(), z.double()
    normalised = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    wanted = normalised * weight.double() * gate * torch.sigmoid(gate)
    assert relative(rms_norm.gated_rms_norm(o, z, weight, 1e-6), wanted) < ROUNDING


def test_norm_of_zeros_is_zero_and_of_bf16_is_rounded_once():
    assert not rms_norm.rms_norm(torch.zeros(2, 8), torch.ones(8), 1e-6).any()
    x = randn(4, 64).bfloat16()
    exact = rms_norm.rms_norm(x.float(), torch.zeros(64), 1e-6)
    assert torch.equal(rms_norm.rms_norm(x, torch.zeros(64), 1e-6), exact.bfloat16())


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 65])
def test_causal_conv_equals_a_convolution_over_window_and_tokens(tokens):
    x, window, taps = randn(tokens, 6, seed=1), randn(3, 6, seed=2), randn(6, 4, seed=3)
    columns = torch.cat([window, x]).double().T[None]
    wanted = F.silu(F.conv1d(columns, taps.double()[:, None], groups=6))[0].T
    assert relative(causal_conv.causal_conv(x, window, taps), wanted) < ROUNDING


def rule_inputs(tokens, gate, dtype=torch.float64):
    heads, dk, dv = 3, 16, 24
    unit = lambda x: x / x.norm(dim=-1, keepdim=True)  # noqa: E731
    state = randn(heads, dk, dv, seed=0)
    q, k = unit(randn(tokens, heads, dk, seed=1)), unit(randn(tokens, heads, dk, seed=2))
    v = randn(tokens, heads, dv, seed=3)
    g = -torch.rand(tokens, heads, generator=torch.Generator().manual_seed(4)) * gate
    beta = torch.rand(tokens, heads, generator=torch.Generator().manual_seed(5))
    return [tensor.to(dtype) for tensor in (state, q, k, v, g, beta)]


def by_definition(state, q, k, v, g, beta):
    outputs = []
    for t in range(len(q)):
        rows = []
        for h in range(len(state)):
            s = state[h] * g[t, h].exp()
            s = s + torch.outer(k[t, h], beta[t, h] * (v[t, h] - s.T @ k[t, h]))
            state = torch.stack([s if i == h else state[i] for i in range(len(state))])
            rows.append(s.T @ q[t, h])
        outputs.append(torch.stack(rows))
    return torch.stack(outputs), state


@pytest.mark.parametrize("gate", [1e-6, 1.0, 40.0], ids=["never_forgets", "forgets", "forgets_at_once"])
def test_delta_step_equals_its_definition(gate):
    state, q, k, v, g, beta = rule_inputs(9, gate)
    wanted, wanted_state = by_definition(state, q, k, v, g, beta)
    now, outputs = state.float(), []
    for t in range(9):
        now = delta_rule.step(now, *(x[t].float() for x in (k, v, g, beta)))
        outputs.append(delta_rule.read(now, q[t].float()))
    assert relative(torch.stack(outputs), wanted) < 9 * ROUNDING  # nine steps, each rounded
    assert relative(now, wanted_state) < 9 * ROUNDING


@pytest.mark.parametrize("tokens", [1, 63, 64, 65, 200])
@pytest.mark.parametrize("gate", [1e-6, 1.0, 40.0], ids=["never_forgets", "forgets", "forgets_at_once"])
def test_delta_chunks_equal_the_steps(tokens, gate):
    inputs = rule_inputs(tokens, gate)
    wanted, wanted_state = by_definition(*inputs)
    found, state = delta_rule.chunked(*inputs)
    assert relative(found, wanted) < 1e-12 and relative(state, wanted_state) < 1e-12
    found, state = delta_rule.chunked(*(x.float() for x in inputs))
    assert relative(found, wanted) < 64 * ROUNDING and relative(state, wanted_state) < 64 * ROUNDING


@pytest.mark.parametrize("gate", [1e-6, 1.0], ids=["never_forgets", "forgets"])
def test_ten_thousand_delta_steps_are_as_close_to_the_chunks_as_ten(gate):
    """What the rule holds along a key it writes over, also where nothing decays, and roundings go with it: those of the
    last few dozen tokens are what is left, of either sign."""
    inputs = rule_inputs(10_000, gate)
    exact, exact_state = delta_rule.chunked(*inputs)
    now, *rows = (x.float() for x in inputs)
    found, found_state = delta_rule.chunked(now, *rows)
    outputs = []
    for q, k, v, g, beta in zip(*rows, strict=True):
        now = delta_rule.step(now, k, v, g, beta)
        outputs.append(delta_rule.read(now, q))
    for state, read in ((now, torch.stack(outputs)), (found_state, found)):
        assert relative(state, exact_state) < 2 * ROUNDING and relative(read, exact) < 2 * ROUNDING


def over(keys, values):
    """A cache's `read` over plain tensors [kv_heads, slots, D]."""
    return lambda start, end: (keys[:, start:end], values[:, start:end])


def attend(q, keys, values):
    """Softmax attention in float64: q [heads, D], keys and values [kv_heads, n, D]."""
    group = q.shape[0] // keys.shape[0]
    keys, values = (x.double().repeat_interleave(group, 0) for x in (keys, values))
    weights = torch.softmax((keys @ q.double()[:, :, None])[..., 0] * q.shape[-1] ** -0.5, -1)
    return (weights[:, None] @ values)[:, 0]


def test_parts_of_the_prefix_are_whole_tiles_that_begin_at_multiples_of_their_length():
    start = 0
    while start < 80_000:
        length = attention.part_at(start)
        assert start % length == 0 and length % TILE == 0 and attention.PREFILL_TILE % length == 0
        start += length
    assert length == attention.LONG_PART


@pytest.mark.parametrize("position", [0, 1, 127, 128, 129, 700, 4095, 4096, 4097, 5000, 32768, 33000])
@pytest.mark.parametrize("heads,kv_heads", [(4, 1), (6, 2), (2, 2)])
def test_decode_attention_equals_its_definition_across_part_boundaries(position, heads, kv_heads):
    dim, slots = 16, 36864
    q = randn(heads, dim, seed=position)
    keys, values = randn(kv_heads, slots, dim, seed=1), randn(kv_heads, slots, dim, seed=2)
    own = position + 3
    seen = [*range(position), own]
    wanted = attend(q, keys[:, seen], values[:, seen])
    found = attention.decode_row(q, over(keys, values), position, own)
    # A weighted mean of unit-variance values shrinks as 1/sqrt(n) while its rounding does not.
    assert relative(found, wanted) < ROUNDING * max(position, 1) ** 0.5


def test_decode_attention_does_not_see_slots_past_its_position():
    q, keys, values = randn(4, 16), randn(2, 256, 16, seed=1), randn(2, 256, 16, seed=2)
    wanted = attention.decode_row(q, over(keys, values), 100, 100)
    keys[:, 101:], values[:, 101:] = float("nan"), float("inf")
    assert torch.equal(attention.decode_row(q, over(keys, values), 100, 100), wanted)


def test_decode_attention_does_not_depend_on_where_its_own_key_lies():
    q, keys, values = randn(4, 16), randn(2, 256, 16, seed=1), randn(2, 256, 16, seed=2)
    keys[:, 107], values[:, 107] = keys[:, 100], values[:, 100]
    assert torch.equal(
        attention.decode_row(q, over(keys, values), 100, 100), attention.decode_row(q, over(keys, values), 100, 107)
    )


@pytest.mark.parametrize("start", [0, 5, 130, 2039, 2040, 2048, 4090])
def test_prefill_attention_equals_its_definition_across_tiles(start):
    q, keys, values = randn(4, 9, 16), randn(2, 4200, 16, seed=1), randn(2, 4200, 16, seed=2)
    found = attention.prefill_rows(q, over(keys, values), start)
    for row in range(9):
        end = start + row + 1
        assert relative(found[:, row], attend(q[:, row], keys[:, :end], values[:, :end])) < 64 * ROUNDING


def test_each_row_gives_contiguous_rows_and_leaves_dead_slots_zero():
    x = randn(8, 6)
    seen = []
    doubled = each_row(lambda row: seen.append(row.is_contiguous()) or row * 2, 3, x)
    assert seen == [True] * 3
    assert torch.equal(doubled[:3], x[:3] * 2) and not doubled[3:].any()
