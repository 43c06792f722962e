"""Pictures before the vision tower: files of every kind, sizes, 8-bit levels, and what is refused."""

import struct
import zlib

import numpy
import pytest
import torch
from fastqwen.engine import FastQwenError
from fastqwen.model.image_rules import ImageRules
from fastqwen.model.images import as_pictures, fit, levels, read_image
from fastqwen.model.resample import by_integers, resize
from PIL import Image
from PIL import __version__ as PILLOW
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
    Image.fromarray(picture(40, 40, 2).numpy()).save(tmp_path / "whole.png")
    whole = (tmp_path / "whole.png").read_bytes()
    header = whole[12:16] + struct.pack(">II", 60000, 60000) + whole[24:29]  # promises 60000 x 60000 pixels
    bomb = whole[:12] + header + struct.pack(">I", zlib.crc32(header)) + whole[33:]
    for name, content, words in (
        ("text.png", b"hello", "is no image file"),
        ("empty.jpg", b"", "is no image file"),
        ("film.mp4", b"\0\0\0 ftypisom", "looks like a video"),
        ("cut.png", whole[:600], "cannot be decoded"),
        ("bomb.png", bomb, "more pixels than are safe"),
    ):
        (tmp_path / name).write_bytes(content)
        yield tmp_path / name, words
    yield tmp_path / "absent.png", "No image file"


def test_a_damaged_file_is_one_sentence(tmp_path):
    for file, words in damaged(tmp_path):
        with pytest.raises(FastQwenError, match=words) as error:
            read_image(file)
        assert "\n" not in str(error.value) and file.name in str(error.value)


def test_what_is_no_image_is_refused():
    for value in (7, torch.zeros(3, 4, 2), torch.zeros(1), torch.zeros(0, 2, 3), torch.zeros(2, 2, 3, dtype=torch.int)):
        with pytest.raises(FastQwenError, match="^An image"):
            as_pictures([value])
