"""What a real server serves of the pack beside its nodes, and nodes together with ComfyUI's own."""

import json
import re

import pytest
import torch
from PIL import Image

from .material import NOTES, declared_inputs, to_api, workflow
from .server import ROOT, Refused
from .test_server import NODES, error_of, text_of

EXAMPLES = sorted((ROOT / "example_workflows").glob("*.json"))


def test_the_extension_help_pages_names_and_examples_are_served(server):
    (script,) = [path for path in server.get("/extensions") if "FastQwen" in path]
    assert 'name: "fastqwen.text"' in server.text(script)
    for node in NODES:
        assert server.text(f"/extensions/ComfyUI-FastQwen/docs/{node}.md").startswith("# ")
    assert set(server.get("/workflow_templates")["ComfyUI-FastQwen"]) == {path.stem for path in EXAMPLES}


@pytest.mark.parametrize("language,file", [("en", ".md"), ("zh", "/zh.md")])
def test_help_pages_are_served_and_name_every_input_as_the_node_does(server, language, file):
    for node, names in server.get("/i18n")[language]["nodeDefs"].items():
        page = server.text(f"/extensions/ComfyUI-FastQwen/docs/{node}{file}")
        assert page.startswith(f"# {names['display_name']}\n")
        slots = [slot["name"] for part in ("inputs", "outputs") for slot in names[part].values()]
        assert set(slots) - set(re.findall(r"\*\*(.+?)\*\*", page)) <= {"clip"}, node


def test_names_and_tooltips_are_complete_in_both_languages(server):
    served, info = server.get("/i18n"), server.get("/object_info")
    english, chinese = (served[language]["nodeDefs"] for language in ("en", "zh"))
    for node in NODES:
        declared = {
            name: {"name": name, "tooltip": options["tooltip"]} for name, (_, options) in declared_inputs(info[node])
        }
        outputs = zip(info[node]["output_name"], info[node]["output_tooltips"], strict=True)
        assert english[node] == {
            "display_name": info[node]["display_name"],
            "description": info[node]["description"],
            "inputs": declared,
            "outputs": {str(slot): {"name": name, "tooltip": tip} for slot, (name, tip) in enumerate(outputs)},
        }
        assert {part: chinese[node][part].keys() for part in ("inputs", "outputs")} == {
            part: english[node][part].keys() for part in ("inputs", "outputs")
        }
        assert re.search("[\u4e00-\u9fff]", chinese[node]["description"])


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_fits_the_servers_nodes(server, path):
    ui, info = json.loads(path.read_text(encoding="utf-8")), server.get("/object_info")
    nodes = {node["id"]: node for node in ui["nodes"]}
    api = to_api(ui, info)
    for number, source, slot, target, place, kind in ui["links"]:
        output, entry = nodes[source]["outputs"][slot], nodes[target]["inputs"][place]
        assert info[nodes[source]["type"]]["output"][slot] == output["type"] == kind and number in output["links"]
        assert entry["link"] == number and ("*" in (entry["type"], kind) or entry["type"] == kind)
    for node in api.values():
        declared = dict(declared_inputs(info[node["class_type"]]))
        assert (
            info[node["class_type"]]["input_order"]["required"]
            == [name for name in declared if name in node["inputs"]][
                : len(info[node["class_type"]]["input_order"]["required"])
            ]
        )
        for name, value in node["inputs"].items():
            kind, options = declared[name]
            if isinstance(value, list):
                continue
            if kind == "COMBO":  # files of the user's cannot be on the list
                assert value in options["options"] or name in ("ckpt_name", "folder"), (name, value)
            elif kind in ("INT", "FLOAT"):
                assert options.get("min", value) <= value <= options.get("max", value), (name, value)
        origin = info[node["class_type"]]["python_module"]
        assert "ComfyUI-FastQwen" in origin or not origin.startswith("custom_nodes"), "needs another pack"
    assert all(node["widgets_values"][0] for node in nodes.values() if node["type"] in NOTES)
    assert path.with_suffix(".jpg").is_file(), "the template browser shows a picture for each"


def test_every_picture_of_a_batch_is_seen(server, library):
    nodes = workflow(model="seeing", max_length=8)
    nodes["2"]["inputs"]["images"] = ["3", 0]
    nodes["3"] = {"class_type": "EmptyImage", "inputs": {"width": 24, "height": 16, "batch_size": 4, "color": 0}}
    expected = library(nodes, images=torch.zeros(4, 16, 24, 3))
    entry = server.run(nodes)
    assert text_of(entry) == expected.text
    assert expected.report.image_tokens == 4 * 6, "pictures of 16 x 24, tokens of 8 x 8"
    assert f"prompt {expected.report.prompt_tokens} tokens" in entry["outputs"]["2"]["report"][0]


def test_a_loaded_image_is_captioned_and_an_image_batch_gives_a_list(server):
    Image.new("RGB", (24, 16), (200, 10, 10)).save(server.base / "input" / "one.png")
    nodes = {
        "1": {"class_type": "FastQwenLoader", "inputs": {"model": "seeing"}},
        "2": {"class_type": "LoadImage", "inputs": {"image": "one.png"}},
        "3": {
            "class_type": "FastQwenImageCaption",
            "inputs": {"clip": ["1", 0], "images": ["2", 0], "style": "short", "prompt": "", "seed": 1}
            | {"trigger": "ohwx", "max_length": 24},
        },
        "4": {"class_type": "PreviewAny", "inputs": {"source": ["3", 0]}},
    }
    entry = server.run(nodes)
    assert entry["status"]["status_str"] == "success", entry["status"]
    (text,) = entry["outputs"]["4"]["text"]
    assert text.startswith("ohwx, ") and entry["outputs"]["3"]["text"] == [text]
    nodes["2"] = {"class_type": "EmptyImage", "inputs": {"width": 24, "height": 16, "batch_size": 4, "color": 0}}
    entry = server.run(nodes)
    assert entry["outputs"]["3"]["report"][0].count("picture ") == 4
    texts = entry["outputs"]["3"]["text"][0].split("\n\n")
    assert len(texts) == 4 and len(set(texts)) == 1, "four equal pictures, one seed"


def test_a_caption_without_a_vision_tower_or_a_clip_is_refused_in_one_sentence(server):
    nodes = workflow(model="tiny")
    nodes["2"] = {"class_type": "FastQwenImageCaption", "inputs": {"images": ["3", 0], "clip": ["1", 0], "seed": 1}}
    nodes["2"]["inputs"] |= {"style": "short", "prompt": ""}
    nodes["3"] = {"class_type": "EmptyImage", "inputs": {"width": 24, "height": 16, "batch_size": 1, "color": 0}}
    assert "vision" in error_of(server.run(nodes))
    del nodes["2"]["inputs"]["clip"]
    with pytest.raises(Refused, match="required_input_missing"):
        server.queue(nodes)


def test_a_folder_of_pictures_becomes_a_data_set(server):
    folder = server.base / "input" / "dataset"
    folder.mkdir()
    for number in range(3):
        Image.new("RGB", (24, 16), (number * 90, 0, 0)).save(folder / f"{number}.png")
    (path,) = (path for path in EXAMPLES if "captions" in path.stem)
    nodes = to_api(json.loads(path.read_text(encoding="utf-8")), server.get("/object_info"))
    by_kind = {node["class_type"]: node["inputs"] for node in nodes.values()}
    by_kind["FastQwenLoader"]["model"] = "seeing"
    by_kind["FastQwenImageCaption"].update(max_length=24, trigger="ohwx", suffix=".")
    entry = server.run(nodes)
    assert entry["status"]["status_str"] == "success", entry["status"]
    saved = server.base / "output" / "captioned"
    texts, pictures = ({file.stem: file for file in saved.glob(f"*.{kind}")} for kind in ("txt", "png"))
    assert len(texts) == 3 and texts.keys() == pictures.keys()
    for file in texts.values():
        assert re.match(r"ohwx, .+\.$", file.read_text(encoding="utf-8"), re.DOTALL)


def test_a_users_preset_is_listed_used_and_after_an_edit_used_anew(server):
    folder = server.base / "user" / "fastqwen" / "presets"
    folder.mkdir(parents=True)
    wish = {"idea": "fox", "language": "as the idea", "length": "short", "variants": 1, "seed": 1, "max_length": 4}
    nodes = workflow()
    nodes["2"] = {"class_type": "FastQwenPromptEnhance", "inputs": {"clip": ["1", 0], "preset": "mine", **wish}}
    nodes["3"] = {"class_type": "PreviewAny", "inputs": {"source": ["2", 1]}}
    for negative in ("first", "second"):
        (folder / "mine.json").write_text(json.dumps({"instruction": "Go.", "negative": negative}))
        assert server.run(nodes)["outputs"]["3"]["text"] == [negative]
    info = server.get("/object_info/FastQwenPromptEnhance")["FastQwenPromptEnhance"]
    assert "mine" in info["input"]["required"]["preset"][1]["options"]
    (folder / "mine.json").write_text("{}")
    with pytest.raises(Refused) as refused:
        server.queue(nodes)
    assert "'mine.json' needs the key 'instruction'" in json.dumps(refused.value.body)


def test_a_bypassed_enhancer_does_not_load_the_model(server):
    idea = {"idea": "a fox", "preset": "Flux", "language": "as the idea", "length": "short", "variants": 3, "seed": 1}
    nodes = {
        "1": {"class_type": "FastQwenLoader", "inputs": {"model": "foreign.safetensors"}},
        "2": {"class_type": "FastQwenPromptEnhance", "inputs": {"clip": ["1", 0], "bypass": True, **idea}},
    }
    assert text_of(server.run(nodes)) == "a fox"


@pytest.mark.parametrize("kind", ["TextGenerate", "TextGenerateLTX2Prompt"])
@pytest.mark.parametrize("model", ["tiny", "seeing"])
def test_cores_text_nodes_run_on_our_loader(server, library, kind, model):
    if kind not in server.get("/object_info"):
        pytest.skip("this ComfyUI has no text generation node of its own (they came in February 2026)")
    nodes = workflow(model=model, max_length=16)
    values = nodes["2"]["inputs"]
    names = ("temperature", "top_k", "top_p", "min_p", "seed", "repetition_penalty")
    core = {f"sampling_mode.{name}": values[name] for name in names}
    core |= {"clip": ["1", 0], "prompt": values["prompt"], "max_length": 16, "sampling_mode": "on"}
    nodes["2"] = {"class_type": kind, "inputs": core}
    nodes["3"] = {"class_type": "PreviewAny", "inputs": {"source": ["2", 0]}}
    pictures = None
    if model == "seeing":
        core["image"] = ["4", 0]
        nodes["4"] = {"class_type": "EmptyImage", "inputs": {"width": 24, "height": 16, "batch_size": 2, "color": 0}}
        pictures = torch.zeros(2, 16, 24, 3)
    entry = server.run(nodes)
    assert entry["status"]["status_str"] == "success", entry["status"]
    (text,) = entry["outputs"]["3"]["text"]
    assert text
    if kind == "TextGenerate":
        assert text.strip() == library(workflow(model=model, max_length=16), images=pictures).text
