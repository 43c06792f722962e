"""Gated attention: rotary tables, the key-value cache, the layer."""

from .cache import KINDS, KVCache
from .decode import DecodeScratch
from .layer import AttentionConfig, GatedAttention
from .rotary import Rotary, RotaryConfig

__all__ = ["KINDS", "AttentionConfig", "DecodeScratch", "GatedAttention", "KVCache", "Rotary", "RotaryConfig"]
