"""The command `fastqwen`."""

import argparse
import contextlib
import importlib
import json
import os
import sys

from .arguments import QUANTISED, add_reply_options, load_engine, reply_options
from .benchmarks.arguments import add_bench
from .caption_command import add_caption
from .doctor_command import add_doctor
from .option_types import LARGEST, number, path, whole
from .terminal import Bar, ReplyBars, ended_as_by_hand, named_output

NO_TORCH = (
    'torch is not installed: run `pip install torch` first (README.md, section "See it write", says which build fits).'
)


def main(argv=None) -> int:
    """Runs the command line; returns the exit code. A user's mistake is one line on stderr and code 2."""
    try:
        _survive_any_console()
        with ended_as_by_hand(), named_output():
            code = _run(argv)
            _flush()
        return code
    except KeyboardInterrupt as interrupt:
        return _fail("Interrupted.", code=getattr(interrupt, "code", 130))
    except BrokenPipeError:
        # The reader closed the pipe (`| head`): nothing is left to say, and Python must not try again at exit.
        sys.stdout = None
        return 141
    except OSError as error:
        return _fail(_failed_call(error), code=1)


def _run(argv) -> int:
    try:
        arguments = _parser().parse_args(argv)
    except SystemExit:  # --help was printed
        _flush()
        raise
    try:
        from .weights import FastQwenError
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return _fail(NO_TORCH)
    try:
        return arguments.run(arguments)
    except FastQwenError as error:
        return _fail(str(error))
    except (MemoryError, RuntimeError) as error:
        from .engine.memory import full_memory

        memory = full_memory(error)
        if memory is None:
            raise
        return _fail(f"The {memory} is full: use a smaller model, smaller pictures or a lower --context.", code=1)


def _flush():
    if sys.stdout is not None:
        sys.stdout.flush()


def _failed_call(error: OSError) -> str:
    """What the system refused, in one sentence: most often a disk is full."""
    try:
        _flush()
    except OSError:  # Python must not try again at exit
        sys.stdout = None
    where = "" if error.filename is None else f" {error.filename}"
    return f"The system refused to read or write{where} ({error.strerror or error})."


def _fail(message: str, code: int = 2) -> int:
    with contextlib.suppress(OSError):  # nobody can be told then; the code says it
        print(f"fastqwen: {message}", file=sys.stderr)
    return code


class _OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line; `--help` has the rest."""

    def error(self, message):
        print(f"fastqwen: {message} (see `{self.prog} --help`)", file=sys.stderr)
        sys.exit(2)


def _survive_any_console():
    # A console of another encoding (cp1252, gbk) must not end a reply with an exception.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    if sys.stderr is None:  # closed; print would take standard output instead
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, it stays


def _parser() -> argparse.ArgumentParser:
    parser = _OneLineParser(
        prog="fastqwen", description="Text from Qwen3.5, 3.6 and 3.8 dense checkpoints, one sequence at a time."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_generate(commands.add_parser("generate", help="write a reply to a prompt"))
    add_caption(commands.add_parser("caption", help="write a caption for every image of a folder"))

    inspect = commands.add_parser("inspect", help="say what a checkpoint holds, without loading it")
    inspect.add_argument("path", type=path, metavar="PATH", help="checkpoint folder, .safetensors file, or demo")
    inspect.add_argument("--json", action="store_true", help="print one JSON object")
    inspect.set_defaults(run=_inspect)

    _add_quantize(commands.add_parser("quantize", help="write a checkpoint in a 4-bit, 6-bit or 8-bit format"))

    add_doctor(commands.add_parser("doctor", help="versions, devices, and what computes each operation"))
    add_bench(commands.add_parser("bench", help="measure on a GPU"), _bench)
    return parser


def _add_generate(parser):
    add = parser.add_argument
    add("--model", required=True, type=path, metavar="PATH|demo", help="checkpoint folder, .safetensors file, or demo")
    add("--prompt", required=True, metavar="TEXT", help="what to say to the model; - reads standard input")
    add(
        "--image",
        action="append",
        type=path,
        default=[],
        metavar="FILE",
        help="show the model a picture (may be repeated)",
    )
    add(
        "--video",
        action="append",
        type=path,
        default=[],
        metavar="FILE",
        help="show it a video; needs PyAV (may be repeated)",
    )
    add(
        "--fps",
        type=number(0, LARGEST, above=True),
        default=2.0,
        metavar="N",
        help="look at N frames a second of a video (default 2)",
    )
    add("--image-pixels", type=whole(1, "pixels"), metavar="N", help="reduce each picture to at most N pixels")
    add(
        "--pixel-budget",
        type=whole(1, "pixels"),
        metavar="N",
        help="reduce all of them to N pixels together (default: what fits)",
    )
    add_reply_options(parser)
    add("--json", action="store_true", help="print one JSON object with text, thinking and report; do not stream")
    parser.set_defaults(run=_generate)


def _add_quantize(parser):
    add = parser.add_argument
    add(
        "source",
        type=path,
        metavar="SRC",
        help="checkpoint folder, .safetensors file, or demo-bf16; bf16, fp16 or fp32 weights",
    )
    add("target", type=path, metavar="DST", help="the .safetensors file to write")
    add("--format", required=True, choices=QUANTISED, help="4, 6 or 8 bits a weight; all compute in int8")
    add("--keep", action="append", default=[], metavar="PATTERN", help="leave tensors of this name as they are, such "
        "as '*.layers.0.*' (may be repeated)")  # fmt: skip
    add("--device", default="auto", metavar="D", help="where to compute: auto, cpu, cuda, ... (default auto)")
    add("--overwrite", action="store_true", help="replace DST if it exists")
    add("--json", action="store_true", help="print one JSON object with every layer's error")
    parser.set_defaults(run=_quantize)


def _generate(arguments) -> int:
    from .model.images import read_image

    options = reply_options(arguments)
    images = [read_image(path) for path in arguments.image]  # a mistake is told before gigabytes are read
    prompt = _standard_input() if arguments.prompt == "-" else arguments.prompt
    engine = load_engine(arguments)
    reply = engine.reply(
        prompt,
        images=images,
        videos=arguments.video,
        video_fps=arguments.fps,
        image_pixels=arguments.image_pixels,
        pixel_budget=arguments.pixel_budget,
        on_step=ReplyBars(),
        **options,
    )
    if not arguments.json:
        _stream(reply)
    result = reply.result()
    if arguments.json:
        value = {"text": result.text, "thinking": result.thinking, "report": result.report.to_dict()}
        print(_json_for(sys.stdout, value))
    else:
        print(*result.report.lines(), sep="\n", file=sys.stderr)
    return 0


def _json_for(stream, value) -> str:
    """JSON that the stream loses nothing of: a console's code page would put ? for what it does not have."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode(getattr(stream, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(value)
    return text


def _standard_input() -> str:
    from .weights import FastQwenError

    try:
        if sys.stdin is not None:
            text = sys.stdin.read()
            text.encode()  # some consoles hand on what they cannot decode
            return text
        reason = "it is closed"
    except UnicodeError as error:
        reason = f"it is no {error.encoding} text"
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
    raise FastQwenError(f"--prompt - cannot read standard input ({reason}): pipe text into it, or give the text.")


def _stream(reply):
    """Reasoning goes to stderr and the answer to stdout, so that a pipe gets the answer alone."""
    kind = None
    for delta in reply:
        if kind == "thinking" and delta.kind != kind:
            print("\n", file=sys.stderr, flush=True)
        kind = delta.kind
        print(delta.text, end="", file=sys.stderr if kind == "thinking" else sys.stdout, flush=True)
    if kind == "thinking":
        print(file=sys.stderr)
    print(flush=True)


def _inspect(arguments) -> int:
    from .engine import resolve_path
    from .model.summary import summarise
    from .weights import Checkpoint

    checkpoint = Checkpoint.open(resolve_path(arguments.path))
    summary = summarise(checkpoint)
    if arguments.json:
        print(json.dumps({"path": str(checkpoint.path)} | summary.to_dict()))
    else:
        print(f"{checkpoint.path}: dense Qwen3.5 family (qwen3_5)", *summary.lines(), sep="\n  ")
    return 0


def _quantize(arguments) -> int:
    from .engine import resolve_device, resolve_path
    from .model.convert import convert
    from .weights import Checkpoint

    device = resolve_device(arguments.device)
    source = Checkpoint.open(resolve_path(arguments.source))
    with Bar("quantising", "B") as bar:
        done = convert(
            source,
            arguments.target,
            arguments.format,
            keep=arguments.keep,
            device=device,
            overwrite=arguments.overwrite,
            on_progress=bar,
        )
    print(json.dumps(done.to_dict()) if arguments.json else "\n".join(done.lines()))
    return 0


def _bench(module: str, arguments) -> int:
    try:
        run = importlib.import_module(f".benchmarks.{module}", __package__).run
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        return _fail(
            f"bench {module} needs Triton: on Linux torch for CUDA brings it, on Windows install triton-windows."
        )
    return run(arguments)
