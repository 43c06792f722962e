"""A node pack for the test only: puts an empty object of ComfyUI's own CLIP class on the wire."""

import torch
from comfy.model_patcher import ModelPatcher
from comfy.sd import CLIP


class ForeignClip:
    """Stands for any other text encoder loader."""

    RETURN_TYPES = ("CLIP",)
    FUNCTION = "make"
    CATEGORY = "test"

    @classmethod
    def INPUT_TYPES(cls):
        """No inputs."""
        return {"required": {}}

    def make(self):
        """A CLIP without weights."""
        clip = CLIP(no_init=True)
        clip.cond_stage_model = torch.nn.Identity()
        cpu = torch.device("cpu")
        clip.patcher = ModelPatcher(clip.cond_stage_model, cpu, cpu)  # newer caches ask it how much memory it holds
        return (clip,)


NODE_CLASS_MAPPINGS = {"ForeignClipForTest": ForeignClip}
