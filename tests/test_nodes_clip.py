"""The handle on the CLIP wire: sharing, laziness, manners towards nodes that expect a text encoder."""

import copy
import gc
import io
import logging
from types import SimpleNamespace

import pytest
from fastqwen.nodes.clip import FastQwenClip, NotTextGeneration, require_fastqwen, shared_engine
from fastqwen.weights import FastQwenError

REQUEST = SimpleNamespace(
    prompt="p", system=None, thinking=False, template=True, settings=None, seed=0, max_tokens=4, mtp="auto"
)


class FakeEngine:
    """Answers `reply` as the engine's API describes it."""

    def __init__(self, path, notes=()):
        self.path = path
        self.notes = list(notes)
        self.calls = []

    def reply(self, prompt, *, on_step, **arguments):
        self.calls.append((prompt, arguments))
        return SimpleNamespace(result=lambda: self.finish(prompt, on_step))

    def finish(self, prompt, on_step):
        if on_step is not None:
            on_step(SimpleNamespace(phase="decode", done=1, total=4, tokens_per_second=None))
        report = SimpleNamespace(new_tokens=4, tokens_per_second=None, stop_reason="length", notes=self.notes)
        return SimpleNamespace(text=prompt.upper(), thinking="", report=report)


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
        clip.generate_text(REQUEST, on_step=interrupt)
    assert clip.generate_text(REQUEST).text == "P"


def test_out_of_memory_stays_torchs_own_error():
    import torch

    def load(path):
        raise torch.OutOfMemoryError("no room")

    with pytest.raises(torch.OutOfMemoryError):
        FastQwenClip("m", shared_engine("big", load)).load()


def test_unknown_attributes_are_absent_and_say_why(loads):
    clip = FastQwenClip("m", shared_engine("attributes", loads))
    assert not hasattr(clip, "tokenize")
    assert getattr(clip, "patcher", None) is None
    with pytest.raises(NotTextGeneration, match=r"^The model from 'Load FastQwen' only writes text .* 'tokenize': "):
        clip.tokenize("text")
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
