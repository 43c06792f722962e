"""What a generate call reports beside its text."""

import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

import torch

from ..mtp.drafts import Outcome
from .prompt_reuse import PromptReuse

STOP_TOKEN, LENGTH, STOP_TEXT, INTERRUPTED = "stop token", "length", "stop text", "interrupted"


@dataclass(frozen=True)
class Progress:
    """One step of a reply: phase "prefill" or "decode", tokens done of total, tokens per second while decoding.

    A reply to images or videos begins with the phase "images", which counts them. True returned there ends the reply.
    The first reply of a size on a GPU begins with the phase "prepare", in parts of a pass: kernels are compiled, the
    first time on a machine for up to a minute, and captured.
    """

    phase: str
    done: int
    total: int
    tokens_per_second: float | None = None


@dataclass(frozen=True)
class Report:
    """Numbers of one reply. Seconds are wall time; a rate counts the tokens after the first, over decode_seconds.

    acceptance[level][rank] counts accepted drafts; shapes counts verify passes by the draft tree's widths. mtp says
    what drafted: "off", "auto" or a chain's length; planner holds the scores by which "auto" chose.
    cached_tokens of the prompt were read before (engine/prompt_reuse.py), which saved about cached_seconds.
    image_tokens are the prompt's of images and videos; image_seconds were spent on preparing their pixels and
    vision_seconds in the vision tower, both before the prefill.
    peak_memory_bytes is the GPU allocator's peak during the reply, or the process's peak on a CPU.
    """

    prompt_tokens: int
    new_tokens: int
    cached_tokens: int
    prefill_seconds: float
    cached_seconds: float
    decode_seconds: float
    tokens_per_second: float
    verify_passes: int
    accepted_per_pass: float
    acceptance: list[list[int]]
    shapes: dict[str, int]
    draft_ms: float
    verify_ms: float
    peak_memory_bytes: int | None
    stop_reason: str
    mtp: str
    planner: dict
    notes: list[str]
    image_tokens: int = 0
    image_seconds: float = 0.0
    vision_seconds: float = 0.0

    def to_dict(self) -> dict:
        """The same as plain JSON types."""
        return asdict(self)

    def lines(self) -> list[str]:
        """For people: the notes, and the numbers in one line."""
        return [
            *(f"note: {note}" for note in self.notes),
            f"[{self.written}, prompt {self.prompt_tokens} tokens"
            f"{self._cached()} in {self.prefill_seconds:.2f} s{self._images()}, stopped: {self.stop_reason}, "
            f"mtp: {self.mtp}{self._drafts()}]",
        ]

    def short(self) -> str:
        """One of many replies in a few words; what `notes_of` gives is said once beside them."""
        return f"{self.written}, prompt {self.prompt_tokens} tokens{self._cached()}, stopped: {self.stop_reason}"

    @property
    def written(self) -> str:
        """For people: tokens and their rate, which a reply of one token has not."""
        speed = f"{self.tokens_per_second:.1f} tokens/s" if self.tokens_per_second else "speed not measured"
        return f"{self.new_tokens} token{'s' * (self.new_tokens != 1)}, {speed}"

    def _cached(self) -> str:
        if not self.cached_tokens:
            return ""
        return f" ({self.cached_tokens} read before, {self.cached_seconds:.2f} s saved)"

    def _images(self) -> str:
        if not self.image_tokens:
            return ""
        return (
            f", {self.image_tokens} of images prepared in {self.image_seconds:.2f} s and encoded in "
            f"{self.vision_seconds:.2f} s"
        )

    def _drafts(self) -> str:
        return f", {self.accepted_per_pass:.2f} drafts accepted a pass" if self.mtp != "off" else ""


def notes_of(reports: Iterable[Report]) -> list[str]:
    """For people: what several replies noted, each once."""
    return [f"note: {note}" for note in dict.fromkeys(note for report in reports for note in report.notes)]


@dataclass
class Meter:
    """Collects a reply's numbers while it runs."""

    device: torch.device
    notes: list[str] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    new_tokens: int = 0
    prefill_seconds: float = 0.0
    cached_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    passes: int = 0
    accepted: int = 0
    acceptance: list[list[int]] = field(default_factory=list)
    shapes: dict[str, int] = field(default_factory=dict)
    stop_reason: str = INTERRUPTED
    mtp: str = "off"
    planner: dict = field(default_factory=dict)
    image_tokens: int = 0
    image_seconds: float = 0.0
    vision_seconds: float = 0.0
    _decode_started: float | None = None
    _decode_ended: float | None = None

    def start(self):
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def prefilled(self, seconds: float):
        """The prompt is in; decoding starts now."""
        self.prefill_seconds, self._decode_started = seconds, time.perf_counter()

    def reused(self, reuse: PromptReuse | None):
        """What was not read again."""
        if reuse is not None:
            self.cached_tokens, self.cached_seconds = reuse.tokens, reuse.seconds_saved

    def drew(self, count: int):
        """`count` more reply tokens were drawn; decoding has lasted until now."""
        self.new_tokens += count
        self._decode_ended = time.perf_counter()

    def verified(self, outcome: Outcome):
        """One verify pass."""
        tree, path = outcome.tree, outcome.accepted.path
        self.draft_seconds += outcome.draft_seconds
        self.verify_seconds += outcome.verify_seconds
        self.passes += 1
        self.accepted += len(path) - 1
        name = "off" if not tree.widths else "-".join(map(str, tree.widths))
        self.shapes[name] = self.shapes.get(name, 0) + 1
        for slot in path[1:]:
            level, rank = tree.depths[slot] - 1, tree.ranks[slot] - 1
            self.acceptance += [[] for _ in range(level + 1 - len(self.acceptance))]
            self.acceptance[level] += [0] * (rank + 1 - len(self.acceptance[level]))
            self.acceptance[level][rank] += 1

    @property
    def tokens_per_second(self) -> float:
        seconds = self.decode_seconds
        return (self.new_tokens - 1) / seconds if seconds > 0 and self.new_tokens > 1 else 0.0

    @property
    def decode_seconds(self) -> float:
        if self._decode_started is None or self._decode_ended is None:
            return 0.0
        return self._decode_ended - self._decode_started

    def report(self, new_tokens: int) -> Report:
        """`new_tokens` is how many the reply kept: a stop text may cut some that were drawn."""
        passes = max(self.passes, 1)
        return Report(
            prompt_tokens=self.prompt_tokens,
            new_tokens=new_tokens,
            cached_tokens=self.cached_tokens,
            prefill_seconds=self.prefill_seconds,
            cached_seconds=self.cached_seconds,
            decode_seconds=self.decode_seconds,
            tokens_per_second=self.tokens_per_second,
            verify_passes=self.passes,
            accepted_per_pass=self.accepted / passes,
            acceptance=[list(level) for level in self.acceptance],
            shapes=dict(self.shapes),
            draft_ms=1e3 * self.draft_seconds / passes,
            verify_ms=1e3 * self.verify_seconds / passes,
            peak_memory_bytes=_peak_memory(self.device),
            stop_reason=self.stop_reason,
            mtp=self.mtp,
            planner=dict(self.planner),
            notes=list(self.notes),
            image_tokens=self.image_tokens,
            image_seconds=self.image_seconds,
            vision_seconds=self.vision_seconds,
        )


def _peak_memory(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows has no such module
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux KiB
