"""Which backend computes each operation, and why."""

from dataclasses import dataclass

import torch

from ..weights.backend import packed_kernels

PACKED_OPERATIONS = ("prepare", "packed_linear", "unpack")
OTHERS = (
    "linear", "rms_norm", "causal_conv", "delta_rule", "decode_attention", "prefill_attention", "sampling",
)  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """An operation, the backend that computes it, and the reason."""

    operation: str
    backend: str
    reason: str


def choices(device: torch.device) -> list[Choice]:
    """The backend of every operation on `device`."""
    used, reason = packed_kernels(device)
    found = [Choice(operation, "triton" if used else "torch", reason) for operation in PACKED_OPERATIONS]
    return found + [Choice(operation, "torch", f"plain torch on {device.type}: no kernel yet") for operation in OTHERS]
