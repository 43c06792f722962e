"""What a reply makes of the images it is given: budgets, places, interruptions, checkpoints without a tower."""

import json
from types import SimpleNamespace

import pytest
import quantised
import tiny_vision
import torch
from fastqwen.cli import main
from fastqwen.engine import GREEDY, FastQwenError, load
from fastqwen.engine.media import Media
from fastqwen.model.config import read_config
from fastqwen.model.convert import convert
from fastqwen.model.image_rules import ImageRules
from fastqwen.weights import Checkpoint
from fastqwen.weights.quantize import encode
from PIL import Image
from safetensors.torch import load_file, save_file
from tiny_vision import IDS, picture


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_vision.save_folder(tiny_vision.oracle(), tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def engine(folder):
    return load(folder, device="cpu")


def image_tokens(reply):
    return reply.prompt_ids.count(IDS["<|image_pad|>"])


def test_pictures_are_reduced_to_a_budget_the_largest_first(engine):
    small, large = picture(24, 24, 3), picture(100, 100, 4)
    for options, wanted in (
        ({}, 64 + 9),  # 4096 pixels at most, by the checkpoint's own rule
        ({"image_pixels": 1000}, 9 + 9),
        ({"pixel_budget": 2600}, 25 + 9),
        ({"pixel_budget": 10}, 1 + 1),
    ):
        assert image_tokens(engine.reply("x", images=[large, small], **options)) == wanted
    note = engine.generate("x", images=[small, large], max_tokens=1).report.notes[0]
    assert note.startswith("Image 2 was reduced from 100x100 to 64x64")


def test_a_huge_picture_is_resized_within_the_budget_and_its_tokens_are_reported(engine):
    huge = picture(1, 8000, 5).expand(6000, 8000, 3)
    report = engine.generate("x", images=[huge], max_tokens=1).report
    assert report.image_tokens == 6 * 9, "48 x 72 pixels of the 4096 that the checkpoint allows, tokens of 8 x 8"
    assert any("from 8000x6000 to 72x48" in note for note in report.notes)
    assert any("54 of images" in line for line in report.lines())


def test_pictures_are_reduced_to_what_the_context_holds(folder):
    engine = load(folder, device="cpu", context=128)
    reply = engine.reply("x" * 30, images=[picture(100, 100, 4)] * 3, max_tokens=1000)
    assert len(reply.prompt_ids) + 128 // 4 <= 128 and image_tokens(reply) >= 3
    with pytest.raises(FastQwenError, match="shorten it, or show less"):
        engine.reply("x" * 120, images=[picture(100, 100, 4)])


@pytest.mark.parametrize("count", [2, 5, 9])
@pytest.mark.parametrize("media", ["icons", "strips", "one frame", "three frames"])
def test_small_and_narrow_pictures_keep_a_budget_too(engine, media, count):
    """The released rule makes them larger than its bounds; tokens of this tower are 8 x 8 pixels, at least four."""
    kind = {"icons": picture(5, 7, 1), "strips": picture(4, 600, 2)}.get(media)
    clip = (torch.zeros(1 if media == "one frame" else 3, 20, 30, 3), 2.0)
    for tokens in (1, 3, 5, 7, 11):
        pairs = 2 if media == "three frames" else 1
        given = {"images": [kind] * count} if kind is not None else {"videos": [clip] * count}
        reply = engine.reply("x", pixel_budget=count * pairs * tokens * 64, **given)
        found = sum(reply.prompt_ids.count(IDS[name]) for name in ("<|image_pad|>", "<|video_pad|>"))
        assert count * pairs <= found <= count * pairs * tokens
        if kind is not None:
            assert image_tokens(engine.reply("x", images=[kind], image_pixels=tokens * 64)) <= tokens


def test_a_batch_is_several_images_and_places_must_match(engine):
    batch = torch.stack([picture(16, 16, seed) for seed in range(3)]).float() / 255
    assert engine.reply("x", images=batch).prompt_ids.count(IDS["<|vision_start|>"]) == 3
    assert image_tokens(engine.reply("", images=batch[:1])) == 4
    with pytest.raises(FastQwenError, match="1 place for images and 3 were given"):
        engine.reply([{"role": "user", "content": [{"type": "image"}]}], images=batch)
    with pytest.raises(FastQwenError, match="1 place for images and 0 were given"):
        engine.reply([{"role": "user", "content": [{"type": "image"}]}])
    raw = engine.reply("a<|vision_start|><|image_pad|><|vision_end|>b", images=batch[0], template=False)
    assert len(raw.prompt_ids) == 2 + 2 + 4


def test_frames_without_their_rate_and_arrays_of_another_library_are_refused_in_one_sentence(engine):
    with pytest.raises(FastQwenError, match="a tensor of frames and its fps"):
        engine.reply("x", videos=torch.zeros(4, 16, 16, 3))
    with pytest.raises(FastQwenError, match="not ndarray"):
        engine.reply("x", images=torch.zeros(16, 16, 3).numpy())


def test_what_is_transparent_shows_the_chosen_background(engine, tmp_path):
    clear = torch.zeros(16, 16, 4)
    Image.new("RGBA", (16, 16), (0, 0, 0, 0)).save(tmp_path / "clear.png")
    for given in (clear, clear[None], tmp_path / "clear.png"):
        for colour in ((255, 255, 255), (10, 200, 30)):
            options = {} if colour == (255, 255, 255) else {"image_background": colour}
            found = engine.reply("x", images=[given], **options).embed()
            solid = torch.tensor(colour, dtype=torch.uint8).expand(16, 16, 3)
            assert torch.equal(found.spans[0][1], engine.reply("x", images=[solid]).embed().spans[0][1])
    for colour in ((0, 0, 300), (0, 0), 5, "red"):
        with pytest.raises(FastQwenError, match="image_background"):
            engine.reply("x", images=[clear], image_background=colour)


def test_a_reply_ends_where_a_callback_says_so_between_images(engine):
    seen = []
    reply = engine.generate("x", images=[picture(16, 16, 1)] * 3, on_step=lambda p: seen.append(p) or p.done == 1)
    assert [(p.phase, p.done, p.total) for p in seen] == [("images", 0, 3), ("images", 1, 3)]
    assert reply.report.stop_reason == "interrupted" and not reply.token_ids


def test_a_picture_that_does_not_fit_the_memory_is_tried_without_what_replies_share(engine, monkeypatch):
    calls, embed = [], Media.embed

    def short_of_memory(media, on_done):
        calls.append(engine.memory.is_shared)
        if engine.memory.is_shared:
            raise torch.OutOfMemoryError("no memory")
        return embed(media, on_done)

    monkeypatch.setattr(Media, "embed", short_of_memory)
    monkeypatch.setattr(engine.memory, "_model", SimpleNamespace(release=lambda: None))
    assert engine.generate("x", images=[picture(16, 16, 1)], max_tokens=1).report.vision_seconds > 0
    assert calls == [True, False]


def test_the_tower_can_leave_the_device_and_come_back(folder, engine):
    options = {"images": [picture(16, 24, 1)], "settings": GREEDY, "max_tokens": 6}
    wanted = engine.generate("x", **options).token_ids
    engine.free()
    assert engine.generate("x", **options).token_ids == wanted
    assert load(folder, device="cpu", offload_vision=True).generate("x", **options).token_ids == wanted


@pytest.mark.parametrize("mtp", ["off", "auto"])
def test_a_prompt_that_was_read_before_is_known_by_its_pictures(folder, mtp):
    engine, plain = load(folder, device="cpu"), load(folder, device="cpu", prefix_cache_bytes=0)
    engine.trunk.chunk = plain.trunk.chunk = 16
    options = {"settings": GREEDY, "max_tokens": 6, "mtp": mtp}
    same, other = picture(40, 24, 1), picture(40, 24, 2)
    first, second = "what is it?", "what was it, then?"
    for prompt, shown, known in ((first, same, 0), (second, same, 16), (first, other, 0), (first, same, 48)):
        found = engine.generate(prompt, images=[shown], **options)
        assert found.token_ids == plain.generate(prompt, images=[shown], **options).token_ids
        assert found.report.cached_tokens == known


def test_a_checkpoint_without_a_usable_tower_says_so(folder, tmp_path):
    text = load(tiny_vision.save_folder(tiny_vision.oracle(), tmp_path / "text", tower=False), device="cpu")
    with pytest.raises(FastQwenError, match="no vision tower"):
        text.reply("x", images=[picture(16, 16, 1)])
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.visual.blocks.1.attn.proj.bias"]
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    broken = load(tmp_path, device="cpu")
    assert any("blocks.1.attn.proj.bias' is missing" in note for note in broken.notes)
    assert broken.generate("x", max_tokens=1).report.new_tokens == 1
    with pytest.raises(FastQwenError, match="blocks.1.attn.proj.bias' is missing"):
        broken.reply("x", images=[picture(16, 16, 1)])


def test_the_command_line_shows_pictures(folder, tmp_path, capsys):
    Image.fromarray(picture(16, 24, 1).numpy()).save(tmp_path / "a.png")
    call = ["generate", "--model", str(folder), "--device", "cpu", "--prompt", "x", "--max-tokens", "2", "--json"]
    assert main([*call, "--image", str(tmp_path / "a.png"), "--image", str(tmp_path / "a.png")]) == 0
    assert json.loads(capsys.readouterr().out)["report"]["image_tokens"] == 2 * 6
    assert main([*call, "--image", str(tmp_path / "none.png")]) == 2
    assert "No image file" in capsys.readouterr().err


def test_a_packed_vision_layer_is_decoded(folder, tmp_path):
    layer = "model.visual.blocks.0.mlp.linear_fc1"
    tensors = load_file(folder / "model.safetensors")
    packed = encode(tensors.pop(layer + ".weight"), "int8", rotated=False).tensors
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors |= {f"{layer}.{side}": tensor for side, tensor in packed.items()}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    weights = load(tmp_path, device="cpu").vision.tower()._weights
    found = weights["blocks.0.mlp.linear_fc1.weight"].double()
    assert (found - quantised.decode(packed)).abs().max() < 1e-7  # one rounding of float32 at magnitudes below 1


def rules_of(path):
    checkpoint = Checkpoint.open(path)
    return ImageRules.of(checkpoint, read_config(checkpoint)[0].vision)


def test_a_quantised_file_alone_in_a_folder_sees_pictures_as_its_source_does(folder, tmp_path):
    once, twice = (tmp_path / name / "one.safetensors" for name in ("once", "twice"))
    for before, after in ((folder, once), (once, twice)):
        after.parent.mkdir()
        convert(Checkpoint.open(before), after, "int8", keep=["*embed_tokens*"])  # plain, to be a source again
    assert rules_of(folder).max_pixels == tiny_vision.SIZE["longest_edge"] != ImageRules.max_pixels
    assert rules_of(once) == rules_of(twice) == rules_of(folder)
    for name in ("preprocessor_config", "video_preprocessor_config"):
        assert Checkpoint.open(twice).metadata[name] == (folder / f"{name}.json").read_text()


@pytest.mark.parametrize("key,value", [("image_std", "[0, 1, 1]"), ("image_mean", "[NaN, 0, 0]"), ("image_mean", "[]"),
                                       ("image_mean", f"[{'9' * 400}, 0, 0]")])  # fmt: skip
def test_a_preprocessor_config_by_which_no_picture_can_be_prepared_is_refused(folder, tmp_path, key, value):
    metadata = {"config": (folder / "config.json").read_text(), "preprocessor_config": f'{{"{key}": {value}}}'}
    save_file(load_file(folder / "model.safetensors"), tmp_path / "one.safetensors", metadata=metadata)
    with pytest.raises(FastQwenError, match=f"sets {key} to .*: three usable numbers"):
        rules_of(tmp_path / "one.safetensors")


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_damaged_preprocessor_config_in_a_header_is_told_in_one_sentence(folder, tmp_path, text):
    metadata = {"config": (folder / "config.json").read_text(), "preprocessor_config": text}
    save_file(load_file(folder / "model.safetensors"), tmp_path / "one.safetensors", metadata=metadata)
    with pytest.raises(FastQwenError, match="^The preprocessor_config in the header of .* is not"):
        rules_of(tmp_path / "one.safetensors")
