"""What benchmarks/nodes.py runs inside a ComfyUI: one checkpoint, its workflows, and how fast they are."""

import importlib
import sys
import time
from statistics import median

from .node_server import PACK, Client

SAMPLING = {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.0, "repetition_penalty": 1.0}
PRESENCE = 1.5
LIVE = "fastqwen.text"  # nodes/live.py
MIB = 2**20


class Runs:
    """Workflows over one server and one checkpoint, and what is found on the way.

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
        self.first: tuple[dict, list] | None = None  # a workflow and the text it gave
        self._pack = next(name for name in sys.modules if name.endswith(PACK))
        self._seed = 0

    def check(self, passed: bool, what: str):
        self.checks.append((bool(passed), what))
        print(f"  {'ok  ' if passed else 'FAIL'} {what}", flush=True)

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
        with self.shared.lock, self.torch.inference_mode():  # as ComfyUI runs nodes
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
        self.first = nodes, self.client.outcome(prompt_id)[1]["2"]["text"]
        self.note("after the reply")

    def speed(self, prompt):
        """Tokens a second by rounds of a benchmark, by the engine alone, through our node and through ComfyUI's own."""
        core, rows = "TextGenerate" in self.client.get("/object_info"), []
        for mtp in ("off", "auto"):
            found = self._compared(prompt, mtp, core and mtp == "auto")  # ComfyUI's node asks for nothing else
            rows += [_speed_row(who, mtp, measured) for who, measured in found.items()]
        rounds = self._rounds(prompt)
        if rounds is not None:
            rows.append({"who": "bench decode's rounds", "mtp": "off", "tokens_per_second": rounds})
        for row in rows:
            print("  " + ", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
        if self.judged:
            self._judge(rows, rounds)
        return rows

    def _compared(self, prompt, mtp, core):
        """Who -> (seconds, tokens a second, tokens) of every run but the first, which warms up. Texts must agree."""
        found, wrong = {}, []
        for turn in range(self.runs + 1):
            seed = self.new_seed()
            nodes = self.workflow(prompt, seed, self.tokens, mtp=mtp)
            seconds, result = self.alone(nodes)
            taken = {"engine alone": (seconds, result.report.tokens_per_second)}
            seconds, outputs = self.client.run(nodes)
            wrong += [seed] * (outputs["2"]["text"] != [result.text])
            taken["FastQwen's node"] = seconds, rate_of(outputs["2"]["report"][0])
            if core:
                seconds, outputs = self.client.run(self.workflow(prompt, seed, self.tokens, core=True))
                text = self.module("nodes.clip").FastQwenClip("", self.shared).decode(result.token_ids)
                wrong += [("core", seed)] * (_letters(outputs["3"]["text"][0]) != _letters(text))
                taken["ComfyUI's node"] = seconds, None
            for who, (seconds, rate) in taken.items():
                found.setdefault(who, []).extend([(seconds, rate, result.report.new_tokens)] * (turn > 0))
        self.check(not wrong, f"mtp {mtp}: every text is what the engine alone writes {wrong or ''}")
        return found

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

    def graphs(self):
        """With ComfyUI's allocator, passes that were captured write what passes launched kernel by kernel do: the
        demo."""
        engine, texts = self.module("engine"), []
        settings = [engine.GREEDY] + [engine.SamplingSettings(**SAMPLING | {"top_k": top_k}) for top_k in (20, 0)]
        for captured in (True, False):
            with self.torch.inference_mode():
                loaded = engine.load("demo", device=str(self.device), graphs=captured)
                texts.append([
                    loaded.generate("a fox in the snow", settings=kind, seed=3, max_tokens=60, mtp=mtp).token_ids
                    for kind in settings for mtp in ("off", "3")
                ])  # fmt: skip
        self.check(texts[0] == texts[1], "six texts of the demo are the same with captured passes and without")

    def _rounds(self, prompt):
        """The figure of `fastqwen bench decode` without drafts, over this engine; None without a GPU or for a small
        vocabulary, which that benchmark's prompts do not fit."""
        engine = self.shared.get()
        if not self.on_gpu or engine.vocab < 248_000:
            return None
        decode, tree = self.module("benchmarks.decode"), self.module("mtp.tree")
        context = len(engine.template.prompt_ids(prompt))
        with self.shared.lock, self.torch.inference_mode():
            model = engine.memory.model_for(context + (decode.ROUNDS + decode.WARM + 4) * 8, lambda done, total: None)
            times = [decode._rounds(model, tree.OFF, context, decode.SETTINGS)["round_ms"] for _ in range(3)]
        return round(1e3 / median(times), 1)


def rate_of(report):
    """Tokens a second out of a node's report."""
    return float(report.split(" tokens/s")[0].rsplit(" ", 1)[1])


def _letters(text):
    """Without spaces at the ends and the tags of reasoning, which ComfyUI's node cuts."""
    return text.replace("<think>", "").replace("</think>", "").strip()


def _speed_row(who, mtp, measured):
    seconds, rates, tokens = zip(*measured, strict=True)
    row = {"who": who, "mtp": mtp, "whole_seconds": round(median(seconds), 4), "tokens": min(tokens)}
    return row | ({} if rates[0] is None else {"tokens_per_second": round(median(rates), 1)})
