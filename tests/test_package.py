"""What importing and layering promise, shown on the source files and in fresh processes."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# A folder imports only from these; ARCHITECTURE's table as data.
MAY_IMPORT = {
    "kernels": set(),
    "weights": {"kernels"},
    "attention": {"kernels", "weights"},
    "deltanet": {"kernels", "weights"},
    "model": {"kernels", "weights", "attention", "deltanet"},
    "mtp": {"kernels", "weights", "attention", "deltanet", "model"},
    "engine": {"kernels", "weights", "attention", "deltanet", "model", "mtp"},
    "nodes": {"engine", "model", "weights"},
    "cli": {"engine", "model", "weights", "benchmarks"},
}


def imported_layers(path, layer):
    """The sibling layers a file imports, and the absolute top-level names it imports."""
    siblings, absolute = set(), set()
    depth = len(path.relative_to(ROOT).parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            absolute |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            absolute.add(node.module.split(".")[0])
        elif isinstance(node, ast.ImportFrom) and node.level == depth:
            names = [node.module.split(".")[0]] if node.module else [alias.name for alias in node.names]
            siblings |= {name for name in names if name in MAY_IMPORT or name == "benchmarks"}
        elif isinstance(node, ast.ImportFrom):
            assert node.level < depth, f"{path} reaches above the package"
    return siblings - {layer}, absolute


def layer_files():
    for layer in MAY_IMPORT:
        if layer == "cli":
            names = (
                "cli.py",
                "arguments.py",
                "caption_command.py",
                "doctor_command.py",
                "option_types.py",
                "terminal.py",
            )
            yield from ((layer, ROOT / name) for name in names)
        else:
            for path in sorted((ROOT / layer).rglob("*.py")):
                yield layer, path


@pytest.mark.parametrize("layer,path", [pytest.param(a, b, id=str(b.relative_to(ROOT))) for a, b in layer_files()])
def test_folder_imports_only_from_folders_above_it(layer, path):
    siblings, absolute = imported_layers(path, layer)
    assert siblings <= MAY_IMPORT[layer]
    assert "fastqwen" not in absolute, "absolute imports break under ComfyUI's folder names"
    if layer != "nodes":
        assert not any(name.startswith("comfy") for name in absolute)
    assert "transformers" not in absolute


def test_only_one_file_imports_the_comfy_node_api():
    users = [path.name for layer, path in layer_files() if "comfy_api" in imported_layers(path, layer)[1]]
    assert len(users) <= 1


def run_python(code, **kwargs):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, **kwargs)


LOAD = """
import importlib.util, sys
home = {root!r}
spec = importlib.util.spec_from_file_location({name!r}, home + "/__init__.py", submodule_search_locations=[home])
module = importlib.util.module_from_spec(spec); sys.modules[{name!r}] = module; spec.loader.exec_module(module)
"""


def test_importing_the_root_loads_neither_torch_nor_comfy(tmp_path):
    code = LOAD.format(name="fastqwen", root=str(ROOT))
    code += "bad = [m for m in sys.modules if m.split('.')[0] in ('torch', 'comfy', 'comfy_api', 'numpy')]; print(bad)"
    done = run_python(code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_pack_exports_the_entrypoint_and_no_legacy_mappings(tmp_path):
    code = LOAD.format(name="odd name-1.0", root=str(ROOT))
    code += "print(callable(module.comfy_entrypoint), hasattr(module, 'NODE_CLASS_MAPPINGS'))"
    done = run_python(code, cwd=tmp_path)
    assert done.stdout.split() == ["True", "False"], done.stderr


def test_without_triton_every_operation_is_torchs_with_the_reason_and_text_is_written(tmp_path):
    code = "import sys; sys.modules['triton'] = None\n" + LOAD.format(name="pack", root=str(ROOT))
    code += (
        "import torch\n"
        "from pack.engine import load\n"
        "from pack.engine.backends import choices\n"
        "found = choices(torch.device('cuda', 0))\n"
        "print({x.backend for x in found}, all('Triton is not installed' in x.reason for x in found[:5]))\n"
        "print(len(load('demo', device='cpu').reply('a fox', max_tokens=3).result().token_ids))\n"
    )
    done = run_python(code, cwd=tmp_path, env=dict(os.environ, OMP_NUM_THREADS="1"))
    assert done.stdout.splitlines() == ["{'torch'} True", "3"], done.stderr
    assert done.stderr.count("Triton is not installed") == 1, "said once, not for each kind of layer"


def test_requirements_file_is_in_step_with_the_package():
    text = (ROOT / "pyproject.toml").read_text()
    listed = text.split("dependencies = [", 1)[1].split("]", 1)[0]
    declared = [part.strip().strip('"') for part in listed.split(",")]
    assert (ROOT / "requirements.txt").read_text().split() == declared
    assert not any(name.startswith(("torch", "triton", "comfy")) for name in declared)


def test_python_files_are_cp1252_encodable():
    for path in ROOT.rglob("*.py"):
        if not any(part.startswith(".") or part == "build" for part in path.relative_to(ROOT).parts):
            path.read_text(encoding="utf-8").encode("cp1252")


def test_no_file_goes_around_comfyuis_device_and_memory_management():
    """The patterns that ComfyUI's pack linter refuses; scripts that train the demo never run inside ComfyUI."""
    patterns = (
        ".cuda" + "(",
        '.to("cu' + 'da")',
        '.to(torch.device("cu' + 'da"',
        "torch.auto" + "cast",
        "nn.Lin" + "ear(",
        "nn.Layer" + "Norm(",
    )
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).parts
        if parts[0].startswith(".") or "scripts" in parts or parts[0] == "build":
            continue
        text = path.read_text()
        assert not [pattern for pattern in patterns if pattern in text], path


def test_every_launch_says_whether_products_and_sums_are_fused():
    """What Triton does otherwise depends on its version and on an environment variable, and bits on that."""
    launches = 0
    for file in sorted((ROOT / "kernels").glob("[a-z]*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        for name, function in functions.items():
            for call in ast.walk(function):
                target = call.func if isinstance(call, ast.Call) else None
                if not (isinstance(target, ast.Subscript) and ast.unparse(target.value).endswith("_kernel")):
                    continue
                launches += 1
                # In the call, or, where it takes a dictionary, in its function or one that the function calls.
                text = ast.unparse(call)
                if any(keyword.arg is None for keyword in call.keywords):
                    called = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)} & functions.keys()
                    text += "".join(ast.unparse(functions[other]) for other in called | {name})
                assert "enable_fp_fusion" in text, f"{file.name}: {ast.unparse(target.value)}"
    assert launches > 20
