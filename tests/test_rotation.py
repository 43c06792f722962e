"""The 256-column rotation against its definition in exact arithmetic."""

import pytest
import torch
from fastqwen.kernels.rotation import BLOCK, matrix, rotate

H4 = torch.tensor([[1, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]])


def signs():
    """H * 16 entry by entry: the product of four entries of h4, most significant base-4 digit first."""
    digits = torch.arange(BLOCK)[:, None] // torch.tensor([64, 16, 4, 1]) % 4
    return H4[digits[:, None, :], digits[None, :, :]].prod(dim=-1)


def test_matrix_is_the_kronecker_product_symmetric_and_its_own_inverse():
    h = matrix().double() * 16
    assert torch.equal(h, signs().double())
    assert torch.equal(h, h.T)
    assert torch.equal(h @ h, 256 * torch.eye(BLOCK, dtype=torch.float64))


@pytest.mark.parametrize("shape", [(256,), (1, 512), (3, 2, 768), (0, 256)])
def test_rotating_integers_is_exact_block_by_block(shape):
    x = torch.randint(-999, 1000, shape, generator=torch.Generator().manual_seed(1))
    wanted = (x.unflatten(-1, (-1, BLOCK)) @ signs()).flatten(-2)
    # Sums of 256 integers below 1000 and their sixteenths fit into float32's 24 bits.
    assert torch.equal(rotate(x.float()) * 16, wanted.float())


def test_rotating_both_sides_keeps_a_product_and_twice_gives_back_the_input():
    random = torch.Generator().manual_seed(2)
    x, w = torch.randn(5, 512, generator=random), torch.randn(7, 512, generator=random)
    # 255 additions of terms below max|x| / 16 * 256, each off by 2^-24 of the sum so far: 2 * 255 * 2^-24 * 16 max|x|.
    assert (rotate(rotate(x)) - x).abs().max() <= 2 * 255 * 2**-24 * 16 * x.abs().max()
    exact = x.double() @ w.double().T
    assert ((rotate(x).double() @ rotate(w).double().T - exact).abs() / exact.abs().max()).max() < 1e-5


@pytest.mark.parametrize("x", [torch.zeros(2, 128), torch.zeros(256, dtype=torch.bfloat16)])
def test_other_widths_and_dtypes_are_refused(x):
    with pytest.raises(ValueError, match="multiple of 256"):
        rotate(x)
