"""Gated attention: rotary tables, the key-value cache, the layer."""

from .cache import KINDS, KVCache
from .layer import AttentionConfig, GatedAttention
from .rotary import Rotary, RotaryConfig

__all__ = ["KINDS", "AttentionConfig", "GatedAttention", "KVCache", "Rotary", "RotaryConfig"]
