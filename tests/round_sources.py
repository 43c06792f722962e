"""Sources of the kernels that connect passes (kernels/sampling.py, rounds.py, rms_norm.py), for compile_kernels.py."""

from triton.compiler import ASTSource

_LONGS = ("p_tokens", "p_whole", "p_drawn", "p_candidates", "p_lists", "p_following", "p_gather", "p_last", "p_chosen")
_LONGS += ("p_at", "p_other_at", "p_places", "p_ids", "p_index", "p_head_tokens")
_FLOATS = ("p_inverse", "p_cos", "p_sin", "p_weight", "p_other_weight")
_HALF = ("p_logits", "p_x", "p_other", "p_out", "p_also")


def _source(kernel, **constants):
    types = {name: "*i32" for name in kernel.arg_names if name.startswith("p_")}
    types |= {"p_marks": "*u8", "p_real": "*fp64", "eps": "fp32"} | dict.fromkeys(constants, "constexpr")
    types |= dict.fromkeys(_LONGS, "*i64") | dict.fromkeys(_FLOATS, "*fp32") | dict.fromkeys(_HALF, "*bf16")
    if kernel.fn.__name__ == "begin_pass_kernel":
        types |= {"p_table": "*u8", "p_levels": "*u8", "p_scale": "*fp32"}
    signature = {name: types.get(name, "i32") for name in kernel.arg_names}
    return ASTSource(kernel, signature, constants, {})


def round_variants(module, target, every):
    """(source, options) of every kernel, as a round launches it; without `every` its lists are shorter to sort."""
    sampling, rounds = module("_sampling_kernels"), module("_rounds_kernels")
    dependent = target.backend == "cuda" and target.arch >= 90
    common = {"launch_pdl": True} if dependent else {}
    exact = common | {"enable_fp_fusion": False}
    listed = 1024 if every else 256  # beside lists of up to 128
    row = {"BLOCK": 2048, "DEPENDENT": dependent}  # SHORT adds to every kernel, so one of them does without
    yield _source(sampling.maxima_kernel, STRETCH=512, SHORT=False, LIVE=True, **row), exact | {"num_warps": 8}
    bound = {"MAXIMA": 512, "WIDE": True, "DEPENDENT": dependent}
    yield _source(sampling.bound_kernel, **bound), exact | {"num_warps": 4}
    for maxima in (512, 0):
        form = {"LISTED": listed, "STRETCH": 512, "MAXIMA": maxima, "WIDE": True, "SHORT": True, "LIVE": maxima == 0}
        yield _source(sampling.list_kernel, **form, **row), exact | {"num_warps": 8}
    form = {"LISTED": listed, "SHORT": True, "WIDE": True, "LIVE": True, "HALF": 32}
    yield _source(sampling.draw_kernel, **form, **row), exact | {"num_warps": 4}
    angles, single = {"HALF": 32, "DEPENDENT": dependent}, common | {"num_warps": 1}
    yield _source(rounds.begin_head_kernel, KEEP=0, RING=256, **angles), common | {"num_warps": 8}
    table = {"K": 5120, "BITS": 8, "C": 256, "TABLES": False, "ROTATED": False, "RING": 256}
    yield _source(rounds.begin_pass_kernel, EMBED=True, **table, **angles), single | {"enable_fp_fusion": False}
    yield _source(rounds.accept_kernel, RING=256, DEPENDENT=dependent), single
    norm, wide = module("_rms_norm_kernel").rms_norm_kernel, {"BLOCK": 4096, "DEPENDENT": dependent, "TABLES": False}
    for bits in (0, 8):
        form = {"K": 4096, "BITS": bits, "C": 256, "AT": True, "OTHER_AT": True, "ALSO": False}
        source = _source(norm, **form, **wide)
        source.signature |= {"p_levels": "*u8", "p_scale": "*fp32"} | ({"p_x": "*u8"} if bits else {})
        yield source, common | {"num_warps": 16}
    form = {"K": 0, "BITS": 0, "C": 0, "AT": False, "OTHER_AT": False, "ALSO": True}
    yield _source(norm, **form, **wide), common | {"num_warps": 16}
    lookup = module("_embedding_kernel").embed_rows_kernel
    for bits, table in ((8, "*u8"), (6, "*u8"), (4, "*u8"), (0, "*bf16")):
        form = {"K": 5120, "BITS": bits, "C": 512 if bits == 4 else 256, "TABLES": bits == 4, "ROTATED": bits > 0}
        source = _source(lookup, DEPENDENT=dependent, **form)
        source.signature |= {"p_table": table, "p_levels": "*u8", "p_scale": "*fp32"}
        yield source, exact | {"num_warps": 1}
