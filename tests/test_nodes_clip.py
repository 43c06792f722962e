"""The handle on the CLIP wire: sharing, laziness, manners towards nodes that expect a text encoder."""

import copy
import gc
import io
import logging
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest
from fastqwen.engine import GREEDY
from fastqwen.nodes.clip import FastQwenClip, NotTextGeneration, every_shared_engine, require_fastqwen, shared_engine
from fastqwen.nodes.request import TextRequest
from fastqwen.weights import FastQwenError
from reports import report

REQUEST = TextRequest("p", None, False, True, settings=GREEDY, seed=0, max_tokens=4, mtp="auto")


class FakeEngine:
    """Answers `reply` as the engine's API describes it."""

    def __init__(self, path, notes=()):
        self.path = path
        self.notes = list(notes)
        self.calls = []
        self.freed = False

    def reply(self, prompt, *, on_step, **arguments):
        self.calls.append((prompt, arguments))
        return FakeReply(lambda: self.finish(prompt, on_step), prompt)

    def free(self):
        self.freed = True

    def finish(self, prompt, on_step):
        if on_step is not None:
            on_step(SimpleNamespace(phase="decode", done=1, total=4, tokens_per_second=None))
        found = report(new_tokens=4, tokens_per_second=0.0, stop_reason="length", notes=self.notes)
        return SimpleNamespace(text=prompt.upper(), thinking="", report=found)


class FakeReply:
    def __init__(self, result, prompt):
        self.result = result
        self.deltas = [SimpleNamespace(kind="answer", text=letter) for letter in prompt]

    def __iter__(self):
        return iter(self.deltas)


class Watch:
    """Looks on; `on_step` may be replaced."""

    def __init__(self, on_step=lambda progress: None):
        self.on_step = on_step
        self.text = ""

    def on_text(self, delta):
        self.text += delta.text

    def flush(self):
        self.text += "."


@pytest.fixture
def loads():
    """A loader that keeps every engine it made."""
    made = []

    def load(path):
        made.append(FakeEngine(path))
        return made[-1]

    load.made = made
    return load


def test_nothing_is_loaded_until_it_is_needed(loads):
    clip = FastQwenClip("m", shared_engine("lazy", loads))
    assert loads.made == []
    assert clip.generate_text(REQUEST).text == "P"
    clip.load()
    assert len(loads.made) == 1


def test_handles_of_one_checkpoint_and_their_clones_share_one_engine(loads):
    first = FastQwenClip("m", shared_engine("same", loads))
    second = FastQwenClip("m", shared_engine("same", loads))
    other = FastQwenClip("n", shared_engine("other", loads))
    for clip in (first, second, first.clone(), copy.copy(first), other):
        clip.generate_text(REQUEST)
    assert [engine.path for engine in loads.made] == ["same", "other"]
    assert len(loads.made[0].calls) == 4


def test_the_engine_goes_with_its_last_handle(loads):
    clip = FastQwenClip("m", shared_engine("once", loads))
    clip.load()
    clone = clip.clone()
    del clip
    gc.collect()
    clone.generate_text(REQUEST)
    assert len(loads.made) == 1
    del clone
    gc.collect()
    FastQwenClip("m", shared_engine("once", loads)).load()
    assert len(loads.made) == 2


def test_unloading_frees_the_engine_and_the_next_use_loads_it_again(loads):
    clip = FastQwenClip("m", shared_engine(("unload", 1), loads))
    assert clip.shared in every_shared_engine()
    assert clip.shared.unload() is False
    clip.generate_text(REQUEST)
    assert clip.shared.unload() is True and loads.made[0].freed
    engine = weakref.ref(loads.made.pop())
    assert engine() is None, "something still holds the engine"
    assert clip.generate_text(REQUEST).text == "P"
    del clip
    gc.collect()
    assert not [shared for shared in every_shared_engine() if shared.key == ("unload", 1)]


def test_other_load_options_are_another_engine(loads):
    first, second = (FastQwenClip("m", shared_engine(("p", option), loads)) for option in ("int8", "bf16"))
    first.load(), second.load()
    assert [engine.path for engine in loads.made] == [("p", "int8"), ("p", "bf16")]


def test_text_is_shown_while_it_is_written(loads):
    watch = Watch()
    FastQwenClip("m", shared_engine("watched", loads)).generate_text(replace(REQUEST, prompt="abc"), watch)
    assert watch.text == "abc."


def test_a_failed_load_is_tried_again():
    outcomes = [FastQwenError("broken"), FakeEngine("p")]

    def load(path):
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    clip = FastQwenClip("m", shared_engine("flaky", load))
    with pytest.raises(FastQwenError, match="^broken$"):
        clip.load()
    assert clip.generate_text(REQUEST).text == "P"


def test_an_exception_from_on_step_passes_and_the_next_run_works(loads):
    class Interrupted(BaseException):
        pass

    def interrupt(progress):
        raise Interrupted

    clip = FastQwenClip("m", shared_engine("interrupted", loads))
    with pytest.raises(Interrupted):
        clip.generate_text(REQUEST, Watch(interrupt))
    assert clip.generate_text(REQUEST).text == "P"


def test_out_of_memory_stays_torchs_own_error():
    import torch

    def load(path):
        raise torch.OutOfMemoryError("no room")

    with pytest.raises(torch.OutOfMemoryError):
        FastQwenClip("m", shared_engine("big", load)).load()


def test_unknown_attributes_are_absent_and_say_why(loads):
    clip = FastQwenClip("m", shared_engine("attributes", loads))
    assert not hasattr(clip, "encode_from_tokens")
    with pytest.raises(NotTextGeneration, match=r"^The model from 'Load FastQwen' only writes text .* 'encode_from"):
        clip.encode_from_tokens_scheduled(clip.tokenize("text"))
    with pytest.raises(NotTextGeneration, match=r"only writes text .*tokens\['l'\]"):
        clip.tokenize("text")["l"]
    assert loads.made == []


def test_the_handle_prints_short(loads):
    clip = FastQwenClip("long " * 1000, shared_engine("print", loads))
    assert str(clip) == repr(clip)
    assert len(str(clip)) < 100


def test_a_foreign_clip_is_named_in_one_sentence():
    class Encoder:
        pass

    foreign = SimpleNamespace(cond_stage_model=Encoder())
    with pytest.raises(
        FastQwenError, match=r"^The clip input is a types.SimpleNamespace \(.*Encoder\), not a FastQwen"
    ):
        require_fastqwen(foreign)
    with pytest.raises(FastQwenError, match="^The clip input is empty, not a FastQwen model"):
        require_fastqwen(None)


def test_our_own_handle_is_accepted(loads):
    clip = FastQwenClip("m", shared_engine("own", loads))
    assert require_fastqwen(clip) is clip


@pytest.mark.parametrize("encoding", ["cp1252", "gbk", "ascii"])
def test_a_run_logs_one_line_and_a_load_its_notes_once_on_any_console(encoding, monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", True)
    raw = io.BytesIO()
    handler = logging.StreamHandler(io.TextIOWrapper(raw, encoding=encoding, write_through=True))
    handler.handleError = lambda record: pytest.fail("logging raised")
    logger = logging.getLogger("fastqwen.nodes.clip")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        emoji = "\N{GRINNING FACE}"
        clip = FastQwenClip(emoji, shared_engine(emoji, lambda path: FakeEngine(path, notes=[f"about {emoji}"])))
        for _ in range(3):
            clip.generate_text(REQUEST)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    assert raw.getvalue().count(b"\n") == 4
    assert raw.getvalue().count(b"stopped: length") == 3 and raw.getvalue().count(b"about ") == 1
