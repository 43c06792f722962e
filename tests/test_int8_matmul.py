"""Integer products are exact, whatever library computes them."""

import pytest
import torch
from fastqwen.kernels import int8_matmul

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def integers(*shape, seed=0):
    return torch.randint(-127, 128, shape, generator=torch.Generator().manual_seed(seed)).to(torch.int8)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rows", [1, 3, 8, 17, 64])
@pytest.mark.parametrize("columns,outputs", [(256, 16), (768, 48), (5120, 64), (100, 7)])
def test_products_are_exact(device, rows, columns, outputs):
    x8, grid = integers(rows, columns, seed=1), integers(outputs, columns, seed=2)
    x8[0], grid[0] = 127, -127
    wanted = (x8.double() @ grid.double().T).to(torch.int32)
    assert torch.equal(int8_matmul.int8_matmul(x8.to(device), grid.to(device)).cpu(), wanted)


def test_a_library_that_saturates_is_noticed_and_not_used(monkeypatch):
    def saturating(x8, grid):
        return (x8.double() @ grid.double()).clamp(-(2**15), 2**15 - 1).to(torch.int32)

    monkeypatch.setattr(torch, "_int_mm", saturating)
    int8_matmul._cpu_library_is_exact.cache_clear()
    try:
        assert not int8_matmul._cpu_library_is_exact()
        x8, grid = torch.full((2, 512), 127, dtype=torch.int8), torch.full((3, 512), 127, dtype=torch.int8)
        assert bool((int8_matmul.int8_matmul(x8, grid) == 512 * 127 * 127).all())
    finally:
        int8_matmul._cpu_library_is_exact.cache_clear()


def test_scaling_rounds_each_product_and_adds_the_residual_in_float32():
    acc = torch.tensor([[123456789, -7]], dtype=torch.int32)
    channel, x_scale, residual = torch.tensor([1e-3, 3e-2]), torch.tensor([0.7]), torch.tensor([[1.0, 2.0]])
    y = int8_matmul.scaled(acc, channel, x_scale, residual.bfloat16(), torch.bfloat16)
    wanted = ((acc.float() * channel) * x_scale[:, None] + residual).bfloat16()
    assert torch.equal(y, wanted)
