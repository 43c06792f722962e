"""Videos before the vision tower: frames, times, sizes, files, and the tokens that times become."""

import struct
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import numpy
import pytest
import torch
from fastqwen.engine import FastQwenError
from fastqwen.engine.load import DEMOS
from fastqwen.model.image_rules import ImageRules
from fastqwen.model.media import Item, expand
from fastqwen.model.tokenizer import load_tokenizer
from fastqwen.model.video import Video, fit_video, read_video, sample
from fastqwen.model.vision import Grid

RULES = ImageRules()


@pytest.mark.parametrize("total,fps", [(7, 3.0), (1, 24.0), (3, 24.0), (240, 24.0), (10_000, 10.0), (96, 0.5)])
def test_frames_and_times_equal_the_processors(total, fps):
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


def test_a_list_of_frames_is_the_clip_of_them():
    clip = torch.arange(20, dtype=torch.uint8).view(20, 1, 1, 1).expand(-1, 2, 3, 3)
    for sample_fps in (2.0, None):
        found, wanted = Video.of(list(clip), 8.0, sample_fps), Video.of(clip, 8.0, sample_fps)
        assert torch.equal(found.frames, wanted.frames) and found.indices == wanted.indices
        assert found.seconds == wanted.seconds


def test_a_video_that_is_none_is_refused():
    sizes = [torch.zeros(2, 2, 3), torch.zeros(2, 3, 3)]
    wrong = [(torch.zeros(2, 2, 3), 8.0), (torch.zeros(2, 2, 2, 3), 0.0), ([1], 8.0), (sizes, 8.0), ([], 8.0)]
    for frames, fps in wrong:
        with pytest.raises(FastQwenError):
            Video.of(frames, fps)


def test_a_video_file_without_pyav_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    (tmp_path / "a.mp4").write_bytes(b"x")
    with pytest.raises(FastQwenError, match="`pip install av`"):
        read_video(tmp_path / "a.mp4")


def test_what_we_refuse_of_a_video_file_is_told_once(tmp_path, monkeypatch):
    """Our own errors are ValueErrors, as the decoder's are."""
    sound = SimpleNamespace(streams=SimpleNamespace(video=[]))
    av = SimpleNamespace(FFmpegError=type("FFmpegError", (Exception,), {}), open=lambda path: nullcontext(sound))
    monkeypatch.setitem(sys.modules, "av", av)
    (tmp_path / "song.mp4").write_bytes(b"")
    with pytest.raises(FastQwenError, match=r"^'[^']*song.mp4' has no video in it: give a file with pictures\.$"):
        read_video(tmp_path / "song.mp4")


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


def test_a_videos_times_are_tokens_of_the_text_before_it():
    """As if they had been written before the prompt became tokens: " <" is one in this vocabulary."""
    tokenizer = load_tokenizer(DEMOS["demo"])
    ids = tokenizer.encode_template("<|im_start|>user\nL\u00f6ok: <|vision_start|><|video_pad|><|vision_end|>x")
    frames = "<0.2 seconds><|vision_start|>{0}<|vision_end|><1.3 seconds><|vision_start|>{0}<|vision_end|>"
    wanted = f"<|im_start|>user\nL\u00f6ok: {frames.format('<|video_pad|>' * 6)}x"
    found, spans = expand(ids, [Item("video", Grid(2, 4, 6), (0.25, 1.3))], 2, tokenizer)
    assert found == tokenizer.encode_template(wanted)
    assert [(found[s.start - 1 : s.start + 7].count(found[s.start]), s.rows, s.columns) for s in spans] == [
        (6, 2, 3)
    ] * 2


@pytest.mark.parametrize("rates", [(0, 2.0), (24.0, "x"), ("24", 2.0), (float("nan"), 2.0), (True, 2.0)], ids=str)
def test_a_frame_rate_that_is_no_number_above_0_is_refused(rates):
    with pytest.raises(FastQwenError, match="a number above 0 is needed"):
        sample(10, *rates)
