"""Nodes for the test only: an empty object of ComfyUI's own CLIP class, and a look at what the process holds."""

import gc
import json
import threading

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


class Held:
    """Counts the FastQwen engines of the process, the bytes of all tensors and the threads."""

    RETURN_TYPES = ()
    FUNCTION = "count"
    CATEGORY = "test"
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls):
        """`after` is what has to be there first."""
        return {"required": {}, "optional": {"after": ("*",)}}

    @classmethod
    def IS_CHANGED(cls, **inputs):
        """Looks anew in every run."""
        return float("nan")

    def count(self, after=None):
        """The numbers as JSON, in the node's text."""
        del after
        gc.collect()
        engines, storages = 0, {}
        for x in gc.get_objects():
            kind = type(x)
            if kind is torch.Tensor or kind is torch.nn.Parameter:
                storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            elif kind.__name__ == "Engine" and kind.__module__.endswith("engine.engine"):
                engines += 1
        counts = {"engines": engines, "bytes": sum(storages.values()), "threads": threading.active_count()}
        return {"ui": {"text": (json.dumps(counts),)}}


NODE_CLASS_MAPPINGS = {"ForeignClipForTest": ForeignClip, "HeldForTest": Held}
