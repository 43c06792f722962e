"""What a workflow may count on over several nodes and runs of a real server."""

import json

import pytest

from .material import to_api, workflow
from .server import ROOT
from .test_server import text_of

WISH = {"idea": "a fox in the snow", "preset": "plain", "language": "as the idea", "length": "short"}
DEMO = {"1": {"class_type": "FastQwenLoader", "inputs": {"model": "demo"}}}


def shown(entry, node):
    assert entry["status"]["status_str"] == "success", entry["status"]
    return entry["outputs"][node]["text"]


def replies_logged(server):
    return sum("FastQwen:" in line and "tokens/s" in line for line in server.log_tail(2**30).splitlines())


def test_two_equal_text_nodes_are_one_execution(server, library):
    nodes = workflow(seed=4711)
    nodes["5"] = json.loads(json.dumps(nodes["2"]))
    before = replies_logged(server)
    outputs = server.run(nodes)["outputs"]
    assert outputs.keys() <= {"2", "5"}  # servers before 2026 show the text on one of the two only
    assert [set(output["text"]) for output in outputs.values()] == [{library(nodes).text}] * len(outputs) != []
    assert replies_logged(server) == before + 1


def test_a_variant_is_what_a_single_run_with_its_seed_writes(server):
    def prompts(seed, variants):
        own = WISH | {"clip": ["1", 0], "seed": seed, "variants": variants, "max_length": 40}
        nodes = DEMO | {"2": {"class_type": "FastQwenPromptEnhance", "inputs": own}}
        nodes["3"] = {"class_type": "PreviewAny", "inputs": {"source": ["2", 0]}}
        return shown(server.run(nodes), "3")

    together = prompts(11, 3)
    assert together == [text for seed in (11, 12, 13) for text in prompts(seed, 1)]
    assert len(set(together)) > 1 and set(together) != {WISH["idea"]}


def test_a_prompt_that_begins_as_an_earlier_one_is_read_from_there_and_the_report_says_so(server, library):
    nodes = workflow(prompt="once upon a time " * 80, max_length=4)
    nodes["3"] = {"class_type": "PreviewAny", "inputs": {"source": ["2", 2]}}
    for seed in (81, 82, 83):
        nodes["2"]["inputs"]["seed"] = seed
        entry = server.run(nodes)
        assert text_of(entry) == library(nodes).text
    (report,) = shown(entry, "3")
    assert " read before, " in report and " s saved)" in report


@pytest.mark.parametrize(
    "options",
    [{"quantize": "w4a8", "kv": "int8"}, {"quantize": "int8", "kv": "bf16", "context": 300, "vram_budget": 0.1}],
)
def test_the_loaders_options_reach_the_engine(server, options):
    nodes = workflow(max_length=4)
    nodes["1"]["inputs"] |= options
    assert text_of(server.run(nodes))


def test_the_chat_example_writes_both_replies(server):
    path = ROOT / "example_workflows" / "FastQwen chat.json"
    nodes = to_api(json.loads(path.read_text(encoding="utf-8")), server.get("/object_info"))
    for node in nodes.values():
        if node["class_type"] == "FastQwenLoader":
            node["inputs"]["model"] = "demo"
        if node["class_type"] == "FastQwenTextGenerate":
            node["inputs"]["max_length"] = 12
    entry = server.run(nodes)
    texts = [shown(entry, number)[0] for number, node in nodes.items() if node["class_type"] == "FastQwenTextGenerate"]
    assert len(texts) == 2 and all(texts)
