"""A ComfyUI server in this process, with this pack in it, driven as a browser does: HTTP, and a websocket that is read.

In this process, so that what a client cannot see (the allocator, ComfyUI's own accounts, the engine behind a node) can
be looked at while a workflow runs. ComfyUI's own main.py runs as it is started by a user, in the main thread. Nothing
here imports torch: ComfyUI sets up the allocator before that.
"""

import asyncio
import json
import os
import runpy
import socket
import sys
import threading
import time
import traceback
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACK = "ComfyUI-FastQwen"
CLIENT = "benchmark"
START_SECONDS, RUN_SECONDS = 240, 150


def serve(comfy: Path, base: Path, flags: list[str], drive: Callable[["Client"], int]):
    """Runs main.py of the folder `comfy` and, once it answers, `drive(client)` in a thread; then ends the process with
    what that returned.

    base   an empty folder: custom_nodes, models, input, output and user folders are made in it
    flags  for main.py, beside those that keep it to this machine
    """
    for folder in ("custom_nodes", "models/text_encoders", "models/LLM", "input", "output", "user", "no_front_end"):
        (base / folder).mkdir(parents=True)
    (base / "custom_nodes" / PACK).symlink_to(ROOT, target_is_directory=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    client = Client(f"127.0.0.1:{port}", base)

    def driven():
        code = 1
        try:
            client.connect()
            code = drive(client)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)  # the server's loop has no end of its own

    threading.Thread(target=driven, daemon=True).start()
    sys.argv = ["main.py", "--listen", "127.0.0.1", "--port", str(port), "--base-directory", str(base)]
    sys.argv += ["--front-end-root", str(base / "no_front_end"), "--disable-auto-launch", "--disable-api-nodes"]
    sys.argv += ["--database-url", "sqlite:///:memory:", *flags]
    sys.path.insert(0, str(comfy))
    os.chdir(comfy)
    runpy.run_path(str(comfy / "main.py"), run_name="__main__")


class Client:
    """The server's only browser. `base` is the server's base folder."""

    def __init__(self, address: str, base: Path):
        self.address, self.base = address, base
        self._messages: list[tuple[float, str, dict]] = []  # (time, type, data)
        self._news = threading.Condition()

    def connect(self):
        """Waits until the server answers and the websocket is open. Raises TimeoutError."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.get("/system_stats")
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise TimeoutError("the server does not answer") from None
                time.sleep(0.2)
        threading.Thread(target=lambda: asyncio.run(self._listen()), daemon=True).start()
        self.wait_for("status", lambda data: True, 0, 30)

    def get(self, path: str):
        """The decoded JSON answer to a GET."""
        return self._request(path, None)

    def post(self, path: str, body: dict):
        """The decoded JSON answer to a POST, None for an empty one. Raises RuntimeError with what was refused."""
        return self._request(path, json.dumps(body).encode())

    def _request(self, path, data):
        request = urllib.request.Request(f"http://{self.address}{path}", data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                raw = answer.read()
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"HTTP {error.code}: {error.read().decode()[:2000]}") from None
        return json.loads(raw) if raw else None

    @property
    def seen(self) -> int:
        """How many messages came so far; `wait_for` looks at those behind such a number."""
        return len(self._messages)

    def wait_for(self, kind: str, accept: Callable[[dict], bool], since: int, seconds: float = RUN_SECONDS):
        """(time it came, data) of the first message of a type that `accept` takes. Raises TimeoutError, or RuntimeError
        if a node failed meanwhile."""
        deadline = time.monotonic() + seconds
        with self._news:
            while True:
                for came, found, data in self._messages[since:]:
                    if found == kind and accept(data):
                        return came, data
                    if found == "execution_error":
                        raise RuntimeError(_failure(data))
                since = len(self._messages)
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"no {kind!r} message within {seconds} s")
                self._news.wait(left)

    def queue(self, nodes: dict) -> str:
        """The id of a queued workflow."""
        return self.post("/prompt", {"prompt": nodes, "client_id": CLIENT})["prompt_id"]

    def ended(self, prompt_id: str, since: int) -> float:
        """Waits until a workflow has ended in any way; when that was."""
        return self.wait_for(
            "executing", lambda data: data["node"] is None and data.get("prompt_id") == prompt_id, since
        )[0]

    def outcome(self, prompt_id: str) -> tuple[float, dict]:
        """(seconds, outputs) of an ended workflow, by the server's own messages. Raises RuntimeError if it failed."""
        entry = self.get(f"/history/{prompt_id}")[prompt_id]
        messages = dict(entry["status"]["messages"])
        if entry["status"]["status_str"] != "success":
            raise RuntimeError(_failure(messages.get("execution_error", entry["status"])))
        seconds = (messages["execution_success"]["timestamp"] - messages["execution_start"]["timestamp"]) / 1e3
        return seconds, entry["outputs"]

    def run(self, nodes: dict) -> tuple[float, dict]:
        """Queues a workflow and waits for its end; as `outcome`."""
        since = self.seen
        prompt_id = self.queue(nodes)
        self.ended(prompt_id, since)
        return self.outcome(prompt_id)

    async def _listen(self):
        import aiohttp  # comes with ComfyUI

        url = f"http://{self.address}/ws?clientId={CLIENT}"
        async with aiohttp.ClientSession() as session, session.ws_connect(url, max_msg_size=0) as socket:
            async for message in socket:
                if message.type is aiohttp.WSMsgType.TEXT:
                    body = json.loads(message.data)
                    with self._news:
                        self._messages.append((time.perf_counter(), body["type"], body["data"]))
                        self._news.notify_all()


def _failure(data):
    return f"{data.get('exception_type')}: {data.get('exception_message')}{''.join(data.get('traceback', ()))}"
