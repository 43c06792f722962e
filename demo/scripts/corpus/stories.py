"""Story continuation: a first line, then a short story that keeps its name, place and problem."""

import random
import re

from . import words
from .render import capital, with_article

TRADES = [w for w in words.PEOPLE if w not in ("DJ", "hacker", "child", "student", "tourist", "gamer")]
HOMES = ["a village by the sea", "a town in the mountains", "a house at the edge of the forest", "a city of bridges", "a valley full of fog", "a street of crooked houses", "a harbour in the north", "a castle on a hill", "a small station in the desert"]
FINDS = ["an old key", "a silver coin", "a letter without a name", "a small blue egg", "a map drawn on cloth", "a clock that ran backwards", "a lantern that never went out", "a wooden flute", "a locked box", "a glass marble with a star inside", "a red umbrella", "a book with empty pages"]
HELPERS = ["a grey cat", "an old sailor", "a talking crow", "a small robot", "a girl with a drum", "a quiet fox", "the baker's son", "a tired horse", "a lost fairy", "a boy with a kite", "an owl with one eye", "a friendly ghost"]
WEATHER = ["It was raining.", "The wind was cold.", "Snow had begun to fall.", "The moon was bright.", "A thick fog lay over everything.", "The morning was clear and still.", "The sun was going down.", "The streets were empty."]
FIRST_LINES = ["{N} lived in {h}", "Once upon a time there was {t} named {N}", "{N} was {t} who lived in {h}", "One morning {N} found {f}", "The old clock stopped at midnight, and {N} woke up", "{N} had never seen the sea", "On the last day of winter, {N} opened the door",
               "There was {f} on the table when {N} came home", "Nobody believed {N}", "Long ago, in {h}, {t} named {N} could not sleep", "It was a dark night, and {N} was alone", "{N} and {k} walked through the rain", "{N} heard a strange sound", "A {w} appeared in front of {N}"]
ASK = ["Continue this story: {l}.", "Continue the story: {l}...", "Write a short story that begins: {l}.", "{l}... continue", "Finish this story: {l}.", "Tell me what happens next: {l}.", "Please continue: {l}.", "Story: {l}.", "Continue: {l}"]
TOPIC = ["Write a short story about {t} named {N}.", "Tell me a story about {t}.", "Write a story about {w}.", "Tell me a short story.", "Write a short bedtime story about {w}", "Story about {w} and {k}", "Tell a story about {N}"]
BEGIN = ["{W} {N} stood by the window and listened.", "{W} {N} could not forget it.", "{N} looked around, but nobody was there.", "{W} Something felt different that day.", "{N} took a deep breath and stepped outside.", "At first {N} thought it was a dream."]
TURN = ["On the ground lay {f}. {He} picked it up and held it close.", "Behind the gate {he} found {f}, half hidden in the grass.", "Then {he} saw {f}, shining in the dark.", "Under the old bridge there was {f}.", "{He} followed a line of footprints until {he} came to {f}.", "In {his} pocket {he} found {f}. {He} did not know how it got there."]
MEET = ['Just then {k} came down the road. "You should not go alone," {k2} said.', 'Soon {he} met {k}. "I know where that belongs," said {k2}.', '{K} was waiting at the corner. "Come with me," {k2} said. "We do not have much time."', '"Is anyone there?" asked {N}. {K} stepped out of the shadow and smiled.', '{N} asked {k} for help, and together they made a plan.']
TRAVEL = ["They walked all night, over the hill and past the mill.", "They crossed the river in a small boat.", "The path led them through a dark forest, where every tree seemed to listen.", "They climbed the stairs, one hundred steps, without a word.", "For three days they followed the road to the north.", "They went through a narrow door and down into a quiet hall."]
TROUBLE = ["At the top, the door was locked.", "Suddenly the light went out.", "A deep voice asked who was there.", "The bridge was broken, and the water was wild.", "{N} was afraid, but {he} did not turn back.", "A giant shadow moved across the wall."]
SOLVE = ["{N} held up {f2}, and the door opened.", "{N} remembered an old song and began to sing. Slowly the fear went away.", '"Now," whispered {k2}, and {N} ran as fast as {he} could.', "{He} placed {f2} on the stone, and a warm light filled the room.", "With the help of {k2}, {he} found a way across.", "{N} closed {his} eyes, counted to three and took one more step."]
CLOSE = ["When the sun came up, everything was quiet again. {N} smiled and went home.", "From that day on, {N} was never afraid of the dark.", "{N} kept {f2} on the shelf, and sometimes, at night, it still glowed.", "And if you walk past the house today, you can still hear {N} laugh.", "{N} and {k2} stayed friends for the rest of their lives.", "It was only a small thing, but it changed {N} forever.", "In the morning {N} told the whole town, and this time they listened."]


def _definite(phrase: str) -> str:
    return "the " + phrase.split(" ", 1)[1].split(" without")[0].split(" with ")[0].split(" that ")[0].split(" drawn")[0] if phrase.startswith(("a ", "an ")) else phrase


def _values(rng, extra) -> dict[str, str]:
    he = rng.choice(("he", "she"))
    noun = rng.choice(extra) if extra and rng.random() < 0.2 else rng.choice(words.ANIMALS + words.CREATURES + words.CREATURES) if rng.random() < 0.8 else words.made_up(rng)
    find, helper = rng.choice(FINDS), rng.choice(HELPERS)
    return {"{N}": words.proper_name(rng), "{t}": with_article(rng.choice(TRADES)), "{h}": rng.choice(HOMES), "{f}": find, "{f2}": _definite(find), "{k}": helper, "{k2}": _definite(helper), "{K}": capital(helper), "{W}": rng.choice(WEATHER),
            "{he}": he, "{He}": capital(he), "{his}": "his" if he == "he" else "her", "{w}": with_article(noun), "A {w}": capital(with_article(noun))}


def _fill(text: str, values: dict[str, str]) -> str:
    for key in sorted(values, key=len, reverse=True):
        text = text.replace(key, values[key])
    return text


def _sentences(text: str) -> str:
    return capital(re.sub(r'(?<![?]")([.?!]"? )the ', r"\1The ", text))


def sample(rng: random.Random, extra: list[str]) -> dict:
    """One chat sample: a story of 6 to 9 sentences."""
    values = _values(rng, extra)
    if rng.random() < 0.65:
        line = rng.choice(FIRST_LINES)
        user = _fill(rng.choice(ASK).replace("{l}", line), values)
        opening = []
    else:
        ask = rng.choice(TOPIC)
        user = _fill(ask, values)
        if "{w}" in ask:
            values |= {"{N}": "the " + values["{w}"].split(" ", 1)[1], "{he}": "it", "{He}": "It", "{his}": "its"}
        line = "Once upon a time, in {h}, there lived {w}. It was small but brave" if "{w}" in ask else "Once there was {t} named {N}, who lived in {h}"
        opening = [line + "."]
    found = "{f}" in line
    middle = [rng.choice(BEGIN), *([] if found else [rng.choice(TURN)]), *([] if "{k}" in line else [rng.choice(MEET)]), *rng.sample(TRAVEL, 1), rng.choice(TROUBLE), rng.choice(SOLVE)]
    parts = [_fill(p, values) for p in opening + middle + [rng.choice(CLOSE)]]
    return {"system": "You are a storyteller." if rng.random() < 0.08 else "", "user": user, "thinking": f"I will continue the story and keep {values['{N}']} as the main character." if rng.random() < 0.04 and values["{N}"] in user else "", "answer": _sentences(" ".join(parts))}
