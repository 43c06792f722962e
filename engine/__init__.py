"""Loading, sampling, the generate loop and what it reports.

from fastqwen.engine import load
for delta in load("demo").reply("a fox in the snow"):
    print(delta.text, end="", flush=True)
"""

from ..model.images import read_image
from ..model.video import Video, read_video
from ..weights import FastQwenError
from .engine import MTP_CHOICES, Engine, check_request
from .load import load, resolve_device, resolve_path, weight_bytes
from .reply import Reply, Result
from .report import Progress, Report
from .sampling import GREEDY, SamplingSettings
from .text import Delta

__all__ = [
    "GREEDY", "MTP_CHOICES", "Delta", "Engine", "FastQwenError", "Progress", "Reply", "Report", "Result",
    "SamplingSettings", "Video", "check_request", "load", "read_image", "read_video", "resolve_device", "resolve_path",
    "weight_bytes",
]  # fmt: skip
