"""Replies of a loaded engine: streaming, seeds, limits, reasoning, notes."""

import dataclasses
import itertools
import json
from types import SimpleNamespace

import pytest
import tiny
import torch
from fastqwen import arguments
from fastqwen.attention import KINDS
from fastqwen.engine import GREEDY, MTP_CHOICES, FastQwenError, SamplingSettings, load
from fastqwen.engine.sampling import Sampler
from fastqwen.mtp.estimates import Costs, Experience
from fastqwen.weights.quantize import FORMATS

HOT = SamplingSettings(temperature=1.0, top_k=0, top_p=1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.save_tokenizer(tiny.save_folder(tiny.oracle("gqa4"), tmp_path_factory.mktemp("engine"), mtp=True))


@pytest.fixture(scope="module")
def engine(folder):
    return load(folder)


def test_same_seed_gives_the_same_text_and_another_seed_another(engine):
    first = engine.generate("a fox", settings=HOT, seed=4, max_tokens=30)
    assert engine.generate("a fox", settings=HOT, seed=4, max_tokens=30).token_ids == first.token_ids
    assert engine.generate("a fox", settings=HOT, seed=5, max_tokens=30).token_ids != first.token_ids


def test_a_second_load_of_the_same_file_gives_the_same_text(engine, folder):
    wanted = engine.generate("a fox", settings=HOT, seed=4, max_tokens=30).token_ids
    assert load(folder).generate("a fox", settings=HOT, seed=4, max_tokens=30).token_ids == wanted


@pytest.mark.parametrize("mtp", MTP_CHOICES)
def test_mtp_setting_never_changes_the_text(engine, mtp):
    wanted = engine.generate("a fox", settings=HOT, seed=9, max_tokens=30, mtp="off")
    found = engine.generate("a fox", settings=HOT, seed=9, max_tokens=30, mtp=mtp)
    assert found.token_ids == wanted.token_ids
    assert found.report.mtp == mtp
    if mtp.isdigit():
        assert found.report.shapes == {"-".join("1" * int(mtp)): found.report.verify_passes}


def test_joined_deltas_equal_the_result(engine):
    reply = engine.reply("a fox", settings=HOT, seed=2, max_tokens=60)
    deltas = list(reply)
    result = reply.result()
    assert "".join(d.text for d in deltas if d.kind == "answer") == result.text
    assert "".join(d.text for d in deltas if d.kind == "thinking") == result.thinking
    assert reply.result() is result


@pytest.mark.parametrize("limit", [1, 2, 17])
def test_max_tokens_bounds_the_new_tokens(engine, limit):
    result = engine.generate("x", settings=GREEDY, max_tokens=limit)
    assert len(result.token_ids) == result.report.new_tokens <= limit


def test_reasoning_that_runs_out_of_tokens_leaves_an_empty_answer_and_no_exception(engine):
    result = engine.generate("a hard question", thinking=True, settings=GREEDY, max_tokens=8)
    assert result.text == ""
    assert result.report.stop_reason == "length"
    # The same tokens, read as an answer: the reasoning was kept, not lost.
    assert len(result.token_ids) == 8


def test_small_budget_without_thinking_gives_an_answer(engine):
    assert engine.generate("a hard question", settings=HOT, seed=1, max_tokens=8).text


def test_stop_text_cuts_the_answer_and_is_reported(engine):
    whole = engine.generate("a fox", settings=HOT, seed=3, max_tokens=60).text
    stop = whole[20:23]
    cut = engine.generate("a fox", settings=HOT, seed=3, max_tokens=60, stop=[stop])
    assert cut.text == whole[: whole.index(stop)].rstrip()
    assert cut.report.stop_reason == "stop text"
    assert cut.report.new_tokens == len(cut.token_ids) < 60


def test_a_reply_that_a_stop_text_ends_reports_all_that_others_do(engine):
    options = dict(settings=HOT, seed=3, max_tokens=20)
    prompt = "a fox " * (engine.trunk.chunk // 5)  # a chunk and more, which is kept
    whole = engine.generate(prompt, **options)
    cut = engine.generate(prompt, **options, stop=[whole.text[4:6]]).report
    assert cut.stop_reason == "stop text"
    assert cut.cached_tokens == engine.trunk.chunk and cut.planner.keys() == whole.report.planner.keys() != set()


@pytest.mark.parametrize("mtp", ["off", "5"])
def test_a_stop_text_before_a_row_that_nothing_can_be_drawn_from_ends_the_reply_with_any_drafts(
    engine, mtp, monkeypatch
):
    """The row is one of the pass that completes the stop text where that drafts, and is never made otherwise."""
    options = dict(settings=HOT, seed=3, max_tokens=12)
    ids = engine.generate("a fox", **options, mtp="off").token_ids
    text = engine.generate("a fox", **options | {"max_tokens": 4}, mtp="off").text
    draw = Sampler.draw

    def until_the_fifth(sampler, logits, history, index):
        return draw(sampler, logits if index < 4 else logits * float("nan"), history, index)

    monkeypatch.setattr(Sampler, "draw", until_the_fifth)
    monkeypatch.setattr(
        Sampler, "candidates", lambda self, logits, history, index, count: [ids[index], *range(1, count)]
    )
    found = engine.generate("a fox", **options, mtp=mtp, stop=[text[-1]])
    assert found.report.stop_reason == "stop text" and 1 < len(found.token_ids) <= 4
    assert found.token_ids == ids[: len(found.token_ids)]
    with pytest.raises(FastQwenError, match="no token can be drawn"):
        engine.generate("a fox", **options, mtp=mtp)


def test_interrupt_ends_the_reply_with_what_was_written(engine):
    result = engine.generate(
        "a fox", settings=HOT, max_tokens=60, on_step=lambda p: p.phase == "decode" and p.done >= 6
    )
    assert result.report.stop_reason == "interrupted" and len(result.token_ids) == 6


def test_a_reply_that_its_reader_closed_has_no_result_and_says_so(engine):
    reply = engine.reply("a fox", max_tokens=8)
    deltas = iter(reply)
    next(deltas)
    deltas.close()
    with pytest.raises(RuntimeError, match="closed before its end"):
        reply.result()
    assert engine.generate("a fox", max_tokens=3).token_ids


def test_engine_is_usable_after_a_callback_raised(engine):
    def on_step(progress):
        raise KeyboardInterrupt

    wanted = engine.generate("a fox", settings=HOT, max_tokens=20).token_ids
    reply = engine.reply("a fox", settings=HOT, max_tokens=20, on_step=on_step)
    with pytest.raises(KeyboardInterrupt):
        list(reply)
    with pytest.raises(KeyboardInterrupt):
        reply.result()
    assert engine.generate("a fox", settings=HOT, max_tokens=20).token_ids == wanted


def test_report_has_every_number_and_is_json(engine):
    report = engine.generate("a fox", settings=HOT, max_tokens=10, mtp="off").report
    value = json.loads(json.dumps(report.to_dict()))
    assert set(value) == {
        "prompt_tokens", "new_tokens", "cached_tokens", "prefill_seconds", "cached_seconds", "decode_seconds",
        "tokens_per_second", "verify_passes",
        "accepted_per_pass", "acceptance", "shapes", "draft_ms", "verify_ms", "peak_memory_bytes", "stop_reason",
        "mtp", "planner", "notes", "image_tokens", "image_seconds", "vision_seconds",
    }  # fmt: skip
    assert value["prompt_tokens"] == len(engine.template.prompt_ids("a fox"))
    assert value["verify_passes"] == value["new_tokens"] - 1
    assert value["prefill_seconds"] > 0 and value["decode_seconds"] > 0 and value["tokens_per_second"] > 0
    assert dataclasses.is_dataclass(report)


def test_an_auto_reply_reports_what_was_learnt_and_the_shapes_used(engine, monkeypatch):
    # On a CPU by a clock on which every pass takes as long: a busy machine's own can make drafts look too dear to try.
    monkeypatch.setattr("fastqwen.engine.passes.time", SimpleNamespace(perf_counter=itertools.count().__next__))
    costs = Costs()  # whatever replies came before
    costs.expect(verify_seconds=1.0, first_seconds=0.2, next_seconds=0.1)
    monkeypatch.setattr(engine, "_costs", costs)
    monkeypatch.setattr(engine, "_statistics", Experience())
    report = engine.generate("a fox", settings=GREEDY, max_tokens=64, mtp="auto").report
    assert sum(report.shapes.values()) == report.verify_passes and set(report.shapes) - {"off"}
    rates, options = report.planner["rates"], report.planner["options"]
    assert [len(level) for level in rates] == [7] * 7 and all(0 <= rate <= 1 for level in rates for rate in level)
    assert len(options) == 5 and all(option["tokens_per_second"] > 0 for option in options)
    accepted = sum(map(sum, report.acceptance))
    assert report.accepted_per_pass == pytest.approx(accepted / report.verify_passes)


def test_penalties_break_a_repeating_reply(engine):
    """Greedy decoding of a random model falls into a loop; a presence penalty forbids it."""
    loop = engine.generate("a fox", settings=GREEDY, max_tokens=60)
    settings = SamplingSettings(greedy=True, presence_penalty=5.0, repetition_penalty=5.0)
    varied = engine.generate("a fox", settings=settings, max_tokens=60)
    assert len(set(varied.token_ids)) / len(varied.token_ids) > len(set(loop.token_ids)) / len(loop.token_ids)


def test_vocabulary_rows_beyond_the_tokenizer_are_never_drawn(engine):
    result = engine.generate("a fox", settings=SamplingSettings(temperature=10.0, top_k=0, top_p=1.0), max_tokens=200)
    assert max(result.token_ids) < engine.tokenizer.size < engine.config.vocab_size


def test_prompt_longer_than_the_context_is_refused_with_both_numbers(engine):
    with pytest.raises(FastQwenError, match="4096"):
        engine.reply("x" * 5000)


def test_a_context_limit_bounds_prompt_and_reply(folder):
    limited = load(folder, device="cpu", context=40)
    with pytest.raises(FastQwenError, match="the context limit holds 40"):
        limited.reply("x" * 100)
    wanted = load(folder, device="cpu").generate("x", settings=HOT, max_tokens=60)
    found = limited.generate("x", settings=HOT, max_tokens=60)
    room = 40 - found.report.prompt_tokens + 1  # the last token is drawn and not fed
    assert found.token_ids == wanted.token_ids[:room] and found.report.stop_reason == "length"
    with pytest.raises(FastQwenError, match="context is 0"):
        load(folder, context=0)


def test_keys_and_values_that_do_not_fit_are_refused_with_what_would(folder, monkeypatch):
    engine = load(folder, device="cpu", kv="fp32")
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: None)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (2**20, 2**30))
    assert engine.memory.room_for(500) == 1024
    with pytest.raises(
        FastQwenError, match="4000 tokens of prompt and reply need .* MiB .*enough for about 1[0-9]{3} "
    ):
        engine.memory.room_for(4000)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (2**40, 2**41))
    assert (
        engine.memory.room_for(3000) == engine.config.max_positions
    )  # 4096 is the next class and the model's own limit


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 0}, {"max_tokens": 1.5}, {"mtp": "7"}, {"stop": [""]}, {"stop": 5}, {"seed": 1.5},
        {"seed": None}, {"settings": {"top_k": 3}}, {"on_step": 5},
    ],
    ids=str,
)  # fmt: skip
def test_options_out_of_range_are_refused_in_one_sentence(engine, options):
    with pytest.raises(FastQwenError) as caught:
        engine.reply("x", **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"vram_budget": "5"}, {"quantize": "w3"}, {"prefix_cache_bytes": "1"}, {"draft_rows": "x"}, {"context": "9"},
        {"kv": 5}, {"dtype": 3}, {"path": None}, {"path": ""},
    ],
    ids=str,
)  # fmt: skip
def test_load_refuses_what_no_checkpoint_takes_in_one_sentence(folder, options):
    with pytest.raises(FastQwenError, match="is|must be") as caught:
        load(**{"path": folder, "device": "cpu"} | options)
    assert "\n" not in str(caught.value)


def test_times_of_passes_whose_draws_the_host_makes_are_kept_apart(engine):
    """Such a draw is part of a verify pass: for other settings it would look slow, and drafts dear."""
    costs = [engine._planner(SamplingSettings(top_k=top_k), 64).costs for top_k in (20, 40, 0, 1000)]
    assert costs[0] is costs[1] is engine._planner(GREEDY, 64).costs and costs[2] is costs[3] is not costs[0]


def test_what_was_learnt_of_drafts_is_kept_for_settings_like_these(engine):
    learnt = [engine._planner(settings, 64).statistics for settings in (GREEDY, SamplingSettings(temperature=0), HOT)]
    assert learnt[0] is learnt[1] is not learnt[2]
    assert engine._planner(dataclasses.replace(HOT), 9).statistics is learnt[2]
    assert engine._planner(dataclasses.replace(HOT, temperature=0.9), 64).statistics not in learnt


@pytest.mark.skipif(torch.cuda.is_available(), reason="threads matter on a CPU only")
def test_changed_thread_count_is_said(engine):
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        notes = engine.generate("x", max_tokens=2).report.notes
    finally:
        torch.set_num_threads(before)
    assert any("threads" in note for note in notes)


def test_empty_prompt_gives_a_reply(engine):
    assert engine.generate("", settings=HOT, max_tokens=5).report.prompt_tokens > 0


def test_command_line_offers_the_engines_own_choices():
    """The command line spells them out, because it must start without torch."""
    assert arguments.MTP_CHOICES == MTP_CHOICES
    assert ("auto", *KINDS) == arguments.KV_KINDS
    assert arguments.QUANTISED == FORMATS


def test_replying_imports_neither_transformers_nor_the_network_libraries(folder, tmp_path):
    """transformers 4 and 5 are then both fine to have installed, and its import costs nobody seconds."""
    import subprocess
    import sys

    import fastqwen

    home = fastqwen.__path__[0]
    code = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('fastqwen', {home + '/__init__.py'!r}, "
        f"submodule_search_locations=[{home!r}])\n"
        "module = importlib.util.module_from_spec(spec); sys.modules['fastqwen'] = module\n"
        "spec.loader.exec_module(module)\n"
        "from fastqwen.engine import load\n"
        f"load({str(folder)!r}, device='cpu').generate('x', max_tokens=3)\n"
        "print([m for m in ('transformers', 'requests', 'huggingface_hub', 'triton') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
