"""What the command line writes to, and shows on a terminal beside its text."""

import contextlib
import signal
import sys
import threading


class Ended(KeyboardInterrupt):
    """Somebody else than the user ends the program: `code` is what it returns then."""

    def __init__(self, number: int):
        super().__init__()
        self.code = 128 + number


@contextlib.contextmanager
def ended_as_by_hand():
    """In this block the signals of `kill` and of a terminal that is closed raise Ended, so that what is half written is
    removed as after Ctrl-C. One that is ignored (nohup) stays so."""

    def end(number, frame):
        raise Ended(number)

    signals = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    mine = threading.current_thread() is threading.main_thread()  # no other may set them
    taken = [number for number in signals if mine and signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def named_output():
    """In this block an OSError of standard output, such as a full disk's, says whose it is: its filename."""
    stream, sys.stdout = sys.stdout, sys.stdout and _Named(sys.stdout, "standard output")
    try:
        yield
    finally:
        sys.stdout = stream


class _Named:
    """A stream that is otherwise as it was."""

    def __init__(self, stream, name: str):
        self._stream, self._name = stream, name

    def __getattr__(self, name: str):
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._naming():
            return self._stream.write(text)

    def flush(self):
        with self._naming():
            self._stream.flush()

    @contextlib.contextmanager
    def _naming(self):
        try:
            yield
        except OSError as error:
            error.filename = self._name
            raise


class Bar:
    """A progress bar on stderr that shows itself once something takes longer than a second."""

    def __init__(self, what: str, unit: str):
        self.what, self.unit, self.bar = what, unit, None

    def __call__(self, done: int, total: int):
        if self.bar is None:
            from tqdm import tqdm

            self.bar = tqdm(
                total=total, unit=self.unit, desc=self.what, file=sys.stderr, leave=False, delay=1, unit_scale=True
            )
        self.bar.update(done - self.bar.n)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.bar is not None:
            self.bar.close()


class ReplyBars:
    """The engine's `on_step`: a bar for every phase before the first token, closed when the next begins."""

    def __init__(self):
        names = {"images": ("images", "image"), "prepare": ("kernels", "part"), "prefill": ("prompt", "token")}
        self.bars = {phase: Bar(*name) for phase, name in names.items()}

    def __call__(self, progress):
        for phase, bar in self.bars.items():
            if phase == progress.phase:
                bar(progress.done, progress.total)
            else:
                bar.__exit__()
