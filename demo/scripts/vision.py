"""The demo's vision tower for training, spelled out for batches of equal grids, and the network that sees with it.

Modules and parameters have the released files' names. As in network.py a whole step must fit a CUDA graph, so nothing
here depends on values; `check` compares with transformers' own tower.
"""

import json
import pathlib

import network as net
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

SIZES = {  # 133 k parameters: three checkpoint files hold them, and the demo stays below 20 MiB
    "model_type": "qwen3_5_vision", "depth": 3, "hidden_size": 32, "intermediate_size": 96, "num_heads": 2,
    "hidden_act": "gelu_pytorch_tanh", "in_channels": 3, "patch_size": 16, "spatial_merge_size": 2,
    "temporal_patch_size": 2, "num_position_embeddings": 64, "out_hidden_size": 256, "initializer_range": 0.02,
}  # fmt: skip
HIDDEN, HEADS, PATCH, SIDE, OUT = 32, 2, 16, 8, 256
PREPROCESSOR = {  # about 12,288 to 16,384 pixels: squares become 128 x 128, 4:3 96 x 128, 16:9 96 x 160
    "image_processor_type": "Qwen2VLImageProcessorFast", "size": {"shortest_edge": 12288, "longest_edge": 16384},
    "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2, "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5], "processor_class": "Qwen3VLProcessor",
}  # fmt: skip
VIDEO_PREPROCESSOR = PREPROCESSOR | {  # all frames together: four of 128 x 128, eight of 64 x 64
    "size": {"shortest_edge": 4 * 9216, "longest_edge": 4 * 16384}, "fps": 2, "min_frames": 4, "max_frames": 768,
    "video_processor_type": "Qwen3VLVideoProcessor",
}  # fmt: skip
del VIDEO_PREPROCESSOR["image_processor_type"]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor, turn) -> torch.Tensor:
        count, length, _ = x.shape
        query, key, value = self.qkv(x).view(count, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        query, key = (rotate(t.float(), *turn).to(value.dtype) for t in (query, key))
        out = F.scaled_dot_product_attention(query, key, value)
        return self.proj(out.transpose(1, 2).reshape(count, length, HIDDEN))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        inner = SIZES["intermediate_size"]
        self.linear_fc1, self.linear_fc2 = nn.Linear(HIDDEN, inner), nn.Linear(inner, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear_fc2(F.gelu(self.linear_fc1(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN, eps=1e-6), nn.LayerNorm(HIDDEN, eps=1e-6)
        self.attn, self.mlp = Attention(), MLP()

    def forward(self, x: torch.Tensor, turn) -> torch.Tensor:
        x = x + self.attn(self.norm1(x), turn)
        return x + self.mlp(self.norm2(x))


class Merger(nn.Module):
    """Four neighbouring patches -> one row of the text model's width."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN, eps=1e-6)
        self.linear_fc1, self.linear_fc2 = nn.Linear(4 * HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, OUT)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x).reshape(len(x), -1, 4 * HIDDEN)
        return self.linear_fc2(F.gelu(self.linear_fc1(x)))


class Tower(nn.Module):
    """patches (N, S, 1536) in order of 2 x 2 blocks -> rows (N, S/4, 256)."""

    def __init__(self):
        super().__init__()
        self.patch_embed = nn.ModuleDict({"proj": nn.Linear(3 * 2 * PATCH * PATCH, HIDDEN)})
        self.pos_embed = nn.Embedding(SIDE * SIDE, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(SIZES["depth"]))
        self.merger = Merger()
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5)
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.pos_embed.weight, std=0.1)

    def forward(self, patches: torch.Tensor, grid: "Grid") -> torch.Tensor:
        x = self.patch_embed["proj"](patches) + grid.spread @ self.pos_embed.weight
        for block in self.blocks:
            x = block(x, grid.turn)
        return self.merger(x)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class Grid:
    """What a grid of rows x columns patches needs: the position table's weights (S, 64), cos and sin (S, head size)."""

    def __init__(self, rows: int, columns: int, device):
        block = (rows // 2, 2, columns // 2, 2)
        at = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).view(*block, 2)
        at = at.permute(0, 2, 1, 3, 4).reshape(-1, 2)
        weights = []
        for axis, size in enumerate((rows, columns)):
            place = at[:, axis] * (SIDE - 1) / max(1, size - 1)  # corners on corners
            weights.append((1 - (place[:, None] - torch.arange(SIDE)).abs()).clamp_min(0))
        self.spread = (weights[0][:, :, None] * weights[1][:, None, :]).flatten(1).to(device)
        quarter = HIDDEN // HEADS // 4
        rate = 10000.0 ** (-torch.arange(quarter) / quarter)
        angle = (at[:, :, None] * rate).flatten(1).repeat(1, 2).to(device)
        self.turn = angle.cos(), angle.sin()


def patches_of(frames: torch.Tensor) -> torch.Tensor:
    """Pixels 0..1 (N, 2 or 1 frames, 3, H, W) -> (N, S, 1536) in order of 2 x 2 blocks; one frame counts twice."""
    count, given, _, height, width = frames.shape
    frames = (frames - 0.5) / 0.5
    frames = frames.expand(-1, 2, -1, -1, -1) if given == 1 else frames
    split = frames.reshape(count, 2, 3, height // 32, 2, PATCH, width // 32, 2, PATCH)
    return split.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(count, -1, 3 * 2 * PATCH * PATCH)


class Seeing(net.Network):
    """The text network and its head, with the tower."""

    def __init__(self, config):
        super().__init__(config)
        self.visual = Tower()

    def embed_all(self, ids, patches, where, grid: Grid) -> torch.Tensor:
        """Embeddings (B, T, 256) with the pictures' rows at the flat places `where` (int64, in picture order)."""
        return self.embed_seen(ids, self.visual(patches, grid), where)

    def embed_seen(self, ids, seen, where) -> torch.Tensor:
        """The same with the tower's rows (N, S/4, 256)."""
        rows = self.embed(ids)
        return rows.flatten(0, 1).index_copy(0, where, seen.flatten(0, 1).to(rows.dtype)).view_as(rows)

    def turned(self, positions: torch.Tensor):
        """cos and sin (B, T, rotary dims) of 3-D positions (B, 3, T)."""
        return self.trunk.rotary_emb(torch.zeros(1, device=positions.device), positions.transpose(0, 1))


def build(folder: pathlib.Path) -> Seeing:
    """The folder's text weights and a tower: the folder's, or a fresh one if it has none."""
    values = json.loads((folder / "config.json").read_text("utf-8"))["text_config"]
    config = net.Qwen3_5TextConfig(**{k: v for k, v in values.items() if k not in ("dtype", "model_type")})
    config._attn_implementation = "sdpa"
    model, stored = Seeing(config).float(), load_file(str(folder / "model.safetensors"))
    named = {}
    for name, value in stored.items():
        name = name.replace("model.language_model.", "trunk.", 1).replace("model.visual.", "visual.", 1)
        named[name] = value.flatten(1) if value.ndim == 5 else value
    missing, unknown = model.load_state_dict(named, strict=False)
    if unknown or any(not name.startswith("visual.") for name in missing):
        raise SystemExit(f"{folder}: missing {missing}, unknown {unknown}")
    return model


def tensors(model: Seeing) -> dict[str, torch.Tensor]:
    """All tensors under the released files' names; the patch embedding has its five dimensions."""
    out = {}
    for name, value in net.tensors(model).items():
        if name == "visual.patch_embed.proj.weight":
            value = value.view(HIDDEN, 3, 2, PATCH, PATCH)
        out[name.replace("visual.", "model.visual.", 1) if name.startswith("visual.") else name] = value
    return out


def write_settings(source: pathlib.Path, out: pathlib.Path) -> None:
    """config.json with the tower's sizes, and how pictures are prepared."""
    values = json.loads((source / "config.json").read_text("utf-8"))
    values["vision_config"] = SIZES
    for name, content in (
        ("config.json", values),
        ("preprocessor_config.json", PREPROCESSOR),
        ("video_preprocessor_config.json", VIDEO_PREPROCESSOR),
    ):
        (out / name).write_text(json.dumps(content, indent=2) + "\n", "utf-8")


@torch.no_grad()
def check(model: Seeing, device) -> float:
    """Largest difference to transformers' tower in float32; SystemExit when it is not the same function.

    NaN, with a line of text, where this transformers builds its tower in another way than 5.24 does.
    """
    rows, columns = 6, 10
    patches = torch.randn(3, rows * columns, 1536, generator=torch.Generator().manual_seed(0)).to(device)
    ours = model.visual(patches, Grid(rows, columns, device))
    try:
        error = float((_library_rows(model, patches, rows, columns).view(3, -1, OUT) - ours).abs().max())
    except Exception as error:  # another way of building or calling it, whatever it is
        print(f"the tower was not compared: {error!r}", flush=True)
        return float("nan")
    if not error < 1e-2:  # rows of order 1: rounding gives about 1e-6, TF32 1e-3, another function 1
        raise SystemExit(f"the spelled-out tower differs from transformers' by {error}")
    return error


def _library_rows(model: Seeing, patches: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """What transformers' tower makes of the same weights and patches."""
    from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5VisionConfig

    config = Qwen3_5VisionConfig(**{k: v for k, v in SIZES.items() if k != "model_type"})
    library = net.library.Qwen3_5VisionModel(config).float().to(patches.device).eval()
    state = {k: v.detach().clone() for k, v in model.visual.state_dict().items()}
    state["patch_embed.proj.weight"] = state["patch_embed.proj.weight"].view(HIDDEN, 3, 2, PATCH, PATCH)
    library.load_state_dict(state)
    out = library(patches.flatten(0, 1), grid_thw=torch.tensor([[1, rows, columns]] * 3, device=patches.device))
    return out.pooler_output if hasattr(out, "pooler_output") else out
