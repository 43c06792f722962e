"""`fastqwen caption`: which images are done, what is written where, and that one bad image stops nothing."""

import json
import re
import sys
from types import SimpleNamespace

import pytest
import torch
from fastqwen import caption_command, cli
from fastqwen.engine import FastQwenError
from fastqwen.engine.caption_files import Lines, TextFiles, plan, run
from fastqwen.terminal import Bar
from folders import touch


def read(path):
    """The image is its own stem; a broken one says so."""
    if "broken" in path.name:
        raise FastQwenError(f"'{path}' cannot be decoded (cut short): save the picture again.")
    return path.stem


def say(image):
    return f"caption of {image}"


def files_of(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_kohya_folder_gets_a_text_file_beside_every_image(tmp_path):
    touch(tmp_path, "10_fox/a.png", "10_fox/b.v2.JPG", "10_fox/notes.md", "10_fox/._a.png", "5_cat/c.webp", "d.png")
    done = run(plan([tmp_path], recursive=True), TextFiles(), read, say)
    assert (done.written, done.skipped, done.failed) == (4, 0, {})
    written = {"10_fox/a.txt", "10_fox/b.v2.txt", "5_cat/c.txt", "d.txt"}
    assert written <= files_of(tmp_path) and len(files_of(tmp_path)) == 6 + len(written)
    assert (tmp_path / "10_fox/b.v2.txt").read_text() == "caption of b.v2"


def test_only_the_folder_itself_is_read_unless_recursive(tmp_path):
    touch(tmp_path, "a.png", "sub/b.png")
    assert [job.name for job in plan([tmp_path]).jobs] == ["a.png"]
    with pytest.raises(FastQwenError, match="--recursive looks into its 1 subfolders"):
        plan([touch(tmp_path / "only", "below/b.png")])


def test_what_is_done_is_skipped_and_overwrite_does_it_again(tmp_path):
    touch(tmp_path, "a.png", "b.png")
    (tmp_path / "a.txt").write_text("mine")
    seen = []
    done = run(plan([tmp_path]), TextFiles(), read, say, lambda *numbers: seen.append(numbers))
    assert (done.written, done.skipped, seen) == (1, 1, [(0, 1), (1, 1)])
    assert (tmp_path / "a.txt").read_text() == "mine"
    assert run(plan([tmp_path]), TextFiles(overwrite=True), read, say).written == 2
    assert (tmp_path / "a.txt").read_text() == "caption of a"


def test_a_broken_image_is_listed_and_the_rest_goes_on(tmp_path):
    touch(tmp_path, "a.png", "broken.png", "c.png", "d.png", "e.png")
    full = {"c": torch.cuda.OutOfMemoryError("no room"), "d": MemoryError()}
    full["e"] = RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: 4 bytes")

    def cautious(image):
        if image in full:
            raise full[image]
        return say(image)

    done = run(plan([tmp_path]), TextFiles(), read, cautious)
    assert done.written == 1 and set(done.failed) == {str(tmp_path / f"{stem}.png") for stem in ("broken", *full)}
    assert all("not enough memory" in done.failed[str(tmp_path / f"{stem}.png")] for stem in full)
    assert "cut short" in done.failed[str(tmp_path / "broken.png")]
    assert files_of(tmp_path) == {"a.png", "a.txt", "broken.png", "c.png", "d.png", "e.png"}


def test_two_images_of_one_stem_are_refused_by_name_and_nothing_is_overwritten(tmp_path):
    touch(tmp_path, "a.png", "a.jpg", "b.png")
    (tmp_path / "a.txt").write_text("mine")
    done = run(plan([tmp_path]), TextFiles(overwrite=True), read, say)
    assert done.written == 1 and (tmp_path / "a.txt").read_text() == "mine"
    assert set(done.failed) == {str(tmp_path / "a.png"), str(tmp_path / "a.jpg")}
    assert "a.jpg' would write the same file 'a.txt'" in done.failed[str(tmp_path / "a.png")]


def test_images_of_two_folders_do_not_share_a_file_of_the_out_dir(tmp_path):
    one, two, out = touch(tmp_path / "one", "a.png"), touch(tmp_path / "two", "a.png", "x/b.png"), tmp_path / "out"
    done = run(plan([one, two], recursive=True, out_dir=out, ext="caption"), TextFiles(), read, say)
    assert done.written == 1 and len(done.failed) == 2 and files_of(out) == {"x/b.caption"}
    again = plan([one / "a.png", one], out_dir=out)  # one image given twice is one image
    assert len(again.jobs) == 1 and not again.refused


def test_links_that_leave_the_folder_are_not_followed(tmp_path):
    outside, root = touch(tmp_path / "outside", "secret.png"), touch(tmp_path / "root", "a.png", "b/c.png")
    (root / "link.png").symlink_to(outside / "secret.png")
    (root / "below").symlink_to(outside)
    (root / "loop").symlink_to(root)
    (root / "inside.png").symlink_to(root / "a.png")
    (root / "broken.png").symlink_to(root / "absent.png")
    planned = plan([root], recursive=True)
    assert [job.name for job in planned.jobs] == ["a.png", "broken.png", "inside.png", "b/c.png"]
    assert planned.notes == ("Links to what lies outside the given folders were left out: 2.",)
    run(planned, TextFiles(), read, say)
    assert files_of(outside) == {"secret.png"}


def test_a_caption_file_that_is_a_link_is_replaced_not_written_through(tmp_path):
    touch(tmp_path, "root/a.png")
    (tmp_path / "elsewhere.txt").write_text("theirs")
    (tmp_path / "root/a.txt").symlink_to(tmp_path / "elsewhere.txt")
    assert run(plan([tmp_path / "root"]), TextFiles(), read, say).skipped == 1
    run(plan([tmp_path / "root"]), TextFiles(overwrite=True), read, say)
    assert (tmp_path / "elsewhere.txt").read_text() == "theirs" and not (tmp_path / "root/a.txt").is_symlink()


def test_shards_share_all_images_without_overlap(tmp_path):
    touch(tmp_path, *(f"{i:02}.png" for i in range(7)))
    shares = [[job.name for job in plan([tmp_path], shard=(i, 3)).jobs] for i in (1, 2, 3)]
    assert sorted(sum(shares, [])) == sorted(path.name for path in tmp_path.iterdir())
    assert [len(share) for share in shares] == [3, 2, 2]


def test_lines_go_on_behind_a_line_that_was_cut_short(tmp_path):
    touch(tmp_path, "x/a.png", "x/b.png", "x/b.jpg", "c.png")
    file, planned = tmp_path / "all.jsonl", plan([tmp_path], recursive=True, one_file=True)
    file.write_text(json.dumps({"file_name": "x/a.png", "text": "mine"}) + '\n{"file_name": "x/b.p', "utf-8")
    assert run(planned, Lines(file), read, say).written == 3
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert [row["file_name"] for row in rows] == ["x/a.png", "c.png", "x/b.jpg", "x/b.png"]
    assert rows[0]["text"] == "mine" and run(planned, Lines(file), read, say).written == 0
    before = file.read_text("utf-8")
    anew = Lines(file, overwrite=True)
    assert file.read_text("utf-8") == before  # until there is something new
    assert run(planned, anew, read, say).written == 4


def test_a_disk_that_refuses_ends_the_run(tmp_path):
    touch(tmp_path, "a.png", "b.png")
    (tmp_path / "out").write_text("a file where the folder should be")
    with pytest.raises(FastQwenError, match="cannot be written"):
        run(plan([tmp_path], out_dir=tmp_path / "out"), TextFiles(), read, say)


@pytest.mark.parametrize("ext", ["png", "", ".", "a/b", "..", "../x"])
def test_an_extension_that_could_hit_other_files_is_refused(tmp_path, ext):
    with pytest.raises(FastQwenError, match="extension"):
        plan([touch(tmp_path, "a.png")], ext=ext)


def test_a_file_that_is_no_image_and_a_path_that_is_not_there_are_refused(tmp_path):
    touch(tmp_path, "a.txt")
    for path, message in ((tmp_path / "a.txt", "is no image"), (tmp_path / "b.png", "No file"), (tmp_path, "no image")):
        with pytest.raises(FastQwenError, match=message):
            plan([path])


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs `fastqwen caption` with a reader and an engine that need no model."""
    asked = []

    def reply(prompt, *, images, **options):
        asked.append((prompt, options["max_tokens"], options["settings"].greedy))
        report = SimpleNamespace(stop_reason="stop token")
        return SimpleNamespace(result=lambda: SimpleNamespace(text=f"Red {images[0]}, snow", report=report))

    engine = SimpleNamespace(config=SimpleNamespace(vision=object()), reply=reply)
    monkeypatch.setattr(caption_command, "load_engine", lambda arguments: engine)
    monkeypatch.setitem(sys.modules, "fastqwen.model.images", SimpleNamespace(read_image=read))

    def call(*arguments):
        asked.clear()
        try:
            code = cli.main(["caption", *map(str, arguments), "--model", "demo"])
        except SystemExit as stop:
            code = stop.code
        return code, *capsys.readouterr(), list(asked)

    return call


def test_the_command_writes_lists_what_failed_and_says_so_by_its_exit_code(tmp_path, command):
    touch(tmp_path, "a.png", "broken.png")
    options = ("--style", "tags", "--trigger", "ohwx", "--exclude", "snow,ice", "--max-tokens", 40, "--greedy")
    code, out, err, asked = command(tmp_path, *options)
    assert code == 1 and out == "captions written: 1, failed: 1\n"
    assert "broken.png" in err and "cut short" in err and len(asked) == 1 and asked[0][1:] == (40, True)
    assert (tmp_path / "a.txt").read_text() == "ohwx, red a"
    (tmp_path / "broken.png").unlink()
    assert command(tmp_path, *options) == (0, "captions written: 0, there already: 1\n", "", [])


@pytest.mark.parametrize(
    "options,message",
    [
        (("--shard", "0/2"), "no I/N"),
        (("--style", "short", "--exclude", "x"), "a sentence has none"),
        (("--max-words", "0"), "--max-words"),
        (("--max-tokens", "0"), "--max-tokens"),
        (("--ext", "png"), "extension"),
    ],
)
def test_a_mistake_in_the_options_is_one_line_and_nothing_is_written(tmp_path, command, options, message):
    touch(tmp_path, "a.png")
    code, out, err, asked = command(tmp_path, *options)
    assert (code, out, asked) == (2, "", []) and message in err and err.count("\n") == 1
    assert files_of(tmp_path) == {"a.png"}


def test_progress_shows_images_a_second_and_the_time_left(capsys):
    with Bar("captions", "image") as bar:
        bar(0, 10)
        for clock in ("start_t", "last_print_t"):  # as if four seconds had passed: it shows itself after one
            setattr(bar.bar, clock, getattr(bar.bar, clock) - 4)
        bar(2, 10)
    shown = capsys.readouterr().err
    assert re.search(r"captions:\s+20%.* 2\.00/10\.0 \[00:04<00:1\d, .*(image/s|s/image)\]", shown), shown


def test_a_file_of_lines_that_cannot_be_read_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00\n")
    for path in (tmp_path, tmp_path / "binary.jsonl"):
        with pytest.raises(FastQwenError, match="cannot be read"):
            Lines(path)
