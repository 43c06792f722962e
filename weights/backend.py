"""Whether layers run from kernels on a device: decided once for each kind, by a check against the reference."""

import contextlib
import functools
import logging
from collections.abc import Callable

import torch

from ..kernels import float_gemm, float_linear, packed, packed_linear, prepare
from ..kernels.packed import Layout

logger = logging.getLogger(__name__)


@functools.cache
def packed_kernels(device: torch.device) -> tuple[bool, str]:
    """(whether packed layers use kernels, why). A failure is logged once and the torch path taken."""
    return decide(device, "packed", _wrong_packed)


@functools.cache
def float_kernels(device: torch.device, dtype: torch.dtype) -> tuple[bool, str]:
    """The same for plain layers whose weights have `dtype`."""
    return decide(device, "plain linear", lambda device: _wrong_float(device, dtype))


@functools.cache
def prompt_kernels(device: torch.device, dtype: torch.dtype) -> tuple[bool, str]:
    """The same for the rows of a prompt (kernels/float_gemm.py)."""
    return decide(device, "plain prompt", lambda device: _wrong_prompt(device, dtype))


@functools.cache
def dependent_launch(device: torch.device) -> bool:
    """Whether kernels are launched as programmatic dependents of the ones before them: NVIDIA from 9.0."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= (9, 0)


def launching_on(device: torch.device) -> contextlib.AbstractContextManager:
    """While it is active, kernels are launched on `device`: Triton's, captured graphs and events go to torch's current
    device, wherever their tensors are. A GPU without a number is the current one already."""
    numbered = device.type == "cuda" and device.index is not None
    return torch.cuda.device(device) if numbered else contextlib.nullcontext()


def one_line(error: Exception) -> str:
    """An exception's kind and first line: a compiler's can be pages long."""
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def decide(device: torch.device, kind: str, wrong_result: Callable[[torch.device], str | None]) -> tuple[bool, str]:
    """(whether the kernels of `kind` are used on a device, why).

    wrong_result  runs them once; what differs from the reference, or None. A failure is logged and torch's path taken.
    """
    if device.type != "cuda":
        return False, f"plain torch on {device.type}"
    try:
        import triton
    except ImportError:
        _say_without_triton()
        return False, "plain torch: Triton is not installed (on Windows: pip install triton-windows)"
    try:
        with launching_on(device):
            wrong = wrong_result(device)
    except Exception as error:  # whatever a compiler or driver raises, the torch path still works
        wrong = one_line(error)
    if wrong is not None:
        logger.warning("FastQwen: %s kernels are not used on %s (%s); plain torch is slower.", kind, device, wrong)
        return False, f"plain torch: the kernels' self-check failed ({wrong})"
    return True, f"Triton {triton.__version__}, checked against the reference on {device}"


@functools.cache
def _say_without_triton():
    """Once a process, whatever kinds of layers there are."""
    logger.warning(
        "FastQwen: Triton is not installed, so everything runs in plain torch, which is slower: "
        "pip install triton (on Windows triton-windows)."
    )


def _wrong_float(device, dtype) -> str | None:
    """Every launch in use, on small random data: right within float32's rounding, a row's bits its own in any slot."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 640, generator=generator).to(dtype)
    weight = torch.randn(70, 640, generator=generator).to(dtype)
    wanted = float_linear.reference(x, weight)
    bound = 642 * 2.0**-23 * (x.double().abs() @ weight.double().abs().T)  # K sums, each cut at 2^-23 at worst
    on_device = weight.to(device)
    for launch in dict.fromkeys(float_linear.launch_for(rows, 640, dtype) for rows in (70, 4096, 100_000)):

        def run(rows, launch=launch):
            out = torch.full((8, 70), float("nan"), device=device)
            return float_linear.float_linear(rows.to(device), on_device, out=out, launch=launch).cpu()

        found = run(x)
        if not bool(((found - wanted).abs() <= bound).all()):
            return f"{launch.form} products of {dtype} differ"
        alone = torch.zeros_like(x)
        alone[5] = x[2]
        if not torch.equal(run(alone)[5], found[2]) or not torch.equal(run(x.flip(0)), found.flip(0)):
            return f"{launch.form} products of {dtype} depend on the other rows"
    return None


def _wrong_prompt(device, dtype) -> str | None:
    """Small random data: right within float32's rounding and the output's, a row's bits its own wherever it stands."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(70, 256, generator=generator).to(dtype)
    weight = torch.randn(70, 256, generator=generator).to(dtype)
    wanted = float_linear.reference(x, weight)
    bound = 258 * 2.0**-23 * (x.double().abs() @ weight.double().abs().T) + torch.finfo(dtype).eps * wanted.abs()
    rows, matrix = x.to(device), weight.to(device)
    found = float_gemm.float_gemm(rows, matrix)
    if not bool(((found.cpu() - wanted).abs() <= bound).all()):
        return f"products of {dtype} differ"
    alike = torch.equal(float_gemm.float_gemm(rows[13:], matrix), found[13:])
    return None if alike else f"products of {dtype} depend on the other rows"


def _wrong_packed(device) -> str | None:
    """Runs every packed kernel once on small random data; what differs from the reference, or None."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 512, generator=generator).to(device)
    norm = torch.randn(512, generator=generator).to(device)
    prepared = prepare.prepare(x, prepare.allocate(512, device), norm=norm, eps=1e-6)
    x8, x_scale = prepare.reference(x, norm=norm, eps=1e-6)
    if not torch.equal(prepared.x8, prepare.pack_order(x8)):
        return "activation codes differ"
    for bits in (4, 6, 8):
        layout = Layout(bits, 48, 512)
        storage = torch.randint(0, 256, (layout.bytes,), dtype=torch.uint8, generator=generator)
        codes_end = layout.rows * layout.code_bytes
        storage[codes_end:] = 0x30 + storage[codes_end:] % 32
        levels = packed.level_table(None, bits if bits != 8 else 4)
        views = storage[:codes_end].view(48, -1), storage[codes_end:].view(48, -1)
        grid = packed.grid_of(*views, layout, levels).clone()
        packed.to_records(storage, layout)
        table = packed_linear.magnitude_table(levels)[None] if bits == 4 else torch.empty(0, dtype=torch.int32)
        scale = torch.rand(48, generator=generator) + 0.1
        window = 0x30 if bits == 4 else -1
        weight = packed_linear.PackedWeight(storage.to(device), layout, scale.to(device), table.to(device), window)
        out = torch.empty(8, 48, device=device)
        # Three slabs on two blocks: the third is cut into parts, where launches of this width do so.
        config = packed_linear.Config(4, 2, False, parts=2) if bits == 4 else packed_linear.Config(4, 8, True)
        joint = packed_linear.new_joint(layout, config, device)
        packed_linear.packed_linear(prepared.x8, prepared.x_scale, weight, out=out, config=config, joint=joint)
        wanted = packed_linear.reference(x8.cpu(), prepared.x_scale.cpu(), grid, scale)
        if not torch.equal(out.cpu(), wanted):
            return f"{bits}-bit products differ"
        slabs = torch.arange(3, dtype=torch.int32, device=device)
        if not torch.equal(packed_linear.unpack(weight, slabs).cpu(), grid):
            return f"unpacked {bits}-bit weights differ"
    return None
