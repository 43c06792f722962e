"""Image files in, caption files out: which are to be done, and one pass over them that survives a broken one."""

import errno
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..weights import FastQwenError
from ..weights.files import expanded, is_file, is_folder, is_utf8, not_opened, reason
from .caption_output import Job, Lines, TextFiles
from .memory import full_memory

NO_UTF8 = "its name is not UTF-8, so no line of JSON can hold it: rename it."
SUFFIXES = (".avif", ".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")


@dataclass(frozen=True)
class Plan:
    """What is to be done. refused maps an image, or a folder that cannot be read, to the reason; notes are sentences
    for the user."""

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
    one caption: both are refused by name. So is a subfolder that cannot be read. Raises FastQwenError for a path that
    has no images or cannot be read, and an ext that cannot be.
    """
    ext = "." + ext.removeprefix(".")
    if ext.lower() in SUFFIXES or len(ext) < 2 or not ext[1:].replace("-", "").replace("_", "").isalnum():
        raise FastQwenError(f"'{ext}' cannot be the extension of caption files: use txt, caption or another word.")
    index, count = shard
    if not 1 <= index <= count:
        raise FastQwenError(f"The shard {index}/{count} does not exist: I/N means the I-th of N, from 1 on.")
    jobs: dict[str, Job] = {}
    outside, closed = 0, {}
    for path in map(expanded, paths):
        root = path if is_folder(path) else path.parent
        found, left, unread = _images(path, recursive)
        outside += left
        closed |= unread
        for image in found:
            name = image.relative_to(root)
            target = (expanded(out_dir) / name if out_dir is not None else image).with_suffix(ext)
            jobs.setdefault(os.path.abspath(image), Job(image, target, name.as_posix()))
    kept, refused = _without_conflicts(list(jobs.values()), one_file)
    notes = (f"Links to what lies outside the given folders were left out: {outside}.",) if outside else ()
    return Plan(tuple(kept[index - 1 :: count]), closed | refused, notes)


def _images(path: Path, recursive: bool) -> tuple[list[Path], int, dict[str, str]]:
    """Images at a path, how many links that leave it were left out, and the subfolders that cannot be read with the
    reason."""
    if is_file(path):
        if path.suffix.lower() not in SUFFIXES:
            raise FastQwenError(f"'{path}' is no image: {', '.join(s[1:] for s in SUFFIXES)} are read.")
        return [path], 0, {}
    if not is_folder(path):
        raise FastQwenError(f"No file or folder at '{path}': check the path.")
    root, found, outside, folders, closed = Path(os.path.realpath(path)), [], 0, 0, {}

    def unreadable(error):
        if Path(error.filename) == path:
            raise not_opened(path, error) from None
        closed[error.filename] = f"the folder cannot be read ({reason(error)}): give yourself the right to, or move it."

    for folder, below, names in os.walk(path, onerror=unreadable):
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
    if not found and not outside and not closed:
        hint = f" itself; --recursive looks into its {folders} subfolders" if folders and not recursive else ""
        raise FastQwenError(f"There is no image in '{path}'{hint}: {', '.join(s[1:] for s in SUFFIXES)} are read.")
    return found, outside, closed


def _leaves(path: Path, root: Path) -> bool:
    return os.path.islink(path) and not Path(os.path.realpath(path)).is_relative_to(root)


def _without_conflicts(jobs: Sequence[Job], one_file: bool) -> tuple[list[Job], dict[str, str]]:
    """Jobs whose caption is theirs alone, and the others with the reason."""
    by_key: dict[str, list[Job]] = {}
    for job in jobs:
        # Where case does not tell files apart, a.txt and A.txt are one file.
        key = job.name if one_file else os.path.abspath(job.target).casefold()
        by_key.setdefault(key, []).append(job)
    refused = {}
    if one_file:
        refused = {str(job.image): NO_UTF8 for job in jobs if not is_utf8(job.name)}
    for same in by_key.values():
        if len(same) > 1:
            what = f"entry '{same[0].name}'" if one_file else f"file '{same[0].target.name}'"
            for job in same:
                others = ", ".join(f"'{other.image}'" for other in same if other is not job)
                refused[str(job.image)] = f"{others} would write the same {what}: rename one of them."
    return [job for job in jobs if str(job.image) not in refused], refused


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
        except (FastQwenError, OSError) as error:
            failed[str(job.image)] = str(error)
        except (MemoryError, RuntimeError) as error:
            if full_memory(error) is None:
                raise
            failed[str(job.image)] = "not enough memory for this image: make it smaller, or use a smaller model."
        else:
            refusal = _write(files, job, caption)
            failed |= {str(job.image): refusal} if refusal else {}
            written += not refusal
        on_image(done, len(todo))
    return Outcome(written, len(plan.jobs) - len(todo), failed)


def _write(files, job, caption) -> str | None:
    """Why this caption alone cannot be written, None where it is. A disk that is full or closed to us ends the run:
    what comes next would fail too."""
    try:
        files.write(job, caption)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return "the name of its caption file is too long: rename the image, or use a shorter extension."
        raise FastQwenError(
            f"The caption of '{job.image}' cannot be written ({reason(error)}): nothing more was done."
        ) from None
    except UnicodeEncodeError:
        return "its caption holds half a character, which no file can: look at the trigger, prefix and suffix."
    return None
