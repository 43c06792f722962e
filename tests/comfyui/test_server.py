"""The nodes in a real ComfyUI server: run with `pytest --comfyui wheel` or `pytest --comfyui PATH`."""

import time

import pytest

from .material import declared_inputs, saved, schema, to_api, workflow
from .server import Events, Refused

NODES = ("FastQwenLoader", "FastQwenTextGenerate", "FastQwenPromptEnhance", "FastQwenImageCaption", "FastQwenUnload")
LONG = dict(max_length=32768, temperature=0.1, repetition_penalty=1.0)


def text_of(entry):
    """The text that a finished run left in the history."""
    assert entry["status"]["status_str"] == "success", entry["status"]
    (text,) = entry["outputs"]["2"]["text"]
    return text


def messages(entry, kind):
    return [data for name, data in entry["status"]["messages"] if name == kind]


def error_of(entry):
    """The message, in one line, of a run that failed."""
    assert entry["status"]["status_str"] == "error", entry["status"]
    message = messages(entry, "execution_error")[0]["exception_message"].strip()
    assert message and "\n" not in message
    return message


def test_the_nodes_are_registered_without_a_warning(server):
    info = server.get("/object_info")
    assert set(NODES) == {name for name in info if name.startswith("FastQwen")}
    for node in NODES:
        assert info[node]["python_module"] == "custom_nodes.ComfyUI-FastQwen"
        assert info[node]["category"] == "text/FastQwen"
        assert info[node].get("search_aliases", True)  # unknown to servers before 2026
    starting = server.log_tail(2**30).partition("To see the GUI")[0]  # later tests provoke errors on purpose
    lines = [line for line in starting.splitlines() if "FastQwen" in line]
    assert not any(word in line.lower() for line in lines for word in ("failed", "error", "warning")), lines


def test_every_input_has_a_tooltip(server):
    info = server.get("/object_info")
    for node in NODES:
        assert info[node]["description"] and all(info[node]["output_tooltips"])
        for name, (_, options) in declared_inputs(info[node]):
            assert options.get("tooltip"), (node, name)


@pytest.mark.parametrize("record", ["schema.json", "0.1.0_schema.json"])
def test_ids_order_and_limits_are_those_of_earlier_releases(server, record):
    info = server.get("/object_info")
    expected = saved(record)
    for node, first in expected.items():
        now = schema(info, node)
        assert now["inputs"][: len(first["inputs"])] == first["inputs"], "inputs changed: new ones go last"
        assert all(group == "optional" for _, _, group, _ in now["inputs"][len(first["inputs"]) :])
        assert now["outputs"][: len(first["outputs"])] == first["outputs"]
        assert (now["display_name"], now["category"]) == (first["display_name"], first["category"])


def test_the_loader_lists_models_and_the_demo(server):
    declared = server.get("/object_info/FastQwenLoader")["FastQwenLoader"]["input"]["required"]["model"]
    assert declared[1]["options"] == ["foreign.safetensors", "seeing", "tiny", "demo"]


@pytest.mark.parametrize("model", ["tiny", "demo"])
def test_a_queued_workflow_writes_what_the_library_writes(server, library, model):
    nodes = workflow(model=model)
    assert text_of(server.run(nodes)) == library(nodes).text != ""


def test_sampling_off_is_greedy_without_penalties(server, library):
    nodes = workflow(sampling_mode="off", repetition_penalty=0.0, seed=3)
    expected = library(nodes).text
    assert text_of(server.run(nodes)) == expected
    assert text_of(server.run(workflow(sampling_mode="off", seed=4, temperature=2.0))) == expected


def test_a_workflow_saved_by_the_user_interface_still_means_the_same(server):
    converted = to_api(saved("first_release_ui.json"), server.get("/object_info"))
    assert converted == saved("first_release_api.json")
    text_of(server.run(converted))


def test_a_workflow_of_version_0_1_0_still_means_the_same_and_runs(server):
    converted = to_api(saved("0.1.0_ui.json"), server.get("/object_info"))
    assert converted == saved("0.1.0_api.json")
    entry = server.wait(server.queue(converted, "0.1.0"))
    text, first, second = text_of(entry), *entry["outputs"]["4"]["text"][0].split("\n\n")
    assert text and all("Mia" in prompt and "red fox" in prompt for prompt in (first, second)) and first != second
    assert entry["outputs"]["5"]["text"][0].startswith("preset: Z-Image, short, English\nseed 9: 12 tokens")


def test_a_workflow_from_before_the_optional_inputs_runs(server, library):
    nodes = workflow()
    whole = library(nodes).text
    for name in ("presence_penalty", "thinking", "use_default_template", "mtp"):
        del nodes["2"]["inputs"][name]
    assert text_of(server.run(nodes)) == whole


def test_the_same_inputs_are_cached_and_another_seed_runs_again(server):
    # History keeps a cached node's text only for a run with a client id.
    first, again, other = (server.wait(server.queue(workflow(seed=seed), "cache")) for seed in (100, 100, 101))
    assert "2" not in messages(first, "execution_cached")[0]["nodes"]
    assert "2" in messages(again, "execution_cached")[0]["nodes"]
    assert "2" not in messages(other, "execution_cached")[0]["nodes"]
    assert text_of(again) == text_of(first) != text_of(other)


@pytest.mark.parametrize(
    "inputs,kind",
    [
        (dict(max_length=0), "value_smaller_than_min"),
        (dict(temperature=2.5), "value_bigger_than_max"),
        (dict(seed="many"), "invalid_input_type"),
        (dict(mtp="9"), "custom_validation_failed"),
        (dict(sampling_mode="maybe"), "custom_validation_failed"),
        (dict(model="gone.safetensors"), "custom_validation_failed"),
        (dict(model="../text_encoders/foreign.safetensors"), "custom_validation_failed"),
    ],
)
def test_a_wrong_value_is_refused_before_anything_runs(server, inputs, kind):
    with pytest.raises(Refused) as refused:
        server.queue(workflow(**inputs))
    assert refused.value.code == 400
    found = [error for node in refused.value.body["node_errors"].values() for error in node["errors"]]
    assert {error["type"] for error in found} == {kind}
    assert next(iter(inputs)) in found[0]["details"] + str(found[0]["extra_info"])


def test_a_value_that_only_the_engine_refuses_is_one_sentence(server):
    assert "repetition_penalty" in error_of(server.run(workflow(repetition_penalty=0.0)))


def test_a_file_of_another_family_is_named_on_the_loader(server):
    entry = server.run(workflow(model="foreign.safetensors"))
    message = error_of(entry)
    assert messages(entry, "execution_error")[0]["node_type"] == "FastQwenLoader"
    assert "foreign.safetensors" in message and "Qwen" in message


def test_a_file_that_was_cut_short_is_named_and_the_next_run_is_right(server, library):
    folder = server.base / "models" / "text_encoders"
    cut = folder / "cut.safetensors"
    cut.write_bytes((folder / "foreign.safetensors").read_bytes()[:-8])
    try:
        assert "cut.safetensors" in error_of(server.run(workflow(model=cut.name)))
    finally:
        cut.unlink()
    nodes = workflow(seed=12)
    assert text_of(server.run(nodes)) == library(nodes).text


def test_another_loaders_clip_is_named(server):
    nodes = workflow()
    nodes["1"] = {"class_type": "ForeignClipForTest", "inputs": {}}
    message = error_of(server.run(nodes))
    assert "comfy.sd.CLIP (Identity)" in message and "Load FastQwen" in message


def test_our_clip_in_a_text_encode_node_is_a_clear_error(server):
    nodes = workflow()
    nodes["2"] = {"class_type": "CLIPTextEncode", "inputs": {"clip": ["1", 0], "text": "a cat"}}
    nodes["3"] = {"class_type": "PreviewAny", "inputs": {"source": ["2", 0]}}
    assert "only writes text" in error_of(server.run(nodes))


@pytest.mark.parametrize(
    "prompt,mangled",
    [
        ("a (red:1.2) ((cat)) \\(x\\)", "a red cat (x)"),  # weights applied and taken out
        ("{red|blue} sea", "red sea"),  # a wildcard drawn
        ('{"a": "b"}', '"a": "b"'),
        ("https://a.b/c // note", "https://a.b/c"),  # a comment cut
        (" two  spaces\n\t\n", "two spaces"),  # trimmed
        ("a \U0001f431 cat", "a  cat"),
    ],
)
def test_the_prompt_reaches_the_model_character_for_character(server, library, prompt, mangled):
    nodes = workflow(prompt=prompt, seed=5, max_length=48, temperature=0.3)
    expected = library(nodes).text
    assert library(nodes, prompt=mangled).text != expected, "the comparison would show nothing"
    assert text_of(server.run(nodes)) == expected


def test_a_linked_system_prompt_and_the_thinking_output(server, library):
    nodes = workflow(thinking=True, seed=11)
    expected = library(nodes, system_prompt="Be brief.")
    nodes["2"]["inputs"]["system_prompt"] = ["3", 0]
    nodes["3"] = {"class_type": "PrimitiveStringMultiline", "inputs": {"value": "Be brief."}}
    nodes["4"] = {"class_type": "PreviewAny", "inputs": {"source": ["2", 1]}}
    entry = server.run(nodes)
    assert text_of(entry) == expected.text
    assert entry["outputs"]["4"]["text"] == [expected.thinking]


def test_progress_is_reported_in_order(server):
    with Events(server, "progress") as events:
        entry = server.wait(server.queue(workflow(seed=200), client_id="progress"))
        events.wait_for("executing", lambda data: data["node"] is None)
        shown = events.of_type("fastqwen.text")
        writing = [data["value"] for data in events.of_type("progress") if data["node"] == "2" and data["max"] == 24]
    assert writing and writing == sorted(writing)
    assert 0 < writing[-1] <= 24
    assert {data["node"] for data in shown} == {"2"} and shown[0]["reset"]
    live = "".join(data["answer"] for data in shown)
    assert live == text_of(entry) != ""
    assert "tokens/s" in entry["outputs"]["2"]["report"][0]


def interrupt(server, prompt_id):
    """Interrupts a running workflow; returns its history entry and the seconds until it was there."""
    asked = time.monotonic()
    server.post("/interrupt", {"prompt_id": prompt_id})
    entry = server.wait(prompt_id, seconds=30)
    return entry, time.monotonic() - asked


def check_stopped_and_next_run_right(server, library, prompt_id):
    entry, seconds = interrupt(server, prompt_id)
    assert messages(entry, "execution_interrupted")[0]["node_type"] == "FastQwenTextGenerate"
    assert "2" not in entry["outputs"]
    assert seconds < 1.0
    nodes = workflow(seed=int(time.monotonic() * 1000))  # a new seed: a cached reply would prove nothing
    assert text_of(server.run(nodes)) == library(nodes).text


def test_an_interrupt_in_decode_stops_within_a_second_and_the_next_run_is_right(server, library):
    with Events(server, "decode") as events:
        prompt_id = server.queue(workflow(seed=300, **LONG), client_id="decode")
        events.wait_for("progress", lambda data: data["max"] == LONG["max_length"])
        time.sleep(0.3)
        check_stopped_and_next_run_right(server, library, prompt_id)


def test_an_interrupt_in_a_long_prefill_stops_within_a_second_and_the_next_run_is_right(server, library):
    prompt = "The sea is wide and the night is long. " * 1500
    with Events(server, "prefill") as events:
        prompt_id = server.queue(workflow(prompt=prompt, seed=301), client_id="prefill")
        seen = events.wait_for("progress", lambda data: data["node"] == "2")
        assert seen["value"] < seen["max"] > len(prompt)
        check_stopped_and_next_run_right(server, library, prompt_id)
        assert max(data["value"] for data in events.of_type("progress")) < len(prompt), "the prompt was read to its end"


def test_the_pack_works_in_a_folder_with_an_odd_name(start, library):
    server = start("my fast-qwen 2.0")
    info = server.get("/object_info/FastQwenLoader")["FastQwenLoader"]
    assert info["python_module"] == "custom_nodes.my fast-qwen 2.0"
    nodes = workflow()
    assert text_of(server.run(nodes)) == library(nodes).text
    server.stop()
