"""Drawn pictures for the demo's vision tower: what is in them, and their pixels.

A picture is a background colour and up to OBJECTS shapes, held as one row of FIELDS numbers, so that a whole batch is
drawn at once by torch wherever the numbers are. Places are fractions of width and height, radii of the shorter side.
"""

import random

import torch

COLOURS = {  # each is drawn as a mixture of its examples, plus a little jitter
    "red": ((255, 0, 0), (200, 25, 30), (230, 50, 50)),
    "orange": ((255, 165, 0), (255, 130, 10), (240, 140, 30)),
    "yellow": ((255, 255, 0), (250, 215, 30), (255, 235, 60)),
    "green": ((0, 255, 0), (0, 128, 0), (50, 170, 70)),
    "blue": ((0, 0, 255), (30, 80, 200), (50, 120, 240)),
    "purple": ((128, 0, 128), (130, 50, 190), (100, 30, 140)),
    "pink": ((255, 192, 203), (255, 130, 190), (250, 160, 200)),
    "brown": ((139, 69, 19), (110, 70, 40), (95, 55, 25)),
    "black": ((0, 0, 0), (25, 25, 25), (10, 10, 15)),
    "white": ((255, 255, 255), (240, 240, 240), (250, 248, 245)),
    "grey": ((128, 128, 128), (150, 150, 150), (110, 112, 115)),
}
SHAPES = ("circle", "square", "triangle", "star", "cross", "ring")
PART = 16  # added to the shape's number: drawn, but no answer names it as a shape
PLACES = (  # by row, then column
    "in the top left corner", "at the top", "in the top right corner",
    "on the left", "in the centre", "on the right",
    "in the bottom left corner", "at the bottom", "in the bottom right corner",
)  # fmt: skip
ZONES = ((0.17, 0.32), (0.42, 0.58), (0.68, 0.83))  # apart from each other, so that every place has one name
ROOMS = ((0.20, 0.24), (0.47, 0.53), (0.76, 0.80))  # for several shapes: none overlap, no two middles in one cell
OBJECTS, OBJECT_FIELDS = 6, 9  # shape + 1 (0: none), colour, r, g, b, x, y, radius, angle
FIELDS = 4 + OBJECTS * OBJECT_FIELDS  # background colour, r, g, b first
NAMES = tuple(COLOURS)


def paint(rng: random.Random, name: str) -> list[float]:
    """A shade of the named colour, 0..1."""
    weights = [rng.random() ** 2 for _ in COLOURS[name]]
    total = sum(weights)
    mixed = (sum(w * c[i] for w, c in zip(weights, COLOURS[name], strict=True)) / total for i in range(3))
    return [min(255.0, max(0.0, v + rng.uniform(-8, 8))) / 255 for v in mixed]


def thing(rng, shape: str, colour: str, x: float, y: float, radius: float, rgb=None, part=False) -> dict:
    """One object."""
    return {
        "shape": shape, "colour": colour, "x": x, "y": y, "radius": radius, "part": part,
        "angle": 0.0 if part else rng.uniform(-0.15, 0.15), "rgb": rgb or paint(rng, colour),
    }  # fmt: skip


def placed(rng, shape: str, colour: str, place: int, low: float, high: float, zones=ZONES, size=(1, 1)) -> dict:
    """An object in a named place of a picture of that height and width, as large as the border lets it be."""
    x, y = rng.uniform(*zones[place % 3]), rng.uniform(*zones[place // 3])
    limit = 1.1 * min(min(y, 1 - y) * size[0], min(x, 1 - x) * size[1]) / min(size)
    return thing(rng, shape, colour, x, y, max(0.7 * low, min(rng.uniform(low, high), limit))) | {"place": place}


def numbers(picture: dict) -> list[float]:
    """The picture {"background", "rgb", "objects"} as FIELDS numbers."""
    row = [float(NAMES.index(picture["background"])), *picture["rgb"]]
    for o in picture["objects"]:
        shape = SHAPES.index(o["shape"]) + 1 + (PART if o["part"] else 0)
        row += [float(shape), float(NAMES.index(o["colour"])), *o["rgb"], o["x"], o["y"], o["radius"], o["angle"]]
    return row + [0.0] * (FIELDS - len(row))


def plain(rng, colour: str) -> dict:
    return {"background": colour, "rgb": paint(rng, colour), "objects": []}


def distances(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """For every shape of radius 1 around 0: below 0 inside, else about the distance to its outline. y grows down."""
    ax, ay, r = x.abs(), y.abs(), torch.hypot(x, y)
    turn = 2 * torch.pi / 5
    angle = torch.atan2(x, -y)
    folded = (angle - turn * torch.round(angle / turn)).abs()
    return [
        r - 0.95,
        torch.maximum(ax, ay) - 0.8,
        torch.maximum(y, 0.866 * ax - 0.5 * y) - 0.58,
        0.923 * r * folded.sin() + 0.384 * (r * folded.cos() - 1.05),
        torch.minimum(torch.maximum(ax - 0.95, ay - 0.3), torch.maximum(ay - 0.95, ax - 0.3)),
        (r - 0.72).abs() - 0.22,
    ]


def templates(device, size: int = 96, reach: float = 1.3) -> torch.Tensor:
    """Distances of all shapes over -reach..reach, (SHAPES, size, size): a look-up costs a tenth of computing them."""
    line = torch.linspace(-reach, reach, size, device=device)
    return torch.stack(distances(line.view(1, -1).expand(size, -1), line.view(-1, 1).expand(-1, size)))


def render(rows: torch.Tensor, height: int, width: int, soft=1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels (N, 3, H, W) in 0..1 and the visible share of every object (N, OBJECTS, H, W).

    rows (N, FIELDS) float32; soft: width of the outlines in pixels, a number or (N, 1, 1).
    """
    side, reach = min(height, width), 1.3
    shapes = templates(rows.device, reach=reach).unsqueeze(1)
    pixels = rows[:, 1:4, None, None].expand(-1, -1, height, width)
    shares = []
    for k in range(OBJECTS):
        kind, _, *rgb, x, y, radius, angle = rows[:, 4 + k * OBJECT_FIELDS :][:, :OBJECT_FIELDS].unbind(1)
        scale = (radius * side).clamp_min(1e-3)
        cos, sin = angle.cos() / (scale * reach * 2), angle.sin() / (scale * reach * 2)
        right, down = (2 * x - 1) * width, (2 * y - 1) * height  # in half pixels, as affine_grid counts from the middle
        turn = torch.stack(
            [cos * width, sin * height, -cos * right - sin * down,
             -sin * width, cos * height, sin * right - cos * down], 1
        ).view(-1, 2, 3)  # fmt: skip
        at = torch.nn.functional.affine_grid(turn, (len(rows), 1, height, width), align_corners=False)
        which = (kind.long() % PART - 1).clamp_min(0)
        away = torch.nn.functional.grid_sample(shapes[which], at, padding_mode="border", align_corners=True)[:, 0]
        cover = (0.5 - away * scale.view(-1, 1, 1) / soft).clamp(0, 1) * (kind > 0).view(-1, 1, 1)
        colour = torch.stack(rgb, 1)[:, :, None, None]
        pixels = torch.lerp(pixels, colour, cover.unsqueeze(1))
        shares = [share * (1 - cover) for share in shares] + [cover]
    return pixels, torch.stack(shares, 1)


def worn(pixels: torch.Tensor, generator=None) -> torch.Tensor:
    """A little noise and a slope of brightness, in whole steps of 1/255."""
    count, _, height, width = pixels.shape
    draw = lambda *shape: torch.rand(shape, device=pixels.device, generator=generator)  # noqa: E731
    noise = torch.randn(pixels.shape, device=pixels.device, generator=generator) * draw(count, 1, 1, 1) * 0.02
    slope = (draw(count, 2, 1, 1) - 0.5) * 0.08
    rows = torch.linspace(-1, 1, height, device=pixels.device).view(1, 1, -1, 1)
    columns = torch.linspace(-1, 1, width, device=pixels.device).view(1, 1, 1, -1)
    changed = pixels * (1 + slope[:, :1] * rows + slope[:, 1:] * columns) + noise
    return (changed.clamp(0, 1) * 255).round() / 255


def cells(rows: torch.Tensor, shares: torch.Tensor) -> dict[str, torch.Tensor]:
    """What each 32 x 32 cell shows, as class numbers (N, H/32 * W/32); -100: not asked.

    colour and shape (the last class: no object), place (of the object's middle), middle (1: it lies in this cell).
    Of several objects the one that covers most, but a middle's cell shows the middle's object: a ring's may be bare.
    """
    pooled = torch.nn.functional.avg_pool2d(shares, 32)
    down, across = pooled.shape[2:]
    best, which = pooled.flatten(2).max(1)
    objects = rows[:, 4:].view(len(rows), OBJECTS, OBJECT_FIELDS)
    inside = (objects[..., 6] * down).long() * across + (objects[..., 5] * across).long()
    named = (objects[..., 0] > 0) & (objects[..., 0] < PART)
    inside = torch.where(named, inside.clamp(0, down * across - 1), down * across)  # a column more, cut off again
    put = lambda cell, value: torch.nn.functional.pad(cell, (0, 1)).scatter(1, inside, value)[:, :-1]  # noqa: E731
    middle = put(torch.zeros_like(which), torch.ones_like(inside))
    which = put(which, torch.arange(OBJECTS, device=rows.device).expand_as(inside))
    best = torch.where(middle == 1, 1.0, best)
    field = lambda i: objects[..., i].gather(1, which)  # noqa: E731
    empty, part = best < 0.04, field(0) > PART
    shape = torch.where(empty, len(SHAPES), field(0).long() % PART - 1).masked_fill(part & ~empty, -100)
    colour = torch.where(empty, len(NAMES), field(1).long())
    zone = lambda v: (v > 0.37).long() + (v > 0.63).long()  # noqa: E731
    place = (zone(field(6)) * 3 + zone(field(5))).masked_fill(empty | part, -100)
    return {"colour": colour, "shape": shape, "place": place, "middle": middle}
