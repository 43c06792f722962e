"""A tiny random checkpoint with a vision tower, built with transformers, saved under the names of released files."""

import json

import tiny
import torch
from safetensors.torch import save_file

NAMES = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
IDS = {name: 256 + tiny.SPECIAL_NAMES.index(name) for name in NAMES}
VISION = {
    "hidden_size": 32, "intermediate_size": 48, "depth": 2, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2,
    "temporal_patch_size": 2, "num_position_embeddings": 36, "out_hidden_size": 64,
}  # fmt: skip
# What a token's 8 x 8 pixels ask for: pictures of 4 to 64 tokens.
SIZE = {"shortest_edge": 256, "longest_edge": 4096}


def oracle(seed=0, **changes):
    """A float32 Qwen3_5ForConditionalGeneration around tiny.oracle's text model, logits with a spread of about one."""
    from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5Config
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForConditionalGeneration

    text = tiny.oracle("gqa4", seed=seed, **changes)
    config = Qwen3_5Config(
        text_config=text.config.to_dict(), vision_config=VISION, tie_word_embeddings=True,
        image_token_id=IDS["<|image_pad|>"], video_token_id=IDS["<|video_pad|>"],
        vision_start_token_id=IDS["<|vision_start|>"], vision_end_token_id=IDS["<|vision_end|>"],
    )  # fmt: skip
    config._attn_implementation = "eager"
    model = Qwen3_5ForConditionalGeneration(config).float().eval()
    model.model.language_model.load_state_dict(text.model.state_dict())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.model.visual.named_parameters():
            random = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(random * 0.1 + 1 if "norm" in name and "weight" in name else random * 0.1)
            if parameter.dim() > 1:
                parameter.copy_(random / parameter[0].numel() ** 0.5)
        model.model.visual.pos_embed.weight.mul_(5)  # so that a wrong position shows
        model.model.visual.merger.linear_fc2.weight.mul_(4)
    return model


def save_folder(model, folder, *, mtp=True, tower=True):
    """Writes a Hugging Face folder with a tokenizer of bytes; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items() if not name.startswith("lm_head")}
    if not tower:
        tensors = {name: tensor for name, tensor in tensors.items() if ".visual." not in name}
    if mtp:
        tensors |= tiny.mtp_tensors(model.config.text_config)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    text = model.config.text_config.to_dict() | {"mtp_num_hidden_layers": int(mtp)}
    config = {"model_type": "qwen3_5", "text_config": text, "vision_config": VISION, "tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps({"size": SIZE, "patch_size": 4}))
    (folder / "video_preprocessor_config.json").write_text(json.dumps({"size": SIZE}))
    return tiny.save_tokenizer(folder)


def picture(height, width, seed):
    """Random uint8 [H, W, 3]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (height, width, 3), generator=generator, dtype=torch.uint8)
