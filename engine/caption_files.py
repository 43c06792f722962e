"""Image files in, caption files out: which are to be done, and one pass over them that survives a broken one."""

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..weights import FastQwenError

SUFFIXES = (".avif", ".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")


@dataclass(frozen=True)
class Job:
    """One image and the file that gets its caption; `name` is its path below the folder that was given."""

    image: Path
    target: Path
    name: str


@dataclass(frozen=True)
class Plan:
    """What is to be done. refused maps an image to the reason; notes are sentences for the user."""

    jobs: tuple[Job, ...]
    refused: dict[str, str]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """What was done: images written, skipped because their caption was there, and failed ones with the reason."""

    written: int
    skipped: int
    failed: dict[str, str]


def plan(
    paths: Iterable,
    *,
    recursive: bool = False,
    out_dir=None,
    ext: str = "txt",
    shard: tuple[int, int] = (1, 1),
    one_file: bool = False,
) -> Plan:
    """Finds the images of files and folders, in the order of the paths and then by name.

    out_dir  captions go there, in the same subfolders, instead of beside their images
    ext      of the caption files
    shard    (i, n): only every n-th image, from the i-th on, so that n machines share the work
    one_file captions are lines of one file, told apart by the images' names (Lines)

    Links to what lies outside a given folder are not followed, linked folders never. Two images of one stem would write
    one caption: both are refused by name. Raises FastQwenError for a path without images and an ext that cannot be.
    """
    ext = "." + ext.removeprefix(".")
    if ext.lower() in SUFFIXES or len(ext) < 2 or not ext[1:].replace("-", "").replace("_", "").isalnum():
        raise FastQwenError(f"'{ext}' cannot be the extension of caption files: use txt, caption or another word.")
    index, count = shard
    if not 1 <= index <= count:
        raise FastQwenError(f"The shard {index}/{count} does not exist: I/N means the I-th of N, from 1 on.")
    jobs: dict[str, Job] = {}
    outside = 0
    for path in map(Path, paths):
        path = path.expanduser()
        root = path if path.is_dir() else path.parent
        found, left = _images(path, recursive)
        outside += left
        for image in found:
            name = image.relative_to(root)
            target = (Path(out_dir).expanduser() / name if out_dir is not None else image).with_suffix(ext)
            jobs.setdefault(os.path.abspath(image), Job(image, target, name.as_posix()))
    kept, refused = _without_conflicts(list(jobs.values()), one_file)
    notes = (f"Links to what lies outside the given folders were left out: {outside}.",) if outside else ()
    return Plan(tuple(kept[index - 1 :: count]), refused, notes)


def _images(path: Path, recursive: bool) -> tuple[list[Path], int]:
    """Images at a path, and how many links that leave it were left out."""
    if path.is_file():
        if path.suffix.lower() not in SUFFIXES:
            raise FastQwenError(f"'{path}' is no image: {', '.join(s[1:] for s in SUFFIXES)} are read.")
        return [path], 0
    if not path.is_dir():
        raise FastQwenError(f"No file or folder at '{path}': check the path.")
    root, found, outside, folders = Path(os.path.realpath(path)), [], 0, 0
    for folder, below, names in os.walk(path):
        below[:] = sorted(name for name in below if not name.startswith("."))
        folders += len(below)
        outside += sum(recursive and _leaves(Path(folder, name), root) for name in below)
        for name in sorted(names):
            image = Path(folder, name)
            if image.suffix.lower() not in SUFFIXES or name.startswith("."):
                continue
            leaves = _leaves(image, root)
            outside += leaves
            found += [] if leaves else [image]
        if not recursive:
            break
    if not found and not outside:
        hint = f" itself; --recursive looks into its {folders} subfolders" if folders and not recursive else ""
        raise FastQwenError(f"There is no image in '{path}'{hint}: {', '.join(s[1:] for s in SUFFIXES)} are read.")
    return found, outside


def _leaves(path: Path, root: Path) -> bool:
    return path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(root)


def _without_conflicts(jobs: Sequence[Job], one_file: bool) -> tuple[list[Job], dict[str, str]]:
    """Jobs whose caption is theirs alone, and the others with the reason."""
    by_key: dict[str, list[Job]] = {}
    for job in jobs:
        # Where case does not tell files apart, a.txt and A.txt are one file.
        key = job.name if one_file else os.path.abspath(job.target).casefold()
        by_key.setdefault(key, []).append(job)
    refused = {}
    for same in by_key.values():
        if len(same) > 1:
            what = f"entry '{same[0].name}'" if one_file else f"file '{same[0].target.name}'"
            for job in same:
                others = ", ".join(f"'{other.image}'" for other in same if other is not job)
                refused[str(job.image)] = f"{others} would write the same {what}: rename one of them."
    return [job for job in jobs if str(job.image) not in refused], refused


class TextFiles:
    """A caption file for every image, written whole or not at all."""

    def __init__(self, overwrite: bool = False):
        self.overwrite = overwrite

    def has(self, job: Job) -> bool:
        return not self.overwrite and os.path.lexists(job.target)

    def write(self, job: Job, caption: str) -> None:
        _replace(job.target, caption)


class Lines:
    """One JSON line per image, {"file_name", "text"}, in one file instead of a file each. Lines are added as they come;
    a line that was cut short when a run was killed is dropped by the next run.

    overwrite  earlier lines go when the first new one is there, not before
    Raises FastQwenError for a file that holds something else or cannot be read.
    """

    def __init__(self, path, overwrite: bool = False):
        self.path, self.done, self._starts_anew = Path(path).expanduser(), set(), overwrite
        if not overwrite and os.path.lexists(self.path):
            try:
                text = self.path.read_text("utf-8")
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or "it is no text"
                raise FastQwenError(f"'{self.path}' cannot be read ({reason}): name another file.") from None
            whole = text[: text.rfind("\n") + 1]
            if whole != text:
                _replace(self.path, whole)
            self.done = {self._name(line) for line in whole.splitlines() if line.strip()}

    def has(self, job: Job) -> bool:
        return job.name in self.done

    def write(self, job: Job, caption: str) -> None:
        line = json.dumps({"file_name": job.name, "text": caption}, ensure_ascii=False) + "\n"
        if self._starts_anew:
            _replace(self.path, line)
            self._starts_anew = False
        else:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a", encoding="utf-8", newline="\n") as file:
                file.write(line)
        self.done.add(job.name)

    def _name(self, line):
        try:
            return json.loads(line)["file_name"]
        except (ValueError, KeyError, TypeError):
            raise FastQwenError(f"'{self.path}' holds a line that is no caption: move the file away.") from None


def _replace(path: Path, text: str) -> None:
    """Has the file hold `text`, whole or as it was before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8", newline="\n")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def run(
    plan: Plan,
    files: TextFiles | Lines,
    read_image: Callable,
    ask: Callable[[object], str],
    on_image: Callable[[int, int], object] = lambda done, total: None,
) -> Outcome:
    """Captions every job that has none; an image that cannot be read or described is listed, and the rest goes on.

    read_image  path -> tensor;  ask  tensor -> caption; both raise FastQwenError for what is wrong with one image
    on_image    told (images done, images to do) before the first and after every image
    """
    todo = [job for job in plan.jobs if not files.has(job)]
    failed, written = dict(plan.refused), 0
    on_image(0, len(todo))
    for done, job in enumerate(todo, 1):
        try:
            caption = ask(read_image(job.image))
        except torch.cuda.OutOfMemoryError:
            failed[str(job.image)] = "not enough memory for this image: make it smaller, or use a smaller model."
        except (FastQwenError, OSError) as error:
            failed[str(job.image)] = str(error)
        else:
            _write(files, job, caption)
            written += 1
        on_image(done, len(todo))
    return Outcome(written, len(plan.jobs) - len(todo), failed)


def _write(files, job, caption):
    """A disk that is full or closed to us ends the run: what comes next would fail too."""
    try:
        files.write(job, caption)
    except OSError as error:
        reason = error.strerror or error
        raise FastQwenError(
            f"The caption of '{job.image}' cannot be written ({reason}): nothing more was done."
        ) from None
