"""Decode attention for the eight rows of a pass over a key-value cache.

A row of depth d sees the slots below length + d, the last d of them its ancestors at their true positions, and then
its own key and value, wherever they lie. For a query head, with scores t in bits:

    t_i  = (q . k_i) D^-1/2 log2 e
    part:  m = max t_i,  s = sum 2^(t_i - m),  a = sum 2^(t_i - m) v_i    over the seen slots of one part
    M = max over parts and the own t;   o = (sum 2^(m - M) a + 2^(t - M) v) / (sum 2^(m - M) s + 2^(t - M))

then o * sigmoid(gate) and one rounding to the output's dtype. The reference is kernels/attention.py's decode_row.

Rows. Of PARTS parts, a number that follows from the numbers of heads and of the device's multiprocessors, part i has
the tiles i, i + PARTS and so on: at any length parts have as many tiles or one more, all work at one time, and
neighbours are read together. Inside a part tiles come in order under a running maximum. A tile of which a row sees
nothing multiplies its sums by 1 and adds 0, and the merge takes as many parts as the row sees something of. There sums
of weights add up in one fixed tree, sums of values part by part, the i-th to sum i mod 4, and those in one fixed tree;
the own key is last. So a row's bits depend on neither its place among the rows, its neighbours, how many are alive, nor
the block that worked for it: a row of a tree equals the same token decoded alone once its ancestors are committed.

Numbers. int8 codes are exact in fp16, and so are bf16 queries from 2^-17 up (normed queries are far from 65504); fp32
queries are taken as the sum of two. Products add up in fp32 and the key's scale is applied after. A value's scale is a
mantissa times a power of two: the power joins the exponent of which the running maximum is taken, so the weight times
the mantissa stays below 2 and is rounded to fp16. bf16 and fp32 caches multiply as three products of tf32. With
S = sum |q_j k_j| D^-1/2 log2 e of the largest key, the output is off by at most

    (w + 2^-23 (D + 16) S + 2^-23 (n / PARTS + 192)) sum p |v| / sum p,   w = 2^-11 int8, 2^-18 else,

for n slots: a term for a weight's rounding, one for its score, one for the sums, of a part and of parts. With int8,
weights that are subnormal in fp16 (2^-14 of the largest and less) add n 2^-25 127 of the largest product of a weight
and a value's scale. The PTX multiplies the codes as they are stored, exactly, by queries of two int8 digits, in steps
of max |q| / 32639: that adds 2^-15 max |q| sum |k_j| D^-1/2 log2 e of the largest key to the first bracket.

Two launches, the parts and their merge. Which blocks take the parts beyond one each is settled as they run, through a
counter that the merge sets back to 0. Length, rows, depths and places are read on the device
(kernels/attention_control.py), so one captured graph serves any length up to the capacity. On NVIDIA int8 caches of
128 and 256 channels are worked through by kernels/_attention_ptx.py, on compute capability 9.0 with tiles copied to
shared memory ahead of use, with the same bits; everything else by Triton, which takes the codes of a tile to registers
in the order of the matrix unit's operands: any order of channels or of slots will do for a sum if both factors have it.
"""

import logging
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from .attention_control import FLOATS, HEAD_DIMS, TILE, check_cache, want
from .cache_split import prefer_shared
from .rows import SLOTS

MOST_PARTS = 96  # of a head: beyond, their merge takes longer than a multiprocessor's second part saves
# What benchmarks/attention.py compares with others. The merge: sums that parts join in turn, parts of each in flight,
# warps, blocks a row and head. The parts: whether the text of kernels/_attention_ptx.py runs where it can, which of its
# forms, how many tiles a block asks for while the kernels before it run, blocks launched for each multiprocessor.
MERGE_PLACES, MERGE_TURNS, MERGE_WARPS, MERGE_BLOCKS = 4, 8, 4, 1
BY_TEXT, TEXT, AHEAD, BLOCKS = True, {}, 2, 4
EARLY = True  # whether dependent launches read control before they wait, and check it after
_WITHOUT_TEXT: set[torch.device] = set()  # where the text failed its check
_RESERVED: dict[tuple[torch.device, int], int] = {}  # of a form's launch, bytes of shared memory

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Workspace:
    """Room for the parts of one layer at a time; one serves every layer on a stream.

    peak, total  float32 [kv_heads, places, 8 * group]: m in bits and s of parts, by row and query head of the group
    sums         float32 [kv_heads, places, 8 * group, D]: a
    counter      int32 [1], 0 between launches
    blocks       launched for the parts
    parts        PARTS; places are fewer where the cache has fewer tiles
    """

    peak: Tensor
    total: Tensor
    sums: Tensor
    counter: Tensor
    blocks: int
    parts: int


def allocate(heads: int, kv_heads: int, head_dim: int, *, slots: int, device, blocks: int | None = None) -> Workspace:
    """A workspace for caches of up to `slots` slots. Raises ValueError for shapes that the kernels do not take."""
    device = torch.device(device)
    if heads % kv_heads or not 1 <= heads // kv_heads <= 32:
        raise ValueError(f"{heads} query heads over {kv_heads} key-value heads: groups of 1 to 32 are handled")
    if head_dim not in HEAD_DIMS:
        raise ValueError(f"head dimension {head_dim}: {HEAD_DIMS} are handled")
    multiprocessors = 4  # in the interpreter: few parts, more than blocks
    if device.type == "cuda":
        multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    parts = parts_of_head(heads, kv_heads, multiprocessors)
    places = min(parts, -(-slots // TILE))
    if blocks is None:
        # Twice as many as are resident, where there are parts for them: handing them out is quicker than the counter.
        blocks = BLOCKS * multiprocessors if device.type == "cuda" else multiprocessors
    cells = (kv_heads, places, SLOTS * (heads // kv_heads))
    blocks = min(blocks, kv_heads * places * -(-SLOTS // _block_rows(heads // kv_heads)))
    return Workspace(
        torch.empty(cells, device=device),
        torch.empty(cells, device=device),
        torch.empty(*cells, head_dim, device=device),
        torch.zeros(1, dtype=torch.int32, device=device),
        blocks,
        parts,
    )


def parts_of_head(heads: int, kv_heads: int, multiprocessors: int) -> int:
    """PARTS: into how many parts the tiles of a key-value head are dealt out. As many as the multiprocessors work on at
    one time, two each, or one each where that would be too many to merge."""
    blocks = kv_heads * -(-SLOTS // _block_rows(heads // kv_heads))  # of a part of all heads
    two_each, one_each = (count * multiprocessors // blocks for count in (2, 1))
    return max(1, min(two_each if two_each <= MOST_PARTS else one_each, MOST_PARTS))


def decode_attention(
    q: Tensor,
    keys,
    values,
    *,
    control: Tensor,
    workspace: Workspace,
    gate: Tensor | None = None,
    out: Tensor,
    dependent: bool = False,
) -> Tensor:
    """Attention of up to eight rows, two launches; returns `out`, dead rows zero.

    q             bf16, fp16 or fp32 [8, heads, D], normed and rotated; |q| < 65504
    keys, values  with `numbers` int8, bf16 or fp32 [kv_heads, slots, D] and `scales`, float32 [kv_heads, slots] for
                  int8, else None; slots is a multiple of TILE
    control       int32 [24], kernels/attention_control.py
    gate          [8, heads, 2 D]: query | gate as projected, of which the gate is read; rows may lie further apart
    out           [8, heads * D]
    dependent     launched as programmatic dependents of the kernel before (NVIDIA, from compute capability 9.0)
    Raises ValueError where a shape, dtype, stride or device does not fit.
    """
    _check(q, keys, values, control, workspace, gate, out)
    if _takes_text(q, keys):
        _parts_by_text(q, keys, values, control, workspace, dependent)
    else:
        _parts(q, keys, values, control, workspace, dependent)
    _merge(q, keys, values, control, workspace, gate, out, dependent)
    return out


def _parts(q, keys, values, control, workspace, dependent):
    import triton.language as tl  # here, because without a GPU nobody needs Triton

    from . import _decode_attention_kernels as _kernels

    group, shape, tensors = _common(q, keys, values, control, workspace, dependent)
    # bf16 with two products a weight read past its shared memory (Triton 3.6, compute capability 9.0).
    int8 = keys.numbers.dtype == torch.int8
    kind = tl.float16 if int8 else tl.float32
    rows = _block_rows(group)
    nvidia = q.is_cuda and torch.version.hip is None
    _kernels.decode_attention_parts_kernel[(workspace.blocks,)](
        *tensors, keys.numbers.shape[1], workspace.peak.shape[1], BLOCK_ROWS=rows,
        M=max(16, _power_of_two(rows * group)), T=TILE if int8 else 16, KIND=kind,
        SPLIT_Q=int8 and q.dtype == torch.float32, PRECISION="tf32x3" if nvidia else "ieee",
        FAST=nvidia, BY_WARP=torch.version.hip is None, INTERPRETED=not q.is_cuda, num_warps=4, **shape,
    )  # fmt: skip


def _takes_text(q, keys) -> bool:
    """Whether parts are those of kernels/_attention_ptx.py: int8 on NVIDIA from compute capability 8.0."""
    numbers = keys.numbers
    fits = numbers.dtype == torch.int8 and numbers.shape[2] >= 128 and q.dtype != torch.float32
    return fits and _text_runs(q.device)


def _text_runs(device) -> bool:
    fits = device.type == "cuda" and torch.version.hip is None and _capability(device)[0] >= 8
    return BY_TEXT and fits and device not in _WITHOUT_TEXT


def avoid_text(device: torch.device) -> bool:
    """Has Triton's own form be used on a device from now on; False where it was anyway."""
    device = torch.empty(0, device=device).device  # with its number, as tensors have it
    ran = _text_runs(device)
    _WITHOUT_TEXT.add(device)
    return ran


@cache
def _capability(device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def _parts_by_text(q, keys, values, control, workspace, dependent):
    from . import _attention_block_kernel as _kernel

    group, shape, tensors = _common(q, keys, values, control, workspace, dependent)
    rows = _block_rows(group)
    rest = {"staged": _capability(q.device)[0] == 9} | TEXT
    which = shape["D"], -(-rows * group // 8), q.dtype == torch.bfloat16, dependent
    arguments = *tensors, keys.numbers.shape[1], workspace.peak.shape[1]
    options = {"BLOCK_ROWS": rows, "AHEAD": AHEAD, "EARLY": EARLY, "num_warps": 4, **shape}
    if rest["staged"] and not _reserves_enough(_kernel, arguments, options, _kernel.form(*which, **rest)):
        rest["staged"] = False
    form = _kernel.form(*which, **rest)
    place = {"FORM": form, "SHARED_TILES": _kernel.shared_tiles(form)}
    _kernel.decode_attention_block_kernel[(workspace.blocks,)](*arguments, **options, **place)


def _reserves_enough(_kernel, arguments, options, form) -> bool:
    """Whether Triton has the launch of a form reserve what its text uses: beyond it a kernel would end the process."""
    key, wanted = (arguments[0].device, form), _kernel.reserved_bytes(form)
    if key not in _RESERVED:
        place = {"FORM": form, "SHARED_TILES": _kernel.shared_tiles(form)}
        compiled = _kernel.decode_attention_block_kernel.warmup(*arguments, **options, **place, grid=(1,))
        _RESERVED[key] = compiled.metadata.shared
        if _RESERVED[key] < wanted:
            logger.warning(
                "FastQwen: this version of Triton reserves %d bytes of shared memory where attention needs %d; a "
                "slower form is used.", _RESERVED[key], wanted,
            )  # fmt: skip
    return _RESERVED[key] >= wanted


def _merge(q, keys, values, control, workspace, gate, out, dependent):
    from . import _decode_attention_kernels as _kernels

    _, shape, tensors = _common(q, keys, values, control, workspace, dependent)
    heads, dim = q.shape[1:]
    gates = (q, 0) if gate is None else (gate, gate.stride(0))
    launched = _kernels.decode_attention_merge_kernel[(heads, SLOTS, MERGE_BLOCKS)](
        *tensors, gates[0], out, gates[1], keys.numbers.shape[1], workspace.peak.shape[1],
        PLACES=MERGE_PLACES, TURNS=MERGE_TURNS, BLOCK_D=dim // MERGE_BLOCKS, BY_STORES=_takes_text(q, keys),
        GATED=gate is not None, EARLY=EARLY, num_warps=MERGE_WARPS, **shape,
    )  # fmt: skip
    prefer_shared(launched, out.device)


def _common(q, keys, values, control, workspace, dependent):
    """(group, keywords, tensors) of both launches."""
    kv_heads, _, dim = keys.numbers.shape
    group = q.shape[1] // kv_heads
    keywords = {"KV_HEADS": kv_heads, "GROUP": group, "D": dim, "PARTS": workspace.parts, "DEPENDENT": dependent}
    # Said in every launch: what Triton does otherwise depends on its version and on an environment variable, and so
    # would a result's bits.
    keywords["enable_fp_fusion"] = True
    if dependent:
        keywords["launch_pdl"] = True
    scales = (keys.scales, values.scales) if keys.scales is not None else (workspace.peak, workspace.peak)
    state = (control, workspace.counter, workspace.peak, workspace.total, workspace.sums)
    return group, keywords, (q, keys.numbers, values.numbers, *scales, *state)


def _block_rows(group):
    """Rows of one block: their query heads fill at most 32 columns of the matrix unit, for the registers' sake."""
    return min(SLOTS, 32 // _power_of_two(group))


def _power_of_two(number):
    return 1 << max(0, number - 1).bit_length()


def _check(q, keys, values, control, workspace, gate, out):
    check_cache(keys, values, control)
    numbers = keys.numbers
    kv_heads, slots, dim = numbers.shape
    heads = q.shape[1]
    wanted = {"q": (q, (SLOTS, heads, dim), FLOATS), "out": (out, (SLOTS, heads * dim), FLOATS)}
    if gate is not None:
        wanted["gate"] = (gate, (SLOTS, heads, 2 * dim), FLOATS)
    for name, (tensor, shape, dtypes) in wanted.items():
        want(name, tensor, shape, dtypes, numbers.device)
        if not (tensor[0] if name == "gate" else tensor).is_contiguous():
            raise ValueError(f"{name} has strides {tensor.stride()}: call {name}.contiguous()")
    have, wanted_places = tuple(workspace.sums.shape), min(workspace.parts, -(-slots // TILE))
    if (have[0], *have[2:]) != (kv_heads, SLOTS * heads // kv_heads, dim) or have[1] < wanted_places:
        raise ValueError(
            f"the workspace holds parts {list(have)}; {heads} heads over {kv_heads} x {slots} slots of {dim} want "
            f"{wanted_places}: allocate({heads}, {kv_heads}, {dim}, slots={slots}, ...)"
        )
