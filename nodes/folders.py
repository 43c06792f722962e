"""Which checkpoints the loader offers, and the one way from such a name to a path.

`folder_paths` is ComfyUI's module of that name (or a stand-in with `models_dir`, `folder_names_and_paths`,
`get_folder_paths` and `get_filename_list`). Names are relative to a model folder; nothing else reaches the disk.
"""

import ntpath
import os
import posixpath
import re

from ..weights import FastQwenError

# `clip`, the old name of text_encoders, is mapped by folder_paths itself.
KINDS = ("text_encoders", "LLM")
SUFFIX = ".safetensors"
DEMO = "demo"


def register(folder_paths):
    """Makes `models/LLM` a model folder; folders that the user or another pack gave that name stay first."""
    default = os.path.join(folder_paths.models_dir, "LLM")
    if "LLM" not in folder_paths.folder_names_and_paths:
        folder_paths.folder_names_and_paths["LLM"] = ([default], {SUFFIX})
    elif default not in folder_paths.folder_names_and_paths["LLM"][0]:
        folder_paths.folder_names_and_paths["LLM"][0].append(default)


def model_names(folder_paths):
    """The loader's choices: checkpoint files and Hugging Face folders in name order, the shipped demo last.

    A folder with `config.json` and `*.safetensors` is one choice, named by the folder; its files are not offered.
    """
    found = set()
    for kind in KINDS:
        folder_of = {}
        for name in folder_paths.get_filename_list(kind):
            if not name.lower().endswith(SUFFIX):
                continue
            parent = os.path.dirname(name)
            if parent not in folder_of:
                roots = folder_paths.get_folder_paths(kind)
                folder_of[parent] = any(_is_checkpoint_folder(root, parent) for root in roots)
            found.add(parent if folder_of[parent] else name)
    return sorted(found - {DEMO}) + [DEMO]


def resolve(name, folder_paths):
    """The absolute path of a choice, or `"demo"`.

    The first folder that holds the name wins, text_encoders before LLM. Raises FastQwenError for a name that is
    absolute, holds `..`, is not there, is one shard of a folder, or leads outside the model folders through a link.
    """
    if name == DEMO:
        return DEMO
    if not _is_plain_relative(name):
        raise FastQwenError(f"{name!r} is not the name of a model: choose one from the list of 'Load FastQwen'.")
    roots = [root for kind in KINDS for root in folder_paths.get_folder_paths(kind)]
    for root in roots:
        path = os.path.join(root, name)
        if _is_checkpoint_folder(root, name):
            links = [path, *(entry.path for entry in os.scandir(path))]
        elif name.lower().endswith(SUFFIX) and os.path.isfile(path):
            if _is_checkpoint_folder(root, os.path.dirname(name)):
                raise FastQwenError(
                    f"{name!r} is one file of the model folder {os.path.dirname(name)!r}: choose the folder instead."
                )
            links = [path]
        else:
            continue
        for link in links:
            _check_inside(link, roots)
        return os.path.abspath(path)
    raise FastQwenError(
        f"There is no model named {name!r} in {' or '.join(KINDS)}: put a {SUFFIX} file or a Hugging Face folder there "
        "and choose it in 'Load FastQwen'."
    )


def _is_plain_relative(name):
    """Judged by both systems' rules: a workflow written on one is run on the other."""
    if not isinstance(name, str) or not name or "\0" in name:
        return False
    if posixpath.isabs(name) or ntpath.isabs(name) or ntpath.splitdrive(name)[0]:
        return False
    return not {"", ".", ".."} & set(re.split(r"[/\\]", name))


def _is_checkpoint_folder(root, name):
    """Whether `root/name` is a Hugging Face folder. The root itself never is: it would hide every other model."""
    path = os.path.join(root, name)
    if not name or not os.path.isfile(os.path.join(path, "config.json")):
        return False
    try:
        return any(file.lower().endswith(SUFFIX) for file in os.listdir(path))
    except OSError:  # a folder closed to us must not cost the loader its other choices
        return False


def _check_inside(path, roots):
    real = os.path.normcase(os.path.realpath(path))
    for root in roots:
        if real.startswith(os.path.join(os.path.normcase(os.path.realpath(root)), "")):
            return
    raise FastQwenError(
        f"{os.path.basename(path)!r} is a link to a place outside the model folders: move the file into "
        "models/text_encoders or models/LLM, or add its folder to extra_model_paths.yaml."
    )
