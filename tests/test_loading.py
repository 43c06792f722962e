"""What loads, what is refused, and in which words."""

import json
import pickle

import pytest
import tiny
import torch
from fastqwen.engine import GREEDY, load
from fastqwen.model.config import read_config
from fastqwen.model.load import load_model
from fastqwen.weights import Checkpoint, FastQwenError
from safetensors.torch import load_file, save_file

CPU = torch.device("cpu")
IDS = [5, 6, 7, 8, 9]
EMBEDDING = "model.language_model.embed_tokens.weight"


@pytest.fixture(scope="module")
def oracle():
    return tiny.oracle("gqa4")


@pytest.fixture
def folder(oracle, tmp_path):
    return tiny.save_folder(oracle, tmp_path / "model", mtp=True)


def logits(path, dtype=torch.float32):
    trunk = load_model(Checkpoint.open(path), CPU, dtype).trunk
    with torch.inference_mode():
        return trunk.logits(trunk.prefill(trunk.embed(IDS), trunk.new_state(8)))


def rewrite(folder, change):
    """Applies `change` to the folder's tensors."""
    file = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    change(tensors)
    save_file(tensors, file)


def edit_config(folder, **text):
    config = json.loads((folder / "config.json").read_text())
    config["text_config"] |= text
    (folder / "config.json").write_text(json.dumps(config))


def refusal(path):
    with pytest.raises(FastQwenError) as caught:
        load_model(Checkpoint.open(path), CPU, torch.float32)
    message = str(caught.value)
    assert "\n" not in message
    return message


def shard(folder, target):
    """The same tensors in three shards with an index."""
    target.mkdir()
    tensors = load_file(folder / "model.safetensors")
    weight_map = {}
    for part in range(3):
        name = f"model-{part + 1:05}-of-00003.safetensors"
        mine = dict(list(tensors.items())[part::3])
        save_file(mine, target / name)
        weight_map |= dict.fromkeys(mine, name)
    (target / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (target / "config.json").write_text((folder / "config.json").read_text())
    return target


def test_shards_one_file_and_single_file_give_the_same_bits(folder, tmp_path):
    wanted = logits(folder)
    assert torch.equal(logits(shard(folder, tmp_path / "shards")), wanted)
    assert torch.equal(logits(folder / "model.safetensors"), wanted)


def test_text_only_names_load_like_released_names(oracle, folder, tmp_path):
    other = tmp_path / "text_only"
    other.mkdir()
    save_file(tiny.released_tensors(oracle, prefix="model."), other / "model.safetensors")
    (other / "config.json").write_text(json.dumps(oracle.config.to_dict()))
    assert torch.equal(logits(other), logits(folder))


def test_config_in_the_header_serves_a_file_without_a_config_beside_it(oracle, folder, tmp_path):
    alone = tmp_path / "alone"
    alone.mkdir()
    metadata = {"config": json.dumps(tiny.released_config(oracle))}
    save_file(load_file(folder / "model.safetensors"), alone / "m.safetensors", metadata=metadata)
    assert torch.equal(logits(alone / "m.safetensors"), logits(folder))


def test_single_file_without_config_takes_sizes_from_shapes_and_the_family_constants(tmp_path):
    model = tiny.oracle("untied", linear_key_head_dim=128, linear_value_head_dim=32, head_dim=32)
    file = tmp_path / "single.safetensors"
    save_file(tiny.released_tensors(model, mtp=True), file)
    config, _ = read_config(Checkpoint.open(file))
    assert (config.rotary.theta, config.rotary.dim, config.rotary.sections) == (1e7, 8, (11, 11, 10))
    assert (config.rms_eps, config.max_positions, config.deltanet.key_dim) == (1e-6, 262144, 128)
    assert (config.attention.heads, config.attention.kv_heads, config.attention.head_dim) == (2, 2, 32)
    assert (config.deltanet.key_heads, config.deltanet.value_heads, config.deltanet.value_dim) == (1, 3, 32)
    assert config.layer_kinds == ("linear_attention",) * 3 + ("full_attention",)
    assert (config.hidden_size, config.intermediate_size, config.vocab_size) == (64, 96, 320)
    assert (config.tied_head, config.has_mtp) == (False, True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_half_precision_files_compute_with_their_rounded_values(oracle, folder, tmp_path, dtype):
    half = tiny.save_folder(oracle, tmp_path / "half", mtp=True, dtype=dtype)
    rounded = tmp_path / "rounded"
    rounded.mkdir()
    save_file({k: v.float() for k, v in load_file(half / "model.safetensors").items()}, rounded / "model.safetensors")
    (rounded / "config.json").write_text((half / "config.json").read_text())
    assert torch.equal(logits(half), logits(rounded))


def test_gates_stored_as_fp32_in_a_bf16_file_keep_their_precision(oracle, tmp_path):
    folder = tiny.save_folder(oracle, tmp_path / "mixed", dtype=torch.bfloat16)
    exact = dict(oracle.state_dict())["model.layers.0.linear_attn.A_log"]
    rewrite(folder, lambda t: t.update({"model.language_model.layers.0.linear_attn.A_log": exact}))
    trunk = load_model(Checkpoint.open(folder), CPU, torch.bfloat16).trunk
    assert torch.equal(trunk.blocks[0].mixer.rate, -exact.exp())


def test_every_tensor_is_read_once_or_reported(folder):
    def add(tensors):
        tensors["model.visual.patch_embed.proj.weight"] = torch.zeros(8, 3, 2, 16, 16)
        tensors["model.visual.blocks.0.mlp.linear_fc1.weight"] = torch.zeros(16, 8)
        tensors["stray.weight"] = torch.zeros(2)

    rewrite(folder, add)
    notes = load(tiny.save_tokenizer(folder)).notes
    assert any("vision tower (2 tensors)" in note for note in notes)
    assert any("'stray.weight'" in note for note in notes)


def test_mtp_head_is_loaded_when_it_is_there(folder):
    assert load(tiny.save_tokenizer(folder)).mtp_head is not None


def test_declared_mtp_head_that_is_absent_is_said_and_changes_no_text(oracle, folder, tmp_path):
    engine = load(tiny.save_tokenizer(folder))
    without = tiny.save_tokenizer(tiny.save_folder(oracle, tmp_path / "without"))
    edit_config(without, mtp_num_hidden_layers=1)
    other = load(without)
    assert [note for note in other.notes if "mtp.fc.weight" in note]
    wanted = engine.generate("hi", settings=GREEDY, max_tokens=12)
    for mtp in ("auto", "off", "3"):
        found = other.generate("hi", settings=GREEDY, max_tokens=12, mtp=mtp)
        assert found.token_ids == wanted.token_ids
        assert found.report.mtp == "off"
    assert any("mtp=3" in note and "no MTP head" in note for note in found.report.notes)


def test_missing_tensor_is_refused_by_name_with_the_shape_expected(folder):
    name = "model.language_model.layers.1.mlp.down_proj.weight"
    rewrite(folder, lambda tensors: tensors.pop(name))
    message = refusal(folder)
    assert "layers.1.mlp.down_proj.weight" in message and "[64, 96]" in message


def test_wrong_shaped_tensor_is_refused_by_name_with_both_shapes(folder):
    name = "model.language_model.layers.3.self_attn.o_proj.weight"
    rewrite(folder, lambda tensors: tensors.update({name: torch.zeros(64, 64)}))
    message = refusal(folder)
    assert name in message and "[64, 64]" in message and "[64, 128]" in message


def test_missing_mtp_tensor_is_refused_by_name(folder):
    rewrite(folder, lambda tensors: tensors.pop("mtp.norm.weight"))
    assert "mtp.norm.weight" in refusal(folder)


def test_layer_without_a_mixer_is_refused(folder):
    rewrite(folder, lambda tensors: tensors.pop("model.language_model.layers.1.linear_attn.A_log"))
    assert "Layer 1 of 4" in refusal(folder)


FOREIGN = {
    "Gemma": ["model.layers.0.pre_feedforward_layernorm.weight", "model.layers.0.self_attn.q_proj.weight"],
    "diffusion model": ["model.diffusion_model.input_blocks.0.0.weight"],
    "CLIP": ["text_model.encoder.layers.0.self_attn.q_proj.weight"],
    "T5": ["encoder.block.0.layer.0.SelfAttention.q.weight"],
    "Qwen3 model": ["model.layers.0.self_attn.q_norm.weight", "model.layers.0.input_layernorm.weight"],
    "mixture-of-experts": [
        "model.layers.0.linear_attn.A_log",
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.mlp.experts.0.up_proj.weight",
    ],
    "LoRA": ["model.layers.0.self_attn.q_proj.lora_A.weight"],
    "VAE": ["decoder.up.0.block.0.conv1.weight"],
    "unknown kind": ["something.else"],
}


@pytest.mark.parametrize("kind", sorted(FOREIGN))
def test_file_of_another_architecture_is_refused_saying_what_it_looks_like(kind, tmp_path):
    save_file({name: torch.zeros(2, 2) for name in FOREIGN[kind]}, tmp_path / "x.safetensors")
    message = refusal(tmp_path / "x.safetensors")
    assert kind in message and "Qwen3.5" in message


@pytest.mark.parametrize("suffix", [".pt", ".bin", ".ckpt", ".pth"])
def test_pickle_files_are_refused_unread(suffix, tmp_path):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was loaded",))

    file = tmp_path / f"model{suffix}"
    file.write_bytes(pickle.dumps(Bomb()))
    assert "pickle" in refusal(file)
    assert "pickle" in refusal(tmp_path)  # the folder holds nothing else


def test_cut_file_is_refused_by_name(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert str(file) in refusal(folder)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not a tensor", b"\xff" * 64])
def test_file_that_is_no_safetensors_is_refused_by_name(content, tmp_path):
    file = tmp_path / "x.safetensors"
    file.write_bytes(content)
    assert str(file) in refusal(file)


def test_empty_safetensors_file_is_refused(tmp_path):
    save_file({}, tmp_path / "x.safetensors")
    assert "x.safetensors" in refusal(tmp_path / "x.safetensors")


def test_index_that_names_a_missing_shard_or_one_outside_the_folder_is_refused(folder, tmp_path):
    shards = shard(folder, tmp_path / "shards")
    (shards / "model-00002-of-00003.safetensors").unlink()
    assert "model-00002-of-00003.safetensors" in refusal(shards)
    index = shards / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../model/model.safetensors"}}))
    assert "../model/model.safetensors" in refusal(shards)
    index.write_text("{")
    assert str(index) in refusal(shards)


def test_two_files_without_an_index_are_refused(folder):
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    save_file({"x": torch.zeros(1)}, folder / "b.safetensors")
    assert "model.safetensors.index.json" in refusal(folder)


def test_the_same_weight_under_two_names_is_refused(folder):
    rewrite(folder, lambda tensors: tensors.update({"model.norm.weight": torch.zeros(64)}))
    assert "model.norm.weight" in refusal(folder)


@pytest.mark.parametrize(
    "entry,value",
    [
        ("num_hidden_layers", 5),
        ("hidden_size", 128),
        ("num_attention_heads", 8),
        ("linear_num_value_heads", 2),
        ("hidden_act", "gelu"),
        ("attn_output_gate", False),
        ("rms_norm_eps", "small"),
        ("rms_norm_eps", float("nan")),
        ("rms_norm_eps", 10**400),
        ("max_position_embeddings", -1),
        ("rope_parameters", {"rope_type": "yarn", "factor": 4.0}),
        ("rope_parameters", [1]),
        ("rope_parameters", {"mrope_section": [1, 2]}),
    ],
)
def test_config_that_contradicts_the_file_or_asks_for_more_is_refused_by_key(folder, entry, value):
    edit_config(folder, **{entry: value})
    message = refusal(folder)
    assert entry in message or "rope_type" in message or "mrope_section" in message


def test_config_of_another_model_type_is_refused_in_a_folder_and_passed_over_beside_a_file(folder):
    edit_config(folder)
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "llama"}
    (folder / "config.json").write_text(json.dumps(config))
    assert "llama" in refusal(folder)
    # Without its config the file takes the family's constants, and 128 does not divide this tiny model's heads.
    assert "two heads of 128" in refusal(folder / "model.safetensors")


def test_damaged_packed_layer_is_refused_by_layer_and_format(folder):
    marker = torch.tensor(list(json.dumps({"format": "asym_w4a8_int8"}).encode()), dtype=torch.uint8)
    layer = "model.language_model.layers.0.mlp.up_proj"
    rewrite(folder, lambda tensors: tensors.update({layer + ".comfy_quant": marker}))
    message = refusal(folder)
    assert layer in message and "asym_w4a8_int8" in message


def test_tensor_of_an_unread_dtype_is_refused_by_name(folder):
    name = "model.language_model.norm.weight"
    rewrite(folder, lambda tensors: tensors.update({name: torch.zeros(64, dtype=torch.float64)}))
    assert name in refusal(folder)


def test_tokenizer_with_more_tokens_than_the_table_has_rows_is_refused(tmp_path):
    small = tiny.save_folder(tiny.oracle("gqa4", vocab=260), tmp_path / "small")
    with pytest.raises(FastQwenError, match="267 tokens"):
        load(tiny.save_tokenizer(small))


def test_a_tokenizer_that_fills_little_of_the_table_is_told_of(tmp_path):
    """A shared folder may hold another model's, with the same control tokens and other words."""
    for vocab, told in ((320, 0), (2048, 1)):
        folder = tiny.save_tokenizer(tiny.save_folder(tiny.oracle("gqa4", vocab=vocab), tmp_path / str(vocab)))
        notes = [note for note in load(folder).notes if "if the text makes no sense" in note]
        assert len(notes) == told and all(f"has 267 tokens and the checkpoint's table {vocab}" in n for n in notes)


@pytest.mark.parametrize("text", ["[" * 99999, '{"hidden_size": ' + "1" * 5000 + "}"])
def test_json_that_python_refuses_to_read_is_one_sentence(folder, tmp_path, text):
    """Too deep, or a number of more digits than it converts, in a file and in a header."""
    save_file(load_file(folder / "model.safetensors"), tmp_path / "one.safetensors", metadata={"config": text})
    assert "in the header of" in refusal(tmp_path / "one.safetensors")
    (folder / "config.json").write_text(text)
    assert "config.json' cannot be read as JSON" in refusal(folder)


@pytest.mark.parametrize("number", ["99999999999", "\u00b2"])
def test_a_layer_far_behind_the_others_or_with_no_number_costs_no_time(folder, number):
    name = f"model.language_model.layers.{number}.linear_attn.A_log"
    rewrite(folder, lambda tensors: tensors.update({name: torch.zeros(4)}))
    if number.isascii():
        assert "Layer 4 of 100000000000" in refusal(folder)
    else:
        assert name in load(tiny.save_tokenizer(folder)).notes[0]


@pytest.mark.parametrize("device", ["nonsense", "cuda:99", "meta"])
def test_device_that_is_not_there_is_refused(folder, device):
    with pytest.raises(FastQwenError, match=device):
        load(tiny.save_tokenizer(folder), device=device)


@pytest.mark.parametrize("break_it", ["no tokenizer", "bad template", "small table"])
def test_tokenizer_and_template_are_refused_before_any_weight_is_read(folder, tmp_path, break_it):
    """Beside a large checkpoint a mistake must be told in a moment, not after minutes of reading."""
    tiny.save_tokenizer(folder)
    if break_it == "no tokenizer":
        (folder / "tokenizer.json").write_text("{")
    elif break_it == "bad template":
        (folder / "chat_template.jinja").write_text("{{ bad")
    else:
        rewrite(folder, lambda t: t.update({EMBEDDING: t[EMBEDDING][:260].clone()}))
        edit_config(folder, vocab_size=260)
    read = []
    with pytest.raises(FastQwenError, match="tokenizer.json|chat_template.jinja|267 tokens"):
        load(folder, on_load=lambda done, total: read.append(done))
    assert read == []
