"""Options that several commands share, and what they mean to the engine."""

from .option_types import LARGEST, draft_rows, integer, number, path, whole
from .terminal import Bar

MTP_CHOICES = ("auto", "off", "2", "3", "4", "5")
KV_KINDS = ("auto", "int8", "bf16", "fp32")
QUANTISED = ("w4a8", "w6a8", "int8")


def add_reply_options(parser):
    """How a model is loaded and how it replies."""
    add = parser.add_argument
    add("--system", metavar="TEXT", help="system prompt")
    add("--max-tokens", type=whole(1, "tokens"), default=512, metavar="N", help="at most N new tokens (default 512)")
    add("--temperature", type=number(0, 10), default=0.7, metavar="T", help="0 is greedy (default 0.7)")
    add(
        "--top-k",
        type=whole(0),
        default=20,
        metavar="K",
        help="keep the K most likely tokens, 0 keeps all (default 20)",
    )
    add(
        "--top-p",
        type=number(0, 1, above=True),
        default=0.8,
        metavar="P",
        help="keep the most likely P of the mass (default 0.8)",
    )
    add(
        "--min-p",
        type=number(0, 1),
        default=0.0,
        metavar="P",
        help="drop tokens below P times the most likely (default 0)",
    )
    add("--repetition-penalty", type=number(0, 5, above=True), default=1.0, metavar="R", help="1 is none (default 1)")
    add("--presence-penalty", type=number(-5, 5), default=0.0, metavar="R", help="0 is none (default 0)")
    add("--greedy", action="store_true", help="always take the most likely token")
    add("--seed", type=integer, default=0, metavar="N", help="same seed, same text (default 0)")
    add("--thinking", action="store_true", help="let the model reason before it answers")
    add("--mtp", default="auto", choices=MTP_CHOICES, help="drafting; never changes the text (default auto)")
    add("--device", default="auto", metavar="D", help="auto, cpu, cuda, cuda:1, ... (default auto)")
    add("--kv", default="auto", choices=KV_KINDS, help="how keys and values are kept; may change the text")
    add(
        "--context",
        type=whole(1, "tokens"),
        metavar="N",
        help="prompt and reply are at most N tokens (default: the model's own limit)",
    )
    add(
        "--prefix-cache",
        type=whole(0, "MB"),
        default=256,
        metavar="MB",
        help="RAM for beginnings of prompts, which are then not read again; 0 is off (default 256)",
    )
    add("--vram-budget", type=number(0, LARGEST, "GB", above=True), metavar="GB",
        help="weights take at most so much GPU memory; layers beyond it are read from RAM in every pass, "
        "slower")  # fmt: skip
    add("--draft-rows", type=draft_rows, default=0, metavar="N", help="drafts choose from the first N ids and "
        "the tokens at hand; 0: from all (default); the same text")  # fmt: skip
    add("--draft-format", choices=QUANTISED, help="drafts read a packed copy of the output head; the same text")
    add("--no-graphs", action="store_true", help="on a GPU, launch every kernel anew; slower, the same text")
    add("--quantize", choices=QUANTISED, help="quantise bf16, fp16 or fp32 weights in memory while loading")
    add("--repack", action="store_true", help="re-pack fp8, nvfp4 and other formats without a kernel as W6A8")
    add("--stop", action="append", default=[], metavar="TEXT", help="end the answer before TEXT (may be repeated)")
    add("--tokenizer", type=path, metavar="PATH", help="tokenizer.json or its folder, if not beside the checkpoint")


def reply_options(arguments) -> dict:
    """The arguments of Engine.reply but the prompt. Raises FastQwenError for a value out of range."""
    from .engine import SamplingSettings, check_request

    check_request(max_tokens=arguments.max_tokens, stop=arguments.stop, mtp=arguments.mtp)
    settings = SamplingSettings(
        greedy=arguments.greedy,
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        min_p=arguments.min_p,
        repetition_penalty=arguments.repetition_penalty,
        presence_penalty=arguments.presence_penalty,
    )
    return {
        "system": arguments.system,
        "thinking": arguments.thinking,
        "settings": settings,
        "seed": arguments.seed,
        "max_tokens": arguments.max_tokens,
        "stop": arguments.stop,
        "mtp": arguments.mtp,
    }


def load_engine(arguments):
    """The engine of --model, with a bar on stderr."""
    from .engine import load

    with Bar("loading", "B") as bar:
        return load(
            arguments.model,
            device=arguments.device,
            tokenizer=arguments.tokenizer,
            quantize=arguments.quantize,
            repack=arguments.repack,
            kv=arguments.kv,
            graphs=not arguments.no_graphs,
            context=arguments.context,
            prefix_cache_bytes=arguments.prefix_cache * 2**20,
            vram_budget=None if arguments.vram_budget is None else max(1, int(arguments.vram_budget * 2**30)),
            draft_rows=arguments.draft_rows,
            draft_format=arguments.draft_format,
            on_load=bar,
        )
