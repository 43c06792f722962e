"""The object on ComfyUI's CLIP wire: a checkpoint's name and an engine shared by everyone who chose it."""

import logging
import threading
import weakref

from ..weights import FastQwenError

logger = logging.getLogger(__name__)

# Keyed by path. Weak: an engine goes when the last handle does. Process-wide because the loader's copies never meet.
_shared_engines = weakref.WeakValueDictionary()
_registry_lock = threading.Lock()


class NotTextGeneration(AttributeError):
    """A FastQwen handle was used as if it were one of ComfyUI's own text encoders."""


class SharedEngine:
    """One checkpoint's engine: loaded on first use, used by one thread at a time."""

    def __init__(self, path, load):
        self.path = path
        self.lock = threading.RLock()
        self._load = load
        self._engine = None
        self.patcher = None  # how ComfyUI counts and evicts it (nodes/patcher.py); None outside ComfyUI

    @property
    def loaded(self):
        """The engine if there is one now."""
        return self._engine

    def make_room(self, reply):
        """Called before a reply is written: ComfyUI gives it room, and brings an evicted engine back."""
        if self.patcher is not None:
            self.patcher.make_room(reply)

    def get(self):
        """The engine. Raises what loading raises; a failed load is tried again the next time."""
        with self.lock:
            if self._engine is None:
                self._engine = self._load(self.path)
                for note in self._engine.notes:  # once; a run's line below has only what that run adds
                    _log(f"FastQwen: {note}")
            return self._engine


def shared_engine(path, load):
    """The SharedEngine of `path`; `load(path) -> Engine` is kept for the first caller of a path only."""
    with _registry_lock:
        shared = _shared_engines.get(path)
        if shared is None:
            shared = _shared_engines[path] = SharedEngine(path, load)
        return shared


class FastQwenClip:
    """What 'Load FastQwen' puts on the wire. Handles of one checkpoint, and clones, share one engine."""

    def __init__(self, name, shared):
        self.name = name
        self.shared = shared

    @property
    def patcher(self):
        """ComfyUI asks for it to tell models from other outputs."""
        return self.shared.patcher

    def load(self):
        """Loads the engine now, so that a mistake is reported on the loader and not downstream."""
        self.shared.get()

    def generate_text(self, request, on_step=None):
        """Writes one reply and returns the engine's Result.

        `request` is a TextRequest; `on_step` is called by the engine after every step and may raise to stop it.
        Raises FastQwenError for what the engine refuses; torch's out-of-memory error passes through unchanged.
        """
        with self.shared.lock:
            reply = self.shared.get().reply(
                request.prompt,
                system=request.system,
                thinking=request.thinking,
                template=request.template,
                settings=request.settings,
                seed=request.seed,
                max_tokens=request.max_tokens,
                mtp=request.mtp,
                on_step=on_step,
            )
            self.shared.make_room(reply)
            result = reply.result()
            known = self.shared.get().notes
        _log(_run_line(result.report, [note for note in result.report.notes if note not in known]))
        return result

    def clone(self):
        """Another handle on the same engine, as ComfyUI's nodes expect of a CLIP."""
        return FastQwenClip(self.name, self.shared)

    def __repr__(self):
        # ComfyUI prints every input of a failing node into its error message.
        return f"<FastQwen {self.name[:60]!r}>"

    def __getattr__(self, attribute):
        raise NotTextGeneration(
            f"The model from 'Load FastQwen' only writes text and has no {attribute!r}: connect it to "
            "'Text Generate (FastQwen)', and use a text encoder's own loader for conditioning."
        )


def require_fastqwen(clip):
    """Returns `clip` if it came from 'Load FastQwen'; raises FastQwenError naming what it is otherwise."""
    if isinstance(clip, FastQwenClip):
        return clip
    found = "empty" if clip is None else f"a {type(clip).__module__}.{type(clip).__qualname__}"
    encoder = getattr(clip, "cond_stage_model", None)  # where ComfyUI's CLIP keeps the actual text encoder
    if encoder is not None:
        found += f" ({type(encoder).__qualname__})"
    raise FastQwenError(
        f"The clip input is {found}, not a FastQwen model: load a Qwen3.5, 3.6 or 3.8 checkpoint with "
        "'Load FastQwen' and connect that."
    )


def _run_line(report, notes):
    """One line a run, without the user's text."""
    speed = f"{report.tokens_per_second:.1f} tokens/s" if report.tokens_per_second else "speed not measured"
    added = "".join(f"; {note}" for note in notes)
    return f"FastQwen: {report.new_tokens} tokens, {speed}, stopped: {report.stop_reason}{added}"


def _log(line):
    """In ASCII: consoles with a narrow code page choke on the rest."""
    logger.info("%s", line.encode("ascii", "backslashreplace").decode("ascii"))
