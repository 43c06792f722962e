"""Slabs that a packed linear cuts along K: every record has one warp, and the last part to come has the whole sum.

The whole kernel is NVIDIA's own instructions (test_packed_linear.py); what it is cut by runs under the interpreter too.
"""

import pytest
import torch

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402
from fastqwen.kernels._packed_kernels import _job, _joined  # noqa: E402

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@triton.jit
def jobs_kernel(
    p_out, whole, parts, cut_jobs, RECORDS: tl.constexpr, WARPS: tl.constexpr, CUT: tl.constexpr
):  # fmt: skip
    index = tl.program_id(0)
    warp = tl.arange(0, WARPS)
    slab, first, end, turns = _job(index, warp, whole, parts, cut_jobs, RECORDS, WARPS, CUT)
    p = p_out + index * 4 * WARPS + warp
    tl.store(p, warp * 0 + slab)
    tl.store(p + WARPS, first)
    tl.store(p + 2 * WARPS, warp * 0 + end)
    tl.store(p + 3 * WARPS, warp * 0 + turns)


@triton.jit
def joined_kernel(p_parts, p_sums, p_counts, p_out, p_last, parts):
    index = tl.program_id(0)
    o = tl.arange(0, 32)
    p = p_parts + index * 128 + o
    slab = index // parts
    is_last, s0, s1, s2, s3 = _joined(
        p_sums + slab * 128, p_counts + slab, tl.load(p), tl.load(p + 32), tl.load(p + 64), tl.load(p + 96), o, parts
    )  # fmt: skip
    tl.store(p_last + index, is_last.to(tl.int32))
    p = p_out + index * 128 + o
    tl.store(p, s0)
    tl.store(p + 32, s1)
    tl.store(p + 64, s2)
    tl.store(p + 96, s3)


@pytest.mark.parametrize(
    "slabs,records,warps,blocks,parts",
    [(13, 10, 2, 12, 5), (13, 10, 2, 12, 3), (10, 34, 8, 8, 3), (3, 1, 4, 2, 2), (9, 3, 4, 9, 2)],
)  # fmt: skip
def test_every_record_of_every_slab_has_one_warp_of_one_job(slabs, records, warps, blocks, parts):
    cut = slabs % blocks
    whole = slabs - cut
    jobs = whole + cut * parts
    out = torch.full((jobs, 4, warps), -1, dtype=torch.int32, device=DEVICE)
    jobs_kernel[(jobs,)](out, whole, parts, cut * parts, RECORDS=records, WARPS=warps, CUT=cut > 0)
    seen = []
    for slab, first, end, turns in out.cpu().tolist():
        for warp in range(warps):
            # A warp's records past the end of its job are multiplied by zeros.
            seen += [(slab[0], record) for record in range(first[warp], first[warp] + turns[0]) if record < end[0]]
    assert sorted(seen) == [(slab, record) for slab in range(slabs) for record in range(records)]


@pytest.mark.parametrize("parts", [2, 3, 5])
def test_the_last_part_to_come_has_the_sums_of_all_and_leaves_zeros(parts):
    slabs = 4
    random = torch.Generator().manual_seed(parts)
    sums, counts = torch.zeros(slabs * 128, dtype=torch.int32), torch.zeros(slabs, dtype=torch.int32)
    sums, counts = sums.to(DEVICE), counts.to(DEVICE)
    for _ in range(2):  # the second launch begins with what the first left
        values = torch.randint(-(2**20), 2**20, (slabs * parts, 128), dtype=torch.int32, generator=random).to(DEVICE)
        out, last = torch.zeros_like(values), torch.full((slabs * parts,), -1, dtype=torch.int32, device=DEVICE)
        joined_kernel[(slabs * parts,)](values, sums, counts, out, last, parts, num_warps=2)
        assert last.view(slabs, parts).sum(1).tolist() == [1] * slabs
        assert torch.equal(out[last == 1], values.view(slabs, parts, 128).sum(1, dtype=torch.int32))
        assert not sums.any() and not counts.any()
