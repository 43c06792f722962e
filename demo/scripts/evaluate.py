"""Measures a trained demo network: held-out loss, MTP acceptance by level, unedited samples."""

import json
import math
import pathlib
import time

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

LEVELS = 4
LIMIT = 256  # new ids at most
SAMPLES = [  # (system, user, thinking)
    ("", "a fox in the snow", False),
    ("", "an old lighthouse keeper named Orla", False),
    ("", "two robots playing chess on the moon", False),
    ("", "watercolor of a blue teapot and a sleepy cat", False),
    ("", "zarnik beetle, desert, night", False),
    ("You are a prompt engineer. Turn the user's idea into a detailed image prompt.", "a market in the rain", False),
    ("", "List 5 ideas about a lantern", False),
    ("", "Continue this story: One morning Mara found an old key.", False),
    ("", "Write a Python function that checks if a number is even.", False),
    ("", "Count from 1 to 12", False),
    ("", "Explain quantum computing", False),
    ("", "a paper dragon above a city at night", True),
]


def render(system: str, user: str, thinking: bool) -> str:
    """The chat template's text for one request."""
    head = f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""
    return f"{head}<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n" + (
        "<think>\n" if thinking else "<think>\n\n</think>\n\n"
    )


def autocast(device):
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


@torch.no_grad()
def prose_loss(model, ids: np.ndarray, bytes_count: int, device) -> dict:
    """Next-token loss on held-out prose in windows of 512 ids, and bits per byte."""
    count = len(ids) // 512
    rows = torch.from_numpy(ids[: count * 512].astype(np.int64)).view(count, 512).to(device)
    rope, total = model.rotary(512, device), 0.0
    for part in rows.split(32):
        with autocast(device):
            logits = model.logits(model.hidden(part, rope)).float()
        total += F.cross_entropy(logits[:, :-1].flatten(0, 1), part[:, 1:].flatten(), reduction="sum").item()
    mean = total / (count * 511)
    return {
        "heldout_prose_loss": round(mean, 4),
        "heldout_prose_bits_per_byte": round(mean / math.log(2) * len(ids) / bytes_count, 4),
        "heldout_prose_ids": count * 512,
    }


@torch.no_grad()
def chat_loss(model, rows: np.ndarray, device) -> dict:
    """Loss and top-1 accuracy on the answers of unseen grammar samples."""
    from train import split

    ids, weights = split(torch.from_numpy(rows.view(np.int16)).to(device).int())
    rope, total, right, count = model.rotary(ids.shape[1], device), 0.0, 0, 0
    for part, weight in zip(ids.split(32), weights.split(32), strict=True):
        with autocast(device):
            logits = model.logits(model.hidden(part, rope)).float()[:, :-1]
        mask, target = weight[:, 1:] == 1, part[:, 1:]
        total += F.cross_entropy(logits[mask], target[mask], reduction="sum").item()
        right += int((logits.argmax(-1) == target)[mask].sum())
        count += int(mask.sum())
    return {"heldout_answer_loss": round(total / count, 4), "heldout_answer_accuracy": round(right / count, 4)}


def choose(logits: torch.Tensor, generator) -> torch.Tensor:
    """Ids by temperature 0.7, top-k 20, top-p 0.8; greedy without a generator. logits (B, V) float32."""
    if generator is None:
        return logits.argmax(-1)
    best, where = (logits / 0.7).topk(20, -1)
    chance = best.softmax(-1)
    chance = chance.masked_fill(chance.cumsum(-1) - chance > 0.8, 0)
    return where.gather(1, torch.multinomial(chance, 1, generator=generator))[:, 0]


@torch.no_grad()
def generate(
    model, prompts: list[list[int]], end_ids: tuple[int, ...], device, limit: int, generator=None
) -> list[list[int]]:
    """Continuations up to and with an end id, by whole forwards over right-padded rows (causal: padding is inert)."""
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    width = (int(lengths.max()) + limit + 63) // 64 * 64
    ids = torch.full((len(prompts), width), end_ids[-1], device=device)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = torch.tensor(prompt, device=device)
    alive, rope, at, every = (
        torch.ones(len(prompts), dtype=torch.bool, device=device),
        model.rotary(width, device),
        lengths.clone(),
        torch.arange(len(prompts), device=device),
    )
    for _ in range(limit):
        used = (int(at.max()) + 63) // 64 * 64
        with autocast(device):
            hidden = model.hidden(ids[:, :used], tuple(t[:, :used] for t in rope))
            logits = model.logits(hidden[every, at - 1]).float()
        new = choose(logits, generator)
        ids[every[alive], at[alive]] = new[alive]
        at += alive
        alive = alive & ~torch.isin(new, torch.tensor(end_ids, device=device))
        if not alive.any():
            break
    return [ids[i, lengths[i] : at[i]].tolist() for i in range(len(prompts))]


@torch.no_grad()
def acceptance(model, prompts: list[list[int]], answers: list[list[int]], device) -> dict:
    """How often level k of the head predicts the greedy text, given that the levels before it did.

    Recursion feeds the head's own post-norm state and the true ids; rows of all levels cover the whole text.
    """
    reached, hit = [0] * LEVELS, [0] * LEVELS
    for prompt, answer in zip(prompts, answers, strict=True):
        text = prompt + answer
        padded = text + [text[-1]] * (-len(text) % 64)
        ids = torch.tensor([padded], device=device)
        rope = model.rotary(len(padded), device)
        with autocast(device):
            hidden = model.hidden(ids, rope)
            alive = torch.ones(len(padded), dtype=torch.bool, device=device)
            alive[: len(prompt) - 1] = False
            for level in range(1, LEVELS + 1):
                hidden = model.draft(hidden, ids.roll(-level, 1), rope)
                right = model.logits(hidden).argmax(-1)[0] == ids.roll(-level - 1, 1)[0]
                alive[len(text) - level - 1 :] = False  # no true id there
                reached[level - 1] += int(alive.sum())
                alive = alive & right
                hit[level - 1] += int(alive.sum())
    rates = [round(h / max(r, 1), 4) for h, r in zip(hit, reached, strict=True)]
    return {
        "mtp_acceptance_by_level": rates,
        "mtp_tokens_per_pass_if_4_drafted": round(1 + sum(math.prod(rates[: k + 1]) for k in range(LEVELS)), 3),
        "mtp_positions": reached[0],
    }


def run(model, data: pathlib.Path, checkpoint: pathlib.Path, device, small: bool = False) -> dict:
    """All measurements as one dictionary."""
    started, facts = time.time(), json.loads((data / "eval.json").read_text("utf-8"))
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    ends = (tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>"))
    prose, chats = np.load(data / "heldout.npy"), np.load(data / "heldout_chat.npy")
    limit, count = (4, 2) if small else (LIMIT, 64)
    prose, chats = (prose[:1024], chats[:4]) if small else (prose, chats)
    share = len(prose) / len(np.load(data / "heldout.npy"))
    results = prose_loss(model, prose, max(1, int(facts["heldout_bytes"] * share)), device) | chat_loss(
        model, chats, device
    )
    prompts = [tokenizer.encode(t).ids for t in facts["requests"][:count]]
    answers = generate(model, prompts, ends, device, limit)
    results["greedy_ended_by_itself"] = round(sum(a[-1] in ends for a in answers) / len(answers), 4)
    results |= acceptance(model, prompts, answers, device)
    asked = [tokenizer.encode(render(*s)).ids for s in SAMPLES]
    texts = generate(model, asked, ends, device, limit, torch.Generator(device).manual_seed(0))
    results["samples"] = [
        {
            "system": s,
            "user": u,
            "thinking": t,
            "text": tokenizer.decode(ids, skip_special_tokens=True),
            "ended": ids[-1] in ends,
        }
        for (s, u, t), ids in zip(SAMPLES, texts, strict=True)
    ]
    results["evaluation_seconds"] = round(time.time() - started, 1)
    for sample in results["samples"]:
        print(f"--- {sample['user']}\n{sample['text']}", flush=True)
    return results
