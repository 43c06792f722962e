"""The loader's names: what is listed, what a name resolves to, and what is refused."""

import os
from types import SimpleNamespace

import pytest
from fastqwen.nodes import folders
from fastqwen.weights import FastQwenError


class FolderPaths(SimpleNamespace):
    """A stand-in for ComfyUI's folder_paths, written from its documented behaviour."""

    def get_folder_paths(self, kind):
        return list(self.folder_names_and_paths[kind][0])

    def get_filename_list(self, kind):
        roots, extensions = self.folder_names_and_paths[kind]
        names = set()
        for root in roots:
            for folder, _, files in os.walk(root, followlinks=True):
                names |= {os.path.relpath(os.path.join(folder, file), root) for file in files}
        return sorted(name for name in names if not extensions or os.path.splitext(name)[1] in extensions)


@pytest.fixture
def models(tmp_path):
    encoders = ([str(tmp_path / "text_encoders"), str(tmp_path / "clip")], {".safetensors", ".bin", ".pt"})
    paths = FolderPaths(models_dir=str(tmp_path), folder_names_and_paths={"text_encoders": encoders})
    folders.register(paths)
    return paths


def put(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


def test_a_missing_llm_folder_is_added_with_its_extension(models, tmp_path):
    assert models.folder_names_and_paths["LLM"] == ([str(tmp_path / "LLM")], {".safetensors"})


def test_an_llm_folder_that_others_added_is_kept_and_comes_first(tmp_path):
    theirs = (["/elsewhere/LLM"], set())
    paths = FolderPaths(models_dir=str(tmp_path), folder_names_and_paths={"LLM": theirs})
    folders.register(paths)
    folders.register(paths)
    assert paths.folder_names_and_paths["LLM"] is theirs
    assert theirs == (["/elsewhere/LLM", str(tmp_path / "LLM")], set())


def test_without_any_model_the_demo_is_offered(models):
    assert folders.model_names(models) == ["demo"]
    assert folders.resolve("demo", models) == "demo"


def test_files_of_every_folder_are_listed_and_other_formats_are_not(models, tmp_path):
    put(tmp_path, "text_encoders/b.safetensors", "text_encoders/x.pt", "clip/c.safetensors", "LLM/sub/a.safetensors")
    put(tmp_path, "LLM/a.gguf")
    in_subfolder = os.path.join("sub", "a.safetensors")
    assert folders.model_names(models) == ["b.safetensors", "c.safetensors", in_subfolder, "demo"]
    assert folders.resolve("c.safetensors", models) == str(tmp_path / "clip" / "c.safetensors")
    assert folders.resolve(in_subfolder, models) == str(tmp_path / "LLM" / "sub" / "a.safetensors")


def test_a_hugging_face_folder_is_one_entry_and_its_shards_are_hidden(models, tmp_path):
    put(tmp_path / "LLM" / "Qwen", "config.json", "m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors")
    put(tmp_path / "LLM" / "loose", "a.safetensors", "b.safetensors")
    loose = [os.path.join("loose", name) for name in ("a.safetensors", "b.safetensors")]
    assert folders.model_names(models) == ["Qwen", *loose, "demo"]
    assert folders.resolve("Qwen", models) == str(tmp_path / "LLM" / "Qwen")
    with pytest.raises(FastQwenError, match="choose the folder"):
        folders.resolve(os.path.join("Qwen", "m-00001-of-00002.safetensors"), models)


def test_a_config_in_the_root_does_not_hide_the_other_models(models, tmp_path):
    put(tmp_path / "LLM", "config.json", "a.safetensors")
    assert folders.model_names(models) == ["a.safetensors", "demo"]
    assert folders.resolve("a.safetensors", models) == str(tmp_path / "LLM" / "a.safetensors")


def test_the_same_name_in_two_folders_means_text_encoders(models, tmp_path):
    put(tmp_path, "LLM/a.safetensors", "text_encoders/a.safetensors")
    assert folders.model_names(models) == ["a.safetensors", "demo"]
    assert folders.resolve("a.safetensors", models) == str(tmp_path / "text_encoders" / "a.safetensors")


def test_a_missing_name_says_where_to_put_a_model(models):
    with pytest.raises(FastQwenError, match="text_encoders or LLM"):
        folders.resolve("gone.safetensors", models)


@pytest.mark.parametrize(
    "name",
    [
        "../secret.safetensors",
        "..\\secret.safetensors",
        "sub/../../secret.safetensors",
        "..",
        ".",
        "",
        "/secret.safetensors",
        "\\secret.safetensors",
        "C:\\secret.safetensors",
        "C:secret.safetensors",
        "\\\\host\\share\\secret.safetensors",
        "a\0.safetensors",
        None,
        7,
    ],
)
def test_a_name_that_is_a_path_is_refused(models, tmp_path, name):
    put(tmp_path, "secret.safetensors", "text_encoders/sub/a.safetensors")
    with pytest.raises(FastQwenError, match="not the name of a model"):
        folders.resolve(name, models)


def test_an_absolute_path_inside_a_model_folder_is_refused_too(models, tmp_path):
    put(tmp_path, "LLM/a.safetensors")
    with pytest.raises(FastQwenError, match="not the name of a model"):
        folders.resolve(str(tmp_path / "LLM" / "a.safetensors"), models)


def link(path, target, is_folder=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.symlink_to(target, target_is_directory=is_folder)
    except OSError:
        pytest.skip("this system does not let us make links")


def test_links_that_leave_the_model_folders_are_refused(models, tmp_path):
    outside = tmp_path / "outside"
    put(outside, "a.safetensors", "hf/config.json", "hf/a.safetensors")
    put(tmp_path / "LLM" / "mixed", "config.json")
    link(tmp_path / "LLM" / "file.safetensors", outside / "a.safetensors")
    link(tmp_path / "LLM" / "folder", outside / "hf", is_folder=True)
    link(tmp_path / "LLM" / "mixed" / "shard.safetensors", outside / "a.safetensors")
    for name in ("file.safetensors", "folder", "mixed"):
        with pytest.raises(FastQwenError, match="outside the model folders"):
            folders.resolve(name, models)


def test_a_sibling_with_the_roots_name_as_prefix_counts_as_outside(models, tmp_path):
    put(tmp_path, "LLM-private/a.safetensors")
    link(tmp_path / "LLM" / "a.safetensors", tmp_path / "LLM-private" / "a.safetensors")
    with pytest.raises(FastQwenError, match="outside the model folders"):
        folders.resolve("a.safetensors", models)


def test_links_inside_the_model_folders_and_a_linked_root_work(models, tmp_path):
    put(tmp_path / "disk", "blobs/f00d", "snapshots/1/config.json")
    link(tmp_path / "LLM", tmp_path / "disk", is_folder=True)
    link(tmp_path / "disk" / "snapshots" / "1" / "model.safetensors", tmp_path / "disk" / "blobs" / "f00d")
    name = os.path.join("snapshots", "1")
    assert folders.model_names(models) == [name, "demo"]
    assert folders.resolve(name, models) == str(tmp_path / "LLM" / name)


def test_a_folder_that_may_not_be_listed_is_no_choice_and_costs_no_other(models, tmp_path, monkeypatch):
    put(tmp_path, "LLM/closed/config.json", "LLM/closed/a.safetensors", "LLM/b.safetensors")
    listed = os.listdir

    def refuse(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "listdir", refuse)
    assert "b.safetensors" in folders.model_names(models)
    with pytest.raises(FastQwenError, match="no model named 'closed'"):
        folders.resolve("closed", models)
