"""What a caption is written to: a text file beside its image, or a line of one file for all of them."""

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..weights import FastQwenError
from ..weights.files import exists, expanded, reason, require_no_device

LINE_START = b'{"file_name": "'


@dataclass(frozen=True)
class Job:
    """One image and the file that gets its caption; `name` is its path below the folder that was given."""

    image: Path
    target: Path
    name: str


class TextFiles:
    """A caption file for every image, written whole or not at all."""

    def __init__(self, overwrite: bool = False):
        self.overwrite = overwrite

    def has(self, job: Job) -> bool:
        return not self.overwrite and os.path.lexists(job.target)

    def write(self, job: Job, caption: str) -> None:
        _replace(job.target, caption.encode())


class Lines:
    """One JSON line per image, {"file_name", "text"}, in one file instead of a file each. Lines are added as they come;
    a line that was cut short when a run was killed is dropped by the next run.

    overwrite  earlier lines go when the first new one is there, not before
    Raises FastQwenError for a file that holds something else or cannot be read.
    """

    def __init__(self, path, overwrite: bool = False):
        self.path, self.done, self._starts_anew = expanded(path), set(), overwrite
        require_no_device(self.path)  # refuses what could not be written either, before a model is read
        if os.path.lexists(self.path):
            self._take_in(mend=not overwrite)
        if overwrite:
            self.done.clear()

    def has(self, job: Job) -> bool:
        return job.name in self.done

    def write(self, job: Job, caption: str) -> None:
        # Encoded first: what cannot be written must not leave an empty file.
        line = json.dumps({"file_name": job.name, "text": caption}, ensure_ascii=False).encode() + b"\n"
        if self._starts_anew:
            _replace(self.path, line)
            self._starts_anew = False
        else:
            self._add(line)
        self.done.add(job.name)

    def _add(self, line: bytes):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        before = self.path.stat().st_size if exists(self.path) else None
        try:
            with open(self.path, "ab") as file:
                file.write(line)
        except BaseException:
            with suppress(OSError):
                self._take_back(line, before)
            raise

    def _take_back(self, line: bytes, before: int | None):
        """Cuts off what a full disk let through of a line; not what another run of these images added meanwhile."""
        with open(self.path, "r+b") as file:
            file.seek(before or 0)
            if line.startswith(file.read(len(line) + 1)):
                file.truncate(before or 0)
        if before is None and not self.path.stat().st_size:
            self.path.unlink()

    def _take_in(self, mend: bool):
        """Takes in the lines that are there. Bytes, for a line may have been cut within a character; and only b"\\n"
        ends a line, for a name may hold one of the other characters at which str.splitlines cuts."""
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise FastQwenError(f"'{self.path}' cannot be read ({reason(error)}): name another file.") from None
        *lines, last = data.split(b"\n")
        self.done = {self._name(number, line) for number, line in enumerate(lines, 1) if line.strip()}
        if last.strip():
            self._end(len(lines) + 1, last, len(data), mend)

    def _end(self, number, last, size, mend):
        """Drops a last line that was cut short, where it is one of ours; ends one that lacks nothing but its end."""
        cut = False
        try:
            self.done.add(self._name(number, last))
        except FastQwenError:
            cut = LINE_START.startswith(last[: len(LINE_START)])
            if not cut:
                raise
        if not mend:
            return
        try:
            with open(self.path, "r+b") as file:
                file.seek(size - len(last) if cut else size)
                file.write(b"" if cut else b"\n")
                file.truncate()
        except OSError as error:
            raise FastQwenError(
                f"The last line of '{self.path}' is cut short and cannot be mended ({reason(error)}): give yourself "
                "the right to write the file, or name another."
            ) from None

    def _name(self, number, line):
        try:
            name = json.loads(line.decode())["file_name"]
        except UnicodeDecodeError:
            raise FastQwenError(f"'{self.path}' cannot be read (it is no text): name another file.") from None
        except (ValueError, TypeError, KeyError, RecursionError):
            name = None
        if not isinstance(name, str):
            raise FastQwenError(f"Line {number} of '{self.path}' is no caption: move the file away.")
        return name


def _replace(path: Path, data: bytes) -> None:
    """Has the file hold `data`, whole or as it was before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".fastqwen.{os.getpid()}.part")  # the file's own name may be as long as names can be
    try:
        part.write_bytes(data)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
