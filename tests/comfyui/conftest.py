"""One server for all server tests, and the models and helpers they share."""

import os

import pytest

from .material import write_models, write_seeing, write_tiny
from .server import HERE, ROOT, NotRun, Server, checkout

PACK = "ComfyUI-FastQwen"


@pytest.fixture(scope="session")
def comfy(request, tmp_path_factory):
    """The folder of the ComfyUI under test. Without --comfyui the test is skipped."""
    option = request.config.getoption("comfyui")
    if option is None:
        pytest.skip("needs --comfyui wheel or --comfyui PATH")
    try:
        return checkout(option, tmp_path_factory.mktemp("comfyui"))
    except NotRun as reason:
        _not_run(reason)


@pytest.fixture(scope="session")
def start(comfy, tmp_path_factory):
    """`start(pack_name)` gives a server with this repository linked into custom_nodes under that name.

    `start(pack_name, front_end)` also has it serve the user interface in that folder.
    """
    servers = []

    def start(pack_name, front_end=None):
        base = tmp_path_factory.mktemp("server")
        for folder in ("custom_nodes", "models/text_encoders", "models/LLM", "input", "output", "user"):
            (base / folder).mkdir(parents=True)
        os.symlink(ROOT, base / "custom_nodes" / pack_name, target_is_directory=True)
        os.symlink(HERE / "packs" / "foreign_clip", base / "custom_nodes" / "foreign_clip", target_is_directory=True)
        write_models(base / "models")
        try:
            servers.append(Server(comfy, base, front_end))
        except NotRun as reason:
            _not_run(reason)
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def shared_server(start):
    return start(PACK)


@pytest.fixture
def server(shared_server):
    """The running server; what it printed during the test is shown when the test fails."""
    before = len(shared_server.log_tail(2**30))
    yield shared_server
    printed = shared_server.log_tail(2**30)[before:]
    print(printed[-6000:])
    assert shared_server.process.poll() is None, f"the server ended by itself:\n{shared_server.log_tail()}"


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """`library(nodes, **inputs)`: the plain library's Result for the text node of a workflow, some inputs replaced."""
    from fastqwen.engine import load
    from fastqwen.nodes.request import request_from_inputs

    folder = tmp_path_factory.mktemp("library")
    write_tiny(folder / "tiny")
    write_seeing(folder / "seeing")
    paths = {"tiny": folder / "tiny", "seeing": folder / "seeing", "demo": "demo"}
    engines = {}

    def library(nodes, **inputs):
        model = nodes["1"]["inputs"]["model"]
        if model not in engines:
            engines[model] = load(paths[model], device="cpu")
        request = request_from_inputs(nodes["2"]["inputs"] | inputs)
        return engines[model].reply(request.prompt, **request.arguments()).result()

    return library


def _not_run(reason):
    print(f"ComfyUI server test NOT RUN: {reason}")
    pytest.fail(f"ComfyUI server test NOT RUN: {reason}", pytrace=False)
