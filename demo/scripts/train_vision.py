"""Teaches the trained demo checkpoint to see: drawn pictures and text together, by the clock, on one GPU.

    python demo/scripts/train_vision.py DATA_FOLDER CHECKPOINT_FOLDER --out OUT [--minutes 7] [--smoke]

DATA_FOLDER: what build_data.py wrote (the text that the checkpoint was trained on). CHECKPOINT_FOLDER: the demo's
checkpoint. OUT gets a complete checkpoint and metrics.json, OUT-sheet.png pictures to look at. First the tower alone
(tower.py), then all weights: every step takes one batch of text rows and one of picture rows, so that the text is not
forgotten. A checkpoint that has a tower already is trained on; the figures then count all runs.
"""

import argparse
import json
import pathlib
import shutil
import sys
import time
import traceback

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import evaluate  # noqa: E402
import evaluate_vision  # noqa: E402
import history  # noqa: E402
import network as net  # noqa: E402
import picture_data  # noqa: E402
import tower  # noqa: E402
import train as text  # noqa: E402
import vision  # noqa: E402
from captured import Captured  # noqa: E402
from picture_data import FORMS  # noqa: E402
from picture_rows import PictureRows  # noqa: E402

KEPT = ("ids", "weights", "where", "patches", "colour", "shape", "place", "told")
NAMED_WEIGHT = 0.3  # of tower.words_loss
FILES = ("generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


class TextStep:
    def __init__(self, model, rows: text.Rows, device, pool):
        self.rows, length = rows, rows.data.shape[1]
        self.ids = torch.zeros(rows.batch, length, dtype=torch.long, device=device)
        self.weights = torch.ones(rows.batch, length, device=device)
        rope = model.rotary(length, device)
        self.call = Captured(lambda: text.loss_of(model, self.ids, self.weights, rope), device, pool)

    def __call__(self) -> torch.Tensor:
        for buffer, value in zip((self.ids, self.weights), self.rows.next(), strict=True):
            buffer.copy_(value)
        return self.call()


class PictureStep:
    def __init__(self, model, rows: PictureRows, words: dict, device, pool):
        self.model, self.rows, self.grid = model, rows, vision.Grid(rows.form.rows, rows.form.columns, device)
        self.words, first = words, self._drawn()
        self.buffers = {k: first[k].clone() for k in KEPT}
        self.rope = [t.clone() for t in model.turned(first["positions"])]
        self.call = Captured(self._loss, device, pool)

    def _drawn(self) -> dict[str, torch.Tensor]:
        """The next rows with their patches, and what every cell shows."""
        batch, form = self.rows.next(), self.rows.form
        patches, labels = tower.example(batch["drawn"], form.rows * 16, form.columns * 16)
        return batch | labels | {"patches": patches}

    def _loss(self):
        b = self.buffers
        seen = self.model.visual(b["patches"], self.grid)
        embedded = self.model.embed_seen(b["ids"], seen, b["where"])
        losses = text.loss_of(self.model, b["ids"], b["weights"], tuple(self.rope), embedded)
        named = tower.words_loss(self.model, seen, b, self.words)
        return torch.cat([losses[:1] + NAMED_WEIGHT * named, losses[1:]])

    def __call__(self) -> torch.Tensor:
        batch = self._drawn()
        for name, buffer in self.buffers.items():
            buffer.copy_(batch[name])
        for buffer, value in zip(self.rope, self.model.turned(batch["positions"]), strict=True):
            buffer.copy_(value)
        return self.call()


def optimizer_of(model, rate: float, tower_rate: float, fused: bool):
    """AdamW in three groups: matrices with weight decay, the rest of the text model, the tower."""
    named = list(model.named_parameters())
    tower_part = [p for n, p in named if n.startswith("visual.")]
    others = [(n, p) for n, p in named if not n.startswith("visual.")]
    decayed = [p for n, p in others if p.ndim == 2 and "embed" not in n]
    rest = [p for n, p in others if not (p.ndim == 2 and "embed" not in n)]
    groups = [
        {"params": decayed, "weight_decay": 0.1, "peak": rate},
        {"params": rest, "weight_decay": 0.0, "peak": rate},
        {"params": tower_part, "weight_decay": 0.02, "peak": tower_rate},
    ]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), eps=1e-8, fused=fused)


def train(model, words, forms: dict, named: dict, args, device, deadline: float) -> dict:
    """Text and pictures together until the deadline (or args.steps)."""
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    torch.set_float32_matmul_precision("high")  # the delta rule's products; its inputs are bfloat16 anyway
    pool = torch.cuda.graph_pool_handle() if device.type == "cuda" and not args.no_graph else None
    read = TextStep(model, words, device, pool)
    see = {name: PictureStep(model, rows, named, device, pool) for name, rows in forms.items()}
    optimizer = optimizer_of(model, args.rate, args.tower_rate, device.type == "cuda")
    gradients = [p.grad for p in model.parameters()]
    shares = torch.tensor([float(FORMS[name].share) for name in see])
    order = torch.multinomial(shares, 1 << 16, replacement=True, generator=torch.Generator().manual_seed(0)).tolist()
    guard, curve, done, names, heard, seen = text.Guard(model), [], 0, list(see), None, None
    started = time.time()
    print(f"ready after {started - args.started:.0f} s", flush=True)
    while True:
        progress = done / args.steps if args.steps else (time.time() - started) / max(1.0, deadline - started)
        if progress >= 1 and done:
            break
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * text.rate_at(min(1.0, progress)) * guard.scale
        torch._foreach_zero_(gradients)
        heard, seen = read(), see[names[order[done % len(order)]]]()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        done += 1
        if done % 16 == 0 and device.type == "cuda":
            torch.cuda.synchronize()  # the clock must not run ahead of the device
        if done % args.every == 0 or done in (1, 10, 50):
            values = [*heard.tolist()[1:3], *seen.tolist()[1:3]]
            guard.look(values, optimizer)
            curve.append([done, round(time.time() - started, 1), *(round(v, 4) for v in values)])
            shown = "text {:.4f} mtp {:.4f} pictures {:.4f} mtp {:.4f}".format(*values)
            print(f"step {done} {curve[-1][1]} s {shown}", flush=True)
    guard.look([*heard.tolist(), *seen.tolist()], optimizer)
    torch.set_float32_matmul_precision("highest")
    seconds = time.time() - started
    return {
        "steps": done, "seconds": round(seconds, 1), "text_tokens": done * words.batch * words.data.shape[1],
        "picture_rows_a_step": {name: rows.batch for name, rows in forms.items()},
        "picture_rows": sum(forms[names[order[i % len(order)]]].batch for i in range(done)),
        "peak_rate": args.rate, "tower_rate": args.tower_rate, "restored_after_nan": guard.restored,
        "cuda_graphs": all(step.call.graph is not None for step in [read, *see.values()]), "curve": curve,
    }  # fmt: skip


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--minutes", type=float, default=7.0, help="from the start of this script to the last step")
    parser.add_argument("--tower-seconds", type=float, default=80.0, help="of them for the tower alone; may be 0")
    parser.add_argument("--pictures", type=int, default=300_000, help="picture rows to write")
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--text-rows", type=int, default=48, help="rows of 512 ids a step")
    parser.add_argument("--picture-ids", type=int, default=24_576, help="ids of picture rows a step")
    parser.add_argument("--tower-batch", type=int, default=512)
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--tower-rate", type=float, default=1e-3)
    parser.add_argument("--every", type=int, default=200, help="steps between printed lines")
    parser.add_argument("--steps", type=int, default=0, help="stop after so many steps instead of by the clock")
    parser.add_argument("--eval-rows", type=int, default=6000)
    parser.add_argument("--changed-only", action="store_true", help="copy no file that training leaves as it is")
    parser.add_argument("--no-graph", action="store_true", help="plain calls instead of CUDA graphs")
    parser.add_argument("--smoke", action="store_true", help="a few small steps on the CPU")
    args = parser.parse_args()
    args.started, args.sheet = time.time(), args.out.with_name(args.out.name + "-sheet.png")
    if args.smoke:
        args.text_rows, args.picture_ids, args.every, args.steps = 1, 384, 1, args.steps or 2
        args.pictures, args.workers, args.tower_seconds, args.tower_batch, args.eval_rows = 300, 1, 3.0, 8, 20
    elif not torch.cuda.is_available():
        raise SystemExit("no CUDA device; --smoke runs a few steps on the CPU")
    return args


def measured(model, results: dict, args, device) -> int:
    """Adds the measurements to `results` and writes metrics.json after each; how many failed. None stops another."""
    failed = 0
    for measure in (
        dict,
        lambda: evaluate_vision.run(model, args.checkpoint, args.sheet, device, args.eval_rows, args.smoke),
        lambda: evaluate.run(model, args.data, args.checkpoint, device, small=args.smoke),
    ):
        try:
            results |= measure()
        except Exception:
            traceback.print_exc()
            failed += 1
        (args.out / "metrics.json").write_text(json.dumps(results, indent=1), "utf-8")
    return failed


def train_tower(model, tokenizer, forms: dict, args, device) -> list:
    """The tower alone, on forms in turn."""
    order = (
        "square", "wide", "tall", "two", "square", "wider", "taller", "three frames", "square", "flat", "pair",
        "square", "wide", "tall", "four frames", "square", "wider", "taller", "two 4:3", "square", "flat",
        "three frames wide",
    )  # fmt: skip
    sources = {}
    for name in dict.fromkeys(order):
        form = FORMS[name]
        grid = vision.Grid(form.rows, form.columns, device)
        sources[name] = (form.rows, form.columns, grid, forms[name].pairs)
    graph = device.type == "cuda" and not args.no_graph
    return tower.train(model, tokenizer, sources, order, args.tower_seconds, args.tower_batch, device, graph)


def main() -> None:
    args = arguments()
    device = torch.device("cpu" if args.smoke else "cuda")
    known = history.earlier(args.checkpoint)
    torch.manual_seed(len(known.get("runs", ())))
    built = picture_data.build(args.checkpoint, args.pictures, args.workers, len(known.get("runs", ())))
    print(f"{sum(len(a['ids']) for a in built.values())} picture rows, {time.time() - args.started:.0f} s", flush=True)
    model = vision.build(args.checkpoint).to(device)
    print(f"forward and tower differ from transformers' by {net.check(model, device):.1e}, ", end="")
    print(f"{vision.check(model, device):.1e}", flush=True)
    words = text.Rows(args.data / "rows.npy", args.text_rows, device)
    facts = {"text_at_start": evaluate_vision.text_losses(model, args.data, device, args.smoke)}
    facts["text_before"] = known.get("text_before", facts["text_at_start"])
    writer = picture_data.Writer(args.checkpoint)
    forms = {}
    for name, form in FORMS.items():
        forms[name] = PictureRows(built.pop(name), form, args.picture_ids // form.length, writer.pads, device)
    facts["tower"] = train_tower(model, writer.tokenizer, forms, args, device) if args.tower_seconds else []
    net.save(vision.tensors(model), args.out)  # the tower is not lost, whatever comes
    named = tower.word_ids(writer.tokenizer, device)
    facts["training"] = train(model, words, forms, named, args, device, args.started + args.minutes * 60)
    net.round_weights(model)
    facts["file_bytes"] = net.save(vision.tensors(model), args.out)
    for name in () if args.changed_only else FILES:
        if (args.checkpoint / name).resolve() != (args.out / name).resolve():
            shutil.copy(args.checkpoint / name, args.out / name)
    vision.write_settings(args.checkpoint, args.out)
    facts["device"] = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    facts["torch"], facts["transformers"] = torch.__version__, __import__("transformers").__version__
    facts["earlier_runs"] = known.get("runs", [])
    facts["in_all"] = history.in_all([*facts["earlier_runs"], facts])
    first = json.loads((pathlib.Path(__file__).parents[1] / "metrics.json").read_text("utf-8"))["training"]
    results = {"training": first | {"file_bytes": facts["file_bytes"]}, "vision": facts}
    failed = measured(model, results, args, device)
    shown = {k: v for k, v in results.items() if k not in ("samples", "training", "vision", "pictures")}
    print(json.dumps(shown), f"{time.time() - args.started:.0f} s in all", flush=True)
    if failed:
        raise SystemExit(f"the checkpoint is in {args.out}, but {failed} of its measurements failed (see above)")


if __name__ == "__main__":
    main()
