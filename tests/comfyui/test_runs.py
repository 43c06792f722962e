"""What stays and what goes over several runs of a real server: shared models, memory, log lines, cached outputs."""

import json
import statistics

import pytest

from .material import workflow
from .test_server import messages, text_of

IDEA = {"idea": "a fox", "preset": "plain", "language": "as the idea", "length": "short", "variants": 1}
PICTURES = {"width": 24, "height": 16, "batch_size": 4, "color": 0}


def held(entry, node="9"):
    """What HeldForTest counted in a run."""
    assert entry["status"]["status_str"] == "success", entry["status"]
    return json.loads(entry["outputs"][node]["text"][0])


def two_nodes(seed, look=False):
    """Two loaders of one model and a text node on each; with `look` a count of what is held behind both."""
    nodes = workflow(seed=seed, max_length=1)
    nodes["3"] = {"class_type": "FastQwenLoader", "inputs": {"model": "tiny", "context": 0}}
    nodes["4"] = {"class_type": "FastQwenTextGenerate", "inputs": nodes["2"]["inputs"] | {"clip": ["3", 0]}}
    nodes["4"]["inputs"]["prompt"] = ["2", 0]  # so one runs behind the other
    if look:
        nodes["9"] = {"class_type": "HeldForTest", "inputs": {"after": ["4", 0]}}
    return nodes


def seconds(entry):
    """How long a run took, by its own messages."""
    start, end = (messages(entry, kind)[0]["timestamp"] for kind in ("execution_start", "execution_success"))
    return (end - start) / 1000


def test_two_nodes_hold_one_model_and_two_hundred_replies_neither_grow_nor_slow_nor_fill_the_log(server):
    assert held(server.run(two_nodes(1, look=True)))["engines"] == 1
    server.run(two_nodes(2))
    before = held(server.run(two_nodes(3, look=True)))
    lines = len(server.log_tail(2**30).splitlines())
    ids = [server.queue(two_nodes(seed)) for seed in range(1000, 1100)]
    server.wait(ids[-1])
    new = server.log_tail(2**30).splitlines()[lines:]
    assert held(server.run(two_nodes(4, look=True))) == before
    assert sum("FastQwen" in line for line in new) == 200
    took = [seconds(entry) for entry in map(server.get("/history").get, ids)]
    assert statistics.median(took[-20:]) < 3 * statistics.median(took[:20]), took


def test_unload_node_and_unload_models_give_the_model_up_and_the_next_run_is_right(server, library):
    nodes = workflow(seed=70)
    expected = library(nodes).text
    nodes["3"] = {"class_type": "FastQwenUnload", "inputs": {"value": ["2", 0]}}
    nodes["4"] = {"class_type": "PreviewAny", "inputs": {"source": ["3", 0]}}
    nodes["9"] = {"class_type": "HeldForTest", "inputs": {"after": ["3", 0]}}
    entry = server.run(nodes)
    assert held(entry)["engines"] == 0
    assert entry["outputs"]["4"]["text"] == [text_of(entry)] == [expected]
    assert text_of(server.run(workflow(seed=71))) == library(nodes, seed=71).text

    server.post("/free", {"unload_models": True, "free_memory": True})
    alone = {"9": {"class_type": "HeldForTest", "inputs": {}}}
    counts = [held(server.run(alone))["engines"]]
    if counts[-1]:  # the server looks at what was asked when it is idle, or else behind the next run
        counts.append(held(server.run(alone))["engines"])
    assert counts[-1] == 0
    assert text_of(server.run(workflow(seed=70))) == expected


@pytest.mark.parametrize("kind", ["FastQwenPromptEnhance", "FastQwenImageCaption"])
def test_every_text_node_is_cached_and_runs_again_with_another_seed(server, kind):
    nodes = workflow(model="seeing")
    nodes["3"] = {"class_type": "EmptyImage", "inputs": PICTURES}
    own = IDEA if kind == "FastQwenPromptEnhance" else {"style": "detailed", "prompt": "", "images": ["3", 0]}
    own = own | {"clip": ["1", 0], "seed": 1, "max_length": 6}
    nodes["2"] = {"class_type": kind, "inputs": own}
    nodes["4"] = {"class_type": "PreviewAny", "inputs": {"source": ["2", 0]}}
    entries = []
    for seed in (1, 1, 2):
        own["seed"] = seed
        entries.append(server.wait(server.queue(nodes, "cached")))
    first, again, other = entries
    assert "2" in messages(again, "execution_cached")[0]["nodes"]
    assert "2" not in messages(other, "execution_cached")[0]["nodes"]
    assert text_of(again) == text_of(first)
    assert len(first["outputs"]["4"]["text"]) == (1 if kind == "FastQwenPromptEnhance" else 4)
