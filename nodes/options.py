"""What 'Load FastQwen' asks of the engine beside the checkpoint's name."""

from dataclasses import dataclass

QUANTIZE = ("none", "w4a8", "w6a8", "int8")
KEYS_AND_VALUES = ("auto", "int8", "bf16", "fp32")


@dataclass(frozen=True)
class LoadOptions:
    """Values of the loader's inputs, where 0 means no limit; `vram_budget` is in GB of 2^30 bytes."""

    quantize: str = "none"
    kv: str = "auto"
    context: int = 0
    vram_budget: float = 0.0

    def arguments(self):
        """Keyword arguments of `engine.load`, only those that differ from its defaults; `vram_budget` in bytes."""
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
