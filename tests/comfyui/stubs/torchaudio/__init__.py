"""Stands in for torchaudio."""

from absent import stand_in

__version__ = "0"
__getattr__ = stand_in(__name__, ["functional", "transforms"])
