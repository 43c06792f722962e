"""Sources of the kernels that connect passes (kernels/sampling.py, rounds.py, rms_norm.py), for compile_kernels.py."""

from triton.compiler import ASTSource

_LONGS = ("p_tokens", "p_whole", "p_drawn", "p_candidates", "p_lists", "p_following", "p_gather", "p_last", "p_chosen")
_FLOATS = ("p_inverse", "p_cos", "p_sin", "p_weight", "p_other_weight")
_HALF = ("p_logits", "p_x", "p_other", "p_out")


def _source(kernel, **constants):
    types = {name: "*i32" for name in kernel.arg_names if name.startswith("p_")}
    types |= {"p_marks": "*u8", "p_real": "*fp64", "eps": "fp32"} | dict.fromkeys(constants, "constexpr")
    types |= dict.fromkeys(_LONGS, "*i64") | dict.fromkeys(_FLOATS, "*fp32") | dict.fromkeys(_HALF, "*bf16")
    if kernel.fn.__name__ == "accept_kernel":
        types |= {"p_index": "*i64"}
    signature = {name: types.get(name, "i32") for name in kernel.arg_names}
    return ASTSource(kernel, signature, constants, {})


def round_variants(module, target):
    """(source, options) of every kernel, as a round launches it."""
    sampling, rounds = module("_sampling_kernels"), module("_rounds_kernels")
    dependent = target.backend == "cuda" and target.arch >= 90
    common = {"launch_pdl": True} if dependent else {}
    exact = common | {"enable_fp_fusion": False}
    row = {"BLOCK": 2048, "DEPENDENT": dependent}  # SHORT adds to every kernel, so one of them does without
    yield _source(sampling.maxima_kernel, STRETCH=512, SHORT=False, **row), exact | {"num_warps": 8}
    yield _source(sampling.bound_kernel, MAXIMA=512, WIDE=True, DEPENDENT=dependent), exact | {"num_warps": 4}
    yield _source(sampling.list_kernel, LISTED=1024, SHORT=True, **row), exact | {"num_warps": 8}
    yield _source(sampling.draw_kernel, LISTED=1024, SHORT=True, WIDE=True, **row), exact | {"num_warps": 4}
    angles, single = {"HALF": 32, "DEPENDENT": dependent}, common | {"num_warps": 1}
    yield _source(rounds.begin_head_kernel, KEEP=0, RING=256, **angles), single
    yield _source(rounds.next_level_kernel, **angles), single
    yield _source(rounds.begin_pass_kernel, **angles), single
    yield _source(rounds.accept_kernel, RING=256, DEPENDENT=dependent), single
    yield (
        _source(module("_rms_norm_kernel").rms_norm_kernel, BLOCK=4096, DEPENDENT=dependent),
        common | {"num_warps": 16},
    )
