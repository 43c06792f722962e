"""Code in a new interpreter, with the package importable as it is here."""

import os
import subprocess
import sys

import fastqwen

PREAMBLE = (
    "import importlib.util, sys\n"
    f"home = {fastqwen.__path__[0]!r}\n"
    "spec = importlib.util.spec_from_file_location('fastqwen', home + '/__init__.py', "
    "submodule_search_locations=[home])\n"
    "module = importlib.util.module_from_spec(spec); sys.modules['fastqwen'] = module\n"
    "spec.loader.exec_module(module)\n"
)


def fresh(code, **environment):
    """Runs `code`; environment variables on top of ours. Output is bytes."""
    return subprocess.run(
        [sys.executable, "-c", PREAMBLE + code], capture_output=True, timeout=120, env=os.environ | environment
    )
