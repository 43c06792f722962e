"""The command line: output, streams, and one line for every mistake."""

import io
import json
import sys
from pathlib import Path

import pytest
import tiny
import torch
from fastqwen import cli
from fresh_python import fresh
from safetensors.torch import save_file


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tiny.save_tokenizer(tiny.save_folder(tiny.oracle("gqa4"), tmp_path_factory.mktemp("cli"), mtp=True)))


def run(capsys, *arguments):
    try:
        code = cli.main([str(argument) for argument in arguments])
    except SystemExit as stop:
        code = stop.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_generate_streams_the_answer_and_json_holds_the_same_text(capsys, folder):
    options = ("generate", "--model", folder, "--prompt", "a fox", "--max-tokens", 12, "--temperature", 1, "--seed", 3)
    code, streamed, err = run(capsys, *options)
    assert code == 0 and "tokens/s" in err and "mtp: auto" in err
    code, out, _ = run(capsys, *options, "--json")
    value = json.loads(out)
    assert code == 0 and set(value) == {"text", "thinking", "report"}
    assert value["text"] + "\n" == streamed
    assert value["report"]["stop_reason"] in ("length", "stop token")


def test_every_generate_option_reaches_the_engine(capsys, folder):
    code, out, _ = run(
        capsys, "generate", "--model", folder, "--prompt", "x", "--system", "be brief", "--max-tokens", 9,
        "--temperature", 0.5, "--top-k", 5, "--top-p", 0.9, "--min-p", 0.1, "--repetition-penalty", 1.1,
        "--presence-penalty", 0.5, "--greedy", "--seed", 2, "--thinking", "--mtp", "off", "--device", "cpu",
        "--stop", "zz", "--stop", "yy", "--json",
    )  # fmt: skip
    assert code == 0
    assert json.loads(out)["report"]["new_tokens"] <= 9


def test_thinking_goes_to_stderr_and_the_answer_to_stdout(capsys, folder):
    code, out, err = run(
        capsys, "generate", "--model", folder, "--prompt", "x", "--thinking", "--max-tokens", 6, "--temperature", 1
    )
    assert code == 0 and out == "\n" and len(err.splitlines()) >= 1


def test_inspect_tells_what_is_in_the_file(capsys, folder):
    code, out, _ = run(capsys, "inspect", folder)
    assert code == 0 and "4 layers (3 DeltaNet, 1 attention)" in out and "MTP head: present" in out
    code, out, _ = run(capsys, "inspect", folder, "--json")
    value = json.loads(out)
    assert value["mtp"] is True and value["vision"] is False
    groups = {group["name"]: group for group in value["groups"]}
    assert groups["mtp"]["tensors"] == 15 and groups["mtp"]["formats"] == {"fp32": 15}
    assert value["bytes"] == 4 * value["parameters"]
    assert groups["embedding"]["parameters"] == 320 * 64


def test_inspect_names_packed_formats(capsys, folder, tmp_path):
    from safetensors.torch import load_file

    tensors = load_file(folder + "/model.safetensors")
    layer = "model.language_model.layers.0.mlp.up_proj"
    marker = json.dumps({"format": "int8_tensorwise"}).encode()
    tensors[layer + ".comfy_quant"] = torch.tensor(list(marker), dtype=torch.uint8)
    tensors[layer + ".weight"] = torch.zeros(96, 64, dtype=torch.int8)
    tensors[layer + ".weight_scale"] = torch.ones(96, 1)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(Path(folder, "config.json").read_text())
    code, out, _ = run(capsys, "inspect", tmp_path)
    assert code == 0 and "1 int8" in out


def test_quantize_writes_a_file_that_inspect_reads_and_prints_the_errors(capsys, tmp_path):
    target = tmp_path / "demo.safetensors"
    code, out, err = run(
        capsys, "quantize", "demo-bf16", target, "--format", "w6a8", "--keep", "mtp.*", "--device", "cpu"
    )
    assert code == 0 and "layers quantised (w6a8)" in out and "mean 0.0" in out and "left as they are (--keep)" in out
    assert "give --tokenizer" in out
    code, out, _ = run(capsys, "inspect", target)
    assert code == 0 and "w6a8" in out and "1 int8" in out and "MTP head: present" in out
    assert "5,663,352 parameters" in out
    options = ("quantize", "demo-bf16", target, "--format", "int8", "--json", "--overwrite")
    code, out, _ = run(capsys, *options)
    value = json.loads(out)
    assert code == 0 and value["bytes_after"] == target.stat().st_size < value["bytes_before"]
    assert all(0 < layer["relative_error"] < 0.01 for layer in value["layers"])


@pytest.mark.parametrize(
    "arguments,word",
    [
        (["FOLDER", "NEW"], "--format"),
        (["FOLDER", "NEW", "--format", "w5a8"], "w5a8"),
        (["/nowhere", "NEW", "--format", "w4a8"], "/nowhere"),
        (["FOLDER", "/nowhere/new.safetensors", "--format", "w4a8"], "/nowhere"),
        (["FOLDER", "new.gguf", "--format", "w4a8"], "new.gguf"),
        (["FOLDER", "NEW", "--format", "w4a8", "--keep", "nothing.*"], "nothing.*"),
        (["FOLDER", "NEW", "--format", "w4a8", "--device", "cuda:77"], "cuda:77"),
        (["FOLDER", "FOLDER/model.safetensors", "--format", "w4a8", "--overwrite"], "source itself"),
        (["FOLDER", "FOLDER/model.safetensors", "--format", "w4a8"], "source itself"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_mistake_in_quantize_gives_one_line_and_leaves_no_file(capsys, folder, tmp_path, arguments, word):
    new = str(tmp_path / "new.safetensors")
    code, out, err = run(capsys, "quantize", *(a.replace("FOLDER", folder).replace("NEW", new) for a in arguments))
    assert code == 2 and out == ""
    assert len(err.splitlines()) == 1 and word in err and "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_doctor_names_versions_devices_and_a_backend_for_every_operation(capsys):
    code, out, _ = run(capsys, "doctor", "--json")
    value = json.loads(out)
    assert code == 0
    assert value["versions"]["torch"] == torch.__version__
    assert value["devices"][0]["name"] == "cpu"
    assert {entry["operation"] for entry in value["operations"]} >= {"linear", "delta_decode", "decode_attention"}
    assert all(entry["backend"] and entry["reason"] for entry in value["operations"])
    code, out, _ = run(capsys, "doctor")
    assert code == 0 and "delta_decode" in out


@pytest.mark.parametrize(
    "arguments,word",
    [
        (["generate", "--model", "/nowhere", "--prompt", "x"], "/nowhere"),
        (["inspect", "/nowhere"], "/nowhere"),
        (["generate", "--model", "FOLDER", "--prompt", "x", "--top-p", "7"], "--top-p"),
        (["generate", "--model", "FOLDER", "--prompt", "x", "--temperature", "-1"], "--temperature"),
        (["generate", "--model", "FOLDER", "--prompt", "x", "--max-tokens", "0"], "--max-tokens"),
        (["generate", "--model", "FOLDER", "--prompt", "x", "--max-tokens", "many"], "--max-tokens"),
        (["generate", "--model", "FOLDER", "--prompt", "x", "--mtp", "9"], "--mtp"),
        (["generate", "--model", "FOLDER", "--prompt", "x", "--device", "cuda:77"], "cuda:77"),
        (["generate", "--model", "FOLDER", "--prompt", "x", "--stop", ""], "stop"),
        (["generate", "--model", "FOLDER"], "--prompt"),
        (["generate", "--model", "FOLDER", "--prompt", "x", "--tokenizer", "/nowhere"], "/nowhere"),
        (["bench", "kernels", "--shape", "1b"], "1b"),
        (["brew"], "brew"),
        ([], "COMMAND"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_mistake_gives_one_line_on_stderr_and_a_failing_exit(capsys, folder, arguments, word):
    code, out, err = run(capsys, *(folder if argument == "FOLDER" else argument for argument in arguments))
    assert code == 2 and out == ""
    assert len(err.splitlines()) == 1 and word in err and "Traceback" not in err


@pytest.mark.parametrize(
    "option,value,word",
    [("--max-tokens", "0", "--max-tokens"), ("--stop", "", "stop text"), ("--top-p", "7", "--top-p")],
)
def test_a_bad_request_is_told_before_the_model_is_looked_for(capsys, option, value, word):
    code, _, err = run(capsys, "generate", "--model", "/nowhere", "--prompt", "x", option, value)
    assert code == 2 and word in err and "/nowhere" not in err


def test_without_torch_the_command_says_how_to_install_it(folder):
    code = (
        "sys.modules['torch'] = None\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch': raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n"
        "del sys.modules['torch']; sys.meta_path.insert(0, Block())\n"
        "from fastqwen.cli import main\n"
        f"sys.exit(main(['generate', '--model', {folder!r}, '--prompt', 'x']))"
    )
    done = fresh(code)
    message = done.stderr.decode()
    assert done.returncode == 2 and len(message.splitlines()) == 1 and "pip install torch" in message


def test_output_survives_a_console_of_another_encoding(folder):
    code = (
        "from fastqwen.cli import main\n"
        "for encoding in (None, 'gbk', 'cp1252'):\n"  # first as the process was started
        "    for stream in (sys.stdout, sys.stderr) if encoding else ():\n"
        "        stream.reconfigure(encoding=encoding, errors='strict')\n"
        f"    code = main(['generate', '--model', {folder!r}, '--prompt', '\\U0001F98A \\u96EA', '--max-tokens', '40', "
        "'--temperature', '3', '--top-k', '0', '--top-p', '1'])\n"
        "    if code: sys.exit(code)"
    )
    done = fresh(code, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr.decode(errors="replace")


def test_json_loses_nothing_on_a_console_of_another_encoding(folder, monkeypatch):
    texts = []
    for encoding in ("utf-8", "cp1252", "ascii"):
        written = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
        options = ("--prompt", "x", "--temperature", "3", "--top-k", "0", "--top-p", "1", "--max-tokens", "20")
        assert cli.main(["generate", "--model", folder, "--json", *options]) == 0
        texts.append(json.loads(written.getvalue().decode(encoding))["text"])
    assert texts[0] == texts[1] == texts[2] and not texts[0].isascii()


def test_the_message_without_torch_names_a_section_that_the_readme_has():
    section = cli.NO_TORCH.split('section "')[1].split('"')[0]
    assert f"\n## {section}\n" in (Path(cli.__file__).parent / "README.md").read_text(encoding="utf-8")


def test_no_sentence_has_the_package_installed_by_a_name_that_pip_would_look_up():
    """In ComfyUI this is a folder that pip knows nothing of; an index may have something else under that name."""
    files = [file for pattern in ("*.py", "[a-z]*/*.py") for file in Path(cli.__file__).parent.glob(pattern)]
    assert not [file for file in files if file.parent.name != "tests" and "fastqwen[" in file.read_text("utf-8")]
