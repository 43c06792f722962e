"""The decode attention kernels: right to a derived bound, and each row the same whatever surrounds it, bit for bit."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from fastqwen.attention import KVCache
from fastqwen.kernels.attention_control import TILE, new_control, write_control
from fastqwen.kernels.decode_attention import MOST_PARTS, allocate, decode_attention, parts_of_head
from fastqwen.kernels.rows import cache_offsets, depths
from fastqwen.mtp.tree import Tree, all_shapes

pytest.importorskip("triton")
ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
WEIGHT_ERROR = {"int8": 2**-11, "bf16": 2**-18, "fp32": 2**-18}  # kernels/decode_attention.py


def gpu(*values):
    return pytest.param(*values, marks=pytest.mark.gpu)


def randn(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Case:
    """A cache with `length` random tokens and a tree of rows behind it; content depends on (level, rank) alone."""

    def __init__(self, kind, heads, kv_heads, dim, length, *, capacity=None, dtype=None):
        self.heads, self.dim, self.length = heads, dim, length
        self.dtype = dtype or (torch.bfloat16 if ON_GPU else torch.float32)
        self.cache = KVCache(kv_heads, dim, capacity=capacity or length + 16, kind=kind, device=DEVICE)
        for stored in (self.cache.keys, self.cache.values):  # what was never written must not matter
            if kind == "int8":
                stored.numbers.fill_(77)
                stored.scales.fill_(float("nan"))
            else:
                stored.numbers.fill_(float("nan"))
        if length:
            spread = torch.logspace(-2, 2, length)[torch.randperm(length, generator=torch.Generator().manual_seed(3))]
            values = randn(length, kv_heads, dim, seed=2) * spread[:, None, None]
            self.cache.append(randn(length, kv_heads, dim, seed=1).to(DEVICE), values.to(DEVICE))
        self.kv_heads = kv_heads
        self.workspace = allocate(heads, kv_heads, dim, slots=self.cache.keys.numbers.shape[1], device=DEVICE)
        self.control = new_control(DEVICE)

    def content(self, level, rank):
        seed = 1000 * level + rank + 7
        q = 1.5 * randn(self.heads, self.dim, seed=seed)
        k, v = randn(2, self.kv_heads, self.dim, seed=seed + 500)
        return q.to(DEVICE, self.dtype), k.to(DEVICE), v.to(DEVICE)

    def rows(self, contents):
        q = torch.zeros(8, self.heads, self.dim, dtype=self.dtype, device=DEVICE)
        k, v = torch.zeros(2, 8, self.kv_heads, self.dim, device=DEVICE)
        for slot, content in enumerate(contents):
            q[slot], k[slot], v[slot] = content
        return q, k, v

    def run(self, contents, parents, gate=None, workspace=None):
        """Stages the rows and attends: [8, heads, D], poisoned before."""
        q, k, v = self.rows(contents)
        self.cache.stage(k, v, parents)
        write_control(self.control, length=self.cache.length, parents=parents)
        return self.attend(q, gate, workspace)

    def attend(self, q, gate=None, workspace=None):
        workspace = workspace or self.workspace
        for scratch in (workspace.peak, workspace.total, workspace.sums):
            scratch.fill_(float("nan"))
        out = torch.full((8, self.heads * self.dim), float("nan"), device=DEVICE)
        decode_attention(
            q, self.cache.keys, self.cache.values, control=self.control, workspace=workspace, gate=gate, out=out
        )
        assert workspace.counter.item() == 0
        return out.view(8, self.heads, self.dim)

    def exact(self, q, position, own):
        """float64 attention over the stored bytes, and the bound of the module's docstring: [heads, D] each."""
        seen = [*range(position), own]
        keys, values = (x[:, seen].double() for x in self.cache.read(0, max(seen) + 1))
        q = q.double().view(self.kv_heads, -1, self.dim)
        scale = self.dim**-0.5 * math.log2(math.e)
        weights = torch.softmax(q @ keys.mT * self.dim**-0.5, -1)
        size = (q.abs() @ keys.abs().mT).amax(-1, keepdim=True) * scale
        kind = {torch.int8: "int8", torch.bfloat16: "bf16", torch.float32: "fp32"}[self.cache.keys.numbers.dtype]
        share = WEIGHT_ERROR[kind] + 2**-23 * (self.dim + 16) * size + 2**-23 * (len(seen) / self.workspace.parts + 192)
        if kind == "int8" and ON_GPU and self.dim >= 128 and self.dtype != torch.float32 and torch.version.hip is None:
            digits = q.abs().amax(-1, keepdim=True) * keys.abs().sum(-1).amax(-1)[:, None, None]
            share += 2**-15 * digits * scale  # of kernels/_attention_ptx.py
        out, bound = weights @ values, share * (weights @ values.abs())
        if kind == "int8":
            largest = (weights * self.cache.values.scales[:, None, seen]).amax(-1, keepdim=True)
            bound += len(seen) * 2**-18 * largest
        return out.view(self.heads, self.dim), bound.view(self.heads, self.dim)


CASES = [
    ("int8", 4, 1, 128, 0), ("int8", 2, 1, 256, 1), ("int8", 6, 1, 128, 63), ("int8", 4, 2, 64, 130),
    ("int8", 8, 1, 32, 64), ("int8", 1, 1, 128, 65), ("bf16", 4, 1, 64, 127), ("fp32", 2, 1, 128, 66),
    gpu("int8", 16, 4, 256, 127), gpu("int8", 16, 4, 256, 2049), gpu("int8", 24, 4, 256, 4097),
    gpu("int8", 8, 2, 256, 32769), gpu("int8", 4, 4, 128, 300), gpu("int8", 16, 4, 64, 300),
    gpu("bf16", 16, 4, 256, 4095),
    gpu("bf16", 24, 4, 128, 700), gpu("fp32", 16, 4, 256, 700), gpu("int8", 16, 4, 256, 70001),
]  # fmt: skip


@pytest.mark.parametrize("kind,heads,kv_heads,dim,length", CASES)
def test_every_row_is_within_the_derived_bound_of_float64(kind, heads, kv_heads, dim, length):
    case = Case(kind, heads, kv_heads, dim, length)
    tree = Tree((3, 2, 1, 1))
    contents = [case.content(level, rank) for level, rank in zip(tree.depths, tree.ranks, strict=True)]
    found = case.run(contents, tree.parents).double()
    for row, (depth, offset) in enumerate(zip(tree.depths, cache_offsets(tree.parents), strict=True)):
        wanted, bound = case.exact(contents[row][0], length + depth, length + offset)
        assert ((found[row] - wanted).abs() <= bound).all()
        assert bound.amax() < 0.1 * wanted.abs().amax()  # a result of zeros would not pass
    assert found.shape[0] == tree.rows


@pytest.mark.parametrize("kind", ["int8", "bf16"])
@pytest.mark.parametrize("parts", [1, 3, 5])
def test_any_number_of_parts_is_right_in_a_cache_that_the_rows_fill(kind, parts):
    """Four tiles: all in one part, one part with two, and a part without any."""
    case = Case(kind, 4, 1, 128, 253, capacity=248)  # rows have eight slots more
    assert case.cache.keys.numbers.shape[1] == 256
    case.workspace = replace(case.workspace, parts=parts)
    chain = [case.content(level, min(level, 1)) for level in range(3)]
    found = case.run(chain, (-1, 0, 1)).double()
    for depth, (q, _, _) in enumerate(chain):
        wanted, bound = case.exact(q, 253 + depth, 253 + depth)
        assert ((found[depth] - wanted).abs() <= bound).all()
    assert not found[3:].any()


# Lengths that put the rows of one tree on both sides of a tile's end, and of where the first part has one tile more.
STRIDE = TILE * (
    parts_of_head(16, 4, torch.cuda.get_device_properties(DEVICE).multi_processor_count)
    if ON_GPU
    else parts_of_head(1, 1, 4)
)
LENGTHS = [0, 60, gpu(1), gpu(127), gpu(128), gpu(129), gpu(2045), gpu(4095), gpu(4097), gpu(32765)]
LENGTHS += [STRIDE - 3, gpu(STRIDE), gpu(8 * STRIDE - 1)]
FEW = [(), (1, 1, 1, 1, 1, 1, 1), (7,), (2, 3, 1, 1), (1, 1, 5)]


@pytest.mark.parametrize("kind", ["int8", "bf16", gpu("fp32")])
@pytest.mark.parametrize("length", LENGTHS)
def test_a_row_of_any_tree_equals_the_row_decoded_alone_after_its_ancestors_were_committed(kind, length):
    heads, kv_heads, dim = (16, 4, 256) if ON_GPU else (1, 1, 128)
    trees = [Tree(()), *all_shapes()] if ON_GPU else [Tree(widths) for widths in FEW]
    case = Case(kind, heads, kv_heads, dim, length)
    nodes = {node for tree in trees for node in zip(tree.depths, tree.ranks, strict=True)}
    alone = {}
    for level in range(8):
        for node in sorted(node for node in nodes if node[0] == level):
            alone[node] = case.run([case.content(*node)], (-1,))[0].clone()
        if level < 7:  # the chain's next token
            _, k, v = case.rows([case.content(level, min(level, 1))])
            case.cache.append(k[:1], v[:1])
    for tree in trees:
        case.cache.length = length
        nodes = list(zip(tree.depths, tree.ranks, strict=True))
        found = case.run([case.content(*node) for node in nodes], tree.parents)
        for row, node in enumerate(nodes):
            assert torch.equal(found[row], alone[node]), (tree, row)
        assert not found[tree.rows :].any()


@pytest.mark.parametrize("kind,heads", [("int8", 4), ("int8", 6), gpu("bf16", 4)])
def test_a_row_depends_on_neither_its_slot_nor_the_blocks(kind, heads):
    """Leaves in another order, one at a time, and by any number of blocks."""
    dim = 256 if ON_GPU else 128
    case = Case(kind, heads, 1, dim, 100)
    contents = [case.content(0, 0), *(case.content(1, rank) for rank in range(1, 8))]
    full = case.run(contents, (-1,) + (0,) * 7)
    order = [0, 5, 3, 7, 1, 2, 6, 4]
    assert torch.equal(case.run([contents[i] for i in order], (-1,) + (0,) * 7), full[order])
    assert torch.equal(case.run([contents[0], contents[6]], (-1, 0))[:2], full[[0, 6]])
    slots = case.cache.keys.numbers.shape[1]
    for blocks in (1, 3, 7, 500) if ON_GPU else (1, 3):
        workspace = allocate(heads, 1, dim, slots=slots, device=DEVICE, blocks=blocks)
        assert torch.equal(case.run(contents, (-1,) + (0,) * 7, workspace=workspace), full)


@pytest.mark.parametrize("kind", ["int8", "bf16", "fp32"])
@pytest.mark.parametrize("length", [62, gpu(4094)])
def test_a_draft_that_is_not_a_number_reaches_only_the_rows_that_see_it(kind, length):
    case = Case(kind, 4, 1, 128, length)
    chain, parents = [case.content(level, min(level, 1)) for level in range(5)], (-1, 0, 1, 2, 3)
    clean = case.run(chain, parents)
    for broken in (1, 2):  # its key, its value
        chain = [case.content(level, min(level, 1)) for level in range(5)]
        chain[2][broken][..., 3] = float("nan")
        found = case.run(chain, parents)
        assert torch.equal(found[:2], clean[:2])
        assert all(found[row].isnan().any() for row in range(2, 5))


def test_the_gate_multiplies_in_float32_and_may_be_a_slice():
    case = Case("int8", 4, 1, 128, 70)
    contents = [case.content(0, 0), case.content(1, 1)]
    plain = case.run(contents, (-1, 0))
    projected = randn(8, 4 * 256 + 64, seed=5).to(DEVICE)
    gate = projected[:, : 4 * 256].view(8, 4, 256)
    gated = case.run(contents, (-1, 0), gate=gate)
    # exp2 is within 2 ulp, its argument and three more operations round: below 8 * 2^-24 and |gate| * 2^-24.
    torch.testing.assert_close(gated, plain * torch.sigmoid(gate[..., 128:]), rtol=2**-20, atol=0)


def test_no_rows_alive_gives_zeros():
    case = Case("int8", 4, 1, 128, 70)
    case.run([case.content(0, 0)], (-1,))
    case.control[1] = 0
    assert not case.attend(case.rows([case.content(0, 0)])[0]).any()


def test_parts_are_two_for_each_multiprocessor_or_one_and_never_too_many_to_merge():
    for multiprocessors in (1, 14, 84, 128, 132, 170, 304):
        for heads, kv_heads, blocks in (
            (16, 4, 4),
            (24, 4, 8),
            (8, 2, 2),
            (64, 8, 16),
        ):  # blocks: of a part of all heads
            parts = parts_of_head(heads, kv_heads, multiprocessors)
            assert 1 <= parts <= MOST_PARTS and (parts == 1 or parts * blocks <= 2 * multiprocessors)
            assert parts == MOST_PARTS or (parts + 1) * blocks > multiprocessors  # none is without a part
    assert [parts_of_head(heads, 4, 132) for heads in (16, 24)] == [66, 33]


@pytest.mark.gpu
def test_one_graph_serves_every_length():
    case = Case("int8", 16, 4, 256, 5000)
    tree = Tree((2, 2, 1, 1, 1))
    contents = [case.content(level, rank) for level, rank in zip(tree.depths, tree.ranks, strict=True)]
    q, k, v = case.rows(contents)
    out = torch.empty(8, 16 * 256, device=DEVICE)

    def call():
        decode_attention(q, case.cache.keys, case.cache.values, control=case.control, workspace=case.workspace, out=out)

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for length in (5000, 3, 0, 4096, 64, 2047):
        case.cache.length = length
        case.cache.stage(k, v, tree.parents)
        write_control(case.control, length=length, parents=tree.parents)
        graph.replay()
        replayed = out.clone().view(8, 16, 256)
        assert torch.equal(replayed, case.attend(q))
        wanted, bound = case.exact(q[4], length + depths(tree.parents)[4], length + cache_offsets(tree.parents)[4])
        assert ((replayed[4].double() - wanted).abs() <= bound).all()


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="groups"):
        allocate(6, 4, 256, slots=64, device="cpu")
    with pytest.raises(ValueError, match="head dimension 80"):
        allocate(4, 4, 80, slots=64, device="cpu")
    case = Case("int8", 4, 1, 128, 70)
    q = case.rows([case.content(0, 0)])[0]
    keys, values = case.cache.keys, case.cache.values
    good = {"control": case.control, "workspace": case.workspace, "out": torch.empty(8, 512, device=DEVICE)}
    short = SimpleNamespace(numbers=keys.numbers[:, :100].contiguous(), scales=keys.scales[:, :100].contiguous())
    unscaled = SimpleNamespace(numbers=keys.numbers, scales=None)
    small = allocate(4, 1, 128, slots=64, device=DEVICE)
    for arguments, changes, match in [
        ((q[:4], keys, values), {}, "q must be"),
        ((q.transpose(0, 1).contiguous().transpose(0, 1), keys, values), {}, "contiguous"),
        ((q, short, short), {}, "multiple of 64"),
        ((q, keys, unscaled), {}, "come with scales"),
        ((q, keys, values), {"workspace": small}, "workspace"),
        ((q, keys, values), {"control": case.control.long()}, "control must be"),
        ((q, keys, values), {"out": torch.empty(8, 500, device=DEVICE)}, "out must be"),
        ((q, keys, values), {"gate": torch.empty(8, 4, 128, device=DEVICE)}, "gate must be"),
    ]:
        with pytest.raises(ValueError, match=match):
            decode_attention(*arguments, **(good | changes))
