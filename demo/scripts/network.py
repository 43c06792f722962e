"""The demo network for training: transformers' Qwen3.5 text modules plus the MTP head, and the file layout.

The forward pass below uses those modules' parameters but spells the layers out, because a whole step must fit one
CUDA graph: the library's delta rule loops over 63 rows per chunk, its depthwise convolution is slow in training, and
its mask code reads values back to the host. `check` compares with the library's own forward before any training.
"""

import copy
import json
import os
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

try:
    from transformers.models.qwen3_5 import modeling_qwen3_5 as library
    from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
except ImportError as error:  # seconds, not minutes, after the start
    raise SystemExit(f"this transformers has no Qwen3.5 text model ({error}); 5.17 or newer is needed") from error

CHUNK = 64


class Head(nn.Module):
    """MTP head: fc over [embedding, hidden], one gated attention layer, a norm; the embedding is the trunk's."""

    def __init__(self, config, layer_config):
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.pre_fc_norm_embedding = library.Qwen3_5RMSNorm(size, eps=eps)
        self.pre_fc_norm_hidden = library.Qwen3_5RMSNorm(size, eps=eps)
        self.norm = library.Qwen3_5RMSNorm(size, eps=eps)
        self.layers = nn.ModuleList([library.Qwen3_5DecoderLayer(layer_config, layer_idx=0)])


class Network(nn.Module):
    """Trunk and head. Inputs are ids (B, T) with T a multiple of 64; hidden states are (B, T, 256)."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.trunk = library.Qwen3_5TextModel(config)
        with torch.no_grad():  # the library zeroes the padding id's row, but here that id also ends documents
            self.trunk.embed_tokens.padding_idx = None
            self.trunk.embed_tokens.weight[config.pad_token_id].normal_(0, config.initializer_range)
        head_config = copy.deepcopy(config)
        head_config.layer_types = ["full_attention"]
        head_config.num_hidden_layers = 1
        self.mtp = Head(config, head_config)
        self.mtp.apply(self.trunk._init_weights)

    def rotary(self, length: int, device) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin (1, length, rotary dims) for text positions 0..length-1."""
        positions = torch.arange(length, device=device).view(1, 1, -1).expand(3, 1, -1)
        return self.trunk.rotary_emb(torch.zeros(1, device=device), positions)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Embeddings by index_select: its backward is an index_add, which a CUDA graph can hold."""
        return self.trunk.embed_tokens.weight.index_select(0, ids.reshape(-1)).view(*ids.shape, -1)

    def hidden(self, ids: torch.Tensor, rope) -> torch.Tensor:
        """Trunk states after the final norm."""
        return self.states(self.embed(ids), rope)

    def states(self, x: torch.Tensor, rope) -> torch.Tensor:
        """Trunk states after the final norm for embedded rows."""
        for layer in self.trunk.layers:
            x = block(layer, x, rope)
        return self.trunk.norm(x)

    def draft(self, hidden: torch.Tensor, next_ids: torch.Tensor, rope) -> torch.Tensor:
        """Head states after mtp.norm for rows (h_p, x_{p+1})."""
        return self.draft_states(hidden, self.embed(next_ids), rope)

    def draft_states(self, hidden: torch.Tensor, embedded: torch.Tensor, rope) -> torch.Tensor:
        """Head states after mtp.norm for states and the next rows' embeddings; embedding first."""
        both = torch.cat([self.mtp.pre_fc_norm_embedding(embedded), self.mtp.pre_fc_norm_hidden(hidden)], -1)
        return self.mtp.norm(block(self.mtp.layers[0], self.mtp.fc(both), rope))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return F.linear(hidden, self.trunk.embed_tokens.weight)


def build(folder: pathlib.Path) -> Network:
    """A freshly initialised network for the folder's config.json."""
    values = json.loads((folder / "config.json").read_text("utf-8"))["text_config"]
    config = Qwen3_5TextConfig(**{k: v for k, v in values.items() if k not in ("dtype", "model_type")})
    config._attn_implementation = "sdpa"
    if config.layer_types != values["layer_types"]:
        raise SystemExit(f"transformers changed layer_types to {config.layer_types}")
    return Network(config).float()


def block(layer, x: torch.Tensor, rope) -> torch.Tensor:
    """One decoder layer."""
    mixed = layer.input_layernorm(x)
    x = x + (
        delta_net(layer.linear_attn, mixed)
        if hasattr(layer, "linear_attn")
        else attention(layer.self_attn, mixed, rope)
    )
    return x + layer.mlp(layer.post_attention_layernorm(x))


def attention(module, x: torch.Tensor, rope) -> torch.Tensor:
    """Gated causal attention (the number of query heads equals the number of key heads here)."""
    batch, length, _ = x.shape
    size = module.head_dim
    query, gate = module.q_proj(x).view(batch, length, -1, 2 * size).chunk(2, -1)
    query = module.q_norm(query).transpose(1, 2)
    key = module.k_norm(module.k_proj(x).view(batch, length, -1, size)).transpose(1, 2)
    value = module.v_proj(x).view(batch, length, -1, size).transpose(1, 2)
    query, key = library.apply_rotary_pos_emb(query, key, *rope)
    out = F.scaled_dot_product_attention(query.to(value.dtype), key.to(value.dtype), value, is_causal=True)
    return module.o_proj(
        out.transpose(1, 2).reshape(batch, length, -1) * torch.sigmoid(gate.reshape(batch, length, -1))
    )


def delta_net(module, x: torch.Tensor) -> torch.Tensor:
    """Gated DeltaNet over whole rows from a zero state."""
    batch, length, _ = x.shape
    qkv = module.in_proj_qkv(x)
    weight = module.conv1d.weight[:, 0].to(qkv.dtype)  # (channels, 4); column 3 is the current token
    padded = F.pad(qkv, (0, 0, 3, 0))
    qkv = F.silu(sum(padded[:, i : i + length] * weight[:, i] for i in range(4)))
    query, key, value = qkv.split([module.key_dim, module.key_dim, module.value_dim], -1)
    heads = module.num_v_heads // module.num_k_heads
    query, key = (
        t.reshape(batch, length, -1, 1, module.head_k_dim).expand(-1, -1, -1, heads, -1).flatten(2, 3)
        for t in (query, key)
    )
    beta = module.in_proj_b(x).sigmoid().float()
    decay = -module.A_log.float().exp() * F.softplus(module.in_proj_a(x).float() + module.dt_bias)
    out = delta_rule(query, key, value.reshape(batch, length, -1, module.head_v_dim), decay, beta).to(x.dtype)
    gate = module.in_proj_z(x).view(batch, length, -1, module.head_v_dim)
    return module.out_proj(
        module.norm(out.reshape(-1, module.head_v_dim), gate.reshape(-1, module.head_v_dim)).view(batch, length, -1)
    )


def unit_lower_inverse(lower: torch.Tensor) -> torch.Tensor:
    """(I + lower)^-1 for strictly lower triangular `lower` (..., n, n), by matrix products only.

    Up to 16 rows (I - L)(I + L^2)(I + L^4)(I + L^8), whose terms stay small enough for float32; above by halves.
    """
    size = lower.shape[-1]
    if size <= 16:
        result, power = torch.eye(size, device=lower.device) - lower, lower @ lower
        for step in range(3):
            result = result + result @ power
            power = power @ power if step < 2 else power
        return result
    half = size // 2
    first, second = unit_lower_inverse(lower[..., :half, :half]), unit_lower_inverse(lower[..., half:, half:])
    corner = -(second @ lower[..., half:, :half] @ first)
    return torch.cat(
        [torch.cat([first, torch.zeros_like(corner).transpose(-1, -2)], -1), torch.cat([corner, second], -1)], -2
    )


def delta_rule(query, key, value, decay, beta) -> torch.Tensor:
    """The gated delta rule by chunks of 64, float32 inside.

    query, key, value (B, T, H, 128); decay (log) and beta (B, T, H) float32. Returns (B, T, H, 128) float32.
    Within a chunk the updates solve (I + tril(beta K K^T * decay, -1)) V' = beta V; see arXiv 2412.06464, section 3.
    """
    with torch.autocast(query.device.type, enabled=False):
        batch, length, heads, size = query.shape
        split = lambda t: t.float().transpose(1, 2).reshape(batch, heads, length // CHUNK, CHUNK, -1)  # noqa: E731
        query, key, value = (split(t) for t in (query, key, value))
        query, key = (t * torch.rsqrt(t.square().sum(-1, keepdim=True) + 1e-6) for t in (query, key))
        query = query * size**-0.5
        beta, total = split(beta.unsqueeze(-1)), split(decay.unsqueeze(-1)).squeeze(-1).cumsum(-1)
        upper = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=query.device).triu(1)
        pair = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(upper, float("-inf")).exp()
        key_t, grow = key.transpose(-1, -2), total.exp().unsqueeze(-1)
        inverse = unit_lower_inverse(((key * beta) @ key_t * pair).tril(-1))
        new, read = inverse @ (value * beta), inverse @ (key * beta * grow)
        inside, query = (query @ key_t) * pair, query * grow
        key_t = (key * (total[..., -1:] - total).exp().unsqueeze(-1)).transpose(-1, -2)
        last, state, outs = total[..., -1].exp()[..., None, None], None, []
        for i in range(length // CHUNK):
            fresh = new[:, :, i] if state is None else new[:, :, i] - read[:, :, i] @ state
            out = inside[:, :, i] @ fresh
            outs.append(out if state is None else out + query[:, :, i] @ state)
            update = key_t[:, :, i] @ fresh
            state = update if state is None else state * last[:, :, i] + update
        return torch.stack(outs, 2).reshape(batch, heads, length, -1).transpose(1, 2)


@torch.no_grad()
def check(network: Network, device) -> float:
    """Largest difference to the library's own forward in float32; SystemExit when it is not the same function."""
    ids = torch.randint(0, network.config.vocab_size, (2, 192), generator=torch.Generator().manual_seed(0)).to(device)
    torch.backends.cudnn.allow_tf32 = False
    theirs = network.trunk(input_ids=ids).last_hidden_state
    ours = network.hidden(ids, network.rotary(192, device))
    error = float((theirs - ours).abs().max())
    if (
        not error < 2e-2
    ):  # states are of order 1; summation order alone gives about 1e-5, TF32 about 1e-3, another function order 1
        raise SystemExit(f"the spelled-out forward differs from transformers' by {error}")
    return error


def tensors(network: Network) -> dict[str, torch.Tensor]:
    """Tensors under the released files' names: bfloat16, A_log and linear_attn.norm float32; lm_head absent (tied)."""
    out = {}
    for name, value in network.state_dict().items():
        name = name.replace("trunk.", "model.language_model.", 1)
        keep = name.endswith("A_log") or name.endswith("linear_attn.norm.weight")
        out[name] = value.detach().to("cpu", torch.float32 if keep else torch.bfloat16).contiguous()
    return out


def save(named: dict[str, torch.Tensor], folder: pathlib.Path) -> int:
    """Writes model.safetensors in one step (never half a file); returns its size in bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / "model.safetensors.part"
    save_file(named, str(part), metadata={"format": "pt"})
    part.chmod(0o644)
    os.replace(part, folder / "model.safetensors")
    return (folder / "model.safetensors").stat().st_size


@torch.no_grad()
def round_weights(network: Network) -> None:
    """Rounds the weights to what the file stores, so that evaluation measures the file."""
    for name, value in network.state_dict().items():
        if not (name.endswith("A_log") or name.endswith("linear_attn.norm.weight")):
            value.copy_(value.to(torch.bfloat16))
