"""What asking for the next weights brings (kernels/read_ahead.py): rounds under several budgets, random W4A8 weights.

python -m fastqwen.benchmarks.read_ahead [--shape 9b 27b] [--mib 0 12 24 40] [--context 1024]
"""

import argparse
import json

import torch

from ..kernels.rows import SLOTS
from ..mtp.tree import OFF, Tree
from .decode import _made, _rounds
from .random_model import random_model
from .timing import provenance

TREES = OFF, Tree.chain(3), Tree((SLOTS - 1,))


def measure(trunk, mtp, mib: float, context: int) -> dict:
    """Milliseconds of verify passes and draft levels under one budget."""
    for block in (*trunk.blocks, mtp.block):
        block.read_ahead(int(mib * 2**20))
    model, _ = _made(trunk, mtp, context + 512, True)
    row = {"mib": mib}
    for tree in TREES:
        times = _rounds(model, tree, context)
        row["verify_ms_" + str(tree.rows)] = times["verify_ms"]
        if tree.depth:
            row["draft_ms_" + str(tree.depth)] = times["draft_ms"]
    model.release()
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", nargs="+", default=["9b", "27b"])
    parser.add_argument("--mib", type=float, nargs="+", default=[0, 12, 24, 40, 0])
    parser.add_argument("--context", type=int, default=1024)
    arguments = parser.parse_args()
    print(json.dumps(provenance()), flush=True)
    for shape in arguments.shape:
        trunk, mtp, _ = random_model(shape, torch.device("cuda"), bits=4, head="w4a8", kv="int8")
        for mib in arguments.mib:
            print(json.dumps({"shape": shape} | measure(trunk, mtp, mib, arguments.context)), flush=True)


if __name__ == "__main__":
    main()
