"""Linear layers over packed int8-grid weights, for the eight rows of a decode pass.

    acc = x8 @ grid^T                                   int32, exact in any order
    y   = (float(acc) * channel_scale) * x_scale        each product rounded in float32
    y   = y + residual in float32, if there is one;  one rounding to the output's dtype

x8 and x_scale come from kernels/prepare.py in its order [K / 64][8 rows][64 bytes]; weights are records of
kernels/packed.py. Because the sum is exact, a row's bits depend on that row alone, whatever the number of rows, the
split of K over warps, or the form of the kernel below.

The kernel is persistent: a block of WARPS warps walks every GRID-th slab of 16 rows. Warp w owns a contiguous range of
the slab's records and has its next record in flight while it works on the current one, across slabs too. The weights
are the 16-row operand of the matrix unit and the eight activations its 8-column operand. Where a last turn would leave
most blocks idle, its slabs are cut along K instead and all blocks share them: those parts come first, add their
integers up in memory, and the one that comes last finishes the slab, while other blocks keep the memory busy.

On NVIDIA a 4-bit group is decoded by byte permutes: its 16 levels are 16 bytes of magnitudes, the negative ones first.
`prmt` returns the sign bit of the byte it selects (0 for a magnitude) where a selector's top bit is set, so one permute
of the low half with the codes and one of the high half with codes ^ 8 each decode four weights and leave zeros for the
other half: W x = P x - N x. The levels of 32 neighbouring scale bytes sit in registers, one scale a lane, and are read
by shuffles; a matrix whose scales spread wider reads them from memory. 6 bits: (code - 32) * scale is exact in fp16 and
adding 1536 rounds it half to even at its integers. The portable form looks levels up or computes them, and uses tl.dot.
"""

import functools
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from . import float_linear
from .cache_split import prefer_shared
from .packed import Layout

WINDOW = 32  # scale bytes whose levels are kept in registers


def reference(x8: Tensor, x_scale: Tensor, grid: Tensor, channel_scale: Tensor, residual: Tensor | None = None):
    """x8 int8 [R, K], x_scale float32 [R], grid int8 [N, K], channel_scale float32 [N] -> float32 [R, N].

    residual [R, N] is added in float32. float64 holds the integer sums exactly: K * 127^2 < 2^53.
    """
    acc = (x8.double() @ grid.double().T).float()  # int32 -> float32 rounds once, and so does this
    y = acc * channel_scale * x_scale[:, None]
    return y if residual is None else y + residual.float()


@dataclass(frozen=True)
class PackedWeight:
    """A matrix as the kernel reads it, on its device.

    storage        uint8 [layout.bytes], records
    channel_scale  float32 [N]
    table          4 bits: int32 [tables, 256, 4], a scale byte's magnitudes (negative levels, then the others); else
                   empty
    window         4 bits: the first scale byte of the 32 that all groups use, or -1 if they spread wider
    table_of       int32 [N / 16], the table of each slab, where there are several; else None
    """

    storage: Tensor
    layout: Layout
    channel_scale: Tensor
    table: Tensor
    window: int
    table_of: Tensor | None = None

    @functools.cached_property
    def words(self) -> Tensor:
        """The records as int32."""
        return self.storage.view(torch.int32)


@dataclass(frozen=True)
class PlainRows:
    """A small plain matrix that runs in the same launch, one row a block: y = x W^T (kernels/float_linear.py).

    x [8, K] and weight [R, K] contiguous in one float dtype; out [8, R] contiguous in that dtype or fp32.
    """

    x: Tensor
    weight: Tensor
    out: Tensor


@dataclass(frozen=True)
class Config:
    """How a matrix is spread over the GPU.

    warps   of a block, along K
    blocks  at most; each walks every blocks-th slab
    parts   that the slabs of the last turn are cut into along K, where they are fewer than blocks: else most blocks
            would be idle while those few are worked on, one record of a warp after the other; 1: uncut
    early   the next record's loads are held at the top of the loop, at the price of registers: 128 where the compiler
            would take 82 to 122 and move them behind half of the products
    """

    warps: int
    blocks: int
    early: bool
    registers: int | None = None  # at most, for one more block a multiprocessor; None: as many as the compiler takes
    parts: int = 1


@dataclass(frozen=True)
class Joint:
    """Where the parts of a slab meet: zeros before a launch and after it. Of one matrix, or of launches in turn.

    sums    int32 [S, 4, 32], counts int32 [S], for the S slabs that `cut_slabs` counts
    """

    sums: Tensor
    counts: Tensor


def cut_slabs(layout: Layout, config: Config) -> int:
    """How many slabs a launch cuts into parts: those of its last turn that are no full one."""
    return layout.rows // 16 % config.blocks if config.parts > 1 else 0


def new_joint(layout: Layout, config: Config, device: torch.device) -> Joint | None:
    """What a launch with `config` needs, or None if it cuts nothing."""
    slabs = cut_slabs(layout, config)
    if not slabs:
        return None
    zeros = torch.zeros(slabs * 129, dtype=torch.int32, device=device)
    return Joint(zeros[: slabs * 128], zeros[slabs * 128 :])


def magnitude_table(levels: Tensor) -> Tensor:
    """int8 [256, 16], codes 0-7 at most zero and 8-15 at least zero, -> int32 [256, 4] of magnitudes.

    Rows of scale bytes with a sign (128 and up) are left zero: such a matrix does not come here. Raises ValueError
    for levels that do not split so: the caller relabels codes first.
    """
    levels = torch.cat([levels[:128], torch.zeros_like(levels[128:])])
    low, high = levels[:, :8], levels[:, 8:]
    if bool((low > 0).any()) or bool((high < 0).any()):
        raise ValueError("codes 0-7 must be at most zero and codes 8-15 at least zero")
    return torch.cat([-low, high], 1).contiguous().view(torch.int32)


def scale_window(scales: Tensor) -> int:
    """The first of WINDOW neighbouring bytes that hold all of `scales` (uint8), or -1."""
    first, last = int(scales.min()), int(scales.max())
    return min(first, 128 - WINDOW) if last - first < WINDOW else -1


def packed_linear(
    x8: Tensor,
    x_scale: Tensor,
    weight: PackedWeight,
    *,
    residual: Tensor | None = None,
    plain: PlainRows | None = None,
    out: Tensor,
    config: Config,
    joint: Joint | None = None,
    portable: bool = False,
    dependent: bool = False,
) -> Tensor:
    """Eight rows times a packed matrix.

    x8         int8 [K / 64, 8, 64] contiguous, x_scale float32 [8] (kernels/prepare.py)
    residual   [8, N] contiguous in out's dtype, added before the one rounding; may be `out` itself
    out        [8, N] contiguous, bf16 or fp32
    plain      a few plain rows beside it (not with `portable`)
    config     changes the time, never the bits of the packed rows
    joint      new_joint() of this layout and config (not with `portable`)
    portable   the form for every backend; the other one is for NVIDIA
    dependent  launched as a programmatic dependent of the kernel before it
    """
    from . import _packed_kernels as _kernels  # here, because without a GPU nobody needs Triton

    layout = weight.layout
    _check(x8, x_scale, weight, residual, out)
    slabs = layout.rows // 16
    tables = weight.table_of is not None
    table_of = weight.table_of if tables else weight.table
    behind = (table_of, weight.channel_scale, out if residual is None else residual, out)
    # Products must not be contracted with the residual's addition: each is rounded by contract.
    options = {"enable_fp_fusion": False}
    constants = {"BITS": layout.bits, "TABLES": tables, "RESIDUAL": residual is not None}
    if portable:
        if plain is not None:
            raise ValueError("the portable form runs no plain rows: call float_linear for them")
        _kernels.portable_packed_linear_kernel[(slabs,)](
            x8, x_scale, weight.storage, weight.table.view(torch.uint8), *behind, slabs, layout.columns,
            C=layout.record_columns, num_warps=4, **constants, **options,
        )  # fmt: skip
        return out
    if dependent:
        options["launch_pdl"] = True
    if config.registers is not None:
        options["maxnreg"] = config.registers
    cut = cut_slabs(layout, config)
    if cut and (joint is None or joint.counts.numel() != cut):
        raise ValueError(f"{cut} slabs are cut into parts: give new_joint() of this layout and config")
    whole = slabs - cut
    blocks, plain_rows = min(config.blocks, whole + cut * config.parts), 0
    beside = (out, out, out)
    if plain is not None:
        float_linear.check(plain.x, plain.weight, None, plain.out)
        beside, plain_rows = (plain.x, plain.weight, plain.out), plain.weight.shape[0]
        plain_launch = float_linear.sum_launch(1, config.warps, plain.weight.dtype)
    meet = (table_of, table_of) if not cut else (joint.sums, joint.counts)
    launched = _kernels.packed_linear_kernel[(plain_rows + blocks,)](
        x8.view(torch.int32), x_scale, weight.storage.view(torch.int32), weight.table, *behind, *beside, *meet,
        slabs, blocks, whole, config.parts, max(weight.window, 0), plain_rows,
        K=layout.columns, J=layout.record_columns // 64, WARPS=config.warps, WINDOW=weight.window >= 0,
        EARLY=config.early, CUT=cut > 0, PLAIN=plain is not None, PLAIN_K=0 if plain is None else plain_launch.block_k,
        DEPENDENT=dependent, num_warps=config.warps, **constants, **options,
    )  # fmt: skip
    prefer_shared(launched, out.device)
    return out


def unpack(weight: PackedWeight, slabs: Tensor, *, portable: bool = False) -> Tensor:
    """The int8 grid of some slabs of 16 rows: slabs int32 [S] -> int8 [16 S, K]. For prompts and for lookups.

    portable   the form for every backend; the other one is for NVIDIA
    """
    from . import _unpack_kernels as _kernels

    layout = weight.layout
    count = slabs.shape[0]
    out = torch.empty(count * 16, layout.columns, dtype=torch.int8, device=weight.storage.device)
    records = layout.columns // layout.record_columns
    tables = weight.table_of is not None
    table_of = weight.table_of if tables else weight.table
    if portable:
        _kernels.unpack_kernel[(count, records)](
            weight.storage, weight.table.view(torch.uint8), table_of, slabs, out,
            K=layout.columns, BITS=layout.bits, C=layout.record_columns, TABLES=tables, num_warps=4,
            enable_fp_fusion=True,
        )  # fmt: skip
        return out
    warps = 4
    _kernels.unpack_records_kernel[(count, -(-records // warps))](
        weight.words, weight.table, table_of, slabs, out.view(torch.int32), max(weight.window, 0),
        K=layout.columns, BITS=layout.bits, J=layout.record_columns // 64, WARPS=warps, WINDOW=weight.window >= 0,
        TABLES=tables, num_warps=warps, enable_fp_fusion=True,
    )  # fmt: skip
    return out


def launch_config(layout: Layout, multiprocessors: int, beside: bool = False) -> Config:
    """The configuration of a shape; measured by benchmarks/linear_sweep.py on one H200, see benchmarks/README.md.

    beside  plain rows run in the same launch: with two warps a row of K = 5120 takes as long as all packed rows
    """
    if layout.bits != 4:
        return Config(8 if layout.rows <= 4096 else 4, layout.rows, True)  # a block for each slab
    if layout.rows <= 4096:
        return Config(8, layout.rows, layout.columns <= 4096)
    if layout.columns > 8192:
        return Config(8, 2 * multiprocessors, False, parts=3)
    slabs, two_warps = layout.rows // 16, Config(2, 8 * multiprocessors, False)
    slow_beside = beside and layout.columns > 4096
    if 10240 < layout.rows <= 32768 and slow_beside:
        return Config(4, slabs, False)
    if 640 < slabs <= two_warps.blocks:  # all at once
        return Config(2, 9 * multiprocessors, False, registers=112)
    if slabs <= 3 * multiprocessors and layout.columns > 4096:
        return Config(4, slabs, False, registers=100)
    # Parts of one record a warp. Only where they are few: meeting costs a microsecond, which other blocks' work hides.
    cut = replace(two_warps, parts=-(-(layout.columns // layout.record_columns) // 2))
    if slabs > two_warps.blocks and 8 * cut_slabs(layout, cut) <= cut.blocks:
        return cut
    if layout.rows > 32768:
        return two_warps
    return Config(4, 4 * multiprocessors, layout.columns <= 4096)


def _check(x8, x_scale, weight, residual, out):
    layout = weight.layout
    wanted = {
        "x8": (x8, (layout.columns // 64, 8, 64), (torch.int8,)),
        "x_scale": (x_scale, (8,), (torch.float32,)),
        "out": (out, (8, layout.rows), (torch.bfloat16, torch.float32)),
        "channel_scale": (weight.channel_scale, (layout.rows,), (torch.float32,)),
        "storage": (weight.storage, (layout.bytes,), (torch.uint8,)),
    }
    if residual is not None:
        wanted["residual"] = (residual, (8, layout.rows), (out.dtype,))
    if weight.table_of is not None:
        wanted["table_of"] = (weight.table_of, (layout.rows // 16,), (torch.int32,))
    check_contiguous(wanted, out.device)


def check_contiguous(wanted: dict[str, tuple[Tensor, tuple[int, ...], tuple[torch.dtype, ...]]], device: torch.device):
    """Raises ValueError unless each tensor has its shape and one of its dtypes, is contiguous and on out's `device`."""
    for name, (tensor, shape, dtypes) in wanted.items():
        if tuple(tensor.shape) != shape or tensor.dtype not in dtypes or not tensor.is_contiguous():
            raise ValueError(
                f"{name} must be contiguous {dtypes[0]} {list(shape)}, got {tensor.dtype} {list(tensor.shape)}"
            )
        if tensor.device != device:
            raise ValueError(f"{name} is on {tensor.device}, out on {device}: move them to one device")
