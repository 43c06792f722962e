"""Linear layers that read one input, with what comes right before and after them.

A decode pass is bound by launches as much as by bytes, so the unit of work is not one matrix but a group: the norm or
the SwiGLU before it, all matrices on that input, and the residual added behind. Backends replace the inside.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kernels import prepare
from ..kernels.float_linear import FEW_ROWS
from ..kernels.packed_linear import PlainRows
from ..kernels.rms_norm import rms_norm, rms_norm_rows
from ..kernels.rows import SLOTS, each_row
from .backend import dependent_launch
from .linear import Linear
from .packed_linear import PackedLinear, RecordLinear


class Norm:
    """The (1 + w) RMS norm before a group. weight float32 [K]."""

    def __init__(self, weight: Tensor, eps: float):
        self.weight, self.eps = weight, eps

    def __call__(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class Projection:
    """prologue(x) times each layer of the group, plus the residual.

    matrices  (matrix [N, K], rows of the layers stacked in it) in the group's order; plain and packed may be mixed
    norm      the norm before them, or None
    swiglu    the input is gate | up, [..., 2 K], and the prologue is silu(gate) * up

    batch_invariant  bits of a prompt's row are its own, however many rows are given with it, if they are more than
                     SLOTS: fewer are a decode pass's, whose kernels add up in another order
    """

    def __init__(
        self,
        matrices: Sequence[tuple[Linear | PackedLinear, tuple[int, ...]]],
        *,
        norm: Norm | None = None,
        swiglu: bool = False,
    ):
        self.matrices, self.norm, self.swiglu = tuple(matrices), norm, swiglu
        self._prologue_arguments = {"swiglu": swiglu}
        if norm is not None:
            self._prologue_arguments |= {"norm": norm.weight, "eps": norm.eps}
        packed = [matrix for matrix, _ in self.matrices if isinstance(matrix, PackedLinear)]
        forms = [isinstance(m, RecordLinear) or (isinstance(m, Linear) and m.by_kernel) for m, _ in self.matrices]
        # Packed matrices in another form than records need activations prepared row by row.
        self._by_kernel = any(forms) and all(isinstance(matrix, RecordLinear) for matrix in packed)
        self.batch_invariant = (
            self._by_kernel and bool(packed)
            and all(matrix.takes_rows for matrix, _ in self.matrices if isinstance(matrix, Linear))
        )  # fmt: skip
        self._rotations = {matrix.rotated for matrix in packed}
        # A preparation with a norm can store the normed row too, which plain matrices of the group then read.
        self._stores_normed = norm is not None and len(packed) < len(self.matrices)
        self._buffers: dict[bool, prepare.Prepared] = {}

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, ...]:
        """x [..., K] (SwiGLU: [..., 2 K]), residual [..., N_0] of a group of one -> one [..., N_i] a layer."""
        return self._split(self._results(x, residual))

    def joined(self, x: Tensor) -> Tensor:
        """The layers' results side by side: x [..., K] -> [..., sum of N_i]. Layers in one matrix are so already."""
        return _beside(self._results(x, None))

    def verify(self, x: Tensor, rows: int, residual: Tensor | None = None) -> tuple[Tensor, ...]:
        """The rows of a decode pass: x [SLOTS, K], residual [SLOTS, N_0] -> one [SLOTS, N_i] a layer.

        Matrices that have a kernel take all eight slots in one launch, the rest each live row alone.
        """
        return self._split(self._slot_results(x, rows, residual))

    def verify_joined(self, x: Tensor, rows: int) -> Tensor:
        """`verify` with the layers' results side by side."""
        return _beside(self._slot_results(x, rows, None))

    def verify_first(self, x: Tensor, scratch: Tensor) -> Tensor:
        """Slot 0 of a decode pass alone, the layers' results side by side: x [SLOTS, K] -> [1, sum of N_i].

        scratch  SLOTS * sum of N_i values of x's dtype, in which the result lies where matrices have kernels. Each
                 writes its eight rows over the second row of the matrix before, which nobody reads: so the first rows
                 lie side by side without a copy.
        """
        if not self._by_kernel:
            return self.joined(x[:1])
        outs, start = [], 0
        for _, sizes in self.matrices:
            rows = sum(sizes)
            outs.append(scratch[start : start + SLOTS * rows].view(SLOTS, rows))
            start += rows
        self._decode(x, SLOTS, None, outs)
        return scratch[None, :start]

    def _split(self, results):
        parts: list[Tensor] = []
        for (_, sizes), result in zip(self.matrices, results, strict=True):
            parts += (result,) if len(sizes) == 1 else result.split_with_sizes(sizes, -1)
        return tuple(parts)

    def _results(self, x, residual):
        """One tensor for each matrix."""
        rows, added = x, residual
        if x.dim() != 2:
            rows = x.reshape(-1, x.shape[-1])
            added = None if residual is None else residual.reshape(rows.shape[0], -1)
        if self._by_kernel and rows.shape[0] <= SLOTS:  # a draft's row, or the last of a prompt: read packed bytes once
            results = self._decode(_in_slots(rows), rows.shape[0], None if added is None else _in_slots(added))
            return [result[: rows.shape[0]].reshape(*x.shape[:-1], -1) for result in results]
        prepared, plain = {}, None
        for rotated in self._rotations:
            wanted = self._by_kernel and self._stores_normed and plain is None
            normed = rows.new_empty(rows.shape) if wanted else None
            prepared[rotated] = self._prepare_rows(rows, rotated, normed)
            plain = normed.view(x.shape) if normed is not None else plain
        results: list[Tensor] = []
        for matrix, _ in self.matrices:
            if isinstance(matrix, PackedLinear):
                result = matrix(*prepared[matrix.rotated], added, x.dtype)
                result = result if x.dim() == 2 else result.view(*x.shape[:-1], -1)
            else:
                plain = self._prologue(x) if plain is None else plain
                result = matrix.rows(plain) if self.batch_invariant and x.dim() == 2 else matrix(plain)
                result = result if residual is None else residual + result
            results.append(result)
        return results

    def _slot_results(self, x, rows, residual):
        if self._by_kernel:
            return self._decode(x, rows, residual)
        inputs = (x,) if residual is None else (x, residual)
        return each_row(lambda *row: tuple(self._results(*row, *[None] * (2 - len(row)))), rows, *inputs)

    def _decode(self, x, rows, residual, outs=None):
        """One tensor for each matrix, in `outs` if given: then one launch after another."""
        prepared = {rotated: self._launch_preparation(x, rotated) for rotated in self._rotations}
        plain = next((ready.normed for ready in prepared.values()), None)
        results: list[Tensor] = []
        done = None  # what a plain matrix gave that ran in the launch of the packed one before it
        for index, (matrix, _) in enumerate(self.matrices):
            out = None if outs is None else outs[index]
            if isinstance(matrix, RecordLinear):
                ready, beside = prepared[matrix.rotated], None
                if plain is not None and outs is None and self._runs_beside(index):
                    following = self.matrices[index + 1][0].weight
                    done = x.new_empty(SLOTS, following.shape[0])
                    beside = PlainRows(plain, following, done)
                result = matrix.decode(ready.x8, ready.x_scale, residual, x.dtype, plain=beside, out=out)
            elif done is not None:
                result, done = done, None
            else:
                plain = self._plain_rows(x, rows) if plain is None else plain
                result = self._decode_plain(matrix, plain, rows, residual, out)
            results.append(result)
        return results

    def _runs_beside(self, index):
        """Whether the matrix behind packed matrix `index` is a small plain one for the same launch."""
        if index + 1 == len(self.matrices) or not self.matrices[index][0].takes_plain_rows:
            return False
        following = self.matrices[index + 1][0]
        return isinstance(following, Linear) and following.by_kernel and following.weight.shape[0] <= FEW_ROWS

    def _prepare_rows(self, rows, rotated, normed=None):
        if self._by_kernel:
            return prepare.prepare_many(rows.contiguous(), rotate=rotated, normed=normed, **self._prologue_arguments)
        return prepare.prepare_rows(rows, rotate=rotated, **self._prologue_arguments)

    def _plain_rows(self, x, rows):
        if not rows_are_alike(x.device):
            return each_row(self._prologue, rows, x)
        if self.norm is not None:
            x = rms_norm_rows([(x, self.norm.weight)], self.norm.eps, dependent=dependent_launch(x.device))
        if self.swiglu:  # elementwise, so all rows are treated alike; into memory that a captured pass has at hand
            gate, up = x.chunk(2, -1)
            x = torch.ops.aten.silu.out(gate, out=x.new_empty(gate.shape)).mul_(up)
        return x

    def _decode_plain(self, matrix, plain, rows, residual, out):
        if matrix.by_kernel:
            return matrix.decode(plain, residual, out)
        if residual is None:
            result = each_row(matrix, rows, plain)
            return result if out is None else out.copy_(result)
        return each_row(lambda row, added: added + matrix(row), rows, plain, residual)

    def _launch_preparation(self, x, rotated):
        if rotated not in self._buffers:
            columns = x.shape[-1] // 2 if self.swiglu else x.shape[-1]
            normed = x.dtype if self._stores_normed else None
            self._buffers[rotated] = prepare.allocate(columns, x.device, normed=normed)
        return prepare.prepare(
            x, self._buffers[rotated], rotate=rotated, dependent=dependent_launch(x.device), **self._prologue_arguments
        )

    def _prologue(self, x):
        if self.norm is not None:
            x = self.norm(x)
        if self.swiglu:
            gate, up = x.chunk(2, -1)
            x = F.silu(gate) * up
        return x


def rows_are_alike(device: torch.device) -> bool:
    """Whether elementwise operations of torch give a row the same bits wherever it stands: on a CPU the tail of a
    vectorised loop differs from the rest."""
    return device.type == "cuda"


def _beside(results: Sequence[Tensor]) -> Tensor:
    if len(results) == 1:
        return results[0]
    first, columns = results[0], sum(result.shape[-1] for result in results)
    return torch.cat(tuple(results), -1, out=first.new_empty(*first.shape[:-1], columns))  # room of a captured pass


def _in_slots(rows: Tensor) -> Tensor:
    """Up to eight rows [R, K] as [SLOTS, K], zeros behind them."""
    slots = rows.new_zeros(SLOTS, rows.shape[1])
    slots[: rows.shape[0]] = rows
    return slots
