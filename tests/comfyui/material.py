"""Models and workflows for the server tests."""

import json

import tiny_vision

from ..tiny import oracle, save_folder, save_tokenizer
from .server import HERE

NOTES = ("Note", "MarkdownNote")
LIMITS = ("default", "min", "max", "forceInput", "dynamicPrompts", "options")


def write_models(models):
    """Fills a models folder.

    `tiny` is a folder with random weights of the right family, `seeing` one with a vision tower, and
    `foreign.safetensors` a text encoder of another family.
    """
    import torch
    from safetensors.torch import save_file

    write_tiny(models / "LLM" / "tiny")
    write_seeing(models / "LLM" / "seeing")
    prefix = "text_model.encoder.layers.0"
    tensors = {
        "text_model.embeddings.token_embedding.weight": torch.zeros(64, 8),
        f"{prefix}.self_attn.q_proj.weight": torch.zeros(8, 8),
        f"{prefix}.mlp.fc1.weight": torch.zeros(32, 8),
    }
    save_file(tensors, str(models / "text_encoders" / "foreign.safetensors"))


def write_tiny(folder):
    """A checkpoint that writes bytes at random and, at a low temperature, never stops by itself.

    Its stop tokens have logit 0, some e^27 times less likely at temperature 0.1 than the best of the others.
    """
    import torch

    model = oracle("untied", max_position_embeddings=2**18)
    with torch.no_grad():
        model.lm_head.weight[256:] = 0
    save_tokenizer(save_folder(model, folder))


def write_seeing(folder):
    """A checkpoint of random weights that takes pictures."""
    tiny_vision.save_folder(tiny_vision.oracle(max_position_embeddings=2**14), folder)


def saved(name):
    """A committed workflow file, decoded."""
    return json.loads((HERE / "workflows" / name).read_text())


def workflow(**inputs):
    """The saved workflow in API format, on the tiny model and with other inputs for the text node."""
    nodes = saved("first_release_api.json")
    nodes["1"]["inputs"]["model"] = inputs.pop("model", "tiny")
    nodes["2"]["inputs"].update(inputs)
    return nodes


def to_api(ui, object_info):
    """A workflow as the user interface saves it -> API format, the way the user interface does it.

    Widget values are stored by position alone, in the order of the node's inputs, so this shows whether an old file
    still means the same. A seed is followed by the value of its control-after-generate widget. Notes are no nodes of
    the server's.
    """
    origin = {link[0]: [str(link[1]), link[2]] for link in ui["links"]}
    nodes = {}
    for node in ui["nodes"]:
        if node["type"] in NOTES:
            continue
        inputs = {slot["name"]: origin[slot["link"]] for slot in node["inputs"] if slot["link"] is not None}
        values = list(node["widgets_values"])
        for name, (kind, options) in declared_inputs(object_info[node["type"]]):
            is_widget = kind in ("COMBO", "INT", "FLOAT", "STRING", "BOOLEAN")
            if not is_widget or options.get("forceInput") or not values:
                continue
            inputs.setdefault(name, values.pop(0))  # a link goes before the value that was typed
            if options.get("control_after_generate"):
                values.pop(0)
        assert values == [], f"{node['type']} left {values} over"
        nodes[str(node["id"])] = {"class_type": node["type"], "inputs": inputs}
    return nodes


def schema(object_info, node):
    """What a saved workflow depends on: ids of inputs in order with their types and limits, and outputs in order."""
    info = object_info[node]
    inputs = []
    for group in ("required", "optional"):
        for name, (kind, options) in declared_inputs(info, group):
            limits = {key: options[key] for key in LIMITS if key in options}
            if name in ("model", "preset"):  # lists that depend on what lies in the folders
                del limits["options"]
            inputs.append([name, kind, group, limits])
    outputs = [list(pair) for pair in zip(info["output_name"], info["output"], strict=True)]
    return {"inputs": inputs, "outputs": outputs, "display_name": info["display_name"], "category": info["category"]}


def declared_inputs(info, *groups):
    """Pairs of an input's name and its (type, options), required ones first, each in order."""
    for group in groups or ("required", "optional"):
        for name in info["input_order"].get(group, []):
            kind, *options = info["input"][group][name]
            if isinstance(kind, list):  # how older nodes declare a list of choices
                kind, options = "COMBO", [{"options": kind, **(options[0] if options else {})}]
            yield name, (kind, options[0] if options else {})
