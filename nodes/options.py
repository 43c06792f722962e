"""What 'Load FastQwen' asks of the engine beside the checkpoint's name."""

import inspect
from dataclasses import dataclass

from ..engine import load

QUANTIZE = ("none", "w4a8", "w6a8", "int8")
KEYS_AND_VALUES = ("auto", "int8", "bf16", "fp32")
HAS_VRAM_BUDGET = "vram_budget" in inspect.signature(load).parameters


@dataclass(frozen=True)
class LoadOptions:
    """Values of the loader's inputs; `arguments` are the engine's words for them."""

    quantize: str = "none"
    kv: str = "auto"
    context: int = 0
    vram_budget: float = 0.0

    def arguments(self):
        """Keyword arguments of `engine.load`, only those that differ from its defaults."""
        given = {}
        if self.quantize != "none":
            given["quantize"] = self.quantize
        if self.kv != "auto":
            given["kv"] = self.kv
        if self.context:
            given["context"] = self.context
        if self.vram_budget:
            given["vram_budget"] = int(self.vram_budget * 2**30)
        return given
