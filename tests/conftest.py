"""Makes the repository importable as `fastqwen` without putting its root on `sys.path`.

The root holds folders named `nodes` and `kernels`, names that ComfyUI and a PyPI package use too.
"""

import importlib.util
import os
import sys
from pathlib import Path

import pytest
import torch
from short_interpreter import shorten

ROOT = Path(__file__).resolve().parent.parent
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test may reach for the network
if not torch.cuda.is_available():
    # Read when triton is first imported: without a GPU kernels run in its interpreter, their portable form.
    os.environ.setdefault("TRITON_INTERPRET", "1")


def _import_by_path(name, root):
    spec = importlib.util.spec_from_file_location(name, root / "__init__.py", submodule_search_locations=[str(root)])
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


sys.path[:] = [entry for entry in sys.path if Path(entry or os.getcwd()).resolve() != ROOT]
_import_by_path("fastqwen", ROOT)


def pytest_addoption(parser):
    parser.addoption(
        "--comfyui",
        default=None,
        metavar="PATH|wheel",
        help="run the ComfyUI server tests against the checkout at PATH (written --comfyui=PATH: after a space pytest "
        "would collect that checkout's own tests), or against the copy in a pinned wheel",
    )
    parser.addoption(
        "--chromium",
        default=None,
        metavar="PATH",
        help="with --comfyui, also open that server's user interface in the browser at PATH; needs the packages "
        "playwright and comfyui-frontend-package",
    )


def pytest_collection_modifyitems(config, items):
    wants_slow = "slow" in (config.getoption("-m") or "")
    for item in items:
        if "slow" in item.keywords and not wants_slow:
            item.add_marker(pytest.mark.skip(reason="slow; run with -m slow"))
        if "gpu" in item.keywords and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Small tensors on few cores are far faster on one thread."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def interpreter():
    """Triton's interpreter, shortened; the monkeypatch that did it."""
    monkeypatch = pytest.MonkeyPatch()
    if os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton"):
        shorten(monkeypatch)
    yield monkeypatch
    monkeypatch.undo()
