"""`fastqwen caption` goes on behind whatever an earlier run left; a name or folder that it cannot use fails alone."""

import builtins
import errno
import os
import sys

import pytest
from fastqwen.engine import FastQwenError, caption_output
from fastqwen.engine.caption_files import Lines, TextFiles, plan, run
from folders import touch


def read(path):
    return "x"


def say(image):
    return f"caption of {image}"


def files_of(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


LINE = b'{"file_name": "x.png", "text": "mine"}\n'


@pytest.mark.parametrize("cut", [b'{"file_name": "\xc3', b'{"fi', b"{", b'{"file_name": "a.png", "text": "b\\u00'])
def test_lines_go_on_wherever_the_last_one_was_cut(tmp_path, cut):
    (tmp_path / "all.jsonl").write_bytes(LINE + cut)
    assert Lines(tmp_path / "all.jsonl").done == {"x.png"}
    assert (tmp_path / "all.jsonl").read_bytes() == LINE


def test_a_whole_line_without_its_end_is_kept(tmp_path):
    (tmp_path / "all.jsonl").write_bytes(LINE + b'{"text": "by hand", "file_name": "y.png"}')
    assert Lines(tmp_path / "all.jsonl").done == {"x.png", "y.png"}
    assert (tmp_path / "all.jsonl").read_bytes() == LINE + b'{"text": "by hand", "file_name": "y.png"}\n'


@pytest.mark.parametrize("other", [b'{"file_name": []}\n', b"[1]\n", b"words\n", b"words", b"3", b"[" * 9999 + b"\n"])
def test_a_file_of_something_else_is_refused_and_stays_as_it_is(tmp_path, other):
    (tmp_path / "all.jsonl").write_bytes(LINE + other)
    with pytest.raises(FastQwenError, match="Line 2 of .* is no caption: move the file away"):
        Lines(tmp_path / "all.jsonl")
    assert (tmp_path / "all.jsonl").read_bytes() == LINE + other


def test_a_name_with_other_line_ends_in_it_is_known_again(tmp_path):
    names = {f"a{end}b.png" for end in ("\u2028", "\u2029", "\x85")}
    file = tmp_path / "all.jsonl"
    planned = plan([touch(tmp_path, *names)], one_file=True)
    assert run(planned, Lines(file), read, say).written == len(names)
    assert Lines(file).done == names and run(planned, Lines(file), read, say).skipped == len(names)


def test_a_cut_line_in_a_file_that_may_not_be_written_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "all.jsonl").write_bytes(LINE + b"{")

    def refuse(*arguments):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(caption_output, "open", refuse, raising=False)
    with pytest.raises(FastQwenError, match=r"cut short and cannot be mended \(Permission denied\)"):
        Lines(tmp_path / "all.jsonl")


@pytest.mark.parametrize("before", [None, b"", LINE])
@pytest.mark.parametrize("meanwhile", [b"", LINE.replace(b"x", b"other")])
def test_a_line_that_a_full_disk_cut_is_taken_back(tmp_path, monkeypatch, before, meanwhile):
    touch(tmp_path, "a.png")
    file = tmp_path / "all.jsonl"
    if before is not None:
        file.write_bytes(before)

    class Full:
        """A file of a full disk, to which another run adds a line."""

        def __init__(self, path, mode):
            self.file = builtins.open(path, mode, buffering=0)  # noqa: SIM115 (closed in __exit__)

        def __enter__(self):
            return self

        def write(self, data):
            self.file.write(data[:9])
            self.file.write(meanwhile)
            raise OSError(errno.ENOSPC, "No space left on device")

        def __exit__(self, *_):
            self.file.close()

    def opened(path, mode):
        return Full(path, mode) if mode == "ab" else builtins.open(path, mode)

    monkeypatch.setattr(caption_output, "open", opened, raising=False)
    with pytest.raises(FastQwenError, match="No space left"):
        run(plan([tmp_path], one_file=True), Lines(file), read, say)
    if meanwhile:
        assert file.read_bytes().endswith(meanwhile), "what is not ours stays"
    else:
        assert (file.read_bytes() if file.exists() else None) == before


@pytest.mark.parametrize("held", [b"\x89PNG\r\n", b'{"words": 3}\n'])
def test_a_file_that_holds_no_captions_is_not_written_over_either(tmp_path, held):
    (tmp_path / "all.jsonl").write_bytes(held)
    with pytest.raises(FastQwenError, match="is no caption|is no text"):
        Lines(tmp_path / "all.jsonl", overwrite=True)
    assert (tmp_path / "all.jsonl").read_bytes() == held


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse names that are no UTF-8")
def test_a_name_that_is_not_utf8_fails_alone_in_lines_and_has_a_caption_file(tmp_path):
    touch(tmp_path, "a.png", os.fsdecode(b"b\xff.png"))
    file = tmp_path / "all.jsonl"
    done = run(plan([tmp_path], one_file=True), Lines(file), read, say)
    assert done.written == 1 and "is not UTF-8" in "".join(done.failed.values())
    assert run(plan([tmp_path]), TextFiles(), read, say).written == 2
    assert os.fsencode(tmp_path) + b"/b\xff.txt" in map(os.fsencode, tmp_path.iterdir())


def test_a_caption_that_no_file_can_hold_leaves_no_file_and_stops_nothing(tmp_path):
    touch(tmp_path, "a.png", "b.png")
    for files in (Lines(tmp_path / "all.jsonl"), TextFiles()):
        done = run(plan([tmp_path]), files, read, lambda image: "\udcff")
        assert done.written == 0 and len(done.failed) == 2
        assert all("half a character" in reason for reason in done.failed.values())
    assert files_of(tmp_path) == {"a.png", "b.png"}


def test_an_image_whose_caption_file_has_too_long_a_name_fails_alone(tmp_path):
    touch(tmp_path, "a.png", "b" * 251 + ".png")
    done = run(plan([tmp_path], ext="caption"), TextFiles(), read, say)
    assert done.written == 1 and "too long: rename the image" in "".join(done.failed.values())
    assert run(plan([tmp_path]), TextFiles(), read, say).written == 2, "255 bytes, as the image has"


def test_a_subfolder_that_cannot_be_read_is_listed_and_the_folder_itself_refused(tmp_path, monkeypatch):
    touch(tmp_path, "a.png", "closed/b.png", "open/c.png")
    scandir = os.scandir

    def refusing(path):
        if "closed" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    done = run(plan([tmp_path], recursive=True), TextFiles(), read, say)
    assert done.written == 2 and list(done.failed) == [str(tmp_path / "closed")]
    assert "cannot be read (Permission denied)" in done.failed[str(tmp_path / "closed")]
    with pytest.raises(FastQwenError, match=r"closed' cannot be opened \(Permission denied\)"):
        plan([tmp_path / "closed"])
    for name in ("a.png", "open/c.png"):
        (tmp_path / name).unlink()
    assert plan([tmp_path], recursive=True).refused, "not a folder without images: nobody knows"
