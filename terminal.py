"""What the command line shows on a terminal beside its text."""

import sys


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
