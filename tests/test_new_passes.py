"""Who draws a reply's tokens: the GPU, the host between halves of its passes, or the host alone."""

import weakref

import pytest
import tiny
import torch
from fastqwen.engine import SamplingSettings, device_passes, load, memory
from fastqwen.engine.device_passes import DevicePasses
from fastqwen.engine.host_drawn_passes import HostDrawnPasses
from fastqwen.engine.passes import HostPasses
from fastqwen.engine.sampling import Sampler
from fastqwen.kernels import rounds
from fastqwen.kernels.rounds import STOPS
from fastqwen.kernels.sampling import MAX_TOP_K
from fastqwen.mtp.drafts import NoDrafts
from fastqwen.mtp.estimates import Costs
from fastqwen.mtp.planner import Planner
from fastqwen.mtp.tree import OFF, Tree
from fastqwen.weights import FastQwenError

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU's own engine chooses in every test of replies")


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tiny.save_folder(tiny.oracle("gqa4"), tmp_path_factory.mktemp("passes"), mtp=True)
    return load(tiny.save_tokenizer(folder), device="cpu")


@pytest.fixture
def on_gpu(engine, monkeypatch):
    """The engine believes that a GPU runs its passes by kernels; none is ever run."""
    monkeypatch.setattr(memory, "round_kernels", lambda device: (True, "checked"))
    monkeypatch.setattr(engine.memory, "_on_device", True)
    monkeypatch.setattr(engine.memory, "room_for", lambda capacity: capacity + 24)
    monkeypatch.setattr(memory.DeviceModel, "_by_kernels", True)
    for name in ("_verify", "_verify_rows", "_accept", "_catch_up", "_first", "_next"):
        monkeypatch.setattr(memory.DeviceModel, name, lambda model: None)
    monkeypatch.setattr(device_passes, "_Record", object)
    yield
    engine.free()


def passes_of(engine, mtp, **settings):
    sampler = Sampler(SamplingSettings(**settings), 3, engine.vocab)
    return engine._new_passes([1, 2, 3], mtp, sampler, 40, 9, lambda progress: None)


@pytest.mark.parametrize("top_k,kind", [(20, DevicePasses), (MAX_TOP_K, DevicePasses), (0, HostDrawnPasses)])
def test_what_the_gpu_cannot_draw_the_host_draws_between_halves_of_a_pass(engine, on_gpu, top_k, kind):
    passes = passes_of(engine, "auto", top_k=top_k)
    assert type(passes) is kind and isinstance(passes._planner, Planner)
    model = engine.memory.model_for(40, lambda done, total: None)
    assert ({"rows", "accept"} <= model.parts.keys()) == (kind is HostDrawnPasses)
    assert passes.session.capacity == 40 and model.capacity == 64  # the reply ends where it was asked to
    assert passes.session.state is model.state and not model.state.length
    assert type(passes_of(engine, "auto", top_k=MAX_TOP_K + 1)) is HostDrawnPasses
    assert type(passes_of(engine, "auto", greedy=True, top_k=MAX_TOP_K + 1)) is DevicePasses


def test_the_first_reply_already_knows_what_passes_cost_where_capturing_them_has_shown_it(engine, on_gpu, monkeypatch):
    costs, shared = Costs(), engine._shared_model
    monkeypatch.setattr(engine, "_costs", costs)

    def captured(capacity, on_step):
        costs.expect(verify_seconds=0.002, first_seconds=0.0002, next_seconds=0.0002)
        return shared(capacity, on_step)

    monkeypatch.setattr(engine, "_shared_model", captured)
    assert passes_of(engine, "auto", top_k=20)._planner.tree().depth > 1  # a careful start is a chain of one


def test_a_state_that_a_reply_left_is_emptied_for_the_next(engine, on_gpu):
    first = passes_of(engine, "3")
    first.session.state.length = 7
    assert passes_of(engine, "3").session.state.length == 0


@pytest.mark.parametrize("top_k", [20, 0])
def test_a_replys_first_token_is_penalised_for_nothing_that_was_written_before(engine, on_gpu, top_k):
    """The reply before left marks and, interrupted or not, the tokens of its last pass."""
    logits = torch.full((engine.config.vocab_size,), -5.0)
    logits[torch.tensor([0, 9, 40])] = torch.tensor([2.0, 2.5, 1.5])
    for left, best in ((0, 9), (9, 9), (40, 9)):
        passes = passes_of(engine, "off", temperature=0.01, top_k=top_k, repetition_penalty=2.0)
        round = passes._model.round
        with torch.inference_mode():
            round.marks[[left, 50]] = 1
            round.tokens.fill_(left)
        assert passes.first(logits) == best
        assert round.marks.nonzero().flatten().tolist() == [best]


@pytest.mark.parametrize("give_up", ["free", "offload"])
def test_buffers_that_are_given_back_go_though_a_reply_that_was_left_in_its_middle_holds_them(engine, on_gpu, give_up):
    passes = passes_of(engine, "3")
    session, held = passes.session, [weakref.ref(tensor) for tensor in memory.tensors_of(passes.session.state)]
    getattr(engine, give_up)()
    assert held and not any(tensor() is not None for tensor in held)
    engine.restore()
    with pytest.raises(FastQwenError, match="given back"):  # should what it is told of free them in its prompt
        session.prefill([1, 2])


@pytest.mark.parametrize("top_k", [20, 0])
def test_off_keeps_nothing_of_the_head(engine, on_gpu, top_k):
    passes = passes_of(engine, "off", top_k=top_k)
    passes.prompt(torch.zeros(3, 8), torch.zeros(3, 8), torch.zeros(3, 3))
    assert passes.prompt_cache is None and passes._last is None and passes.report() == {"current": "off", "options": []}
    assert passes_of(engine, "3", top_k=top_k).prompt_cache is not None


def test_a_tree_is_laid_out_by_level_and_rank(engine, on_gpu):
    model, tree = engine.memory.model_for(40, lambda done, total: None), Tree((2, 3))
    with torch.inference_mode():
        for shape in (tree, OFF, tree):  # the second time as it was kept
            model.set_tree(shape)
    assert model.round.shape.tolist() == rounds.shape_words(tree.parents, (0, 0, 0, 1, 1, 2))


def test_more_stop_tokens_than_the_gpu_looks_for_are_the_hosts(engine, on_gpu, monkeypatch):
    monkeypatch.setattr(engine.tokenizer, "stop_ids", range(STOPS))
    assert type(passes_of(engine, "3")) is DevicePasses
    monkeypatch.setattr(engine.tokenizer, "stop_ids", range(STOPS + 1))
    assert type(passes_of(engine, "3")) is HostPasses


def test_off_has_no_drafter_on_a_host(engine):
    assert isinstance(passes_of(engine, "off")._drafter, NoDrafts)
