"""Writes one safetensors file tensor by tensor, so that a whole model never has to be in memory.

    8 bytes, little endian: length of the header | header, JSON, padded with spaces to 8 bytes | the tensors' bytes

Format: https://github.com/huggingface/safetensors. The header comes first, so names, dtypes and shapes are given
before any value; offsets follow from them and tensors may then come in any order. The file appears under its name
only when it is whole.
"""

import errno
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .checkpoint import BYTES_PER_VALUE
from .errors import FastQwenError
from .files import is_folder, is_utf8, reason, shown

DTYPE_NAMES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.int32: "I32",
    torch.int64: "I64", torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
FULL_DISK = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG}


@dataclass(frozen=True)
class TensorSpec:
    """A tensor to come: its name, dtype in safetensors' spelling (such as BF16) and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return prod(self.shape) * BYTES_PER_VALUE[self.dtype]


class CheckpointWriter:
    """One file, as a context: `with CheckpointWriter(...) as writer: writer.write(name, tensor)` for every spec.

    path       a .safetensors file in an existing folder
    specs      every tensor of the file
    metadata   strings for the header
    overwrite  whether a file at `path` may be replaced

    Leaving the context checks the file by reopening it and gives it its name; after an exception or Ctrl-C nothing
    is left. Raises FastQwenError for a path that cannot be written, an existing file and a full disk.
    """

    def __init__(
        self, path: Path, specs: Iterable[TensorSpec], metadata: Mapping[str, str] | None = None, overwrite=False
    ):
        self.path, self.overwrite = Path(path), overwrite
        # Widest dtypes first, so that every tensor is aligned to its own size whatever the sizes before it.
        self.specs = {spec.name: spec for spec in sorted(specs, key=lambda spec: -BYTES_PER_VALUE[spec.dtype])}
        self._offsets, header = _header(self.specs.values(), metadata or {})
        self._head = len(header).to_bytes(8, "little") + header
        self.bytes = len(self._head) + sum(spec.bytes for spec in self.specs.values())
        self._missing = set(self.specs)
        self._require_target()
        # Of the name's beginning, for the name may be as long as names can be; of a number that no other writer has.
        self._temporary = self.path.with_name(f".{self.path.name[:40]}.{os.getpid()}.{id(self):x}.partial")
        self._file = None

    def __enter__(self):
        try:
            self._file = open(self._temporary, "wb")
            self._file.write(self._head)
            self._file.truncate(self.bytes)
        except OSError as error:
            self._discard()
            raise self._refusal(error) from None
        return self

    def write(self, name: str, tensor: Tensor):
        """Writes one tensor, of any device, in any order. Dtype and shape must be those of its spec."""
        spec = self.specs[name]
        found = (DTYPE_NAMES.get(tensor.dtype), tuple(tensor.shape))
        if found != (spec.dtype, spec.shape) or name not in self._missing:
            raise AssertionError(f"tensor '{name}' is {found}, written once as {spec.dtype} {spec.shape}")
        self._missing.remove(name)
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        try:
            self._file.seek(len(self._head) + self._offsets[name])
            self._file.write(data)
        except OSError as error:
            raise self._refusal(error) from None

    def __exit__(self, kind, error, traceback):
        try:
            if error is None:
                self._finish()
        except OSError as late:
            raise self._refusal(late) from None
        finally:
            self._discard()

    def _finish(self):
        if self._missing:
            raise AssertionError(f"{len(self._missing)} tensors were never written, such as '{min(self._missing)}'")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._reopen()
        if os.path.lexists(self.path) and not self.overwrite:  # it may have appeared while we were writing
            raise self._exists()
        os.replace(self._temporary, self.path)

    def _reopen(self):
        try:
            with safe_open(str(self._temporary), framework="pt") as opened:
                views = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 (not a mapping)
                found = {name: (view.get_dtype(), tuple(view.get_shape())) for name, view in views.items()}
        except SafetensorError as error:
            raise AssertionError(f"the file just written does not open: {error}") from None
        if found != {name: (spec.dtype, spec.shape) for name, spec in self.specs.items()}:
            raise AssertionError("the file just written holds other tensors than were asked for")

    def _discard(self):
        """Removes the temporary file; after a success it has its real name already and nothing is there."""
        if self._file is not None:
            with suppress(OSError):  # closing flushes, which fails once more on a full disk
                self._file.close()
        with suppress(OSError):  # nothing there; or a folder that has been closed to us, which the first error tells
            self._temporary.unlink()

    def _require_target(self):
        if not is_utf8(self.path):
            raise FastQwenError(f"'{shown(self.path)}' cannot be the new file: its path is not UTF-8; choose another.")
        if is_folder(self.path) or self.path.suffix.lower() != ".safetensors":
            raise FastQwenError(f"'{self.path}' cannot be the new file: give a name that ends in .safetensors.")
        if not is_folder(self.path.parent):
            raise FastQwenError(f"Folder '{self.path.parent}' does not exist: make it first.")
        if os.path.lexists(self.path) and not self.overwrite:
            raise self._exists()
        if shutil.disk_usage(self.path.parent).free < self.bytes:
            raise self._full()

    def _refusal(self, error: OSError):
        if error.errno in FULL_DISK:
            return self._full()
        return FastQwenError(f"'{self.path}' cannot be written ({reason(error)}): choose another place.")

    def _exists(self):
        return FastQwenError(f"'{self.path}' exists already: choose another name, or add --overwrite.")

    def _full(self):
        return FastQwenError(
            f"The disk of '{self.path}' is full: the file needs {self.bytes / 1e9:.3f} GB; free some or choose another "
            "place."
        )


def _header(specs, metadata):
    """Offset of every tensor from the end of the header, and the header's bytes."""
    offsets, end = {}, 0
    entries = {"__metadata__": dict(metadata)} if metadata else {}
    for spec in specs:
        offsets[spec.name] = end
        entries[spec.name] = {
            "dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [end, end + spec.bytes]
        }  # fmt: skip
        end += spec.bytes
    header = json.dumps(entries, separators=(",", ":")).encode("utf-8")
    return offsets, header + b" " * (-len(header) % 8)
