"""Which backend computes each operation, and why."""

from dataclasses import dataclass

import torch

OPERATIONS = (
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
    reason = f"plain torch on {device.type}: this version has no kernels of its own yet"
    return [Choice(operation, "torch", reason) for operation in OPERATIONS]
