"""The nodes in a real ComfyUI: `python -m fastqwen.benchmarks.nodes --comfyui PATH [--shape 9b]`.

Starts ComfyUI's own main.py of the folder PATH in this process, with this pack in it, queues workflows over HTTP, and
compares what the nodes do with the engine alone on the same loaded weights: the text, tokens a second and the time of a
whole run, with the websocket open as a browser has it. Then eviction by another model and the way back, interrupts,
memory over many runs, 'unload models', and weights streamed under half of their size as VRAM budget.

Shapes "9b" and "27b" are written as a checkpoint file of random weights; "small" is such a file of four small layers
for a machine without a GPU (with --cpu). Prints every part as it comes, the checks that failed, and one JSON line.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
import traceback
from functools import partial
from pathlib import Path

from ..option_types import whole
from .node_server import serve

PARTS = ("speed", "growth", "eviction", "interrupts", "unload", "streaming", "graphs")
SHAPES = ("demo", "small", "9b", "27b")
PROMPT = "Tell a long story about a fox who looks for a warm place. " * 20


def drive(client, arguments) -> int:
    """The measurements, once the server runs; 1 if a check failed."""
    from comfyui_version import __version__ as version

    from . import node_memory
    from .node_runs import Runs

    started = time.perf_counter()
    model = "demo" if arguments.shape == "demo" else _written(client.base, arguments.shape)
    real = arguments.shape in ("9b", "27b")
    runs = Runs(client, model, tokens=arguments.tokens, runs=arguments.runs, judged=real, long=arguments.long)
    torch = runs.torch
    where = torch.cuda.get_device_name(runs.device) if runs.on_gpu else "CPU"
    allocator = torch.cuda.get_allocator_backend() if runs.on_gpu else None
    dynamic = getattr(sys.modules.get("comfy.memory_management"), "aimdo_enabled", False)
    print(f"{where}, torch {torch.__version__}, ComfyUI {version}, allocator {allocator}, dynamic VRAM {dynamic}, "
          f"{arguments.shape}", flush=True)  # fmt: skip
    found = {"what": "bench nodes", "shape": arguments.shape, "device": where, "torch": torch.__version__,
             "comfyui": version, "allocator": allocator, "dynamic_vram": dynamic}  # fmt: skip
    parts = {"load": runs.load, "speed": lambda: runs.speed(PROMPT)}
    parts |= {name: partial(getattr(node_memory, name), runs) for name in PARTS if hasattr(node_memory, name)}
    parts["graphs"] = runs.graphs
    for name in parts:
        if name in arguments.parts or name == "load":
            print(f"{name} ({time.perf_counter() - started:.0f} s)", flush=True)
            try:
                found[name] = parts[name]()
            except Exception:  # the parts behind it may still tell something
                traceback.print_exc()
                runs.checks.append((False, f"{name} ended with an error"))
    failed = [what for passed, what in runs.checks if not passed]
    print(f"{len(runs.checks)} checks, {len(failed)} failed in {time.perf_counter() - started:.0f} s: {failed}")
    print(json.dumps(found | {"memory": runs.memory, "checks": runs.checks}))
    shutil.rmtree(client.base, ignore_errors=True)
    return 1 if failed else 0


def _written(base: Path, shape: str) -> str:
    """Writes the checkpoint where the loader looks for it; its name there."""
    import torch

    from ..engine.memory import empty_cache
    from .random_file import small_config, write_random_checkpoint
    from .random_model import model_config

    started = time.perf_counter()
    config = small_config() if shape == "small" else model_config(shape)
    name = f"random-{shape}.safetensors"
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    write_random_checkpoint(base / "models" / "text_encoders" / name, config, device)
    empty_cache(device)
    print(f"wrote {name} in {time.perf_counter() - started:.1f} s", flush=True)
    return name


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--comfyui", type=Path, required=True, metavar="PATH", help="a ComfyUI folder, whose needs are installed")
    add("--shape", choices=SHAPES, default="9b", help="default 9b")
    add("--tokens", type=whole(1), default=300, help="length of the replies that are timed (default 300)")
    add("--runs", type=whole(1), default=5, help="timed replies of each kind (default 5)")
    add("--long", type=whole(1), default=60_000, help="words of the prompt that is interrupted (default 60000)")
    add("--parts", nargs="+", choices=PARTS, default=PARTS, help="default: all")
    add("--folder", type=Path, help="where to write models (default: the system's temporary folder)")
    add("--cpu", action="store_true", help="run ComfyUI without a GPU")
    add("--flag", action="append", default=[], metavar="FLAG", help="for ComfyUI, e.g. --flag=--disable-dynamic-vram")
    arguments = parser.parse_args()
    comfy = arguments.comfyui.resolve()
    if not (comfy / "main.py").is_file():
        parser.error(f"{comfy} has no main.py")
    base = Path(tempfile.mkdtemp(prefix="fastqwen-nodes-", dir=arguments.folder))
    flags = ["--verbose", "WARNING", *(["--cpu"] if arguments.cpu else []), *arguments.flag]
    serve(comfy, base, flags, lambda client: drive(client, arguments))
    return 1


if __name__ == "__main__":
    sys.exit(main())
