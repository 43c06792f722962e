"""Which backend computes each operation, and why."""

from dataclasses import dataclass

import torch

from ..attention.backend import attention_kernels, prefill_kernels
from ..deltanet.backend import delta_kernels
from ..model.load import default_kv
from ..weights.backend import float_kernels, packed_kernels
from .device_check import round_kernels

PACKED_OPERATIONS = ("prepare", "packed_linear", "unpack")
ATTENTION_OPERATIONS = ("attention_append", "decode_attention")
DELTA_OPERATIONS = ("delta_decode", "delta_prefill")
ROUND_OPERATIONS = ("rms_norm", "sampling", "acceptance")


@dataclass(frozen=True)
class Choice:
    """An operation, the backend that computes it, and the reason."""

    operation: str
    backend: str
    reason: str


def choices(device: torch.device) -> list[Choice]:
    """The backend of every operation on `device`."""
    found = []
    for operations, (used, reason) in (
        (PACKED_OPERATIONS, packed_kernels(device)),
        (ATTENTION_OPERATIONS, attention_kernels(device, default_kv(device))),
        (("prefill_attention",), prefill_kernels(device, default_kv(device))),
        (DELTA_OPERATIONS, delta_kernels(device)),
        (ROUND_OPERATIONS, round_kernels(device)),
        (("linear",), float_kernels(device, torch.bfloat16)),  # what a GPU computes in unless told otherwise
    ):
        found += [Choice(operation, "triton" if used else "torch", reason) for operation in operations]
    return found
