"""Many rows times an int8 grid, with the scales and the residual in the same launch: the prompt's side of a linear.

    acc = x8 @ grid^T                                   int32, exact in any order
    y   = (float(acc) * channel_scale) * x_scale        each product rounded in float32
    y   = y + residual in float32, if there is one;  one rounding to the output's dtype

The same numbers as kernels/packed_linear.py gives for eight rows and kernels/int8_matmul.py in plain torch (the
reference). What is gained over a library's int8 product is the int32 matrix that is never written: at 2048 rows it
would be read and written several times over, more bytes than the weights and the activations together.
"""

import functools

import torch
from torch import Tensor

_OUT = (torch.bfloat16, torch.float16, torch.float32)


def int8_gemm(
    x8: Tensor,
    x_scale: Tensor,
    grid: Tensor,
    channel_scale: Tensor,
    *,
    residual: Tensor | None = None,
    out: Tensor,
    config: tuple[int, int, int, int, int] | None = None,
) -> Tensor:
    """Writes and returns `out`.

    x8             int8 [R, K] contiguous, K a multiple of 128;  x_scale float32 [R]
    grid           int8 [N, K] contiguous;  channel_scale float32 [N]
    residual, out  [R, N], columns next to each other, rows equally far apart in both; `out` may be `residual`
    config         (rows, columns and depth of a tile, warps, stages): changes the time, never the bits
    Raises ValueError where a shape, dtype, stride or device does not fit.
    """
    from . import _int8_gemm_kernels as _kernels  # here, because without a GPU nobody needs Triton

    _check(x8, x_scale, grid, channel_scale, residual, out)
    rows, k = x8.shape
    columns = grid.shape[0]
    block_r, block_n, block_k, warps, stages = config or _config_on(x8.device, rows, columns)
    programs = -(-rows // block_r) * -(-columns // block_n)
    _kernels.int8_gemm_kernel[(programs,)](
        x8, x_scale, grid, channel_scale, out if residual is None else residual, out, rows, columns, out.stride(0),
        K=k, BLOCK_R=block_r, BLOCK_N=block_n, BLOCK_K=block_k, GROUP=8, RESIDUAL=residual is not None,
        num_warps=warps, num_stages=stages, enable_fp_fusion=False,  # products and sum are rounded each by contract
    )  # fmt: skip
    return out


def launch_config(rows: int, columns: int, processors: int, shared: int) -> tuple[int, int, int, int, int]:
    """(rows, columns and depth of a tile, warps, stages); measured by benchmarks/prefill.py --sweep on one H200.

    The large tile is fastest where there are enough of them: 378 against 441 us for 2048 rows and 24576 columns of
    K = 4096, but 66 against 60 us for 512 rows and 12288 columns. Stages are as many as `shared` bytes of a
    multiprocessor hold, four at most; a gaming GPU's 99 KiB hold three of the middle tile.
    """
    tile = (64, 128) if rows <= 64 else (128, 128)
    if -(-rows // 128) * -(-columns // 256) >= 1.5 * processors and shared >= 3 * (128 + 256) * 128:
        tile = (128, 256)
    depth = 128 if shared >= 3 * sum(tile) * 128 else 64
    return *tile, depth, 8 if tile == (128, 256) else 4, max(1, min(4, shared // (sum(tile) * depth)))


@functools.lru_cache(maxsize=4096)
def _config_on(device, rows, columns):
    return launch_config(rows, columns, *_device(device))


@functools.cache
def _device(device: torch.device) -> tuple[int, int]:
    """(multiprocessors, bytes of shared memory that a block may have)."""
    if device.type != "cuda":
        return 1, 1 << 16
    properties = torch.cuda.get_device_properties(device)
    # ROCm's torch has no such property: 64 KiB is what its GPUs have.
    return properties.multi_processor_count, getattr(properties, "shared_memory_per_block_optin", 1 << 16)


def _check(x8, x_scale, grid, channel_scale, residual, out):
    rows, k = x8.shape
    columns = grid.shape[0]
    if _fits(x8, x_scale, grid, channel_scale, residual, out, rows, k, columns):
        return
    if k % 128 or not rows:
        raise ValueError(f"x8 is {list(x8.shape)}: at least one row and a multiple of 128 columns are wanted")
    wanted = {
        "x8": (x8, (rows, k), (torch.int8,)),
        "x_scale": (x_scale, (rows,), (torch.float32,)),
        "grid": (grid, (columns, k), (torch.int8,)),
        "channel_scale": (channel_scale, (columns,), (torch.float32,)),
    }
    for name, (tensor, shape, dtypes) in wanted.items():
        if tuple(tensor.shape) != shape or tensor.dtype not in dtypes or not tensor.is_contiguous():
            raise ValueError(
                f"{name} must be contiguous {dtypes[0]} {list(shape)}, got {tensor.dtype} {list(tensor.shape)}"
            )
    for name, tensor in (("out", out), ("residual", residual)):
        if tensor is None:
            continue
        if tuple(tensor.shape) != (rows, columns) or tensor.dtype not in _OUT or tensor.stride(1) != 1:
            raise ValueError(
                f"{name} must be float [{rows}, {columns}] by rows, got {tensor.dtype} {list(tensor.shape)}"
            )
    if residual is not None and (residual.stride(0) != out.stride(0) or residual.dtype != out.dtype):
        raise ValueError("residual and out must have one dtype and the same distance between rows")
    devices = {tensor.device for tensor in (x8, x_scale, grid, channel_scale, out)}
    if len(devices) > 1:
        raise ValueError(f"the tensors are on {sorted(map(str, devices))}: move them to one device")


def _fits(x8, x_scale, grid, channel_scale, residual, out, rows, k, columns):
    """All that `_check` wants, in few words: a short prompt waits for this. Where it fails, `_check` says why."""
    device, dtype = out.device, out.dtype
    return (
        rows > 0 and k % 128 == 0 and dtype in _OUT
        and x8.dtype == grid.dtype == torch.int8 and x_scale.dtype == channel_scale.dtype == torch.float32
        and x_scale.shape == (rows,) and grid.shape == (columns, k) and channel_scale.shape == (columns,)
        and out.shape == (rows, columns) and out.stride(1) == 1
        and x8.is_contiguous() and x_scale.is_contiguous() and grid.is_contiguous() and channel_scale.is_contiguous()
        and device == x8.device == x_scale.device == grid.device == channel_scale.device
        and (
            residual is None
            or (residual.shape == out.shape and residual.stride() == out.stride() and residual.dtype == dtype)
        )
    )  # fmt: skip
