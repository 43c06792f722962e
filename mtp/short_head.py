"""The output head cut to a shortlist of the vocabulary, for drafts: the target decides, so a draft need not reach all.

BPE ids are roughly ordered by frequency, so the shortlist is the head's first rows, over the same memory, and a fixed
number of others that change: control tokens, which are always at hand, those of the prompt, and those that the reply
has shown since. With fixed places one captured graph serves every shortlist.

    logits [rows + EXTRA]    entry i < rows is id i; entry rows + j is id extra_ids[j], none where that is -1

An entry has the bits that the whole head gives it where the head is packed: integer sums do not depend on the rows
beside them. Optionally the first rows are a packed copy of their own, for a head that is stored wider.

Source: frequency-ranked draft heads, FR-Spec (arXiv 2502.14856).
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ..kernels.rows import SLOTS
from ..kernels.sampling import Shortlist
from ..weights import FastQwenError, Projection
from ..weights.linear import Linear
from ..weights.packed_linear import BITS, PackedLinear, RecordLinear
from ..weights.subset import quantised_copy

EXTRA = 256  # places beside the first rows
FEWEST = 512  # the first rows at least: fewer than the widest list of candidates would leave some out


class ShortHead:
    """A head's first `rows` rows and EXTRA places for others.

    head    the whole output head [V, K]
    rows    a multiple of 16; from `vocab` on there is nothing to add, and no place for it
    vocab   ids below it can be drawn
    always  ids that keep a place
    format  None: the head's own rows, no memory but EXTRA rows; "w4a8", "w6a8" or "int8": a packed copy of them
    dtype   of the hidden states
    Raises FastQwenError for another format, and for rows or always that do not fit.
    """

    def __init__(
        self,
        head: Linear | PackedLinear,
        rows: int,
        *,
        vocab: int,
        always: Iterable[int] = (),
        format: str | None = None,
        dtype: torch.dtype,
    ):
        rows = min(rows, _rows_of(head) // 16 * 16)
        check_short_head(rows, format)
        self.rows, self.vocab, self.format, self._head = rows, vocab, format, head
        device = head.channel_scale.device if isinstance(head, PackedLinear) else head.weight.device
        with torch.inference_mode():
            first = head.first_rows(rows) if format is None else quantised_copy(head, rows, format, dtype)
            matrices, self._extra, self.entries, self.shortlist = [(first, (rows,))], None, min(rows, vocab), None
            if rows < vocab:
                self._extra, self.entries = head.empty_rows(EXTRA), rows + EXTRA
                matrices.append((self._extra, (EXTRA,)))
                self.shortlist = Shortlist(rows, torch.full((EXTRA,), -1, dtype=torch.int32, device=device))
            self.matrices = [matrix for matrix, _ in matrices]
            self._projection = Projection(matrices)
            width = sum(sizes[0] for _, sizes in matrices)
            self._scratch = torch.empty(SLOTS * width, dtype=dtype, device=device)
        self._place_of: dict[int, int] = {}  # id -> place, the longest there first
        self._always = self._wanted(always)
        if len(self._always) > EXTRA // 2:
            raise FastQwenError(f"{len(self._always)} tokens are to keep a place: at most {EXTRA // 2} can.")
        self.begin(())

    @property
    def copied_bytes(self) -> int:
        """Memory of the packed copy; 0 for the head's own rows."""
        first = self.matrices[0]
        if self.format is None:
            return 0
        codes = first.weight.storage if isinstance(first, RecordLinear) else first.grid
        return codes.nbytes + first.channel_scale.nbytes

    @property
    def extra_ids(self) -> list[int]:
        """The ids that have a place beside the first rows."""
        return list(self._place_of)

    def begin(self, prompt: Sequence[int]):
        """A new text: tokens of earlier ones give up their places to this prompt's, its latest where not all fit."""
        if self._extra is None:
            return
        latest = self._wanted(reversed(prompt))
        kept = [*self._always, *[token for token in latest if token not in self._always][: EXTRA - len(self._always)]]
        self._place_of = {token: place for place, token in enumerate(kept)}
        with torch.inference_mode():
            self.shortlist.ids.fill_(-1)
        self._fill(kept)

    def add(self, tokens: Iterable[int]):
        """Tokens of the reply: those without a place get a free one, or the longest held one."""
        if self._extra is None:
            return
        new = [token for token in self._wanted(tokens) if token not in self._place_of]
        for token in new[:EXTRA]:
            place = len(self._place_of)
            if place == EXTRA:
                oldest = next(known for known in self._place_of if known not in self._always)
                place = self._place_of.pop(oldest)
            self._place_of[token] = place
        self._fill([token for token in new if token in self._place_of])

    def decode(self, hidden: Tensor) -> Tensor:
        """The logits that kernels/sampling.py draws candidates from, with `shortlist`: hidden [SLOTS, K], of which slot
        0 counts, after the final norm -> [1, rows + EXTRA], or [1, >= vocab] where all of it is there."""
        return self._projection.verify_first(hidden, self._scratch)

    def logits(self, hidden: Tensor) -> Tensor:
        """The same over the whole vocabulary, for the host: hidden [..., K] -> [..., vocab] float32, -inf for what is
        not in the shortlist."""
        short = self._projection.joined(hidden).float()
        if self._extra is None:
            return short[..., : self.vocab]
        whole = short.new_full((*short.shape[:-1], self.vocab), float("-inf"))
        whole[..., : self.rows] = short[..., : self.rows]
        live = torch.nonzero(self.shortlist.ids >= 0)[:, 0]
        whole[..., self.shortlist.ids[live].long()] = short[..., self.rows + live]
        return whole

    def _wanted(self, tokens):
        """Distinct ids that are not among the first rows, in the order given."""
        return list(dict.fromkeys(int(token) for token in tokens if self.rows <= token < self.vocab))

    def _fill(self, tokens):
        if not tokens:
            return
        device = self.shortlist.ids.device
        words = torch.tensor([tokens, [self._place_of[token] for token in tokens]])
        with torch.inference_mode():
            # Behind the passes that are under way: nothing waits.
            rows, places = words.to(device, non_blocking=True)
            self._extra.copy_rows(self._head, rows, places)
            self.shortlist.ids[places] = rows.to(torch.int32)


def check_short_head(rows: int, format: str | None):
    """Raises FastQwenError for a number of rows that no head can be cut to, and for an unknown format."""
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < FEWEST or rows % 16:
        raise FastQwenError(f"draft_rows is {rows!r}: set a multiple of 16 of at least {FEWEST}, or 0 for all.")
    if format is not None and format not in BITS:
        raise FastQwenError(f"draft_format is {format!r}: use one of {', '.join(map(repr, BITS))}, or none.")


def _rows_of(head):
    return head.channel_scale.numel() if isinstance(head, PackedLinear) else head.weight.shape[0]
