"""ComfyUI's own text nodes on our handle: a stand-in makes the calls they make, a tiny model answers."""

import logging

import pytest
import torch
from fastqwen.engine import load
from fastqwen.nodes import core_clip
from fastqwen.nodes.clip import FastQwenClip, NotTextGeneration, shared_engine
from fastqwen.weights import FastQwenError

SAMPLING = dict(do_sample=True, temperature=0.7, top_k=20, top_p=0.9, min_p=0.0, repetition_penalty=1.1)


@pytest.fixture(scope="module")
def engine():
    return load("demo", device="cpu")


@pytest.fixture
def clip(engine):
    return FastQwenClip("demo", shared_engine("core demo", lambda key: engine))


@pytest.fixture
def asked(monkeypatch):
    """Every TextRequest that `generate` makes; nothing is written."""
    requests = []

    def generate_text(self, request, watch=None):
        requests.append(request)
        return type("Result", (), {"token_ids": (65, 66)})

    monkeypatch.setattr(FastQwenClip, "generate_text", generate_text)
    return requests


def core_node(clip, prompt, length=12, thinking=False, seed=3, **media):
    """What TextGenerate does with a clip."""
    tokens = clip.tokenize(prompt, skip_template=False, min_length=1, thinking=thinking, audio=None, **media)
    ids = clip.generate(tokens, max_length=length, presence_penalty=None, seed=seed, **SAMPLING)
    return ids, clip.decode(ids)


def test_a_core_text_node_writes_what_our_node_writes(clip, engine):
    from fastqwen.engine import SamplingSettings

    settings = SamplingSettings(temperature=0.7, top_k=20, top_p=0.9, repetition_penalty=1.1)
    expected = engine.reply("a fox", settings=settings, seed=3, max_tokens=12, mtp="off").result()
    ids, text = core_node(clip, "a fox", image=None, video=None)
    assert tuple(ids) == expected.token_ids and text.strip() == expected.text != ""


def test_thinking_ids_begin_with_the_opening_and_split_like_the_result(clip, engine):
    from fastqwen.engine import SamplingSettings

    settings = SamplingSettings(temperature=0.7, top_k=20, top_p=0.9, repetition_penalty=1.1)
    expected = engine.reply("a fox", thinking=True, settings=settings, seed=3, max_tokens=8).result()
    ids, text = core_node(clip, "a fox", length=8, thinking=True)
    assert ids[0] == engine.tokenizer.token_id("<think>") and text.startswith("<think>")
    thinking, _, answer = text.removeprefix("<think>").partition("</think>")
    assert (thinking.strip(), answer.strip()) == (expected.thinking, expected.text)


def test_reasoning_without_being_asked_is_dropped_from_core_ids(engine):
    opening, closing = (engine.tokenizer.token_id(name) for name in ("<think>", "</think>"))
    ids = [closing, 65, opening, 66, closing, 67]
    assert core_clip._core_ids(ids, core_clip.Prompt("p"), engine.tokenizer) == [65, 67]
    assert core_clip._core_ids(ids, core_clip.Prompt("p", template=False), engine.tokenizer) == ids


def test_missing_and_none_arguments_have_cores_meaning(clip, asked):
    clip.generate(clip.tokenize("p"))
    clip.generate(clip.tokenize("p"), do_sample=False, temperature=1.0, repetition_penalty=0.0, seed=None, mtp=True)
    clip.generate(clip.tokenize("p"), temperature=0.0, seed=5, presence_penalty=None, mtp=False)
    clip.generate(clip.tokenize("p"), presence_penalty=0.5, mtp=3)
    assert [request.mtp for request in asked] == ["auto", "auto", "off", "3"]
    assert [request.seed for request in asked] == [42, 42, 5, 42]
    assert [request.settings.is_greedy for request in asked] == [False, True, True, False]
    assert [request.settings.presence_penalty for request in asked] == [0.0, 0.0, 0.0, 0.5]


def test_pictures_come_as_one_batch_or_as_a_list_and_videos_as_frames(clip, asked):
    one, two = torch.zeros(2, 4, 4, 3), torch.ones(1, 8, 4, 3)
    for media in (dict(image=one), dict(images=[one, two]), dict(image=one, images=[]), dict(image=None, images=None)):
        clip.generate(clip.tokenize("p", **media))
    assert [len(request.images) for request in asked] == [2, 3, 2, 0]
    assert asked[1].images[2].shape == (8, 4, 3) and not asked[1].videos
    clip.generate(clip.tokenize("p", video=one))
    assert asked[-1].videos == ((one, 24.0),)


def test_raw_conversations_and_skip_template_follow_core(clip, asked):
    raw = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    for text, thinking in ((raw, True), ("plain " + raw, True), ("{x}", False)):
        clip.generate(clip.tokenize(text, skip_template=True, thinking=thinking))
    assert [request.template for request in asked] == [False, True, True]
    assert [request.prompt for request in asked] == [raw, "plain " + raw, "{x}"]
    assert [request.thinking for request in asked] == [False, True, False]


def test_the_ltx_prompt_nodes_turns_become_ours(clip, asked):
    assert "gemma4" not in clip.tokenizer.clip_name
    for media in ("\n<image_soft_token>\n", ""):
        text = f"<start_of_turn>system\nBe \n kind.<end_of_turn>\n<start_of_turn>user\n{media}\nUser Raw Input Prompt: "
        clip.generate(clip.tokenize(text + "a\nfox.<end_of_turn>\n<start_of_turn>model\n", system_prompt="First."))
    assert [request.prompt for request in asked] == ["User Raw Input Prompt: a\nfox."] * 2
    assert asked[0].system == "First.\n\nBe \n kind."


def test_decoding_leaves_out_control_tokens_and_half_a_character(clip, engine):
    tokenizer = engine.tokenizer
    ids = tokenizer.encode_plain("ab \N{GRINNING FACE}")
    assert clip.decode([*ids, tokenizer.stop_ids[0]]) == "ab \N{GRINNING FACE}"
    assert "<|" in clip.decode([tokenizer.stop_ids[0]], skip_special_tokens=False)
    cut = next(ids[:count] for count in range(len(ids), 0, -1) if tokenizer.decode_bytes(ids[:count])[-1] > 127)
    assert "\ufffd" not in clip.decode(cut[:-1] if cut == ids else cut)


def test_a_clone_shares_the_engine_and_takes_no_patches(clip, caplog):
    core_clip._warned.discard("patches")
    clone = clip.clone(disable_dynamic=True)
    assert clone.shared is clip.shared and clone.cond_stage_model.state_dict() == {}
    with caplog.at_level(logging.WARNING):
        assert clone.add_patches({"a": 1}, 1.0, 1.0) == clip.add_patches({"a": 1}, 0.5) == clip.add_patches({}) == []
    assert caplog.text.count("LoRAs do not change") == 1
    assert clip.is_dynamic() is False


@pytest.mark.parametrize("name", ["encode_from_tokens", "encode", "clip_layer", "get_sd", "load_sd", "anything"])
def test_everything_else_is_absent_with_a_sentence(clip, name):
    assert not hasattr(clip, name)
    with pytest.raises(NotTextGeneration, match=f"only writes text and has no '{name}': connect it to"):
        getattr(clip, name)


def test_tokens_of_another_model_are_refused(clip):
    with pytest.raises(FastQwenError, match="another model's tokenizer"):
        clip.generate({"l": []})
