"""What the command line refuses before anything is loaded, and what it says when the system refuses it."""

import argparse
import errno
import io
import signal
import sys
import threading

import pytest
import torch
from fastqwen import cli, engine, option_types, terminal
from fastqwen.engine import FastQwenError, resolve_device
from fastqwen.mtp.short_head import FEWEST
from fresh_python import fresh

REPLY = ("--model", "/nowhere", "--prompt", "x")
PATHS = {"PATH", "PATH|demo", "FILE", "FOLDER", "FILE|FOLDER", "SRC", "DST"}


def run(capsys, *arguments):
    try:
        code = cli.main(list(arguments))
    except SystemExit as stop:
        code = stop.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def options(parser=None):
    """Every option and argument of every command."""
    for action in (parser or cli._parser())._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from options(below)
        else:
            yield action


def refuses(action, text):
    try:
        action.type(text)
    except (argparse.ArgumentTypeError, ValueError):
        return True
    return False


def takes_numbers(action):
    try:
        return isinstance(action.type("1024"), (int, float))
    except (TypeError, ValueError, argparse.ArgumentTypeError):
        return isinstance(action.default, (int, float)) and not isinstance(action.default, bool)


@pytest.mark.parametrize(
    "option,value",
    [
        ("--max-tokens", "0"), ("--temperature", "-0.1"), ("--temperature", "11"), ("--top-k", "-1"),
        ("--top-p", "0"), ("--top-p", "1.1"), ("--min-p", "-1"), ("--repetition-penalty", "0"),
        ("--presence-penalty", "6"), ("--seed", "1.5"), ("--context", "0"), ("--prefix-cache", "-1"),
        ("--vram-budget", "0"), ("--vram-budget", "-3"), ("--vram-budget", "1e308"), ("--draft-rows", "-16"),
        ("--draft-rows", "520"), ("--draft-rows", "496"), ("--fps", "0"), ("--fps", "-1"), ("--fps", "1e300"),
        ("--image-pixels", "0"), ("--pixel-budget", "-5"),
    ],
)  # fmt: skip
def test_a_number_out_of_range_is_refused_at_once_as_it_was_written(capsys, option, value):
    code, out, err = run(capsys, "generate", *REPLY, f"{option}={value}")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"argument {option}: " in err and f"'{value}'" in err and "/nowhere" not in err


def test_no_number_of_any_command_may_be_nan_or_infinite_and_no_count_negative():
    numbers = [action for action in options() if takes_numbers(action) and action.dest != "shard"]
    assert len(numbers) > 20
    for action in numbers:
        assert all(refuses(action, text) for text in ("nan", "inf", "-inf", "", "many")), action.dest
        if action.dest not in ("seed", "presence_penalty", "bits"):
            assert refuses(action, "-1"), action.dest


@pytest.mark.parametrize(
    "option,value",
    [
        ("--vram-budget", "0.5"), ("--vram-budget", "1e-9"), ("--prefix-cache", "0"), ("--draft-rows", "0"),
        ("--draft-rows", "512"), ("--top-p", "1"), ("--presence-penalty", "-5"), ("--fps", "0.5"), ("--top-k", "0"),
    ],
)  # fmt: skip
def test_the_ends_of_the_ranges_are_taken(option, value):
    arguments = cli._parser().parse_args(["generate", *REPLY, f"{option}={value}"])
    assert getattr(arguments, option[2:].replace("-", "_")) == float(value)


@pytest.mark.parametrize("digits", [16, 400, 5000])  # of 5000 Python itself makes no number
@pytest.mark.parametrize("option", ["--image-pixels", "--draft-rows", "--max-tokens", "--fps", "--vram-budget"])
def test_a_number_of_hundreds_of_digits_is_refused_in_one_sentence(capsys, option, digits):
    code, out, err = run(capsys, "generate", *REPLY, option, "9" * digits)
    assert (code, out, err.count("\n")) == (2, "", 1) and f"argument {option}: " in err and len(err) < 250


def test_a_seed_may_have_any_size_that_python_reads(capsys):
    assert option_types.integer("-" + "9" * 400) == 1 - 10**400
    code, out, err = run(capsys, "generate", *REPLY, "--seed", "9" * 5000)
    assert (code, out, err.count("\n")) == (2, "", 1) and "is no whole number" in err and len(err) < 250


def test_the_fewest_draft_rows_are_those_of_the_draft_head():
    assert option_types.FEWEST_ROWS == FEWEST


def test_no_path_of_any_command_may_be_empty():
    paths = [action for action in options() if action.metavar in PATHS]
    assert len(paths) >= 12
    for action in paths:
        assert action.type("a b") == "a b" and refuses(action, ""), action.dest


def test_an_empty_name_is_told_and_no_caption_is_written_beside_the_images(capsys, tmp_path):
    (tmp_path / "a.png").write_bytes(b"")
    for option in ("--jsonl", "--out-dir"):
        code, out, err = run(capsys, "caption", str(tmp_path), "--model", "demo", option, "")
        assert (code, out, err.count("\n")) == (2, "", 1) and f"argument {option}: the name is empty" in err
    code, _, err = run(capsys, "caption", "", "--model", "demo")
    assert code == 2 and "the name is empty" in err
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_one_file_of_captions_and_a_folder_for_them_are_refused_together(capsys, tmp_path):
    call = ("caption", str(tmp_path), "--model", "demo", "--jsonl", "x.jsonl", "--out-dir", "y")
    code, out, err = run(capsys, *call)
    assert (code, out, err.count("\n")) == (2, "", 1) and "--out-dir" in err and "--jsonl" in err


@pytest.mark.parametrize("handling", ["strict", "surrogateescape"])
def test_standard_input_that_is_no_text_is_told_before_the_model_is_looked_for(capsys, monkeypatch, handling):
    stream = io.TextIOWrapper(io.BytesIO(b"abc\xff"), encoding="utf-8", errors=handling)
    monkeypatch.setattr(sys, "stdin", stream)
    code, out, err = run(capsys, "generate", "--model", "/nowhere", "--prompt", "-")
    assert (code, out, err.count("\n")) == (2, "", 1) and "no utf-8 text" in err


def test_closed_standard_input_is_told_before_the_model_is_looked_for(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)  # what Python makes of `<&-`
    code, out, err = run(capsys, "generate", "--model", "/nowhere", "--prompt", "-")
    assert (code, out, err.count("\n")) == (2, "", 1) and "standard input (it is closed)" in err


class FullDisk(io.StringIO):
    """Fails as a buffered stream does, when it is flushed, or as an unbuffered one, when it is written."""

    def __init__(self, failing):
        super().__init__()
        self.failing = failing

    def write(self, text):
        self._fail("write")
        return super().write(text)

    def flush(self):
        self._fail("flush")

    def _fail(self, call):
        if call == self.failing:
            raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("failing", ["write", "flush"])
def test_a_full_disk_behind_standard_output_is_one_sentence_and_a_failing_exit(capsys, monkeypatch, failing):
    monkeypatch.setattr(sys, "stdout", FullDisk(failing))
    code = cli.main(["inspect", "demo"])
    err = capsys.readouterr().err
    assert code == 1 and err.count("\n") == 1 and "standard output (No space left on device)" in err


@pytest.mark.parametrize("call", [("generate", "--prompt", "x", "--model"), ("quantize", "--format", "int8")])
def test_a_device_that_holds_no_values_is_refused_in_one_sentence(capsys, tmp_path, call):
    target = tmp_path / "new.safetensors"
    call = (*call, "demo-bf16", *([str(target)] if call[0] == "quantize" else []))
    code, out, err = run(capsys, *call, "--device", "meta")
    assert (code, out, err.count("\n")) == (2, "", 1) and "Device 'meta' cannot be used" in err
    assert not target.exists()


def test_a_device_without_a_name_is_refused_and_a_long_reason_is_cut_behind_its_first_sentence(monkeypatch):
    with pytest.raises(FastQwenError, match="Device 'None' cannot be used"):
        resolve_device(None)

    def refuse(*arguments, **options):
        raise NotImplementedError("No such backend. If you build torch yourself, read on.\nAnd on.")

    monkeypatch.setattr(torch, "empty", refuse)
    with pytest.raises(FastQwenError, match=r"here \(No such backend\): use 'cpu', or 'auto'\."):
        resolve_device("cpu")


FULL = {
    "GPU": torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nAnd more."),
    "RAM": RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried to"),
    "RAM of Python": MemoryError(),
}


@pytest.mark.parametrize("whose", FULL)
def test_full_memory_is_one_sentence_and_a_failing_exit(capsys, monkeypatch, whose):
    def fail(*arguments, **options):
        raise FULL[whose]

    monkeypatch.setattr(engine, "load", fail)
    code, out, err = run(capsys, "generate", "--model", "demo", "--prompt", "x")
    assert (code, out, err.count("\n")) == (1, "", 1) and f"The {whose[:3]} is full: use a smaller" in err


def test_another_error_of_torch_is_not_called_full_memory(capsys, monkeypatch):
    def fail(*arguments, **options):
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(engine, "load", fail)
    with pytest.raises(RuntimeError, match="shapes differ"):
        cli.main(["generate", "--model", "demo", "--prompt", "x"])


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no such signals")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_run_that_is_ended_from_outside_leaves_no_half_file(capsys, monkeypatch, tmp_path, name):
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("only a main thread is told of signals")
    number, found = getattr(signal, name), []

    def end(bar, done, total):
        found.extend(tmp_path.iterdir())
        signal.raise_signal(number)

    monkeypatch.setattr(cli.Bar, "__call__", end)
    before = signal.getsignal(number)
    code, out, err = run(capsys, "quantize", "demo-bf16", str(tmp_path / "new.safetensors"), "--format", "int8")
    assert (code, out, err) == (128 + number, "", "fastqwen: Interrupted.\n")
    assert found and not list(tmp_path.iterdir()) and signal.getsignal(number) is before


def test_a_signal_that_is_ignored_stays_ignored(monkeypatch):
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_IGN)
    monkeypatch.setattr(signal, "signal", lambda *arguments: pytest.fail("changed"))
    with terminal.ended_as_by_hand():
        pass


def test_an_interrupt_while_torch_is_imported_is_one_word_and_code_130():
    code = (
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from fastqwen.cli import main\n"
        "sys.exit(main(['generate', '--model', 'demo', '--prompt', 'x']))"
    )
    done = fresh(code)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"fastqwen: Interrupted.\n")
