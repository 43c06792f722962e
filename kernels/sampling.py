"""Sampling on the device: from rows of logits to a token each, and from a draft head's row to a list of candidates.

What is drawn is engine/sampling.py's: penalties over the tokens seen, division by the temperature, top-k, min-p, top-p,
then the argmax of score + Gumbel noise of (seed, index, id); greedy takes the argmax of the penalised scores. Nothing
here waits for the host and settings are data, so one captured graph serves every request.

    x_i    = penalised logit / temperature                               float32; 1 when greedy
    key_i  = x_i as an integer of the same order, NaN on top             int32
    order  = (key descending, id ascending)

Top-k needs no sort of a vocabulary. The row is cut into at most MAXIMA stretches; the upper half of the k-th largest of
their maxima's bits is a bound that at least k entries reach and few more do. Four launches: the maxima; the bound,
which every block of the next one finds itself where there is one row; every entry at or above it into a short list, in
any order; the list sorted by (key, id), which nobody's order of arrival can change, and drawn from. A list that
overflows, when thousands of entries are equal, is found again entry by entry: slower, the same result. Entries of -inf
are never listed: no processor lets them be drawn.

Of a row whose largest entry is no finite number nothing can be drawn: its token is 0 and its error 1.

Settings live in two tensors on the device (`write_settings`). Rows may be padded: entries from `vocab` on do not count.
A row may hold a part of the vocabulary (`Shortlist`): then it is drawn from as if the rest were -inf.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .cache_split import prefer_shared
from .rows import SLOTS

MAXIMA = 512  # stretches of a row at most
LISTED = 1024  # entries that a list holds
MAX_TOP_K = 256  # half of MAXIMA: a bound by maxima needs more stretches than entries
SEED, TOP_K, WIDE, GREEDY = 0, 1, 2, 3  # whole numbers
TEMPERATURE, TOP_P, MIN_P, REPETITION, PRESENCE = 0, 1, 2, 3, 4  # real ones
_BLOCK = 2048  # entries of one block, fewer where the vocabulary is smaller


@dataclass(frozen=True)
class Settings:
    """What a request asks for: whole int64 [4] (seed, top-k, the wider k of drafts, greedy) and real float64 [5]
    (temperature, top-p, min-p, repetition and presence penalty)."""

    whole: Tensor
    real: Tensor


@dataclass(frozen=True)
class Workspace:
    """Scratch for rows of one vocabulary: maxima int32 [8, M], bound and count int32 [8], listed int32 [8, 2, LISTED]
    (keys, then ids). `stretch` entries have one maximum."""

    maxima: Tensor
    bound: Tensor
    count: Tensor
    listed: Tensor
    stretch: int


@dataclass(frozen=True)
class Seen:
    """What a row's penalties see.

    marks   uint8 [V], nonzero for the tokens of the reply so far
    tokens  int64 [8], tokens behind them: slots of a draft
    above   int32 [8], a row's bit mask over `tokens`: its ancestors and itself
    depth   int32 [8], how many tokens behind the reply the row is; a row at depth d draws index reply + d
    reply   int32 [1] or a view: how many tokens the reply has
    """

    marks: Tensor
    tokens: Tensor
    above: Tensor
    depth: Tensor
    reply: Tensor


@dataclass(frozen=True)
class Shortlist:
    """Which ids a row of n + m logits is of: entry i < n is id i, entry n + j is id ids[j], nothing where that is -1.

    first  n;  ids  int32 [m] on the logits' device, below the vocabulary and at least n, each once
    """

    first: int
    ids: Tensor


def supports(*, greedy: bool, top_k: int) -> bool:
    """Whether these settings are drawn on the device: any greedy ones, else top-k from 1 to MAX_TOP_K."""
    return greedy or 1 <= top_k <= MAX_TOP_K


def new_settings(device) -> Settings:
    """Settings of a greedy request."""
    settings = Settings(
        torch.zeros(4, dtype=torch.int64, device=device), torch.ones(5, dtype=torch.float64, device=device)
    )
    write_settings(settings, seed=0, greedy=True)
    return settings


def write_settings(
    settings: Settings,
    *,
    seed: int,
    greedy: bool = False,
    temperature: float = 1.0,
    top_k: int = 1,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
):
    """Fills them from the host. seed: any int, its low 64 bits count. Raises ValueError for a top_k not supported."""
    if not supports(greedy=greedy, top_k=top_k):
        raise ValueError(f"top_k is {top_k}: 1 to {MAX_TOP_K} are drawn on the device")
    seed &= 2**64 - 1
    wide = 8 if greedy else min(MAX_TOP_K, max(64, 4 * top_k))
    whole = [seed - 2**64 if seed >= 2**63 else seed, 1 if greedy else top_k, wide, int(greedy)]
    real = [1.0 if greedy else temperature, top_p, min_p, repetition_penalty, presence_penalty]
    settings.whole.copy_(torch.tensor(whole, dtype=torch.int64))
    settings.real.copy_(torch.tensor(real, dtype=torch.float64))


def allocate(vocab: int, device) -> Workspace:
    """Scratch for rows of `vocab` entries."""
    stretch = 1
    while -(-vocab // stretch) > MAXIMA:
        stretch *= 2
    return Workspace(
        torch.empty(SLOTS, -(-vocab // stretch), dtype=torch.int32, device=device),
        torch.zeros(SLOTS, dtype=torch.int32, device=device),
        torch.zeros(SLOTS, dtype=torch.int32, device=device),
        torch.empty(SLOTS, 2, LISTED, dtype=torch.int32, device=device),
        stretch,
    )


def draw(
    logits: Tensor,
    settings: Settings,
    seen: Seen,
    workspace: Workspace,
    *,
    vocab: int,
    tokens: Tensor,
    errors: Tensor,
    candidates: Tensor | None = None,
    level: Tensor | None = None,
    head_row: tuple[Tensor, ...] | None = None,
    shortlist: Shortlist | None = None,
    live: Tensor | None = None,
    dependent: bool = False,
) -> Tensor:
    """One token a row, four launches, three for a single row; returns `tokens`.

    logits      bf16, fp16 or fp32 [R, V] contiguous, R <= 8, V >= vocab
    tokens      int64 [R]: what is drawn
    errors      int32 [R]: 1 where nothing can be drawn
    candidates  int64 [L, 8], or None: lists of draft levels, of which row 0 of the logits fills the one of `level`. The
                first is the row's token and the others are the next best: by score when greedy, else by score + noise
                among the `wide` most likely, without top-p and min-p. They are distinct ids below vocab.
    level       int32 [1] or a view: the draft's level, from 1
    head_row    of a draft, kernels/rounds.py's Round.head_row: after the draw its head has the list's first for its
                next row, and `level` is one more
    shortlist   which ids the logits are of, where not all: `vocab` is then the number of its entries, the workspace's
                too, while `seen.marks` is of the whole vocabulary
    live        int32 [1] or a view: how many rows are drawn, from the first; the others keep token and error
    dependent   launched as programmatic dependents of the kernel before (NVIDIA, from compute capability 9.0)
    Raises ValueError where a shape or dtype does not fit.
    """
    from . import _sampling_kernels as _kernels  # here, because without a GPU nobody needs Triton

    rows, width = logits.shape
    _check(logits, seen, workspace, vocab, tokens, errors, candidates, level, shortlist, live)
    first, ids = (vocab, workspace.count) if shortlist is None else (shortlist.first, shortlist.ids)
    # Contraction would round the penalties otherwise than the reference.
    options = {"enable_fp_fusion": False, "DEPENDENT": dependent}
    options |= {"launch_pdl": True} if dependent else {}
    alive = tokens if live is None else live
    shared = (
        logits, seen.marks, seen.tokens, seen.above, ids, settings.whole, settings.real, width, vocab, first, alive,
    )  # fmt: skip
    maxima, wide = workspace.maxima.shape[1], candidates is not None
    block = max(min(_BLOCK, 1 << (vocab - 1).bit_length()), 128)
    blocks = -(-vocab // block)
    places, stretch = max(16, 1 << (maxima - 1).bit_length()), min(workspace.stretch, block)
    row_options = options | {"SHORT": shortlist is not None, "LIVE": live is not None, "BLOCK": block}
    largest = _kernels.maxima_kernel[(rows, blocks)](
        *shared, workspace.maxima, workspace.count, maxima, STRETCH=stretch, num_warps=8, **row_options
    )  # fmt: skip
    if rows > 1:
        _kernels.bound_kernel[(rows,)](
            workspace.maxima, settings.whole, workspace.bound, maxima, MAXIMA=places, WIDE=wide, num_warps=4, **options
        )  # fmt: skip
    listed = _kernels.list_kernel[(rows, blocks)](
        *shared, workspace.maxima, workspace.bound, workspace.count, workspace.listed, maxima, LISTED=LISTED,
        STRETCH=stretch, MAXIMA=0 if rows > 1 else places, WIDE=wide, num_warps=8, **row_options,
    )  # fmt: skip
    following, half = ((tokens,) * 7, 0) if head_row is None else (head_row, head_row[2].numel())
    drawn = _kernels.draw_kernel[(rows,)](
        *shared, seen.depth, seen.reply, workspace.count, workspace.listed, tokens, errors,
        candidates if wide else tokens, level if wide else seen.reply, *following, half,
        LISTED=LISTED, WIDE=wide, HALF=1 << (half - 1).bit_length() if half else 0, num_warps=4, **row_options,
    )  # fmt: skip
    for launched in (largest, listed, drawn):
        prefer_shared(launched, logits.device)
    return tokens


def _check(logits, seen, workspace, vocab, tokens, errors, candidates, level, shortlist, live):
    rows, width = logits.shape
    wanted = {
        "marks": (seen.marks, torch.uint8, None),
        "the tokens behind the reply": (seen.tokens, torch.int64, (SLOTS,)),
        "above": (seen.above, torch.int32, (SLOTS,)),
        "depth": (seen.depth, torch.int32, (SLOTS,)),
        "tokens": (tokens, torch.int64, (rows,)),
        "errors": (errors, torch.int32, (rows,)),
    }
    if live is not None:
        wanted["live"] = (live, torch.int32, (1,))
    if candidates is not None:
        wanted["candidates"] = (candidates, torch.int64, (candidates.shape[0], SLOTS))
        if rows != 1 or level is None:
            raise ValueError("candidates are one row's, and of a level: pass logits [1, V] and `level`")
    marked = vocab
    if shortlist is not None:
        wanted["ids of the shortlist"] = (shortlist.ids, torch.int32, (vocab - shortlist.first,))
        marked = shortlist.first
    for name, (tensor, dtype, shape) in wanted.items():
        if tensor.dtype != dtype or (shape is not None and tuple(tensor.shape) != shape) or not tensor.is_contiguous():
            raise ValueError(f"{name} must be contiguous {dtype} {shape}, got {tensor.dtype} {list(tensor.shape)}")
    if not 1 <= rows <= SLOTS or not 1 <= vocab <= width or not logits.is_contiguous() or seen.marks.numel() < marked:
        raise ValueError(f"logits {list(logits.shape)} for a vocabulary of {vocab}: contiguous [1..8, >= vocab] wanted")
    if workspace.maxima.shape[1] != -(-vocab // workspace.stretch):
        raise ValueError(f"the workspace is of another vocabulary than {vocab}: allocate({vocab}, ...)")
