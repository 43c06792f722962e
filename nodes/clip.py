"""The object on ComfyUI's CLIP wire: a checkpoint's name and an engine shared by everyone who chose it."""

import gc
import logging
import threading
import weakref

from ..weights import FastQwenError
from .core_clip import CoreCalls, NotTextGeneration

logger = logging.getLogger(__name__)

# Keyed by path and load options. Weak: an engine goes when the last handle does. Process-wide because the loader's
# copies never meet.
_shared_engines = weakref.WeakValueDictionary()
_registry_lock = threading.Lock()


class SharedEngine:
    """One checkpoint's engine: loaded on first use, used by one thread at a time. `key` is what `load` takes."""

    def __init__(self, key, load):
        self.key = key
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
                self._engine = self._load(self.key)
                for note in self._engine.notes:  # once; a run's line below has only what that run adds
                    _log(f"FastQwen: {note}")
            return self._engine

    def unload(self):
        """Gives the model's memory back. The next use loads it again. Returns whether there was one."""
        with self.lock:
            engine, self._engine = self._engine, None
            if engine is None:
                return False
            engine.free()
            del engine
        gc.collect()  # modules refer to each other
        return True


def shared_engine(key, load):
    """The SharedEngine of `key`, any hashable; `load(key) -> Engine` is kept for the first caller of a key only."""
    with _registry_lock:
        shared = _shared_engines.get(key)
        if shared is None:
            shared = _shared_engines[key] = SharedEngine(key, load)
        return shared


def every_shared_engine():
    """All that some handle still refers to."""
    with _registry_lock:
        return list(_shared_engines.values())


class FastQwenClip(CoreCalls):
    """What 'Load FastQwen' puts on the wire. Handles of one checkpoint, and clones, share one engine.

    `watch()` makes what looks on when one of ComfyUI's own nodes calls `generate`; see `generate_text`.
    """

    def __init__(self, name, shared, watch=lambda: None):
        self.name = name
        self.shared = shared
        self.watch = watch

    @property
    def patcher(self):
        """ComfyUI asks for it to tell models from other outputs."""
        return self.shared.patcher

    def load(self):
        """Loads the engine now, so that a mistake is reported on the loader and not downstream."""
        self.shared.get()

    def with_engine(self, use):
        """`use(engine)`, while no other thread uses it."""
        with self.shared.lock:
            return use(self.shared.get())

    def generate_text(self, request, watch=None):
        """Writes one reply and returns the engine's Result.

        `request` is a TextRequest. `watch.on_step(progress)` is called by the engine after every step and may raise to
        stop it, `watch.on_text(delta)` with every piece of text as it is settled, `watch.flush()` behind the last.
        Raises FastQwenError for what the engine refuses; torch's out-of-memory error passes through unchanged.
        """
        with self.shared.lock:
            engine = self.shared.get()
            reply = engine.reply(request.prompt, on_step=watch and watch.on_step, **request.arguments())
            self.shared.make_room(reply)
            if watch is not None:
                for delta in reply:
                    watch.on_text(delta)
                watch.flush()
            result = reply.result()
        _log(_run_line(result.report, [note for note in result.report.notes if note not in engine.notes]))
        return result

    def clone(self, **options):
        """Another handle on the same engine, as ComfyUI's nodes expect of a CLIP."""
        return FastQwenClip(self.name, self.shared, self.watch)

    def __repr__(self):
        # ComfyUI prints every input of a failing node into its error message.
        return f"<FastQwen {self.name[:60]!r}>"

    def __getattr__(self, attribute):
        raise NotTextGeneration(attribute)


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
    added = "".join(f"; {note}" for note in notes)
    return f"FastQwen: {report.written}, stopped: {report.stop_reason}{added}"


def _log(line):
    """In ASCII: consoles with a narrow code page choke on the rest."""
    logger.info("%s", line.encode("ascii", "backslashreplace").decode("ascii"))
