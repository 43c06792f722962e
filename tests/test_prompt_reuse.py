"""Beginnings shorter than a chunk: where a prompt is cut for them, when they are found, and that no bit changes.

On a CPU the number of rows of a pass changes bits. So here the trunk reads a prompt in blocks of GRAIN tokens, whatever
passes it is given, and then has the same bits for any cut at multiples of that, as a GPU's kernels do by themselves.
"""

import weakref
from itertools import pairwise

import pytest
import tiny
import torch
from fastqwen.engine import SamplingSettings, load, prompt_reuse
from fastqwen.engine.kept import Kept, bytes_for
from fastqwen.engine.prefix_cache import Entry, Speed
from fastqwen.model.convert import convert
from fastqwen.model.trunk import GRAIN as GPU_GRAIN
from fastqwen.mtp.head_drafts import HeadDrafts
from fastqwen.weights import Checkpoint
from fastqwen.weights.packed_linear import PackedLinear
from test_packed_engine import WIDE

HOT = SamplingSettings(temperature=1.0, top_k=0, top_p=1.0)
GRAIN, CHUNK, LEAST = 16, 128, 32
TEXT = "".join(chr(97 + (7 * n + n // 5) % 26) for n in range(250))  # a token a character


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.save_tokenizer(tiny.save_folder(tiny.oracle("gqa4"), tmp_path_factory.mktemp("reuse"), mtp=True))


def loaded(folder, **options):
    """An engine and the list of where its passes over prompts ended."""
    engine, ends = load(folder, device="cpu", **options), []
    trunk = engine.trunk
    at_once = trunk.prefill

    def prefill(embeddings, state, positions):
        blocks = zip(embeddings.split(GRAIN), positions.split(GRAIN, 1), strict=True)
        hidden = torch.cat([at_once(rows, state, places) for rows, places in blocks])
        ends.append(state.length)
        return hidden

    trunk.chunk, trunk.prefill, trunk.grain = CHUNK, prefill, lambda state: GRAIN
    return engine, ends


@pytest.fixture(scope="module")
def both(folder):
    """With a cache and without."""
    return loaded(folder), loaded(folder, prefix_cache_bytes=0)


@pytest.fixture
def ask(both, monkeypatch):
    """Runs a prompt on both: (where passes ended, tokens found), the texts being the same."""
    monkeypatch.setattr(prompt_reuse, "LEAST", LEAST)
    (engine, ends), (plain, _) = both
    engine.free()

    def run(prompt, **options):
        ends.clear()
        options = {"settings": HOT, "seed": 3, "max_tokens": 5, "mtp": "off", "template": False} | options
        found = engine.generate(prompt, **options)
        assert found.token_ids == plain.generate(prompt, **options).token_ids
        return list(ends), found.report.cached_tokens

    return run


def test_the_second_prompt_is_cut_where_it_leaves_the_first_and_the_third_is_found_there(ask):
    assert ask(TEXT[:60] + "?" * 20) == ([80], 0)
    assert ask(TEXT[:60] + "!" * 20) == ([48, 80], 0)
    assert ask(TEXT[:60] + "." * 25) == ([85], 48)
    assert ask(TEXT[:60] + "." * 25) == ([85], 48)  # what else it shares is less than LEAST
    assert ask(TEXT[:40] + "." * 40) == ([32, 80], 0)
    assert ask(TEXT[:40] + "," * 40) == ([80], 32)
    assert ask(TEXT[:60] + "." * 25) == ([85], 48)  # the longer one


def test_the_same_prompt_again_is_found_up_to_its_last_tokens(ask):
    assert [ask(TEXT[:100]) for _ in range(3)] == [([100], 0), ([80, 100], 0), ([100], 80)]


@pytest.mark.parametrize("mtp", ["off", "3"])
def test_a_prompt_is_found_behind_its_system_message_from_the_second_time_on(ask, both, mtp):
    system = {"system": TEXT[:70], "template": True, "mtp": mtp}
    engine = both[0][0]
    ids = engine.template.prompt_ids("a cat", system=TEXT[:70])
    end = prompt_reuse.system_end(ids, engine.tokenizer)
    assert ids[end - 1] == engine.tokenizer.token_id("<|im_end|>") and 70 < end < 90
    cut = end // GRAIN * GRAIN
    assert ask("a cat", **system) == ([cut, len(ids)], 0)
    assert ask("a dog", **system) == ([len(ids)], cut)
    assert prompt_reuse.system_end(engine.template.prompt_ids("a cat"), engine.tokenizer) == 0


def test_no_cut_leaves_a_pass_of_few_tokens(ask):
    """Those run by other kernels: the last tokens of a prompt are read by the same as without a cut."""
    for end in ("?" * 40, "!" * 40):
        ask(TEXT[:70] + end)
    assert ask(TEXT[:70] + "." * 40)[1] == 64
    assert ask(TEXT[:72]) == ([48, 72], 0)
    assert ask(TEXT[:72]) == ([72], 48)
    assert ask(TEXT[:73]) == ([73], 64)


def test_a_cut_in_a_later_chunk_follows_what_is_kept_at_its_start(ask):
    assert ask(TEXT[:180] + "?" * 20) == ([128, 200], 0)
    assert ask(TEXT[:180] + "!" * 20) == ([176, 200], 128)
    assert ask(TEXT[:180] + "." * 90) == ([256, 270], 176)
    assert ask(TEXT[:180] + "." * 90) == ([270], 256)


def test_an_entry_behind_a_cut_gets_the_heads_rows_when_a_reply_drafts(ask):
    for end in ("?", "!", "."):
        ask(TEXT[:60] + end * 20)
    assert ask(TEXT[:60] + "," * 20, mtp="3") == ([48, 80], 0)
    assert ask(TEXT[:60] + ";" * 20, mtp="3") == ([80], 48)


def test_the_parts_of_a_long_beginning_come_to_the_device_one_after_another(ask, both, monkeypatch):
    on, made, most = Kept.on, [], 0

    def copied(kept, device):  # as on a GPU, where each is a copy
        nonlocal most
        most = max(most, sum(part() is not None for part in made))
        parts = [part.clone() for part in on(kept, device)]
        made.append(weakref.ref(parts[0]))
        return parts

    prompt = 2 * TEXT
    ask(prompt, mtp="off")
    monkeypatch.setattr(Kept, "on", copied)
    assert ask(prompt, mtp="off")[1] == 3 * CHUNK
    assert len(made) == 4 and most == 2  # rows of three parts; the one before, and the state, which comes first


def test_free_forgets_the_prompts_too(ask, both):
    ask(TEXT[:80])
    both[0][0].free()
    assert ask(TEXT[:80]) == ([80], 0)


def test_nothing_is_cut_where_nothing_can_be_kept(ask, both, monkeypatch):
    monkeypatch.setattr(both[0][0].prefix_cache, "budget_bytes", 100)
    for _ in range(2):
        assert ask(TEXT[:80]) == ([80], 0)


def test_a_prompt_with_other_seeds_is_remembered_once(ask, both):
    cache = both[0][0].prefix_cache
    for prompt in ("a" * 40, "b" * 40, "b" * 40, "b" * 40, "a" * 40):
        ask(prompt)
    assert len(cache._prompts) == 2


def test_a_cpu_is_cut_at_chunks_alone(folder):
    trunk = load(folder, device="cpu").trunk
    assert trunk.grain(trunk.new_state(8)) == trunk.chunk


def test_what_an_extra_pass_costs_is_no_saving():
    none = Kept([])
    kept, cut = (Entry(8, none, none, None, 8, 1.0, 8, extra) for extra in (False, True))
    speed = Speed()
    speed.passed(8, 1.0)
    assert (speed.saved(kept), speed.saved(cut)) == (1.0, 0.0)
    speed.passed(1, 0.25)
    assert (speed.saved(kept), speed.saved(cut)) == (1.0, 0.75)
    speed.passed(16, 0.5)  # the first one also compiled
    assert (speed.saved(kept), speed.saved(cut)) == (0.5, 0.25)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_copies_hold_the_same_bytes(device):
    generator = torch.Generator().manual_seed(0)
    tensors = [
        torch.randn(3, 50, 7, generator=generator)[:, 3:40], torch.randn(600_000, generator=generator),
        torch.randint(-99, 99, (5, 3), generator=generator).to(torch.int8), torch.randn(9, generator=generator).half(),
    ]  # fmt: skip
    tensors = [tensor.to(device) for tensor in tensors]
    wanted = [tensor.clone() for tensor in tensors]
    kept = Kept(tensors)
    assert kept.bytes == bytes_for(tensors) < 1.1 * sum(tensor.nbytes for tensor in tensors)
    for tensor in tensors:
        tensor.zero_()
    found = kept.on(torch.device(device))
    assert all(torch.equal(a, b) and a.device == b.device for a, b in zip(found, wanted, strict=True))


def read(engine, ids, cuts):
    """Name -> tensor of everything behind a prompt whose passes end at `cuts`."""
    trunk, hiddens = engine.trunk, []
    with torch.inference_mode():
        state = trunk.new_state(len(ids))
        drafter = HeadDrafts(engine.mtp_head, trunk, None, None, len(ids))
        for start, end in pairwise((0, *cuts, len(ids))):
            places = torch.arange(start, end, device=trunk.device).expand(3, -1)
            embeddings = trunk.embed(ids[start:end])
            hiddens.append(trunk.prefill(embeddings, state, places))
            drafter.prompt(embeddings, hiddens[-1], places)
        held = {f"keys and values {n}": x for n, x in enumerate(state.rows(0))}
        held |= {f"window or state {n}": x for n, x in enumerate(state.recurrent())}
        held |= {f"head {n}": x for n, x in enumerate(drafter.prompt_cache.rows(0, len(ids) - 1))}
        held |= {f"waiting {n}": x for n, x in enumerate(drafter.waiting_row)}
        return held | {"hidden": torch.cat(hiddens), "logits": trunk.logits(hiddens[-1][-1])}


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter's turn is on a CPU")
def test_a_packed_models_prompt_by_kernels_has_the_same_bits_wherever_it_is_cut(tmp_path, monkeypatch):
    """The whole model under Triton's interpreter: a chunk of the delta rule, and a tail that is longer than SLOTS."""
    pytest.importorskip("triton")
    folder = tiny.save_tokenizer(tiny.save_folder(tiny.oracle("gqa4", **WIDE), tmp_path, mtp=True))
    convert(Checkpoint.open(folder), folder / "w4a8.safetensors", "w4a8")
    for name in (
        "weights.reader.packed_kernels", "weights.linear.float_kernels", "weights.linear.prompt_kernels",
        "attention.layer.attention_kernels", "attention.layer.prefill_kernels", "deltanet.layer.delta_kernels",
    ):  # fmt: skip
        monkeypatch.setattr(f"fastqwen.{name}", lambda *of: (True, "asked for by a test"))
    engine = load(folder / "w4a8.safetensors", device="cpu", kv="int8")
    assert engine.trunk.grain(engine.trunk.new_state(8)) == engine.trunk.chunk  # other operations run on the CPU
    engine.trunk._batch_invariant = True  # but these few have the same bits there too
    assert engine.trunk.grain(engine.trunk.new_state(8)) == GPU_GRAIN
    ids = torch.randint(0, 300, (75,), generator=torch.Generator().manual_seed(1)).tolist()
    wanted, found = (read(engine, ids, cuts) for cuts in ((), (GPU_GRAIN,)))
    assert [key for key in wanted if not torch.equal(found[key], wanted[key])] == []


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["demo", "demo-w4a8"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_gpus_prompt_has_the_same_bits_wherever_it_is_cut(name, dtype):
    engine = load(name, device="cuda", dtype=dtype)
    assert engine.trunk.grain(engine.trunk.new_state(700)) == GPU_GRAIN
    assert isinstance(engine.mtp_head.fc.matrices[0][0], PackedLinear)  # or its rows would depend on the cut
    for tokens in (700, 713):
        ids = torch.randint(0, 2000, (tokens,), generator=torch.Generator().manual_seed(tokens)).tolist()
        wanted = read(engine, ids, ())
        for cuts in ((64,), (128,), (320,), (640,), (704,) if tokens > 704 else (576,), range(64, 700, 64)):
            found = read(engine, ids, cuts)
            assert [key for key in wanted if not torch.equal(found[key], wanted[key])] == []


@pytest.mark.gpu
def test_a_gpu_cuts_plain_weights_at_chunks_alone():
    trunk = load("demo-bf16", device="cuda").trunk
    assert trunk.grain(trunk.new_state(8)) == trunk.chunk


@pytest.mark.gpu
@pytest.mark.parametrize("mtp", ["off", "3"])
def test_a_gpu_finds_short_beginnings_and_writes_the_same_text(mtp):
    engine, plain = load("demo", device="cuda"), load("demo", device="cuda", prefix_cache_bytes=0)
    system = "You tell of what you see, in short words and one line after another. " * 12
    story = "A fox walks through the snow and looks at every tree. " * 12
    prompts = [(system, "a cat"), (system, "a dog"), (None, story + "?"), (None, story + "!"), (None, story + ".")]
    found = []
    for first, prompt in prompts:
        options = {"system": first, "settings": HOT, "seed": 3, "max_tokens": 40, "mtp": mtp}
        reply = engine.generate(prompt, **options)
        assert reply.token_ids == plain.generate(prompt, **options).token_ids
        found.append(reply.report.cached_tokens)
    assert found[0] == found[2] == found[3] == 0
    assert all(tokens >= prompt_reuse.LEAST and tokens % GPU_GRAIN == 0 for tokens in (found[1], found[4]))
