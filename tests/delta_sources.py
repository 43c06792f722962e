"""Sources of the DeltaNet kernels (kernels/delta_decode.py, delta_prefill.py), for compile_kernels.py."""

from triton.compiler import ASTSource


def _source(kernel, kinds, **constants):
    """kinds: pointers' types; those not named are float32."""
    pointers = {name: kinds.get(name, "fp32") for name in kernel.arg_names if name.startswith("p_")}
    pointers |= {"p_control": "i32"}
    types = {name: "*" + kind for name, kind in pointers.items()} | dict.fromkeys(constants, "constexpr")
    signature = {name: types.get(name, "fp32" if name == "eps" else "i32") for name in kernel.arg_names}
    aligned = [
        (i,)
        for i, name in enumerate(signature)
        if name in ("x_stride", "z_stride") or (name in pointers and name not in ("p_a", "p_b"))
    ]
    return ASTSource(kernel, signature, constants, {index: [["tt.divisibility", 16]] for index in aligned})


def delta_variants(module, target, shared, every):
    """(source, options) of the real head sizes and of the smallest. shared: bytes a block may have, by architecture.

    Without `every`, of a head dimension of 32: all branches of 128's, which repeats the most of them four times. Walks
    stay at 128, where they use most of the shared memory that a block may have.
    """
    decode, prefill = module("_delta_decode_kernels").delta_decode_kernel, module("_delta_prefill_kernels")
    dependent = target.backend == "cuda" and target.arch >= 90
    precision = "tf32x3" if target.backend == "cuda" else "ieee"
    real = (("bf16", 32, 128), ("fp16", 48, 128), ("fp32", 2, 16))
    for dtype, heads, dim in real if every else (("bf16", 32, 32),):
        shape = {"HK": 1 if dim == 16 else 16, "HV": heads, "DK": dim, "DV": dim}
        wide = ("p_x", "p_z", "p_b", "p_a", "p_windows", "p_columns", "p_out")
        parts, columns = module("delta_decode").split_for(dim)
        options = {"num_warps": max(1, dim // parts // columns * 8 // target.warp_size), "enable_fp_fusion": False}
        options |= {"launch_pdl": True} if dependent else {}
        flags = {"PARTS": parts, "VC": columns, "DEPENDENT": dependent, "PREFETCH": True}
        yield _source(decode, dict.fromkeys(wide, dtype), **shape, **flags), options
        if dtype == "fp16":
            continue
        halves = target.backend == "cuda"
        sizes = shape | {"CHUNK": 32, "HALVES": halves}
        wide = ("p_q_halves", "p_k_halves", "p_mix", "p_seen") if halves else ()
        pieces = {"PK": min(dim, 32), "PV": min(dim, 32), "PRECISION": precision}
        yield _source(prefill.chunk_kernel, dict.fromkeys(wide, "bf16"), **sizes, **pieces), {"num_warps": 2}
        wide = ("p_q", "p_k", "p_mix", "p_seen") if halves else ()
        columns = min(dim, 64) if every else 64
        walked = shape if every else shape | {"DK": 128, "DV": 128}
        walk = {"PV": columns, "STAGES": 3 if halves and shared[target.arch] >= 190 << 10 else 1}
        yield (
            _source(prefill.walk_kernel, dict.fromkeys(wide, "bf16"), **sizes | walked, **walk),
            {"num_warps": max(1, columns // 16)},
        )
        if target.backend == "cuda":
            yield from _narrow_variants(module("_delta_prefill_narrow_kernels"), walked, walk, target.arch >= 86)
        wide = ("p_x", "p_b", "p_a", "p_window")
        kinds = dict.fromkeys(wide, dtype)
        if target.backend == "cuda" and dtype != "fp32":
            kinds |= dict.fromkeys(("p_q", "p_k", "p_v"), "fp16")
        yield _source(prefill.inputs_kernel, kinds, **shape, ROWS=16), {"num_warps": 4}
        norm = {"HV": heads, "DV": dim, "ROWS": 16}
        kinds = dict.fromkeys(("p_z", "p_out"), dtype)
        if target.backend == "cuda" and dtype != "fp32":
            kinds |= {"p_o": "fp16"}
        yield _source(prefill.gated_norm_kernel, kinds, **norm), {"num_warps": 4}


def _narrow_variants(kernels, shape, walk, packed):
    """(source, options) of the launches for bf16 and fp16 models."""
    sizes = shape | {"CHUNK": 64, "PACKED": packed}
    half = dict.fromkeys(("p_q", "p_k", "p_v", "p_mix", "p_inverse", "p_out"), "fp16")
    without_values = {name: size for name, size in sizes.items() if name != "DV"}
    yield _source(kernels.narrow_chunk_kernel, half, **without_values), {"num_warps": 4, "maxnreg": 168}
    yield _source(kernels.narrow_walk_kernel, half, **sizes, **walk), {"num_warps": max(1, walk["PV"] // 16)}
