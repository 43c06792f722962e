"""Preparation of activations: the definition in float64, the row contract, and the kernel against the reference."""

import pytest
import torch
from fastqwen.kernels import prepare as module
from fastqwen.kernels.prepare import Plan, allocate, pack_order, plan_for, reference, rotate_exactly
from fastqwen.kernels.rms_norm import rms_norm
from fastqwen.kernels.rotation import matrix

WIDTHS = (256, 768, 1024, 2560, 3584, 5120, 9216, 12288, 17408)
PROLOGUES = ("none", "norm", "swiglu")
UNIT = 2.0**-24
EPS = 1e-6
ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
# The interpreter computes in numpy, which speaks up where a row is meant to overflow.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
needs_triton = pytest.mark.skipif(not hasattr(module, "prepare"), reason="Triton is not installed")


def case(k, prologue, dtype=torch.bfloat16, seed=0, device="cpu"):
    """x with rows of very different size, one of them zero, and what goes with its prologue."""
    generator = torch.Generator().manual_seed(seed)
    width = 2 * k if prologue == "swiglu" else k
    x = torch.randn(8, width, generator=generator)
    x *= torch.tensor([1.0, 30.0, 1e-3, 0.0, 1.0, 1e-12, 1.0, 300.0])[:, None]
    x[6, width // 3] = 1e4  # one outlier
    options = {}
    if prologue == "norm":
        options = {"norm": (torch.randn(k, generator=generator) * 0.2).to(device), "eps": EPS}
    elif prologue == "swiglu":
        options = {"swiglu": True}
    return x.to(dtype).to(device), options


def definition(x, norm=None, eps=None, swiglu=False, rotated=True):
    """(y, absmax, r, |error of y| at most) in float64, by rows; the error is that of the float32 computation."""
    x = x.double()
    root = torch.ones(x.shape[0], dtype=torch.float64)
    relative = 0.0
    if swiglu:
        gate, x = x.chunk(2, 1)
        sigmoid = torch.sigmoid(gate)
        x = gate * sigmoid * x
        # exp of an argument rounded to 24 bits and multiplied by log2(e): |gate| units; then five operations of at
        # most two units each. Beyond |gate| = 40 the result is below e^-40 of its input's size.
        relative = (2 * gate.abs().clamp(max=40) + 12) * UNIT
    elif norm is not None:
        root = torch.rsqrt(x.square().mean(1) + eps)
        x = x * (1 + norm.double())
        relative = 2 * UNIT
    error = x.abs() * relative
    if not rotated:
        return x, x.abs().amax(1), root, error
    blocks = x.view(x.shape[0], -1, 256)
    y = (blocks @ matrix().double()).view_as(x)
    # Eight additions, each rounded: partial sums stay below the sum of the absolute values.
    spread = (blocks.abs().sum(2, keepdim=True) / 16 * 8 * UNIT).expand_as(blocks)
    carried = (error.view_as(blocks).sum(2, keepdim=True) / 16).expand_as(blocks)
    return y, y.abs().amax(1), root, (spread + carried).reshape_as(x)


def assert_is_definition(x, codes, scale, rotated=True, **options):
    """Codes equal the float64 ones, except by 1 where those lie within the rounding bound of a tie."""
    y, absmax, root, error = definition(x, rotated=rotated, **options)
    for row in range(x.shape[0]):
        if absmax[row] < 2.0**-100:
            assert scale[row] == 1 and not codes[row].any()
            continue
        wanted = y[row] * (127 / absmax[row])
        # y and absmax are off by `error`; 127 / absmax, the product and its rounding by a unit each of at most 127.
        bound = 127 * (error[row] + error[row].amax()) / absmax[row] * 1.01 + 4 * 127 * UNIT
        assert bound.amax() < 0.05, "a bound that says nothing"
        distance = (wanted - wanted.floor() - 0.5).abs()
        off = (codes[row].double() - wanted.round()).abs()
        assert not off[distance > bound].any()
        assert off.amax() <= 1
        assert codes[row].abs().max() == 127
        exact = absmax[row] / 127 * root[row]
        # absmax, two roundings, and r: the mean of K squares in float32 by a tree or in vector lanes, and its root.
        assert abs(scale[row].double() - exact) <= exact * (error[row].amax() / absmax[row] + 260 * UNIT)


@pytest.mark.parametrize("prologue", PROLOGUES)
@pytest.mark.parametrize("k", WIDTHS)
def test_reference_is_the_float64_definition(k, prologue):
    x, options = case(k, prologue)
    codes, scale = reference(x, **options)
    assert codes.dtype == torch.int8 and scale.dtype == torch.float32
    assert_is_definition(x, codes, scale, **options)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.bfloat16))
def test_reference_without_rotation_and_in_every_dtype(dtype):
    x, _ = case(320, "none", dtype)
    assert_is_definition(x, *reference(x, rotate=False), rotated=False)


def test_tree_of_additions_is_the_rotation():
    x = torch.randn(3, 1024, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = (x.view(3, 4, 256) @ matrix().double()).view(3, 1024)
    assert torch.allclose(rotate_exactly(x) / 16, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("prologue", PROLOGUES)
def test_reference_rows_do_not_touch_each_other(prologue):
    x, options = case(768, prologue)
    codes, scale = reference(x, **options)
    for slot in range(8):
        alone = reference(x[slot : slot + 1], **options)
        assert torch.equal(alone[0][0], codes[slot]) and torch.equal(alone[1][0], scale[slot])


def nonfinite_rows(x):
    x[0, 5], x[2, 7], x[4, 300] = float("nan"), float("inf"), float("-inf")
    x[5] = 2.0**-118
    x[7] = 2.0**125  # sums to more than float32 holds
    return x


def assert_corner_rows(scale, finite_scale):
    assert torch.isnan(scale[[0, 2, 4, 7]]).all()
    assert scale[3] == 1 and scale[5] == 1
    assert torch.equal(scale[[1, 6]], finite_scale[[1, 6]])


def test_reference_marks_rows_that_are_not_finite():
    x, _ = case(768, "none")
    expected = reference(x)
    codes, scale = reference(nonfinite_rows(x.clone()))
    assert_corner_rows(scale, expected[1])
    assert torch.equal(codes[[1, 6]], expected[0][[1, 6]]) and not codes[[3, 5]].any()


def test_bad_input_is_refused_with_the_remedy():
    x = torch.zeros(8, 512)
    for arguments, words in (
        ((torch.zeros(8, 300), {}), "keep this linear unpacked"),
        ((torch.zeros(8, 512, dtype=torch.float64), {}), "bf16, fp16 or fp32"),
        ((torch.zeros(512), {}), "bf16, fp16 or fp32"),
        ((x, {"norm": torch.zeros(512)}), "pass both or neither"),
        ((x, {"norm": torch.zeros(256), "eps": EPS}), r"norm must be .*\[512\]"),
        ((torch.zeros(8, 1024), {"norm": torch.zeros(512), "eps": EPS, "swiglu": True}), "one prologue"),
    ):
        with pytest.raises(ValueError, match=words):
            reference(arguments[0], **arguments[1])
    with pytest.raises(ValueError, match="multiple of 64"):
        allocate(100, "cpu")


def test_plans_hold_every_column_and_fit_the_mailbox():
    for k in range(256, 40_000, 256):
        for capability in (None, (7, 5), (8, 6), (9, 0), (12, 0)):
            plan = plan_for(k, capability, 132)
            if plan.form == "cluster":
                assert plan.parts * plan.warps * 256 >= k and plan.parts * plan.warps <= 128
                assert plan.parts <= (16 if capability == (9, 0) else 8)
            elif plan.form == "slots":
                assert plan.parts * plan.warps * 256 >= k and plan.parts <= 32
            assert plan.warps & (plan.warps - 1) == 0 and plan.warps <= 32
            assert plan.form == "alone" or capability is not None
    assert plan_for(17408, (7, 5), 14).form == "alone"  # 136 spinning blocks would not all be resident


def forms(k):
    """Every form that runs here: a spinning block waits for ever where blocks run one after the other."""
    threads = max(32, 1 << (k // 8 - 1).bit_length())
    plans = [Plan("alone", 1, min(32, threads // 32))]
    if ON_GPU and torch.version.hip is None:
        plans += [Plan("slots", -(-k // 1024), 4), Plan("slots", -(-k // 512), 2)] if k <= 16384 else []
        plans += [Plan("slots", -(-k // 1024), 4)] if k > 16384 else []
        if torch.cuda.get_device_capability() >= (9, 0):
            plans += [Plan("cluster", c, threads // 32 // c) for c in (2, 4, 8, 16) if 1 <= threads // 32 // c <= 16]
            plans = [plan for plan in plans if plan.form != "cluster" or plan.parts * plan.warps <= 128]
    return plans


def poisoned(k, plan, normed=None):
    out = allocate(k, DEVICE, normed=normed, plan=plan)
    out.x8.fill_(85)
    out.x_scale.fill_(float("nan"))
    if normed is not None:
        out.normed.fill_(float("nan"))
    return out


# Without a GPU: full and masked threads, few and the most. How blocks share the widths between has no meaning there.
INTERPRETED = (256, 768, 9216, 17408)


@needs_triton
@pytest.mark.parametrize("prologue", PROLOGUES)
@pytest.mark.parametrize("k", [k if k in INTERPRETED else pytest.param(k, marks=pytest.mark.gpu) for k in WIDTHS])
def test_kernel_equals_the_reference(k, prologue):
    x, options = case(k, prologue, device=DEVICE)
    host = {name: value.cpu() if torch.is_tensor(value) else value for name, value in options.items()}
    codes, scale = reference(x.cpu(), **host)
    for plan in forms(k):
        out = module.prepare(x, poisoned(k, plan), **options)
        got = out.x8.cpu().transpose(0, 1).reshape(8, k)
        assert_is_definition(x.cpu(), got, out.x_scale.cpu(), **host)
        if prologue != "swiglu":  # exponentials differ between libraries
            assert torch.equal(out.x8.cpu(), pack_order(codes)), plan
        if prologue == "none":
            assert torch.equal(out.x_scale.cpu(), scale), plan


@needs_triton
@pytest.mark.parametrize("dtype", (torch.float32, torch.float16))
def test_kernel_in_other_dtypes_and_without_rotation(dtype):
    for k, options in ((512, {}), (320, {"rotate": False})):
        x, _ = case(k, "none", dtype, device=DEVICE)
        codes, scale = reference(x.cpu(), **options)
        for plan in forms(k):
            out = module.prepare(x, poisoned(k, plan), **options)
            assert torch.equal(out.x8.cpu(), pack_order(codes)) and torch.equal(out.x_scale.cpu(), scale)


@needs_triton
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float32))
def test_kernel_stores_the_normed_row(dtype):
    x, options = case(1024, "norm", dtype, device=DEVICE)
    expected = rms_norm(x.float(), options["norm"], EPS)
    for plan in forms(1024):
        out = module.prepare(x, poisoned(1024, plan, dtype), **options)
        # r is off by a few units, and one rounding to the dtype follows; the interpreter cuts bf16 instead.
        step = 2.0**-8 if ON_GPU else 2.0**-7
        relative = 8 * UNIT + (step if dtype == torch.bfloat16 else 0)
        assert ((out.normed.float() - expected).abs() <= expected.abs() * relative).all()
        assert out.normed.float().abs().amax() > 1


@needs_triton
def test_kernel_rows_depend_on_themselves_alone():
    k = 768
    x, options = case(k, "norm", device=DEVICE)
    for plan in forms(k):
        whole = module.prepare(x, poisoned(k, plan), **options)
        for slot in (0, 6):
            lone = torch.zeros_like(x)
            lone[7 - slot] = x[slot]  # another slot, no neighbours
            out = module.prepare(lone, poisoned(k, plan), **options)
            assert torch.equal(out.x8[:, 7 - slot], whole.x8[:, slot])
            assert torch.equal(out.x_scale[7 - slot], whole.x_scale[slot])
            dead = [other for other in range(8) if other != 7 - slot]
            assert not out.x8[:, dead].any() and (out.x_scale[dead] == 1).all()


@needs_triton
def test_kernel_marks_rows_that_are_not_finite():
    x, _ = case(768, "none")
    expected = reference(x)
    for plan in forms(768):
        out = module.prepare(nonfinite_rows(x.clone()).to(DEVICE), poisoned(768, plan))
        assert_corner_rows(out.x_scale.cpu(), expected[1])
        for slot in (1, 3, 6):
            assert torch.equal(out.x8[:, slot].cpu(), pack_order(expected[0])[:, slot])


@needs_triton
@pytest.mark.parametrize("rows,prologue", [(1, "none"), (19, "none"), *((5, prologue) for prologue in PROLOGUES)])
def test_kernel_prepares_any_number_of_rows_each_as_if_alone(rows, prologue):
    k = 768
    x, options = case(k, prologue, device=DEVICE)
    x = x.repeat(3, 1)[:rows].contiguous()
    host = {name: value.cpu() if torch.is_tensor(value) else value for name, value in options.items()}
    codes, scale = module.prepare_many(x, **options)
    assert codes.shape == (rows, k) and scale.shape == (rows,)
    assert_is_definition(x.cpu(), codes.cpu(), scale.cpu(), **host)
    alone = module.prepare_many(x[rows - 1 :].contiguous(), **options)
    assert torch.equal(alone[0][0], codes[-1]) and torch.equal(alone[1][0], scale[-1])


@needs_triton
def test_many_rows_are_normed_to_the_bits_of_a_decode_pass_in_one_block():
    x, options = case(768, "norm", device=DEVICE)
    out = module.prepare(x, poisoned(768, forms(768)[0], normed=x.dtype), **options)
    rows = torch.full((16, 768), float("nan"), dtype=x.dtype, device=DEVICE)
    module.prepare_many(x.repeat(2, 1), normed=rows, **options)
    assert torch.equal(rows.nan_to_num(7), out.normed.repeat(2, 1).nan_to_num(7))
    for wrong, those in ((rows[:, :512], options), (rows.double(), options), (rows, {})):
        with pytest.raises(ValueError, match="normed goes with a norm"):
            module.prepare_many(x.repeat(2, 1), normed=wrong, **those)


@needs_triton
def test_kernel_reads_rows_that_lie_apart():
    x, _ = case(512, "none", device=DEVICE)
    wide = torch.full((8, 1024), float("nan"), dtype=x.dtype, device=DEVICE)
    wide[:, 256:768] = x
    out = module.prepare(wide[:, 256:768], poisoned(512, forms(512)[0]))
    assert torch.equal(out.x8.cpu(), pack_order(reference(x.cpu())[0]))


@needs_triton
def test_blocks_that_meet_in_memory_find_fresh_words_in_every_call():
    plan = Plan("slots", -(-768 // 1024), 4) if not ON_GPU else Plan("slots", 2, 2)
    out = poisoned(768, plan)
    for seed in range(5):  # the two sets of words take turns
        x, _ = case(768, "none", seed=seed, device=DEVICE)
        module.prepare(x, out)
        assert torch.equal(out.x8.cpu(), pack_order(reference(x.cpu())[0]))
        assert (out.calls == seed + 1).all()
        assert (out.mail[(seed + 1) % 2] == -1).all() and (out.mail[seed % 2] >= 0).all()


@needs_triton
def test_launcher_refuses_with_the_remedy():
    x = torch.zeros(8, 512, device=DEVICE)
    norm = torch.zeros(512, device=DEVICE)
    out = allocate(512, DEVICE)
    for call, words in (
        (lambda: module.prepare(torch.zeros(7, 512, device=DEVICE), out), r"want \[8, 512\]"),
        (lambda: module.prepare(torch.zeros(8, 1024, device=DEVICE), out), r"want \[8, 512\]"),
        (lambda: module.prepare(torch.zeros(512, 8, device=DEVICE).T, out), r"call x.contiguous\(\)"),
        (lambda: module.prepare(torch.zeros(8, 520, device=DEVICE)[:, :512], out), r"call x.contiguous\(\)"),
        (lambda: module.prepare(torch.zeros(8, 528, device=DEVICE)[:, 1:513], out), r"call x.contiguous\(\)"),
        (lambda: module.prepare(x, allocate(512, DEVICE, normed=x.dtype)), "without `normed`"),
        (
            lambda: module.prepare(x, allocate(512, DEVICE, normed=torch.bfloat16), norm=norm, eps=EPS),
            "normed=torch.float32",
        ),
        (lambda: module.prepare(x, out, norm=torch.zeros(1024, device=DEVICE)[::2], eps=EPS), r"norm.contiguous\(\)"),
        (lambda: module.prepare(x.to("meta"), out), "use one device"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
