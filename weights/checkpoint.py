"""Opens a checkpoint: a Hugging Face folder (one file or shards) or a single safetensors file.

Only headers are read on opening. Every tensor is then read at most once, so that what a loader never asked
for can be reported (`unread`). Format: https://github.com/huggingface/safetensors (header of name, dtype,
shape, offsets); shards: `model.safetensors.index.json` with a `weight_map` from name to file.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from .errors import FastQwenError
from .files import exists, expanded, is_folder, is_utf8, listed, not_opened, require_no_device, require_readable

INDEX_NAME = "model.safetensors.index.json"
PICKLE_SUFFIXES = {".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle"}
BYTES_PER_VALUE = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip


@dataclass(frozen=True)
class TensorEntry:
    """One tensor's header: where it lies, its shape and its dtype in safetensors' spelling (such as BF16)."""

    file: Path
    shape: tuple[int, ...]
    dtype: str

    @property
    def values(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def bytes(self) -> int:
        return self.values * BYTES_PER_VALUE.get(self.dtype, 1)


class Checkpoint:
    """The tensors of one checkpoint by name.

    path      the folder or file that was opened
    folder    where side files (config.json, tokenizer.json) are looked for
    entries   name -> TensorEntry
    metadata  the safetensors header's own strings (of the first file that has any)
    headers   file -> its header's own strings, for what each shard says of its own tensors
    """

    def __init__(self, path: Path, files: list[Path]):
        self.path = path
        self.folder = path if is_folder(path) else path.parent
        self.entries: dict[str, TensorEntry] = {}
        self.metadata: dict[str, str] = {}
        self.headers: dict[Path, dict[str, str]] = {}
        self._peeked = {}
        self._open_files = {}
        self._read: set[str] = set()
        for file in files:
            self._add(file)

    @classmethod
    def open(cls, path) -> "Checkpoint":
        """Opens a folder or file. Raises FastQwenError that names the path and what would work."""
        path = expanded(path)
        if is_folder(path):
            return cls(path, _files_of_folder(path))
        if not exists(path):
            raise FastQwenError(f"No checkpoint at '{path}': give a .safetensors file or a folder that holds one.")
        _refuse_other_files(path)
        return cls(path, [path])

    def _add(self, file: Path):
        if not is_utf8(file):
            raise FastQwenError(f"'{file}' cannot be opened (its path is not UTF-8): rename it or its folder.")
        require_readable(file)  # the library says "not found" of a file that may not be read
        try:
            opened = safe_open(str(file), framework="pt", device="cpu")
            names = list(opened.keys())
        except (SafetensorError, OSError) as error:
            raise FastQwenError(
                f"'{file}' is not a readable safetensors file ({error}): it may be cut short or of another kind; "
                "download it again."
            ) from None
        self.headers[file] = opened.metadata() or {}
        self.metadata = self.metadata or self.headers[file]
        self._open_files[file] = opened
        for name in names:
            if name in self.entries:
                raise FastQwenError(
                    f"Tensor '{name}' is in both '{self.entries[name].file.name}' and '{file.name}': "
                    "keep one set of weight files in the folder."
                )
            view = opened.get_slice(name)
            self.entries[name] = TensorEntry(file, tuple(view.get_shape()), str(view.get_dtype()))

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def read(self, name: str):
        """The tensor on the CPU, as stored. Each name is read once; a second read is a defect of the caller."""
        if name in self._read:
            raise AssertionError(f"tensor '{name}' is read twice")
        self._read.add(name)
        return self._open_files[self.entries[name].file].get_tensor(name)

    def peek(self, name: str):
        """A tensor of a few bytes that several parts look at, such as a marker: counts as read, may be asked again."""
        if name not in self._peeked:
            self._peeked[name] = self.read(name)
        return self._peeked[name]

    def unread(self) -> list[str]:
        """Names that nobody read, in file order."""
        return [name for name in self.entries if name not in self._read]

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.entries.values())


def read_json(path: Path) -> dict:
    """A JSON object from a file beside the checkpoint. Raises FastQwenError naming the file."""
    require_no_device(path)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise not_opened(path, error) from None
    except (ValueError, RecursionError) as error:  # ValueError: no UTF-8, no JSON, or a number of thousands of digits
        raise FastQwenError(f"'{path}' cannot be read as JSON ({error}): download the file again.") from None
    if not isinstance(value, dict):
        raise FastQwenError(f"'{path}' holds a JSON {type(value).__name__}, not an object: download the file again.")
    return value


def _files_of_folder(folder: Path) -> list[Path]:
    index = folder / INDEX_NAME
    if exists(index):
        return _files_of_index(folder, index)
    held = listed(folder)
    files = [file for file in held if file.match("*.safetensors")]
    if len(files) == 1 or (folder / "model.safetensors") in files:
        return [folder / "model.safetensors"] if (folder / "model.safetensors") in files else files
    if files:
        raise FastQwenError(
            f"Folder '{folder}' holds {len(files)} safetensors files but no {INDEX_NAME}: "
            "add the index, or name the one file that is meant."
        )
    pickles = [file.name for file in held if file.suffix in PICKLE_SUFFIXES]
    if pickles:
        raise FastQwenError(
            f"Folder '{folder}' holds only pickle files ({pickles[0]}), which can run code when read: "
            "get the safetensors version of this checkpoint."
        )
    raise FastQwenError(f"Folder '{folder}' holds no .safetensors file: give the folder of a Hugging Face checkpoint.")


def _files_of_index(folder: Path, index: Path) -> list[Path]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise FastQwenError(f"'{index}' has no 'weight_map' from tensor names to files: download the file again.")
    files = []
    for name in sorted(set(weight_map.values())):
        file = folder / name
        # A shard name is data from a download: it must not reach out of the folder.
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise FastQwenError(f"'{index}' names the shard '{name}', which is not a .safetensors file in that folder.")
        if not exists(file):
            raise FastQwenError(f"Shard '{name}' named by '{index}' is missing: download it into the same folder.")
        files.append(file)
    return files


def _refuse_other_files(path: Path):
    suffix = path.suffix.lower()
    if suffix in PICKLE_SUFFIXES:
        raise FastQwenError(
            f"'{path}' is a pickle file, which can run code when read: get the .safetensors version of it."
        )
    if suffix == ".gguf":
        raise FastQwenError(f"'{path}' is a GGUF file, which FastQwen does not read: get the .safetensors version.")
    if suffix != ".safetensors":
        raise FastQwenError(f"'{path}' is not a .safetensors file: give a .safetensors file or a checkpoint folder.")
