"""The adapter to a running ComfyUI: its device, folders, bundled tokenizer, progress bar, messages and interrupt.

The only file that uses `comfy`, `folder_paths` and `server`; they exist only inside ComfyUI, so they are imported where
used.
"""

import os

from ..engine import load
from . import folders
from .clip import FastQwenClip, every_shared_engine, shared_engine
from .live import EVENT, LiveText
from .options import LoadOptions

DEFAULTS = LoadOptions()


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
    clip = FastQwenClip(name, shared_engine((resolve(name), options), load_engine), Watch)
    clip.load()
    return clip


def load_engine(key):
    """Loads a checkpoint, key (path, LoadOptions), onto the device that ComfyUI computes on."""
    import comfy.model_management

    path, options = key
    device = str(comfy.model_management.get_torch_device())
    folder = bundled_tokenizer_folder()
    return load(path, device=device, comfy_tokenizer_folder=folder, on_load=Watch(), **options.arguments())


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
    BaseException) when the user stopped the run.
    """

    def __init__(self):
        self._phase = None
        self._bar = None
        self._live = LiveText(_sender())

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

    def _show(self, phase, done, total):
        import comfy.model_management
        import comfy.utils

        # Asked directly: the bar asks too, but since January 2026 only when it redraws.
        comfy.model_management.throw_exception_if_processing_interrupted()
        if phase != self._phase:
            self._phase = phase
            self._bar = comfy.utils.ProgressBar(total)
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
