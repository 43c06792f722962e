"""ComfyUI's own text encoder loader takes the files that `fastqwen quantize` writes.

Needs a ComfyUI that knows Qwen3.5 (from March 2026 on) and comfy-kitchen; its code runs in a process of its own. It
reads no sizes from a file but has a table of them by hidden size, so the process replaces the table's entry for the 2B
with the sizes of a small checkpoint: that, and nothing else, differs from what its CLIPLoader does.
"""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec

import pytest
import torch
from fastqwen.cli import main
from fastqwen.model.names import canonical_names
from fastqwen.weights import Checkpoint, Reader
from fastqwen.weights.decode import to_float
from fastqwen.weights.stored import read_layer
from safetensors.torch import load_file, save_file

from ..tiny import oracle, save_folder, save_tokenizer
from .server import HERE

WIDE = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "linear_value_head_dim": 64}
VISION = {"hidden_size": 64, "num_heads": 4, "intermediate_size": 96, "depth": 1}
FORMATS = {"w4a8": "asym_w4a8_int8", "w6a8": "asym_w4a8_int8", "int8": "int8_tensorwise"}
# Of each kind one, by ComfyUI's names: the file's without "language_model.".
LAYERS = (
    "model.embed_tokens", "model.layers.0.linear_attn.in_proj_qkv", "model.layers.0.linear_attn.out_proj",
    "model.layers.3.self_attn.q_proj", "model.layers.3.self_attn.o_proj", "model.layers.1.mlp.gate_proj",
    "model.layers.2.mlp.down_proj",
)  # fmt: skip
LOAD_SECONDS = 300


@pytest.fixture(scope="module")
def core(comfy):
    """The folder of a ComfyUI that can load the family."""
    if not (comfy / "comfy" / "text_encoders" / "qwen35.py").is_file():
        pytest.skip("this ComfyUI has no comfy/text_encoders/qwen35.py: Qwen3.5 came in March 2026")
    if find_spec("comfy_kitchen") is None:
        pytest.skip("comfy-kitchen is not installed: ComfyUI decodes quantised layers with it")
    return comfy


@pytest.fixture(scope="module")
def model():
    return oracle("gqa4", **WIDE)


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    """A bf16 checkpoint as Hugging Face lays it out, with an MTP head and a vision tower."""
    folder = save_folder(model, tmp_path_factory.mktemp("core"), mtp=True, dtype=torch.bfloat16)
    tensors = load_file(folder / "model.safetensors") | vision_tower(model.config.hidden_size)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return save_tokenizer(folder)


def vision_tower(out):
    """Random weights of the released files' names: patches of 2 x 16 x 16, four of them merged, 48 x 48 positions."""
    width, inner = VISION["hidden_size"], VISION["intermediate_size"]
    shapes = {
        "patch_embed.proj": (width, 3, 2, 16, 16),
        "pos_embed": (2304, width),
        "blocks.0.norm1": (width,),
        "blocks.0.norm2": (width,),
        "blocks.0.attn.qkv": (3 * width, width),
        "blocks.0.attn.proj": (width, width),
        "blocks.0.mlp.linear_fc1": (inner, width),
        "blocks.0.mlp.linear_fc2": (width, inner),
        "merger.norm": (width,),
        "merger.linear_fc1": (4 * width, 4 * width),
        "merger.linear_fc2": (out, 4 * width),
    }
    generator = torch.Generator().manual_seed(2)
    shapes = {f"model.visual.{name}.weight": shape for name, shape in shapes.items()} | {
        f"model.visual.{name}.bias": shape[:1] for name, shape in shapes.items() if name != "pos_embed"
    }
    return {name: torch.randn(shape, generator=generator).to(torch.bfloat16) for name, shape in shapes.items()}


def core_load(core, model, file, folder):
    """What ComfyUI says of a file, and the weights it decodes."""
    text = model.config
    sizes = {
        name: getattr(text, name)
        for name in (
            "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
            "num_key_value_heads", "head_dim", "linear_num_key_heads", "linear_num_value_heads",
            "linear_key_head_dim", "linear_value_head_dim",
        )
    }  # fmt: skip
    sizes["vision"] = VISION
    result = folder / (file.stem + ".decoded")
    environment = dict(os.environ, HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
    inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE / "stubs"), *inherited])
    command = [sys.executable, str(HERE / "core_load.py"), str(core), str(file), json.dumps(sizes), str(result)]
    done = subprocess.run(
        [*command, *LAYERS], cwd=core, env=environment, capture_output=True, text=True, timeout=LOAD_SECONDS
    )
    assert done.returncode == 0, f"ComfyUI's loader failed on {file.name}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    return json.loads(done.stdout.splitlines()[-1]), load_file(result)


@pytest.fixture(scope="module")
def plain(core, model, folder):
    said, decoded = core_load(core, model, folder / "model.safetensors", folder)
    assert said["class"] == "Qwen35" and set(said["layouts"].values()) == {None}
    return said, decoded


@pytest.fixture(scope="module", params=FORMATS)
def quantised(request, core, model, folder):
    """(format, file written by the command, what ComfyUI says of it, what it decodes)."""
    if request.param == "w6a8" and release(version("comfy-kitchen")) < (0, 2, 40):
        # 0.2.31, which ComfyUI 0.33.0 pins, takes a 6-bit row for a 4-bit one of another width and then refuses that.
        pytest.skip(f"comfy-kitchen {version('comfy-kitchen')}: 6-bit layers are known to work with 0.2.40")
    target = folder / f"{request.param}.safetensors"
    assert main(["quantize", str(folder), str(target), "--format", request.param]) == 0
    return request.param, target, *core_load(core, model, target, folder)


def release(version):
    return tuple(int(part) for part in version.split(".")[:3])


def test_a_plain_file_is_taken_whole_but_for_its_mtp_head(plain):
    said, _ = plain
    assert said["missing"] == []
    assert all("mtp." in name for name in said["unexpected"])


def test_a_quantised_file_is_taken_as_the_plain_one_is(quantised, plain):
    format, _, said, _ = quantised
    assert said["class"] == "Qwen35"
    assert said["missing"] == []
    assert [words for words in said["warnings"] if "missing" in words.lower()] == []
    # Layers of the MTP head, which ComfyUI does not know, have more than one tensor each here.
    assert layers_of(said["unexpected"]) == layers_of(plain[0]["unexpected"])
    assert all(layout is not None for layout in said["layouts"].values()), said["layouts"]


def layers_of(keys):
    return {key.rsplit(".", 1)[0] for key in keys}


def test_quantised_layers_mean_the_same_to_comfyui_and_to_us_bit_for_bit(quantised):
    format, file, said, decoded = quantised
    checkpoint = Checkpoint.open(file)
    reader = Reader(checkpoint, canonical_names(checkpoint.entries), torch.device("cpu"), torch.float32)
    for layer in LAYERS:
        stored = read_layer(reader, layer.removeprefix("model."))
        assert stored.format == ("int8" if layer == "model.embed_tokens" else format)
        assert decoded[layer].abs().max() > 0
        assert torch.equal(decoded[layer], to_float(stored)), layer


def test_decoded_weights_are_the_plain_ones_within_the_formats_error(quantised, plain):
    format, _, _, decoded = quantised
    for layer in LAYERS[1:]:
        wanted = plain[1][layer]
        error = ((decoded[layer] - wanted).norm() / wanted.norm()).item()
        assert 0 < error < {"w4a8": 0.08, "w6a8": 0.025, "int8": 0.01}[format], (layer, error)
