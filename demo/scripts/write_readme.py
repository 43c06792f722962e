"""Fills README.md's measured part from metrics.json, with no hand edits.

    python demo/scripts/write_readme.py METRICS_JSON SOURCES_JSON

Replaces everything below the line "<!-- measured -->" in demo/README.md.
"""

import json
import pathlib
import sys

MARK = "<!-- measured -->"


def training_lines(facts: dict) -> list[str]:
    """What the run was."""
    million = facts["tokens"] / 1e6
    return [
        "## The run",
        "",
        f"{facts['steps']:,} steps of {facts['batch_rows']} x {facts['row_ids']} ids in {facts['seconds']:.0f} s on "
        f"one {facts['device']} (torch {facts['torch']}, transformers {facts['transformers']}): "
        f"{million:.0f} M tokens seen, "
        f"{facts['unique_tokens'] / 1e6:.0f} M written by the grammars and cut from prose, "
        f"{facts['tokens_per_second'] / 1e3:.0f} k tokens/s. File: {facts['file_bytes'] / 2**20:.1f} MiB.",
        "",
    ]


def seeing_lines(facts: dict, seen: dict, now: dict) -> list[str]:
    """The second run, what it can name in pictures, and that the text did not suffer."""
    run, before = facts["in_all"], facts["text_before"]
    times = f" in {run['runs']} runs, each from the weights of the one before," if run["runs"] > 1 else ""
    answers = f"{before['heldout_answer_loss']} before, {now['heldout_answer_loss']} after"
    lines = [
        "## What taught it to see" if run["runs"] > 1 else "## The run that taught it to see",
        "",
        f"The tower alone for {run['tower_seconds']:.0f} s ({run['tower_steps']:,} steps), then {run['steps']:,} steps "
        f"in {run['seconds']:.0f} s{times} on one {facts['device']} (torch {facts['torch']}, transformers "
        f"{facts['transformers']}): {run['text_tokens'] / 1e6:.0f} M ids of text and "
        f"{run['picture_rows'] / 1e3:,.0f} k rows about pictures, all weights trained.",
        "",
        f"Held-out prose: {before['heldout_prose_loss']} nats per token before, {now['heldout_prose_loss']} after. "
        f"Answers of unseen grammar samples: {answers}.",
        "",
        "| asked about drawn pictures that training never saw | exactly right | questions |",
        "| --- | --- | --- |",
    ]
    for kind, (share, count) in sorted(seen["right_by_kind"].items(), key=lambda item: -item[1][1]):
        lines.append(f"| {kind} | {share:.1%} | {count} |")
    return [*lines, ""]


def measured_lines(data: dict) -> list[str]:
    """Losses, acceptance and endings."""
    levels = ", ".join(f"{rate:.0%}" for rate in data["mtp_acceptance_by_level"])
    return [
        "## Measured on the stored (bfloat16) weights: demo model, synthetic text",
        "",
        "| what | value |",
        "| --- | --- |",
        f"| loss on prose of packages held out whole (nats per token) | {data['heldout_prose_loss']} |",
        f"| the same, bits per byte | {data['heldout_prose_bits_per_byte']} |",
        f"| loss on answers of unseen grammar samples (nats per token) | {data['heldout_answer_loss']} |",
        f"| the same, most likely token right | {data['heldout_answer_accuracy']:.1%} |",
        f"| MTP levels 1 to 4 accepted, each given the ones before (greedy, 64 held-out requests) | {levels} |",
        f"| tokens per pass if four are always drafted | {data['mtp_tokens_per_pass_if_4_drafted']} |",
        f"| greedy answers that ended by themselves within 256 tokens | {data['greedy_ended_by_itself']:.0%} |",
        "",
    ]


def sample_lines(samples: list[dict]) -> list[str]:
    """All samples as they came, none left out."""
    lines = ["## Samples, unedited (temperature 0.7, top-k 20, top-p 0.8, one seed, none left out)", ""]
    for sample in samples:
        system = f" (system: {sample['system']})" if sample["system"] else ""
        thinking = ", thinking on" if sample["thinking"] else ""
        ended = "" if sample["ended"] else " (stopped at the limit)"
        lines += [f"**{sample['user']}**{system}{thinking}{ended}", "", "~~~text", sample["text"].strip(), "~~~", ""]
    return lines


def source_lines(sources: list[dict]) -> list[str]:
    """The table of text sources."""
    lines = [
        "## Plain text: packages, versions, licences",
        "",
        "| package | version | licence stated | characters | used for |",
    ]
    lines.append("| --- | --- | --- | --- | --- |")
    for source in sources:
        use = "evaluation only" if source["held_out"] else "training"
        row = (source["package"], source["version"], source["licence"], f"{source['characters']:,}", use)
        lines.append("| " + " | ".join(row) + " |")
    return lines


def main() -> None:
    metrics, sources = (json.loads(pathlib.Path(p).read_text("utf-8")) for p in sys.argv[1:3])
    path = pathlib.Path(__file__).parents[1] / "README.md"
    head = path.read_text("utf-8").split(MARK)[0]
    lines = [MARK, "", *training_lines(metrics["training"])]
    if "vision" in metrics:
        lines += seeing_lines(metrics["vision"], metrics["pictures"], metrics)
    lines += measured_lines(metrics)
    lines += [*sample_lines(metrics["samples"]), *source_lines(sources)]
    path.write_text(head + "\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
