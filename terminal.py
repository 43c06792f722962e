"""What the command line writes to, and shows on a terminal beside its text."""

import contextlib
import sys


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
