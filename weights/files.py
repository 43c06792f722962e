"""What stands at a path, and a system's refusal told as one sentence.

`Path.exists` and its like raise where a folder may not be searched or a name is too long, and a file that may not be
opened is not a broken one: whoever opens files for a user asks here.
"""

import errno
import os
import stat
from pathlib import Path

from .errors import FastQwenError

LONGEST_SHOWN = 200  # characters of a path in a sentence
# What `Path.exists` takes for "nothing is there" too; numbers of Windows: not ready, invalid name, cannot be resolved.
ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.EBADF, errno.ELOOP}
ABSENT_ON_WINDOWS = {21, 123, 1921}
REMEDIES = {
    errno.EACCES: "give yourself the right to read it and its folders",
    errno.EPERM: "give yourself the right to read it and its folders",
    errno.ENAMETOOLONG: "use a shorter name",
    errno.EISDIR: "give a file",
    errno.ENOENT: "check the path",
}


def expanded(path) -> Path:
    """The path with a leading ~ or ~user as that home; as it is where there is none, for `~x.png` is a name too."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def is_utf8(path) -> bool:
    """Whether a path is UTF-8. Python spells other bytes as lone surrogates, which neither a text file nor the
    safetensors library takes."""
    return not any("\ud800" <= character <= "\udfff" for character in str(path))


def exists(path: Path) -> bool:
    """Whether anything is there. Raises FastQwenError where the system does not tell."""
    return _mode(path) is not None


def is_file(path: Path) -> bool:
    """Whether a file is there, itself or by a link. Raises FastQwenError where the system does not tell."""
    return stat.S_ISREG(_mode(path) or 0)


def is_folder(path: Path) -> bool:
    """Whether a folder is there, itself or by a link. Raises FastQwenError where the system does not tell."""
    return stat.S_ISDIR(_mode(path) or 0)


def listed(folder: Path) -> list[Path]:
    """What a folder holds, by name. Raises FastQwenError where it may not be read."""
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise not_opened(folder, error) from None


def require_readable(file: Path) -> None:
    """Raises FastQwenError where a file cannot be opened; to be asked before a library that hides the reason, and
    before a pipe is opened, which waits until somebody writes into it."""
    require_no_device(file)
    try:
        with open(file, "rb"):
            pass
    except OSError as error:
        raise not_opened(file, error) from None


def require_no_device(path: Path) -> None:
    """Raises FastQwenError for a pipe or a device, which may have no end; folders and what is absent pass."""
    mode = _mode(path)
    if mode is not None and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise FastQwenError(f"'{shown(path)}' is a pipe or a device, not a file: give a file.")


def not_opened(path: Path, error: OSError) -> FastQwenError:
    """The sentence for a path that the system refuses."""
    remedy = REMEDIES.get(error.errno, "check the path and its disk")
    return FastQwenError(f"'{shown(path)}' cannot be opened ({reason(error)}): {remedy}.")


def reason(error: OSError) -> str:
    """The system's own words, without the path that Python adds."""
    return error.strerror or str(error) or type(error).__name__


def shown(path: Path) -> str:
    """A path as a sentence can hold it: the middle of a very long one is left out."""
    text = os.fspath(path)
    half = LONGEST_SHOWN // 2
    return text if len(text) <= LONGEST_SHOWN else f"{text[:half]}...{text[-half:]}"


def _mode(path):
    """The kind of what is at a path, links followed; None where nothing is."""
    try:
        return path.stat().st_mode
    except OSError as error:
        if error.errno in ABSENT or getattr(error, "winerror", None) in ABSENT_ON_WINDOWS:
            return None
        raise not_opened(path, error) from None
    except ValueError:  # a zero byte, or a name that the system's encoding does not have
        return None
