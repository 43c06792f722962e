"""Times the forms of kernels/prepare.py on an NVIDIA GPU from compute capability 9.0, correctness first.

python -m fastqwen.benchmarks.prepare_variants [--forms alone slots cluster]

Every variant is first checked: the reference's integers for a norm and for no prologue, at most one off for SwiGLU
(exponentials differ between libraries; tests/test_prepare.py derives when), on poisoned buffers, and again after the
graph has been replayed. Then 128 calls in one CUDA graph, each a programmatic dependent of the one before, as in a
pass; median of the replays. The floor is an empty kernel in the same chain. Prints one line a variant and JSON last.
"""

import argparse
import json

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..kernels.prepare import Plan, allocate, pack_order, prepare, reference
from .timing import graph_microseconds, main_gpu, provenance

CALLS, REPLAYS, SEED = 128, 31, 0
# K, prologue, gate us, goal us, what a first probe with one block a row took
CASES = (
    (4096, "norm", 2.5, 1.2, 2.0),
    (4096, "normed", 2.5, 1.2, 2.0),
    (4096, "none", 2.5, 1.2, None),
    (5120, "norm", 2.5, 1.2, 2.6),
    (12288, "swiglu", 4.0, 2.0, 5.1),
    (17408, "swiglu", 4.0, 2.0, 8.2),
)


@triton.jit
def _empty_kernel(p_out):
    gdc_launch_dependents()
    gdc_wait()
    tl.store(p_out + tl.program_id(0), 1.0)


def empty_microseconds(blocks: int) -> float:
    """What a launch that does nothing takes in the same chain."""
    out = torch.empty(blocks, device="cuda")
    return graph_microseconds([lambda: _empty_kernel[(blocks,)](out, launch_pdl=True)] * CALLS, REPLAYS)


def plans(k: int) -> list[Plan]:
    """The spreads of a row worth timing."""
    threads = 1 << (k // 8 - 1).bit_length()
    found = [Plan("alone", 1, warps) for warps in (16, 32) if warps * 32 <= threads]
    for columns in (512, 1024, 2048):
        if k <= 32 * columns:
            found.append(Plan("slots", -(-k // columns), columns // 256))
    for parts in (2, 4, 8, 16):
        if 1 <= threads // 32 // parts <= 16 and threads // 32 <= 128:
            found.append(Plan("cluster", parts, threads // 32 // parts))
    return found


def inputs(k: int, prologue: str) -> tuple[torch.Tensor, dict]:
    """x and the prologue's keywords; one slot is dead."""
    x = torch.randn(8, k * (2 if prologue == "swiglu" else 1), device="cuda").bfloat16()
    x[5] = 0
    if prologue == "swiglu":
        return x, {"swiglu": True}
    if prologue == "none":
        return x, {}
    return x, {"norm": torch.randn(k, device="cuda") * 0.2, "eps": 1e-6}


def time_plan(x: torch.Tensor, options: dict, plan: Plan, wanted, exact: bool, normed: bool) -> float:
    """Microseconds of a call. Raises AssertionError where the result is not the reference's."""
    codes, scale = wanted
    out = allocate(codes.shape[1], "cuda", normed=x.dtype if normed else None, plan=plan)

    def check():
        off = (out.x8.int() - pack_order(codes).to(out.x8.device).int()).abs()
        assert off.max() <= (0 if exact else 1), f"codes are off by {off.max()}"
        assert (off != 0).sum() <= 8, f"{(off != 0).sum()} codes differ"
        assert torch.allclose(out.x_scale.cpu(), scale, rtol=1e-5, atol=0), f"x_scale {out.x_scale} for {scale}"

    out.x8.fill_(85)
    out.x_scale.fill_(float("nan"))
    prepare(x, out, dependent=True, **options)
    check()
    time = graph_microseconds([lambda: prepare(x, out, dependent=True, **options)] * CALLS, REPLAYS)
    check()
    return time


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--forms", nargs="+", default=["alone", "slots", "cluster"])
    forms = parser.parse_args().forms
    main_gpu("benchmarks.prepare_variants")
    torch.manual_seed(SEED)
    lines = [{"what": "empty", "blocks": blocks, "us": round(empty_microseconds(blocks), 3)} for blocks in (8, 64, 136)]
    print(*map(json.dumps, lines), sep="\n", flush=True)
    for k, prologue, gate, goal, probed in CASES:
        x, options = inputs(k, prologue)
        wanted = reference(x.cpu(), **{n: v.cpu() if torch.is_tensor(v) else v for n, v in options.items()})
        chosen = allocate(k, "cuda").plan
        for plan in (plan for plan in plans(k) if plan.form in forms):
            line = {"K": k, "prologue": prologue, "form": plan.form, "parts": plan.parts, "warps": plan.warps}
            line |= {"gate_us": gate, "goal_us": goal, "probed_us": probed, "chosen": plan == chosen}
            try:
                exact, normed = prologue != "swiglu", prologue == "normed"
                line["us"] = round(time_plan(x, options, plan, wanted, exact, normed), 3)
            except Exception as error:  # one form that fails must not hide the others
                line["error"] = f"{type(error).__name__}: {str(error)[-300:]}"
            lines.append(line)
            print(json.dumps(line), flush=True)
    print(json.dumps({**provenance(), "seed": SEED, "calls": CALLS, "results": lines}))


if __name__ == "__main__":
    main()
