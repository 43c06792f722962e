"""What connects passes on the device agrees with its counterparts on the host, for every tree and outcome."""

import random
from dataclasses import replace

import pytest
import torch
from fastqwen.engine.device_check import wrong_result
from fastqwen.kernels import delta_decode, rounds, sampling
from fastqwen.kernels.attention_control import new_control, write_control
from fastqwen.kernels.embedding import embed_rows
from fastqwen.kernels.rms_norm import rms_norm, rms_norm_rows
from fastqwen.kernels.rows import cache_offsets, depths
from fastqwen.mtp.acceptance import accept
from fastqwen.mtp.tree import OFF, Tree, all_shapes
from fastqwen.weights.linear import Linear
from fastqwen.weights.packed_linear import RecordLinear
from fastqwen.weights.quantize import encode

pytest.importorskip("triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TREES = [OFF, *(Tree.chain(length) for length in range(1, 6)), *all_shapes()[::5]]
INVERSE = torch.tensor([1.0, 0.25, 0.01])


def new_round(tree, **state):
    round = rounds.allocate(50, 16, torch.float32, INVERSE.to(DEVICE))
    places = [max(rank - 1, 0) for rank in tree.ranks]
    round.shape.copy_(torch.tensor(rounds.shape_words(tree.parents, places), dtype=torch.int32))
    known = {"length": 30, "position": 33, "buffer": 1, "pending": (0, 1, 4), "root": 7, "reply": 3, "limit": 90}
    words = rounds.state_words(**(known | {"capacity": 200, "stops": ()} | state))
    round.state.copy_(torch.tensor(words, dtype=torch.int32))
    return round


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: "-".join(map(str, tree.widths)) or "off")
def test_a_pass_is_laid_out_as_the_host_would(tree):
    round = new_round(tree)
    round.lists.copy_(torch.arange(64).view(8, 8) + 100)
    rounds.begin_pass(round)
    drafts = [100 + 8 * (tree.depths[slot] - 1) + tree.ranks[slot] - 1 for slot in range(1, tree.rows)]
    assert round.tokens.tolist() == [7, *drafts, *[0] * (8 - tree.rows)]
    control = new_control("cpu")
    write_control(control, length=30, parents=tree.parents)
    found = round.attention.tolist()
    assert found[:4] == control.tolist()[:4]
    for start in (8, 16):  # what lies past the live rows is not read
        assert found[start : start + tree.rows] == control.tolist()[start : start + tree.rows]
    wanted = delta_decode.control_words(tree.parents, buffer=1, pending=(0, 1, 4))
    assert round.delta.tolist()[:7] == wanted[:7] and round.delta.tolist()[12:] == wanted[12:]
    angles = (33 + torch.tensor(tree.depths)[:, None]).float() * INVERSE
    torch.testing.assert_close(round.cos[: tree.rows].cpu(), angles.cos(), rtol=0, atol=2e-6)
    torch.testing.assert_close(round.sin[: tree.rows].cpu(), angles.sin(), rtol=0, atol=2e-6)


TABLES = {
    "plain": lambda: Linear(torch.randn(50, 16, generator=torch.Generator().manual_seed(1)).to(DEVICE)).table,
    "records": lambda: RecordLinear.of([encode(torch.randn(48, 512), "int8").stored("table")], DEVICE).table,
}


@pytest.mark.parametrize("kind", TABLES)
def test_embeddings_are_looked_up_with_the_layout(kind):
    table, tree = TABLES[kind](), Tree((2, 1))
    round = new_round(tree)
    round.lists.copy_(torch.arange(64).view(8, 8) % 40 + 3)
    out = torch.full((8, table.columns), float("nan"), device=DEVICE)
    assert rounds.begin_pass(round, table=table, out=out) is out
    assert round.tokens.tolist()[:4] == [7, 3, 11, 4] and not round.tokens[4:].any()
    assert torch.equal(out, embed_rows(table, round.tokens, out=torch.empty_like(out)))


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: "-".join(map(str, tree.widths)) or "off")
def test_the_walk_is_the_hosts_and_moves_the_state(tree):
    source = random.Random(str(tree.widths))
    for _ in range(12 if DEVICE.type == "cuda" else 6):
        stops = source.choice([(), (3,), (3, 5)])
        limit, capacity = source.choice([90, 4, 5, 6]), source.choice([200, 31, 32, 34])
        round = new_round(tree, limit=limit, capacity=capacity, stops=stops)
        round.state[rounds.KEPT] = 250  # near the ring's end
        rounds.begin_pass(round)
        assert round.ring.index.tolist() == [(250 + slot) % 256 if slot < tree.rows else 256 for slot in range(8)]
        tokens = [7, *(source.randrange(2, 6) for _ in range(tree.rows - 1))]
        drawn = [source.randrange(2, 6) for _ in range(8)]
        round.tokens[: tree.rows] = torch.tensor(tokens)
        round.drawn.copy_(torch.tensor(drawn))
        room = min(limit - 3, capacity - 30)
        wanted = accept(tree, tokens, lambda slot, above, drawn=drawn: drawn[slot], stop_ids=stops, room=room)
        rounds.accept(round)
        record, state = round.record.tolist(), round.state.tolist()
        steps, count = len(wanted.path), len(wanted.tokens)
        over = wanted.stop or 3 + count >= limit or 30 + steps >= capacity
        assert record[:7] == [1, steps, count, int(wanted.stop), int(over), 0, tree.rows]
        assert tuple(record[8 : 8 + steps]) == wanted.path and tuple(record[16 : 16 + count]) == wanted.tokens
        assert state[:3] == [30 + steps, 33 + steps, 0] and state[rounds.REPLY] == 3 + count
        assert state[rounds.PENDING] == steps and tuple(state[rounds.PATH :][:steps]) == wanted.path
        assert state[rounds.ROOT] == (wanted.tokens or (7,))[-1] and state[rounds.DONE] == int(over)
        last = wanted.path[-1]
        offset, depth = cache_offsets(tree.parents)[last], depths(tree.parents)[last]
        move = [30 + offset, 30 + depth] if offset != depth else [-1, -1]
        assert state[rounds.MOVE : rounds.MOVE + 2] == move
        assert set(round.marks.nonzero().flatten().tolist()) == set(wanted.tokens)
        assert round.ring.rows[:steps].tolist() == [(250 + slot) % rounds.RING for slot in wanted.path]
        assert state[rounds.KEPT] == 250 + tree.rows
        assert tuple(round.ring.following[:count].tolist()) == wanted.tokens
        assert round.ring.positions[:steps].tolist() == list(range(33, 33 + steps))


def test_a_pass_queued_after_the_end_changes_nothing_but_the_final_commit():
    round = new_round(Tree((2, 1)), reply=90, limit=90)
    before = round.state.tolist()
    rounds.begin_pass(round)
    assert round.attention[1] == 0 and round.delta[2] == 0 and round.delta[1] == 3  # no rows; the pending path
    rounds.accept(round)
    after = round.state.tolist()
    changed = {index for index, (old, new) in enumerate(zip(before, after, strict=True)) if old != new}
    assert changed <= {rounds.BUFFER, rounds.PENDING, rounds.SERIAL, *range(rounds.PATH, rounds.PATH + 8)}
    assert round.record[1] == round.record[2] == 0 and after[rounds.PENDING] == 0


@pytest.mark.parametrize("broken", [1, 2])
def test_a_draft_behind_which_nothing_can_be_drawn_is_left_to_be_the_next_root(broken):
    round = new_round(Tree((1, 1)))
    rounds.begin_pass(round)
    round.tokens[:3] = torch.tensor([7, 4, 5])
    round.drawn[:3] = torch.tensor([4, 5, 6])
    round.errors[broken] = 1
    rounds.accept(round)
    record, state = round.record.tolist(), round.state.tolist()
    assert record[1:7] == [broken, broken, 0, 0, 0, 3] and record[16 : 16 + broken] == [4, 5][:broken]
    assert state[rounds.ROOT] == [4, 5][broken - 1] and not state[rounds.DONE]


def test_a_token_that_cannot_be_drawn_ends_the_reply_with_an_error_only_on_the_path():
    round = new_round(Tree((1, 1)))
    rounds.begin_pass(round)
    round.tokens[:3] = torch.tensor([7, 4, 5])
    round.drawn.copy_(torch.tensor([9, 5, 6, 0, 0, 0, 0, 0]))
    round.errors[1] = 1  # not reached: the first draft is rejected
    rounds.accept(round)
    assert round.record[5] == 0 and round.record[2] == 1
    round = new_round(Tree((1, 1)))
    rounds.begin_pass(round)
    round.errors[0] = 1
    rounds.accept(round)
    assert round.record[5] == 1 and round.record[4] == 1


def test_waiting_rows_reach_the_head_in_order_across_the_rings_end():
    round = new_round(OFF, head_length=12)
    ring, head = round.ring, round.head
    ring.following.copy_(torch.arange(rounds.RING) + 1000)
    ring.positions.copy_(torch.arange(rounds.RING))
    ring.rows.copy_((torch.arange(rounds.RING) * 7 + 3) % rounds.RING)
    round.state[rounds.READ], round.state[rounds.WRITTEN] = rounds.RING - 3, rounds.RING + 7
    rounds.begin_head(round, keep=1)  # ten wait, nine may be taken
    at = [*range(rounds.RING - 3, rounds.RING), *range(5)]
    assert head.gather.tolist() == [(slot * 7 + 3) % 256 for slot in at] and head.tokens.tolist() == [
        1000 + slot for slot in at
    ]
    assert head.attention.tolist()[:2] == [12, 8] and head.attention.tolist()[8:24] == [*range(8), *range(8)]
    rounds.begin_head(round)
    assert head.gather.tolist() == [38, 45, *[rounds.RING + 1] * 6] and int(head.last) == 1
    assert head.attention.tolist()[:2] == [20, 2] and round.state[rounds.HEAD_LENGTH] == 22
    for level, token in ((1, 44), (2, 45)):
        draft(round, token)
        assert int(round.lists[level - 1, 0]) == token and round.state[rounds.LEVEL] == level + 1
        assert head.tokens.tolist() == [token, *[0] * 7] and head.attention.tolist()[:2] == [21 + level, 1]
        assert head.chosen.tolist()[:level] == [44, 45][:level] and int(head.last) == 0
        assert int(head.above[0]) == (1 << level) - 1 and int(head.depth[0]) == level
        angles = (33 + level - 1) * INVERSE  # state.position and on
        torch.testing.assert_close(head.cos[0].cpu(), angles.cos(), rtol=0, atol=2e-6)
        torch.testing.assert_close(head.sin[0].cpu(), angles.sin(), rtol=0, atol=2e-6)


def draft(round, token):
    """A level's list from logits of which `token` has the largest."""
    logits = torch.nn.functional.one_hot(torch.tensor([token]), 50).float().to(DEVICE)
    sampling.draw(
        logits, sampling.new_settings(DEVICE), round.head_seen, sampling.allocate(50, DEVICE), vocab=50,
        tokens=round.head.drawn, errors=round.head.errors, candidates=round.lists,
        level=round.state[rounds.LEVEL : rounds.LEVEL + 1], head_row=round.head_row,
    )  # fmt: skip


def test_a_level_that_is_made_more_often_than_a_tree_is_deep_stays_in_its_list():
    """As where the part that makes one is timed alone."""
    round = new_round(OFF)
    round.state[rounds.LEVEL] = 7
    for level in (7, 8, 8):
        draft(round, 5)
        assert int(round.lists[level - 1, 0]) == 5 and round.state[rounds.LEVEL] == 8


def test_more_stop_tokens_than_fit_are_refused():
    with pytest.raises(ValueError, match="9 stop tokens"):
        new_round(OFF, stops=range(9))


def test_the_check_before_first_use_passes_and_notices_a_wrong_result(monkeypatch):
    vocab = 2000 if DEVICE.type == "cuda" else 120  # the interpreter sorts slowly
    assert wrong_result(DEVICE, vocab) is None
    monkeypatch.setattr(rounds, "accept", lambda round: None)
    assert wrong_result(DEVICE, vocab) == "accepted tokens differ"


@pytest.mark.parametrize("columns", [64, 96, 5120])
def test_norms_of_rows_are_the_references_and_each_row_its_own(columns):
    generator = torch.Generator().manual_seed(1)
    x, other = (torch.randn(8, columns, generator=generator).to(DEVICE) for _ in range(2))
    weight, second = (torch.randn(columns, generator=generator).to(DEVICE) for _ in range(2))
    found = rms_norm_rows([(x, weight), (other, second)], 1e-6)
    wanted = torch.cat([rms_norm(x, weight, 1e-6), rms_norm(other, second, 1e-6)], 1)
    # A sum of K squares, each rounding 2^-24, halved by the root; then three more roundings.
    assert ((found - wanted).abs() <= 2**-24 * (columns / 2 + 8) * wanted.abs() + 1e-30).all()
    alone = torch.zeros_like(x)
    alone[5] = x[2]
    assert torch.equal(rms_norm_rows([(alone, weight)], 1e-6)[5], found[2, :columns])
    many = torch.cat([other, x, other])  # a prompt's
    assert torch.equal(rms_norm_rows([(many, weight)], 1e-6)[8:16], found[:, :columns])
    at, places, target = (
        torch.tensor([3, 0, 7], device=DEVICE),
        torch.tensor([2, 9, 4], device=DEVICE),
        many[:12].clone(),
    )
    taken = rms_norm_rows([(many, weight), (other, second)], 1e-6, at=(at + 8, at))
    assert torch.equal(taken, found[at])
    assert torch.equal(rms_norm_rows([(x[at], weight)], 1e-6, also=(target, places)), found[at, :columns])
    assert torch.equal(target[places], found[at, :columns]) and torch.equal(target[[0, 11]], many[[0, 11]])
    with pytest.raises(ValueError, match="one shape"):
        rms_norm_rows([(x, weight), (x[:, :32], second)], 1e-6)


@pytest.mark.parametrize("kind", TABLES)
def test_norms_read_a_table_as_the_lookup_does(kind):
    table = TABLES[kind]()
    columns, at = table.columns, torch.tensor([3, 0, 47, 16, 3, 9, 30, 21], device=DEVICE)
    other, weight = torch.randn(8, columns, device=DEVICE), torch.randn(columns, device=DEVICE)
    if kind == "records":
        table = replace(table, rotated=False)
    embedded = embed_rows(table, at, out=torch.empty_like(other))
    wanted = rms_norm_rows([(embedded, weight), (other, weight)], 1e-6)
    assert torch.equal(rms_norm_rows([(table, weight), (other, weight)], 1e-6, at=(at, None)), wanted)
    if kind == "records":
        with pytest.raises(ValueError, match="or a table"):
            rms_norm_rows([(replace(table, rotated=True), weight), (other, weight)], 1e-6, at=(at, None))
