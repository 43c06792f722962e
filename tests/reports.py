"""Reports of replies that were never written."""

from dataclasses import replace

import torch
from fastqwen.engine.report import Meter, Report


def report(**values) -> Report:
    """The report of an empty reply, but for these values."""
    return replace(Meter(torch.device("cpu")).report(0), **values)
