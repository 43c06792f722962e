"""Canonical tensor names, and what a file that is not one of ours looks like."""

from collections.abc import Iterable

from ..weights import FastQwenError

# Longest first. Released files and ComfyUI's single files use `model.language_model.`; a text-only save has `model.`.
PREFIXES = (
    ("model.language_model.", ""),
    ("language_model.model.", ""),
    ("model.visual.", "visual."),
    ("language_model.lm_head.", "lm_head."),
    ("model.", ""),
)

SIGNATURE = "layers.0.input_layernorm.weight"
WANTED = "a dense Qwen3.5, 3.6 or 3.8 checkpoint (layers with 'linear_attn.A_log')"

# A piece of a tensor name that only that kind of file has, in the order to try.
LOOKS_LIKE = (
    ("mlp.experts.", "a mixture-of-experts model"),
    ("linear_attn.in_proj_qkvz", "a Qwen3-Next model"),
    ("lora_", "a LoRA"),
    ("pre_feedforward_layernorm", "a Gemma model"),
    ("model.diffusion_model.", "an image model checkpoint with a diffusion model inside"),
    ("double_blocks.", "a Flux-like diffusion model"),
    ("transformer_blocks.", "a diffusion transformer"),
    ("text_model.encoder.layers.", "a CLIP text encoder"),
    ("encoder.block.0.layer.0.SelfAttention", "a T5 text encoder"),
    ("decoder.up", "a VAE"),
    ("visual.", "a Qwen-VL model of an earlier family"),
    ("self_attn.q_norm", "a Qwen3 model of an earlier family"),
    ("self_attn.q_proj.bias", "a Qwen2 model"),
    ("self_attn.q_proj", "a Llama-like language model"),
)


def canonical_names(names: Iterable[str]) -> dict[str, str]:
    """Canonical name -> name in the file. Raises FastQwenError if two names in the file mean the same tensor."""
    result: dict[str, str] = {}
    for name in names:
        short = _canonical(name)
        if short in result:
            raise FastQwenError(
                f"Tensors '{result[short]}' and '{name}' are the same weight under two names: keep one of them."
            )
        result[short] = name
    return result


def require_family(names: dict[str, str], path):
    """Refuses a file of another architecture, saying what it looks like."""
    linear = any(name.endswith(".linear_attn.A_log") for name in names)
    experts = any(".mlp.experts." in name for name in names)
    if linear and not experts and SIGNATURE in names:
        return
    found = next((what for piece, what in LOOKS_LIKE if any(piece in name for name in names.values())), None)
    held = f"its first tensor is '{next(iter(names.values()))}'" if names else "it holds no tensor"
    what = f"looks like {found}" if found else f"is of an unknown kind ({held})"
    raise FastQwenError(f"'{path}' {what}; FastQwen runs {WANTED}.")


def _canonical(name: str) -> str:
    for prefix, replacement in PREFIXES:
        if name.startswith(prefix):
            return replacement + name[len(prefix) :]
    return name
