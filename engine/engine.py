"""A loaded model that replies: prompt in, streamed text and a report out."""

import functools
from collections.abc import Callable, Sequence

import torch

from ..attention import cache_bytes, capacity_class, tokens_within
from ..kernels.rounds import STOPS
from ..kernels.sampling import supports
from ..model.chat import ChatTemplate
from ..model.family import FULL
from ..model.tokenizer import Tokenizer
from ..model.trunk import Trunk
from ..model.video import SAMPLE_FPS
from ..mtp.drafts import NoDrafts
from ..mtp.estimates import Costs, Statistics
from ..mtp.head import MtpHead
from ..mtp.head_drafts import HeadDrafts
from ..mtp.planner import Fixed, Planner
from ..mtp.planner import name as tree_name
from ..mtp.tree import OFF, Tree
from ..weights import FastQwenError
from .device_check import round_kernels
from .device_model import DeviceModel
from .device_passes import DevicePasses
from .media import Embedded, Media, Vision, place
from .passes import HostPasses, Passes
from .reply import Reply, Result
from .report import Meter, Progress
from .sampling import Sampler, SamplingSettings
from .session import Session
from .text import ReplyText, stop_texts

# Of the free memory of a GPU that keys and values may take: a prompt's chunks and workspaces need the rest.
FREE_SHARE = 0.8
NO_TOWER = "the checkpoint has no vision tower (tensors 'model.visual.*'); use one that has, or give text only."
MTP_CHOICES = ("auto", "off", "2", "3", "4", "5")
OnStep = Callable[[Progress], bool | None]


def check_request(*, max_tokens: int, stop: str | Sequence[str], mtp: str | Tree) -> None:
    """Raises FastQwenError for a value that no model accepts, so a caller can ask before it loads one."""
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
        raise FastQwenError(f"max_tokens is {max_tokens!r}: set a whole number of at least 1.")
    if not isinstance(mtp, Tree) and str(mtp) not in MTP_CHOICES:
        raise FastQwenError(f"mtp is {mtp!r}: use one of {', '.join(MTP_CHOICES)}.")
    stop_texts(stop)


class Engine:
    """One loaded model. Replies run one at a time.

    notes    what a user should know about this checkpoint, one sentence each; every report carries them
    graphs   on a GPU, passes are captured once and replayed; never changes the text
    context  prompt and reply together are at most so many tokens; default and maximum: what the model was made for
    vision   what images and videos need; None where the checkpoint has none, and no_vision says why
    """

    def __init__(
        self,
        trunk: Trunk,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        *,
        mtp_head: MtpHead | None = None,
        notes: Sequence[str] = (),
        graphs: bool = True,
        context: int | None = None,
        vision: Vision | None = None,
        no_vision: str = NO_TOWER,
    ):
        self.trunk, self.tokenizer, self.template, self.mtp_head = trunk, tokenizer, template, mtp_head
        self.config, self.device = trunk.config, trunk.device
        self.notes = tuple(notes)
        self.vision, self._no_vision = vision, no_vision
        self._statistics: dict[object, Statistics] = {}
        self._costs = Costs()
        self._graphs = graphs
        self.context = min(context or self.config.max_positions, self.config.max_positions)
        self._device_model: DeviceModel | None = None
        self._on_device = trunk.device.type == "cuda"
        # On a CPU the number of threads can change how a sum is split, and so the last bit of a logit.
        self.threads = torch.get_num_threads()

    def reply(
        self,
        prompt: str | Sequence[dict],
        *,
        images: Sequence = (),
        videos: Sequence = (),
        image_pixels: int | None = None,
        pixel_budget: int | None = None,
        video_fps: float | None = SAMPLE_FPS,
        system: str | None = None,
        thinking: bool = False,
        template: bool = True,
        settings: SamplingSettings | None = None,
        seed: int = 0,
        max_tokens: int = 512,
        stop: Sequence[str] = (),
        mtp: str | Tree = "auto",
        on_step: OnStep | None = None,
    ) -> "Reply":
        """A reply to one user text, or to a list of {"role", "content"} messages. Nothing runs until it is iterated.

        images      paths, or tensors [H, W, C] or [B, H, W, C], uint8 or floats from 0 to 1; before a string's text, or
                    in the {"type": "image"} parts of messages, in order
        videos      paths, Videos, or (tensor [F, H, W, C], frames a second), behind the images; see model/video.py
        image_pixels, pixel_budget  an image, and all of them together, are reduced to so many pixels (engine/media.py)
        video_fps   frames taken of a second of a video; None takes all, up to 768
        system      system prompt, put first
        thinking    let the model reason before it answers
        template    False sends the text as it is, special tokens included, without a chat template
        settings    how tokens are chosen; default SamplingSettings()
        seed        same seed, prompt and settings: same text
        max_tokens  at most this many new tokens
        stop        texts that end the answer; they are not part of it
        mtp         "auto", "off", a draft depth or one draft tree for every pass; never changes the text
        on_step     called after every prefill chunk and every pass; True ends the reply there
        Raises FastQwenError for a value out of range or a prompt that does not fit the context.
        """
        check_request(max_tokens=max_tokens, stop=stop, mtp=mtp)
        media = self._media(images, videos, image_pixels, pixel_budget, video_fps)
        ids = self._prompt_ids(prompt, media, system, thinking, template, max_tokens)
        mtp = mtp if isinstance(mtp, Tree) else str(mtp)
        label = tree_name(mtp) if isinstance(mtp, Tree) else mtp
        meter = Meter(self.device, notes=[*self.notes, *self._call_notes(label)])
        sampler = Sampler(settings or SamplingSettings(), seed, min(self.tokenizer.size, self.config.vocab_size))
        capacity = min(self.context, len(ids) + max_tokens)
        text = ReplyText(self.tokenizer, thinking=thinking and template, stop=stop)
        if self.mtp_head is None:
            mtp = label = "off"
        meter.mtp = label
        if media is not None:
            meter.image_tokens = media.tokens
            meter.notes += media.notes
        on_step = on_step or (lambda progress: None)
        passes = functools.partial(self._passes, mtp, sampler, capacity, max_tokens, on_step)
        stop_ids = frozenset(self.tokenizer.stop_ids)
        embed = media and functools.partial(self._embed, media, meter, on_step)
        return Reply(
            ids, text, meter, passes, stop_ids=stop_ids, max_tokens=max_tokens, on_step=on_step, embed=embed
        )  # fmt: skip

    def generate(self, prompt, **options) -> Result:
        """`reply(...)`, run to its end."""
        return self.reply(prompt, **options).result()

    def free(self):
        """Gives back what replies share on a GPU: keys and values, states, workspaces and captured graphs. The next
        reply makes them again. The vision tower goes to the CPU's memory until the next picture."""
        self._device_model = None
        if self.vision is not None:
            self.vision.release()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _prompt_ids(self, prompt, media, system, thinking, template, max_tokens):
        in_front = media is not None and template and isinstance(prompt, str)
        ids = self.template.prompt_ids(
            prompt, system=system, thinking=thinking, raw=not template,
            images=media.images if in_front else 0, videos=media.videos if in_front else 0,
        )  # fmt: skip
        if not ids:
            raise FastQwenError("The prompt is empty: without a chat template at least one token is needed.")
        ids, limit = place(media, ids, self.tokenizer, context=self.context, max_tokens=max_tokens), self.context
        if len(ids) > limit:
            whose = "the context limit" if limit < self.config.max_positions else "the model's context"
            raise FastQwenError(f"The prompt has {len(ids)} tokens and {whose} holds {limit}: shorten it.")
        return ids

    def _media(self, images, videos, image_pixels, pixel_budget, video_fps) -> Media | None:
        if not isinstance(images, torch.Tensor) and not images and not videos:
            return None
        if self.vision is None:
            raise FastQwenError(f"This model takes no images or videos: {self._no_vision}")
        return Media(
            self.vision, images, videos, image_pixels=image_pixels, pixel_budget=pixel_budget, video_fps=video_fps
        )  # fmt: skip

    def _embed(self, media, meter, on_step) -> Embedded | None:
        """The prompt's pictures, None where on_step ended the reply; where the GPU's memory is short, without what
        replies share, which is made again."""

        def on_done(done, total):
            return bool(on_step(Progress("images", done, total)))

        try:
            found = media.embed(on_done)
        except torch.OutOfMemoryError:
            if self._device_model is None:
                raise
            self._device_model = None
            torch.cuda.empty_cache()
            found = media.embed(on_done)
        meter.image_seconds, meter.vision_seconds = media.image_seconds, media.vision_seconds
        return found

    def _passes(self, mtp, sampler, capacity, max_tokens, on_step) -> Passes:
        stop_ids, settings = frozenset(self.tokenizer.stop_ids), sampler.settings
        drawn = supports(greedy=settings.is_greedy, top_k=settings.top_k) and len(stop_ids) <= STOPS
        model = self._model_for(capacity, on_step) if drawn else None
        if model is None:
            session, drafter = Session(self.trunk, capacity), self._drafter(mtp, sampler, capacity)
            return HostPasses(session, drafter, sampler, stop_ids=stop_ids, max_tokens=max_tokens)
        model.state.reset()
        planner = Fixed(OFF) if mtp == "off" else self._chooser(mtp, settings)
        return DevicePasses(
            model, Session(self.trunk, capacity, model.state), planner, settings, seed=sampler.seed,
            drafts=mtp != "off", stop_ids=stop_ids, max_tokens=max_tokens,
        )  # fmt: skip

    def _model_for(self, capacity, on_step) -> DeviceModel | None:
        """What a GPU's replies share, for at least `capacity` tokens; None where some operation has no kernel."""
        self._on_device = self._on_device and round_kernels(self.device)[0]
        if self._on_device and (self._device_model is None or self._device_model.capacity < capacity):
            self._device_model = None  # first given back, then made larger
            room = self._room_for(capacity)
            vocab = min(self.tokenizer.size, self.config.vocab_size)
            model = DeviceModel(
                self.trunk, self.mtp_head, capacity=room, vocab=vocab, graphs=self._graphs,
                on_part=lambda done, total: on_step(Progress("prepare", done, total)),
            )  # fmt: skip
            self._on_device = model.usable
            self._device_model = model if model.usable else None
            if {"verify", "first", "next"} <= model.seconds.keys():
                self._costs.expect(
                    verify_seconds=model.seconds["verify"], first_seconds=model.seconds["first"],
                    next_seconds=model.seconds["next"],
                )  # fmt: skip
        return self._device_model

    def _room_for(self, capacity: int) -> int:
        """The class of sizes to allocate for, or what fits of it. Raises FastQwenError where `capacity` does not."""
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info(self.device)[0]

        attention = self.config.attention
        layers = sum(kind == FULL for kind in self.config.layer_kinds) + (self.mtp_head is not None)

        def bytes_for(tokens):
            return layers * cache_bytes(
                attention.kv_heads, attention.head_dim, capacity=tokens, kind=self.trunk.kv
            )  # fmt: skip

        room = capacity_class(capacity, self.context)
        if bytes_for(room) > free * FREE_SHARE:
            room = tokens_within(int(free * FREE_SHARE), bytes_for, room)
        if room < capacity and self.vision is not None and self.vision.release():
            return self._room_for(capacity)
        if room < capacity:
            raise FastQwenError(
                f"{capacity} tokens of prompt and reply need {bytes_for(capacity) / 2**20:.0f} MiB of keys and values; "
                f"{free / 2**20:.0f} MiB are free on {self.device}, enough for about {room} tokens: lower max_tokens, "
                "shorten the prompt, or choose int8 keys and values."
            )
        return room

    def _chooser(self, mtp, settings):
        if mtp == "auto":
            return self._planner(settings)
        return Fixed(mtp if isinstance(mtp, Tree) else Tree.chain(int(mtp)))

    def _drafter(self, mtp, sampler, capacity):
        if mtp == "off":
            return NoDrafts()
        planner = self._chooser(mtp, sampler.settings)

        def candidates(logits, text, count):
            history = torch.tensor(text, dtype=torch.long, device=logits.device)
            return sampler.candidates(logits, history, len(text), count)

        return HeadDrafts(self.mtp_head, self.trunk, planner, candidates, capacity)

    def _planner(self, settings: SamplingSettings) -> Planner:
        """One planner for a call; what was learnt of acceptance and cost is kept for settings like these."""
        kind = "greedy" if settings.is_greedy else settings
        return Planner(self._statistics.setdefault(kind, Statistics()), self._costs)

    def _call_notes(self, mtp):
        notes = []
        if mtp not in ("auto", "off") and self.mtp_head is None:
            notes.append(f"mtp={mtp} was asked for and not used: the checkpoint has no MTP head; the text is the same.")
        if self.device.type == "cpu" and torch.get_num_threads() != self.threads:
            notes.append(
                f"torch now runs {torch.get_num_threads()} threads, {self.threads} when the model was loaded: "
                "the text may differ from earlier replies with this seed."
            )
        return notes
