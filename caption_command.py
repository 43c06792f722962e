"""The command `fastqwen caption`: a caption file for every image."""

import argparse
import sys

from .arguments import add_reply_options, load_engine, reply_options
from .option_types import path, whole
from .terminal import Bar

STYLES = ("short", "detailed", "tags", "booru", "json")  # of engine/caption.py, which needs torch


def add_caption(parser):
    add = parser.add_argument
    add("paths", nargs="+", type=path, metavar="FILE|FOLDER", help="images, or folders of images")
    add("--model", required=True, type=path, metavar="PATH|demo", help="checkpoint folder, .safetensors file, or demo")
    add("--style", choices=STYLES, help="what to ask, and how to read the reply (default short)")
    add("--prompt", metavar="TEXT", help="ask this instead; with --style, the reply is read as that style's")
    add("--trigger", default="", metavar="TEXT", help="put first in every caption, as it is written")
    add("--prefix", default="", metavar="TEXT", help="put before the reply, behind the trigger")
    add("--suffix", default="", metavar="TEXT", help="put behind the reply")
    add("--exclude", action="append", default=[], metavar="TAGS", help="leave out these tags, separated by commas "
        "(styles tags, booru and json; may be repeated)")  # fmt: skip
    add(
        "--max-words",
        type=whole(1, "words"),
        metavar="N",
        help="cut the reply behind a sentence or word within N words",
    )
    add("--recursive", action="store_true", help="look into subfolders too")
    where = parser.add_mutually_exclusive_group().add_argument
    where("--out-dir", type=path, metavar="FOLDER", help="write there, in the same subfolders, not beside the images")
    add("--ext", default="txt", metavar="EXT", help="extension of the caption files (default txt)")
    where(
        "--jsonl",
        type=path,
        metavar="FILE",
        help="write lines of file_name and text to FILE, not a file per image (not with --out-dir)",
    )
    add("--overwrite", action="store_true", help="caption images again that have a caption")
    add("--shard", type=_shard, default=(1, 1), metavar="I/N", help="only the I-th of N equal shares of the images")
    add_reply_options(parser)
    parser.set_defaults(run=_caption)


def _shard(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is no I/N such as 1/4")
    return int(index), int(count)


def _caption(arguments) -> int:
    from .engine.caption import CaptionOptions, asker
    from .engine.caption_files import Lines, TextFiles, plan, run
    from .model.images import read_image

    options = CaptionOptions(
        style=arguments.style,
        prompt=arguments.prompt,
        trigger=arguments.trigger,
        prefix=arguments.prefix,
        suffix=arguments.suffix,
        exclude=tuple(tag for part in arguments.exclude for tag in part.split(",") if tag.strip()),
        max_words=arguments.max_words,
    )
    reply = reply_options(arguments)
    planned = plan(
        arguments.paths,
        recursive=arguments.recursive,
        out_dir=arguments.out_dir,
        ext=arguments.ext,
        shard=arguments.shard,
        one_file=bool(arguments.jsonl),
    )
    files = Lines(arguments.jsonl, arguments.overwrite) if arguments.jsonl else TextFiles(arguments.overwrite)
    ask = None
    if any(not files.has(job) for job in planned.jobs):  # nothing to do is told without reading gigabytes
        ask = asker(load_engine(arguments), options, **reply)
    with Bar("captions", "image") as bar:
        outcome = run(planned, files, read_image, ask, bar)
    return _tell(planned, outcome)


def _tell(planned, outcome) -> int:
    """Numbers to stdout, what went wrong to stderr; the exit code."""
    for note in planned.notes:
        print(f"note: {note}", file=sys.stderr)
    parts = [f"captions written: {outcome.written}"]
    parts += [f"there already: {outcome.skipped}"] if outcome.skipped else []
    parts += [f"failed: {len(outcome.failed)}"] if outcome.failed else []
    print(", ".join(parts))
    for image, reason in outcome.failed.items():
        print(f"failed: {image}: {reason}", file=sys.stderr)
    return 1 if outcome.failed else 0
