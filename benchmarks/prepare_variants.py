"""Times the forms of kernels/prepare.py on an NVIDIA GPU: python -m benchmarks.prepare_variants, from the repository.

Every variant is first checked: the reference's integers for a norm and for no prologue, at most one off for SwiGLU
(exponentials differ between libraries; tests/test_prepare.py derives when), on poisoned buffers, and again after the
graph has been replayed. Then 128 calls in one CUDA graph, each a programmatic dependent of the one before, as in a
pass; median of the replays. The floor is an empty kernel in the same chain. Prints one line a variant and JSON last.
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

ROOT = Path(__file__).resolve().parent.parent
CALLS, REPLAYS, SEED = 128, 31, 0
# K, prologue, gate us, goal us, one block a row as first probed
CASES = (
    (4096, "norm", 2.5, 1.2, 2.0),
    (4096, "normed", 2.5, 1.2, 2.0),
    (4096, "none", 2.5, 1.2, None),
    (5120, "norm", 2.5, 1.2, 2.6),
    (12288, "swiglu", 4.0, 2.0, 5.1),
    (17408, "swiglu", 4.0, 2.0, 8.2),
)


def load():
    spec = importlib.util.spec_from_file_location(
        "fastqwen", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)]
    )
    sys.modules["fastqwen"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["fastqwen"])
    from fastqwen.kernels import prepare

    return prepare


@triton.jit
def _empty(p_out):
    gdc_launch_dependents()
    gdc_wait()
    tl.store(p_out + tl.program_id(0), 1.0)


def microseconds(call):
    """(median, least) of a call in a chain of CALLS."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()
    for _ in range(3):
        graph.replay()
    times = []
    for _ in range(REPLAYS):
        start, end = torch.cuda.Event(True), torch.cuda.Event(True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / CALLS)
    return sorted(times)[REPLAYS // 2], min(times)


def plans(module, k):
    threads = 1 << (k // 8 - 1).bit_length()
    yield module.Plan("alone", 1, min(32, threads // 32))
    yield module.Plan("alone", 1, min(16, threads // 32))
    for columns in (512, 1024, 2048):
        if k // columns <= 32:
            yield module.Plan("slots", -(-k // columns), columns // 256)
    for parts in (2, 4, 8, 16):
        if 1 <= threads // 32 // parts <= 16 and threads // 32 <= 128:
            yield module.Plan("cluster", parts, threads // 32 // parts)


def main():
    module = load()
    torch.manual_seed(SEED)
    scratch = torch.empty(1024, device="cuda")
    lines = [{"what": "empty", "grid": g, "us": microseconds(lambda g=g: _empty[(g,)](scratch, launch_pdl=True))[0]}
             for g in (8, 64, 136)]  # fmt: skip
    print(*(json.dumps(line) for line in lines), sep="\n", flush=True)
    for k, prologue, gate, goal, probed in CASES:
        x = torch.randn(8, k * (2 if prologue == "swiglu" else 1), device="cuda").bfloat16()
        x[5] = 0  # a dead slot
        options = {"swiglu": True} if prologue == "swiglu" else {}
        if prologue.startswith("norm"):
            options = {"norm": torch.randn(k, device="cuda") * 0.2, "eps": 1e-6}
        host = {name: value.cpu() if torch.is_tensor(value) else value for name, value in options.items()}
        codes, scale = module.reference(x.cpu(), **host)
        codes = module.pack_order(codes).cuda()
        for plan in plans(module, k):
            line = {"K": k, "prologue": prologue, "form": plan.form, "parts": plan.parts, "warps": plan.warps}
            try:
                out = module.allocate(k, "cuda", normed=x.dtype if prologue == "normed" else None, plan=plan)

                def call(out=out, x=x, options=options):
                    module.prepare(x, out, dependent=True, **options)

                def check(out=out, codes=codes, scale=scale, exact=prologue != "swiglu"):
                    off = (out.x8.int() - codes.int()).abs()
                    assert off.max() <= (0 if exact else 1), f"codes off by {off.max()}"
                    assert (off != 0).sum() <= 8, f"{(off != 0).sum()} codes differ"
                    assert torch.allclose(out.x_scale.cpu(), scale, rtol=1e-5, atol=0), "x_scale"

                out.x8.fill_(85)
                call()
                check()
                median, least = microseconds(call)
                check()
                line |= {"us": round(median, 3), "min_us": round(least, 3), "gate_us": gate, "goal_us": goal,
                         "probed_us": probed, "chosen": plan == module.allocate(k, "cuda").plan}  # fmt: skip
            except Exception as error:  # a form that fails must not hide the others
                line["error"] = f"{type(error).__name__}: {str(error)[-300:]}"
            lines.append(line)
            print(json.dumps(line), flush=True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    summary = {"gpu": torch.cuda.get_device_name(), "commit": commit.strip(), "seed": SEED, "torch": torch.__version__}
    print(json.dumps({**summary, "triton": triton.__version__, "calls": CALLS, "results": lines}))


if __name__ == "__main__":
    main()
