"""Whether packed layers run from kernels on a device: decided once, by a check against the reference."""

import functools
import logging

import torch

from ..kernels import packed, packed_linear, prepare
from ..kernels.packed import Layout

logger = logging.getLogger(__name__)


@functools.cache
def packed_kernels(device: torch.device) -> tuple[bool, str]:
    """(whether to use the kernels, why). A failure is logged once and the torch path taken."""
    if device.type != "cuda":
        return False, f"plain torch on {device.type}"
    try:
        import triton
    except ImportError:
        return False, "plain torch: Triton is not installed (on Windows: pip install triton-windows)"
    try:
        wrong = _wrong_result(device)
    except Exception as error:  # whatever a compiler or driver raises, the torch path still works
        wrong = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    if wrong is not None:
        logger.warning("FastQwen: packed kernels are not used on %s (%s); plain torch is slower.", device, wrong)
        return False, f"plain torch: the kernels' self-check failed ({wrong})"
    return True, f"Triton {triton.__version__}, checked against the reference on {device}"


def _wrong_result(device) -> str | None:
    """Runs every kernel once on small random data; what differs from the reference, or None."""
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
        table = packed_linear.magnitude_table(levels) if bits == 4 else torch.empty(0, dtype=torch.int32)
        scale = torch.rand(48, generator=generator) + 0.1
        window = 0x30 if bits == 4 else -1
        weight = packed_linear.PackedWeight(storage.to(device), layout, scale.to(device), table.to(device), window)
        out = torch.empty(8, 48, device=device)
        packed_linear.packed_linear(prepared.x8, prepared.x_scale, weight, out=out, config=(4, 8))
        wanted = packed_linear.reference(x8.cpu(), prepared.x_scale.cpu(), grid, scale)
        if not torch.equal(out.cpu(), wanted):
            return f"{bits}-bit products differ"
        slabs = torch.arange(3, dtype=torch.int32, device=device)
        if not torch.equal(packed_linear.unpack(weight, slabs).cpu(), grid):
            return f"unpacked {bits}-bit weights differ"
    return None
