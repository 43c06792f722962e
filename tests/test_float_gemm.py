"""A prompt's rows times a small plain matrix: right within rounding, and a row's bits its own in any pass."""

import pytest
import torch
from fastqwen.kernels.float_gemm import float_gemm
from fastqwen.kernels.float_linear import DTYPES, reference
from fastqwen.weights.backend import _wrong_prompt

pytest.importorskip("triton")
ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
LARGE = [(2048, 64, 4096), (700, 96, 5120), (1, 33, 4096)]
# rows, columns of the result, K: one row, tiles that are not full, steps of either size
SIZES = [(1, 5, 64), (37, 70, 192), (16, 64, 256), *(pytest.param(*size, marks=pytest.mark.gpu) for size in LARGE)]


def case(rows, columns, k, dtype):
    generator = torch.Generator().manual_seed(rows)
    x, weight = torch.randn(rows, k + 16, generator=generator), torch.randn(columns, k, generator=generator)
    return x.to(dtype).to(DEVICE)[:, :k], weight.to(dtype).to(DEVICE)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows,columns,k", SIZES)
def test_results_are_right_within_rounding(rows, columns, k, dtype):
    x, weight = case(rows, columns, k, dtype)
    out = torch.full((rows, columns), float("nan"), dtype=dtype, device=DEVICE)
    assert float_gemm(x, weight, out=out) is out
    exact, sizes = reference(x, weight), x.double().abs() @ weight.double().abs().T
    # K additions, each cut at 2^-23 at worst, and one rounding to the output, which the interpreter cuts.
    bound = (k + 2) * 2.0**-23 * sizes + torch.finfo(dtype).eps * exact.abs()
    assert ((out.double() - exact).abs() <= bound).all()
    assert (exact.abs() > bound).double().mean() > 0.9  # zeros would not pass


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows,columns,k", [SIZES[1], *SIZES[3:5]])
def test_a_rows_bits_depend_on_neither_its_place_nor_its_neighbours(rows, columns, k, dtype):
    x, weight = case(rows, columns, k, dtype)
    whole = float_gemm(x, weight)
    for first, last in ((0, 1), (3, 20), (rows - 9, rows)):
        assert torch.equal(float_gemm(x[first:last], weight), whole[first:last])
    x = x.clone()
    x[5:] = float("nan")
    assert torch.equal(float_gemm(x, weight)[:5], whole[:5])


@pytest.mark.parametrize("dtype", DTYPES if ON_GPU else DTYPES[2:], ids=str)  # the interpreter cuts where a GPU rounds
def test_the_check_before_first_use_passes(dtype):
    assert _wrong_prompt(DEVICE, dtype) is None


def test_what_does_not_fit_is_refused():
    x, weight = case(3, 8, 128, torch.float32)
    for rows, matrix, options, match in [
        (x[:, :64], weight, {}, "x must be"),
        (x.half(), weight, {}, "x must be"),
        (x[:0], weight, {}, "x must be"),
        (x[:, :96], weight[:, :96].contiguous(), {}, "multiple of 64"),
        (x, weight, {"out": x.new_empty(3, 9)}, "out must be"),
    ]:
        with pytest.raises(ValueError, match=match):
            float_gemm(rows, matrix, **options)
