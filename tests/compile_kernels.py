"""Compiles every kernel for GPUs that need not be here; the last line printed is the outcome as JSON.

Run by test_kernels_compile.py. A target that the installed Triton has no backend or assembler for is skipped by name.
"""

import importlib
import importlib.util
import json
import os
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
import triton
import triton.language as tl
from delta_sources import delta_variants
from round_sources import round_variants
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_86": GPUTarget("cuda", 86, 32),
    "sm_89": GPUTarget("cuda", 89, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_120": GPUTarget("cuda", 120, 32),
    "gfx1100": GPUTarget("hip", "gfx1100", 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
SHARED = {80: 166912, 86: 101376, 89: 101376, 90: 232448, 120: 101376}  # bytes a block may have
MISSING = ("no compatible backends", "is not defined for option 'gpu-name'", "cannot find ptxas")


def kernel_module(name):
    """A module of the package's kernels, the package imported from beside this folder."""
    if "fastqwen" not in sys.modules:
        root = Path(__file__).resolve().parent.parent
        spec = importlib.util.spec_from_file_location(
            "fastqwen", root / "__init__.py", submodule_search_locations=[str(root)]
        )
        sys.modules["fastqwen"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["fastqwen"])
    return importlib.import_module(f"fastqwen.kernels.{name}")


def prepare_source(
    kernel, form, dtype, threads, parts, *, k, swiglu=False, norm=False, normed=False, by_rows=False, dependent=False
):  # fmt: skip
    pointers = {"x_ptr": dtype, "norm_ptr": "fp32", "x8_ptr": "i8", "scale_ptr": "fp32"}
    pointers |= {"normed_ptr": dtype, "mail_ptr": "i64", "calls_ptr": "i32"}
    constants = {"K": k, "THREADS": threads, "PARTS": parts, "SWIGLU": swiglu, "NORM": norm}
    constants |= {"SLOTS": form == "slots", "CLUSTER": form == "cluster"}
    constants |= {"NORMED": normed, "ROTATE": True, "BY_ROWS": by_rows, "DEPENDENT": dependent}
    types = {name: "*" + kind for name, kind in pointers.items()} | {"x_stride": "i32", "eps": "fp32"}
    types |= dict.fromkeys(constants, "constexpr")
    signature = {name: types[name] for name in kernel.arg_names}
    aligned = [(i,) for i, name in enumerate(signature) if name in pointers or name == "x_stride"]
    return ASTSource(kernel, signature, constants, {index: [["tt.divisibility", 16]] for index in aligned})


def prepare_variants(kernel, target):
    """(source, options) of what plan_for asks for on a target."""
    alone = {"num_warps": 16, "enable_fp_fusion": False}
    yield prepare_source(kernel, "alone", "bf16", 512, 1, k=4096, norm=True, normed=True), alone
    yield (
        prepare_source(kernel, "alone", "bf16", 2048, 1, k=12288, swiglu=True, by_rows=True),
        alone | {"num_warps": 32},
    )
    yield prepare_source(kernel, "alone", "bf16", 512, 1, k=4096, norm=True, normed=True, by_rows=True), alone
    if target.backend == "cuda":
        slots = {"num_warps": 4, "enable_fp_fusion": False}
        yield prepare_source(kernel, "slots", "bf16", 128, 17, k=17408, swiglu=True), slots
        if target.arch >= 90:
            dependent = {"launch_pdl": True, "enable_fp_fusion": False}
            cluster = prepare_source(kernel, "cluster", "bf16", 512, 4, k=4096, norm=True, normed=True, dependent=True)
            yield cluster, {**dependent, "num_warps": 4, "num_ctas": 4}
            cluster = prepare_source(kernel, "cluster", "fp32", 4096, 8, k=17408, swiglu=True, dependent=True)
            yield cluster, {**dependent, "num_warps": 16, "num_ctas": 8}


def packed_source(kernel, **constants):
    pointers = {"p_x": "i32", "p_x_scale": "fp32", "p_weights": "i32", "p_table": "i32", "p_channel_scale": "fp32"}
    pointers |= {"p_table_of": "i32", "p_residual": "bf16", "p_out": "bf16", "p_slabs": "i32"}
    pointers |= {"p_plain_x": "bf16", "p_plain": "bf16", "p_plain_out": "bf16"}
    pointers |= {"p_sums": "i32", "p_counts": "i32"}
    if "C" in constants:  # the portable form and unpacking read bytes
        pointers |= {"p_x": "i8", "p_weights": "u8", "p_table": "u8"}
    if "p_slabs" in kernel.arg_names:  # unpacking writes the grid, as bytes or as words of four
        pointers |= {"p_out": "i8" if "C" in constants else "i32"}
    types = {name: "*" + kind for name, kind in pointers.items()} | dict.fromkeys(constants, "constexpr")
    signature = {name: types.get(name, "i32") for name in kernel.arg_names}
    aligned = [(i,) for i, name in enumerate(signature) if name in pointers]
    return ASTSource(kernel, signature, constants, {index: [["tt.divisibility", 16]] for index in aligned})


def packed_variants(module, target):
    """(source, options) of every width of weights; the NVIDIA form on NVIDIA, the portable one everywhere."""
    for bits, columns in ((4, 512), (4, 256), (6, 256), (8, 256)):
        common = {"K": columns * 3, "BITS": bits}
        plain = {"num_warps": 4, "enable_fp_fusion": False}
        portable = module.portable_packed_linear_kernel
        yield packed_source(portable, C=columns, RESIDUAL=True, TABLES=bits == 4, **common), plain
        unpacking = kernel_module("_unpack_kernels")
        yield packed_source(unpacking.unpack_kernel, C=columns, TABLES=bits == 4, **common), {"num_warps": 4}
        if target.backend != "cuda":
            continue
        for window in (True, False) if bits == 4 else (False,):
            dependent = target.arch >= 90
            options = plain | ({"launch_pdl": True} if dependent else {})
            shape = {"WARPS": 4, "J": columns // 64, "WINDOW": window, "TABLES": bits == 4 and window}
            # Of 4 bits' two widths with and without a window, every pair of choices and not every triple.
            for early in (False, True) if bits > 4 else ((columns == 256) == window,):
                flags = {"RESIDUAL": early, "EARLY": early, "CUT": not early, "PLAIN": not early, "PLAIN_K": 1024}
                flags |= {"DEPENDENT": dependent}
                yield packed_source(module.packed_linear_kernel, **common, **shape, **flags), options
            yield packed_source(unpacking.unpack_records_kernel, **common, **shape), {"num_warps": 4}


def gemm_variants(kernel, target):
    """(source, options) of int8_gemm's launch configurations."""
    pointers = {"p_x": "*i8", "p_x_scale": "*fp32", "p_grid": "*i8", "p_channel_scale": "*fp32"}
    pointers |= {"p_residual": "*bf16", "p_out": "*bf16"}
    launch_config = kernel_module("int8_gemm").launch_config
    shared = SHARED[target.arch] if target.backend == "cuda" else 1 << 16
    for rows, columns in ((1, 4096), (512, 4096), (4096, 8192)):
        block_r, block_n, block_k, warps, stages = launch_config(rows, columns, 100, shared)
        constants = {
            "K": 4096,
            "BLOCK_R": block_r,
            "BLOCK_N": block_n,
            "BLOCK_K": block_k,
            "GROUP": 8,
            "RESIDUAL": True,
        }
        types = pointers | dict.fromkeys(constants, "constexpr")
        signature = {name: types.get(name, "i32") for name in kernel.arg_names}
        aligned = [(i,) for i, name in enumerate(signature) if name in pointers or name == "out_stride"]
        source = ASTSource(kernel, signature, constants, {index: [["tt.divisibility", 16]] for index in aligned})
        yield source, {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": False}


def float_source(kernel, launch, dtype, dependent):
    constants = launch.constants(4160 if launch.form == "sum" else 4096) | {"RESIDUAL": True, "DEPENDENT": dependent}
    pointers = ("p_x", "p_w", "p_residual", "p_out")
    types = dict.fromkeys(pointers, "*" + dtype) | dict.fromkeys(constants, "constexpr")
    signature = {name: types.get(name, "i32") for name in kernel.arg_names}
    aligned = [(i,) for i, name in enumerate(signature) if name in pointers]
    return ASTSource(kernel, signature, constants, {index: [["tt.divisibility", 16]] for index in aligned})


def float_variants(kernel, target):
    """(source, options) of every launch of a plain linear: few rows, many, and a head."""
    launch_for = kernel_module("float_linear").launch_for
    dependent = target.backend == "cuda" and target.arch >= 90
    for dtype, name in ((torch.bfloat16, "bf16"), (torch.float16, "fp16"), (torch.float32, "fp32")):
        for launch in dict.fromkeys(launch_for(rows, 4096, dtype) for rows in (64, 4096, 248320)):
            options = {"num_warps": launch.warps, "num_stages": launch.stages}
            options |= {"launch_pdl": True} if dependent else {}
            yield float_source(kernel, launch, name, dependent), options


def float_gemm_variants(kernel):
    """(source, options) of a prompt's rows times a small plain matrix."""
    for name, block_k in (("bf16", 128), ("fp16", 64), ("fp32", 64)):
        constants = {"K": 4096, "BLOCK_R": 16, "BLOCK_N": 64, "BLOCK_K": block_k}
        types = dict.fromkeys(("p_x", "p_w", "p_out"), "*" + name) | dict.fromkeys(constants, "constexpr")
        signature = {argument: types.get(argument, "i32") for argument in kernel.arg_names}
        aligned = {(index,): [["tt.divisibility", 16]] for index in (0, 1, 2, 5)}  # pointers, distance of rows
        yield ASTSource(kernel, signature, constants, aligned), {"num_warps": 4, "num_stages": 4}


def attention_source(kernel, kind, constants):
    pointers = dict.fromkeys(("p_control", "p_counter"), "i32") | dict.fromkeys(("p_keys", "p_values"), kind)
    half = ("p_q", "p_gate", "p_out", "p_query_gate", "p_k", "p_v")
    types = {name: "*" + pointers.get(name, "bf16" if name in half else "fp32") for name in kernel.arg_names}
    integers = ("start", "slots", "places", "gate_stride", "q_stride", "k_stride", "v_stride")
    types |= dict.fromkeys(integers, "i32") | {"eps": "fp32"} | dict.fromkeys(constants, "constexpr")
    signature = {name: types[name] for name in kernel.arg_names}
    aligned = [(i,) for i, name in enumerate(signature) if types[name].startswith("*")]
    return ASTSource(kernel, signature, constants, {index: [["tt.divisibility", 16]] for index in aligned})


def attention_variants(module, append, target):
    """(source, options) of every kind of cache, groups of 4 and of 6, head dimensions of 256, 128 and 64."""
    nvidia = target.backend == "cuda"
    dependent = nvidia and target.arch >= 90
    options = {"num_warps": 4} | ({"launch_pdl": True} if dependent else {})
    for kind, heads, dim in (
        ("i8", 16, 256),
        ("i8", 24, 256),
        ("i8", 16, 128),
        ("i8", 16, 64),
        ("bf16", 24, 256),
        ("fp32", 16, 256),
    ):
        group = heads // 4
        count = kernel_module("decode_attention").parts_of_head(heads, 4, 132)
        shape = {"KV_HEADS": 4, "GROUP": group, "D": dim, "PARTS": count, "DEPENDENT": dependent}
        int8 = kind == "i8"
        parts = {"BLOCK_ROWS": 8 if group == 4 else 4, "M": 32, "T": 64 if int8 else 16, "SPLIT_Q": False}
        parts |= {"KIND": tl.float16 if int8 else tl.float32}
        parts |= {"PRECISION": "tf32x3" if nvidia else "ieee", "FAST": nvidia, "BY_WARP": nvidia, "INTERPRETED": False}
        yield attention_source(module.decode_attention_parts_kernel, kind, shape | parts), options
        by_text = int8 and nvidia and dim >= 128
        if by_text:
            block = kernel_module("_attention_block_kernel")
            for staged in {False, target.arch == 90}:
                form = block.form(dim, 4 if group == 4 else 3, True, dependent, staged)
                text = {"BLOCK_ROWS": parts["BLOCK_ROWS"], "FORM": form, "AHEAD": 2, "EARLY": True}
                text["SHARED_TILES"] = block.shared_tiles(form)
                yield attention_source(block.decode_attention_block_kernel, kind, shape | text), options
        merge = {"PLACES": 4, "TURNS": 8, "BLOCK_D": dim, "BY_STORES": by_text, "GATED": True, "EARLY": True}
        yield attention_source(module.decode_attention_merge_kernel, kind, shape | merge), options
        rows = {"HEADS": heads, "KV_HEADS": 4, "D": dim, "HALF": 32, "MIXED": kind == "i8", "DEPENDENT": dependent}
        yield attention_source(append.append_kernel, kind, rows), options | {"enable_fp_fusion": False, "num_warps": 1}
        rows.pop("DEPENDENT")
        yield attention_source(append.append_prompt_kernel, kind, rows), {"enable_fp_fusion": False, "num_warps": 1}


def prefill_variants(kernel, target):
    """(source, options) of prefill attention over each kind of cache."""
    launch_config = kernel_module("prefill_attention").launch_config
    nvidia = target.backend == "cuda"
    shared, wide = (SHARED[target.arch], target.arch == 90) if nvidia else (1 << 16, False)
    names = {torch.int8: "i8", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
    for stored, queries, dim, product, int8_queries in (
        (torch.int8, torch.float16, 256, tl.float16, True),
        (torch.int8, torch.float16, 128, tl.float16, False),
        (torch.int8, torch.float32, 256, tl.float16, False),
        (torch.bfloat16, torch.bfloat16, 256, tl.bfloat16, False),
        (torch.bfloat16, torch.bfloat16, 128, tl.bfloat16, False),
        (torch.float32, torch.float32, 256, tl.float32, False),
    ):
        config = launch_config(stored, queries, dim, shared, wide)
        constants = {"HEADS": 24, "GROUP": 6, "D": dim, "M": config.rows, "N": config.slots, "KIND": product}
        constants |= {"SPLIT_Q": stored == torch.int8 and queries == torch.float32, "INT8_QK": int8_queries}
        constants |= {"PRECISION": "tf32x3" if nvidia else "ieee", "FAST": nvidia, "INTERPRETED": False}
        pointers = {"p_q": names[queries], "p_keys": names[stored], "p_values": names[stored], "p_out": "bf16"}
        pointers |= {"p_key_scales": "fp32", "p_value_scales": "fp32"}
        types = {name: "*" + kind for name, kind in pointers.items()} | dict.fromkeys(constants, "constexpr")
        signature = {name: types.get(name, "i32") for name in kernel.arg_names}
        aligned = [(i,) for i, name in enumerate(signature) if name in pointers]
        source = ASTSource(kernel, signature, constants, {index: [["tt.divisibility", 16]] for index in aligned})
        yield source, {"num_warps": config.warps, "num_stages": config.stages, "enable_fp_fusion": False}


def variants(target, every):
    """(source, options) of all kernels; without `every`, large ones may be of smaller sizes and the same branches."""
    yield from prefill_variants(kernel_module("_prefill_attention_kernels").prefill_attention_kernel, target)
    append = kernel_module("_attention_append_kernel")
    yield from attention_variants(kernel_module("_decode_attention_kernels"), append, target)
    yield from gemm_variants(kernel_module("_int8_gemm_kernels").int8_gemm_kernel, target)
    yield from prepare_variants(kernel_module("_prepare_kernels").prepare_kernel, target)
    yield from packed_variants(kernel_module("_packed_kernels"), target)
    yield from float_variants(kernel_module("_float_linear_kernels").float_linear_kernel, target)
    yield from float_gemm_variants(kernel_module("_float_gemm_kernels").float_gemm_kernel)
    yield from delta_variants(kernel_module, target, SHARED, every)
    yield from round_variants(kernel_module, target, every)


def chosen(name, target):
    """Every variant for one GPU, where they differ most; elsewhere the first of each kernel. Ten minutes otherwise."""
    seen, every = set(), name == "sm_90"
    for compiled, options in variants(target, every):
        kernel = compiled.fn.__name__
        if every or kernel not in seen:
            seen.add(kernel)
            yield compiled, options


def reserved(compiled):
    """Bytes of shared memory that a launch must reserve for a text of PTX."""
    names = compiled.fn.arg_names
    constants = {names[index]: value for (index,), value in compiled.constants.items()}
    form = constants.get("FORM")
    return 0 if form is None else kernel_module("_attention_block_kernel").reserved_bytes(form)


def outcome_of(name):
    """("compiled", "skipped" or "failed", why) of one target."""
    target = TARGETS[name]
    try:
        for compiled, options in chosen(name, target):
            binary = triton.compile(compiled, target=target, options=options)
            limit = SHARED[target.arch] if target.backend == "cuda" else 1 << 16
            assert binary.metadata.shared <= limit, f"{compiled.fn} takes {binary.metadata.shared} bytes of {limit}"
            # What texts of PTX declare by themselves, of which a compiler may make copies.
            declared = sum(map(int, re.findall(r"\.shared[^;]*\[(\d+)\];", binary.asm.get("ptx", ""))))
            assert declared <= 48 << 10, f"{compiled.fn} declares {declared} bytes of shared memory"
            wanted = reserved(compiled)
            assert binary.metadata.shared >= wanted, f"{compiled.fn} reserves too little for {wanted}"
    except Exception as error:
        reason = str(error)[-800:]
        return ("skipped" if any(words in reason for words in MISSING) else "failed"), reason
    return "compiled", ""


def main():
    outcome = {"triton": triton.__version__, "compiled": [], "skipped": {}, "failed": {}}
    names = sorted(TARGETS, key=lambda name: name != "sm_90")  # the longest first
    with ProcessPoolExecutor(min(len(names), os.cpu_count() or 1)) as pool:
        for name, (kind, reason) in zip(names, pool.map(outcome_of, names), strict=True):
            if kind == "compiled":
                outcome[kind].append(name)
            else:
                outcome[kind][name] = reason
    print(json.dumps(outcome))


if __name__ == "__main__":
    main()
