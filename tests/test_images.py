"""Pictures and videos before the vision tower: files, sizes, 8-bit levels, budgets and what is refused."""

import json
import struct
import sys

import numpy
import pytest
import quantised
import tiny_vision
import torch
from fastqwen.cli import main
from fastqwen.engine import GREEDY, FastQwenError, load
from fastqwen.model.image_rules import ImageRules
from fastqwen.model.images import as_pictures, fit, levels, read_image
from fastqwen.model.resample import by_integers, resize
from fastqwen.model.video import Video, fit_video, read_video, sample
from fastqwen.weights.quantize import encode
from PIL import Image
from PIL import __version__ as PILLOW
from safetensors.torch import load_file, save_file
from tiny_vision import picture

RULES = ImageRules()
SIZES = [(32, 32), (64, 64), (10, 2000), (4000, 250), (250, 4000), (4100, 4100), (1500, 1500), (1536, 1536),
         (6000, 8000), (80, 16000), (1080, 1920), (336, 80), (1, 1)]  # fmt: skip


@pytest.mark.parametrize("height,width", SIZES)
def test_sizes_equal_the_processors(height, width):
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    bounds = {"factor": 32, "min_pixels": RULES.min_pixels, "max_pixels": RULES.max_pixels}
    assert fit(height, width, RULES) == smart_resize(height, width, **bounds)
    assert fit(height, width, RULES, 100_000) == smart_resize(height, width, **bounds | {"max_pixels": 100_000})


def test_a_picture_too_narrow_for_the_processor_is_refused():
    with pytest.raises(FastQwenError, match="2001x10 pixels is too narrow"):
        fit(10, 2001, RULES)


SHAPES = [((75, 91), (96, 64)), ((200, 10), (32, 160)), ((33, 40), (33, 96)), ((300, 90), (160, 64)),
          ((90, 90), (70, 80)), ((90, 90), (69, 80)), ((150, 151), (128, 160))]  # fmt: skip


@pytest.mark.parametrize("before,after", SHAPES)
def test_resizing_gives_pillows_bits_in_integers_too(before, after):
    """The form that a GPU runs, and the one of a CPU, on noise and on hard edges, whose overshoot is cut off."""
    if int(PILLOW.split(".")[0]) < 13:
        pytest.skip("earlier versions always begin horizontally")
    noise = picture(*before, 0)
    for image in (noise, (noise > 127).to(torch.uint8) * 255):
        wanted = Image.fromarray(image.numpy()).resize(after[::-1], Image.Resampling.BICUBIC)
        wanted = torch.from_numpy(numpy.array(wanted)).permute(2, 0, 1)
        batch = levels(image)[None]
        assert torch.equal(by_integers(batch, after)[0], wanted)
        assert torch.equal(resize(batch, after)[0], wanted)


def test_floats_give_the_levels_of_the_picture_they_were_made_from():
    image = picture(9, 7, 1)
    assert torch.equal(levels(image.float() / 255), levels(image))
    assert torch.equal(levels(torch.tensor([[[float("nan"), 1.7, -1.0]]])).flatten(), torch.tensor([0, 255, 0]))


def test_transparency_is_composited_and_grey_is_repeated():
    half = torch.tensor([[[255, 0, 0, 128]]], dtype=torch.uint8)
    assert levels(half).flatten().tolist() == [255, 127, 127]
    assert levels(half, (0, 0, 0)).flatten().tolist() == [128, 0, 0]
    assert levels(as_pictures(torch.full((2, 2), 0.2))[0]).unique().tolist() == [51]


FILES = {
    # name: (picture, what is saved with it, the first pixel as read)
    "rgb.png": (lambda: Image.new("RGB", (3, 2), (1, 2, 3)), {}, (1, 2, 3)),
    "alpha.png": (lambda: Image.new("RGBA", (3, 2), (255, 0, 0, 128)), {}, (255, 127, 127)),
    "clear_grey.png": (lambda: Image.new("LA", (3, 2), (0, 0)), {}, (255, 255, 255)),
    "clear_colour.gif": (lambda: Image.new("P", (3, 2), 0), {"transparency": 0}, (255, 255, 255)),
    "grey.jpg": (lambda: Image.new("L", (3, 2), 80), {}, (80, 80, 80)),
    "bits.png": (lambda: Image.new("1", (3, 2), 1), {}, (255, 255, 255)),
    "grey16.png": (lambda: Image.fromarray(numpy.full((2, 3), 32768, numpy.uint16)), {}, (128, 128, 128)),
    "float.tif": (lambda: Image.new("F", (3, 2), 0.2), {}, (51, 51, 51)),
    "print.jpg": (lambda: Image.new("CMYK", (3, 2), (0, 0, 0, 0)), {}, (255, 255, 255)),
    "moving.gif": (
        lambda: Image.new("RGB", (3, 2), (0, 0, 0)),
        {"save_all": True, "append_images": [Image.new("RGB", (3, 2), (255, 0, 0))]},
        (0, 0, 0),
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_every_kind_of_file_becomes_8_bit_colour(tmp_path, name):
    make, options, pixel = FILES[name]
    make().save(tmp_path / name, **options)
    found = read_image(tmp_path / name)
    assert found.shape == (2, 3, 3) and found.dtype is torch.uint8
    assert tuple(found[0, 0].tolist()) == pixel


def test_exif_orientation_is_honoured(tmp_path):
    turned, exif = Image.new("L", (3, 2), 0), Image.Exif()
    turned.putpixel((0, 1), 255)  # bottom left, which a quarter turn clockwise brings to the top left
    exif[0x0112] = 6
    turned.save(tmp_path / "phone.png", exif=exif)
    found = read_image(str(tmp_path / "phone.png"))
    assert found.shape == (3, 2, 3) and found[0, 0, 0] == 255


def damaged(tmp_path):
    """(file, what its error says)"""
    whole = tmp_path / "whole.png"
    Image.fromarray(picture(40, 40, 2).numpy()).save(whole)
    # A PNG header that promises 60000 x 60000 pixels.
    bomb = bytearray(whole.read_bytes())
    bomb[16:24] = struct.pack(">II", 60000, 60000)
    for name, content, words in (
        ("text.png", b"hello", "is no image file"),
        ("empty.jpg", b"", "is no image file"),
        ("film.mp4", b"\0\0\0 ftypisom", "looks like a video"),
        ("cut.png", whole.read_bytes()[:600], "cannot be decoded"),
        ("bomb.png", bytes(bomb), "more pixels than are safe"),
    ):
        (tmp_path / name).write_bytes(content)
        yield tmp_path / name, words
    yield tmp_path / "absent.png", "No image file"


def test_a_damaged_file_is_one_sentence(tmp_path, monkeypatch):
    import zlib

    for file, words in damaged(tmp_path):
        if file.name == "bomb.png":  # its checksum must be right to get as far as the size
            content = bytearray(file.read_bytes())
            content[29:33] = struct.pack(">I", zlib.crc32(bytes(content[12:29])))
            file.write_bytes(content)
        with pytest.raises(FastQwenError, match=words) as error:
            read_image(file)
        assert "\n" not in str(error.value) and file.name in str(error.value)


@pytest.mark.parametrize(
    "value", ["tensor", torch.zeros(3, 4, 2), torch.zeros(1), torch.zeros(2, 2, 3, dtype=torch.int)]
)
def test_what_is_no_image_is_refused(value):
    with pytest.raises(FastQwenError):
        as_pictures([7] if value == "tensor" else value)


@pytest.mark.parametrize("total,fps", [(7, 3.0), (1, 24.0), (3, 24.0), (240, 24.0), (10_000, 10.0), (96, 0.5)])
def test_frames_and_times_equal_the_processors(total, fps):
    from types import SimpleNamespace

    from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

    rule = SimpleNamespace(fps=2, min_frames=4, max_frames=768)
    wanted = Qwen3VLVideoProcessor.sample_frames(rule, SimpleNamespace(total_num_frames=total, fps=fps)).tolist()
    assert list(sample(total, fps)) == wanted
    video = Video(torch.zeros(len(wanted), 1, 1, 3), tuple(wanted), fps)
    assert list(video.seconds) == Qwen3VLProcessor._calculate_timestamps(None, wanted, fps)


@pytest.mark.parametrize("frames", [2, 5, 16, 768])
@pytest.mark.parametrize("height,width", [(1080, 1920), (24, 40), (512, 512), (9000, 60)])
def test_video_sizes_equal_the_processors(frames, height, width):
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize

    wanted = smart_resize(frames, height, width, 2, 32, RULES.video_min_pixels, RULES.video_max_pixels)
    assert fit_video(frames, height, width, RULES) == wanted


def test_a_video_that_is_none_is_refused():
    for frames, fps in ((torch.zeros(2, 2, 3), 8.0), (torch.zeros(2, 2, 2, 3), 0.0), ([1], 8.0)):
        with pytest.raises(FastQwenError):
            Video.of(frames, fps)


def test_a_video_file_without_pyav_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    (tmp_path / "a.mp4").write_bytes(b"x")
    with pytest.raises(FastQwenError, match="fastqwen\\[video\\]"):
        read_video(tmp_path / "a.mp4")


def test_a_video_file_is_sampled_and_reduced_as_it_is_read(tmp_path):
    av = pytest.importorskip("av")
    path = tmp_path / "clip.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=8)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for index in range(24):  # three seconds from red to blue, black on the right
            levels_ = numpy.zeros((64, 96, 3), numpy.uint8)
            levels_[:, :48, 0 if index < 12 else 2] = 255
            container.mux(stream.encode(av.VideoFrame.from_ndarray(levels_, format="rgb24")))
        container.mux(stream.encode())
    video = read_video(path)
    assert video.indices == sample(24, 8.0) and video.fps == 8
    assert video.frames.shape[1:] == (*fit_video(6, 64, 96, RULES), 3)
    assert video.frames[0, 0, 0, 0] > 200 and video.frames[-1, 0, 0, 2] > 200
    assert video.frames[0, 0, -1].max() < 50
    # As a phone marks it: the matrix of the track's header turns the picture clockwise, so its left side is on top.
    matrices = ((1, 0, 0, 0, 1, 0, 0, 0), (0, 1, 0, -1, 0, 0, 0, 0))
    upright, turned = (struct.pack(">9i", *(value << 16 for value in matrix), 1 << 30) for matrix in matrices)
    content = path.read_bytes()
    track = content.index(b"tkhd")
    assert content.index(upright, track) - track < 100
    (tmp_path / "phone.mp4").write_bytes(content[:track] + content[track:].replace(upright, turned, 1))
    phone = read_video(tmp_path / "phone.mp4").frames[0]
    assert phone.shape[0] > phone.shape[1] and phone[0, -1, 0] > 200 and phone[-1, 0].max() < 50
    (tmp_path / "cut.mp4").write_bytes(path.read_bytes()[:300])
    with pytest.raises(FastQwenError, match="cannot be decoded"):
        read_video(tmp_path / "cut.mp4")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_vision.save_folder(tiny_vision.oracle(), tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def engine(folder):
    return load(folder, device="cpu")


def test_pictures_are_reduced_to_a_budget_the_largest_first(engine):
    small, large = picture(24, 24, 3), picture(100, 100, 4)
    count = lambda **options: engine.reply("x", images=[large, small], **options).media.tokens  # noqa: E731
    assert count() == 64 + 9  # 4096 pixels at most, by the checkpoint's own rule
    assert count(image_pixels=1000) == 9 + 9
    assert count(pixel_budget=2600) == 25 + 9
    assert count(pixel_budget=10) == 1 + 1
    note = engine.generate("x", images=[small, large], max_tokens=1).report.notes[0]
    assert note.startswith("Image 2 was reduced from 100x100 to 64x64")


def test_pictures_are_reduced_to_what_the_context_holds(folder):
    engine = load(folder, device="cpu", context=128)
    reply = engine.reply("x" * 30, images=[picture(100, 100, 4)] * 3, max_tokens=1000)
    assert len(reply.prompt_ids) + 128 // 4 <= 128 and reply.media.tokens >= 3
    with pytest.raises(FastQwenError, match="shorten it"):
        engine.reply("x" * 120, images=[picture(100, 100, 4)])


def test_a_batch_is_several_images_and_places_must_match(engine):
    batch = torch.stack([picture(16, 16, seed) for seed in range(3)]).float() / 255
    assert engine.reply("x", images=batch).media.images == 3
    assert engine.reply("", images=batch[:1]).media.tokens == 4
    with pytest.raises(FastQwenError, match="1 place for images and 3 were given"):
        engine.reply([{"role": "user", "content": [{"type": "image"}]}], images=batch)
    with pytest.raises(FastQwenError, match="1 place for images and 0 were given"):
        engine.reply([{"role": "user", "content": [{"type": "image"}]}])
    raw = engine.reply("a<|vision_start|><|image_pad|><|vision_end|>b", images=batch[0], template=False)
    assert len(raw.prompt_ids) == 2 + 2 + 4


def test_a_reply_ends_where_a_callback_says_so_between_images(engine):
    seen = []
    reply = engine.generate("x", images=[picture(16, 16, 1)] * 3, on_step=lambda p: seen.append(p) or p.done == 1)
    assert [(p.phase, p.done, p.total) for p in seen] == [("images", 0, 3), ("images", 1, 3)]
    assert reply.report.stop_reason == "interrupted" and not reply.token_ids


def test_the_tower_can_leave_the_device_and_come_back(folder, engine):
    options = {"images": [picture(16, 24, 1)], "settings": GREEDY, "max_tokens": 6}
    wanted = engine.generate("x", **options).token_ids
    engine.free()
    assert engine.generate("x", **options).token_ids == wanted
    assert load(folder, device="cpu", offload_vision=True).generate("x", **options).token_ids == wanted


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
