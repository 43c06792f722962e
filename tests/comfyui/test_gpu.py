"""The nodes on a GPU in a real ComfyUI. In a process of its own, since that is where ComfyUI sets up the allocator."""

import json
import os
import subprocess
import sys

import pytest

from .server import ROOT


@pytest.mark.gpu
def test_on_a_gpu_nodes_write_the_engines_text_and_give_their_memory_up_and_take_it_again(comfy, tmp_path):
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "fastqwen").symlink_to(ROOT, target_is_directory=True)
    inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(tmp_path / "path"), *inherited]))
    command = [sys.executable, "-m", "fastqwen.benchmarks.nodes", "--comfyui", str(comfy), "--shape", "demo"]
    command += ["--runs", "1", "--tokens", "40", "--long", "1500", "--folder", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    print(done.stdout[-6000:], done.stderr[-3000:])
    assert done.returncode == 0
    checks = json.loads(done.stdout.splitlines()[-1])["checks"]
    assert len(checks) > 10 and all(passed for passed, _ in checks)
