"""Packages that ComfyUI imports at start and that this test never uses: importing works, using raises.

The CPU builds of torch have no matching torchvision and torchaudio on PyPI.
"""

import sys
import types


class Absent:
    """Any name of an absent package."""

    def __init__(self, name):
        self.__name__ = name

    def __getattr__(self, attribute):
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return Absent(f"{self.__name__}.{attribute}")

    def __call__(self, *args, **kwargs):
        raise RuntimeError(f"{self.__name__} is not installed here: the server test stands in for it")


def stand_in(package, submodules):
    """Registers `package.submodule` for each of the submodules; returns the package's `__getattr__`."""
    for submodule in submodules:
        name = f"{package}.{submodule}"
        parent, _, leaf = name.rpartition(".")
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__getattr__ = Absent(name).__getattr__
        setattr(sys.modules[parent], leaf, sys.modules[name])
    return Absent(package).__getattr__
