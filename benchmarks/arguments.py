"""What `fastqwen bench` takes on the command line. Imports nothing that is slow to import."""

import functools

from ..option_types import draft_rows, whole

PROFILE_NAMES = ("predictable", "prose", "story")
KERNEL_PARTS = ("linears", "prompts", "attention", "prefill_attention", "deltanet")


def add_bench(parser, run):
    """Adds the benchmarks as sub-commands; run(module, arguments) runs one."""
    kinds = parser.add_subparsers(required=True, metavar="WHAT")
    kernels = kinds.add_parser("kernels", help="kernels of a decode pass and of prompts, beside the read ceiling")
    _add_shape(kernels)
    kernels.add_argument("--bits", type=int, nargs="+", choices=(4, 6), default=[4, 6], help="default: both")
    kernels.add_argument("--peer", action="store_true", help="comfy-kitchen's linears in the same run")
    kernels.add_argument("--parts", nargs="+", choices=KERNEL_PARTS, default=KERNEL_PARTS, help="default: all")
    kernels.set_defaults(run=functools.partial(run, "kernels"))

    decode = kinds.add_parser("decode", help="whole rounds of drafting and verifying, random weights")
    _add_shape(decode)
    add = decode.add_argument
    add("--bits", type=int, choices=(4, 6), default=4, help="of the layers' weights (default 4)")
    add("--head", choices=("w4a8", "w6a8", "int8", "bf16"), default="w4a8", help="the output head (default w4a8)")
    add("--draft-rows", type=draft_rows, default=0, metavar="N", help="drafts read the head's first N rows and 256 "
        "others (default: all rows)")  # fmt: skip
    add("--draft-format", choices=("w4a8", "w6a8", "int8"), help="drafts read a packed copy (default: the head's own)")
    add("--top-k", type=whole(0), default=20, metavar="K", help="0, or above 256: the host draws (default 20)")
    add("--kv", choices=("int8", "bf16"), default="int8", help="how keys and values are kept (default int8)")
    add(
        "--context",
        type=whole(1, "tokens"),
        default=1024,
        metavar="N",
        help="tokens before the first round (default 1024)",
    )
    add("--profile", nargs="+", choices=PROFILE_NAMES, default=PROFILE_NAMES, help="kinds of text (default: all)")
    add("--kernels", action="store_true", help="also where a pass' time goes, kernel by kernel")
    add("--no-graphs", action="store_true", help="launch every kernel anew")
    decode.set_defaults(run=functools.partial(run, "decode"))


def _add_shape(parser):
    parser.add_argument("--shape", choices=("9b", "27b"), default="9b", help="whose layer sizes (default 9b)")
