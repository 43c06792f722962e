"""From a path to an engine that is ready to reply."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from ..attention import KINDS
from ..model.chat import ChatTemplate
from ..model.config import read_config
from ..model.load import LoadedModel, load_model
from ..model.tokenizer import Tokenizer, load_tokenizer
from ..mtp.head import MtpHead
from ..mtp.short_head import FEWEST, ShortHead, check_short_head
from ..weights import Checkpoint, FastQwenError
from ..weights.backend import launching_on
from ..weights.files import expanded
from ..weights.quantize import FORMATS
from .engine import NO_TOWER, Engine
from .media import Vision
from .memory import empty_cache, too_big
from .prefix_cache import DEFAULT_BYTES
from .streaming import Placement

_DEMO = Path(__file__).resolve().parent.parent / "demo" / "checkpoint"
# The checkpoint that comes with the package, in the formats it comes in.
DEMOS = {
    "demo": _DEMO / "demo-w6a8.safetensors",
    "demo-w4a8": _DEMO / "demo-w4a8.safetensors",
    "demo-bf16": _DEMO,
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PADDING = 1024  # rows that a table may have behind its vocabulary; released Qwen3.5 files have 243
DEVICES = ("cpu", "cuda", "xpu", "mps")  # torch has others, such as "meta", that hold no values


def resolve_path(path) -> Path:
    """The shipped checkpoint for "demo", "demo-w4a8" and "demo-bf16"; anything else is a path. Raises FastQwenError for
    what cannot be one."""
    if not isinstance(path, (str, os.PathLike)) or not str(path):
        raise FastQwenError(f"A checkpoint must be the path of a file or folder, or 'demo', not {path!r}.")
    return DEMOS.get(str(path)) or expanded(path)


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
    prefix_cache_bytes: int = DEFAULT_BYTES,
    vram_budget: int | None = None,
    offload_vision: bool = False,
    draft_rows: int | None = None,
    draft_format: str | None = None,
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
    prefix_cache_bytes  RAM for beginnings of prompts, so that one that comes again is not read again; 0: none
    vram_budget  on a GPU, at most so many bytes of weights: layers beyond it stay in RAM and are copied in every pass,
        which is slower, without graphs; keys, values and workspaces come on top. None: all weights on the GPU
    offload_vision  keep the vision tower in the CPU's memory between pictures; it is read at the first one anyway
    draft_rows    drafts choose from the first so many ids (a multiple of 16), the control tokens, and the tokens of the
                  prompt and the reply; 0 or None: from all. Never changes the text
    draft_format  "w4a8", "w6a8" or "int8": drafts read a packed copy of the output head's rows; None: its own
    tokenizer  a tokenizer.json or a folder with one; default: beside the checkpoint, then what else is installed
    comfy_tokenizer_folder  ComfyUI's own Qwen3.5 tokenizer folder, tried after the checkpoint's
    on_load    told (bytes done, bytes in all) after every tensor
    Raises FastQwenError, one sentence, for anything that cannot be loaded.
    """
    _check_options(context, prefix_cache_bytes, vram_budget, draft_rows, draft_format, quantize)
    where, source, kind = resolve_device(device), resolve_path(path), _kv(kv)
    computes = _dtype(dtype, where)
    checkpoint = Checkpoint.open(source)
    # Everything that headers and small files can tell is told before gigabytes of weights are read.
    config, names, text, template = _beside(checkpoint, source, tokenizer, comfy_tokenizer_folder)
    _check_room(checkpoint, where, quantize, repack, vram_budget)
    with launching_on(where):
        placement = Placement(where, vram_budget)
        options = {"quantize": quantize, "repack": repack, "kv": kind, "place": placement.take}
        model = load_model(checkpoint, where, computes, on_load, **options)
        head = _head(model, text, draft_rows, draft_format)
        notes = placement.settle(model.trunk, head) + _notes(checkpoint, model, text, head)
        tower = config.vision and Vision(checkpoint, names, config.vision, where, computes, offload=offload_vision)
        return Engine(
            model.trunk, text, template, mtp_head=head, notes=notes, graphs=graphs and not placement.streams,
            context=context, prefix_cache_bytes=prefix_cache_bytes, vision=tower,
            no_vision=config.vision_fault or NO_TOWER,
        )  # fmt: skip


def _beside(checkpoint, source, tokenizer, comfy_tokenizer_folder):
    """(config, where tensors are, tokenizer, chat template)."""
    config, names = read_config(checkpoint)
    text = load_tokenizer(source, explicit=tokenizer, comfy_folder=comfy_tokenizer_folder)
    _check_vocabulary(text, config)
    return config, names, text, ChatTemplate.load(source, text)


def _check_options(context, prefix_cache_bytes, vram_budget, draft_rows, draft_format, quantize):
    if context is not None and (isinstance(context, bool) or not isinstance(context, int) or context < 1):
        raise FastQwenError(f"context is {context!r}: set a whole number of tokens of at least 1.")
    if isinstance(prefix_cache_bytes, bool) or not isinstance(prefix_cache_bytes, int) or prefix_cache_bytes < 0:
        raise FastQwenError(f"prefix_cache_bytes is {prefix_cache_bytes!r}: set a whole number of at least 0.")
    number = isinstance(vram_budget, (int, float)) and not isinstance(vram_budget, bool)
    if vram_budget is not None and not (number and vram_budget > 0):
        raise FastQwenError(f"vram_budget is {vram_budget!r}: set a number of bytes above 0.")
    if quantize is not None and quantize not in FORMATS:
        raise FastQwenError(f"quantize is {quantize!r}: use one of {', '.join(map(repr, FORMATS))}, or none.")
    if draft_rows or draft_format is not None:
        check_short_head(draft_rows or FEWEST, draft_format)


def _check_vocabulary(text, config):
    if text.size > config.vocab_size:
        raise FastQwenError(
            f"The tokenizer has {text.size} tokens but the checkpoint's table only {config.vocab_size} rows: "
            "give the tokenizer that belongs to this checkpoint."
        )


def weight_bytes(path, *, quantize: str | None = None, repack: bool = False) -> int:
    """At least so many bytes of weights `load` will put on a GPU, by the headers of the file alone."""
    return _least_bytes(Checkpoint.open(resolve_path(path)), quantize, repack)


def _least_bytes(checkpoint: Checkpoint, quantize: str | None, repack: bool) -> int:
    share = 1.0 if quantize is None else {"w4a8": 4.5, "w6a8": 6.5, "int8": 8.0}[quantize] / 16
    if repack:
        share *= 6.5 / 8  # of fp8; what has fewer bits grows
    # A vision tower may not be read, nor an output head that is the embedding table once more.
    entries = [entry for name, entry in checkpoint.entries.items() if "visual." not in name and "lm_head" not in name]
    return int(share * sum(min(entry.bytes, 2 * entry.values) for entry in entries))  # fp32 becomes bf16


def _check_room(checkpoint, device, quantize, repack, vram_budget):
    if device.type != "cuda":
        return
    empty_cache(device)
    free, needed = torch.cuda.mem_get_info(device)[0], _least_bytes(checkpoint, quantize, repack)
    needed = needed if vram_budget is None else min(needed, int(vram_budget))
    if needed > free:
        raise FastQwenError(too_big(needed, free, device))


def resolve_device(name: str) -> torch.device:
    """ "auto" is the first GPU, else the CPU; others are "cpu", "cuda", "cuda:1", and what else torch computes on.
    Raises FastQwenError for a device that cannot be used here."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type not in DEVICES:
            raise RuntimeError("models are not run there")
        torch.empty(0, device=device)
    except (TypeError, RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].partition(". ")[0]  # torch goes on for a page
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


def _head(model: LoadedModel, text, draft_rows: int | None, draft_format: str | None) -> MtpHead | None:
    """The MTP head, if there is one; `short` if drafts choose from some rows or read a copy of them."""
    config, trunk = model.config, model.trunk
    if not config.has_mtp:
        return None
    head = MtpHead(model.reader, config)
    if draft_rows or draft_format is not None:
        always = [text.token_id(name) for name in text.special_names]
        head.short = ShortHead(
            trunk.head.matrices[0][0], draft_rows or config.vocab_size, vocab=min(text.size, config.vocab_size),
            always=always, format=draft_format, dtype=trunk.dtype,
        )  # fmt: skip
    return head


def _notes(checkpoint: Checkpoint, model: LoadedModel, text: Tokenizer, head: MtpHead | None) -> list[str]:
    """What a user should know of a loaded file."""
    config = model.config
    unused = _unused(checkpoint.unread(), config)
    return [*_vocabulary_notes(text, config), *unused, *_mtp_notes(config), *model.reader.notes, *_draft_notes(head)]


def _vocabulary_notes(text, config) -> list[str]:
    if config.vocab_size - text.size <= PADDING:
        return []
    return [
        f"The tokenizer '{text.origin}' has {text.size} tokens and the checkpoint's table {config.vocab_size} rows: if "
        "the text makes no sense, it belongs to another model; put the checkpoint's own tokenizer.json in its place."
    ]


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


def _draft_notes(head) -> list[str]:
    if head is None or head.short is None or head.short.format is None:
        return []
    size = head.short.copied_bytes / 2**20
    return [f"Drafts read a copy of {head.short.rows} rows of the output head, {head.short.format}, {size:.1f} MiB."]
