"""Images through the whole model against transformers, float32 on a CPU: the tower, positions, logits, drafting.

Bounds as in tests/test_against_transformers.py: relative norm 2e-5, both sides float32 in other orders of summation.
"""

import pytest
import tiny_vision
import torch
from fastqwen.engine import GREEDY, SamplingSettings, load
from fastqwen.engine.session import Session
from fastqwen.model.images import image_patches
from fastqwen.model.video import Video
from fastqwen.model.vision import Grid
from fastqwen.mtp.head_drafts import HeadDrafts
from tiny_vision import IDS, picture

BOUND = 2e-5
PICTURES = [picture(24, 40, 1), picture(64, 16, 2), picture(13, 45, 3)]
MIXED = [
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "and"}, {"type": "image"},
                                 {"type": "video"}, {"type": "text", "text": "<|image_pad|> or"}, {"type": "image"}]},
]  # fmt: skip
CLIP = torch.stack([picture(24, 16, seed) for seed in range(10, 17)])


@pytest.fixture(scope="module")
def oracle():
    return tiny_vision.oracle()


@pytest.fixture(scope="module")
def engine(oracle, tmp_path_factory):
    return load(tiny_vision.save_folder(oracle, tmp_path_factory.mktemp("vision")), device="cpu")


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


def relative(found, wanted):
    return ((found - wanted).norm() / wanted.norm()).item()


def oracle_patches(rules, pictures):
    """(pixel_values, image_grid_thw) by transformers' own processor."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    processor = Qwen2VLImageProcessorPil(
        size=tiny_vision.SIZE, patch_size=rules.patch, merge_size=rules.merge, image_mean=rules.mean,
        image_std=rules.std,
    )  # fmt: skip
    done = processor([p.numpy() for p in pictures], input_data_format="channels_last", return_tensors="pt")
    return done["pixel_values"], done["image_grid_thw"]


def prepared(engine, prompt, images=(), videos=()):
    """(ids, embedded) of a prompt, and what transformers takes for it beside the images' pixels."""
    reply = engine.reply(prompt, images=images, videos=videos)
    embedded = reply.embed()
    ids = torch.tensor([reply.prompt_ids])
    kinds = (ids == IDS["<|image_pad|>"]).int() + 2 * (ids == IDS["<|video_pad|>"]).int()
    return reply.prompt_ids, embedded, {"input_ids": ids, "mm_token_type_ids": kinds}


def test_patches_and_grids_equal_the_processors(engine):
    rules = engine.vision.rules
    pixels, grids = oracle_patches(rules, PICTURES)
    found = [image_patches(p, tuple((g[1:] * rules.patch).tolist()), rules, engine.device)
             for p, g in zip(PICTURES, grids, strict=True)]  # fmt: skip
    # The same 8-bit levels; (x / 255 - mean) / std rounds differently, by a unit of float32 or two.
    assert (torch.cat(found) - pixels).abs().max() < 1e-6


def test_the_tower_equals_transformers_for_every_shape(oracle, engine):
    tower = engine.vision.tower()
    for seed, grid in enumerate([Grid(1, 2, 2), Grid(1, 6, 10), Grid(1, 16, 4), Grid(3, 4, 6)]):
        generator = torch.Generator().manual_seed(seed)
        patches = torch.randn(grid.frames * grid.rows * grid.columns, 96, generator=generator)
        wanted = oracle.model.visual(patches, grid_thw=torch.tensor([grid])).pooler_output
        assert relative(tower(patches, grid), wanted) < BOUND


def test_a_picture_gives_the_same_bits_alone_and_among_others(engine):
    _, together, _ = prepared(engine, "x", PICTURES)
    for image, (_, rows) in zip(PICTURES, together.spans, strict=True):
        assert torch.equal(prepared(engine, "x", [image])[1].spans[0][1], rows)


def test_positions_and_offset_equal_transformers_with_images_text_and_video(oracle, engine):
    ids, embedded, inputs = prepared(engine, MIXED, PICTURES, [(CLIP, 3.0)])
    _, grids = oracle_patches(engine.vision.rules, PICTURES)
    video = torch.tensor([[2, 6, 4]])  # 4 of 7 frames at 3 a second: two pairs of 24 x 16 pixels
    wanted, delta = oracle.model.get_rope_index(**inputs, image_grid_thw=grids, video_grid_thw=video)
    assert torch.equal(embedded.positions, wanted[:, 0])
    assert int(embedded.positions.max()) + 1 - len(ids) == int(delta)


def test_video_frames_get_their_times_and_replace_the_place_with_its_edges(engine):
    ids, *_ = prepared(engine, "x", [], [(CLIP, 3.0)])
    text = engine.tokenizer.decode_bytes([i for i in ids if i != IDS["<|video_pad|>"]]).decode()
    # Frames 0, 2, 4, 6 at 3 a second.
    edges = "<|vision_start|><|vision_end|>"
    assert f"user\n<0.3 seconds>{edges}<1.7 seconds>{edges}x<|im_end|>" in text
    assert ids.count(IDS["<|video_pad|>"]) == 2 * 6


@pytest.mark.parametrize("chunk", [512, 16])
@pytest.mark.parametrize("prompt,count", [("Say what", 1), (MIXED, 3)], ids=["one", "several"])
def test_logits_with_images_equal_transformers_and_so_does_decoding_behind_them(
    oracle, engine, monkeypatch, prompt, count, chunk
):
    """With 16 tokens a chunk, chunks end inside pictures."""
    monkeypatch.setattr(engine.trunk, "chunk", chunk)
    pictures, videos = PICTURES[:count], [(CLIP, 3.0)] if prompt is MIXED else []
    ids, embedded, inputs = prepared(engine, prompt, pictures, videos)
    pixels, grids = oracle_patches(engine.vision.rules, pictures)
    inputs |= {"pixel_values": pixels, "image_grid_thw": grids}
    if videos:
        inputs |= video_inputs(engine, *videos)
    after = [40, 41, 300, 7]
    inputs["input_ids"] = torch.tensor([ids + after])
    inputs["mm_token_type_ids"] = torch.cat(
        [inputs["mm_token_type_ids"], torch.zeros(1, len(after), dtype=torch.int)], 1
    )
    wanted = oracle(**inputs, use_cache=False).logits[0]

    session, hidden = Session(engine.trunk, len(ids) + len(after)), []
    session.prefill(ids, on_hidden=lambda e, h, p: hidden.append(h), pictures=embedded)
    assert relative(engine.trunk.logits(torch.cat(hidden)), wanted[: len(ids)]) < BOUND
    rows = []
    for token in after:
        rows.append(session.verify([token], [-1])[0])
        session.commit([0], [token])
    assert relative(torch.stack(rows), wanted[len(ids) :]) < BOUND


def video_inputs(engine, clip):
    from fastqwen.model.video import fit_video, video_patches

    video, rules = Video.of(*clip), engine.vision.rules
    size = fit_video(*video.frames.shape[:3], rules)
    patches = video_patches(video, size, rules, engine.device)
    grid = [len(video.seconds), size[0] // rules.patch, size[1] // rules.patch]
    return {"pixel_values_videos": patches, "video_grid_thw": torch.tensor([grid])}


def test_drafting_after_images_changes_no_text(engine, monkeypatch):
    monkeypatch.setattr(engine.trunk, "chunk", 16)
    options = {"images": PICTURES, "settings": GREEDY, "max_tokens": 16}
    plain = engine.generate("What is it?", mtp="off", **options)
    drafted = engine.generate("What is it?", mtp="2", **options)
    assert drafted.token_ids == plain.token_ids and len(plain.token_ids) > 8
    report = drafted.report
    assert report.image_tokens == 15 + 16 + 12 and report.prompt_tokens > report.image_tokens
    assert report.vision_seconds > 0 and report.image_seconds > 0
    assert any("43 of images" in line for line in report.lines())


def test_the_draft_head_sees_images_at_their_positions_across_chunks(engine, monkeypatch):
    """Its keys after a prompt in chunks of 16, against one call over all rows of the trunk's."""
    monkeypatch.setattr(engine.trunk, "chunk", 16)
    ids, embedded, _ = prepared(engine, "x", PICTURES)
    seen = []
    drafts = HeadDrafts(engine.mtp_head, engine.trunk, None, None, len(ids))

    def prompt(*rows):
        seen.append(rows)
        drafts.prompt(*rows)

    Session(engine.trunk, len(ids)).prefill(ids, on_hidden=prompt, pictures=embedded)
    embeddings, hidden = (torch.cat([rows[part] for rows in seen]) for part in (0, 1))
    first, rows = embedded.spans[1]
    assert torch.equal(embeddings[first : first + len(rows)], rows)
    cache = engine.mtp_head.new_cache(len(ids), kind="fp32", device=engine.device)
    engine.mtp_head.prefill(embeddings[1:], hidden[:-1], embedded.positions[:, :-1], cache=cache)
    found, wanted = drafts._cache.read(0, len(ids) - 1), cache.read(0, len(ids) - 1)
    assert relative(torch.stack(found), torch.stack(wanted)) < BOUND


@pytest.mark.gpu
@pytest.mark.parametrize("settings", [GREEDY, SamplingSettings(temperature=1.0, top_k=40)], ids=["greedy", "sampled"])
def test_rounds_on_the_device_decode_behind_images_as_the_host_does(oracle, tmp_path, settings):
    engine = load(tiny_vision.save_folder(oracle, tmp_path), device="cuda", dtype="fp32", kv="int8")
    options = {"images": PICTURES, "settings": settings, "max_tokens": 40, "seed": 3}
    found = {mtp: engine.generate("What is it?", mtp=mtp, **options).token_ids for mtp in ("off", "3", "auto")}
    assert engine.memory.is_shared, "no kernels took the passes"
    engine.memory._on_device = False
    wanted = engine.generate("What is it?", mtp="off", **options).token_ids
    assert set(found.values()) == {wanted}


@pytest.mark.gpu
def test_pictures_and_embeddings_on_a_gpu_are_those_of_the_cpu(oracle, engine, tmp_path):
    """Pixels bit by bit; the tower in fp32 within the rounding of its sums, TF32 being off by default."""
    there = load(tiny_vision.save_folder(oracle, tmp_path), device="cuda", dtype="fp32")
    for image, (_, rows) in zip(PICTURES, prepared(engine, "x", PICTURES)[1].spans, strict=True):
        _, embedded, _ = prepared(there, "x", [image])
        assert relative(embedded.spans[0][1].cpu(), rows) < BOUND
    noise, rules = picture(50, 90, 4), engine.vision.rules
    ours = image_patches(noise, (40, 104), rules, there.device).cpu()
    assert torch.equal(ours, image_patches(noise, (40, 104), rules, engine.device))
