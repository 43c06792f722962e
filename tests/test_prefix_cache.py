"""Beginnings of prompts that were read before: found or not, the text and the state are the same bits."""

import pytest
import tiny
import torch
from fastqwen.engine import GREEDY, SamplingSettings, load
from fastqwen.engine.kept import Kept
from fastqwen.engine.media import fingerprints
from fastqwen.engine.prefix_cache import Entry, PrefixCache, Prompt
from fastqwen.engine.prompt_reuse import PromptReuse
from fastqwen.engine.session import Session
from fastqwen.mtp.head_drafts import HeadDrafts
from fastqwen.weights import FastQwenError

HOT = SamplingSettings(temperature=1.0, top_k=0, top_p=1.0)
CHUNK = 16
TEXT = "".join(chr(97 + (7 * n + n // 5) % 26) for n in range(80))  # a token a character


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.save_tokenizer(tiny.save_folder(tiny.oracle("gqa4"), tmp_path_factory.mktemp("prefix"), mtp=True))


def loaded(folder, **options):
    engine = load(folder, device="cpu", **options)
    engine.trunk.chunk = CHUNK
    return engine


@pytest.fixture(scope="module")
def engine(folder):
    return loaded(folder)


@pytest.fixture(scope="module")
def plain(folder):
    """The same model, which keeps nothing."""
    return loaded(folder, prefix_cache_bytes=0)


@pytest.fixture(autouse=True)
def _empty(engine):
    engine.free()


def written(engine, length, **options):
    options = {"settings": HOT, "seed": 3, "max_tokens": 6, "mtp": "auto", "template": False} | options
    return engine.generate(TEXT[:length], **options)


@pytest.mark.parametrize("mtp,length,found", [
    ("auto", CHUNK, 0), ("off", CHUNK + 1, 1), ("3", CHUNK + 1, 1), ("auto", 2 * CHUNK, 1), ("off", 2 * CHUNK, 1),
    ("auto", 3 * CHUNK + 5, 3),
])  # fmt: skip
def test_a_prompt_that_was_read_before_gives_the_same_text(engine, plain, mtp, length, found):
    wanted = written(plain, length, mtp=mtp)
    first, second = written(engine, length, mtp=mtp), written(engine, length, mtp=mtp)
    assert first.token_ids == second.token_ids == wanted.token_ids
    assert (first.report.cached_tokens, second.report.cached_tokens) == (0, found * CHUNK)
    assert (second.report.cached_seconds > 0) == bool(found)
    assert second.report.acceptance == wanted.report.acceptance or mtp == "auto"  # the head's rows are the same too


def prompt_state(engine, length, cache, state=None):
    """A session behind a prompt and its drafter: ([logits, every tensor that they hold], tokens found)."""
    session = Session(engine.trunk, 100, state)
    drafter = HeadDrafts(engine.mtp_head, engine.trunk, None, None, 100)
    ids = engine.template.prompt_ids(TEXT[:length], raw=True)
    session.reuse = PromptReuse(cache, "any", CHUNK, drafter)
    logits = session.prefill(ids, on_hidden=drafter.prompt)
    assert session.tokens == ids and session.state.length == session.state.next_position == length
    held = [*session.state.rows(0), *session.state.recurrent()]
    return [logits, *held, *drafter.prompt_cache.rows(0, length - 1), *drafter.waiting_row], session.reuse.tokens


def test_the_state_behind_a_prompt_is_the_same_bit_for_bit(engine):
    cache, shared = PrefixCache(), engine.trunk.new_state(100)
    for length, known in ((3 * CHUNK + 3, 0), (2 * CHUNK + 9, 2), (4 * CHUNK, 3), (4 * CHUNK + 1, 4)):
        wanted, _ = prompt_state(engine, length, PrefixCache(0))
        shared.reset()  # as replies on a GPU use one after the other
        found, tokens = prompt_state(engine, length, cache, shared)
        assert tokens == known * CHUNK
        assert len(found) == len(wanted)
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_only_the_same_beginning_is_found(engine, plain):
    written(engine, 60)
    other = TEXT[:20] + "!" + TEXT[21:60]
    found = engine.generate(other, settings=HOT, seed=3, max_tokens=6, template=False)
    assert found.report.cached_tokens == CHUNK
    assert found.token_ids == plain.generate(other, settings=HOT, seed=3, max_tokens=6, template=False).token_ids
    assert engine.generate("?" + TEXT, settings=GREEDY, max_tokens=2, template=False).report.cached_tokens == 0


def test_settings_that_change_values_are_told_apart(engine, folder, monkeypatch):
    written(engine, 40)
    kv = engine.trunk.kv
    try:
        engine.trunk.kv = "int8"
        assert written(engine, 40).report.cached_tokens == 0
        engine.trunk.kv = kv
        assert written(engine, 40).report.cached_tokens == 2 * CHUNK
        engine.trunk.pass_kernels = False
        assert written(engine, 40).report.cached_tokens == 0
        engine.trunk.pass_kernels = True
        if engine.device.type == "cpu":  # where threads decide in which order sums add up
            with monkeypatch.context() as other:
                other.setattr(torch, "get_num_threads", lambda: 7)
                assert written(engine, 40).report.cached_tokens == 0
        engine.trunk.chunk = 2 * CHUNK
        assert written(engine, 40).report.cached_tokens == 0
    finally:
        engine.trunk.kv, engine.trunk.chunk, engine.trunk.pass_kernels = kv, CHUNK, True


def test_what_stands_at_a_place_of_the_prompt_is_part_of_the_key():
    cat, dog, later = (Prompt([5] * 8, contents) for contents in ([(1, "cat")], [(1, "dog")], [(2, "cat")]))
    assert cat.part(0, 4) != dog.part(0, 4) != Prompt([5] * 8).part(0, 4)
    assert cat.part(4, 8) == dog.part(4, 8)  # the entry before it has it already
    assert cat.part(0, 4) != later.part(0, 4)
    assert (cat.shared(cat), cat.shared(dog), cat.shared(later)) == (8, 1, 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64])
def test_rows_of_pictures_have_equal_fingerprints_only_where_they_are_equal(dtype):
    rows = (torch.randn(40, 64, generator=torch.Generator().manual_seed(0)) * 100).to(dtype)
    rows[7] = rows[3]
    whole = fingerprints(rows)
    prints = [whole[16 * row : 16 * row + 16] for row in range(40)]
    assert len(whole) == 16 * 40 and len(set(prints)) == 39 and prints[7] == prints[3]
    assert fingerprints(rows.T.contiguous().T) == whole
    # Sign bits of two values, and two words that change places: sums that are not random would not see them.
    signs, moved = rows.clone(), rows.clone()
    signs[0, [5, 9]] = -signs[0, [5, 9]]
    moved[0, [2, 3, 4, 5]] = moved[0, [4, 5, 2, 3]]
    assert len({fingerprints(some[:1]) for some in (rows, signs, moved)}) == 3


def test_an_entry_without_the_heads_rows_is_completed_by_a_reply_that_drafts(engine, plain):
    written(engine, 40, mtp="off")
    size = engine.prefix_cache.bytes
    assert written(engine, 40, mtp="off").report.cached_tokens == 2 * CHUNK
    assert written(engine, 40, mtp="2").report.cached_tokens == 0
    assert engine.prefix_cache.bytes > size
    for mtp in ("2", "off"):
        again = written(engine, 40, mtp=mtp)
        assert again.report.cached_tokens == 2 * CHUNK
        assert again.token_ids == written(plain, 40, mtp=mtp).token_ids


def test_the_budget_holds_and_what_was_used_last_stays(folder):
    engine = loaded(folder)

    def cached(text):  # without drafts every entry has one size: keys and values of a chunk, and one state
        return engine.generate(text, max_tokens=1, template=False, mtp="off").report.cached_tokens // CHUNK

    cached(TEXT[:49])
    one = engine.prefix_cache.bytes // 3
    assert engine.prefix_cache.bytes == 3 * one
    engine.free()
    engine.prefix_cache.budget_bytes = 3 * one
    cached(TEXT[:40])
    for other in ("a" * 20, "b" * 20):
        cached(other)
        assert cached(TEXT[:40]) == 2
        assert engine.prefix_cache.bytes == 3 * one
    assert cached("b" * 80) == 1
    assert cached("b" * 80) == 3  # the start of a long prompt, as far as it fits
    engine.free()
    engine.prefix_cache.budget_bytes = one - 1
    assert cached(TEXT[:40]) == cached(TEXT[:40]) == 0


def test_ends_of_chains_go_before_their_starts():
    cache, chain = PrefixCache(4), []
    one, none = Kept([torch.zeros(1, dtype=torch.uint8)] * 16), Kept([])
    size = one.bytes
    cache.budget_bytes = 4 * size

    def entry(end):
        return Entry(end, one, none, None, 0, 0.0, 1, False)

    def found(ids):
        return cache.longest("any", Prompt(ids), lambda entry: True)

    for end in (1, 2, 3):
        chain.append(entry(end))
        assert cache.make_room(size, []) and cache.add("any", Prompt([1, 2, 3]), chain[:-1], chain[-1])
    other = entry(1)
    assert cache.make_room(size, []) and cache.add("any", Prompt([9]), [], other)
    assert found([9]) == [other]
    assert cache.make_room(2 * size, []) and found([1, 2, 3]) == chain[:1]
    assert not cache.make_room(4 * size, chain[:1]) and not cache.make_room(5 * size, [])
    assert not cache.add("any", Prompt([1, 2, 3]), chain[:2], chain[2])  # its chain is gone


@pytest.mark.parametrize("chunks", [1, 2])
def test_an_interrupt_in_a_long_prompt_leaves_whole_entries(engine, plain, chunks):
    def stop(progress):
        if progress.phase == "prefill" and progress.done >= chunks * CHUNK:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        written(engine, 60, on_step=stop)
    found = written(engine, 60)
    assert found.report.cached_tokens == chunks * CHUNK
    assert found.token_ids == written(plain, 60).token_ids


def test_an_interrupt_while_an_entry_is_copied_leaves_none(engine, plain, monkeypatch):
    from fastqwen.engine import prompt_reuse

    calls = []

    def interrupted(tensors):
        calls.append(0)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return Kept(tensors)

    monkeypatch.setattr(prompt_reuse, "Kept", interrupted)
    with pytest.raises(KeyboardInterrupt):
        written(engine, 40)
    assert len(engine.prefix_cache) == engine.prefix_cache.bytes == 0
    found = written(engine, 40)
    assert found.report.cached_tokens == 0 and found.token_ids == written(plain, 40).token_ids


def test_free_drops_it_and_a_bad_size_is_refused(engine, folder):
    written(engine, 40)
    assert engine.prefix_cache.bytes > 0
    engine.free()
    assert engine.prefix_cache.bytes == 0 and written(engine, 40).report.cached_tokens == 0
    with pytest.raises(FastQwenError, match="prefix_cache_bytes is -1"):
        load(folder, prefix_cache_bytes=-1)


@pytest.mark.gpu
@pytest.mark.parametrize("mtp", ["off", "auto", "3"])
def test_a_gpu_writes_the_same_text_over_buffers_that_replies_share(mtp):
    engine, plain = load("demo", device="cuda"), load("demo", device="cuda", prefix_cache_bytes=0)
    engine.trunk.chunk = plain.trunk.chunk = 128
    start = "A fox walks through the snow and looks at every tree. " * 30
    for end, known in (("What does it see?", False), ("What does it hear?", True), ("What does it see?", True)):
        options = {"settings": HOT, "seed": 3, "max_tokens": 60, "mtp": mtp}
        found = engine.generate(start + end, **options)
        assert found.token_ids == plain.generate(start + end, **options).token_ids
        assert (found.report.cached_tokens > 0) == known
        engine.generate("something else in the same buffers", **options)
