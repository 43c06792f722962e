"""The wheel: what is in it, that it runs away from the repository, and that it can live beside a clone."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("kernels", "weights", "attention", "deltanet", "model", "mtp", "engine", "nodes", "benchmarks")
DATA = ("demo/checkpoint/", "example_workflows/", "locales/", "web/")


def run(*command, cwd, **environment):
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=400, env=clean | environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tracked_files():
    return run("git", "ls-files", cwd=ROOT).split("\n")[:-1]


def belongs_in_the_wheel(name):
    if name.startswith(DATA):
        return True
    folder, _, file = name.rpartition("/")
    return (folder == "" or folder.split("/")[0] in PACKAGES) and file.endswith((".py", ".jinja"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy of the tracked files: a build in place would leave folders in the repository."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs the repository's list of tracked files")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in tracked_files():
        if (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), cwd=source)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    target = tmp_path_factory.mktemp("site")
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target), str(wheel), cwd=target)
    return target


def test_wheel_holds_every_tracked_module_and_data_file_and_nothing_else(wheel):
    found = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    wanted = {"fastqwen/" + name for name in tracked_files() if belongs_in_the_wheel(name)}
    assert found == wanted


def test_wheel_names_the_licence_and_no_torch_or_triton(wheel):
    archive = zipfile.ZipFile(wheel)
    metadata = archive.read(next(n for n in archive.namelist() if n.endswith("METADATA"))).decode()
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra ==" not in line]
    assert "Apache-2.0" in metadata
    assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())
    assert required and not any("torch" in line or "triton" in line for line in required)


def test_demo_runs_from_the_installed_wheel_outside_the_repository(installed, tmp_path):
    code = "import sys; from fastqwen.cli import main; sys.exit(main(sys.argv[1:]))"
    options = ("generate", "--model", "demo", "--prompt", "a fox in the snow", "--max-tokens", "12")
    out = run(sys.executable, "-c", code, *options, cwd=tmp_path, PYTHONPATH=str(installed))
    assert out.strip()


def test_installed_wheel_and_clone_under_another_name_work_in_one_process(installed, tmp_path):
    code = f"""
import importlib.util, sys
import fastqwen.engine
name, home = "my fast-qwen 2_x_0", {str(ROOT)!r}
spec = importlib.util.spec_from_file_location(name, home + "/__init__.py", submodule_search_locations=[home])
module = importlib.util.module_from_spec(spec); sys.modules[name] = module; spec.loader.exec_module(module)
clone = importlib.import_module(name + ".engine")
assert clone is not fastqwen.engine and clone.Engine is not fastqwen.engine.Engine
texts = [engine.load("demo").generate("a fox", max_tokens=8).text for engine in (clone, fastqwen.engine)]
assert texts[0] == texts[1], texts
print("both")
"""
    assert "both" in run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(installed))
