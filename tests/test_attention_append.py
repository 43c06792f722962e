"""The append before a decode pass's attention: queries, keys and values as the torch layer makes and stores them."""

import pytest
import torch
from fastqwen.attention import KVCache
from fastqwen.attention.rotary import rotate
from fastqwen.kernels.attention_append import append, append_prompt
from fastqwen.kernels.attention_control import new_control, write_control
from fastqwen.kernels.kv_int8 import quantise
from fastqwen.kernels.rms_norm import rms_norm

pytest.importorskip("triton")
ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
# The interpreter cuts a float32 to bf16 instead of rounding it, so bf16 is compared on a GPU only.
DTYPES = [pytest.param(torch.float32, id="fp32"), pytest.param(torch.bfloat16, id="bf16", marks=pytest.mark.gpu)]
HEADS, KV_HEADS, LENGTH, EPS = 4, 2, 70, 1e-6
PARENTS = (-1, 0, 0, 1, 1, 0, 4)


def inputs(dim, half, dtype, seed=0):
    """projected (slices of one tensor), norms and rotary on DEVICE."""
    g = torch.Generator().manual_seed(seed)
    widths = [2 * HEADS * dim, KV_HEADS * dim, KV_HEADS * dim]
    fused = (torch.randn(8, sum(widths) + 16, generator=g) * torch.logspace(-2, 2, 8)[:, None]).to(DEVICE, dtype)
    q, k, v, _ = fused.split([*widths, 16], -1)
    projected = q.view(8, HEADS, 2 * dim), k.view(8, KV_HEADS, dim), v.view(8, KV_HEADS, dim)
    norms = tuple((torch.randn(dim, generator=g) * 0.3).to(DEVICE) for _ in range(2))
    angles = torch.rand(8, half, generator=g) * 100
    return projected, norms, (angles.cos().to(DEVICE), angles.sin().to(DEVICE))


def run(cache, projected, norms, rotary, *, length=LENGTH, parents=PARENTS, move=None):
    q = torch.full((8, HEADS, projected[1].shape[-1]), float("nan"), dtype=projected[0].dtype, device=DEVICE)
    control = new_control(DEVICE)
    write_control(control, length=length, parents=parents, move=move)
    return append(projected, norms, rotary, eps=EPS, keys=cache.keys, values=cache.values, control=control, q=q)


def filled(kind, dim, seed=9):
    cache = KVCache(KV_HEADS, dim, capacity=200, kind=kind, device=DEVICE)
    k, v = torch.randn(2, LENGTH, KV_HEADS, dim, generator=torch.Generator().manual_seed(seed)).to(DEVICE)
    cache.append(k, v)
    return cache


def bytes_of(cache):
    parts = [cache.keys.numbers, cache.values.numbers, cache.keys.scales, cache.values.scales]
    return [part.clone() for part in parts if part is not None]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["int8", "bf16", "fp32"])
@pytest.mark.parametrize("dim,half", [(128, 32), (64, 32), (256, 32)])
def test_queries_keys_and_values_are_those_of_the_torch_layer(dtype, kind, dim, half):
    if kind == "bf16" and not ON_GPU:
        pytest.skip("the interpreter does not round to bf16")
    (query_gate, k, v), norms, rotary = inputs(dim, half, dtype)
    cache, wanted = filled(kind, dim), filled(kind, dim)
    q = run(cache, (query_gate, k, v), norms, rotary)
    wanted_q = rotate(rms_norm(query_gate[..., :dim], norms[0], EPS), *rotary)
    wanted_q, wanted_k = wanted.for_cache(wanted_q, rotate(rms_norm(k, norms[1], EPS), *rotary))
    # Sums of D squares in another order, a reciprocal root of 2 ulp and five roundings: D 2^-24 / 2 of the largest
    # terms at most. In bf16 a normed number may round the other way, by 2^-7 of itself, and so may the result: for both
    # partners of a rotation (sqrt 2 + 1) 2^-7.
    step = (dim / 2 + 16) * 2**-24 if dtype == torch.float32 else 2.5 * 2**-7
    largest = wanted_q.float().abs().amax(-1, keepdim=True)
    assert ((q.float() - wanted_q.float()).abs() <= step * largest).all()
    slots = wanted.stage(wanted_k, v, PARENTS)
    for found, stored in ((cache.values, wanted.values), (cache.keys, wanted.keys)):
        if stored is wanted.values:  # nothing was computed but the codes: the same bytes
            assert torch.equal(found.numbers[:, slots], stored.numbers[:, slots])
            assert kind != "int8" or torch.equal(found.scales[:, slots], stored.scales[:, slots])
        error = (found.read(0, 128) - stored.read(0, 128)).abs()[:, slots]
        size = stored.read(0, 128).abs()[:, slots].amax(-1, keepdim=True)
        kept = {"int8": 1 / 127, "bf16": 2**-8, "fp32": 0}[kind]  # a number near a middle may round the other way
        assert (error <= (2 * step + kept * 1.01) * size).all()  # of the number, and of the row's scale


@pytest.mark.parametrize("kind", ["int8", "fp32"])
def test_rows_of_a_prompt_are_stored_as_those_of_a_pass(kind):
    projected, norms, rotary = inputs(64, 16, torch.bfloat16 if ON_GPU else torch.float32)
    cache, prompt = filled(kind, 64), filled(kind, 64)
    wanted = run(cache, projected, norms, rotary, parents=(-1,) + (0,) * 7)
    twice = lambda parts: tuple(torch.cat([x, x[:5]]) for x in parts)  # noqa: E731
    options = {"eps": EPS, "keys": prompt.keys, "values": prompt.values, "start": LENGTH}
    q = wanted.new_full((13, *wanted.shape[1:]), float("nan"))
    append_prompt(twice(projected), norms, twice(rotary), q=q, **options)
    assert torch.equal(q, torch.cat([wanted, wanted[:5]]))
    for found, stored in zip(bytes_of(prompt), bytes_of(cache), strict=True):
        assert torch.equal(found[:, : LENGTH + 8], stored[:, : LENGTH + 8])
        assert torch.equal(found[:, LENGTH + 8 : LENGTH + 13], stored[:, LENGTH : LENGTH + 5])
        assert not found[:, LENGTH + 13 :].any()
    with pytest.raises(ValueError, match="do not lie in a cache"):
        append_prompt(projected, norms, rotary, q=q[:8], **options | {"start": prompt.keys.numbers.shape[1] - 7})
    with pytest.raises(ValueError, match="cosines must be"):
        append_prompt(twice(projected), norms, rotary, q=q, **options)


@pytest.mark.parametrize("kind", ["int8", "fp32"])
def test_nothing_but_the_live_rows_slots_is_written(kind):
    cache = filled(kind, 64)
    before = bytes_of(cache)
    run(cache, *inputs(64, 16, torch.float32))
    written = set(range(LENGTH, LENGTH + len(PARENTS)))
    others = [slot for slot in range(cache.keys.numbers.shape[1]) if slot not in written]
    for found, was in zip(bytes_of(cache), before, strict=True):
        assert torch.equal(found[:, others], was[:, others])
        assert not torch.equal(found[:, sorted(written)], was[:, sorted(written)])


@pytest.mark.parametrize("kind", ["int8", "fp32"])
def test_an_accepted_leaf_is_moved_before_its_slot_is_taken(kind):
    """The leaf at offset 3 is accepted at depth 1: the next pass starts at length + 2 and writes its slot too."""
    cache, wanted = filled(kind, 64), filled(kind, 64)
    first, second = inputs(64, 16, torch.float32), inputs(64, 16, torch.float32, seed=1)
    parents = (-1, 0, 0, 0)
    for each in (cache, wanted):
        run(each, *first, parents=parents)
    wanted.keys.move(LENGTH + 3, LENGTH + 1)
    wanted.values.move(LENGTH + 3, LENGTH + 1)
    run(wanted, *second, length=LENGTH + 2)
    run(cache, *second, length=LENGTH + 2, move=(LENGTH + 3, LENGTH + 1))
    assert all(torch.equal(x, y) for x, y in zip(bytes_of(cache), bytes_of(wanted), strict=True))


def test_codes_are_kv_int8s_at_its_corners():
    """Zeros, halves, tiny and huge numbers, and rows that hold no number."""
    (query_gate, k, v), norms, rotary = inputs(64, 16, torch.float32)
    v = v.clone()
    v[0] = 0
    v[1, :, :4] = torch.tensor([127.0, -63.5, 0.5, 1.5], device=DEVICE)
    v[1, :, 4:] = 0
    v[2] *= 1e30
    v[3] *= 1e-30
    v[4, 0, 5], v[4, 1, 6], v[5, 0, 7] = float("nan"), float("inf"), float("-inf")
    cache = filled("int8", 64)
    run(cache, (query_gate, k, v), norms, rotary, parents=(-1, 0, 1, 2, 3, 4, 5))
    codes, scales = quantise(v[:7].transpose(0, 1))
    found = cache.values.scales[:, LENGTH : LENGTH + 7]
    finite = torch.isfinite(scales)
    assert torch.equal(torch.isfinite(found), finite) and torch.equal(found[finite], scales[finite])
    assert torch.equal(cache.values.numbers[:, LENGTH : LENGTH + 7][finite], codes[finite])


def test_a_row_depends_on_neither_its_slot_nor_its_neighbours():
    projected, norms, rotary = inputs(64, 16, torch.float32)
    cache, moved = filled("int8", 64), filled("int8", 64)
    q = run(cache, projected, norms, rotary, parents=(-1,) + (0,) * 7)
    order = [0, 7, 3, 5, 1, 2, 6, 4]
    shuffled = [tuple(x[order] for x in projected), tuple(x[order] for x in rotary)]
    assert torch.equal(run(moved, shuffled[0], norms, shuffled[1], parents=(-1,) + (0,) * 7), q[order])
    slots = [LENGTH + i for i in order]
    for found, was in zip(bytes_of(moved), bytes_of(cache), strict=True):
        assert torch.equal(found[:, LENGTH : LENGTH + 8], was[:, slots])


def test_what_does_not_fit_is_refused():
    projected, norms, rotary = inputs(64, 16, torch.float32)
    cache = filled("int8", 64)
    with pytest.raises(ValueError, match="k must be"):
        run(cache, (projected[0], projected[1][:4], projected[2]), norms, rotary)
    with pytest.raises(ValueError, match="norm must be"):
        run(cache, projected, (norms[0].double(), norms[1]), rotary)
    with pytest.raises(ValueError, match="rotary turns"):
        run(cache, projected, norms, tuple(torch.ones(8, 40, device=DEVICE) for _ in range(2)))
    with pytest.raises(ValueError, match="two rows of one depth"):
        run(cache, projected, norms, rotary, parents=(-1, 0, 0, 1, 2))
