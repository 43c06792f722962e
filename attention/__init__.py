"""Gated attention: rotary tables, the key-value cache, the layer."""

from .cache import KVCache
from .layer import AttentionConfig, GatedAttention
from .rotary import Rotary, RotaryConfig

__all__ = ["AttentionConfig", "GatedAttention", "KVCache", "Rotary", "RotaryConfig"]
