"""Many rows times an int8 grid: exact against the integer reference, at every odd size, in any tile.

On a CPU the kernel runs under Triton's interpreter.
"""

import pytest
import torch
from fastqwen.kernels import int8_gemm as module
from fastqwen.kernels.int8_matmul import int8_matmul, scaled

pytest.importorskip("triton")
ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
SMALL = (16, 32, 128, 4, 2)
# The interpreter cuts a float32 to bf16 instead of rounding it, so bf16 outputs are compared on a GPU only.
DTYPES = [pytest.param(torch.float32, id="fp32"), pytest.param(torch.bfloat16, id="bf16", marks=pytest.mark.gpu)]


def case(rows, columns, k, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x8 = torch.randint(-127, 128, (rows, k), generator=generator).to(torch.int8)
    grid = torch.randint(-127, 128, (columns, k), generator=generator).to(torch.int8)
    x8[0], grid[0] = 127, -127
    x_scale = torch.rand(rows, generator=generator) * 1e-2 + 1e-4
    channel_scale = torch.rand(columns, generator=generator) * 1e-2 + 1e-4
    return [tensor.to(DEVICE) for tensor in (x8, x_scale, grid, channel_scale)]


def wanted(x8, x_scale, grid, channel_scale, residual, dtype):
    acc = int8_matmul(x8.cpu(), grid.cpu())
    residual = None if residual is None else residual.cpu()
    return scaled(acc, channel_scale.cpu(), x_scale.cpu(), residual, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("rows,columns,k", [(1, 16, 256), (17, 33, 384), (40, 48, 640)])
def test_products_scales_and_residual_are_those_of_the_reference(rows, columns, k, with_residual, dtype):
    arguments = case(rows, columns, k)
    residual = torch.randn(rows, columns, generator=torch.Generator().manual_seed(9)).to(DEVICE, dtype)
    residual = residual if with_residual else None
    out = torch.full((rows, columns), float("nan"), dtype=dtype, device=DEVICE)
    module.int8_gemm(*arguments, residual=residual, out=out, config=SMALL)
    assert torch.equal(out.cpu(), wanted(*arguments, residual, dtype))


def test_a_part_of_wider_rows_is_written_and_nothing_beside_it():
    arguments = case(9, 32, 256)
    whole = torch.full((9, 96), float("nan"), device=DEVICE)
    residual = torch.ones(9, 96, device=DEVICE)
    module.int8_gemm(*arguments, residual=residual[:, 32:64], out=whole[:, 32:64], config=SMALL)
    assert torch.equal(whole[:, 32:64].cpu(), wanted(*arguments, residual[:, 32:64], torch.float32))
    assert whole[:, :32].isnan().all() and whole[:, 64:].isnan().all()


@pytest.mark.gpu
@pytest.mark.parametrize(
    "rows,columns,k", [(1, 4096, 4096), (100, 12288, 4096), (513, 4096, 12288), (2048, 5120, 17408)]
)
def test_real_shapes_in_every_tile(rows, columns, k):
    arguments = case(rows, columns, k)
    acc = torch._int_mm(torch.cat([arguments[0], arguments[0].new_zeros(-rows % 32 + 32, k)]), arguments[2].t())[:rows]
    expected = scaled(acc, arguments[3], arguments[1], None, torch.bfloat16)
    for config in (None, (128, 128, 128, 8, 4), (64, 128, 128, 4, 4)):
        out = torch.full((rows, columns), float("nan"), dtype=torch.bfloat16, device=DEVICE)
        module.int8_gemm(*arguments, out=out, config=config)
        assert torch.equal(out, expected), config


def test_launcher_refuses_with_the_remedy():
    x8, x_scale, grid, channel_scale = case(4, 32, 256)
    out = torch.empty(4, 32, device=DEVICE)
    for call, words in (
        (lambda: module.int8_gemm(x8[:, :192].contiguous(), x_scale, grid, channel_scale, out=out), "multiple of 128"),
        (lambda: module.int8_gemm(x8, x_scale, grid.t(), channel_scale, out=out), "grid must be contiguous"),
        (lambda: module.int8_gemm(x8, x_scale.double(), grid, channel_scale, out=out), "x_scale must be"),
        (lambda: module.int8_gemm(x8, x_scale, grid, channel_scale, out=out.t()), "out must be float"),
        (
            lambda: module.int8_gemm(x8, x_scale, grid, channel_scale, residual=out.bfloat16(), out=out),
            "one dtype",
        ),
        (lambda: module.int8_gemm(x8.to("meta"), x_scale, grid, channel_scale, out=out), "one device"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
