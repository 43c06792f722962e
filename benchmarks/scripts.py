"""What benchmark scripts share that are run by `python -m`."""

import contextlib
from collections.abc import Iterator

from ..weights import FastQwenError


@contextlib.contextmanager
def one_sentence() -> Iterator[None]:
    """Ends the process with a refusal's sentence and exit status 1 instead of a traceback. Also a decorator."""
    try:
        yield
    except FastQwenError as error:
        raise SystemExit(str(error)) from None
