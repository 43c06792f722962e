"""From a path to an engine that is ready to reply."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from ..attention import KINDS
from ..model.chat import ChatTemplate
from ..model.config import read_config
from ..model.load import load_model
from ..model.tokenizer import load_tokenizer
from ..mtp.head import MtpHead
from ..weights import Checkpoint, FastQwenError
from .engine import NO_TOWER, Engine
from .media import Vision

_DEMO = Path(__file__).resolve().parent.parent / "demo" / "checkpoint"
# The checkpoint that comes with the package, in the formats it comes in.
DEMOS = {
    "demo": _DEMO / "demo-w6a8.safetensors",
    "demo-w4a8": _DEMO / "demo-w4a8.safetensors",
    "demo-bf16": _DEMO,
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def resolve_path(path) -> Path:
    """The shipped checkpoint for "demo", "demo-w4a8" and "demo-bf16"; anything else is a path."""
    return DEMOS.get(str(path)) or Path(path).expanduser()


def load(
    path,
    *,
    device: str = "auto",
    dtype: str = "auto",
    quantize: str | None = None,
    repack: bool = False,
    kv: str = "auto",
    graphs: bool = True,
    context: int | None = None,
    offload_vision: bool = False,
    tokenizer=None,
    comfy_tokenizer_folder=None,
    on_load: Callable[[int, int], None] = lambda done, total: None,
) -> Engine:
    """Loads a checkpoint: a Hugging Face folder, a ComfyUI single file, or "demo" (see DEMOS).

    device     "auto" (the first GPU, else the CPU), or a torch device such as "cpu" or "cuda:1"
    dtype      "auto" (bf16 on a GPU, fp32 on a CPU), "bf16" or "fp32": what it computes in
    quantize   "w4a8", "w6a8" or "int8": quantises plain weights in memory, as `fastqwen quantize` writes them
    repack     re-packs layers of formats without a kernel (fp8, nvfp4, ...) as W6A8; else they become `dtype`
    kv         how keys and values are kept: "auto" (int8 on a GPU, fp32 on a CPU), "int8", "bf16" or "fp32"
    graphs     on a GPU, capture passes as CUDA graphs and replay them: faster, the same text
    context    prompt and reply together are at most so many tokens; None: as many as the model was made for
    offload_vision  keep the vision tower in the CPU's memory between pictures; it is read at the first one anyway
    tokenizer  a tokenizer.json or a folder with one; default: beside the checkpoint, then what else is installed
    comfy_tokenizer_folder  ComfyUI's own Qwen3.5 tokenizer folder, tried after the checkpoint's
    on_load    told (bytes done, bytes in all) after every tensor
    Raises FastQwenError, one sentence, for anything that cannot be loaded.
    """
    if context is not None and (isinstance(context, bool) or not isinstance(context, int) or context < 1):
        raise FastQwenError(f"context is {context!r}: set a whole number of tokens of at least 1.")
    torch_device = resolve_device(device)
    torch_dtype = _dtype(dtype, torch_device)
    source = resolve_path(path)
    kind = _kv(kv)
    checkpoint = Checkpoint.open(source)
    # Everything that headers and small files can tell is told before gigabytes of weights are read.
    config, names = read_config(checkpoint)
    text = load_tokenizer(source, explicit=tokenizer, comfy_folder=comfy_tokenizer_folder)
    if text.size > config.vocab_size:
        raise FastQwenError(
            f"The tokenizer has {text.size} tokens but the checkpoint's table only {config.vocab_size} rows: "
            "give the tokenizer that belongs to this checkpoint."
        )
    template = ChatTemplate.load(source, text)
    model = load_model(checkpoint, torch_device, torch_dtype, on_load, quantize=quantize, repack=repack, kv=kind)
    head = MtpHead(model.reader, config) if config.has_mtp else None
    notes = [*_unused(checkpoint.unread(), config), *_mtp_notes(config), *model.reader.notes]
    vision = None
    if config.vision is not None:
        vision = Vision(checkpoint, names, config.vision, torch_device, torch_dtype, offload=offload_vision)
    return Engine(
        model.trunk, text, template, mtp_head=head, notes=notes, graphs=graphs, context=context, vision=vision,
        no_vision=config.vision_fault or NO_TOWER,
    )  # fmt: skip


def resolve_device(name: str) -> torch.device:
    """ "auto" is the first GPU, else the CPU. Raises FastQwenError for a device that cannot be used here."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise FastQwenError(f"Device '{name}' cannot be used here ({reason}): use 'cpu', or 'auto'.") from None
    return device


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if name not in DTYPES:
        raise FastQwenError(f"dtype is {name!r}: use 'auto', 'bf16' or 'fp32'.")
    return DTYPES[name]


def _kv(name: str) -> str | None:
    if name != "auto" and name not in KINDS:
        raise FastQwenError(f"kv is {name!r}: use 'auto', {', '.join(map(repr, KINDS))}.")
    return None if name == "auto" else name


def _unused(names: Sequence[str], config) -> list[str]:
    """What of the file nobody read, one sentence per kind."""
    vision = [name for name in names if "visual." in name]
    others = [name for name in names if "visual." not in name]
    notes = []
    if vision and config.vision_fault:
        notes.append(
            f"The vision tower ({len(vision)} tensors) cannot be used, so images are refused: {config.vision_fault}"
        )
    if others:
        shown = ", ".join(f"'{name}'" for name in others[:3])
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        notes.append(f"Tensors not used by the model: {shown}{more}.")
    return notes


def _mtp_notes(config) -> list[str]:
    if config.declares_mtp and not config.has_mtp:
        return ["The config declares an MTP head but the file has no 'mtp.fc.weight': it cannot draft."]
    return []
