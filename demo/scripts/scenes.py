"""What the drawn pictures show and what is asked about them.

`sample(rng, form)` returns {"frames", "video", "turns"}: the pictures in order (`frames` per temporal pair of a video,
both of a pair; one per image otherwise) and (question, answer, kind) triples that all hold for them.
"""

import random

import pictures
from pictures import COLOURS, PLACES, SHAPES
from questions import (
    BOTH,
    NUMBERS,
    a,
    by_place,
    captions,
    colour_turn,
    each_turns,
    ground_turn,
    listed,
    place_turn,
    said,
    upper,
    yes_or_no,
)

SIZE = (128, 128)  # height, width in pixels
NARROW = 80  # a shorter side below it leaves less room: fewer and larger shapes, so that their outlines can be told
DICE = (0, 2, 4, 6, 8)  # these places lie farther apart than all nine, and have room for larger shapes


def single(rng: random.Random, size=SIZE) -> dict:
    """One shape on a plain ground."""
    colour, ground = rng.sample(list(COLOURS), 2)
    places = (3, 4, 5) if min(size) < NARROW else (0, 1, 1, 2, 3, 3, 4, 4, 5, 5, 6, 7, 7, 8)
    shape, place = rng.choice(SHAPES), rng.choice(places)
    thing = pictures.placed(rng, shape, colour, place, 0.24 if min(size) < NARROW else 0.18, 0.32, size=size)
    where = PLACES[place]
    short = f"{upper(a(colour))} {shape} {where} on {a(ground)} background."
    detailed = (
        f"The picture shows {a(colour)} {shape} {where}. The {shape} is {colour} and the background is plain {ground}."
    )
    tags = [f"{colour} {shape}", f"{ground} background", where.removeprefix("in the ").removeprefix("on the ")]
    tags[2] = tags[2].removeprefix("at the ")
    shape_asked = ("What shape is it?", "Which shape is this?", "What shape is in the picture?", "Name the shape.")
    turns = [
        colour_turn(rng, thing, True),
        (rng.choice(shape_asked), said(a(shape)), "shape"),
        (f"What shape is the {colour} object?", f"The {colour} object is {a(shape)}.", "shape"),
        place_turn(rng, thing),
        ground_turn(rng, ground),
        *yes_or_no(rng, [thing]),
        *captions(rng, short, detailed, tags),
    ]
    return {"pictures": [pictures.plain(rng, ground) | {"objects": [thing]}], "turns": turns}


def pair(rng: random.Random, size=SIZE) -> dict:
    """Two different shapes, side by side or one above the other."""
    ground, *colours = rng.sample(list(COLOURS), 3)
    narrow = min(size) < NARROW
    places = (3, 5) if narrow else rng.choice(((3, 5), (1, 7)))
    room = size[1 if places == (3, 5) else 0] / min(size)  # the way between them as a share of the shorter side
    radii = min(0.145 * room, 0.22), min(0.175 * room, 0.28)
    things = [
        pictures.placed(rng, shape, colour, place, *radii, size=size)
        for shape, colour, place in zip(rng.sample(SHAPES, 2), colours, places, strict=True)
    ]
    words = [f"{a(t['colour'])} {t['shape']} {PLACES[t['place']]}" for t in things]
    short = f"{upper(words[0])} and {words[1]}, on {a(ground)} background."
    detailed = f"The picture shows two shapes. There is {words[0]}. There is {words[1]}. The background is {ground}."
    tags = [*(f"{t['colour']} {t['shape']}" for t in things), f"{ground} background"]
    turns = [
        ("How many shapes are there?", "Two.", "count"),
        ground_turn(rng, ground),
        *yes_or_no(rng, things),
        *each_turns(rng, things),
        *captions(rng, short, detailed, tags),
    ]
    for one in things:
        turns += [
            colour_turn(rng, one, False),
            place_turn(rng, one),
            *by_place(rng, one),
            (f"Which shape is {one['colour']}?", f"The {one['colour']} shape is {a(one['shape'])}.", "shape"),
        ]
    rng.shuffle(things)
    return {"pictures": [pictures.plain(rng, ground) | {"objects": things}], "turns": turns}


def corners(rng: random.Random, size=SIZE) -> dict:
    """Three or four different shapes in the corners; two in a narrow picture."""
    if min(size) < NARROW:
        return pair(rng, size)
    ground, *colours = rng.sample(list(COLOURS), 5)
    places = sorted(rng.sample((0, 2, 6, 8), rng.choice((3, 4))))
    things = [
        pictures.placed(rng, shape, colour, place, 0.15, 0.175, size=size)
        for shape, colour, place in zip(rng.sample(SHAPES, 4), colours, places, strict=False)
    ]
    count = NUMBERS[len(things) - 1]
    words = listed([f"{a(t['colour'])} {t['shape']}" for t in things])
    where = listed([f"{a(t['colour'])} {t['shape']} {PLACES[t['place']]}" for t in things])
    tags = [*(f"{t['colour']} {t['shape']}" for t in things), f"{ground} background"]
    one, other = rng.sample(things, 2)
    turns = [
        ("How many shapes are there?", said(count), "count"),
        ground_turn(rng, ground),
        colour_turn(rng, one, False),
        place_turn(rng, other),
        *by_place(rng, one),
        *each_turns(rng, things),
        *yes_or_no(rng, things),
        *captions(rng, f"{upper(words)} on {a(ground)} background.", f"The picture shows {where}.", tags),
    ]
    return {"pictures": [pictures.plain(rng, ground) | {"objects": things}], "turns": turns}


def many(rng: random.Random, size=SIZE) -> dict:
    """One to five equal shapes."""
    colour, ground = rng.sample(list(COLOURS), 2)
    narrow = min(size) < NARROW
    shape, count = rng.choice(SHAPES), rng.randint(1, 3 if narrow else 5)
    dice = not narrow and (min(size) < SIZE[0] or rng.random() < 0.5)
    radii = (0.2, 0.26) if narrow else (0.13, 0.16) if dice else (0.1, 0.112)
    things = [
        pictures.placed(rng, shape, colour, place, *radii, pictures.ROOMS, size) | {"rgb": rgb}
        for rgb in [pictures.paint(rng, colour)]
        for place in rng.sample((3, 4, 5) if narrow else DICE if dice else range(9), count)
    ]
    be = "is" if count == 1 else "are"
    names = shape if count == 1 else "crosses" if shape == "cross" else shape + "s"
    text = f"{upper(NUMBERS[count - 1])} {colour} {names} on {a(ground)} background."
    plural = "crosses" if shape == "cross" else shape + "s"
    how = rng.choice(
        (f"How many {plural} are there?", f"How many {colour} {plural} are there?", f"Count the {plural}.")
    )
    tags = [f"{NUMBERS[count - 1]} {names}", colour, f"{ground} background"]
    detailed = f"The picture shows {NUMBERS[count - 1]} {colour} {names}. The background is plain {ground}."
    turns = [
        (how, said(NUMBERS[count - 1]), "count"),
        (how, said(NUMBERS[count - 1]), "count"),
        (f"What colour {be} the {names}?", f"The {names} {be} {colour}.", "colour"),
        *captions(rng, text, detailed, tags),
    ]
    return {"pictures": [pictures.plain(rng, ground) | {"objects": things}], "turns": turns}


def flat(rng: random.Random, size=SIZE) -> dict:
    """Nothing but a colour."""
    colour, word = rng.choice(list(COLOURS)), rng.choice(BOTH)
    asked = (f"What {word} is this?", f"What {word} is the picture?", f"Which {word} is it?", f"What {word} is it?")
    tags = [colour, f"{colour} background", "plain"]
    turns = [
        (rng.choice(asked), said(colour), "colour"),
        *captions(
            rng, f"A plain {colour} picture.", f"The whole picture is plain {colour}. There are no shapes.", tags
        ),
    ]
    return {"pictures": [pictures.plain(rng, colour)], "turns": turns}


def landscape(rng: random.Random, size=SIZE) -> dict:
    """Sky, ground, sun or moon, and a house or a fir tree."""
    night, x = rng.random() < 0.4, rng.uniform(0.35, 0.65)
    ground, floor = rng.choice((("green", "grass"), ("yellow", "sand"), ("white", "snow"), ("brown", "earth")))
    sky = "black" if night else "blue"
    light, name = ("white", "moon") if night else ("yellow", "sun")
    left = rng.random() < 0.5
    level, high = rng.uniform(0.6, 0.72), min(size) / size[0]  # a shorter side as a share of the height
    make = lambda *args, **more: pictures.thing(rng, *args, part=True, **more)  # noqa: E731
    things = [
        make("square", ground, 0.5, level + 1.6 * high, 2.0),
        make("circle", light, 0.17 if left else 0.83, 0.17, 0.11),
    ]
    house = rng.random() < 0.5
    if house:
        colour = rng.choice(("red", "orange", "purple", "pink", "grey"))
        things += [make("square", colour, x, level - 0.02 * high, 0.2)]
        things += [make("triangle", "brown", x, level - 0.25 * high, 0.28)]
    else:
        colour = "green" if ground != "green" else "brown"
        things += [make("square", "brown", x, level, 0.07)]
        things += [make("triangle", colour, x, level - y * high, r) for y, r in ((0.12, 0.2), (0.26, 0.16))]
    thing = "house" if house else "tree"
    what = f"{a(colour)} {thing}"
    side = "left" if left else "right"
    short = f"{upper(what)} on {ground} {floor} under {a(sky)} sky with {a(light)} {name}."
    detailed = f"The picture shows {what} in the middle. The ground is {ground} {floor}. The {name} is on the {side}."
    tags = [what.split(" ", 1)[1], f"{ground} {floor}", f"{sky} sky", name, "night" if night else "day"]
    turns = [
        (f"What colour is the {thing}?", f"The {thing} is {colour}.", "scene"),
        ("Is it day or night?", "Night." if night else "Day.", "scene"),
        (f"Where is the {name}?", f"The {name} is on the {side}.", "scene"),
        (rng.choice(("What is on the ground?", "What is the ground?")), said(floor), "scene"),
        *captions(rng, short, detailed, tags),
    ]
    return {"pictures": [pictures.plain(rng, sky) | {"objects": things}], "turns": turns}


# Shares of held-out questions and of training rows: telling two shapes apart takes more practice than its share.
STILL = ((single, 50, 24), (pair, 22, 30), (corners, 6, 20), (many, 12, 11), (flat, 6, 4), (landscape, 10, 11))


def still(rng: random.Random, kind=None, size=SIZE, practice: bool = False) -> dict:
    """One image of height x width pixels; both frames of its temporal pair are the same."""
    make = kind or rng.choices([row[0] for row in STILL], [row[2 if practice else 1] for row in STILL])[0]
    result = make(rng, size)
    return {"frames": [(p, p) for p in result["pictures"]], "video": False, "turns": result["turns"]}
