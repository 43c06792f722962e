"""What benchmarks/nodes.py measures inside a running ComfyUI. Every part prints its table when it has it."""

import gc
import importlib
import sys
import time
from statistics import median

from .node_server import PACK, Client

SAMPLING = {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.0, "repetition_penalty": 1.0}
PRESENCE = 1.5
LIVE = "fastqwen.text"
GIB, MIB = 2**30, 2**20
SPARE = 64 * MIB  # what libraries and kernels keep to themselves for good: their workspaces, tables of constants


class Runs:
    """The parts, one after another, over one server and one checkpoint.

    model     the loader's choice
    tokens    length of the replies whose speed is compared
    judged    whether speed is checked: a model that stops after a few tokens says little
    long      tokens of the prompt in which reading is interrupted
    """

    def __init__(self, client: Client, model: str, *, tokens: int, runs: int, judged: bool, long: int):
        import comfy.model_management
        import torch

        self.client, self.model, self.tokens, self.runs = client, model, tokens, runs
        self.judged, self.long, self.torch, self.management = judged, long, torch, comfy.model_management
        self.device = comfy.model_management.get_torch_device()
        self.on_gpu = self.device.type == "cuda"
        self.checks: list[tuple[bool, str]] = []
        self.memory: list[dict] = []
        self._pack = next(name for name in sys.modules if name.endswith(PACK))
        self._seed = 0

    def check(self, passed: bool, what: str):
        self.checks.append((bool(passed), what))
        print(f"  {'ok  ' if passed else 'FAIL'} {what}", flush=True)

    # What is on the server's side.

    def module(self, name):
        """A module of the pack as ComfyUI imported it."""
        return importlib.import_module(f"{self._pack}.{name}")

    @property
    def shared(self):
        """The only SharedEngine, or None."""
        found = self.module("nodes.clip").every_shared_engine()
        return found[0] if found else None

    def workflow(self, prompt, seed, tokens, *, mtp="off", core=False, budget=0.0):
        text = {"clip": ["1", 0], "prompt": prompt, "max_length": tokens, "sampling_mode": "on"}
        if core:
            settings = SAMPLING | {"seed": seed, "presence_penalty": PRESENCE}
            text |= {f"sampling_mode.{key}": value for key, value in settings.items()}
        else:
            text |= SAMPLING | {"seed": seed, "presence_penalty": PRESENCE, "mtp": mtp}
        nodes = {
            "1": {"class_type": "FastQwenLoader", "inputs": {"model": self.model, "vram_budget": budget}},
            "2": {"class_type": "TextGenerate" if core else "FastQwenTextGenerate", "inputs": text},
        }
        if core:
            nodes["3"] = {"class_type": "PreviewAny", "inputs": {"source": ["2", 0]}}
        return nodes

    def new_seed(self):
        """One that no workflow had: ComfyUI would give its earlier output once more."""
        self._seed += 1
        return self._seed

    def alone(self, nodes):
        """(seconds, Result) of a workflow's text by the engine alone, in this process, the same weights."""
        request = self.module("nodes.request").request_from_inputs(nodes["2"]["inputs"])
        with self.shared.lock:
            engine = self.shared.get()
            started = time.perf_counter()
            result = engine.reply(request.prompt, **request.arguments()).result()
            return time.perf_counter() - started, result

    def note(self, label):
        """A line of the memory table: what torch and ComfyUI hold and count, in MiB."""
        patcher, cuda = self.shared.patcher if self.shared else None, self.torch.cuda
        row = {"when": label}
        if self.on_gpu:
            cuda.synchronize()
            free, total = cuda.mem_get_info(self.device)
            row |= {"allocated": cuda.memory_allocated(self.device), "reserved": cuda.memory_reserved(self.device)}
            row["in_use"] = total - free
        row |= {"loaded_size": patcher.loaded_size() if patcher else 0, "model_size": patcher.model_size() if patcher
                else 0, "comfy_free": self.management.get_free_memory(self.device)}  # fmt: skip
        row = {key: value if key == "when" else round(value / MIB, 1) for key, value in row.items()}
        self.memory.append(row)
        print("  " + f"{label:<28}" + ", ".join(f"{k} {v:g}" for k, v in row.items() if k != "when"), flush=True)
        return row

    def resident(self):
        """Whether ComfyUI counts the engine's patcher among what is loaded."""
        return any(isinstance(loaded.model, self.module("nodes.patcher").EnginePatcher)
                   for loaded in self.management.current_loaded_models)  # fmt: skip

    # The parts.

    def load(self):
        """Memory before, with the model loaded, while and after a reply; the first reply's text is the engine's."""
        self.note("before")
        nodes = {"1": self.workflow("", 0, 1)["1"], "2": {"class_type": "PreviewAny", "inputs": {"source": ["1", 0]}}}
        seconds, _ = self.client.run(nodes)
        print(f"  the loader took {seconds:.1f} s", flush=True)
        row = self.note("loaded")
        self.check(self.resident() and row["loaded_size"] > 0, "ComfyUI counts the model as loaded")
        nodes = self.workflow("warm up", self.new_seed(), 16)
        seconds, _ = self.client.run(nodes)
        print(f"  the first reply, compiling included, took {seconds:.1f} s", flush=True)
        since, nodes = self.client.seen, self.workflow("a fox", self.new_seed(), self.tokens)
        prompt_id = self.client.queue(nodes)
        self.client.wait_for(LIVE, lambda data: "tokens" in data["status"], since)
        self.note("while writing")
        self.client.ended(prompt_id, since)
        self.client.outcome(prompt_id)
        self.note("after the reply")

    def speed(self, prompt):
        """Tokens a second by rounds of a benchmark, by the engine alone, through our node and through ComfyUI's own."""
        rows, core = [], "TextGenerate" in self.client.get("/object_info")
        for mtp in ("off", "auto"):
            found = {}
            for turn in range(self.runs + 1):
                seed = self.new_seed()
                seconds, result = self.alone(self.workflow(prompt, seed, self.tokens, mtp=mtp))
                taken = {"engine alone": (seconds, result.report.tokens_per_second)}
                took, outputs = self.client.run(self.workflow(prompt, seed, self.tokens, mtp=mtp))
                assert outputs["2"]["text"] == [result.text], "the node wrote another text than the engine alone"
                taken["FastQwen's node"] = took, _rate(outputs["2"]["report"][0])
                if core and mtp == "auto":
                    took, outputs = self.client.run(self.workflow(prompt, seed, self.tokens, core=True))
                    wanted = self.shared.get().tokenizer.decode_bytes(result.token_ids).decode("utf-8", "replace")
                    same = _letters(outputs["3"]["text"][0]) == _letters(wanted)
                    self.checks += [] if same else [(False, "TextGenerate wrote another text than the engine alone")]
                    taken["ComfyUI's node"] = took, None
                for who, (took, rate) in taken.items():
                    if turn:  # the first one warms up
                        found.setdefault(who, []).append((took, rate, result.report.new_tokens))
            rows += [_speed_row(who, mtp, measured) for who, measured in found.items()]
        rounds = self._rounds(prompt)
        if rounds is not None:
            rows.append({"who": "bench decode's rounds", "mtp": "off", "tokens_per_second": rounds})
        for row in rows:
            print("  " + ", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
        self.check(True, "every text is what the engine alone writes")
        if self.judged:
            self._judge(rows, rounds)
        return rows

    def _judge(self, rows, rounds):
        of = {(row["who"], row["mtp"]): row for row in rows}
        for mtp in ("off", "auto"):
            whole = of["engine alone", mtp]["whole_seconds"]
            for who in ("FastQwen's node", "ComfyUI's node"):
                if (who, mtp) in of:
                    ratio = of[who, mtp]["whole_seconds"] / whole
                    self.check(ratio < 1.03, f"{who}, mtp {mtp}: the whole run takes {ratio:.3f} of the engine alone")
        if rounds is not None:
            ratio = of["FastQwen's node", "off"]["tokens_per_second"] / rounds
            self.check(ratio > 0.97, f"FastQwen's node, mtp off: {ratio:.3f} of the rate of bench decode's rounds")

    def _rounds(self, prompt):
        """The figure of `fastqwen bench decode` without drafts, over this engine; None without a GPU or for a small
        vocabulary, which that benchmark's prompts do not fit."""
        engine = self.shared.get()
        if not self.on_gpu or engine.vocab < 248_000:
            return None
        decode, tree = self.module("benchmarks.decode"), self.module("mtp.tree")
        context = len(engine.template.prompt_ids(prompt))
        with self.shared.lock:
            model = engine.memory.model_for(context + (decode.ROUNDS + decode.WARM + 4) * 8, lambda done, total: None)
            times = [decode._rounds(model, tree.OFF, context, decode.SETTINGS)["round_ms"] for _ in range(3)]
        return round(1e3 / median(times), 1)

    def eviction(self):
        """A model that leaves no room for ours, and ours back."""
        import nodes

        others = []  # keeps the other model while it is counted
        nodes.NODE_CLASS_MAPPINGS["BenchmarkBigModel"] = _big_model(lambda size: others.append(self._load_other(size)))
        engine, request = self.shared.loaded, self.workflow("a fox in the snow", self.new_seed(), self.tokens)
        _, wanted = self.alone(request)
        size = max(int(1.25 * self.shared.patcher.model_size()), 64 * MIB)
        ballast = self._ballast(size)
        earlier = self.workflow("before", self.new_seed(), 8)
        self.client.run(earlier)
        before = self.note("before the other model")
        big = {"class_type": "BenchmarkBigModel", "inputs": {"bytes": size}}
        seconds, _ = self.client.run(
            earlier | {"9": big}
        )  # beside what is there, or that is dropped
        if not self.on_gpu:
            self.management.free_memory(1e30, self.device)  # a CPU evicts nothing by itself
        print(f"  the other model ({size / MIB:.0f} MiB) took {seconds:.1f} s to load", flush=True)
        row = self.note("evicted")
        self.check(not self.resident() and row["loaded_size"] == 0, "the other model had ours evicted as a whole")
        if self.on_gpu:
            back = before["allocated"] - row["allocated"] + size / MIB
            self.check(back > before["loaded_size"] - 1, f"that gave {back:.0f} MiB back")
        seconds, outputs = self.client.run(request)
        self.check(outputs["2"]["text"] == [wanted.text], f"behind it the text is the same ({seconds:.1f} s in all)")
        self.note("back")
        self.check(self.resident() and self.shared.loaded is engine, "the same engine is back and counted as loaded")
        others.clear()
        del ballast
        gc.collect()
        self.management.cleanup_models_gc()
        self.management.soft_empty_cache()

    def _ballast(self, size):
        """Fills the GPU but for what the other model needs by ComfyUI's own rule, and half of ours."""
        if not self.on_gpu:
            return None
        manage, ours = self.management, self.shared.patcher.loaded_size()
        room = 1.1 * size + max(manage.minimum_inference_memory(), manage.extra_reserved_memory()) + ours / 2
        free = manage.get_free_memory(self.device) + ours - room
        return self.torch.empty(max(int(free), 0), dtype=self.torch.uint8, device=self.device)

    def _load_other(self, size):
        """A patcher as ComfyUI has them over weights of so many bytes."""
        from comfy.model_patcher import ModelPatcher

        torch, module = self.torch, self.torch.nn.Module()
        for index in range(max(size // (64 * MIB), 1)):
            module.add_module(f"part{index}", part := torch.nn.Module())
            part.weight = torch.nn.Parameter(torch.empty(32 * MIB, dtype=torch.bfloat16), requires_grad=False)
        patcher = ModelPatcher(module, self.device, torch.device("cpu"))
        self.management.load_models_gpu([patcher], force_full_load=True)
        return patcher

    def growth(self):
        """Ten replies hold no more in the end than after the first."""
        rows = []
        for _ in range(10):
            self.client.run(self.workflow("ten times", self.new_seed(), 60))
            rows.append(self.note("") if not rows else self._quiet_note())
        self._check_growth("ten replies", rows)

    def _quiet_note(self):
        keys = ("memory_allocated", "memory_reserved")
        return {key[7:]: round(getattr(self.torch.cuda, key)(self.device) / MIB, 1) for key in keys if self.on_gpu}

    def _check_growth(self, what, rows):
        if not self.on_gpu:
            return
        for key in ("allocated", "reserved"):
            values = [row[key] for row in rows]
            self.check(max(values[1:]) <= values[1] + 1, f"{what} do not grow what is {key}: {values} MiB")

    def interrupts(self):
        """How long an interrupt takes while the prompt is read and while the reply is written."""
        rows, times = [], {"reading": [], "tokens": []}
        for turn in range(5):
            for phase in times:
                prompt = f"{turn} begins so. " + "word " * (self.long if phase == "reading" else 20)
                since = self.client.seen
                prompt_id = self.client.queue(self.workflow(prompt, self.new_seed(), 8 if phase == "reading" else 8000))
                self.client.wait_for(LIVE, lambda data, phase=phase: _past_start(data["status"], phase), since)
                asked = time.perf_counter()
                self.client.post("/interrupt", {})
                try:
                    came, _ = self.client.wait_for("execution_interrupted", lambda data: True, since, 20)
                    times[phase].append(came - asked)
                except TimeoutError:
                    times[phase].append(float("nan"))
                self.client.ended(prompt_id, since)
                gc.collect()
            rows.append(self._quiet_note())
        for phase, name in (("reading", "reading a prompt"), ("tokens", "writing")):
            shown = ", ".join(f"{1e3 * value:.0f}" for value in times[phase])
            self.check(all(value < 1 for value in times[phase]), f"interrupted while {name} after {shown} ms")
        self._check_growth("interrupted replies", rows)
        self.note("after interrupts")
        return times

    def unload(self):
        """What ComfyUI's 'unload models' leaves."""
        self.client.post("/free", {"unload_models": True, "free_memory": True})
        deadline = time.monotonic() + 20
        while (self.resident() or self.shared is not None) and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(0.5)  # the worker goes on to empty the allocator's cache
        row = self.note("unloaded")
        self.check(not self.resident() and self.shared is None, "'unload models' and 'free memory' leave no engine")
        if self.on_gpu:
            left = row["allocated"] - self.memory[0]["allocated"]
            self.check(left <= SPARE / MIB, f"{left:.1f} MiB more are allocated than before the model was loaded")

    def streaming(self):
        """Half of the weights' bytes as VRAM budget: the same text."""
        tokens = min(self.tokens, 48)
        self.client.run(self.workflow("warm up", self.new_seed(), 8))
        request = self.workflow("streamed", self.new_seed(), tokens)
        _, wanted = self.alone(request)
        budget = self.shared.patcher.model_size() / 2 / GIB
        self.unload()
        self.client.run(self.workflow("warm up", self.new_seed(), 8, budget=budget))
        for note in self.shared.get().notes:
            print(f"  {note}", flush=True)
        row = self.note("streamed")
        request["1"]["inputs"]["vram_budget"] = budget
        seconds, outputs = self.client.run(request)
        rate = _rate(outputs["2"]["report"][0])
        self.check(outputs["2"]["text"] == [wanted.text], f"streamed, the text is the same, at {rate} tokens/s")
        if self.on_gpu:
            self.check(row["model_size"] <= budget * 1024 + 512, "weights on the GPU keep to the budget")
        self.unload()
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


def _rate(report):
    """Tokens a second out of a node's report."""
    return float(report.split(" tokens/s")[0].rsplit(" ", 1)[1])


def _letters(text):
    """Without spaces at the ends, characters cut in the middle, and the tags of reasoning."""
    return text.replace("\ufffd", "").replace("<think>", "").replace("</think>", "").strip()


def _past_start(status, phase):
    number = status.removeprefix("reading: ").split("/")[0].split(" ")[0]
    return phase in status and number.isdigit() and int(number) > 0


def _speed_row(who, mtp, measured):
    seconds, rates, tokens = zip(*measured, strict=True)
    row = {"who": who, "mtp": mtp, "whole_seconds": round(median(seconds), 4), "tokens": min(tokens)}
    return row | ({} if rates[0] is None else {"tokens_per_second": round(median(rates), 1)})
