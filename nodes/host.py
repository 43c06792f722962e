"""The adapter to a running ComfyUI: its device, model folders, bundled tokenizer, progress bar and interrupt.

`comfy` and `folder_paths` exist only inside ComfyUI, so they are imported where used. nodes/patcher.py, which only this
file imports, has what concerns memory.
"""

import os

import torch

from ..engine import load, weight_bytes
from . import folders
from .clip import FastQwenClip, shared_engine

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


def open_clip(name):
    """The handle of a choice, with its engine loaded. Raises FastQwenError for a bad name or checkpoint."""
    from . import patcher

    clip = FastQwenClip(name, shared_engine(resolve(name), load_engine))
    patcher.attach(clip.shared)
    clip.load()
    clip.shared.patcher.bring_in()
    return clip


def load_engine(path):
    """Loads a checkpoint onto the device that ComfyUI computes on."""
    import comfy.model_management

    device = torch.device(comfy.model_management.get_torch_device())
    budget = None if device.type == "cpu" else make_room(path, device)
    return load(
        path, device=str(device), vram_budget=budget, comfy_tokenizer_folder=bundled_tokenizer_folder(), on_load=Watch()
    )  # fmt: skip


def make_room(path, device):
    """Has models go that are not in use, before the first byte is read. Returns the engine's VRAM budget: None unless
    the weights are too large for the GPU."""
    import comfy.model_management

    needed = weight_bytes(path) * LOAD_ROOM
    share = comfy.model_management.get_total_memory(device) * WEIGHT_SHARE
    comfy.model_management.free_memory(min(needed, share), device)
    return None if needed <= share else int(share)


def bundled_tokenizer_folder():
    """The folder of the Qwen3.5 tokenizer that ComfyUI ships since March 2026, or None before that."""
    import comfy.text_encoders

    for root in comfy.text_encoders.__path__:
        folder = os.path.join(root, "qwen35_tokenizer")
        if os.path.isdir(folder):
            return folder
    return None


class Watch:
    """Moves ComfyUI's progress bar and lets its interrupt through, at every tensor loaded and every step of a reply.

    Both calls raise ComfyUI's InterruptProcessingException (a BaseException) when the user stopped the run.
    """

    def __init__(self):
        self._phase = None
        self._bar = None

    def __call__(self, done, total):
        """The engine's `on_load`."""
        self._show("load", done, total)

    def on_step(self, progress):
        """The engine's `on_step`. The bar fills once while reading the prompt and once while writing."""
        self._show(progress.phase, progress.done, progress.total)

    def _show(self, phase, done, total):
        import comfy.model_management
        import comfy.utils

        # Asked directly: the bar asks too, but since January 2026 only when it redraws.
        comfy.model_management.throw_exception_if_processing_interrupted()
        if phase != self._phase:
            self._phase = phase
            self._bar = comfy.utils.ProgressBar(total)
        self._bar.update_absolute(done, total)
