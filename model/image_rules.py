"""How pictures become patches, in numbers: a checkpoint's own, else those of every released one."""

from dataclasses import dataclass, replace

from ..weights import Checkpoint, FastQwenError
from .hf_config import read_other
from .vision_config import VisionConfig

# Beside the weights, or as texts in the header of a single file (model/convert.py puts them there).
FILES = ("preprocessor_config.json", "video_preprocessor_config.json")


@dataclass(frozen=True)
class ImageRules:
    """`patch` and `merge` are the tower's; areas are in pixels.

    video_min_pixels, video_max_pixels  of all frames of a video together
    mean, std   of levels between 0 and 1
    """

    patch: int = 16
    merge: int = 2
    temporal: int = 2
    min_pixels: int = 65536
    max_pixels: int = 16777216
    video_min_pixels: int = 4096
    video_max_pixels: int = 25165824
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)

    @property
    def factor(self) -> int:
        """Pixels along a side of one token."""
        return self.patch * self.merge

    @classmethod
    def of(cls, checkpoint: Checkpoint, vision: VisionConfig) -> "ImageRules":
        """The numbers of FILES where the checkpoint has them. Raises FastQwenError for one that makes no sense."""
        rules = cls(patch=vision.patch_size, merge=vision.merge_size, temporal=vision.temporal_size)
        said, video = (read_other(checkpoint, name) for name in FILES)
        least, most = _bounds(said, rules.min_pixels, rules.max_pixels)
        video_least, video_most = _bounds(video, rules.video_min_pixels, rules.video_max_pixels)
        return replace(
            rules, min_pixels=least, max_pixels=most, video_min_pixels=video_least, video_max_pixels=video_most,
            mean=_colours(said, "image_mean", rules.mean), std=_colours(said, "image_std", rules.std),
        )  # fmt: skip


def _bounds(said, least, most):
    size = said.get("size")
    size = size if isinstance(size, dict) else {}
    found = (
        size.get("shortest_edge", said.get("min_pixels", least)),
        size.get("longest_edge", said.get("max_pixels", most)),
    )
    if not all(isinstance(value, int) and value > 0 for value in found) or found[0] > found[1]:
        raise FastQwenError(f"The image preprocessor's config bounds pictures by {found} pixels: get the file again.")
    return found


def _colours(said, key, default):
    value = said.get(key, default)
    numbers = isinstance(value, (list, tuple)) and all(isinstance(v, (int, float)) and abs(v) < 1e6 for v in value)
    if not numbers or len(value) != 3 or (key == "image_std" and min(value) <= 0):
        raise FastQwenError(
            f"The image preprocessor's config sets {key} to {value!r:.80}: three usable numbers are expected."
        )
    return tuple(map(float, value))
