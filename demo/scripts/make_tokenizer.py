"""Trains the demo's byte-level BPE (4,096 ids) and writes the small text files of the checkpoint.

    python demo/scripts/make_tokenizer.py TEXT_FOLDER OUT_FOLDER

TEXT_FOLDER: what gather_text.py wrote. OUT_FOLDER gets tokenizer.json, tokenizer_config.json, chat_template.jinja,
config.json and generation_config.json. The pre-tokenizer and the 33 named tokens are those of the Qwen3.5 family,
so the same loader code reads the demo and a released model; the named tokens sit at the end (4063 to 4095).
"""

import json
import lzma
import pathlib
import random
import shutil
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from corpus import mix  # noqa: E402

VOCABULARY = 4096
NAMES = """
<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|>
<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|>
<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|>
<tool_response> </tool_response> <think> </think> <|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos>
<tts_text_eod> <tts_text_bos_single> <|audio_pad|>
""".split()  # noqa: SIM905
PLAIN = slice(14, 26)  # <tool_call> to </think> are not "special": they stay visible when special tokens are skipped
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def texts(folder: pathlib.Path, chats: int):
    """Plain text to learn merges from: grammar samples, then prose that is not held out."""
    rng = random.Random(7)
    extra = (folder / "words.txt").read_text("utf-8").split()
    for _ in range(chats):
        sample = mix.draw(rng, extra)
        yield "\n".join(v for v in sample.values() if v)
    held = {s["package"] for s in json.loads((folder / "sources.json").read_text("utf-8")) if s["held_out"]}
    with lzma.open(folder / "text.jsonl.xz", "rt", encoding="utf-8") as file:
        rows = [r for r in map(json.loads, file) if r["package"] not in held]
    yield from (r["text"] for r in rng.sample(rows, len(rows) // 2))


def train(folder: pathlib.Path, chats: int = 30_000) -> Tokenizer:
    """A tokenizer of exactly VOCABULARY ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(NAMES),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(folder, chats), trainer)
    plain = NAMES[PLAIN]
    for name in NAMES:
        tokenizer.add_tokens(
            [AddedToken(name, special=False, normalized=False)]
        ) if name in plain else tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False)])
    if tokenizer.get_vocab_size() != VOCABULARY or tokenizer.token_to_id(NAMES[0]) != VOCABULARY - len(NAMES):
        raise SystemExit(f"vocabulary is {tokenizer.get_vocab_size()}, expected {VOCABULARY}")
    return tokenizer


def text_config(ids: dict[str, int]) -> dict:
    """The text part of config.json, with every key a released file has."""
    kinds = ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(8)]
    return {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "bos_token_id": ids["<|endoftext|>"],
        "dtype": "bfloat16",
        "eos_token_id": ids["<|endoftext|>"],
        "full_attention_interval": 4,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 256,
        "initializer_range": 0.02,
        "intermediate_size": 256,
        "layer_types": kinds,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "linear_value_head_dim": 128,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 8192,
        "mlp_only_layers": [],
        "model_type": "qwen3_5_text",
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "num_attention_heads": 2,
        "num_hidden_layers": 8,
        "num_key_value_heads": 2,
        "output_gate_type": "swish",
        "pad_token_id": ids["<|endoftext|>"],
        "partial_rotary_factor": 0.25,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [6, 5, 5],
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000000,
            "rope_type": "default",
        },
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": VOCABULARY,
    }


def model_config(ids: dict[str, int]) -> dict:
    """`config.json`: the text model's settings inside the outer ones that name the special tokens."""
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "dtype": "bfloat16",
        "eos_token_id": ids["<|im_end|>"],
        "bos_token_id": ids["<|endoftext|>"],
        "pad_token_id": ids["<|endoftext|>"],
        "image_token_id": ids["<|image_pad|>"],
        "model_type": "qwen3_5",
        "text_config": text_config(ids),
        "tie_word_embeddings": True,
        "video_token_id": ids["<|video_pad|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
    }


def tokenizer_config(ids: dict[str, int]) -> dict:
    """`tokenizer_config.json`: how transformers loads the same tokenizer."""
    added = {
        str(i): {
            "content": n,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": n not in NAMES[PLAIN],
        }
        for n, i in ids.items()
    }
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 8192,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }


def generation_config(ids: dict[str, int]) -> dict:
    """`generation_config.json`: the end tokens and the default sampling."""
    return {
        "bos_token_id": ids["<|endoftext|>"],
        "do_sample": True,
        "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]],
        "pad_token_id": ids["<|endoftext|>"],
        "temperature": 0.7,
        "top_k": 20,
        "top_p": 0.8,
    }


def write(folder: pathlib.Path, tokenizer: Tokenizer) -> None:
    """The tokenizer, the three configurations and the chat template of the checkpoint."""
    ids = {name: tokenizer.token_to_id(name) for name in NAMES}
    data = json.loads(tokenizer.to_str())
    (folder / "tokenizer.json").write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")), "utf-8")
    for name, value in (
        ("config.json", model_config(ids)),
        ("tokenizer_config.json", tokenizer_config(ids)),
        ("generation_config.json", generation_config(ids)),
    ):
        (folder / name).write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")
    template = pathlib.Path(__file__).parents[2] / "model" / "chat_template.jinja"  # the library's own
    shutil.copy(template, folder / "chat_template.jinja")


def main() -> None:
    source, out = map(pathlib.Path, sys.argv[1:3])
    out.mkdir(parents=True, exist_ok=True)
    write(out, train(source))


if __name__ == "__main__":
    main()
