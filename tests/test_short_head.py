"""A head cut to a shortlist gives the whole head's logits for its ids, holds tokens at hand, and changes no text."""

import pytest
import torch
from fastqwen.engine import SamplingSettings, load
from fastqwen.mtp import short_head as short_head_module
from fastqwen.mtp.short_head import EXTRA, FEWEST, ShortHead
from fastqwen.weights import FastQwenError, Projection
from fastqwen.weights.decode import to_grid
from fastqwen.weights.linear import Linear
from fastqwen.weights.packed_linear import PackedLinear, RecordLinear
from fastqwen.weights.quantize import encode
from fastqwen.weights.subset import quantised_copy

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
GPU_FORMATS = ("w6a8", "int8", "bf16")
ROWS, VOCAB, TABLE, COLUMNS = 528, 1400, 1408, 256
SAMPLED = SamplingSettings(temperature=1.0, top_k=20, top_p=0.95, presence_penalty=0.5)


def plain_weight(seed=0):
    return torch.randn(TABLE, COLUMNS, generator=torch.Generator().manual_seed(seed)) * COLUMNS**-0.5


def packed_head(format):
    return PackedLinear(to_grid(encode(plain_weight(), format).stored("lm_head")), torch.device("cpu"))


def short_head(head, rows=ROWS, always=(1390, 1399), **options):
    return ShortHead(head, rows, vocab=VOCAB, always=always, **({"dtype": torch.float32} | options))


def hidden(rows=3):
    return torch.randn(rows, COLUMNS, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("format", ["w4a8", "w6a8", "int8"])
def test_logits_are_the_packed_heads_own_and_minus_infinity_elsewhere(format):
    head = packed_head(format)
    short = short_head(head)
    assert short.matrices[0].grid.data_ptr() == head.grid.data_ptr()  # a view
    short.begin([3, 700, 1000, 700])
    short.add([1200, 5, VOCAB])
    ids = [*range(ROWS), 700, 1000, 1200, 1390, 1399]
    assert sorted(short.extra_ids) == ids[ROWS:]
    found, wanted = short.logits(hidden()), Projection([(head, (TABLE,))])(hidden())[0]
    assert found.shape == (3, VOCAB) and torch.equal(found[:, ids], wanted[:, ids])
    found[:, ids] = float("-inf")
    assert bool((found == float("-inf")).all())


def test_logits_of_a_plain_head_differ_by_rounding_alone():
    short = short_head(Linear(plain_weight()))
    short.begin([700])
    found, exact = short.logits(hidden()), hidden().double() @ plain_weight().double().T
    ids = [*range(ROWS), 700, 1390, 1399]
    # K products and sums of float32, each cut at 2^-24.
    bound = COLUMNS * 2.0**-23 * (hidden().double().abs() @ plain_weight().double().abs().T)
    assert bool(((found[:, ids].double() - exact[:, ids]).abs() <= bound[:, ids]).all())


def test_a_new_text_takes_the_places_of_the_one_before_and_keeps_the_control_tokens():
    short = short_head(packed_head("int8"))
    short.begin([600, 601])
    short.add([602])
    short.begin([603])
    assert sorted(short.extra_ids) == [603, 1390, 1399]
    assert torch.isinf(short.logits(hidden())[:, [600, 601, 602]]).all()


def test_the_latest_tokens_of_a_long_prompt_have_places_and_the_replys_take_the_oldest():
    short = short_head(packed_head("int8"))
    prompt = list(range(ROWS, ROWS + 2 * EXTRA))
    short.begin(prompt)
    assert set(short.extra_ids) == {1390, 1399, *prompt[-EXTRA + 2 :]}
    before = short.extra_ids
    short.add([600])
    assert len(short.extra_ids) == EXTRA and set(before) - set(short.extra_ids) == {before[2]}
    head, found = Projection([(packed_head("int8"), (TABLE,))]), short.logits(hidden())
    wanted = head(hidden())[0]
    assert torch.equal(found[:, short.extra_ids], wanted[:, short.extra_ids])
    short.add(range(ROWS, ROWS + 300))  # more than there are places
    assert len(set(short.extra_ids)) == EXTRA and {1390, 1399} < set(short.extra_ids)


def test_a_packed_copy_is_what_quantising_those_rows_gives():
    copy = quantised_copy(Linear(plain_weight()), ROWS, "w4a8", torch.float32)
    wanted = encode(plain_weight()[:ROWS], "w4a8").stored("x")
    assert torch.equal(copy.grid, to_grid(wanted).values) and torch.equal(copy.channel_scale, wanted.channel_scale)
    short = short_head(Linear(plain_weight()), rows=TABLE, format="w4a8")
    exact = hidden() @ plain_weight().T
    error = (short.logits(hidden()) - exact[:, :VOCAB]).norm() / exact[:, :VOCAB].norm()
    assert short.copied_bytes == TABLE * (COLUMNS + 4)  # without kernels a byte a weight
    assert short.shortlist is None and 0 < error < 0.2  # four bits; zeros would be off by 1


@pytest.mark.parametrize("rows", [True, 100, FEWEST + 8, "512"])
def test_numbers_of_rows_that_cannot_be_are_refused_before_anything_is_read(rows):
    with pytest.raises(FastQwenError, match="draft_rows is"):
        load("/nowhere", draft_rows=rows)
    with pytest.raises(FastQwenError, match="draft_format is 'w5a8'"):
        load("/nowhere", draft_format="w5a8")


def test_drafts_from_a_shortlist_give_the_same_text():
    """Demo model, synthetic text: what the shortlist leaves out costs drafts, never tokens."""
    engine = load("demo", device="cpu", draft_rows=FEWEST)
    short = engine.mtp_head.short
    options = dict(settings=SAMPLED, seed=1, max_tokens=16)
    wanted = engine.generate("a red kite", mtp="off", **options).token_ids
    found = engine.generate("a red kite", mtp="3", **options)
    assert found.token_ids == wanted and found.report.accepted_per_pass > 0
    assert {token for token in wanted if token >= FEWEST} <= set(short.extra_ids)
    # A hot reply begins with any token; a prompt's own have places too, and those of the texts before have none.
    hot = SamplingSettings(temperature=10.0, top_k=0, top_p=1.0)
    prompt = "lighthouse mountains"
    rare = {token for token in engine.tokenizer.encode_plain(prompt) if token >= FEWEST}
    assert rare and not rare & set(short.extra_ids)
    first = engine.generate(prompt, template=False, settings=hot, seed=0, max_tokens=2, mtp="3").token_ids[0]
    assert first >= FEWEST and {*rare, first} <= set(short.extra_ids)
    left = {token for token in wanted if token >= FEWEST and not engine.tokenizer.is_special(token)}
    assert left and not left & set(short.extra_ids)


@pytest.mark.parametrize("format", ["w4a8", *(pytest.param(kind, marks=pytest.mark.gpu) for kind in GPU_FORMATS)])
def test_one_row_of_a_pass_gives_the_heads_logits_side_by_side(format, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr(short_head_module, "FEWEST", 16)
    monkeypatch.setattr(short_head_module, "EXTRA", 32)  # the interpreter runs a slab at a time
    dtype = torch.float32 if DEVICE.type == "cpu" else torch.bfloat16
    weight = plain_weight().to(DEVICE, dtype)[:112]
    head = Linear(weight) if format == "bf16" else RecordLinear.of([encode(weight, format).stored("x")], DEVICE)
    short = ShortHead(head, 48, vocab=100, always=[99], dtype=dtype)
    short.begin([70, 64, 3])
    x = torch.full((8, COLUMNS), 3.0, dtype=dtype, device=DEVICE)  # rows that mean nothing, but for the first
    x[0] = hidden(1)[0]
    with torch.inference_mode():
        found = short.decode(x)
        wanted = Projection([(head, (112,))]).verify(x, 8)[0][:1]
    ids = [*range(48), 99, 64, 70]
    assert found.shape == (1, 48 + 32) and found.is_contiguous()
    if format == "bf16":  # another launch adds in another order: one rounding to bf16 of logits below 8
        assert bool(((found[:, : len(ids)] - wanted[:, ids]).abs() <= 2.0**-5).all())
    else:
        assert torch.equal(found[:, : len(ids)], wanted[:, ids])
    assert short.shortlist.ids.tolist() == [*ids[48:], *[-1] * 29]
