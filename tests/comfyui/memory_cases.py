"""Puts an engine under a real ComfyUI's memory management. Run as a program, never imported.

    python memory_cases.py COMFYUI ROOT

COMFYUI  folder of a ComfyUI
ROOT     this repository
The engine and the manager are real; the GPU is not: what is free on it is counted here, from what the engine and the
other model say they hold. Every case prints its name once it has passed; the last line is "all passed".
"""

import gc
import importlib.util
import logging
import sys
import weakref

GIB = 2**30
TOTAL, WEIGHTS, OTHER = 16 * GIB, 6 * GIB, 12 * GIB

INPUTS = {
    "prompt": "a fox", "max_length": 6, "sampling_mode": "on", "temperature": 1.0, "top_k": 0, "top_p": 1.0,
    "min_p": 0.0, "repetition_penalty": 1.0, "seed": 3,
}  # fmt: skip


def start(comfy, root):
    """Imports both without a GPU; returns the modules (model_management, host, patcher, engine)."""
    sys.path.insert(0, comfy)
    sys.argv = [sys.argv[0], "--cpu"]
    spec = importlib.util.spec_from_file_location("pack", root + "/__init__.py", submodule_search_locations=[root])
    sys.modules["pack"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    import comfy.options

    comfy.options.enable_args_parsing()
    import comfy.model_management as management

    names = ("nodes.host", "nodes.patcher", "engine", "nodes.request")
    return management, *(importlib.import_module("pack." + name) for name in names)


class Bench:
    """A GPU of TOTAL bytes with one handle's engine on it, and another model that ComfyUI may want to load."""

    def __init__(self, comfy, root):
        import torch

        management, self.host, self.patcher, self.engine, requests = start(comfy, root)
        self.management, self.device = management, torch.device("cuda", 0)
        self.request = requests.request_from_inputs(INPUTS)
        management.vram_state = management.VRAMState.NORMAL_VRAM
        management.get_torch_device = lambda: self.device
        management.get_all_torch_devices = lambda: [self.device]
        management.get_free_memory = self.free
        self.engines = weakref.WeakSet()
        self.others = weakref.WeakSet()
        self.host.resolve = lambda name: "demo"
        self.host.load_engine = self.load
        self.loads, self.error = 0, None

    def load(self, key):
        """The loader, on a CPU: weights count as WEIGHTS bytes. Raises `error` if there is one."""
        if self.error is not None:
            raise self.error
        self.loads += 1
        engine = self.engine.load("demo", device="cpu")
        engine.memory.weight_bytes = WEIGHTS
        self.engines.add(engine)
        return engine

    def free(self, device=None, torch_free_too=False):
        used = sum(engine.bytes_on_device() for engine in self.engines) + sum(x.loaded_size() for x in self.others)
        return (TOTAL - used, 0) if torch_free_too else TOTAL - used

    def open(self):
        return self.host.open_clip("demo")

    def other(self):
        """A model of OTHER bytes as ComfyUI has them, moved by a patcher of its own kind."""
        import torch

        class Patcher(self.patcher.comfy.model_patcher.ModelPatcher):
            held = 0

            def model_size(self):
                return OTHER

            def loaded_size(self):
                return self.held

            def partially_load(self, *arguments, **options):
                self.held = OTHER
                return OTHER

            def detach(self, unpatch_all=True):
                self.held = 0 if unpatch_all else self.held

            def partially_unload(self, *arguments, **options):
                return 0

        patcher = Patcher(torch.nn.Identity(), self.device, torch.device("cpu"), size=OTHER)
        self.others.add(patcher)
        return patcher

    def tracked(self):
        return [loaded.model for loaded in self.management.current_loaded_models]

    def text(self, clip):
        return clip.generate_text(self.request).text


def loaded_once_and_counted(bench):
    clip = bench.open()
    assert bench.tracked() == [clip.patcher] and clip.patcher.loaded_size() == WEIGHTS == clip.patcher.model_size()
    wanted = bench.text(clip)
    for _ in range(3):
        assert bench.text(clip) == wanted
    assert bench.tracked() == [clip.patcher] and bench.loads == 1
    assert bench.patcher.comfy.model_management.get_free_memory() == TOTAL - WEIGHTS


def evicted_by_a_bigger_model_and_back_with_the_same_text(bench):
    clip, other = bench.open(), bench.other()
    wanted = bench.text(clip)
    bench.management.load_models_gpu([other])
    assert bench.tracked() == [other] and clip.patcher.loaded_size() == 0
    assert str(clip.patcher.current_loaded_device()) == "cpu"
    assert bench.text(clip) == wanted and bench.tracked() == [clip.patcher] and other.held == 0
    assert str(clip.patcher.current_loaded_device()) == "cuda:0" and bench.loads == 1


def unload_models_gives_everything_up(bench):
    clip = bench.open()
    wanted = bench.text(clip)
    bench.management.unload_all_models()
    assert bench.tracked() == [] and clip.shared.loaded.bytes_on_device() == 0
    assert bench.text(clip) == wanted and bench.tracked() == [clip.patcher]


def a_small_need_takes_what_replies_share_and_leaves_the_weights(bench):
    clip = bench.open()
    engine, freed = clip.shared.loaded, []
    shared = [GIB]
    engine.bytes_on_device = lambda: WEIGHTS + shared[0]
    engine.memory.free = lambda: freed.append(shared.pop()) or shared.append(0)
    bench.management.free_memory(TOTAL - WEIGHTS, bench.device)
    assert freed == [GIB] and bench.tracked() == [clip.patcher] and engine.memory.resident
    bench.management.free_memory(TOTAL - WEIGHTS + 1, bench.device)
    assert bench.tracked() == [] and not engine.memory.resident


def clones_share_and_do_not_free(bench):
    clip = bench.open()
    wanted, again = bench.text(clip), bench.open()
    assert again.shared is clip.shared and again.patcher is clip.patcher and bench.loads == 1
    clone = clip.patcher.clone()
    assert type(clone) is type(clip.patcher) and clone.is_clone(clip.patcher)
    bench.management.load_models_gpu([clone])
    assert clip.patcher.loaded_size() == WEIGHTS and bench.tracked() == [clone]
    del clone, again
    gc.collect()
    assert clip.patcher.loaded_size() == WEIGHTS and bench.text(clip.clone()) == wanted


def a_load_that_fails_leaves_nothing_and_is_tried_again(bench):
    import torch

    for error in (torch.OutOfMemoryError("no room"), bench.engine.FastQwenError("damaged")):
        bench.error = error
        try:
            bench.open()
        except type(error) as caught:
            assert caught is error
        else:
            raise AssertionError("the error was swallowed")
        assert bench.tracked() == []
    bench.error = None
    clip = bench.open()
    engine = clip.shared.loaded
    engine.offload()
    restore = engine.memory.restore

    def no_room():
        raise torch.OutOfMemoryError("no room")

    engine.memory.restore = no_room
    try:
        bench.text(clip)
    except torch.OutOfMemoryError:
        assert clip.patcher.loaded_size() == 0
    else:
        raise AssertionError("the error was swallowed")
    engine.memory.restore = restore
    assert bench.text(clip) and bench.tracked() == [clip.patcher]


def a_dropped_handle_takes_the_engine_with_it(bench):
    clip = bench.open()
    bench.text(clip)
    gone = weakref.ref(clip.shared.loaded)
    gc.disable()  # no cycle may keep gigabytes until the collector runs
    try:
        del clip
        assert gone() is None
    finally:
        gc.enable()
    bench.management.cleanup_models_gc()
    assert bench.tracked() == []


CASES = (
    loaded_once_and_counted, evicted_by_a_bigger_model_and_back_with_the_same_text, unload_models_gives_everything_up,
    a_small_need_takes_what_replies_share_and_leaves_the_weights, clones_share_and_do_not_free,
    a_load_that_fails_leaves_nothing_and_is_tried_again, a_dropped_handle_takes_the_engine_with_it,
)  # fmt: skip


def main(comfy, root):
    bench, warned = Bench(comfy, root), []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: warned.append(record.getMessage()) if "leak" in record.getMessage() else None
    logging.getLogger().addHandler(handler)
    for case in CASES:
        bench.loads = 0
        case(bench)
        gc.collect()
        bench.management.free_memory(1e30, bench.device)
        assert bench.tracked() == [] and warned == [], warned
        print(case.__name__, flush=True)
    print("all passed")


if __name__ == "__main__":
    main(*sys.argv[1:])
