"""What a quantised layer means, decoded straight from the format's definition in float64."""

import json

import torch

H4 = torch.tensor([[1, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]], dtype=torch.float64)
H256 = torch.kron(torch.kron(H4, H4), torch.kron(H4, H4)) / 16


def marker(tensors):
    """The layer's JSON marker as a dict."""
    return json.loads(bytes(tensors["comfy_quant"].tolist()))


def sides(tensors, layer):
    """The tensors of one layer of a file, by the last piece of their names."""
    return {name[len(layer) + 1 :]: tensor for name, tensor in tensors.items() if name.startswith(layer + ".")}


def columns(tensors):
    if "weight_s_rel" in tensors:
        return tensors["weight_s_rel"].shape[1] * 16
    return tensors["weight"].shape[1]


def codes(tensors):
    """[N, K] int64 codes of a 4-bit or 6-bit layer, one column at a time."""
    stored = tensors["weight"].view(torch.uint8).long()
    count = columns(tensors)
    result = torch.stack([stored[:, c // 2] >> 4 * (c % 2) & 15 for c in range(count)], 1)
    if stored.shape[1] == count // 4 * 3:
        high = torch.stack([stored[:, count // 2 + c // 4] >> 2 * (c % 4) & 3 for c in range(count)], 1)
        result += high << 4
    return result


def grid(tensors):
    """[N, K] the int8 matrix that the layer means."""
    if "weight_s_rel" not in tensors:
        return tensors["weight"]
    levels = tensors["weight_codebook"] if "weight_codebook" in tensors else torch.arange(64.0) - 32
    scales = tensors["weight_s_rel"].float().repeat_interleave(16, dim=1)
    return (levels[codes(tensors)] * scales).round().clamp(-127, 127).to(torch.int8)


def decode(tensors):
    """[N, K] float64 weights in their own basis."""
    scale = tensors["weight_s_channel"] if "weight_s_channel" in tensors else tensors["weight_scale"]
    value = grid(tensors).double() * scale.double().reshape(-1, 1)
    said = marker(tensors)
    return unrotate(value) if said.get("convrot", "group_size" in said) else value


def unrotate(value):
    return (value.unflatten(1, (-1, 256)) @ H256).flatten(1)


def relative(found, wanted):
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())
