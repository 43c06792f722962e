"""A node pack for the test only: puts ComfyUI's own, empty CLIP object on the wire."""

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
        return (CLIP(no_init=True),)


NODE_CLASS_MAPPINGS = {"ForeignClipForTest": ForeignClip}
