"""Tiny random checkpoints of the family, built with transformers and saved as released files are laid out."""

import json

import pytest
import torch
from safetensors.torch import save_file

# Where a test of the row contract runs: always on the CPU, and on a GPU if there is one.
WHERE = [
    pytest.param(("cpu", torch.float32, "fp32"), id="cpu-fp32"),
    pytest.param(("cpu", torch.float32, "int8"), id="cpu-fp32-int8kv"),
    pytest.param(("cuda", torch.bfloat16, "int8"), id="cuda-bf16-int8kv", marks=pytest.mark.gpu),
]

SHAPES = {
    # name: (layers, q heads, kv heads, key heads, value heads, tied)
    "gqa4": (4, 4, 1, 2, 4, True),
    "untied": (4, 2, 2, 1, 3, False),
    "deep": (8, 4, 2, 2, 2, True),
}


# Changes that leave one layer of each kind, for tests under Triton's interpreter.
ONE_OF_EACH = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}


def text_config(name, vocab=320, **changes):
    """A transformers Qwen3_5TextConfig of the named shape."""
    from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig

    layers, heads, kv_heads, key_heads, value_heads, _ = SHAPES[name]
    rope = {
        "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1], "mrope_interleaved": True,
    }  # fmt: skip
    settings = {
        "vocab_size": vocab, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": 32,
        "linear_num_key_heads": key_heads, "linear_num_value_heads": value_heads,
        "linear_key_head_dim": 16, "linear_value_head_dim": 16, "rope_parameters": rope,
        "max_position_embeddings": 4096,
    }  # fmt: skip
    return Qwen3_5TextConfig(**(settings | changes))


def oracle(name, seed=0, scale=1.0, **changes):
    """A float32 transformers model whose logits have a spread of about one.

    With a larger `scale` eight layers amplify rounding so much that the oracle's own chunk form and its own
    token-by-token form differ by 6e-5.
    """
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForCausalLM

    torch.manual_seed(seed)
    config = text_config(name, **changes)
    config._attn_implementation = "eager"
    config.tie_word_embeddings = SHAPES[name][5]
    model = Qwen3_5ForCausalLM(config).float().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale / parameter.shape[1] ** 0.5)
            elif parameter.ndim == 1 and "A_log" not in parameter_name:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
        model.model.embed_tokens.weight.mul_(2.0)
    if config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    return model


def mtp_tensors(config, seed=1):
    """The 15 tensors of an MTP head, random, float32."""
    generator = torch.Generator().manual_seed(seed)
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    query, key = config.num_attention_heads * dim, config.num_key_value_heads * dim
    layer = "mtp.layers.0."
    shapes = {
        "mtp.fc.weight": (hidden, 2 * hidden),
        "mtp.norm.weight": (hidden,),
        "mtp.pre_fc_norm_embedding.weight": (hidden,),
        "mtp.pre_fc_norm_hidden.weight": (hidden,),
        layer + "input_layernorm.weight": (hidden,),
        layer + "post_attention_layernorm.weight": (hidden,),
        layer + "self_attn.q_proj.weight": (2 * query, hidden),
        layer + "self_attn.k_proj.weight": (key, hidden),
        layer + "self_attn.v_proj.weight": (key, hidden),
        layer + "self_attn.o_proj.weight": (hidden, query),
        layer + "self_attn.q_norm.weight": (dim,),
        layer + "self_attn.k_norm.weight": (dim,),
        layer + "mlp.gate_proj.weight": (inner, hidden),
        layer + "mlp.up_proj.weight": (inner, hidden),
        layer + "mlp.down_proj.weight": (hidden, inner),
    }
    return {
        name: torch.randn(shape, generator=generator) * (0.1 if len(shape) == 1 else shape[-1] ** -0.5)
        for name, shape in shapes.items()
    }


def released_tensors(model, mtp=False, prefix="model.language_model."):
    """The model's tensors under the names of released files; a tied head is left out."""
    tied = model.config.tie_word_embeddings
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name.startswith("lm_head"):
            if not tied:
                tensors[name] = tensor.clone()
        else:
            tensors[prefix + name.removeprefix("model.")] = tensor.clone()
    return tensors | (mtp_tensors(model.config) if mtp else {})


def released_config(model, mtp=False):
    text = model.config.to_dict()
    text["mtp_num_hidden_layers"] = int(mtp)
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": text,
        "tie_word_embeddings": model.config.tie_word_embeddings,
    }


def save_folder(model, folder, mtp=False, dtype=torch.float32):
    """Writes a Hugging Face folder with one weight file; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.to(dtype) for name, tensor in released_tensors(model, mtp).items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(released_config(model, mtp)))
    return folder


SPECIAL_NAMES = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
    "<|video_pad|>", "<tool_call>", "</tool_call>", "<think>", "</think>",
)  # fmt: skip
NOT_SPECIAL = {"<tool_call>", "</tool_call>", "<think>", "</think>"}


def save_tokenizer(folder):
    """A byte-level tokenizer of 256 bytes and the chat format's special tokens, as tokenizer.json."""
    from tokenizers import pre_tokenizers

    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    added = [
        {
            "id": 256 + index, "content": name, "special": name not in NOT_SPECIAL, "single_word": False,
            "lstrip": False, "rstrip": False, "normalized": False,
        }
        for index, name in enumerate(SPECIAL_NAMES)
    ]  # fmt: skip
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {character: index for index, character in enumerate(characters)}, "merges": [],
        },
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder
