"""The plain linear kernel: a row's bits are its own, and the sums are right within float32's rounding.

On a CPU it runs under Triton's interpreter, which cuts a float32 to bf16 where a GPU rounds.
"""

import pytest
import torch
from fastqwen.kernels.float_linear import DTYPES, Launch, float_linear, launch_for, reference, sum_launch

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402
from fastqwen.kernels._float_linear_kernels import float_rows  # noqa: E402

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
gpu = pytest.mark.gpu
DOT = Launch("dot", 32, 64, 4, 3)
# (N, K): one row, ends within a block, one step and many, steps that K does not fill
SHAPES = [(1, 256), (16, 768), (33, 1024), (33, 2560), (144, 256), (16, 3584), (33, 144)]
LARGE = [(64, 4096), (96, 5120), (512, 4096), (4096, 4096), (12288, 4096), (40000, 1088)]
SIZES = SHAPES + [pytest.param(*shape, marks=gpu) for shape in LARGE]


def forms(rows, columns, dtype):
    """The launch of the shape, and each form whatever the shape."""
    found = [launch_for(rows, columns, dtype), sum_launch(4, 1, dtype, 2)]
    return found if dtype == torch.float32 or columns % DOT.block_k else [*found, DOT]


def case(rows, columns, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(8, columns, generator=generator)
    weight = torch.randn(rows, columns, generator=generator)
    return x.to(dtype).to(DEVICE), weight.to(dtype).to(DEVICE)


def run(x, weight, launch=None, residual=None, dtype=None):
    out = torch.full((8, weight.shape[0]), float("nan"), dtype=dtype or x.dtype, device=DEVICE)
    assert float_linear(x, weight, residual=residual, out=out, launch=launch) is out
    return out


def assert_within_rounding(out, x, weight, residual=None):
    """Every one of the K additions, in whatever order, is off by at most 2^-23 of the sum of magnitudes.

    A matrix unit may cut where float32 rounds: hence 2^-23 and not 2^-24. Float32 products are rounded too. The
    residual's addition is one more, and the output's own rounding follows (a cut under the interpreter).
    """
    exact = reference(x.cpu(), weight.cpu(), None if residual is None else residual.cpu())
    magnitudes = x.cpu().double().abs() @ weight.cpu().double().abs().T
    if residual is not None:
        magnitudes += residual.cpu().double().abs()
    unit = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}[out.dtype]
    bound = (x.shape[1] + 2) * 2.0**-23 * magnitudes + exact.abs() * unit * (1 if ON_GPU else 2)
    assert ((out.cpu().double() - exact).abs() <= bound).all()
    assert (exact.abs() > bound).double().mean() > 0.9  # zeros would not pass


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows,columns", SIZES)
def test_every_shape_is_right_within_rounding(rows, columns, dtype):
    x, weight = case(rows, columns, dtype)
    for launch in forms(rows, columns, dtype):
        assert_within_rounding(run(x, weight, launch, dtype=torch.float32), x, weight)
    assert_within_rounding(run(x, weight), x, weight)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows,columns", [(17, 384), *(pytest.param(*shape, marks=gpu) for shape in LARGE)])
def test_bits_of_a_row_are_those_of_the_row_alone(rows, columns, dtype):
    """In every slot, beside any number of neighbours, in any order of them."""
    x, weight = case(rows, columns, dtype)
    for launch in forms(rows, columns, dtype):
        full = run(x, weight, launch, dtype=torch.float32)
        assert full.isfinite().all()
        for live in range(1, 9):
            part = x.clone()
            part[live:] = 0
            found = run(part, weight, launch, dtype=torch.float32)
            assert torch.equal(found[:live], full[:live]) and not found[live:].any()
        for slot in range(8):
            alone = torch.zeros_like(x)
            alone[slot] = x[3]
            assert torch.equal(run(alone, weight, launch, dtype=torch.float32)[slot], full[3])
        for seed in range(4):
            order = torch.randperm(8, generator=torch.Generator().manual_seed(seed)).to(DEVICE)
            assert torch.equal(run(x[order].contiguous(), weight, launch, dtype=torch.float32), full[order])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_do_not_depend_on_where_a_row_of_the_matrix_lies(dtype):
    x, weight = case(70, 512, dtype)
    for launch in forms(70, 512, dtype):
        full = run(x, weight, launch, dtype=torch.float32)
        assert torch.equal(run(x, weight[37:].contiguous(), launch, dtype=torch.float32), full[:, 37:])


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nan_in_one_slot_reaches_no_other(dtype):
    x, weight = case(33, 512, dtype)
    for launch in forms(33, 512, dtype):
        wanted = run(x, weight, launch)
        for slot, value in ((2, float("nan")), (7, float("inf"))):
            spoiled = x.clone()
            spoiled[slot] = value
            found = run(spoiled, weight, launch)
            others = [other for other in range(8) if other != slot]
            assert torch.equal(found[others], wanted[others]) and not found[slot].isfinite().any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_residual_is_added_in_float32_before_the_one_rounding(dtype):
    x, weight = case(48, 768, dtype)
    residual = (torch.randn(8, 48, generator=torch.Generator().manual_seed(9)) * 3).to(dtype).to(DEVICE)
    for launch in forms(48, 768, dtype):
        found = run(x, weight, launch, residual)
        assert_within_rounding(found, x, weight, residual)
        acc = run(x, weight, launch, dtype=torch.float32)
        if ON_GPU or dtype == torch.float32:  # the interpreter cuts
            assert torch.equal(found, (acc + residual.float()).to(dtype))
        in_place = residual.clone()
        float_linear(x, weight, residual=in_place, out=in_place, launch=launch)
        assert torch.equal(in_place, found)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nothing_outside_the_output_is_written_or_read(dtype):
    """Guards of NaN around every tensor: read they would show in the result, written over they would be gone."""

    def guarded(tensor):
        whole = torch.full((tensor.numel() + 256,), float("nan"), dtype=tensor.dtype, device=DEVICE)
        inner = whole[128:-128].view(tensor.shape)
        inner.copy_(tensor)
        return whole, inner

    x, weight = case(37, 320, dtype)
    for launch in forms(37, 320, dtype):
        wanted = run(x, weight, launch)
        (_, x_in), (_, weight_in), (whole, out) = guarded(x), guarded(weight), guarded(torch.zeros_like(wanted))
        assert torch.equal(float_linear(x_in, weight_in, out=out, launch=launch), wanted)
        assert whole[:128].isnan().all() and whole[-128:].isnan().all()


@triton.jit
def _beside(
    p_own, first, p_x, p_w, p_out, rows, K: tl.constexpr, DOT: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Some kernel with work of its own in its first program ids and a plain linear in the others."""
    program = tl.program_id(0)
    if program >= first:
        float_rows(program - first, p_x, p_w, p_out, p_out, rows, K, DOT, BLOCK_N, BLOCK_K, STAGES, False, False)
    else:
        tl.store(p_own + program, program)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_another_kernel_can_run_the_rows_in_spare_program_ids(dtype):
    x, weight = case(37, 512, dtype)
    for launch in forms(37, 512, dtype):
        own = torch.full((3,), -1, dtype=torch.int32, device=DEVICE)
        out = torch.full((8, 37), float("nan"), dtype=dtype, device=DEVICE)
        _beside[(3 + launch.blocks(37),)](
            own, 3, x, weight, out, 37, **launch.constants(512), num_warps=launch.warps, num_stages=launch.stages
        )
        assert torch.equal(out, run(x, weight, launch)) and own.tolist() == [0, 1, 2]


@pytest.mark.gpu
def test_dependent_launch_changes_no_bit():
    if torch.version.hip is not None or torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("dependent launch needs compute capability 9.0")
    for dtype in DTYPES:
        for rows, columns in ((64, 4096), (4096, 4096)):
            x, weight = case(rows, columns, dtype)
            wanted = run(x, weight)
            for _ in range(20):
                copy = torch.zeros_like(x)
                out = torch.full_like(wanted, float("nan"))
                copy.copy_(x)
                float_linear(copy, weight, out=out, dependent=True)
                assert torch.equal(out, wanted)


@pytest.mark.gpu
def test_matrix_of_more_than_two_billion_bytes():
    x, _ = case(1, 4480, torch.bfloat16)
    weight = torch.randn(248320, 4480, dtype=torch.bfloat16, device=DEVICE)  # 1.1e9 numbers, nearly a head of 27B
    out = run(x, weight, dtype=torch.float32)
    for part in (slice(0, 64), slice(-70, None)):
        assert_within_rounding(out[:, part], x, weight[part])


def test_launch_depends_on_shape_and_dtype_alone_and_covers_every_row():
    for dtype in DTYPES:
        for rows in (1, 2, 33, 512, 513, 4096, 248320):
            for columns in (64, 256, 320, 2560, 4096, 17408):
                launch = launch_for(rows, columns, dtype)
                assert launch == launch_for(rows, columns, dtype)
                assert (launch.blocks(rows) - 1) * launch.block_n < rows <= launch.blocks(rows) * launch.block_n
                assert launch.block_n & (launch.block_n - 1) == 0 and 1 <= launch.warps <= 16
                if launch.form == "dot":
                    assert dtype != torch.float32 and columns % launch.block_k == 0
                    # x's 16 rows and W's, STAGES steps of them: what compute capability 8.6 has in one block
                    assert launch.stages * (16 + launch.block_n) * launch.block_k * dtype.itemsize <= 99 * 1024


def test_reference_is_the_definition():
    x, weight = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [5.0, -6.0]])
    assert torch.equal(reference(x, weight), torch.tensor([[11.0, -7.0]]).double())
    assert torch.equal(reference(x, weight, torch.tensor([[1.0, 2.0]])), torch.tensor([[12.0, -5.0]]).double())


@pytest.mark.parametrize(
    "words,change",
    [
        ("x must be .*got torch.float32", {"x": lambda t: t.float()}),
        (r"x must be .*\[8, 512\]", {"x": lambda t: t[:7]}),
        (r"call x.contiguous\(\)", {"x": lambda t: t.new_zeros(512, 8).T}),
        (r"call x.contiguous\(\)", {"x": lambda t: t.new_zeros(8 * 512 + 1)[1:].view(8, 512)}),
        ("x is on meta", {"x": lambda t: t.to("meta")}),
        (r"call weight.contiguous\(\)", {"weight": lambda t: t.new_zeros(512, 48).T}),
        ("bf16, fp16 or fp32", {"weight": lambda t: t.double()}),
        (r"bf16, fp16 or fp32 \[N, K\]", {"weight": lambda t: t[0]}),
        ("multiple of 16 columns: pad K", {"weight": lambda t: t.new_zeros(48, 500)}),
        ("must have rows", {"weight": lambda t: t[:0]}),
        (r"out must be .*\[8, 48\]", {"out": lambda t: t.new_zeros(8, 64)}),
        ("out must be .*got torch.float16", {"out": lambda t: t.half()}),
        (r"call out.contiguous\(\)", {"out": lambda t: t.new_zeros(48, 8).T}),
        ("residual must be", {"residual": lambda t: t.float()}),
        ("residual is on meta", {"residual": lambda t: t.to("meta")}),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_launcher_refuses_with_the_remedy(words, change):
    x, weight = case(48, 512, torch.bfloat16)
    good = {"x": x, "weight": weight, "out": x.new_zeros(8, 48), "residual": x.new_zeros(8, 48)}
    call = good | {name: function(good[name]) for name, function in change.items()}
    with pytest.raises(ValueError, match=words):
        float_linear(call["x"], call["weight"], residual=call["residual"], out=call["out"])


def test_columns_that_would_be_left_over_are_never_given_to_the_form_without_a_mask():
    assert {launch_for(rows, 4096 + 16, torch.bfloat16).form for rows in (16, 4096, 40000)} == {"sum"}
    x, weight = case(48, 144, torch.bfloat16)
    with pytest.raises(ValueError, match="144 columns are no multiple of the launch's steps of 64"):
        run(x, weight, DOT)
