"""Gated DeltaNet: the deferred state and the layer."""

from .layer import DeltaNetConfig, GatedDeltaNet
from .state import DeltaNetState, KernelState

__all__ = ["DeltaNetConfig", "DeltaNetState", "GatedDeltaNet", "KernelState"]
