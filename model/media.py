"""Where a prompt's pictures stand: places of the template become as many tokens as there are embeddings, with 3-D
positions.

A picture's place, <|image_pad|>, is repeated for every token of it. A video's place, with the <|vision_start|> and
<|vision_end|> around it, becomes one such group for every pair of frames, behind the time in words: "<0.5 seconds>".
Text counts one position a token on all three axes; a picture that begins at position p has (p, p + row, p + column),
and the text behind it goes on at p + its longer side.
Source: the Qwen3-VL processor that the family uses, as its makers published it (transformers 4.57; vLLM and SGLang do
the same). transformers 5.24 leaves a second <|vision_start|> and <|vision_end|> around all of a video; positions are
those of its get_rope_index.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..weights.errors import FastQwenError
from .tokenizer import Tokenizer
from .vision import Grid

NAMES = {"image": "<|image_pad|>", "video": "<|video_pad|>"}
START, END = "<|vision_start|>", "<|vision_end|>"


@dataclass(frozen=True)
class Item:
    """A picture or a video of a prompt. `seconds` are the times of a video's pairs of frames."""

    kind: str
    grid: Grid
    seconds: tuple[float, ...] = ()

    def frame_tokens(self, merge: int) -> tuple[int, int]:
        """Rows and columns of tokens of one frame."""
        return self.grid.rows // merge, self.grid.columns // merge


class Span(NamedTuple):
    """Tokens of one frame in a prompt: the first one's index, rows and columns; which item it is of, and which of its
    frames."""

    start: int
    rows: int
    columns: int
    item: int
    frame: int


def expand(ids: Sequence[int], items: Sequence[Item], merge: int, tokenizer: Tokenizer) -> tuple[list[int], list[Span]]:
    """Puts every token of `items` in: the ids, and where the frames' tokens are. Places of a kind are filled in order.

    Raises FastQwenError where the prompt has not as many places as there are images and videos.
    """
    require_places(ids, items, tokenizer)
    waiting = {kind: iter([index for index, item in enumerate(items) if item.kind == kind]) for kind in NAMES}
    kinds = {tokenizer.token_id(name): kind for kind, name in NAMES.items()}
    kinds.pop(None, None)
    start, end = tokenizer.token_id(START), tokenizer.token_id(END)
    ids, out, spans, at = list(ids), [], [], 0
    while at < len(ids):
        token = ids[at]
        at += 1
        if token not in kinds:
            out.append(token)
            continue
        index = next(waiting[kinds[token]])
        item = items[index]
        if item.kind == "video" and out[-1:] == [start] and ids[at : at + 1] == [end]:
            out.pop()
            at += 1
        for frame in range(item.grid.frames):
            rows, columns = item.frame_tokens(merge)
            if item.kind == "video":
                _write(out, f"<{item.seconds[frame]:.1f} seconds>", tokenizer)
                out.append(start)
            spans.append(Span(len(out), rows, columns, index, frame))
            out += [token] * (rows * columns)
            if item.kind == "video":
                out.append(end)
    return out, spans


def _write(out: list[int], text: str, tokenizer: Tokenizer):
    """Appends `text` as if it had been there before what stands in front of it became tokens."""
    begin = len(out)
    while begin and not tokenizer.is_added(out[begin - 1]):
        begin -= 1
    before = tokenizer.decode_bytes(out[begin:]).decode("utf-8", "replace")
    out[begin:] = tokenizer.encode_plain(before + text)


def rope_positions(length: int, spans: Sequence[Span]) -> Tensor:
    """Rotary positions [3, length] int64 (time, height, width) of a prompt of `length` tokens."""
    parts, at, position = [], 0, 0

    def text(until):
        nonlocal at, position
        parts.append(torch.arange(position, position + until - at).expand(3, -1))
        position, at = position + until - at, until

    for span in spans:
        text(span.start)
        rows = torch.arange(span.rows).repeat_interleave(span.columns)
        columns = torch.arange(span.columns).repeat(span.rows)
        parts.append(position + torch.stack([torch.zeros_like(rows), rows, columns]))
        position, at = position + max(span.rows, span.columns), at + span.rows * span.columns
    text(length)
    return torch.cat(parts, 1)


def require_places(ids: Sequence[int], items: Sequence[Item], tokenizer: Tokenizer):
    """Refuses a prompt that has not as many places as there are images and videos."""
    for kind, name in NAMES.items():
        found = list(ids).count(tokenizer.token_id(name))
        given = sum(item.kind == kind for item in items)
        missing = [part for part in (name, START, END) if tokenizer.token_id(part) is None]
        if given and missing:
            raise FastQwenError(
                f"The tokenizer of '{tokenizer.origin}' has no {' or '.join(missing)}, which {kind}s need: use the "
                "tokenizer of a Qwen3.5, 3.6 or 3.8 checkpoint."
            )
        if given != found:
            raise FastQwenError(
                f"The prompt has {found} {'place' if found == 1 else 'places'} for {kind}s and {given} "
                f"{'was' if given == 1 else 'were'} given: make the two numbers equal."
            )
