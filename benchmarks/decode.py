"""`fastqwen bench decode`: rounds of drafting and verifying on a GPU, over random weights of real sizes.

Rounds run as in a reply, through the engine's own passes and captured graphs. Random drafts are never right, so tokens
a pass come from a profile of published acceptance (benchmarks/profiles.py), the time of a round from this run: a round
takes the same time whatever was accepted. A speed is also given in units of (read ceiling / bytes that a verify pass
reads), which says how good it is on any GPU.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import torch

from ..engine.device_model import DeviceModel
from ..engine.device_passes import DevicePasses
from ..engine.host_drawn_passes import HostDrawnPasses
from ..engine.memory import empty_cache
from ..engine.sampling import SamplingSettings
from ..engine.session import Session
from ..kernels.sampling import supports
from ..mtp.planner import Fixed, name
from ..mtp.short_head import EXTRA, FEWEST, check_short_head
from ..mtp.tree import OFF, Tree
from ..weights import FastQwenError
from .profiles import PROFILES, SHAPES
from .random_model import random_model
from .timing import gpu, provenance, read_ceiling

MEASURED = (OFF, Tree.chain(1), Tree.chain(3), Tree.chain(5), Tree((7,)), Tree((1,) * 7))
ROUNDS, WARM = 40, 6
PROMPTS = 512, 2048  # tokens; each is one chunk
SETTINGS = SamplingSettings(temperature=0.7, top_k=20, top_p=0.8, presence_penalty=1.5)


def bench(
    shape: str,
    *,
    bits: int,
    head: str,
    kv: str,
    context: int,
    profiles: Sequence[str],
    kernels: bool,
    graphs: bool,
    draft_rows: int = 0,
    draft_format: str | None = None,
    top_k: int = SETTINGS.top_k,
) -> dict:
    """Prints what it measures; returns the summary that is printed last as JSON."""
    device = torch.device("cuda")
    ceiling = read_ceiling(device)
    empty_cache(device)
    drafts = {"draft_rows": draft_rows, "draft_format": draft_format}
    trunk, mtp, sizes = random_model(shape, device, bits=bits, head=head, kv=kv, **drafts)
    print(
        f"{torch.cuda.get_device_name(device)}, read ceiling {ceiling:.0f} GB/s; {shape}, W{bits}A8, head {head}, "
        f"{kv} keys and values, {context} tokens before",
        flush=True,
    )
    capacity = context + (ROUNDS + WARM + 4) * 8
    model, made = _made(trunk, mtp, capacity, graphs)
    rows, times, settings = [], {}, replace(SETTINGS, top_k=top_k)
    if not supports(greedy=False, top_k=top_k):
        model.draw_on_host()
        profiles = ()  # it draws once for every token, here once a round: what is accepted would take time
    for tree in MEASURED:
        row = times[tree] = _rounds(model, tree, context, settings)
        rows.append({"shape": name(tree)} | row)
        print("  " + ", ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    floor = sizes["trunk"] / ceiling / 1e6
    first = times[Tree.chain(1)]["draft_ms"]
    level = (times[Tree.chain(5)]["draft_ms"] - first) / 4
    summary = {
        "what": "bench decode", "shape": shape, "bits": bits, "output_head": head, "kv": kv, "context": context,
        "top_k": top_k, **drafts,
        **provenance(), "read_ceiling_GBps": round(ceiling), "weight_bytes": sizes, "floor_ms": round(floor, 3),
        "graphs": model.captured, "make_and_capture_s": round(made, 1),
        "verify_ms": times[Tree.chain(5)]["verify_ms"], "draft_first_ms": round(first, 3),
        "draft_level_ms": round(level, 3), "rounds": rows,
        "percent_of_ceiling": round(100 * floor / times[Tree((1,) * 7)]["verify_ms"], 1),
        "launches_a_layer": _launches_a_layer(model, len(trunk.blocks)),
        "second_call_ms": round(_second_call(model, context), 2),
        "prefill_ms": _prompts(model),
    }  # fmt: skip
    if mtp.short is not None:
        summary["profiles_assume"] = "no draft is lost to the shortlist"
        _say_shortlist(mtp.short, draft_format or head)
    summary |= _speeds(times, first, level, sizes["trunk"], ceiling, profiles)
    print(f"  a draft level: {first:.3f} ms the first, {level:.3f} each next", flush=True)
    for profile in profiles:
        print(f"  {profile}: " + ", ".join(f"{key} {value}" for key, value in summary[profile].items()), flush=True)
    return summary | ({"kernels": _kernels(model, len(trunk.blocks))} if kernels else {})


def _say_shortlist(short, kept):
    print(
        f"  drafts from {short.rows} rows of the head, in {kept}, and {EXTRA} others: speeds on the profiles assume "
        "that no draft is lost by that, which this cannot measure",
        flush=True,
    )


def _made(trunk, mtp, capacity, graphs):
    """(a model ready for passes, the seconds that took)."""
    started = time.perf_counter()
    model = DeviceModel(trunk, mtp, capacity=capacity, vocab=trunk.config.vocab_size, graphs=graphs)
    if not model.usable:
        raise FastQwenError("Some operation has no kernel here, so passes run from the host: see `fastqwen doctor`.")
    torch.cuda.synchronize()
    return model, time.perf_counter() - started


def _passes(model, tree, context, rounds, settings=SETTINGS):
    model.state.reset()
    session = Session(model.trunk, context + rounds * 8, model.state)
    kind = DevicePasses if supports(greedy=False, top_k=settings.top_k) else HostDrawnPasses
    return session, kind(
        model, session, Fixed(tree), settings, seed=1, drafts=tree.depth > 0, stop_ids=(), max_tokens=10**6
    )


def _ids(count):
    return torch.randint(0, 248_000, (count,), generator=torch.Generator().manual_seed(2)).tolist()


def _rounds(model, tree, context, settings):
    session, passes = _passes(model, tree, context, ROUNDS + WARM + 4, settings)
    ids = _ids(context)
    if model.head.short is not None:
        model.head.short.begin(ids)
    passes.first(session.prefill(ids, on_hidden=passes.prompt))
    for _ in range(WARM):
        passes.next()
    started = time.perf_counter()
    outcomes = [passes.next() for _ in range(ROUNDS)]
    wall = (time.perf_counter() - started) / ROUNDS
    passes.close()
    draft = median(outcome.draft_seconds for outcome in outcomes)
    verify = median(outcome.verify_seconds for outcome in outcomes)
    return {
        "round_ms": round(1e3 * wall, 3),
        "draft_ms": round(1e3 * draft, 3),
        "verify_ms": round(1e3 * verify, 3),
        "host_gap_percent": round(100 * (1 - (draft + verify) / wall), 1),
        "accepted": sum(len(outcome.accepted.path) - 1 for outcome in outcomes),
    }


def _speeds(times, first, level, bytes_read, ceiling, profiles):
    """Tokens a second of the best shape on each profile, and without drafts."""
    gap = max(row["round_ms"] - row["draft_ms"] - row["verify_ms"] for row in times.values())
    verify = times[Tree((1,) * 7)]["verify_ms"]
    unit = ceiling * 1e9 / bytes_read
    off = 1e3 / times[OFF]["round_ms"]
    found = {"off_tokens_per_second": round(off, 1), "off_units": round(off / unit, 3)}
    for profile in profiles:
        best, tokens, speed = OFF, 1.0, off
        for tree in SHAPES:
            if tree.depth == 0:
                continue
            expected = PROFILES[profile].expected_tokens(tree)
            rate = 1e3 * expected / (verify + first + (tree.depth - 1) * level + gap)
            if rate > speed:
                best, tokens, speed = tree, expected, rate
        found[profile] = {
            "best_shape": name(best), "tokens_a_pass": round(tokens, 2), "tokens_per_second": round(speed, 1),
            "units": round(speed / unit, 3), "times_off": round(speed / off, 2),
        }  # fmt: skip
    return found


def _second_call(model, context):
    """Milliseconds from a call on a loaded model to the start of its prefill."""
    found, ids = [], _ids(context)
    for _ in range(5):
        torch.cuda.synchronize()
        started = time.perf_counter()
        if model.head.short is not None:
            model.head.short.begin(ids)
        _passes(model, OFF, context, 8)
        torch.cuda.synchronize()
        found.append(time.perf_counter() - started)
    return 1e3 * median(found)


def _prompts(model):
    """Milliseconds of prompts of one chunk."""
    found: dict[str, float] = {}
    for tokens in PROMPTS:
        fits = model.capacity >= tokens + 64
        own = model if fits else DeviceModel(
            model.trunk, model.head, capacity=tokens + 64, vocab=model.vocab, graphs=False
        )  # fmt: skip
        found[str(tokens)] = round(_prefill(own, tokens), 1)
        if not fits:
            own.release()
    print("  prefill_ms " + ", ".join(f"{tokens} {ms}" for tokens, ms in found.items()), flush=True)
    return found


def _prefill(model, tokens):
    found = []
    for _ in range(5):
        session, passes = _passes(model, Tree.chain(1), tokens, 8)
        torch.cuda.synchronize()
        started = time.perf_counter()
        session.prefill(_ids(tokens), on_hidden=passes.prompt)
        torch.cuda.synchronize()
        found.append(time.perf_counter() - started)
    return 1e3 * median(found)


def _events(model, part):
    """What three runs of a part did on the GPU, by kernel, the longest first."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        for _ in range(3):
            model.run(part)
        torch.cuda.synchronize()
    events = [event for event in trace.key_averages() if event.self_device_time_total]
    return sorted(events, key=lambda event: -event.self_device_time_total)


def _launches_a_layer(model, layers):
    """Of a verify pass, its own launches included; None where a host draws, since a pass is then in two halves."""
    return None if "rows" in model.parts else round(_launches(_events(model, "verify")) / layers, 2)


def _launches(events):
    return sum(event.count for event in events) / 3


def _kernels(model, layers):
    """Where a round's time goes: microseconds and launches of every kernel, of a verify pass and a draft's levels."""
    found = {}
    for part in ("verify", "first", "next"):
        events = _events(model, part)
        launches = _launches(events)
        print(f"  {part}: {launches:.0f} launches" + (f", {launches / layers:.2f} a layer" if part == "verify" else ""))
        rows = [(event.key[:60], event.count / 3, event.self_device_time_total / 3) for event in events[:24]]
        for key, count, us in rows:
            print(f"    {us:9.1f} us {count:6.1f} x {us / count:7.2f}  {key}", flush=True)
        found[part] = {"launches": launches, "rows": [[key, count, round(us, 1)] for key, count, us in rows]}
    return found


def run(arguments) -> int:
    """The command line's `bench decode`."""
    if arguments.draft_rows or arguments.draft_format:
        check_short_head(arguments.draft_rows or FEWEST, arguments.draft_format)
    if arguments.context < 1:
        raise FastQwenError(f"--context is {arguments.context}: at least 1 token is needed before the first round.")
    gpu("bench decode")
    summary = bench(
        arguments.shape, bits=arguments.bits, head=arguments.head, kv=arguments.kv, context=arguments.context,
        profiles=arguments.profile, kernels=arguments.kernels, graphs=not arguments.no_graphs,
        draft_rows=arguments.draft_rows, draft_format=arguments.draft_format, top_k=arguments.top_k,
    )  # fmt: skip
    print(json.dumps(summary))
    return 0
