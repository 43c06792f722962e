"""The prefill attention kernel: right to a derived bound, and each row the same however a prompt is cut."""

import math

import pytest
import torch
from fastqwen.attention import KVCache
from fastqwen.kernels.prefill_attention import prefill_attention
from test_kv_cache import realistic

pytest.importorskip("triton")
ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")


def gpu(*values):
    return pytest.param(*values, marks=pytest.mark.gpu)


def randn(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Case:
    """A prompt whose keys and values lie in a cache, what was never written being no number."""

    def __init__(self, kind, heads, kv_heads, dim, tokens, dtype=torch.float32):
        self.heads, self.kv_heads, self.dim, self.tokens = heads, kv_heads, dim, tokens
        self.kind = kind
        self.cache = KVCache(kv_heads, dim, capacity=tokens + 70, kind=kind, device=DEVICE)
        for stored in (self.cache.keys, self.cache.values):
            stored.numbers.fill_(77 if kind == "int8" else float("nan"))
            if kind == "int8":
                stored.scales.fill_(float("nan"))
        spread = torch.logspace(-2, 2, tokens)[torch.randperm(tokens, generator=torch.Generator().manual_seed(3))]
        v = randn(tokens, kv_heads, dim, seed=2) * spread[:, None, None]
        q = 1.5 * randn(tokens, heads, dim, seed=4).to(DEVICE)
        q, k = self.cache.for_cache(q, randn(tokens, kv_heads, dim, seed=1).to(DEVICE))
        self.cache.append(k, v.to(DEVICE))
        self.q = q.to(dtype)

    def run(self, start, end, **options):
        """Rows start..end-1, in float32 over poison."""
        q = self.q[start:end].contiguous()
        out = torch.full(q.shape, float("nan"), device=DEVICE)
        return prefill_attention(q, self.cache.keys, self.cache.values, start=start, out=out, **options)

    def exact(self, rows):
        """float64 attention over the stored bytes and the bound of the kernel's docstring: [rows, heads, D] each."""
        group = self.heads // self.kv_heads
        keys, values = (
            x.double().repeat_interleave(group, 0) for x in self.cache.read(0, self.tokens)
        )  # [heads, n, D]
        q = self.q[rows].double().transpose(0, 1)
        unseen = torch.arange(self.tokens, device=DEVICE)[None] > torch.tensor(rows, device=DEVICE)[:, None]
        scores = (q @ keys.mT * self.dim**-0.5).masked_fill(unseen, float("-inf"))
        weights = torch.softmax(scores, -1)
        bits = math.log2(math.e)
        size = (q.abs() @ keys.abs().mT * self.dim**-0.5 * bits).masked_fill(unseen, 0).amax(-1, keepdim=True)
        largest, subnormal = size, 0.0
        if self.kind == "int8":
            scales = self.cache.values.scales[:, : self.tokens].double().repeat_interleave(group, 0)
            largest = size + scales.log2().abs().amax()
            subnormal = (weights * scales[:, None]).amax(-1, keepdim=True) * self.tokens * 2**-25 * 127
        half = self.kind == "bf16" and self.q.dtype == torch.bfloat16
        share = 2**-11 if self.kind == "int8" else 2**-8 if half else 2**-18
        share += 2**-23 * ((self.dim + 16) * size + self.tokens + 16 + 4 * largest)
        bound = share * (weights @ values.abs()) + subnormal
        return (weights @ values).transpose(0, 1), bound.transpose(0, 1)


CASES = [
    ("int8", 6, 2, 32, 75, torch.float32),
    ("int8", 3, 1, 128, 50, torch.bfloat16),
    ("bf16", 4, 2, 64, 70, torch.float32),
    ("bf16", 2, 1, 32, 35, torch.bfloat16),
    ("fp32", 2, 2, 32, 49, torch.float32),
    ("int8", 2, 1, 256, 33, torch.float32),
    gpu("int8", 16, 4, 256, 4300, torch.bfloat16), gpu("int8", 24, 4, 256, 2111, torch.bfloat16),
    gpu("int8", 16, 4, 128, 2111, torch.bfloat16), gpu("int8", 16, 4, 256, 1111, torch.float32),
    gpu("bf16", 16, 4, 256, 4300, torch.bfloat16), gpu("bf16", 24, 4, 128, 2111, torch.bfloat16),
    gpu("fp32", 16, 4, 256, 1111, torch.float32),
]  # fmt: skip


@pytest.mark.parametrize("kind,heads,kv_heads,dim,tokens,dtype", CASES)
def test_every_row_is_within_the_derived_bound_of_float64(kind, heads, kv_heads, dim, tokens, dtype):
    case = Case(kind, heads, kv_heads, dim, tokens, dtype)
    found = case.run(0, tokens).double()
    assert found.isfinite().all()
    rows = list(range(0, tokens, max(1, tokens // 70))) + [tokens - 1]
    wanted, bound = case.exact(rows)
    assert ((found[rows] - wanted).abs() <= bound).all()
    assert bound.mean() < 0.05 * wanted.abs().mean()  # zeros would not pass


@pytest.mark.parametrize("kind,heads,kv_heads,dim,tokens,dtype", CASES)
def test_a_rows_bits_depend_on_neither_the_cut_nor_what_it_does_not_see(kind, heads, kv_heads, dim, tokens, dtype):
    case = Case(kind, heads, kv_heads, dim, tokens, dtype)
    whole = case.run(0, tokens)
    for first in {1, 16, tokens // 2, tokens // 64 * 64, tokens - 1}:
        assert torch.equal(case.run(first, tokens), whole[first:])
        assert torch.equal(case.run(0, first), whole[:first])  # later slots hold the rest of the prompt
    cut = tokens // 2
    for stored in (case.cache.keys, case.cache.values):
        later = stored.numbers if stored.scales is None else stored.scales
        later[:, cut:] = float("nan")
    assert torch.equal(case.run(0, cut), whole[:cut])
    assert torch.equal(case.run(0, tokens)[:cut], whole[:cut])  # in the same tile as keys that are no numbers
    assert case.run(0, tokens)[cut:].isnan().all()


@pytest.mark.parametrize("int8_queries", [False, True])
@pytest.mark.parametrize("outliers", ["none", "weight", "offset"])
@pytest.mark.parametrize("tokens", [80, gpu(3000)])
def test_int8_is_within_a_fiftieth_of_bf16_although_keys_have_outlier_channels(outliers, int8_queries, tokens):
    keys, values = realistic(tokens, outliers)
    queries = randn(tokens, 4, 256, seed=9) * 0.4
    outs = []
    for kind in ("int8", "bf16"):
        cache = KVCache(2, 256, capacity=tokens, kind=kind, device=DEVICE)
        q, k = cache.for_cache(queries.to(DEVICE), keys.to(DEVICE))
        cache.append(k, values.to(DEVICE))
        out = torch.full(q.shape, float("nan"), device=DEVICE)
        q = q.to(torch.bfloat16).contiguous()
        options = {"int8_queries": int8_queries and kind == "int8"}
        outs.append(prefill_attention(q, cache.keys, cache.values, start=0, out=out, **options))
    error = (outs[0] - outs[1]).square().mean().sqrt() / outs[1].square().mean().sqrt()
    assert 0.001 < error <= 0.02


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["int8", "bf16"])
def test_no_length_compiles_the_kernel_again(kind):
    from fastqwen.kernels._prefill_attention_kernels import prefill_attention_kernel as kernel

    case = Case(kind, 16, 4, 256, 700, torch.bfloat16)
    case.run(0, 700)
    before = sum(len(cache[0]) for cache in kernel.device_caches.values())
    for start, end in ((0, 1), (1, 17), (16, 32), (512, 700), (333, 334)):
        case.run(start, end)
    assert sum(len(cache[0]) for cache in kernel.device_caches.values()) == before


def test_what_does_not_fit_is_refused():
    case = Case("int8", 4, 2, 32, 20)
    keys, values, q = case.cache.keys, case.cache.values, case.q
    out = torch.empty_like(q)
    for query, result, options, match in [
        (q[:, :3], out[:, :3], {}, "multiple of 2"),
        (q.transpose(0, 1).contiguous().transpose(0, 1), out, {}, "contiguous"),
        (q, out[:5], {}, "out must be"),
        (q, out, {"start": 5000}, "do not lie"),
    ]:
        with pytest.raises(ValueError, match=match):
            prefill_attention(query, keys, values, out=result, **({"start": 0} | options))
    plain = Case("fp32", 4, 2, 32, 20)
    with pytest.raises(ValueError, match="int8 keys"):
        prefill_attention(plain.q, plain.cache.keys, plain.cache.values, start=0, out=out, int8_queries=True)
