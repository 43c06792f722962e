"""FastQwen: fast text generation with Qwen3.5, 3.6 and 3.8 dense models.

ComfyUI imports this folder under a name of its own choosing, so nothing is imported here at load time.
The library's entry point is `fastqwen.engine.load`.
"""

WEB_DIRECTORY = "./web"


async def comfy_entrypoint():
    """ComfyUI's V3 entry point. Returns the node pack's extension object."""
    from .nodes.extension import FastQwenExtension

    return FastQwenExtension()
