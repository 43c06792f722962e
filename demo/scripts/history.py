"""What earlier runs of train_vision.py did to a checkpoint, so that the figures of a continued one count them all."""

import json
import pathlib

from safetensors import safe_open

SUMMED = ("seconds", "steps", "text_tokens", "picture_rows")
RUN = ("tower", "training", "device", "torch", "transformers", "text_at_start")


def has_tower(checkpoint: pathlib.Path) -> bool:
    with safe_open(checkpoint / "model.safetensors", "pt") as file:
        return any(name.startswith("model.visual.") for name in file.keys())  # noqa: SIM118


def earlier(checkpoint: pathlib.Path) -> dict:
    """{"runs": earlier runs, oldest first; "text_before": losses before the first} of a checkpoint; {} without a tower.

    From the metrics.json in its folder, or in the folder above. SystemExit when neither tells.
    """
    if not has_tower(checkpoint):
        return {}
    for path in (checkpoint / "metrics.json", checkpoint.parent / "metrics.json"):
        facts = json.loads(path.read_text("utf-8")).get("vision") if path.exists() else None
        if facts:
            last = {name: facts[name] for name in RUN if name in facts}
            return {"runs": [*facts.get("earlier_runs", []), last], "text_before": facts["text_before"]}
    raise SystemExit(f"{checkpoint} has a tower, but no metrics.json in it or above it says how it was trained")


def in_all(runs: list[dict]) -> dict:
    """Sums over all runs; the tower's own steps and seconds are counted apart."""
    sums = {name: sum(run["training"][name] for run in runs) for name in SUMMED}
    alone = [run["tower"][-1] for run in runs if run["tower"]]
    sums |= {"tower_steps": sum(row[0] for row in alone), "tower_seconds": sum(row[1] for row in alone)}
    return {"runs": len(runs)} | {name: round(value, 1) for name, value in sums.items()}
