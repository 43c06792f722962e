"""The adapter to a running ComfyUI: its device, folders, bundled tokenizer, progress bar, messages and interrupt.

`comfy`, `folder_paths` and `server` exist only inside ComfyUI, so they are imported where used. nodes/patcher.py, which
only this file imports, has what concerns memory.
"""

import os
import time

import torch

from ..engine import load, weight_bytes
from . import folders
from .clip import FastQwenClip, every_shared_engine, shared_engine
from .live import EVENT, INTERVAL, LiveText
from .options import LoadOptions

DEFAULTS = LoadOptions()

LOAD_ROOM = 1.1  # of the weights: one layer is there twice while it is packed
WEIGHT_SHARE = 0.8  # of a GPU's memory; keys and values, a prompt's rows and the desktop need the rest


def register_folders():
    """Adds `models/LLM` to ComfyUI's model folders."""
    import folder_paths

    folders.register(folder_paths)


def model_names():
    """The loader's choices."""
    import folder_paths

    return folders.model_names(folder_paths)


def resolve(name):
    """The path of a choice. Raises FastQwenError for a name that is no choice."""
    import folder_paths

    return folders.resolve(name, folder_paths)


def open_clip(name, options=DEFAULTS):
    """The handle of a choice, with its engine loaded. Raises FastQwenError for a bad name, option or checkpoint."""
    from . import patcher

    clip = FastQwenClip(name, shared_engine((resolve(name), options), load_engine), Watch)
    patcher.attach(clip.shared)
    clip.load()
    clip.shared.patcher.bring_in()
    return clip


def load_engine(key):
    """Loads a checkpoint, key (path, LoadOptions), onto the device that ComfyUI computes on."""
    import comfy.model_management

    path, options = key
    arguments = options.arguments()
    device = torch.device(comfy.model_management.get_torch_device())
    if device.type != "cpu":
        weights, asked = weight_bytes(path, quantize=arguments.get("quantize")), arguments.get("vram_budget")
        budget = make_room(weights if asked is None else min(weights, asked), device)
        arguments["vram_budget"] = budget if asked is None else asked
    folder = bundled_tokenizer_folder()
    return load(path, device=str(device), comfy_tokenizer_folder=folder, on_load=Watch(), **arguments)


def make_room(weights, device):
    """Has models go that are not in use before so many bytes are read. Returns the engine's VRAM budget: None unless
    they are too many for the GPU."""
    import comfy.model_management

    needed = weights * LOAD_ROOM
    share = int(comfy.model_management.get_total_memory(device) * WEIGHT_SHARE)
    comfy.model_management.free_memory(min(needed, share), device)
    return None if needed <= share else share


def unload(clip=None):
    """Frees the memory of a handle's model, or of every FastQwen model; each is loaded again when it is next used.

    Returns how many there were.
    """
    import comfy.model_management

    freed = sum(shared.unload() for shared in ([clip.shared] if clip is not None else every_shared_engine()))
    comfy.model_management.soft_empty_cache()
    return freed


def preset_folder():
    """Where users keep presets of the prompt enhancer."""
    import folder_paths

    return os.path.join(folder_paths.get_user_directory(), "fastqwen", "presets")


def bundled_tokenizer_folder():
    """The folder of the Qwen3.5 tokenizer that ComfyUI ships since March 2026, or None before that."""
    import comfy.text_encoders

    for root in comfy.text_encoders.__path__:
        folder = os.path.join(root, "qwen35_tokenizer")
        if os.path.isdir(folder):
            return folder
    return None


class Watch:
    """Moves ComfyUI's progress bar, shows text on the node and lets the interrupt through.

    Asked at every tensor loaded and every step of a reply; raises ComfyUI's InterruptProcessingException (a
    BaseException) when the user stopped the run. The bar moves ten times a second: before January 2026 ComfyUI sends
    messages at every call, which took 0.1 ms of a step of two.
    """

    def __init__(self, clock=time.monotonic):
        self._phase = None
        self._bar = None
        self._clock, self._shown_at = clock, 0.0
        self._live = LiveText(_sender(), clock)

    def __call__(self, done, total):
        """The engine's `on_load`."""
        self._show("load", done, total)

    def next_reply(self):
        """The node goes on to write another reply: a new bar, and a gap in the text shown."""
        self._phase = None
        self._live.next_reply()

    def on_step(self, progress):
        """The engine's `on_step`. The bar fills once while reading the prompt and once while writing."""
        self._show(progress.phase, progress.done, progress.total)
        self._live.on_step(progress)

    def on_text(self, delta):
        """A piece of the reply."""
        self._live.on_text(delta)

    def flush(self):
        """The reply is whole."""
        self._live.flush()

    def _show(self, phase, done, total):
        import comfy.model_management
        import comfy.utils

        # Asked directly: the bar asks too, but since January 2026 only when it redraws.
        comfy.model_management.throw_exception_if_processing_interrupted()
        if phase != self._phase:
            self._phase = phase
            self._bar = comfy.utils.ProgressBar(total)
        elif done < total and self._clock() - self._shown_at < INTERVAL:
            return
        self._shown_at = self._clock()
        self._bar.update_absolute(done, total)


def _sender():
    """Sends live text to the browser that queued the workflow, named with the node that runs; drops it without one."""
    from comfy_execution.utils import get_executing_context
    from server import PromptServer

    context, server = get_executing_context(), getattr(PromptServer, "instance", None)

    def send(message):
        if context is not None and server is not None and server.client_id is not None:
            server.send_sync(EVENT, {"node": context.node_id, **message}, server.client_id)

    return send
