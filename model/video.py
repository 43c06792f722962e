"""Videos -> frames to look at, by the rule of the released video_preprocessor_config.json.

Two frames a second are taken, at least 4 and at most 768, evenly from the first to the last; the last is repeated to
make the number even. Two neighbours are one pair, and a pair's time is the mean of its frames' times. All frames
together are bounded in pixels, so a long video is seen in less detail.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..weights.errors import FastQwenError
from ..weights.files import expanded, is_file, require_readable
from .image_rules import ImageRules
from .images import check_ratio, levels, patches, resized
from .resample import resize

SAMPLE_FPS, MIN_FRAMES, MAX_FRAMES = 2.0, 4, 768
FRAMES_AT_ONCE = 16  # on the device, as pictures in full size


@dataclass(frozen=True)
class Video:
    """Frames that were taken from a video.

    frames   [F, H, W, C], uint8 or floats from 0 to 1
    indices  of the frames in the video, from 0
    fps      frames a second of the video
    """

    frames: Tensor
    indices: tuple[int, ...]
    fps: float

    @classmethod
    def of(cls, frames: Tensor | Sequence[Tensor], fps: float, sample_fps: float | None = SAMPLE_FPS) -> "Video":
        """Takes `sample_fps` frames a second of a clip [F, H, W, C], or a list of frames [H, W, C] of one size, at
        `fps`; None takes all of them, up to 768.

        Raises FastQwenError for a tensor of another form, or a rate that is not above 0.
        """
        if isinstance(frames, (list, tuple)) and frames and all(isinstance(frame, Tensor) for frame in frames):
            indices = sample(len(frames), fps, sample_fps)
            if any((frame.shape, frame.dtype) != (frames[0].shape, frames[0].dtype) for frame in frames):
                raise FastQwenError("The frames of a video differ in size or dtype: give frames of one size.")
            return cls(cls.of(torch.stack([frames[index] for index in indices]), fps, None).frames, indices, fps)
        if not isinstance(frames, Tensor) or frames.dim() != 4 or frames.shape[-1] not in (1, 3, 4) or not len(frames):
            what = list(frames.shape) if isinstance(frames, Tensor) else type(frames).__name__
            raise FastQwenError(f"A video must be a tensor [frames, height, width, channels], not {what}.")
        if frames.dtype is not torch.uint8 and not frames.is_floating_point():
            raise FastQwenError(f"A video tensor has the dtype {frames.dtype}: use uint8, or floats from 0 to 1.")
        indices = sample(len(frames), fps, sample_fps)
        return cls(frames if len(indices) == len(frames) else frames[list(indices)], indices, fps)

    @property
    def seconds(self) -> tuple[float, ...]:
        """The time of every pair of frames."""
        times = [index / self.fps for index in self.indices]
        times += times[-1:] * (len(times) % 2)
        return tuple((first + second) / 2 for first, second in zip(times[::2], times[1::2], strict=True))


def sample(total: int, fps: float, sample_fps: float | None = SAMPLE_FPS) -> tuple[int, ...]:
    """Which of `total` frames at `fps` are taken."""
    for name, value in (("the video's", fps), ("the asked", sample_fps)):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if value is not None and not (number and 0 < value < float("inf")):
            raise FastQwenError(f"{name[0].upper()}{name[1:]} frame rate is {value!r}: a number above 0 is needed.")
    wanted = total if sample_fps is None else int(total / fps * sample_fps)
    count = min(max(wanted, MIN_FRAMES), MAX_FRAMES, total)
    # Halves go to the even number, as in the released processor.
    return tuple(torch.linspace(0, total - 1, count, dtype=torch.float64).round().long().tolist())


def fit_video(frames: int, height: int, width: int, rules: ImageRules, max_pixels: int | None = None):
    """The size (height, width) that every frame is resized to, so that all frames together are within the rules' bounds
    and `max_pixels`. Raises FastQwenError for sides of more than 200 to 1."""
    if min(height, width) < rules.factor:
        scale = rules.factor / min(height, width)
        height, width = int(height * scale), int(width * scale)
    check_ratio(height, width)
    most = min(rules.video_max_pixels, max_pixels or rules.video_max_pixels)
    bounds = min(rules.video_min_pixels, most), most
    even = max(rules.temporal, round(frames / rules.temporal) * rules.temporal)
    return resized(height, width, rules.factor, bounds, frames, even)


def video_patches(video: Video, size: tuple[int, int], rules: ImageRules, device: torch.device) -> Tensor:
    """The patches of all pairs of frames (model/images.py) on `device`."""
    frames = video.frames
    if len(frames) % rules.temporal:
        frames = torch.cat([frames, frames[-1:]])
    parts = frames.split(FRAMES_AT_ONCE)
    return torch.cat([patches(resize(levels(part.to(device)), size), rules) for part in parts])


def read_video(path, sample_fps: float | None = SAMPLE_FPS, rules: ImageRules | None = None) -> Video:
    """The frames of a video file that are looked at, through PyAV; resized as they are read to what `rules` will make
    of them, so that a long video fits the memory.

    Raises FastQwenError where PyAV is not installed, and for a file that is missing, damaged or has no picture.
    """
    path, rules = expanded(path), rules or ImageRules()
    if not is_file(path):
        raise FastQwenError(f"No video file at '{path}': check the path.")
    require_readable(path)
    try:
        import av
    except ModuleNotFoundError:
        raise FastQwenError("Reading a video file needs PyAV: run `pip install av`.") from None
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise FastQwenError(f"'{path}' has no video in it: give a file with pictures.")
            stream = container.streams.video[0]
            fps = float(stream.average_rate or stream.guessed_rate or 24)
            total = stream.frames or _count(container, stream)
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            indices, frames = _decode(container.decode(stream), sample(total, fps, sample_fps) if total else (), rules)
    except FastQwenError:  # a ValueError too, but it has said everything
        raise
    except (av.FFmpegError, OSError, ValueError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise FastQwenError(f"'{path}' cannot be decoded ({reason}): give a video that plays elsewhere.") from None
    if not frames:
        raise FastQwenError(f"'{path}' has no frame that can be decoded: give a video that plays elsewhere.")
    return Video(torch.stack(frames), tuple(indices), fps)


def _count(container, stream) -> int:
    """Frames of a file that does not say how many it has: its packets, which are read but not decoded."""
    return sum(packet.size > 0 for packet in container.demux(stream))


def _decode(decoded, wanted: Sequence[int], rules):
    """(indices, frames uint8 [H, W, 3]) of the wanted frames; of those beyond the end, the last frame there is."""
    indices, frames, last = [], [], None
    missing = set(wanted)
    for index, frame in enumerate(decoded):
        if index in missing:
            indices.append(index)
            frames.append(_small(_upright(frame), len(wanted), rules))
            missing.discard(index)
        else:
            last = index, frame
        if not missing:
            break
    if missing and last is not None and (not indices or last[0] > indices[-1]):
        indices.append(last[0])
        frames.append(_small(_upright(last[1]), len(wanted), rules))
    return indices, frames


def _upright(frame) -> Tensor:
    """A PyAV frame as uint8 [H, W, 3], turned as the file says (phones film sideways)."""
    levels = torch.from_numpy(frame.to_ndarray(format="rgb24"))
    return torch.rot90(levels, (getattr(frame, "rotation", 0) or 0) // 90, (0, 1))


def _small(frame, count, rules):
    size = fit_video(count, *frame.shape[:2], rules)
    return resize(frame.permute(2, 0, 1)[None], size)[0].permute(1, 2, 0)
