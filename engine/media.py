"""The images and videos of one reply: sizes before anything runs, embeddings when it does."""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ..model.image_rules import ImageRules
from ..model.images import WHITE, as_pictures, fit, image_patches, within
from ..model.media import Item, Span, expand, require_places, rope_positions
from ..model.tokenizer import Tokenizer
from ..model.video import SAMPLE_FPS, Video, fit_video, read_video, video_patches
from ..model.vision import Grid, VisionTower
from ..model.vision_config import VisionConfig
from ..weights import Checkpoint, FastQwenError, Reader

# Of the context, what a prompt's pictures leave to the reply when they have to be made smaller to fit.
REPLY_SHARE = 4


class Vision:
    """A checkpoint's vision: the rules for pictures, and the tower, which is read when the first picture comes."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        names: dict[str, str],
        config: VisionConfig,
        device: torch.device,
        dtype: torch.dtype,
        *,
        offload: bool = False,
    ):
        self.config, self.device = config, device
        self.rules = ImageRules.of(checkpoint, config)
        # Opened again by then, so that no file stays open and what failed can be tried again.
        path, cpu = checkpoint.path, torch.device("cpu")
        self._read: Callable[[], VisionTower] = lambda: VisionTower(
            Reader(Checkpoint.open(path), names, cpu, dtype), config, device, offload=offload
        )
        self._tower: VisionTower | None = None

    def tower(self) -> VisionTower:
        """The tower with its weights in place."""
        if self._tower is None:
            with torch.inference_mode():
                self._tower = self._read()
        self._tower.restore()
        return self._tower

    def release(self) -> bool:
        """Gives back the GPU's memory; the next picture brings the weights again. Whether there was any."""
        return self._tower is not None and self._tower.release()


def fingerprints(rows: Tensor) -> bytes:
    """128 bits of every row of `rows` [n, W], which takes a multiple of four bytes; equal for equal rows.

    Of two rows that differ they are equal with a chance of 2^-128: four sums of the row's words, each times a random
    number of 64 bits, modulo 2^64, of which the upper halves count. They are made where the rows are: the embeddings of
    one image of 1536 x 1536 are 19 MB, which a CPU would hash for 20 ms.

    Source: Lemire and Kaser, Strongly universal string hashing is fast (2014), multilinear hashing.
    """
    words = rows.contiguous().view(torch.int32)
    factors = torch.randint(-(2**63), 2**63 - 1, (4, words.shape[1]), generator=torch.Generator().manual_seed(0))
    sums = [(words * factor).sum(1) for factor in factors.to(rows.device)]
    return (torch.stack(sums, 1) >> 32).to(torch.int32).cpu().numpy().tobytes()


@dataclass(frozen=True)
class Embedded:
    """What takes the place of a prompt's picture tokens.

    spans      (index of the first token, embeddings [n, H] of it and those behind it), in order
    positions  rotary positions [3, T] of the whole prompt
    """

    spans: Sequence[tuple[int, Tensor]]
    positions: Tensor

    def contents(self) -> list[tuple[int, bytes]]:
        """(index of the first token, digest of what stands there and where) of every span: what a trunk is told of it
        beside token ids."""
        found = []
        for first, rows in self.spans:
            places = self.positions[:, first : first + len(rows)].T
            found.append((first, hashlib.sha256(fingerprints(rows) + fingerprints(places)).digest()))
        return found

    def fill(self, start: int, embeddings: Tensor):
        """Overwrites rows of `embeddings` [T, H], the prompt's tokens from `start` on, where they are pictures'."""
        for first, rows in self.spans:
            low, high = max(first, start), min(first + len(rows), start + len(embeddings))
            if low < high:
                embeddings[low - start : high - start] = rows[low - first : high - first]


class Media:
    """Images and videos given with a prompt.

    images  for model/images.py's as_pictures; videos: paths, Videos, or (frames, fps), a tensor or a list of frames
    image_pixels  an image is reduced to at most so many pixels; default and maximum: the checkpoint's own bound
    pixel_budget  all images of the prompt, and all pairs of frames of its videos, are reduced to so many pixels in all;
                  default: what the context holds
    image_background  the colour (red, green, blue, 0 to 255) behind what is transparent in an image
    video_fps     frames taken of a second of a video that is a path or a clip
    """

    def __init__(
        self,
        vision: Vision,
        images,
        videos,
        *,
        image_pixels: int | None = None,
        pixel_budget: int | None = None,
        image_background: Sequence[int] = WHITE,
        video_fps: float | None = SAMPLE_FPS,
    ):
        for name, value in (("image_pixels", image_pixels), ("pixel_budget", pixel_budget)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise FastQwenError(f"{name} is {value!r}: set a whole number of pixels.")
        self._vision, self._image_pixels, self._budget = vision, image_pixels, pixel_budget
        colour = image_background if isinstance(image_background, Sequence) else ()
        if len(colour) != 3 or not all(isinstance(value, int) and 0 <= value <= 255 for value in colour):
            raise FastQwenError(f"image_background is {image_background!r}: give red, green and blue from 0 to 255.")
        pictures = as_pictures(images if isinstance(images, (list, tuple)) else [images], image_background)
        clips = [_video(value, vision.rules, video_fps) for value in (videos if _is_several(videos) else [videos])]
        self._sources = [*pictures, *clips]
        self.images, self.videos = len(pictures), len(clips)
        self._items: list[Item] = []
        self._spans: list[Span] = []
        self._length = 0
        self.notes: list[str] = []
        self.tokens = 0
        self.image_seconds = self.vision_seconds = 0.0

    def place(self, ids: Sequence[int], tokenizer: Tokenizer, *, context: int, max_tokens: int) -> list[int]:
        """The prompt's ids with every picture token in them, pictures made as small as `context` asks for."""
        merge, area = self._vision.rules.merge, self._vision.rules.factor**2
        # Once with pictures of one token, to see what the words and the times of frames take.
        least = [Item(kind, Grid(frames, merge, merge), seconds) for kind, frames, seconds in self._kinds()]
        words = len(expand(ids, least, merge, tokenizer)[0]) - sum(item.grid.frames for item in least)
        room = context - words - min(max_tokens, context // REPLY_SHARE)
        budget = max(area, room * area) if self._budget is None else self._budget
        sizes = self._sizes(budget)
        patch = self._vision.rules.patch
        self._items = [
            replace(item, grid=Grid(item.grid.frames, size[0] // patch, size[1] // patch))
            for item, size in zip(least, sizes, strict=True)
        ]
        placed, self._spans = expand(ids, self._items, merge, tokenizer)
        self._length = len(placed)
        self.tokens = sum(span.rows * span.columns for span in self._spans)
        return placed

    def embed(self, on_done: Callable[[int, int], bool]) -> Embedded | None:
        """Runs the tower; None where on_done(pictures done, of how many) said to stop. Seconds are counted."""
        vision, found = self._vision, []
        self.image_seconds = self.vision_seconds = 0.0
        tower, patch = vision.tower(), vision.rules.patch
        for index, (source, item) in enumerate(zip(self._sources, self._items, strict=True)):
            if on_done(index, len(self._items)):
                return None
            prepare = video_patches if item.kind == "video" else image_patches
            size = item.grid.rows * patch, item.grid.columns * patch
            with torch.inference_mode():
                started = self._now()
                patches = prepare(source, size, vision.rules, vision.device)
                prepared = self._now()
                found.append(tower(patches, item.grid))
                self.image_seconds += prepared - started
                self.vision_seconds += self._now() - prepared
        on_done(len(self._items), len(self._items))
        spans = []
        for span in self._spans:
            size = span.rows * span.columns
            spans.append((span.start, found[span.item][span.frame * size : (span.frame + 1) * size]))
        return Embedded(spans, rope_positions(self._length, self._spans).to(vision.device))

    def _kinds(self):
        for source in self._sources:
            if isinstance(source, Video):
                yield "video", len(source.seconds), source.seconds
            else:
                yield "image", 1, ()

    def _sizes(self, budget):
        """(height, width) of every picture: each within its own bound, all within `budget`, the largest reduced."""
        sizes = [self._fit(source, None) for source in self._sources]
        wanted = [_pairs(source) * height * width for source, (height, width) in zip(self._sources, sizes, strict=True)]
        level = _water_level(wanted, budget)
        for index, source in enumerate(self._sources):
            if wanted[index] > level:
                sizes[index] = self._fit(source, level)
            self._note(index, source, sizes[index])
        return sizes

    def _fit(self, source, most):
        rules = self._vision.rules
        if isinstance(source, Video):
            frames, height, width = source.frames.shape[:3]
            # The rule counts every frame, the budget every pair, which is what costs tokens.
            size = fit_video(frames, height, width, rules, most and most * rules.temporal)
            return within(height, width, rules.factor, size, most and most // _pairs(source))
        bound = min((bound for bound in (most, self._image_pixels) if bound is not None), default=None)
        return within(*source.shape[:2], rules.factor, fit(*source.shape[:2], rules, bound), bound)

    def _note(self, index, source, size):
        height, width = source.frames.shape[1:3] if isinstance(source, Video) else source.shape[:2]
        if size[0] * size[1] < 0.9 * height * width:
            what = f"Image {index + 1}" if not isinstance(source, Video) else f"Video {index - self.images + 1}"
            self.notes.append(f"{what} was reduced from {width}x{height} to {size[1]}x{size[0]} pixels.")

    def _now(self):
        if self._vision.device.type == "cuda":
            torch.cuda.synchronize(self._vision.device)
        return time.perf_counter()


def place(media: Media | None, ids: list[int], tokenizer: Tokenizer, *, context: int, max_tokens: int) -> list[int]:
    """`Media.place`, or of no media: the ids as they are. Raises FastQwenError where the prompt has places left."""
    if media is None:
        require_places(ids, (), tokenizer)
        return ids
    return media.place(ids, tokenizer, context=context, max_tokens=max_tokens)


def _pairs(source):
    return len(source.seconds) if isinstance(source, Video) else 1


def _water_level(wanted: Sequence[int], budget: int) -> int:
    """What each may have at most, so that all together keep `budget`: the small ones keep what they want."""
    left = budget
    for index, want in enumerate(sorted(wanted)):
        share = left // (len(wanted) - index)
        if want > share:
            return max(1, share)
        left -= want
    return max(wanted, default=1)


def _is_several(videos) -> bool:
    """Whether it is a collection of videos rather than one: a path, a Video, or frames and their rate."""
    single = isinstance(videos, (str, Path, Video))
    return not single and not (isinstance(videos, tuple) and len(videos) == 2 and isinstance(videos[1], (int, float)))


def _video(value, rules, sample_fps) -> Video:
    if isinstance(value, Video):
        return value
    if isinstance(value, (str, Path)):
        return read_video(value, sample_fps, rules)
    if isinstance(value, tuple) and len(value) == 2:
        return Video.of(*value, sample_fps)
    raise FastQwenError(f"A video must be a path, or a tensor of frames and its fps, not {type(value).__name__}.")
