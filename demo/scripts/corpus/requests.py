"""How users ask for an image prompt: bare ideas, instructions, system prompts, short thinking."""

import random

from . import prompts

INSTRUCTIONS = [
    "Write an image prompt for: {idea}", "Write a detailed image prompt about {idea}", "Turn this idea into an image prompt: {idea}", "Image prompt: {idea}", "Prompt for {idea}", "Expand this idea: {idea}",
    "Expand this into a detailed prompt: {idea}", "Describe {idea} as a picture", "Describe an image of {idea}", "Create an image prompt: {idea}", "Make a prompt for an image of {idea}", "I want a picture of {idea}",
    "Please write a prompt for {idea}", "Can you write an image prompt about {idea}?", "Give me a detailed prompt for {idea}", "{idea}, detailed image prompt", "Help me describe {idea} for an image model",
    "Idea: {idea}", "Improve this prompt: {idea}", "Rewrite this as a rich image prompt: {idea}", "draw {idea}", "generate {idea}", "I need a vivid description of {idea}", "Write a text-to-image prompt. Subject: {idea}",
    "imagine {idea}", "show me {idea}", "Paint a picture with words: {idea}", "Write a prompt: {idea}", "Make this more detailed: {idea}",
]
SYSTEMS = [
    "You are a prompt engineer. Turn the user's idea into a detailed image prompt.", "You are a prompt engineer for image models.", "You write detailed image prompts.", "You are a helpful assistant.",
    "Expand the user's idea into one paragraph that describes an image.", "You are an expert at writing prompts for text-to-image models. Answer with the prompt only.",
    "You are a creative assistant that describes pictures in plain English.", "Rewrite every idea as a vivid image prompt of about 100 words.", "You are FastQwen, a small demo model.",
    "Describe the image in detail: subject, setting, light, style and mood.", "You are a film director. Describe the shot that the user asks for.", "You are a painter who plans pictures in words.",
]
THOUGHTS = [
    "The user wants an image prompt for {nouns}. I will describe the subject, the setting and {light}.", "The idea is {nouns}. I will keep these words, add a setting and use {light}.",
    "I need to describe {nouns}. The light will be {light}. I will finish with the mood.", "The main subject is {nouns}. A {style} fits well, with {light}.", "This is a short idea: {nouns}. I will make it one clear paragraph.",
]


def sample(rng: random.Random, extra: list[str]) -> dict:
    """One chat sample: {"system", "user", "thinking", "answer"} (system and thinking may be empty)."""
    idea = prompts.draw(rng, extra)
    text = prompts.idea_text(rng, idea)
    full = prompts.complete(rng, idea)
    answer, light = prompts.answer(rng, full)
    if rng.random() < 0.36:
        body = text.rstrip(".")
        user = rng.choice(INSTRUCTIONS).replace("{idea}", body)
    else:
        user = text
    system = rng.choice(SYSTEMS) if rng.random() < 0.15 else ""
    thinking = ""
    if rng.random() < 0.06:
        thinking = rng.choice(THOUGHTS).replace("{nouns}", idea.nouns()).replace("{light}", light).replace("A {style}", "The style of " + prompts.with_article(full.style))
    return {"system": system, "user": user, "thinking": thinking, "answer": answer}
