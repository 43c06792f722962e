"""What a draft level pays for the output head and its list, by rows of the head, on a GPU; correctness first.

python -m fastqwen.benchmarks.draft_head [--columns 4096] [--head w4a8 int8 bf16] [--rows 32768 65536 131072]

Random heads of 248,320 rows. A shortlist's logits are those of the whole head, bit for bit where it is packed, and its
candidates those of the whole row with everything else at -inf. Then microseconds of head and list together, and of the
list alone, in a graph whose calls read two heads in turn.
"""

import argparse
import json

import torch

from ..kernels import sampling
from ..kernels.packed import Layout
from ..kernels.rows import SLOTS
from ..mtp.short_head import ShortHead
from ..option_types import whole
from ..weights import Projection
from ..weights.linear import Linear
from ..weights.packed_linear import RecordLinear
from .linear_sweep import random_weight
from .timing import graph_microseconds, main_gpu, provenance

VOCAB, BITS = 248_320, {"w4a8": 4, "w6a8": 6, "int8": 8}
CALLS = 20


class List:
    """Draws a draft's candidates from rows of `entries` logits."""

    def __init__(self, device, entries, shortlist=None):
        zeros = dict(dtype=torch.int32, device=device)
        self.seen = sampling.Seen(
            torch.zeros(VOCAB, dtype=torch.uint8, device=device), torch.zeros(SLOTS, dtype=torch.long, device=device),
            torch.zeros(SLOTS, **zeros), torch.zeros(SLOTS, **zeros), torch.zeros(1, **zeros),
        )  # fmt: skip
        self.token, self.error = torch.zeros(1, dtype=torch.long, device=device), torch.zeros(1, **zeros)
        self.found, self.level = torch.zeros(1, SLOTS, dtype=torch.long, device=device), torch.ones(1, **zeros)
        self.entries, self.shortlist = entries, shortlist
        self.settings, self.workspace = sampling.new_settings(device), sampling.allocate(entries, device)
        sampling.write_settings(self.settings, seed=3, temperature=0.8, top_k=20, top_p=0.9, presence_penalty=0.5)

    def __call__(self, logits):
        sampling.draw(
            logits, self.settings, self.seen, self.workspace, vocab=self.entries, tokens=self.token, errors=self.error,
            candidates=self.found, level=self.level, shortlist=self.shortlist, dependent=True,
        )  # fmt: skip
        return self.found[0]


def random_head(kind, columns, device):
    if kind == "bf16":
        return Linear(torch.randn(VOCAB, columns, dtype=torch.bfloat16, device=device).mul_(columns**-0.5))
    weight = random_weight(Layout(BITS[kind], VOCAB, columns), device)
    weight.channel_scale.uniform_(0.9, 1.1).mul_(0.02 * columns**-0.5)
    return RecordLinear(weight, rotated=True)


def check(head, short, hidden, exact):
    """Raises AssertionError where a shortlist's logits or candidates are not the whole head's."""
    whole = Projection([(head, (VOCAB,))]).verify(hidden, SLOTS)[0][:1]
    found = short.decode(hidden)
    ids = torch.tensor([*range(short.rows), *short.extra_ids], device=hidden.device)
    mine, theirs = found[:, : len(ids)], whole[:, ids]
    # Plain products of another launch add in another order: a bf16 rounding apart, 2^-8 of logits of about 1.
    if not torch.equal(mine, theirs) if exact else not torch.allclose(mine, theirs, rtol=2**-7, atol=2**-7):
        raise AssertionError("logits of the shortlist differ from the head's")
    row = torch.full_like(whole, float("-inf"))
    row[:, ids] = mine
    device = hidden.device
    if not torch.equal(List(device, short.entries, short.shortlist)(found), List(device, VOCAB)(row)):
        raise AssertionError("candidates from the shortlist differ")


def measure(kind: str, columns: int, rows: int, draft_format: str | None) -> dict:
    """Microseconds of one number of rows; all of them where `rows` is 0."""
    device = torch.device("cuda")
    heads = [random_head(kind, columns, device) for _ in range(2)]
    hidden = torch.zeros(SLOTS, columns, dtype=torch.bfloat16, device=device)
    hidden[0].normal_()
    if rows or draft_format:
        options = dict(vocab=VOCAB, always=range(VOCAB - 33, VOCAB), format=draft_format, dtype=torch.bfloat16)
        shorts = [ShortHead(head, rows or VOCAB, **options) for head in heads]
        for short in shorts:
            short.begin(range(0, VOCAB, 600))
        if draft_format is None:
            check(heads[0], shorts[0], hidden, kind != "bf16")
        make = [short.decode for short in shorts]
        lists = List(device, shorts[0].entries, shorts[0].shortlist)
    else:
        groups = [Projection([(head, (VOCAB,))]) for head in heads]
        make = [lambda x, group=group: group.verify(x, SLOTS)[0][:1] for group in groups]
        lists = List(device, VOCAB)
    logits = make[0](hidden).clone()
    both = graph_microseconds([lambda f=f: lists(f(hidden)) for f in make * CALLS])
    alone = graph_microseconds([lambda: lists(logits)] * 2 * CALLS)
    return {
        "head": kind, "columns": columns, "rows": rows or VOCAB, "draft_format": draft_format,
        "head_and_list_us": round(both, 1), "list_us": round(alone, 1),
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--columns", type=whole(1), default=4096)
    parser.add_argument("--head", nargs="+", choices=("w4a8", "w6a8", "int8", "bf16"), default=["w4a8", "bf16"])
    parser.add_argument("--rows", type=whole(1), nargs="+", default=[32768, 65536, 131072])
    arguments = parser.parse_args()
    main_gpu("benchmarks.draft_head")
    table = []
    with torch.inference_mode():
        for kind in arguments.head:
            for rows in (0, *arguments.rows):
                for draft_format in (None, "w4a8") if kind != "w4a8" else (None,):
                    table.append(measure(kind, arguments.columns, rows, draft_format))
                    print("  " + ", ".join(f"{key} {value}" for key, value in table[-1].items()), flush=True)
    print(json.dumps({"what": "draft head", **provenance(), "rows": table}))


if __name__ == "__main__":
    main()
