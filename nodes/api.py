"""ComfyUI's node API, in the one file that imports it, and what keeps nodes working on older versions of it."""

import inspect

from comfy_api.latest import ComfyExtension, io, ui

from ..engine import FastQwenError

__all__ = ["CATEGORY", "ComfyExtension", "io", "known", "ui", "verdict"]

CATEGORY = "text/FastQwen"


def known(make, **arguments):
    """`make(**arguments)` without those that this ComfyUI is too old to know."""
    names = inspect.signature(make).parameters
    return make(**{name: value for name, value in arguments.items() if name in names})


def verdict(check, *arguments):
    """ComfyUI's form of a validation result: True, or the error's sentence."""
    try:
        check(*arguments)
    except FastQwenError as error:
        return str(error)
    return True
