"""Gated attention: rotary tables, the key-value cache, the layer."""

from .cache import KINDS, KVCache, cache_bytes, capacity_class, tokens_within
from .decode import DecodeScratch
from .layer import AttentionConfig, GatedAttention
from .rotary import Rotary, RotaryConfig

__all__ = [
    "KINDS",
    "AttentionConfig",
    "DecodeScratch",
    "GatedAttention",
    "KVCache",
    "Rotary",
    "RotaryConfig",
    "cache_bytes",
    "capacity_class",
    "tokens_within",
]
