"""Several images or a video, and what is asked about their order."""

import random

import pictures
from pictures import COLOURS, SHAPES
from questions import BOTH, ORDINALS, a, said, upper

WAYS = {"from left to right": (0, 1), "from right to left": (0, -1), "down": (1, 1), "up": (1, -1)}


def sequence(rng: random.Random, count: int, video: bool | None = None) -> dict:
    """`count` images or temporal pairs of a video: colours, shapes or a place that change. One pair is a video."""
    video = count == 1 or (rng.random() < 0.6 if video is None else video)
    kind = rng.choice(("plain", "plain", "colour", "shape", "place"))
    steps = 2 * count if video else count
    if kind == "place":
        return moved(rng, count, steps, video)
    states = 2 if count == 1 else count
    names = rng.sample(SHAPES if kind == "shape" else list(COLOURS), states)
    turn = list(range(1, states)) if not video else cuts(rng, steps, states)
    which = [sum(step >= t for t in turn) for step in range(steps)]
    fixed = rng.choice([c for c in COLOURS if c not in names])
    shape, ground = rng.choice(SHAPES), rng.choice([c for c in COLOURS if c not in names and c != fixed])
    shots = []
    for name in names:
        picture = pictures.plain(rng, name if kind == "plain" else ground)
        if kind != "plain":
            outline, colour = (name, fixed) if kind == "shape" else (shape, name)
            picture["objects"] = [pictures.placed(rng, outline, colour, rng.choice((4, 4, 3, 5)), 0.18, 0.32)]
        shots.append(picture)
    frames = [shots[i] for i in which]
    return wrap(frames, video, turns_of(rng, kind, names, shape, count, video))


def cuts(rng: random.Random, steps: int, states: int) -> list[int]:
    """First frames of the second and later states: mostly at pairs of frames, sometimes inside one."""
    if steps == 2 or rng.random() < 0.3:
        return sorted(rng.sample(range(1, steps), states - 1))
    return [2 * i for i in range(1, states)] if states * 2 == steps else sorted(rng.sample(range(1, steps), states - 1))


def turns_of(rng, kind: str, names: list[str], shape: str, count: int, video: bool) -> list[tuple[str, str, str]]:
    """Questions about what comes when."""
    word = "shape" if kind == "shape" else rng.choice(BOTH)
    show = (lambda n: said(a(n))) if kind == "shape" else said
    last = (f"Which {word} is last?", f"What {word} is last?", f"Which {word} comes last?", f"What is the last {word}?")
    first = (f"Which {word} is first?", f"What {word} comes first?", f"What is the first {word}?")
    listed = ", ".join(names)
    turns = [
        (rng.choice(last), show(names[-1]), "last"),
        (rng.choice(last), show(names[-1]), "last"),
        (rng.choice(first), show(names[0]), "first"),
        (rng.choice((f"Name the {word}s in order.", f"Which {word}s do you see, in order?")), said(listed), "order"),
    ]
    if video:
        turns.append((f"Which {word} is at the end?", show(names[-1]), "last"))
        what = "picture" if kind == "plain" else "shape" if kind == "shape" else shape
        text = f"The {what} changes from {' to '.join(names)}."
        turns.append((rng.choice(("Describe the video.", "What happens in the video?", "")), text, "caption"))
    else:
        i = rng.randrange(count)
        noun = rng.choice(("picture", "image"))
        what = f"the {shape} in the {ORDINALS[i]} {noun}" if kind == "colour" else f"the {ORDINALS[i]} {noun}"
        asked = f"What shape is in {what}?" if kind == "shape" else f"What {word} is {what}?"
        turns.append((asked, show(names[i]), "which"))
        plain = kind == "plain"
        each = [f"{upper(ORDINALS[k])}: {n if plain else a(n) if kind == 'shape' else a(n) + ' ' + shape}" for k, n in
                enumerate(names)]  # fmt: skip
        turns.append(
            (rng.choice((f"Describe the {noun}s.", f"What is in each {noun}?", "")), ". ".join(each) + ".", "caption")
        )
    return turns


def moved(rng: random.Random, count: int, steps: int, video: bool) -> dict:
    """One shape on its way."""
    way = rng.choice(list(WAYS))
    axis, sign = WAYS[way]
    colour, ground = rng.sample(list(COLOURS), 2)
    shape, rgb, radius = rng.choice(SHAPES), pictures.paint(rng, colour), rng.uniform(0.14, 0.2)
    base, other = pictures.plain(rng, ground), rng.uniform(0.4, 0.6)
    ends = sorted((rng.uniform(0.18, 0.25), rng.uniform(0.75, 0.82)), reverse=sign < 0)
    frames = []
    for step in range(steps):
        along = ends[0] + (ends[1] - ends[0]) * step / max(1, steps - 1)
        x, y = (other, along) if axis else (along, other)
        frames.append(base | {"objects": [pictures.thing(rng, shape, colour, x, y, radius, rgb)]})
    names = {"from left to right": ("left", "right"), "from right to left": ("right", "left")}
    start, end = names.get(way, ("top", "bottom") if way == "down" else ("bottom", "top"))
    at = lambda word: f"{'On' if word in ('left', 'right') else 'At'} the {word}."  # noqa: E731
    turns = [
        (rng.choice((f"Which way does the {shape} move?", "Which way does it move?")), said(way), "direction"),
        (f"Where is the {shape} at the end?", at(end), "last"),
        (f"Where is the {shape} at the start?", at(start), "first"),
        rng.choice(
            (
                (f"What colour is the {shape}?", f"The {shape} is {colour}.", "colour"),
                ("What colour is it?", said(colour), "colour"),
            )
        ),
        (rng.choice(("Describe the video." if video else "Describe the pictures.", "What happens?", "")),
         f"{upper(a(colour))} {shape} moves {way}.", "caption"),
    ]  # fmt: skip
    return wrap(frames, video, turns)


def wrap(frames: list[dict], video: bool, turns) -> dict:
    pairs = list(zip(frames[::2], frames[1::2], strict=True)) if video else [(f, f) for f in frames]
    return {"frames": pairs, "video": video, "turns": turns}
