"""The pictures that teach the demo to see: every answer can be read off the pixels."""

import importlib
import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from fastqwen.engine import load
from fastqwen.engine.session import Session
from safetensors.torch import save_file

SCRIPTS = Path(__file__).resolve().parent.parent / "demo" / "scripts"
HEIGHT, WIDTH = 96, 128
NAMES = ("pictures", "scenes", "moving", "questions", "picture_data", "picture_rows", "history")


@pytest.fixture(scope="module")
def scripts():
    """The training scripts as modules; they import each other by their plain names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        yield {name: importlib.import_module(name) for name in NAMES}


def drawn(scripts, pictures):
    pixels, shares = scripts["pictures"].render(
        torch.tensor([scripts["pictures"].numbers(picture) for picture in pictures]), HEIGHT, WIDTH
    )
    return pixels, shares


def nearest(scripts, pixel):
    """The colour whose examples' mixtures come nearest; the examples are dense enough for their own mixtures."""
    best = {}
    for name, examples in scripts["pictures"].COLOURS.items():
        points = torch.tensor(examples).float() / 255
        mixed = torch.cat([points, (points + points.roll(1, 0)) / 2, points.mean(0, keepdim=True)])
        best[name] = float((mixed - pixel).norm(dim=1).min())
    return min(best, key=best.get)


def answers(sample, *kinds):
    return {kind: answer.rstrip(".").lower() for _, answer, kind in sample["turns"] if kind in kinds}


def test_the_named_colours_are_at_the_objects_and_the_corner_opposite(scripts):
    rng = random.Random(1)
    samples = [scripts["scenes"].still(rng, scripts["scenes"].single) for _ in range(60)]
    pictures = [sample["frames"][0][0] for sample in samples]
    pixels, shares = drawn(scripts, pictures)
    for picture, sample, image, share in zip(pictures, samples, pixels, shares, strict=True):
        said = answers(sample, "colour", "background", "shape", "position")
        inside, outside = share[0] == 1, share[0] == 0
        assert nearest(scripts, image[:, inside].mean(1)) == said["colour"].split()[-1]
        assert nearest(scripts, image[:, outside].mean(1)) == said["background"]
        assert said["shape"].endswith(picture["objects"][0]["shape"])


def test_the_named_place_is_where_the_object_lies(scripts):
    rng, places = random.Random(2), scripts["pictures"].PLACES
    samples = [scripts["scenes"].still(rng, scripts["scenes"].single) for _ in range(60)]
    _, shares = drawn(scripts, [sample["frames"][0][0] for sample in samples])
    third = lambda value: 0 if value < 0.37 else 2 if value > 0.63 else 1  # noqa: E731
    for sample, share in zip(samples, shares[:, 0], strict=True):
        rows, columns = torch.nonzero(share > 0.5, as_tuple=True)
        y, x = (rows.float().mean() + 0.5) / HEIGHT, (columns.float().mean() + 0.5) / WIDTH
        assert answers(sample, "position")["position"].endswith(" is " + places[3 * third(y) + third(x)])


def test_shapes_differ_as_their_names_say(scripts):
    """A square fills its box, a triangle half of it, a ring has a hole, a star and a cross less than a circle."""
    shapes, rng = scripts["pictures"].SHAPES, random.Random(3)
    pictures = [
        scripts["pictures"].plain(rng, "white")
        | {"objects": [scripts["pictures"].thing(rng, shape, "red", 0.5, 0.5, 0.4) | {"angle": 0.0}]}
        for shape in shapes
    ]
    _, shares = drawn(scripts, pictures)
    filled, middle = {}, {}
    for shape, share in zip(shapes, shares[:, 0], strict=True):
        rows, columns = torch.nonzero(share > 0.5, as_tuple=True)
        box = (rows.max() - rows.min() + 1) * (columns.max() - columns.min() + 1)
        filled[shape], middle[shape] = float(len(rows) / box), float(share[HEIGHT // 2, WIDTH // 2])
    assert middle == {shape: 0.0 if shape == "ring" else 1.0 for shape in shapes}
    # Exact areas: 1, pi/4, 1/2, 0.53 (arms of 0.6 in a box of 1.9), 0.39 for the star; rows of pixels add some 0.02.
    wanted = {"square": 1, "circle": 0.785, "triangle": 0.5, "cross": 0.53, "star": 0.39}
    assert {shape: filled[shape] for shape in wanted} == pytest.approx(wanted, abs=0.05)


def test_the_ground_of_a_landscape_fills_the_lower_edge_in_every_form(scripts):
    for name in ("square", "wide", "taller", "flat"):
        form = scripts["picture_data"].FORMS[name]
        size, rng = (form.rows * 16, form.columns * 16), random.Random(6)
        samples = [scripts["scenes"].still(rng, scripts["scenes"].landscape, size) for _ in range(8)]
        rows = torch.tensor([scripts["pictures"].numbers(sample["frames"][0][0]) for sample in samples])
        _, shares = scripts["pictures"].render(rows, *size)
        ground = shares[:, 0]
        assert (ground[:, -1] == 1).all() and (ground[:, : size[0] // 2] == 0).all(), name


def test_yes_and_no_hold_for_the_pictures_and_are_as_frequent(scripts):
    rng, said = random.Random(7), []
    for make in (scripts["scenes"].single, scripts["scenes"].pair):
        for _ in range(100):
            sample = scripts["scenes"].still(rng, make)
            objects = sample["frames"][0][0]["objects"]
            facts = {(o["shape"], o["colour"]) for o in objects}
            for question, answer, kind in sample["turns"]:
                if kind != "yes or no":
                    continue
                words = question.rstrip("?").split()
                if words[1] == "there":
                    truth = words[-1] in {shape for shape, _ in facts}
                else:
                    truth = (words[2], words[3]) in facts
                assert answer.endswith("so yes." if truth else "so no."), (question, answer, facts)
                said.append(truth)
    assert 0.4 < sum(said) / len(said) < 0.6  # 400 fair coins: 4 standard deviations


def test_a_count_is_the_number_of_middles_in_the_cells(scripts):
    rng = random.Random(4)
    samples = [scripts["scenes"].still(rng, scripts["scenes"].many) for _ in range(40)]
    pictures = [sample["frames"][0][0] for sample in samples]
    rows = torch.tensor([scripts["pictures"].numbers(picture) for picture in pictures])
    middles = scripts["pictures"].cells(rows, drawn(scripts, pictures)[1])["middle"].sum(1)
    words = [scripts["questions"].NUMBERS.index(answers(sample, "count")["count"]) + 1 for sample in samples]
    assert middles.tolist() == words


def test_a_cell_with_a_middle_shows_the_middles_object_though_a_rings_is_bare(scripts):
    maker, rng = scripts["pictures"], random.Random(8)
    ring = maker.thing(rng, "ring", "red", 0.55, 0.6, 0.45)
    shown = torch.tensor([maker.numbers(maker.plain(rng, "white") | {"objects": [ring]})])
    _, shares = maker.render(shown, 128, 128)
    cells, middle = maker.cells(shown, shares), 2 * 4 + 2
    assert shares[0, 0, 77, 70] == 0 and cells["middle"][0].nonzero().tolist() == [[middle]]
    assert cells["shape"][0, middle] == maker.SHAPES.index("ring")
    assert cells["colour"][0, middle] == maker.NAMES.index("red")


def test_shapes_of_one_picture_do_not_touch(scripts):
    """In every form: two at once would look like another shape, or hide a part of one."""
    for name in ("square", "wide", "taller", "flat"):
        form = scripts["picture_data"].FORMS[name]
        size, rng = (form.rows * 16, form.columns * 16), random.Random(9)
        for make in (scripts["scenes"].pair, scripts["scenes"].corners, scripts["scenes"].many):
            samples = [scripts["scenes"].still(rng, make, size) for _ in range(6)]
            rows = torch.tensor([scripts["pictures"].numbers(sample["frames"][0][0]) for sample in samples])
            _, shares = scripts["pictures"].render(rows, *size)
            # A later shape takes its share from the ones below it: a full one and the same drawn alone differ then.
            for row, seen in zip(rows, shares, strict=True):
                for k in range(scripts["pictures"].OBJECTS):
                    at = 4 + k * scripts["pictures"].OBJECT_FIELDS
                    alone = torch.zeros_like(row)
                    alone[4 : 4 + scripts["pictures"].OBJECT_FIELDS] = row[at : at + scripts["pictures"].OBJECT_FIELDS]
                    cover = scripts["pictures"].render(alone[None], *size)[1][0, 0]
                    assert (cover - seen[k]).sum() <= 0.02 * cover.sum(), (name, make.__name__)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_first_and_last_are_the_first_and_last_frames_colours(scripts, count):
    rng, checked = random.Random(count), 0
    while checked < 12:
        sample = scripts["moving"].sequence(rng, count)
        frames = [frame for pair in sample["frames"] for frame in pair]
        said = answers(sample, "first", "last")
        if any(frame["objects"] for frame in frames):
            continue
        pixels, _ = drawn(scripts, [frames[0], frames[-1]])
        assert [nearest(scripts, image.mean((1, 2))) for image in pixels] == [said["first"], said["last"]]
        checked += 1


def test_positions_step_over_a_picture_by_its_longer_side(scripts):
    form = scripts["picture_data"].Form(1, 4, 8, 16, False, 1)  # 2 x 4 cells
    pads = np.array([False] * 2 + [True] * 8 + [False] * 2)
    time, row, column = scripts["picture_data"].positions(pads, form).tolist()
    assert time == [0, 1, *[2] * 8, 6, 7]
    assert row == [0, 1, *[2] * 4, *[3] * 4, 6, 7]
    assert column == [0, 1, *[2, 3, 4, 5] * 2, 6, 7]


def test_a_row_holds_a_cell_for_every_pad_and_ends_its_answer(scripts):
    data = scripts["picture_data"]
    for name in ("wide", "two"):
        form = data.FORMS[name]
        arrays = data.collect(SCRIPTS.parent / "checkpoint", form, 5, 8, 1)
        ids = arrays["ids"].astype(int)
        pads = np.isin(ids & 0x0FFF, data.Writer(SCRIPTS.parent / "checkpoint").pads)
        assert (pads.sum(1) == form.count * form.cells).all()
        assert arrays["drawn"].shape[1:3] == (form.count, 2 if form.moving else 1)
        assert ((ids & data.ANSWER > 0).sum(1) > 2).all() and not (pads & (ids & data.ANSWER > 0)).any()


def test_an_answer_weighs_less_an_id_the_longer_it_is(scripts):
    answer = torch.tensor([[0, 1, 1, 0, 1] + [1] * 19 + [0], [1] * 4 + [0] * 20 + [1]]).bool()
    weights = scripts["picture_rows"].answer_weights(answer)
    assert (weights[~answer] == 0).all()
    assert weights[0, 1:3].tolist() == [1, 1] and weights[1, :4].tolist() == [1] * 4 and weights[1, -1] == 1
    assert weights[0, 4:24].tolist() == pytest.approx([0.5] * 20)


def test_the_figures_of_a_continued_training_count_every_run(scripts, tmp_path):
    history, run = scripts["history"], {"seconds": 300.5, "steps": 10, "text_tokens": 7, "picture_rows": 20}
    assert history.earlier(checkpoint_with(tmp_path, "text")) == {}
    seeing = checkpoint_with(tmp_path, "seeing", "model.visual.pos_embed.weight")
    with pytest.raises(SystemExit, match="says how it was trained"):
        history.earlier(seeing)
    losses = {"heldout_prose_loss": 3.0}
    facts = {"tower": [[5, 59.5, 0.9, {}]], "training": run, "text_before": losses, "device": "one"}
    (seeing / "metrics.json").write_text(json.dumps({"vision": facts}))
    known = history.earlier(seeing)
    assert known["text_before"] == losses
    total = history.in_all([*known["runs"], {"tower": [], "training": run}])
    assert total == {"runs": 2, "seconds": 601.0, "steps": 20, "text_tokens": 14, "picture_rows": 40,
                     "tower_steps": 5, "tower_seconds": 59.5}  # fmt: skip
    (seeing / "metrics.json").write_text(json.dumps({"vision": facts | {"earlier_runs": known["runs"]}}))
    assert len(history.earlier(seeing)["runs"]) == 2


def checkpoint_with(folder, name, *more):
    """A checkpoint's file with one text tensor, and `more`."""
    (folder / name).mkdir()
    save_file({key: torch.zeros(1) for key in ("model.norm.weight", *more)}, folder / name / "model.safetensors")
    return folder / name


def engine_logits(engine, **given):
    """(ids, logits [T, V]) of a prompt with pictures."""
    reply, hidden = engine.reply("Which colour is last?", **given), []
    ids = reply.prompt_ids
    with torch.inference_mode():
        Session(engine.trunk, len(ids)).prefill(ids, on_hidden=lambda e, h, p: hidden.append(h), pictures=reply.embed())
        return ids, engine.trunk.logits(torch.cat(hidden))


def test_the_network_that_is_trained_is_the_model_that_the_engine_runs(scripts, tmp_path):
    """Logits behind two images and behind a clip, through the checkpoint that training writes."""
    net, vision = (importlib.import_module(name) for name in ("network", "vision"))
    data, source = scripts["picture_data"], SCRIPTS.parent / "checkpoint"
    torch.manual_seed(0)
    model = vision.build(source)
    net.round_weights(model)
    net.save(vision.tensors(model), tmp_path)
    vision.write_settings(source, tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(source / name, tmp_path)
    engine, form = load(tmp_path, device="cpu"), data.FORMS["two"]
    assert engine.mtp_head is not None and engine.config.vision is not None
    frames = [frame for pair in data.moving.sequence(random.Random(5), 2, True)["frames"] for frame in pair]
    rows = torch.tensor([scripts["pictures"].numbers(frame) for frame in frames])
    pixels = (scripts["pictures"].render(rows, 128, 128)[0] * 255).round() / 255
    shown = pixels.permute(0, 2, 3, 1)
    for given, seen in (
        ({"images": list(shown[::2])}, pixels[::2, None]),
        ({"videos": [(shown, 2.0)]}, pixels.view(2, 2, 3, 128, 128)),
    ):
        ids, found = engine_logits(engine, **given)
        padded = np.array(ids + [0] * (-len(ids) % 64))
        pads = np.isin(padded, data.Writer(source).pads)
        places = torch.from_numpy(data.positions(pads, form))[None]
        where, grid = torch.from_numpy(pads.nonzero()[0]), vision.Grid(form.rows, form.columns, "cpu")
        with torch.no_grad():
            embedded = model.embed_all(torch.from_numpy(padded)[None], vision.patches_of(seen), where, grid)
            wanted = model.logits(model.states(embedded, model.turned(places)))[0, : len(ids)]
        # Both float32, summed in other orders, as in tests/test_against_transformers.py.
        assert (found - wanted).norm() / wanted.norm() < 2e-5
