"""The real user interface in a browser: run with `pytest --comfyui wheel --chromium "$(.ci/browser)"` or other paths.

Needs the packages of requirements-browser.txt. The picture in docs/ is the one that the test leaves in its temporary
folder.
"""

import importlib.util
import json
import time
from pathlib import Path

import pytest

from .conftest import PACK
from .material import to_api
from .server import ROOT
from .test_pack import EXAMPLES

READY = "() => window.app?.graph && window.app.extensionManager"
NODE = "window.app.graph._nodes.find(node => node.type === 'FastQwenTextGenerate')"
FOR_THE_PICTURE = f"""() => {{
  const {{ graph, canvas }} = window.app, node = {NODE};
  node.setSize([node.size[0], node.size[1] + 110]);
  node.fastqwenBox.text.scrollTop = 0;
  canvas.ds.scale = 1;
  canvas.ds.offset[0] = 80 - Math.min(...graph._nodes.map(n => n.pos[0]));
  canvas.ds.offset[1] = 140 - Math.min(...graph._nodes.map(n => n.pos[1]));
  canvas.setDirty(true, true);
}}"""
SHOWN = f"""([text, report]) => {{
  const box = {NODE}.fastqwenBox;
  return box && box.text.value === text && box.status.textContent && report.includes(box.status.textContent);
}}"""
WRONG = "() => window.app.graph._nodes.filter(node => node.has_errors).map(node => node.type)"
QUEUED = "async () => (await window.app.graphToPrompt()).output"
NO_MESSAGE = "() => !document.body.innerText.includes('Job ')"
SECONDS = 120


@pytest.fixture(scope="module")
def page(request, start):
    """The user interface's page, with no message of its own in front."""
    chromium = request.config.getoption("chromium")
    if chromium is None:
        pytest.skip("needs --chromium PATH")
    playwright = pytest.importorskip("playwright.sync_api")
    package = importlib.util.find_spec("comfyui_frontend_package")
    if package is None:
        pytest.skip("needs comfyui-frontend-package")
    server = start(PACK, Path(package.submodule_search_locations[0], "static"))
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 970})
        page.set_default_timeout(SECONDS * 1000)
        page.errors = []
        page.on("pageerror", lambda error: page.errors.append(str(error)))
        page.goto(f"http://{server.address}", wait_until="domcontentloaded")
        page.wait_for_function(READY)
        page.wait_for_timeout(3000)  # the templates' window opens late
        page.keyboard.press("Escape")
        page.evaluate("() => window.app.extensionManager.setting.set('Comfy.Minimap.Visible', false)")
        page.server = server
        yield page
        browser.close()
    server.stop()


def texts_on_node(page):
    """What the node's box shows as its text and its status line, and whether the box is in sight."""
    return page.evaluate(f"""() => {{
      const box = {NODE}.fastqwenBox, place = box?.text.getBoundingClientRect();
      return box ? [box.text.value, box.status.textContent, place.width > 100 && place.height > 30] : ['', '', false];
    }}""")


def finished(page, count):
    """The history's entries, oldest first, once there are so many."""
    deadline = time.monotonic() + SECONDS
    while len(entries := list(page.server.get("/history").values())) < count and time.monotonic() < deadline:
        page.wait_for_timeout(100)
    return entries


def test_a_workflow_is_opened_queued_and_its_text_seen_while_written_and_after_a_cached_run(page, tmp_path):
    example = json.loads((ROOT / "example_workflows" / "FastQwen text.json").read_text(encoding="utf-8"))
    page.evaluate("workflow => window.app.loadGraphData(workflow)", example)
    page.wait_for_function(f"() => {NODE}")
    assert page.evaluate(WRONG) == []
    page.evaluate("() => window.app.queuePrompt(0)")
    page.wait_for_function(f"() => {NODE}.fastqwenBox?.answer.length > 20")
    part, status, _ = texts_on_node(page)
    (entry,) = finished(page, 1)
    (node,) = (place for place, output in entry["outputs"].items() if "report" in output)
    (text,), (report,) = entry["outputs"][node]["text"], entry["outputs"][node]["report"]
    assert text.startswith(part.strip()) and len(part) < len(text) and "tokens" in status
    page.wait_for_function(SHOWN, arg=[text, report])
    assert texts_on_node(page)[2], "out of sight"
    page.evaluate(FOR_THE_PICTURE)
    page.wait_for_function(NO_MESSAGE)
    page.wait_for_timeout(500)
    picture = tmp_path / "comfyui.png"
    page.screenshot(path=picture)
    assert picture.stat().st_size < 200_000

    page.evaluate("workflow => window.app.loadGraphData(workflow)", example)
    page.wait_for_function(f"() => {NODE} && !{NODE}.fastqwenBox")
    page.evaluate("() => window.app.queuePrompt(0)")
    page.wait_for_function(SHOWN, arg=[text, report])
    messages = finished(page, 2)[-1]["status"]["messages"]
    assert any(node in data["nodes"] for name, data in messages if name == "execution_cached")
    assert page.errors == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_opens_and_would_be_queued_as_it_was_saved(page, path):
    example = json.loads(path.read_text(encoding="utf-8"))
    page.evaluate("workflow => window.app.loadGraphData(workflow)", example)
    page.wait_for_function(f"() => window.app.graph._nodes.length === {len(example['nodes'])}")
    assert set(page.evaluate(WRONG)) <= {"CheckpointLoaderSimple"}, "its file is the user's"
    queued = page.evaluate(QUEUED)
    assert {number: {key: node[key] for key in ("class_type", "inputs")} for number, node in queued.items()} == to_api(
        example, page.server.get("/object_info")
    )
