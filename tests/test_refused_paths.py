"""What the system refuses (permission, names too long) is one sentence with its reason, never "broken" or "absent"."""

import builtins
import io
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from fastqwen.engine.caption_files import Lines, plan
from fastqwen.model.chat import ChatTemplate
from fastqwen.model.images import read_image
from fastqwen.model.tokenizer import load_tokenizer
from fastqwen.model.tokenizer_sources import from_vocab_and_merges
from fastqwen.model.video import read_video
from fastqwen.weights import Checkpoint, FastQwenError, read_json
from fastqwen.weights.files import exists, expanded, is_file, is_folder
from fastqwen.weights.writer import CheckpointWriter

READERS = {
    "checkpoint": Checkpoint.open,
    "json": read_json,
    "tokenizer": lambda path: load_tokenizer(path, explicit=path),
    "tokenizer beside": load_tokenizer,
    "image": read_image,
    "video": read_video,
    "images": lambda path: plan([path]),
    "lines": Lines,
    "writer": lambda path: CheckpointWriter(path, []),
}


@pytest.fixture
def closed(tmp_path, monkeypatch):
    """A folder that may not be searched and, in it, a file; by hand, for root may do everything."""
    folder = tmp_path / "closed"
    folder.mkdir()
    (folder / "a.safetensors").write_bytes(b"")
    stat, opened = os.stat, builtins.open

    def refuse(path):
        if str(folder) + os.sep in str(path):
            raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", lambda self, **options: (refuse(self), stat(self, **options))[1])
    for module in (builtins, io):  # pathlib has the latter
        monkeypatch.setattr(module, "open", lambda path, *rest, **more: (refuse(path), opened(path, *rest, **more))[1])
    return folder


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_file_in_a_closed_folder_is_refused_with_the_reason(closed, reader):
    with pytest.raises(FastQwenError) as refused:
        reader(closed / "a.safetensors")
    text = str(refused.value)
    assert "closed/a.safetensors" in text.replace(os.sep, "/") and "(Permission denied)" in text
    assert "again" not in text and "\n" not in text


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_name_that_is_too_long_is_refused_and_shown_in_part(tmp_path, reader):
    with pytest.raises(FastQwenError, match="File name too long") as refused:
        reader(tmp_path / ("a" * 300 + ".safetensors"))
    assert len(str(refused.value)) < 350


def test_a_file_that_may_not_be_opened_is_not_called_broken(tmp_path, monkeypatch):
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "a.png").write_bytes(b"")
    (tmp_path / "chat_template.jinja").write_bytes(b"")
    opened = builtins.open

    def refuse(path, *rest, **more):
        if str(tmp_path) in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *rest, **more)

    monkeypatch.setattr(builtins, "open", refuse)
    monkeypatch.setattr(Path, "read_text", refuse)
    for reader in (
        Checkpoint.open,
        lambda path: read_image(path / "a.png"),
        lambda path: ChatTemplate.load(path, SimpleNamespace(folder=None)),
    ):
        with pytest.raises(FastQwenError, match=r"cannot be opened \(Permission denied\): give yourself the right"):
            reader(tmp_path)


def test_a_folder_that_may_not_be_listed_does_not_count_as_empty(tmp_path, monkeypatch):
    def refuse(self):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(FastQwenError, match="Permission denied"):
        Checkpoint.open(tmp_path)


def test_a_folder_in_a_files_place_is_called_a_folder(tmp_path):
    (tmp_path / "model.safetensors").mkdir()
    (tmp_path / "config.json").mkdir()
    for reader in (lambda: Checkpoint.open(tmp_path), lambda: read_json(tmp_path / "config.json")):
        with pytest.raises(FastQwenError, match=r"Is a directory|Permission denied"):  # the latter on Windows
            reader()


def test_merges_that_vanish_are_told_as_that(tmp_path):
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    (tmp_path / "tokenizer_config.json").write_text('{"pretokenize_regex": "."}')
    with pytest.raises(FastQwenError, match=r"merges.txt' cannot be opened \(No such file or directory\)"):
        from_vocab_and_merges(tmp_path)


def test_links_to_nowhere_loops_and_paths_below_a_file_are_absent_not_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "nowhere").symlink_to(tmp_path / "absent")
    for name in ("loop", "nowhere", "file/below", "absent", "zero\0byte"):
        path = tmp_path / name
        assert not exists(path) and not is_file(path) and not is_folder(path)
    assert exists(tmp_path) and is_folder(tmp_path) and is_file(tmp_path / "file") and not is_file(tmp_path)


def test_a_name_that_begins_with_a_tilde_is_a_name_where_no_such_home_is(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert expanded("~/x") == tmp_path / "x" and expanded("~no such user.png") == Path("~no such user.png")


def test_a_checkpoint_whose_path_is_not_utf8_is_not_called_broken(tmp_path):
    with pytest.raises(FastQwenError, match="its path is not UTF-8"):
        Checkpoint(tmp_path, [tmp_path / "a\udcff.safetensors"])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="a system without named pipes")
@pytest.mark.parametrize("reader", [r for name, r in READERS.items() if name not in ("tokenizer beside", "writer")])
def test_a_pipe_is_refused_instead_of_waited_for(tmp_path, reader):
    os.mkfifo(tmp_path / "a.safetensors")
    with pytest.raises(FastQwenError, match="a.safetensors"):
        reader(tmp_path / "a.safetensors")
