"""Writing a safetensors file tensor by tensor: the bytes, and that nothing but a whole file is ever left."""

import errno
import json
import os
import shutil

import pytest
import torch
from fastqwen.weights import FastQwenError
from fastqwen.weights.writer import DTYPE_NAMES, CheckpointWriter, TensorSpec
from safetensors import safe_open
from safetensors.torch import load_file

TENSORS = {
    "marker": torch.arange(53, dtype=torch.uint8),  # an odd size, so that what follows would not be aligned
    "norm": torch.randn(7, dtype=torch.float32).bfloat16(),
    "scale": torch.randn(5, 1),
    "codes": torch.randint(-128, 128, (5, 9), dtype=torch.int8),
    "s_rel": torch.rand(5, 3).to(torch.float8_e4m3fn),
    "half": torch.randn(3, 3).half(),
    "number": torch.tensor(3.5),
    "nothing": torch.zeros(0, 4),
    "double": torch.randn(2, dtype=torch.float64),
}


def specs(tensors):
    return [TensorSpec(name, DTYPE_NAMES[tensor.dtype], tuple(tensor.shape)) for name, tensor in tensors.items()]


def write(path, tensors=TENSORS, order=None, **options):
    with CheckpointWriter(path, specs(tensors), **options) as writer:
        for name in order or tensors:
            writer.write(name, tensors[name])
    return writer


def same(found, wanted):
    return found.dtype == wanted.dtype and torch.equal(
        found.reshape(-1).view(torch.uint8), wanted.reshape(-1).view(torch.uint8)
    )


@pytest.mark.parametrize("order", [sorted(TENSORS), sorted(TENSORS, reverse=True)], ids=["sorted", "reversed"])
def test_safetensors_reads_back_every_tensor_whatever_the_order_of_writing(tmp_path, order):
    path = tmp_path / "new.safetensors"
    writer = write(path, order=order, metadata={"format": "pt", "config": '{"a": "\u00e9"}'})
    found = load_file(path)
    assert found.keys() == TENSORS.keys()
    assert all(found[name].shape == tensor.shape and same(found[name], tensor) for name, tensor in TENSORS.items())
    with safe_open(path, "pt") as opened:
        assert opened.metadata() == {"format": "pt", "config": '{"a": "\u00e9"}'}
    assert writer.bytes == path.stat().st_size
    assert os.listdir(tmp_path) == ["new.safetensors"]


def test_every_tensor_is_aligned_to_its_own_size_and_the_header_to_eight(tmp_path):
    write(tmp_path / "new.safetensors")
    data = (tmp_path / "new.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert length % 8 == 0
    for name, entry in header.items():
        assert entry["data_offsets"][0] % TENSORS[name].element_size() == 0, name


def test_a_strided_tensor_is_written_as_its_values(tmp_path):
    tensors = {"turned": torch.arange(12.0).reshape(3, 4).T}
    write(tmp_path / "new.safetensors", tensors)
    assert torch.equal(load_file(tmp_path / "new.safetensors")["turned"], tensors["turned"])


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, SystemExit])
def test_an_interrupted_write_leaves_nothing_and_keeps_an_older_file(tmp_path, error):
    path = tmp_path / "new.safetensors"
    path.write_bytes(b"older")
    with pytest.raises(error), CheckpointWriter(path, specs(TENSORS), overwrite=True) as writer:
        writer.write("codes", TENSORS["codes"])
        raise error
    assert os.listdir(tmp_path) == ["new.safetensors"] and path.read_bytes() == b"older"


def test_a_forgotten_tensor_and_a_wrong_one_are_defects_and_leave_nothing(tmp_path):
    path = tmp_path / "new.safetensors"
    with pytest.raises(AssertionError, match="never written"):
        write(path, order=["codes", "norm"])
    with pytest.raises(AssertionError, match="'norm'"), CheckpointWriter(path, specs(TENSORS)) as writer:
        writer.write("norm", TENSORS["norm"].float())
    with pytest.raises(AssertionError, match="'norm'"):
        write(path, order=[*TENSORS, "norm"])
    assert os.listdir(tmp_path) == []


def test_an_existing_file_is_replaced_only_when_asked(tmp_path):
    path = tmp_path / "new.safetensors"
    path.write_bytes(b"older")
    with pytest.raises(FastQwenError, match="--overwrite"):
        write(path)
    assert path.read_bytes() == b"older"
    write(path, overwrite=True)
    assert load_file(path).keys() == TENSORS.keys()


def test_a_file_that_appears_meanwhile_is_kept(tmp_path):
    path = tmp_path / "new.safetensors"
    with pytest.raises(FastQwenError, match="exists already"), CheckpointWriter(path, specs(TENSORS)) as writer:
        for name, tensor in TENSORS.items():
            writer.write(name, tensor)
        path.write_bytes(b"theirs")
    assert path.read_bytes() == b"theirs" and os.listdir(tmp_path) == ["new.safetensors"]


def test_places_that_cannot_be_a_file_are_refused(tmp_path):
    for path, word in ((tmp_path, "ends in .safetensors"), (tmp_path / "new.bin", "ends in .safetensors")):
        with pytest.raises(FastQwenError, match=word):
            write(path)
    with pytest.raises(FastQwenError, match="does not exist"):
        write(tmp_path / "nowhere" / "new.safetensors")
    assert os.listdir(tmp_path) == []


def test_too_small_a_disk_is_told_before_the_first_byte(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(FastQwenError, match="is full: the file needs 0.000 GB"):
        write(tmp_path / "new.safetensors")


@pytest.mark.parametrize("number,word", [(errno.ENOSPC, "is full"), (errno.EIO, "cannot be written")])
def test_a_disk_that_fails_in_the_middle_is_told_in_one_sentence_and_nothing_is_left(tmp_path, number, word):
    class Failing:
        def __init__(self, file):
            self.file = file

        def write(self, data):
            raise OSError(number, os.strerror(number))

        def __getattr__(self, name):
            return getattr(self.file, name)

    path = tmp_path / "new.safetensors"
    with pytest.raises(FastQwenError, match=word) as refused, CheckpointWriter(path, specs(TENSORS)) as writer:
        writer._file = Failing(writer._file)
        writer.write("codes", TENSORS["codes"])
    assert len(str(refused.value).splitlines()) == 1
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("path", ["", ".", "/", "..", "a\udcff.safetensors"])
def test_a_path_that_can_be_no_file_is_refused_before_anything_is_written(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FastQwenError, match="cannot be the new file"):
        CheckpointWriter(path, specs(TENSORS), overwrite=True)
    assert os.listdir(tmp_path) == []


def test_a_link_to_nowhere_is_replaced_only_when_asked(tmp_path):
    path = tmp_path / "new.safetensors"
    path.symlink_to(tmp_path / "absent")
    with pytest.raises(FastQwenError, match="exists already"):
        write(path)
    assert path.is_symlink()
    write(path, overwrite=True)
    assert not path.is_symlink() and load_file(path).keys() == TENSORS.keys()


def test_the_longest_name_that_a_folder_takes_can_be_written(tmp_path):
    write(tmp_path / ("a" * 243 + ".safetensors"))
    assert [len(name) for name in os.listdir(tmp_path)] == [255]
    with pytest.raises(FastQwenError, match="File name too long"):
        write(tmp_path / ("a" * 244 + ".safetensors"))
