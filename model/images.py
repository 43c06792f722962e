"""Pictures -> the patches that the vision tower reads, by the rule of the released preprocessor_config.json.

A picture is resized so that both sides are multiples of patch * merge (32) and its area is between two bounds, keeping
its shape as well as that allows (model/resample.py); scaled to [-1, 1]; and cut into patches, four neighbours that
become one token together. Sizes and levels are equal to those of transformers' Qwen2VLImageProcessorPil.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..weights.errors import FastQwenError
from ..weights.files import expanded, is_file, not_opened, require_readable
from .image_rules import ImageRules
from .resample import resize

SCALE = 1 / 255  # multiplied with, for dividing by a number gives other bits on a GPU
WHITE = (255, 255, 255)
MAX_RATIO = 200  # of a picture's sides, as the released processor has it
LEVELS_16 = 257  # 16-bit levels in one 8-bit level: 65535 / 255
OTHER_SUFFIXES = {".mp4", ".mov", ".mkv", ".webm", ".avi", ".m4v"}


def read_image(path, background: Sequence[int] = WHITE) -> Tensor:
    """A picture file as uint8 [H, W, 3], turned upright as its EXIF data says.

    background  the colour (red, green, blue, 0 to 255) behind what is transparent
    Of an animated file the first picture is taken. 16-bit levels are scaled to 8 bits. Raises FastQwenError for a file
    that is missing, is no picture, is cut short, or has more pixels than Pillow lets through (about 179 million).
    """
    import numpy
    from PIL import Image, ImageOps, UnidentifiedImageError

    path = expanded(path)
    if not is_file(path):
        raise FastQwenError(f"No image file at '{path}': check the path.")
    require_readable(path)
    try:
        with Image.open(path) as opened:
            upright = ImageOps.exif_transpose(opened)
            return torch.from_numpy(numpy.array(_rgb(upright, tuple(background))))
    except Image.DecompressionBombError:
        raise FastQwenError(f"'{path}' has more pixels than are safe to decode: make the picture smaller.") from None
    except UnidentifiedImageError:
        what = "looks like a video: give it as a video" if path.suffix.lower() in OTHER_SUFFIXES else "is no image file"
        raise FastQwenError(f"'{path}' {what} (PNG, JPEG, WebP and what else Pillow reads are images).") from None
    except MemoryError:
        raise
    except Exception as error:  # decoders of damaged files fail in any way: OSError, SyntaxError, struct.error, ...
        if getattr(error, "errno", None):  # the disk's word, not the decoder's
            raise not_opened(path, error) from None
        raise FastQwenError(f"'{path}' cannot be decoded ({_reason(error)}): save the picture again.") from None


def _rgb(picture, background):
    """A Pillow picture of any mode -> mode RGB, composited on `background` where it is transparent."""
    from PIL import Image

    if picture.mode[:1] in ("I", "F"):
        picture = _grey(picture)
    if picture.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in picture.info:
        below = Image.new("RGBA", picture.size, (*background, 255))
        picture = Image.alpha_composite(below, picture.convert("RGBA"))
    return picture.convert("RGB")


def _grey(picture):
    """One channel of more than 8 bits (modes I;16, I, F) -> mode L. Pillow itself cuts such levels off at 255."""
    import numpy
    from PIL import Image

    levels = numpy.asarray(picture, dtype=numpy.float32)
    if picture.mode == "F":
        levels = levels * 255 if levels.max(initial=0) <= 1 else levels
    elif picture.mode != "I" or levels.max(initial=0) > 255:
        levels = levels / LEVELS_16
    return Image.fromarray(numpy.nan_to_num(levels).round().clip(0, 255).astype(numpy.uint8))


def _reason(error):
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def as_pictures(value, background: Sequence[int] = WHITE) -> list[Tensor]:
    """One picture or several as a list of tensors [H, W, C], C of 1 or 3: a path, a tensor [H, W], [H, W, C] or
    [B, H, W, C] (ComfyUI's IMAGE), or a list of these; a fourth channel is transparency over `background`. Raises
    FastQwenError for anything else."""
    if isinstance(value, (list, tuple)):
        return [picture for part in value for picture in as_pictures(part, background)]
    if isinstance(value, (str, Path)):
        return [read_image(value, background)]
    if not isinstance(value, Tensor):
        raise FastQwenError(f"An image must be a path or a tensor [H, W, C], not {type(value).__name__}.")
    if value.dim() == 2:
        value = value[..., None]
    if value.dim() not in (3, 4) or value.shape[-1] not in (1, 3, 4) or 0 in value.shape:
        raise FastQwenError(
            f"An image tensor has the shape {list(value.shape)}: [height, width, channels] or [images, height, width, "
            "channels] with 1, 3 or 4 channels is expected."
        )
    if value.dtype is not torch.uint8 and not value.is_floating_point():
        raise FastQwenError(f"An image tensor has the dtype {value.dtype}: use uint8, or floats from 0 to 1.")
    if value.shape[-1] == 4:
        value = levels(value, background).movedim(-3, -1)
    return list(value) if value.dim() == 4 else [value]


def fit(height: int, width: int, rules: ImageRules, max_pixels: int | None = None) -> tuple[int, int]:
    """The size (height, width) in pixels that a picture is resized to: within `max_pixels`, where that is less than
    the rules' own bound. Raises FastQwenError for sides of more than 200 to 1."""
    check_ratio(height, width)
    most = min(rules.max_pixels, max_pixels or rules.max_pixels)
    return resized(height, width, rules.factor, (min(rules.min_pixels, most), most))


def within(height: int, width: int, factor: int, size: tuple[int, int], most: int | None) -> tuple[int, int]:
    """`size`, or where it has more than `most` pixels the largest one of about the picture's shape that has not, at
    least one token. The released rule enlarges a small picture, and a side to one token, beyond a bound so low."""
    if most is None or size[0] * size[1] <= most:
        return size
    tokens, scale = max(1, most // factor**2), math.sqrt(most / (height * width)) / factor
    rows, columns = max(1, int(height * scale)), max(1, int(width * scale))
    return min(rows, tokens // min(columns, tokens)) * factor, min(columns, tokens // min(rows, tokens)) * factor


def check_ratio(height: int, width: int):
    """Refuses sides of more than 200 to 1."""
    if max(height, width) > MAX_RATIO * min(height, width):
        raise FastQwenError(
            f"An image of {width}x{height} pixels is too narrow: one side may be {MAX_RATIO} times the other at most; "
            "crop it."
        )


def resized(
    height: int, width: int, factor: int, bounds: tuple[int, int], frames: int = 1, counted: int = 1
) -> tuple[int, int]:
    """(height, width) as multiples of `factor`, `counted` times their area within `bounds`.

    frames  by whose whole area a side is scaled where they are not (a video's number of frames before it is made even)
    """
    # round() takes halves to the even number, as the released processors do.
    rows, columns = round(height / factor) * factor, round(width / factor) * factor
    if counted * rows * columns > bounds[1]:
        scale = math.sqrt(frames * height * width / bounds[1])
        rows = max(factor, math.floor(height / scale / factor) * factor)
        columns = max(factor, math.floor(width / scale / factor) * factor)
    elif counted * rows * columns < bounds[0]:
        scale = math.sqrt(bounds[0] / (frames * height * width))
        rows, columns = (math.ceil(side * scale / factor) * factor for side in (height, width))
    return rows, columns


def levels(pictures: Tensor, background: Sequence[int] = WHITE) -> Tensor:
    """[..., H, W, C] uint8, or floats from 0 to 1, -> uint8 [..., 3, H, W] on the same device.

    Floats are rounded as if the picture had been saved as a PNG file. A fourth channel is transparency over
    `background`; one channel is grey.
    """
    if pictures.dtype is not torch.uint8:
        pictures = _bytes(pictures.float() * 255)
    if pictures.shape[-1] == 4:
        alpha = pictures[..., 3:].float() * SCALE
        below = torch.tensor(background, dtype=torch.float32, device=pictures.device)
        pictures = _bytes(pictures[..., :3] * alpha + below * (1 - alpha))
    pictures = pictures.movedim(-1, -3)
    return pictures.expand(*pictures.shape[:-3], 3, *pictures.shape[-2:])


def patches(pictures: Tensor, rules: ImageRules) -> Tensor:
    """uint8 [frames, 3, H, W] of a fitting size, an even number of frames -> float32 [frames / 2 * H * W / patch^2,
    3 * 2 * patch^2]: by pair of frames, then by row and column of tokens, then the patches of a token."""
    frames, channels, height, width = pictures.shape
    patch, merge, temporal = rules.patch, rules.merge, rules.temporal
    mean, std = (torch.tensor(values, device=pictures.device).view(3, 1, 1) for values in (rules.mean, rules.std))
    x = (pictures.float() * SCALE - mean) / std
    rows, columns = height // rules.factor, width // rules.factor
    x = x.view(frames // temporal, temporal, channels, rows, merge, patch, columns, merge, patch)
    return x.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(-1, channels * temporal * patch**2)


def image_patches(picture: Tensor, size: tuple[int, int], rules: ImageRules, device: torch.device) -> Tensor:
    """One picture [H, W, C] -> its patches (see `patches`) on `device`, where all of it is computed. A picture is a
    video of equal frames, one pair."""
    resized = resize(levels(picture.to(device))[None], size)
    return patches(resized.expand(rules.temporal, -1, -1, -1), rules)


def _bytes(values: Tensor) -> Tensor:
    return values.nan_to_num().round().clamp(0, 255).to(torch.uint8)
