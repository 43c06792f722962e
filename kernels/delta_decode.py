"""The gated DeltaNet's decode step with deferred commit: convolution, gates, norms, rule and gated norm in one launch.

Per row, from what the projections give (qkv, z, b, a) and along the row's own ancestors:

    q | k | v = silu(conv(qkv)), four taps;   q, k <- x / sqrt(sum x^2 + 1e-6) over the head,   q <- q dk^-1/2
    g = rate softplus(a + dt_bias), rate = -exp(A_log);   beta = sigmoid(b) in b's dtype
    w = beta (v - exp(g) k^T S);   S' = exp(g) S + k w^T;   o = exp(g) q^T S + (q.k) w     (= q^T S')
    y = gated_rms_norm(o, z)

Value head h uses key head h // (Hv / Hk). All float32; y is rounded to the compute dtype.

A pass of 1 to 8 tree rows writes no state of its own rows: it keeps what a replay needs (qkv columns, k, v, g, beta) in
one of two buffers. `pending` slots of the other buffer, the accepted path of the pass before, are replayed first by the
same step function: the committed state is written once, the committed window goes to the buffer of this pass. Every
launch fills the buffer that the one before it did not fill, and a path is pending for one launch only. A launch with no
rows is the final commit.

Four blocks a value head, each with a quarter of its value columns and of its state, which stays in registers. A column
of the state needs no other column, so only the gated norm brings a head together: every block stores its outputs, and
the one that is counted last norms all of them (no block waits for another). What needs q and k is computed by all four.
With one block a head, issue slots bound the loops (400 instructions a row, two warps a scheduler: 0.6 us a row measured
on an H200) and a multiprocessor moved 64 KiB of state in and out. Convolution and gates in a launch of their own would
cost a microsecond; here they run while the state is on its way.

The shape of a pass lives in a control tensor on the device, int32 [64], shared by all layers of a pass, so that one
captured graph serves every shape (`control_words` makes its contents):

    0        buffer that this pass fills, 0 or 1
    1        pending count, 0 to 8;      4..11   pending slots, in the order of the path
    2        live rows, 0 to 8
    16..23   by slot: the row's turn, 0 to rows - 1: depth by depth, leaves before the row that has children
    24..47   [3, 8], by slot: the slot of the token 1, 2, 3 before the row; or -m for the m-th last committed column
    48..55   by turn: slot, plus 16 if the row has children

Acceptance on the device need only change words 0 to 11.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from . import delta_rule
from .causal_conv import causal_conv
from .rms_norm import gated_rms_norm
from .rows import SLOTS, depths

TAPS = 4
CONTROL_WORDS = 64
L2_EPS = 1e-6  # inside the square root of the q and k norms; source: Qwen3.5 in transformers 5.24
_DIMS = (16, 32, 64, 128)
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class Heads:
    """Heads and head sizes of keys and values; value_heads is a multiple of key_heads."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int

    @property
    def channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True)
class Weights:
    """A layer's vectors, float32: taps [4, C], oldest token first; rate [Hv] = -exp(A_log), dt_bias [Hv]; norm [dv]."""

    heads: Heads
    taps: Tensor
    rate: Tensor
    dt_bias: Tensor
    norm: Tensor
    eps: float


@dataclass(frozen=True)
class State:
    """A layer's state. In front of windows, columns, keys, values and gates stands the buffer, [2, ...].

    recurrent  float32 [Hv, dk, dv], committed but for the pending path
    windows    compute dtype [2, 3, C], the last three committed columns, oldest first
    columns    compute dtype [2, 8, C]; keys float32 [2, 8, Hk, dk]; values float32 [2, 8, Hv, dv]
    gates      float32 [2, 2, 8, Hv]: g, then beta
    """

    recurrent: Tensor
    windows: Tensor
    columns: Tensor
    keys: Tensor
    values: Tensor
    gates: Tensor


def allocate(heads: Heads, *, dtype: torch.dtype, device) -> State:
    """An empty state: nothing committed, nothing pending. Raises ValueError for head sizes that the kernel lacks."""
    _check_heads(heads)
    hk, hv, dk, dv = heads.key_heads, heads.value_heads, heads.key_dim, heads.value_dim
    return State(
        torch.zeros(hv, dk, dv, device=device),
        torch.zeros(2, TAPS - 1, heads.channels, dtype=dtype, device=device),
        torch.zeros(2, SLOTS, heads.channels, dtype=dtype, device=device),
        torch.zeros(2, SLOTS, hk, dk, device=device),
        torch.zeros(2, SLOTS, hv, dv, device=device),
        torch.zeros(2, 2, SLOTS, hv, device=device),
    )


def split_for(value_dim: int) -> tuple[int, int]:
    """(blocks a head, consecutive value columns a thread); blocks are a power of two and have at least 16 columns."""
    return min(2, value_dim // 16), 2


def allocate_steps(heads: Heads, device, split: tuple[int, int] | None = None) -> Tensor:
    """Scratch that all layers on one stream share; `split` as given to `delta_decode`.

    One float32 [N]: [Hv * blocks, 17, k | q | the block's part of v | exp(g), beta, q.k, unused], outputs [Hv, 8, dv]
    and int32 [Hv] that count a head's blocks. A count starts at any multiple of `blocks`.
    """
    return torch.zeros(_steps_size(heads, (split or split_for(heads.value_dim))[0]), device=device)


def _steps_size(heads, blocks):
    steps = blocks * (2 * SLOTS + 1) * (2 * heads.key_dim + heads.value_dim // blocks + 4)
    return heads.value_heads * (steps + SLOTS * heads.value_dim + 1)


def control_words(parents: Sequence[int], *, buffer: int, pending: Sequence[int] = ()) -> list[int]:
    """Contents of the control tensor: a pass over rows with these parents (kernels/rows.py; () for the final commit).

    buffer   the one this pass fills, 0 or 1
    pending  the accepted slots of the pass before, from its root on
    """
    depth = depths(parents) if len(parents) else ()
    inner = {parent for parent in parents if parent >= 0}
    order = sorted(range(len(parents)), key=lambda slot: (depth[slot], slot in inner, slot))
    words = [0] * CONTROL_WORDS
    words[0], words[1], words[2] = buffer, len(pending), len(parents)
    words[4 : 4 + len(pending)] = pending
    words[24:48] = [-1] * 24
    for turn, slot in enumerate(order):
        words[16 + slot] = turn
        words[48 + turn] = slot + 16 * (slot in inner)
        at = slot
        for back in range(TAPS - 1):
            at = parents[at] if at >= 0 else at - 1
            words[24 + 8 * back + slot] = at
    return words


def supports(heads: Heads) -> bool:
    """Whether the kernel has these head sizes."""
    return heads.key_dim in _DIMS and heads.value_dim in _DIMS and heads.value_heads % heads.key_heads == 0


def _check_heads(heads):
    if not supports(heads):
        raise ValueError(f"{heads}: head sizes of {_DIMS} and whole value heads a key head are wanted; use plain torch")


def reference(inputs: Sequence[Tensor], weights: Weights, state: State, control: Tensor) -> Tensor:
    """The operation in plain torch, with `delta_decode`'s arguments and effects on `state`; returns its output."""
    heads, (fills, pending, rows, *_) = weights.heads, control.tolist()
    slots, backs = control[4 : 4 + pending].tolist(), control[24:48].view(3, SLOTS).T.tolist()
    repeat = heads.value_heads // heads.key_heads
    old, qkv = 1 - fills, inputs[0]
    committed = torch.cat([state.windows[old], state.columns[old, slots]])
    state.windows[fills] = committed[-(TAPS - 1) :]
    for slot in slots:
        k = state.keys[old, slot].repeat_interleave(repeat, 0)
        state.recurrent.copy_(
            delta_rule.step(state.recurrent, k, state.values[old, slot], *state.gates[old, :, slot])
        )  # fmt: skip
    out = qkv.new_zeros(SLOTS, heads.value_heads * heads.value_dim)
    reached = {-1: state.recurrent}
    for row in range(rows):
        earlier = [qkv[at] if at >= 0 else committed[at] for at in reversed(backs[row])]
        mixed = causal_conv(qkv[row : row + 1], torch.stack(earlier), weights.taps.T)
        q, k, v = _split(mixed[0], heads)
        z, b, a = (part[row] for part in inputs[1:])
        g, beta = weights.rate * F.softplus(a.float() + weights.dt_bias), torch.sigmoid(b).float()
        state.columns[fills, row], state.keys[fills, row], state.values[fills, row] = qkv[row], k, v
        state.gates[fills, 0, row], state.gates[fills, 1, row] = g, beta
        q, k = q.repeat_interleave(repeat, 0), k.repeat_interleave(repeat, 0)
        reached[row] = delta_rule.step(reached[max(backs[row][0], -1)], k, v, g, beta)
        o = delta_rule.read(reached[row], q)
        out[row] = gated_rms_norm(o, z.view(o.shape), weights.norm, weights.eps).flatten()
    return out


def _split(mixed, heads):
    keys = heads.key_heads * heads.key_dim
    q, k, v = mixed.split([keys, keys, heads.value_heads * heads.value_dim])
    q, k = (part.view(heads.key_heads, heads.key_dim) for part in (q, k))
    q, k = (part * torch.rsqrt(part.pow(2).sum(-1, keepdim=True) + L2_EPS) for part in (q, k))
    return q * heads.key_dim**-0.5, k, v.view(heads.value_heads, heads.value_dim)


def delta_decode(
    inputs: Sequence[Tensor],
    weights: Weights,
    state: State,
    *,
    control: Tensor,
    steps: Tensor,
    out: Tensor,
    dependent: bool = False,
    prefetch: bool = True,
    split: tuple[int, int] | None = None,
) -> Tensor:
    """One launch for all eight slots; fills and returns `out` [8, Hv * dv], zeros in dead slots.

    inputs     qkv [8, C], z [8, Hv * dv], b and a [8, Hv] in the state's compute dtype; rows may lie further apart
    control    int32 [64], see above
    steps      scratch of `allocate_steps`
    dependent  launched as a programmatic dependent of the kernel before it (NVIDIA, from compute capability 9.0)
    prefetch   with `dependent`: the state is asked into the L2 while the kernel before it still runs
    split      other than `split_for` gives, to compare; a token's bits are those of its split
    Raises ValueError where a shape, dtype, stride or device does not fit.
    """
    from . import _delta_decode_kernels as _kernels  # here, because without a GPU nobody needs Triton

    heads = weights.heads
    parts, columns = split or split_for(heads.value_dim)
    _check(inputs, weights, state, control, steps, out, parts)
    qkv, z, b, a = inputs
    options = {"launch_pdl": True} if dependent else {}
    lanes = 64 if torch.version.hip is not None and "gfx9" in _architecture(qkv.device) else 32
    _kernels.delta_decode_kernel[(heads.value_heads * parts,)](
        qkv, qkv.stride(0), z, z.stride(0), b, b.stride(0), a, a.stride(0),
        weights.taps, weights.rate, weights.dt_bias, weights.norm, weights.eps,
        control, state.recurrent, state.windows, state.columns, state.keys, state.values, state.gates, steps, out,
        HK=heads.key_heads, HV=heads.value_heads, DK=heads.key_dim, DV=heads.value_dim,
        PARTS=parts, VC=columns, DEPENDENT=dependent, PREFETCH=prefetch and dependent,
        # Eight lanes share the columns of a thread. Contraction would round by where a token stands.
        num_warps=max(1, heads.value_dim // parts // columns * 8 // lanes), enable_fp_fusion=False, **options,
    )  # fmt: skip
    return out


def _architecture(device):
    return torch.cuda.get_device_properties(device).gcnArchName if device.type == "cuda" else ""


def _check(inputs, weights, state, control, steps, out, parts):
    heads = weights.heads
    _check_heads(heads)
    hk, hv, dk, dv, channels = heads.key_heads, heads.value_heads, heads.key_dim, heads.value_dim, heads.channels
    dtype = inputs[0].dtype
    if dtype not in _DTYPES:
        raise ValueError(f"the rows must be bf16, fp16 or fp32, got {dtype}")
    wanted = {
        "qkv": (inputs[0], dtype, (SLOTS, channels)),
        "z": (inputs[1], dtype, (SLOTS, hv * dv)),
        "b": (inputs[2], dtype, (SLOTS, hv)),
        "a": (inputs[3], dtype, (SLOTS, hv)),
        "taps": (weights.taps, torch.float32, (TAPS, channels)),
        "rate": (weights.rate, torch.float32, (hv,)),
        "dt_bias": (weights.dt_bias, torch.float32, (hv,)),
        "norm": (weights.norm, torch.float32, (dv,)),
        "recurrent": (state.recurrent, torch.float32, (hv, dk, dv)),
        "windows": (state.windows, dtype, (2, TAPS - 1, channels)),
        "columns": (state.columns, dtype, (2, SLOTS, channels)),
        "keys": (state.keys, torch.float32, (2, SLOTS, hk, dk)),
        "values": (state.values, torch.float32, (2, SLOTS, hv, dv)),
        "gates": (state.gates, torch.float32, (2, 2, SLOTS, hv)),
        "control": (control, torch.int32, (CONTROL_WORDS,)),
        "steps": (steps, torch.float32, (_steps_size(heads, parts),)),
        "out": (out, dtype, (SLOTS, hv * dv)),
    }
    rows = ("qkv", "z", "b", "a")
    for name, (tensor, kind, shape) in wanted.items():
        if tensor.dtype != kind or tuple(tensor.shape) != shape:
            raise ValueError(f"{name} must be {kind} {list(shape)}, got {tensor.dtype} {list(tensor.shape)}")
        if tensor.stride(-1) != 1 or (name not in rows and not tensor.is_contiguous()):
            raise ValueError(f"{name} has strides {tensor.stride()}: call {name}.contiguous()")
        if tensor.device != inputs[0].device:
            raise ValueError(f"{name} is on {tensor.device}, qkv on {inputs[0].device}: use one device")
