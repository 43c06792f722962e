"""Times prefill attention on a GPU beside torch's flash attention, correctness first.

python -m fastqwen.benchmarks.prefill_attention [--shape 9b 27b] [--tokens 8192] [--sweep]

Ours reads the cache as stored (int8, int8 with int8 queries, bf16) and runs a prompt's chunks one after another, of
2048 and of 512 rows, in one CUDA graph; torch's runs the whole prompt in one call of bf16, causal. TFLOPS count the
4 D operations of a seen slot for a query head. `of_torch` is torch's time over ours. JSON last.
"""

import argparse
import json

import torch
import torch.nn.functional as F

from ..attention import KVCache
from ..kernels.attention import prefill_rows
from ..kernels.prefill_attention import Config, prefill_attention
from ..option_types import whole
from .attention import DIM, HEADS
from .timing import gpu, graph_microseconds, main_gpu, provenance

WAYS = {"int8": ("int8", False), "int8_queries": ("int8", True), "bf16": ("bf16", False)}
BOUND = {"int8": 0.01, "int8_queries": 0.02, "bf16": 0.01}  # NRMSE against the reference over the same bytes
CONFIGS = [
    Config(128, 64, 8, 2), Config(128, 64, 8, 3), Config(128, 32, 8, 2), Config(128, 32, 8, 3), Config(64, 64, 4, 2),
    Config(64, 32, 4, 2), Config(128, 64, 16, 2),
]  # fmt: skip


class Prompt:
    """Queries of a prompt and a cache that holds its keys and values."""

    def __init__(self, shape: str, kind: str, tokens: int):
        heads, kv_heads = HEADS[shape]
        generator = torch.Generator("cuda").manual_seed(0)
        q, k, v = (
            torch.randn(tokens, n, DIM, generator=generator, device="cuda").bfloat16()
            for n in (heads, kv_heads, kv_heads)
        )
        self.plain = [x.transpose(0, 1)[None].contiguous() for x in (q, k, v)]
        self.cache = KVCache(kv_heads, DIM, capacity=tokens, kind=kind, device=torch.device("cuda"))
        q, k = self.cache.for_cache(q, k)
        self.cache.append(k, v)
        self.q, self.out = q.contiguous(), torch.empty_like(q)

    def run(self, start: int, end: int, int8_queries: bool, config: Config | None = None):
        rows = slice(start, end)
        prefill_attention(
            self.q[rows], self.cache.keys, self.cache.values, start=start, out=self.out[rows],
            int8_queries=int8_queries, config=config,
        )  # fmt: skip

    def chunks(self, size: int, int8_queries: bool, config: Config | None = None):
        for start in range(0, self.q.shape[0], size):
            self.run(start, min(start + size, self.q.shape[0]), int8_queries, config)


def check(shape: str, way: str, config: Config | None = None) -> float:
    """NRMSE against the reference; raises AssertionError where that is large or a row's bits depend on the cut."""
    kind, int8_queries = WAYS[way]
    prompt = Prompt(shape, kind, 2500)
    prompt.out.fill_(float("nan"))
    prompt.chunks(2500, int8_queries, config)
    found = prompt.out.clone()
    wanted = prefill_rows(prompt.q.float().transpose(0, 1).contiguous(), prompt.cache.read, 0).transpose(0, 1)
    error = ((found - wanted).square().mean() / wanted.square().mean()).sqrt().item()
    assert error < BOUND[way], f"{way}: {error:.1e} off"
    for size in (512, 2048, 333):
        prompt.out.fill_(float("nan"))
        prompt.chunks(size, int8_queries, config)
        assert torch.equal(prompt.out, found), f"{way}: rows differ in chunks of {size}"
    return error


def torch_flash(prompt: Prompt) -> float:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return graph_microseconds(
            [lambda: F.scaled_dot_product_attention(*prompt.plain, is_causal=True, enable_gqa=True)] * 2, 10
        )


def bench_prefill_attention(shape: str = "9b", tokens: int = 8192, sweep: bool = False) -> dict:
    """Checks, then times every way; prints a line each. Returns what is printed last as JSON."""
    gpu("the prefill attention benchmark")
    operations = 4 * DIM * HEADS[shape][0] * tokens * (tokens + 1) / 2
    flash = torch_flash(Prompt(shape, "bf16", tokens))
    rows = [{"way": "torch_flash", "ms": round(flash / 1e3, 3), "TFLOPS": round(operations / flash / 1e6)}]
    print(f"  {shape}, {tokens} tokens: {rows[0]}", flush=True)
    for way, (kind, int8_queries) in WAYS.items():
        for config in CONFIGS if sweep else [None]:
            row = {"way": way} | ({"config": str(config)} if config else {})
            try:
                row["nrmse"] = float(f"{check(shape, way, config):.2e}")
                prompt = Prompt(shape, kind, tokens)
                for size in (2048, 512):
                    call = lambda p=prompt, s=size, i=int8_queries, c=config: p.chunks(s, i, c)  # noqa: E731
                    time = graph_microseconds([call] * 2, 10)
                    row |= {f"ms_{size}": round(time / 1e3, 3), f"TFLOPS_{size}": round(operations / time / 1e6)}
                    row |= {f"of_torch_{size}": round(flash / time, 3)}
            except Exception as error:  # a tile too large for this GPU must not end a sweep
                if not sweep:
                    raise
                row["error"] = str(error)[:100]
            rows.append(row)
            print("  " + ", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    return {"what": "bench prefill_attention", "shape": shape, "tokens": tokens, **provenance(), "rows": rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", nargs="+", choices=tuple(HEADS), default=["9b", "27b"])
    parser.add_argument("--tokens", type=whole(1), default=8192)
    parser.add_argument("--sweep", action="store_true", help="every launch configuration")
    arguments = parser.parse_args()
    main_gpu("benchmarks.prefill_attention")
    summaries = [bench_prefill_attention(shape, arguments.tokens, arguments.sweep) for shape in arguments.shape]
    for summary in summaries:
        print(json.dumps(summary))


if __name__ == "__main__":
    main()
