"""The command `fastqwen doctor`: what is installed and what computes here."""

import importlib.metadata
import json
import platform


def add_doctor(parser):
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_doctor)


def _doctor(arguments) -> int:
    import torch

    from .engine.backends import choices

    packages = ("torch", "triton", "tokenizers", "safetensors", "numpy", "jinja2", "pillow", "tqdm", "transformers")
    versions = {"fastqwen": _version("fastqwen"), "python": platform.python_version()}
    versions |= {name: _version(name) for name in packages}
    versions["torch"] = torch.__version__  # names the build (+cpu, +cu130), which the package's metadata may not
    devices = [{"name": "cpu", "detail": f"{platform.machine()}, {torch.get_num_threads()} threads"}]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        detail = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
        devices.append({"name": f"cuda:{index}", "detail": detail})
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    operations = [vars(choice) for choice in choices(device)]
    if arguments.json:
        value = {"versions": versions, "devices": devices, "device": str(device), "operations": operations}
        print(json.dumps(value))
        return 0
    print(f"system: {platform.platform()}")
    for name, version in versions.items():
        print(f"  {name:<14} {version or 'not installed'}")
    print("devices:")
    for entry in devices:
        print(f"  {entry['name']:<14} {entry['detail']}")
    print(f"operations on {device}:")
    for entry in operations:
        print(f"  {entry['operation']:<18} {entry['backend']:<8} {entry['reason']}")
    return 0


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
