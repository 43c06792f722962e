"""Times pictures on a GPU: preparing them, the vision tower, and a reply's first token; random weights of real sizes.

python -m fastqwen.benchmarks.vision [--shape 0.8b 4b 9b 27b] [--pixels 1024 1536 2048] [--first-token 1536]

Correctness first: resizing against Pillow's bits, the tower in bf16 against itself in fp32.
"""

import argparse
import functools
import json
import time
from statistics import median

import numpy
import torch
from PIL import Image

from ..engine.device_model import DeviceModel
from ..engine.device_passes import DevicePasses
from ..engine.media import Embedded
from ..engine.sampling import GREEDY
from ..engine.session import Session
from ..model.image_rules import ImageRules
from ..model.images import fit, image_patches, levels
from ..model.media import Span, rope_positions
from ..model.resample import resize
from ..model.vision import Grid, VisionTower
from ..model.vision_config import VisionConfig
from ..mtp.planner import Fixed
from ..mtp.tree import Tree
from ..option_types import whole
from .random_model import random_model
from .timing import main_gpu, provenance

TEXT = 32  # tokens before a picture, and behind it

# hidden, intermediate, layers, heads, the text model's hidden size
SIZES = {
    "0.8b": (768, 3072, 12, 12, 1024),
    "4b": (1024, 4096, 24, 16, 2560),
    "9b": (1152, 4304, 27, 16, 4096),
    "27b": (1152, 4304, 27, 16, 5120),
}


class RandomReader:
    """What a weights.Reader gives the tower, random."""

    def __init__(self, config: VisionConfig, device: torch.device, dtype: torch.dtype):
        self.device, self.dtype, self.markers = device, dtype, {}
        self.names, self._shapes = {name: name for name in config.shapes()}, config.shapes()

    def tensor(self, name: str) -> torch.Tensor:
        shape = self._shapes[name]
        generator = torch.Generator().manual_seed(len(name) + shape[0])
        if len(shape) == 1:
            return torch.full(shape, float("norm" in name and name.endswith("weight")), dtype=self.dtype).to(
                self.device
            )
        fan_in = torch.Size(shape[1:]).numel()
        return (torch.randn(shape, generator=generator) * fan_in**-0.5).to(self.device, self.dtype)


def config_of(shape: str) -> VisionConfig:
    hidden, inner, depth, heads, out = SIZES[shape]
    return VisionConfig(hidden, inner, depth, heads, 16, 2, 2, 2304, out, 1e4)


def check(device: torch.device):
    """Raises AssertionError where the GPU's picture or embedding is not what it should be."""
    for before, after in (((750, 910), (736, 928)), ((900, 300), (480, 192)), ((90, 90), (256, 256))):
        noise = torch.randint(0, 256, (*before, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        wanted = resize(levels(noise)[None], after)
        if not torch.equal(resize(levels(noise.to(device))[None], after).cpu(), wanted):
            raise AssertionError(f"{before} -> {after}: the GPU's bits are not Pillow's")
    config, grid = config_of("0.8b"), Grid(1, 32, 48)
    patches = torch.randn(32 * 48, 1536, device=device)
    exact = VisionTower(RandomReader(config, device, torch.float32), config, device)(patches, grid)
    found = VisionTower(RandomReader(config, device, torch.bfloat16), config, device)(patches, grid).float()
    error = float((found - exact).norm() / exact.norm())
    # Twelve layers of bf16: each rounds its residual stream to 2^-9 of its size, and the errors add up like a walk.
    if not error < 0.05:
        raise AssertionError(f"bf16 is {error:.3f} off fp32")
    print(json.dumps({"what": "check", "bf16_error": round(error, 5)}))


def milliseconds(call, repeats: int = 7) -> tuple[float, float]:
    """Median (wall time until the GPU is done, time until the host is free again) of a call."""
    times = []
    for _ in range(repeats + 2):
        torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        free = time.perf_counter()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - started, free - started))
    return tuple(round(1e3 * median(values), 2) for values in zip(*times[2:], strict=True))


class Laps:
    """Milliseconds of calls, each until the GPU is done."""

    def __init__(self):
        self.ms: dict[str, float] = {}

    def __call__(self, part: str, call):
        torch.cuda.synchronize()
        started = time.perf_counter()
        result = call()
        torch.cuda.synchronize()
        self.ms[part] = 1e3 * (time.perf_counter() - started)
        return result


def first_token(shape: str, side: int, rules: ImageRules, device: torch.device) -> dict:
    """Milliseconds from a square image in RAM to a reply's first token, text model in W4A8 with drafts, by parts."""
    trunk, head, _ = random_model(shape, device, bits=4, head="w4a8", kv="int8")
    config, size = config_of(shape), fit(side, side, rules)
    tower = VisionTower(RandomReader(config, device, torch.bfloat16), config, device)
    image, grid = torch.rand(side, side, 3), Grid(1, *(edge // rules.patch for edge in size))
    count = grid.rows * grid.columns // rules.merge**2
    ids = torch.randint(0, 10_000, (TEXT + count + TEXT,), generator=torch.Generator().manual_seed(0)).tolist()
    span = Span(TEXT, grid.rows // rules.merge, grid.columns // rules.merge, 0, 0)
    model = DeviceModel(trunk, head, capacity=len(ids) + 64, vocab=trunk.config.vocab_size, graphs=False)
    rows = []
    for _ in range(7):
        model.state.reset()
        session = Session(trunk, len(ids) + 64, model.state)
        passes = DevicePasses(
            model, session, Fixed(Tree.chain(1)), GREEDY, seed=0, drafts=True, stop_ids=(), max_tokens=8
        )
        laps = Laps()
        with torch.inference_mode():
            patches = laps("prepare", functools.partial(image_patches, image, size, rules, device))
            found = laps("tower", functools.partial(tower, patches, grid))
            embedded = Embedded([(TEXT, found)], rope_positions(len(ids), [span]).to(device))
            laps("prefix_key", embedded.contents)
            prefill = functools.partial(session.prefill, ids, on_hidden=passes.prompt, pictures=embedded)
            laps("draw", functools.partial(passes.first, laps("prefill", prefill)))
        rows.append(laps.ms)
    parts = {part: round(median(row[part] for row in rows[2:]), 2) for part in rows[0]}
    return {"what": "first token", "shape": shape, "side": side, "tokens": len(ids), "ms": parts,
            "total_ms": round(median(sum(row.values()) for row in rows[2:]), 1)}  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", nargs="+", choices=tuple(SIZES), default=["0.8b", "9b"])
    parser.add_argument(
        "--pixels", type=whole(1), nargs="+", default=[512, 1024, 1500, 1536, 2048], help="side of a square"
    )
    parser.add_argument("--first-token", type=whole(1), nargs="*", default=[1536], help="side of a square")
    arguments = parser.parse_args()
    device, rules = main_gpu("benchmarks.vision"), ImageRules()
    check(device)
    print(json.dumps(provenance()))
    for side in arguments.pixels:
        image = torch.rand(side, side, 3)  # as ComfyUI has it: floats in the CPU's memory
        size = fit(side, side, rules)
        wall, host = milliseconds(functools.partial(image_patches, image, size, rules, device))
        started = time.perf_counter()
        picture = Image.fromarray((image.numpy() * 255).round().astype(numpy.uint8))
        picture.resize(size[::-1], Image.Resampling.BICUBIC)
        pillow = round(1e3 * (time.perf_counter() - started), 2)
        print(
            json.dumps({"what": "prepare", "side": side, "to": size, "ms": wall, "host_ms": host, "pillow_ms": pillow})
        )
    for shape in arguments.shape:
        config = config_of(shape)
        tower = VisionTower(RandomReader(config, device, torch.bfloat16), config, device)
        weights = sum(torch.Size(dims).numel() for name, dims in config.shapes().items() if "blocks" in name)
        for side in arguments.pixels:
            rows = fit(side, side, rules)[0] // rules.patch
            patches = torch.randn(rows * rows, 1536, device=device)
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            wall, host = milliseconds(functools.partial(tower, patches, Grid(1, rows, rows)))
            operations = 2 * rows**2 * weights + 4 * config.depth * rows**4 * config.hidden_size
            peak = (torch.cuda.max_memory_allocated() - before) / 2**20
            row = {"what": "tower", "shape": shape, "side": side, "tokens": rows**2 // 4, "ms": wall, "host_ms": host,
                   "tflops": round(operations / wall / 1e9), "peak_mib": round(peak)}  # fmt: skip
            print(json.dumps(row), flush=True)
        for side in arguments.first_token:
            print(json.dumps(first_token(shape, side, rules, device)), flush=True)


if __name__ == "__main__":
    main()
