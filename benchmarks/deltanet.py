"""Times the DeltaNet kernels on a GPU, correctness first.

python -m fastqwen.benchmarks.deltanet [--shape 9b 27b] [--split 2x2 1x4]

The decode step of kernels/delta_decode.py: convolution, gates, norms, rule and gated norm of one layer, as a pass runs
them. First every row of a tree and the state that each of its paths leaves are compared bit for bit with one token at a
time, and the float32 form with the reference. Then a chain of launches over layers whose states exceed the L2, as one
CUDA graph, each a programmatic dependent of the one before where the GPU can. The floor is the bytes of the state, read
and written once, at the machine's read ceiling; an empty launch in the same chain is printed beside it.

Then kernels/delta_prefill.py over prompts (--tokens 512 2048 8192) in its forms (--forms narrow exact), checked against
the reference's chunks in float64: a layer, the rule alone, and the first of its two launches alone;
with --peer beside fla-core's chunk_gated_delta_rule on the same numbers in bf16, where that can be imported.
"""

import argparse
import importlib.util
import itertools
import json

import torch
import triton
import triton.language as tl

from ..kernels import delta_prefill, delta_rule
from ..kernels._dependent_launch import gdc_launch_dependents, gdc_wait
from ..kernels.delta_decode import (
    Heads,
    Weights,
    allocate,
    allocate_steps,
    control_words,
    delta_decode,
    reference,
    split_for,
)
from ..kernels.rows import ancestors
from ..option_types import whole
from .timing import graph_microseconds, main_gpu, provenance, read_ceiling

SHAPES = {"9b": Heads(16, 32, 128, 128), "27b": Heads(16, 48, 128, 128)}
CHAIN = tuple(range(-1, 7))
TREE = (-1, 0, 1, 2, 0, 0, 1, 2)  # widths (3, 2, 2)
# what, parents, pending, gate and goal in microseconds by shape
CASES = (
    ("8 rows in a chain, 4 pending", CHAIN, 4, {"9b": (13, 8), "27b": (14, 9)}),
    ("8 rows in a tree, 4 pending", TREE, 4, {}),
    ("8 rows in a tree, 1 pending", TREE, 1, {}),
    ("4 rows in a chain, 2 pending", CHAIN[:4], 2, {}),
    ("1 row, 1 pending", (-1,), 1, {"9b": (9, None), "27b": (10, None)}),
    ("1 row, nothing pending", (-1,), 0, {}),
    ("final commit, 1 pending", (), 1, {}),
)
SEED, CALLS, ROTATE_BYTES = 0, 96, 300e6
PIECE = 2048  # tokens of a long prompt that run at a time
# By tests/test_delta_prefill.py: roundings to 11 bits, and products of bf16 halves, off by 2^-18 and a few in turn.
LARGEST_ERROR = {"narrow": 23**0.5 * 2.0**-12, "exact": 3e-5}


@triton.jit
def _empty_kernel(p_out, DEPENDENT: tl.constexpr):
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    tl.store(p_out + tl.program_id(0), 1.0)


def make_weights(heads: Heads, device) -> Weights:
    """Random vectors of a layer whose heads forget over 1 to 100 tokens."""
    rate = -torch.logspace(-2, 0, heads.value_heads, device=device)
    taps = torch.randn(4, heads.channels, device=device) * 0.5
    norm = torch.randn(heads.value_dim, device=device)
    return Weights(heads, taps, rate, torch.randn(heads.value_heads, device=device), norm, 1e-6)


def make_inputs(heads: Heads, dtype, device) -> list[torch.Tensor]:
    """What a layer's projections give, as columns of one matrix."""
    sizes = [heads.channels, heads.value_heads * heads.value_dim, heads.value_heads, heads.value_heads]
    return list(torch.randn(8, sum(sizes), device=device).to(dtype).split(sizes, 1))


class Runner:
    """A state with its weights, and passes over it."""

    def __init__(self, weights, dtype, device, dependent, split=None):
        self.weights, self.dependent, self.device, self.split = weights, dependent, device, split
        self.state = allocate(weights.heads, dtype=dtype, device=device)
        self.steps = allocate_steps(weights.heads, device, split)
        self.buffer = 0

    def __call__(self, inputs, parents, pending, function=delta_decode):
        words = control_words(parents, buffer=self.buffer, pending=pending)
        control = torch.tensor(words, dtype=torch.int32, device=self.device)
        self.buffer = 1 - self.buffer
        if function is reference:
            return reference(inputs, self.weights, self.state, control)
        out = torch.full_like(inputs[1], float("nan"), memory_format=torch.contiguous_format)
        return delta_decode(
            inputs, self.weights, self.state, control=control, steps=self.steps, out=out, dependent=self.dependent,
            split=self.split,
        )  # fmt: skip


def check(heads: Heads, device, dependent: bool, split=None):
    """Raises AssertionError where the kernel is not the reference, or a row or state not that of plain decoding."""
    weights = make_weights(heads, device)
    ours, theirs = (Runner(weights, torch.float32, device, dependent, split) for _ in range(2))
    pending = ()
    for parents, slot in ((CHAIN, 4), (TREE, 7), ((-1,), 0)):
        inputs = make_inputs(heads, torch.float32, device)
        found, wanted = ours(inputs, parents, pending), theirs(inputs, parents, pending, reference)
        # Both lie within a few roundings a token of the float64 definition (tests/test_delta_decode.py).
        assert (found - wanted).norm() < 1e-4 * wanted.norm(), "outputs differ from the reference"
        pending = ancestors(parents, slot)
    assert (ours.state.recurrent - theirs.state.recurrent).norm() < 1e-5 * theirs.state.recurrent.norm()

    inputs = make_inputs(heads, torch.bfloat16, device)
    for parents in (CHAIN, TREE):
        for slot in range(8):
            tree, plain = (Runner(weights, torch.bfloat16, device, dependent, split) for _ in range(2))
            out, path, pending = tree(inputs, parents, ()), ancestors(parents, slot), ()
            for at in path:
                row = [part[[at] * 8] for part in inputs]
                assert torch.equal(plain(row, (-1,), pending)[0], out[at]), f"row {at} of {parents}"
                pending = (0,)
            tree(inputs, (), path)
            plain(inputs, (), pending)
            assert torch.equal(tree.state.recurrent, plain.state.recurrent), f"state after {path} of {parents}"
            window = tree.state.windows[1 - tree.buffer]
            assert torch.equal(window, plain.state.windows[1 - plain.buffer]), f"window after {path} of {parents}"


def bench(shape: str, splits) -> dict:
    """Prints a row a case; returns the summary that is printed last as JSON."""
    device, heads = torch.device("cuda"), SHAPES[shape]
    torch.manual_seed(SEED)
    dependent = torch.version.hip is None and torch.cuda.get_device_capability() >= (9, 0)
    for split in splits:
        check(heads, device, dependent, split)
    state_bytes = heads.value_heads * heads.key_dim * heads.value_dim * 4
    layers = min(CALLS, int(ROTATE_BYTES // state_bytes) + 1)
    runners = [Runner(make_weights(heads, device), torch.bfloat16, device, dependent) for _ in range(layers)]
    inputs = [make_inputs(heads, torch.bfloat16, device) for _ in range(8)]
    steps = {split: allocate_steps(heads, device, split) for split in splits}
    out = torch.zeros_like(inputs[0][1], memory_format=torch.contiguous_format)
    ceiling = read_ceiling(device)
    floor = 2 * state_bytes / ceiling / 1e3
    empty = graph_microseconds(
        [lambda: _empty_kernel[(heads.value_heads,)](out, dependent, **({"launch_pdl": True} if dependent else {}))]
        * CALLS
    )  # fmt: skip
    rows = []
    for name, parents, count, targets in CASES:
        words = control_words(parents, buffer=0, pending=tuple(range(count)))
        control = torch.tensor(words, dtype=torch.int32, device=device)
        times = {}
        for split, prefetch in [(split, True) for split in splits] + [(splits[0], False)]:
            options = {"control": control, "steps": steps[split], "out": out, "split": split}
            options |= {"dependent": dependent, "prefetch": prefetch}
            calls = [
                lambda runner=runners[i % layers], x=inputs[i % 8], options=options: delta_decode(
                    x, runner.weights, runner.state, **options
                )
                for i in range(CALLS)
            ]
            name_of = "us" if split == splits[0] else "us_{}x{}".format(*split)
            times[name_of if prefetch else "us_without_prefetch"] = round(graph_microseconds(calls), 2)
        gate, goal = targets.get(shape, (None, None))
        rows.append({"case": name, **times, "gate_us": gate, "goal_us": goal})
        print(f"  {shape}: " + ", ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    return {
        "what": "deltanet decode step", "shape": shape, "split": splits[0], **provenance(), "seed": SEED,
        "read_ceiling_GBps": round(ceiling), "floor_us": round(floor, 2), "empty_us": round(empty, 2),
        "registers_spills": list(_binaries()), "cases": rows,
    }  # fmt: skip


def rule_inputs(heads: Heads, tokens: int, device) -> list[torch.Tensor]:
    """state, q, k, v, g, beta in float32; q, k, v and beta are numbers of bf16, so that a peer gets the same ones."""
    q, k = (torch.randn(tokens, heads.key_heads, heads.key_dim, device=device) for _ in range(2))
    q, k = (x / x.norm(dim=-1, keepdim=True) for x in (q, k))
    v = torch.randn(tokens, heads.value_heads, heads.value_dim, device=device)
    g, beta = torch.rand(2, tokens, heads.value_heads, device=device)
    state = torch.randn(heads.value_heads, heads.key_dim, heads.value_dim, device=device)
    return [state, *(x.bfloat16().float() for x in (q, k, v)), -g, beta.bfloat16().float()]


def relative_error(found, wanted) -> float:
    """The larger of the outputs' and the state's relative error, by norm."""
    return max(((x.double() - y).norm() / y.norm()).item() for x, y in zip(found, wanted, strict=True))


def in_pieces(inputs, piece: int):
    """The rule over prompt chunks of `piece` tokens, the state handed on, as the engine runs a long prompt."""
    state, outputs = inputs[0], []
    for start in range(0, len(inputs[1]), piece):
        output, state = delta_prefill.chunked(state, *(x[start : start + piece] for x in inputs[1:]))
        outputs.append(output)
    return outputs, state


def peer_rule(inputs):
    """A call of fla-core's chunked rule on these inputs; (outputs, state) as ours gives them."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    state, q, k, v, g, beta = (x[None] for x in inputs)
    q, k, v, beta = (x.bfloat16() for x in (q, k, v, beta))

    def call():
        with torch.no_grad():
            o, after = chunk_gated_delta_rule(
                q, k, v, g, beta, scale=1.0, initial_state=state, output_final_state=True
            )  # fmt: skip
        return o[0], after[0]

    return call


def bench_prompt(shape: str, tokens: int, forms, peer: bool) -> dict:
    """Microseconds of one layer over `tokens` of a prompt, and of the rule alone beside others of it."""
    device, heads = torch.device("cuda"), SHAPES[shape]
    torch.manual_seed(SEED)
    inputs = rule_inputs(heads, tokens, device)
    state, q, k, *rest = inputs
    repeated = [x.repeat_interleave(heads.value_heads // heads.key_heads, 1) for x in (q, k)]
    wanted = delta_rule.chunked(*(x.double() for x in (state, *repeated, *rest)))
    weights = make_weights(heads, device)
    whole = torch.randn(tokens, heads.channels + heads.value_heads * (heads.value_dim + 2), device=device).bfloat16()
    sizes = [heads.channels, heads.value_heads * heads.value_dim, heads.value_heads, heads.value_heads]
    rows, window = whole.split(sizes, 1), torch.zeros(3, heads.channels, dtype=torch.bfloat16, device=device)
    errors, calls = {}, {}
    for form in forms:
        narrow = form == "narrow"
        own = [state, *(x.half() if narrow else x for x in (q, k, rest[0])), *rest[1:]]
        errors[f"{form}_relative_error"] = error = relative_error(delta_prefill.chunked(*own), wanted)
        assert error < LARGEST_ERROR[form], f"chunks differ from the float64 reference: {errors}"
        options = {"window": window, "recurrent": state, "narrow": narrow}
        calls[f"{form}_layer_us"] = lambda options=options: delta_prefill.prefill(rows, weights, **options)
        calls[f"{form}_rule_us"] = lambda own=own: delta_prefill.chunked(*own)
        if narrow:
            calls["narrow_chunks_us"] = lambda own=own: delta_prefill.narrow_chunks(heads, *own[1:3], *own[4:])
        if tokens > PIECE:
            calls[f"{form}_rule_in_pieces_us"] = lambda own=own: in_pieces(own, PIECE)
    if peer:
        calls["peer_rule_us"] = peer_rule(inputs)
        errors["peer_relative_error"] = relative_error(calls["peer_rule_us"](), wanted)
    times = {name: round(graph_microseconds([call] * 4, 10), 1) for name, call in calls.items()}
    if tokens <= 512:
        times["torch_rule_us"] = round(_eager_microseconds(lambda: delta_rule.chunked(state, *repeated, *rest)), 1)
    print(f"  {shape}: {tokens} tokens, {errors}, {times}", flush=True)
    return {"what": "deltanet prompt", "shape": shape, **provenance(), "tokens": tokens} | errors | times


def _eager_microseconds(call, calls=10):
    """Mean of plain calls: the reference's solver cannot be captured."""
    call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3 / calls


def _binaries():
    """(registers, spills) of the forms compiled so far, where this Triton tells them."""
    from ..kernels._delta_decode_kernels import delta_decode_kernel

    for caches in getattr(delta_decode_kernel, "device_caches", {}).values():
        for binary in caches[0].values():
            yield getattr(binary, "n_regs", None), getattr(binary, "n_spills", None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--split", nargs="*", default=[], help="others to time: blocks a head x columns a thread, 2x2")
    parser.add_argument(
        "--tokens", nargs="*", type=whole(1), default=[512, 2048], help="of the prompts; none for no prompts"
    )
    parser.add_argument(
        "--peer", action="store_true", help="also time fla-core's rule; it tunes itself at the first call"
    )
    parser.add_argument("--only-prompts", action="store_true")
    parser.add_argument("--forms", nargs="+", default=list(LARGEST_ERROR), choices=list(LARGEST_ERROR))
    arguments = parser.parse_args()
    main_gpu("benchmarks.deltanet")
    shapes = arguments.shape
    for shape in shapes if not arguments.only_prompts else ():
        splits = [split_for(SHAPES[shape].value_dim), *(tuple(map(int, s.split("x"))) for s in arguments.split)]
        print(json.dumps(bench(shape, splits)), flush=True)
    peer = arguments.peer and importlib.util.find_spec("fla") is not None
    for shape, tokens in itertools.product(shapes, arguments.tokens):
        print(json.dumps(bench_prompt(shape, tokens, arguments.forms, peer)), flush=True)
    if arguments.peer and not peer:
        print("fla-core is not installed: nothing to compare with")


if __name__ == "__main__":
    main()
