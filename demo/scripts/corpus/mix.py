"""Which grammar writes the next sample, and how a sample becomes text with the chat template's exact layout."""

import random

from . import chat, code, lists, requests, stories

SHARES = {requests: 66, lists: 9, stories: 9, code: 7, chat: 9}
START, END, TEXT_END = "<|im_start|>", "<|im_end|>", "<|endoftext|>"


def draw(rng: random.Random, extra: list[str]) -> dict:
    """One chat sample of the training mix; `extra` are English words for unknown nouns."""
    grammar = rng.choices(list(SHARES), list(SHARES.values()))[0]
    return grammar.sample(rng, extra)


def layout(sample: dict) -> tuple[str, str]:
    """(text up to the answer, answer with its end token), equal to the chat template's output."""
    head = f"{START}system\n{sample['system'].strip()}{END}\n" if sample["system"] else ""
    head += f"{START}user\n{sample['user'].strip()}{END}\n{START}assistant\n"
    if sample["thinking"]:
        return head + "<think>\n", sample["thinking"] + "\n</think>\n\n" + sample["answer"] + END
    return head + "<think>\n\n</think>\n\n", sample["answer"] + END


def two_turns(first: dict, second: dict) -> tuple[str, str]:
    """Both samples as one conversation; the earlier answer has no thinking block, as in the chat template."""
    head = f"{START}user\n{first['user'].strip()}{END}\n{START}assistant\n{first['answer']}{END}\n"
    before, answer = layout(second | {"system": ""})
    return head + before, answer
