"""An engine under a real ComfyUI: loaded, counted, evicted and brought back as one unit. In a process of its own."""

import os
import subprocess
import sys

from .server import HERE, ROOT


def test_comfyui_loads_counts_evicts_and_restores_an_engine_as_one_unit(comfy, tmp_path):
    environment = dict(os.environ, HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
    inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE / "stubs"), *inherited])
    command = [sys.executable, str(HERE / "memory_cases.py"), str(comfy), str(ROOT)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    print(done.stdout, done.stderr[-4000:])
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "all passed"
