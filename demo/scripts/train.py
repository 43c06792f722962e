"""Trains the demo checkpoint in a fixed number of minutes on one GPU.

    python demo/scripts/train.py DATA_FOLDER CHECKPOINT_FOLDER --out OUT [--minutes 7.5] [--smoke]

DATA_FOLDER: what build_data.py wrote. CHECKPOINT_FOLDER: the text files that make_tokenizer.py wrote. OUT gets a
complete checkpoint and metrics.json. The learning rate follows the clock (warm-up, then cosine), so the run always
ends well. The loss is next-token cross-entropy plus the MTP head's for two and three tokens ahead. The head's loss is
not detached from the trunk: a state that also holds the token after next is what makes drafts acceptable. That was a
choice, not a measured comparison; the small weights keep the main loss in charge.
"""

import argparse
import json
import math
import pathlib
import shutil
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import evaluate  # noqa: E402
import network as net  # noqa: E402
from build_data import ANSWER, ID, PAD  # noqa: E402

PROMPT_WEIGHT, PROSE_WEIGHT = 0.1, 0.5  # an answer's ids weigh 1: what users type is partly random by design
LEVEL_WEIGHTS = (0.3, 0.15)  # MTP levels 1 and 2
WARM_UP, FLOOR = 0.03, 0.02  # shares of the time and of the peak rate
FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


class Rows:
    """All rows on the device, drawn in a new random order every epoch."""

    def __init__(self, path: pathlib.Path, batch: int, device):
        self.data = torch.from_numpy(np.load(path).view(np.int16)).to(device)
        self.batch, self.device, self.at, self.epochs = batch, device, len(self.data), -1
        if len(self.data) < batch:
            raise SystemExit(f"{path} holds {len(self.data)} rows, fewer than one batch of {batch}")

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        """ids (B, T) int64 and their weights as targets (B, T) float32."""
        if self.at + self.batch > len(self.data):
            self.order, self.at, self.epochs = torch.randperm(len(self.data), device=self.device), 0, self.epochs + 1
        rows = self.data[self.order[self.at : self.at + self.batch]].int()
        self.at += self.batch
        return split(rows)


def split(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """ids and target weights of rows as build_data.py marks them."""
    answer, pad = rows & ANSWER != 0, rows & PAD != 0
    base = torch.where(answer.any(1, keepdim=True), PROMPT_WEIGHT, PROSE_WEIGHT)
    return (rows & ID).long(), torch.where(answer, 1.0, base) * ~pad


def shifted(ids: torch.Tensor, weights: torch.Tensor, by: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Targets `by` positions ahead and their weights, zero past the row's end."""
    return ids.roll(-by, 1), weights.roll(-by, 1) * (torch.arange(ids.shape[1], device=ids.device) < ids.shape[1] - by)


def loss_of(model, ids, weights, rope, embedded=None) -> torch.Tensor:
    """(4,): total, next-token loss, and the losses of MTP levels 1 and 2, each a weighted mean in nats.

    embedded (B, T, 256): the rows' embeddings where they are not the ids' own (pictures).
    """
    embedded = model.embed(ids) if embedded is None else embedded
    hidden, losses = model.states(embedded, rope), []
    for level in range(3):
        if level:
            hidden = model.draft_states(hidden, embedded.roll(-level, 1), rope)
        target, weight = shifted(ids, weights, level + 1)
        each = F.cross_entropy(model.logits(hidden).float().flatten(0, 1), target.flatten(), reduction="none")
        losses.append((each * weight.flatten()).sum() / weight.sum().clamp_min(1))
    total = losses[0] + LEVEL_WEIGHTS[0] * losses[1] + LEVEL_WEIGHTS[1] * losses[2]
    return torch.stack([total, *losses])


class Step:
    """Forward and backward of one batch: one CUDA graph where that works, plain calls elsewhere."""

    def __init__(self, model, batch: int, length: int, device, graph: bool):
        self.model, self.device = model, device
        self.ids = torch.zeros(batch, length, dtype=torch.long, device=device)
        self.weights = torch.ones(batch, length, device=device)
        self.rope, self.graph = model.rotary(length, device), None
        if graph and device.type == "cuda":
            self._capture()

    def _run(self) -> torch.Tensor:
        with torch.autocast(self.device.type, torch.bfloat16):
            losses = loss_of(self.model, self.ids, self.weights, self.rope)
        losses[0].backward()
        return losses.detach()

    def _capture(self) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.model.zero_grad(set_to_none=True)
                self._run()
        torch.cuda.current_stream().wait_stream(side)
        self.model.zero_grad(set_to_none=True)
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.losses = self._run()
            self.graph = graph
        except RuntimeError as error:
            print(f"no CUDA graph, plain calls instead: {str(error).splitlines()[0]}", flush=True)
            torch.cuda.synchronize()

    def __call__(self, ids, weights) -> torch.Tensor:
        self.ids.copy_(ids)
        self.weights.copy_(weights)
        if self.graph is not None:  # its gradients overwrite the last step's
            self.graph.replay()
            return self.losses
        self.model.zero_grad(set_to_none=True)
        return self._run()


def optimizer_of(model, rate: float):
    """AdamW; weight decay on matrices only (the embedding, tied to the output, is left out)."""
    named = list(model.named_parameters())
    decayed = [p for n, p in named if p.ndim == 2 and "embed" not in n]
    rest = [p for n, p in named if not (p.ndim == 2 and "embed" not in n)]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), eps=1e-8, fused=True)


def rate_at(progress: float) -> float:
    """Share of the peak rate at a share of the time: linear warm-up, cosine to FLOOR."""
    if progress < WARM_UP:
        return max(progress, 1e-3) / WARM_UP
    return FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * min(1.0, (progress - WARM_UP) / (1 - WARM_UP))))


class Guard:
    """Keeps a copy of good weights; restores it with half the rate when a loss is not finite."""

    def __init__(self, model):
        self.model, self.scale, self.restored = model, 1.0, 0
        self.copy = {k: v.clone() for k, v in model.state_dict().items()}

    def look(self, losses: list[float], optimizer) -> None:
        if all(map(math.isfinite, losses)):
            for key, value in self.model.state_dict().items():
                self.copy[key].copy_(value)
            return
        self.restored += 1
        if self.restored > 4:
            raise SystemExit("the loss became NaN five times; nothing was saved")
        print("loss is not finite: back to the last good weights at half the rate", flush=True)
        self.model.load_state_dict(self.copy)
        optimizer.state.clear()
        self.scale *= 0.5


def train(model, rows: Rows, args, device) -> dict:
    """Runs until the clock says stop; returns what the README needs."""
    length = rows.data.shape[1]
    step, optimizer = Step(model, rows.batch, length, device, not args.no_graph), optimizer_of(model, args.rate)
    guard, curve, done = Guard(model), [], 0
    started = said = time.time()
    said_at = 0
    while True:
        progress = done / args.steps if args.steps else (time.time() - started) / (args.minutes * 60)
        if progress >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = args.rate * rate_at(progress) * guard.scale
        losses = step(*rows.next())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        done += 1
        if done % 16 == 0 and device.type == "cuda":
            torch.cuda.synchronize()  # the clock must not run ahead of the device
        if done % args.every == 0 or done in (1, 10, 50):
            values = losses.tolist()
            guard.look(values, optimizer)
            now = time.time()
            speed = (done - said_at) * rows.batch * length / max(now - said, 1e-9)
            said, said_at = now, done
            curve.append([done, round(now - started, 1), *(round(v, 4) for v in values[1:])])
            text = f"step {done} {now - started:.0f} s loss {values[1]:.4f} mtp {values[2]:.4f} {values[3]:.4f}"
            print(f"{text} {speed / 1e3:.0f} k tokens/s epoch {rows.epochs}", flush=True)
    guard.look(losses.tolist(), optimizer)
    tokens, seconds = done * rows.batch * length, time.time() - started
    return {
        "steps": done,
        "tokens": tokens,
        "seconds": round(seconds, 1),
        "tokens_per_second": round(tokens / seconds),
        "unique_tokens": rows.data.numel(),
        "batch_rows": rows.batch,
        "row_ids": length,
        "peak_rate": args.rate,
        "cuda_graph": step.graph is not None,
        "restored_after_nan": guard.restored,
        "curve": curve,
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--minutes", type=float, default=7.5)
    parser.add_argument("--batch", type=int, default=64, help="rows a step")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--every", type=int, default=250, help="steps between printed lines")
    parser.add_argument("--steps", type=int, default=0, help="stop after so many steps instead of by the clock")
    parser.add_argument("--no-graph", action="store_true", help="plain calls instead of a CUDA graph")
    parser.add_argument("--smoke", action="store_true", help="a few steps of two rows on the CPU")
    args = parser.parse_args()
    if args.smoke:
        args.batch, args.steps, args.every = 2, args.steps or 6, 2
    elif not torch.cuda.is_available():
        raise SystemExit("no CUDA device; --smoke runs a few steps on the CPU")
    return args


def main() -> None:
    args = arguments()
    device = torch.device("cpu" if args.smoke else "cuda")
    torch.manual_seed(0)
    model = net.build(args.checkpoint).to(device)
    size = sum(p.numel() for p in model.parameters()) / 1e6
    print(f"{size:.2f} M parameters, forward differs from transformers' by {net.check(model, device):.1e}", flush=True)
    facts = train(model, Rows(args.data / "rows.npy", args.batch, device), args, device)
    net.round_weights(model)
    facts["file_bytes"] = net.save(net.tensors(model), args.out)
    for name in FILES:
        if (args.checkpoint / name).resolve() != (args.out / name).resolve():
            shutil.copy(args.checkpoint / name, args.out / name)
    facts["device"] = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    facts["torch"], facts["transformers"] = torch.__version__, __import__("transformers").__version__
    (args.out / "metrics.json").write_text(
        json.dumps({"training": facts}, indent=1), "utf-8"
    )  # kept even if evaluation fails
    results = evaluate.run(model, args.data, args.checkpoint, device, small=args.smoke)
    (args.out / "metrics.json").write_text(json.dumps({"training": facts, **results}, indent=1), "utf-8")
    print(json.dumps({k: v for k, v in results.items() if k != "samples"}), flush=True)


if __name__ == "__main__":
    main()
