"""The pack, as ComfyUI asks for it."""

from . import host
from .api import ComfyExtension
from .caption_node import FastQwenImageCaption
from .enhance_node import FastQwenPromptEnhance
from .loader_nodes import FastQwenLoader, FastQwenUnload
from .text_node import FastQwenTextGenerate

NODES = [FastQwenLoader, FastQwenTextGenerate, FastQwenPromptEnhance, FastQwenImageCaption, FastQwenUnload]


class FastQwenExtension(ComfyExtension):
    """The pack's nodes."""

    async def get_node_list(self):
        """Registers the model folder first: the loader's choices come from it."""
        host.register_folders()
        return NODES
