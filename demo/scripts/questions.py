"""The words of questions and answers about drawn pictures; a turn is (question, answer, kind)."""

import json
import random

from pictures import COLOURS, PLACES, SHAPES

NUMBERS = ("one", "two", "three", "four", "five")
ORDINALS = ("first", "second", "third", "fourth")
BOTH = ("colour", "color")
# The prompts of `fastqwen caption --style`, word for word.
STYLES = {
    "short": "Describe this image in one short sentence. Write only the sentence.",
    "detailed": "Describe this image in one detailed paragraph: the subject, its surroundings, colours, light and "
    "composition. Write only the paragraph.",
    "tags": "List tags for this image: short lowercase descriptions of what is visible, separated by commas. "
    "Write only the tags.",
    "booru": "List booru tags for this image: lowercase tags as on an image board, separated by commas, the most "
    "important first. Write only the tags.",
    "json": 'Describe this image as a JSON object with the keys "caption" (one sentence) and "tags" (a list of short '
    "strings). Write only the JSON.",
}
DESCRIBE = (
    "", "Describe the picture.", "Describe this image.", "Describe the image.", "What do you see?",
    "Caption this image.", "Write a caption.", "What is in the picture?", "What is in this image?",
)  # fmt: skip


def a(word: str) -> str:
    return ("an " if word[0] in "aeiou" else "a ") + word


def upper(text: str) -> str:
    return text[0].upper() + text[1:]


def said(text: str) -> str:
    return upper(text) + "."


def captions(rng: random.Random, short: str, detailed: str, tags: list[str]) -> list[tuple[str, str, str]]:
    """One of the plain requests and one of the styles."""
    style = rng.choice(list(STYLES))
    answer = {
        "short": short,
        "detailed": detailed,
        "tags": ", ".join(tags),
        "booru": ", ".join(tag.replace(" ", "_") for tag in tags),
        "json": json.dumps({"caption": short, "tags": tags}),
    }[style]
    return [(rng.choice(DESCRIBE), short, "caption"), (STYLES[style], answer, "style")]


def ground_turn(rng, colour: str) -> tuple[str, str, str]:
    word = rng.choice(BOTH)
    asked = (f"What {word} is the background?", f"Which {word} is the background?", f"What is the background {word}?")
    return rng.choice(asked), said(colour), "background"


def colour_turn(rng, thing: dict, alone: bool) -> tuple[str, str, str]:
    """What is asked about by name is answered by name: the model then looks up what it has just written."""
    word, name = rng.choice(BOTH), thing["shape"]
    if alone and rng.random() < 0.5:
        asked = [f"What {word} is it?", f"What {word} is the shape?", f"Which {word} is the shape?"]
        return rng.choice(asked), said(thing["colour"]), "colour"
    asked = [f"What {word} is the {name}?", f"Which {word} is the {name}?", f"What is the {word} of the {name}?"]
    return rng.choice(asked), f"The {name} is {thing['colour']}.", "colour"


def place_turn(rng, thing: dict) -> tuple[str, str, str]:
    name = rng.choice((thing["shape"], f"{thing['colour']} {thing['shape']}"))
    asked = (f"Where is the {name}?", f"Where in the picture is the {name}?", f"Where in the image is the {name}?")
    return rng.choice(asked), f"The {name} is {PLACES[thing['place']]}.", "position"


def listed(parts: list[str]) -> str:
    return ", ".join(parts[:-1]) + " and " + parts[-1]


def by_place(rng, thing: dict) -> list[tuple[str, str, str]]:
    """What is at a place, its shape and its colour."""
    where, word = PLACES[thing["place"]], rng.choice(BOTH)
    return [
        (f"What is {where}?", f"{upper(a(thing['colour']))} {thing['shape']}.", "what is where"),
        (f"Which shape is {where}?", said(a(thing["shape"])), "shape"),
        (f"What {word} is the shape {where}?", said(thing["colour"]), "colour"),
    ]


def each_turns(rng, things: list[dict]) -> list[tuple[str, str, str]]:
    """Colours, places and shapes of all, in an order by chance: every name in the answer is a look-up of its own."""
    order = rng.sample(things, len(things))
    names = listed([f"the {t['shape']}" for t in order])
    colours = upper(listed([f"the {t['shape']} is {t['colour']}" for t in order])) + "."
    places = upper(listed([f"the {t['shape']} is {PLACES[t['place']]}" for t in order])) + "."
    asked = listed([t["colour"] for t in order])
    shapes = upper(listed([f"the {t['colour']} one is {a(t['shape'])}" for t in order])) + "."
    return [
        (f"What {rng.choice(BOTH)}s are {names}?", colours, "each"),
        (f"Where are {names}?", places, "each"),
        (f"Which shapes are {asked}?", shapes, "each"),
    ]


def yes_or_no(rng, things: list[dict]) -> list[tuple[str, str, str]]:
    """Is a shape there, and has it that colour: each as often yes as no. The answer says first what is seen."""
    shapes, one = [t["shape"] for t in things], rng.choice(things)
    present, same = rng.random() < 0.5, rng.random() < 0.5
    shape = rng.choice(shapes if present else [s for s in SHAPES if s not in shapes])
    near = [t["colour"] for t in things if t is not one]
    far = [c for c in COLOURS if c != one["colour"] and c not in near]
    # The other shapes' colours as often as all that are not there.
    colour = one["colour"] if same else rng.choice(near if near and rng.random() < 0.5 else far)
    seen = a(shapes[0]) if len(shapes) == 1 else listed([a(s) for s in shapes])
    end = lambda truth: "so yes." if truth else "so no."  # noqa: E731
    return [
        (f"Is there {a(shape)}?", f"There is {seen}, {end(present)}", "yes or no"),
        (f"Is the {one['shape']} {colour}?", f"The {one['shape']} is {one['colour']}, {end(same)}", "yes or no"),
    ]
