"""What benchmarks/nodes.py shows of memory, and of interrupts: over `runs`, benchmarks/node_runs.py's."""

import gc
import time

from .node_runs import LIVE, MIB, rate_of

GIB = 2**30
SPARE = 256  # MiB that libraries keep for good once they were used: their workspaces


def eviction(runs):
    """A model that leaves no room for ours, and ours back."""
    import nodes

    others = []  # keeps the other model while it is counted
    nodes.NODE_CLASS_MAPPINGS["BenchmarkBigModel"] = _big_model(lambda size: others.append(_load_other(runs, size)))
    engine, request = runs.shared.loaded, runs.workflow("a fox in the snow", runs.new_seed(), runs.tokens)
    _, wanted = runs.alone(request)
    size = max(int(1.25 * runs.shared.patcher.model_size()), 64 * MIB)
    by_itself = runs.on_gpu and size > GIB  # a CPU evicts nothing, and a few MiB are no reason to
    ballast = _ballast(runs, size) if by_itself else None
    earlier = runs.workflow("before", runs.new_seed(), 8)
    runs.client.run(earlier)
    before = runs.note("before the other model")
    big = {"class_type": "BenchmarkBigModel", "inputs": {"bytes": size}}
    seconds, _ = runs.client.run(earlier | {"9": big})  # beside what is there, or that is dropped
    if not by_itself:
        runs.management.free_memory(1e30, runs.device)
    print(f"  the other model ({size / MIB:.0f} MiB) took {seconds:.1f} s to load", flush=True)
    row = runs.note("evicted")
    runs.check(not runs.resident() and row["loaded_size"] == 0, "the other model had ours evicted as a whole")
    if runs.on_gpu:
        back = before["allocated"] - row["allocated"] + (size / MIB if by_itself else 0)
        runs.check(back > before["loaded_size"] - 1, f"that gave {back:.0f} MiB back")
    seconds, outputs = runs.client.run(request)
    runs.check(outputs["2"]["text"] == [wanted.text], f"behind it the text is the same ({seconds:.1f} s in all)")
    runs.note("back")
    runs.check(runs.resident() and runs.shared.loaded is engine, "the same engine is back and counted as loaded")
    others.clear()
    del ballast
    gc.collect()
    runs.management.cleanup_models_gc()
    runs.management.soft_empty_cache()


def _ballast(runs, size):
    """Fills the GPU but for what the other model needs by ComfyUI's own rule, and half of ours."""
    manage, ours = runs.management, runs.shared.patcher.loaded_size()
    room = 1.1 * size + max(manage.minimum_inference_memory(), manage.extra_reserved_memory()) + ours / 2
    free = manage.get_free_memory(runs.device) + ours - room
    return runs.torch.empty(max(int(free), 0), dtype=runs.torch.uint8, device=runs.device)


def _load_other(runs, size):
    """A patcher as ComfyUI has them over weights of so many bytes."""
    from comfy.model_patcher import ModelPatcher

    torch, module = runs.torch, runs.torch.nn.Module()
    for index in range(max(size // (64 * MIB), 1)):
        module.add_module(f"part{index}", part := torch.nn.Module())
        part.weight = torch.nn.Parameter(torch.empty(32 * MIB, dtype=torch.bfloat16), requires_grad=False)
    patcher = ModelPatcher(module, runs.device, torch.device("cpu"))
    runs.management.load_models_gpu([patcher], force_full_load=True)
    return patcher


def growth(runs):
    """Ten replies hold no more in the end than after the first."""
    rows = []
    for _ in range(10):
        runs.client.run(runs.workflow("ten times", runs.new_seed(), 60))
        rows.append(_allocator(runs))
    _check_growth(runs, "ten replies", rows)


def _allocator(runs):
    keys = ("memory_allocated", "memory_reserved")
    return {key[7:]: round(getattr(runs.torch.cuda, key)(runs.device) / MIB, 1) for key in keys if runs.on_gpu}


def _check_growth(runs, what, rows):
    if not runs.on_gpu:
        return
    for key in ("allocated", "reserved"):
        values = [row[key] for row in rows]
        half = (len(values) + 1) // 2  # ComfyUI empties the allocator's cache now and then
        grown = max(values[half:]) - max(values[:half])
        runs.check(grown <= 1, f"{what} do not grow what is {key}: {values} MiB")


def interrupts(runs):
    """How long an interrupt takes while the prompt is read and while the reply is written."""
    rows, times = [], {"reading": [], "tokens": []}
    for turn in range(5):
        for phase in times:
            prompt = f"{turn} begins so. " + "word " * (runs.long if phase == "reading" else 20)
            far = turn / 8  # of the prompt: chunks take longer behind more of it
            since = runs.client.seen
            prompt_id = runs.client.queue(runs.workflow(prompt, runs.new_seed(), 8 if phase == "reading" else 8000))
            runs.client.wait_for(LIVE, lambda data, at=(phase, far): _is_past(data["status"], *at), since)
            asked = time.perf_counter()
            runs.client.post("/interrupt", {})
            try:
                came, _ = runs.client.wait_for("execution_interrupted", lambda data: True, since, 20)
                times[phase].append(came - asked)
            except TimeoutError:
                times[phase].append(float("nan"))
            runs.client.ended(prompt_id, since)
            gc.collect()
        rows.append(_allocator(runs))
    for phase, name in (("reading", "reading a prompt"), ("tokens", "writing")):
        shown = ", ".join(f"{1e3 * value:.0f}" for value in times[phase])
        runs.check(all(value < 1 for value in times[phase]), f"interrupted while {name} after {shown} ms")
    _check_growth(runs, "interrupted replies", rows)
    runs.note("after interrupts")
    return times


def unload(runs):
    """What ComfyUI's 'unload models' leaves: first while it keeps the outputs of nodes, then without."""
    request = runs.workflow("a fox in the rain", runs.new_seed(), runs.tokens)
    _, wanted = runs.alone(request)
    runs.client.run(runs.workflow("before", runs.new_seed(), 8))
    runs.client.post("/free", {"unload_models": True, "free_memory": False})
    _until(lambda: not runs.resident())
    row = runs.note("unloaded, in RAM")
    there = runs.shared is not None and row["loaded_size"] == 0
    runs.check(not runs.resident() and there, "'unload models' leaves the engine in RAM")
    seconds, outputs = runs.client.run(request)
    runs.check(outputs["2"]["text"] == [wanted.text], f"behind it the text is the same ({seconds:.1f} s in all)")
    _unload(runs)


def _unload(runs):
    """As the button for models and cached outputs does."""
    runs.client.post("/free", {"unload_models": True, "free_memory": True})
    _until(lambda: not runs.resident() and runs.shared is None)
    row = runs.note("unloaded")
    runs.check(not runs.resident() and runs.shared is None, "'unload models' and 'free memory' leave no engine")
    if runs.on_gpu:
        earlier = [row["allocated"] for row in runs.memory[:-1] if row["when"] == "unloaded"]
        left = row["allocated"] - (earlier or [runs.memory[0]["allocated"]])[0]
        before = "after the first unloading" if earlier else "before the model was loaded"
        runs.check(left <= (1 if earlier else SPARE), f"{left:.1f} MiB more are allocated than {before}")


def _until(done):
    deadline = time.monotonic() + 20
    while not done() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(0.5)  # the worker goes on to empty the allocator's cache


def streaming(runs):
    """Half of the weights' bytes as VRAM budget, of a small model's more, which is mostly tables: the same text."""
    tokens = min(runs.tokens, 48)
    if runs.shared is None:
        nodes, text = runs.first
        _, outputs = runs.client.run(nodes)
        runs.check(outputs["2"]["text"] == text, "loaded anew, the text is the same")
    request = runs.workflow("streamed", runs.new_seed(), tokens)
    _, wanted = runs.alone(request)
    size = runs.shared.loaded.memory.weight_bytes / GIB
    budget = size * (0.5 if size > 1 else 0.7)
    _unload(runs)
    runs.client.run(runs.workflow("warm up", runs.new_seed(), 8, budget=budget))
    for note in runs.shared.get().notes:
        print(f"  {note}", flush=True)
    runs.note("streamed")
    request["1"]["inputs"]["vram_budget"] = budget
    seconds, outputs = runs.client.run(request)
    rate = rate_of(outputs["2"]["report"][0])
    runs.check(outputs["2"]["text"] == [wanted.text], f"streamed, the text is the same, at {rate} tokens/s")
    if runs.on_gpu:
        weights = runs.shared.loaded.memory.weight_bytes / GIB
        runs.check(weights <= budget, f"{weights:.3f} GiB of weights on the GPU, the budget is {budget:.3f}")
    _unload(runs)
    return {"budget_GiB": round(budget, 2), "tokens_per_second": rate, "seconds": seconds}


def _big_model(load):
    """A node that calls `load` with a number of bytes."""

    class BenchmarkBigModel:
        RETURN_TYPES, FUNCTION, CATEGORY, OUTPUT_NODE = (), "load", "benchmark", True

        @classmethod
        def INPUT_TYPES(cls):
            return {"required": {"bytes": ("INT", {"min": 0, "max": 2**62})}}

        def load(self, bytes):
            load(bytes)
            return {"ui": {"text": ("loaded",)}}

    return BenchmarkBigModel


def _is_past(status, phase, share):
    """Whether a line of live text says that reading has done more than a share of the prompt, or writing has begun."""
    if phase == "tokens":
        return "tokens" in status
    done, _, total = status.removeprefix("reading: ").partition("/")
    return status.startswith("reading") and int(done) > share * int(total)
