"""A loaded model that replies: prompt in, streamed text and a report out."""

import functools
from collections.abc import Callable, Sequence

import torch

from ..kernels.rounds import STOPS
from ..kernels.sampling import supports
from ..model.chat import ChatTemplate
from ..model.images import WHITE
from ..model.tokenizer import Tokenizer
from ..model.trunk import Trunk
from ..model.video import SAMPLE_FPS
from ..mtp.drafts import NoDrafts
from ..mtp.estimates import Costs, Experience
from ..mtp.head import MtpHead
from ..mtp.head_drafts import HeadDrafts
from ..mtp.planner import Fixed, Planner
from ..mtp.planner import name as tree_name
from ..mtp.tree import OFF, Tree
from ..weights import FastQwenError
from .device_passes import DevicePasses
from .host_drawn_passes import HostDrawnPasses
from .media import Embedded, Media, Vision, place
from .memory import EngineMemory
from .passes import HostPasses, Passes
from .prefix_cache import DEFAULT_BYTES, PrefixCache
from .prompt_reuse import PromptReuse, system_end
from .reply import Reply, Result
from .report import Meter, Progress
from .sampling import Sampler, SamplingSettings
from .session import Session
from .text import ReplyText, stop_texts

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


def _ignore(progress: Progress) -> None:
    """Nothing to tell anybody."""


class Engine:
    """One loaded model. Replies run one at a time.

    notes    what a user should know about this checkpoint, one sentence each; every report carries them
    graphs   on a GPU, passes are captured once and replayed; never changes the text
    context  prompt and reply together are at most so many tokens; default and maximum: what the model was made for
    prefix_cache_bytes  RAM for beginnings of prompts that were read before; never changes the text
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
        prefix_cache_bytes: int = DEFAULT_BYTES,
        vision: Vision | None = None,
        no_vision: str = NO_TOWER,
    ):
        self.trunk, self.tokenizer, self.template, self.mtp_head = trunk, tokenizer, template, mtp_head
        self.config, self.device = trunk.config, trunk.device
        self.notes = tuple(notes)
        self.vision, self._no_vision = vision, no_vision
        self._statistics = Experience()
        self._costs = Costs()
        self._host_costs = Costs()  # the same of settings whose draws no GPU makes: they add to every pass
        self.context = min(context or self.config.max_positions, self.config.max_positions)
        self.prefix_cache = PrefixCache(prefix_cache_bytes)
        self.vocab = min(tokenizer.size, self.config.vocab_size)  # ids that can be drawn
        self.memory = EngineMemory(
            trunk, mtp_head, vocab=self.vocab, graphs=graphs, context=self.context, costs=self._costs,
            spare=lambda: vision is not None and vision.release(),
        )  # fmt: skip
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
        image_background: Sequence[int] = WHITE,
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
        videos      paths, Videos, or (tensor [F, H, W, C] or list of frames, frames a second), behind the images
        image_pixels, pixel_budget  an image, and all of them together, are reduced to so many pixels (engine/media.py)
        image_background  red, green and blue, 0 to 255, behind what is transparent; default white
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
        settings, on_step = settings or SamplingSettings(), on_step or _ignore
        if not isinstance(settings, SamplingSettings) or not callable(on_step):
            raise FastQwenError("settings must be SamplingSettings and on_step a function.")
        limits = {"image_pixels": image_pixels, "pixel_budget": pixel_budget}
        media = self._media(images, videos, limits, image_background, video_fps)
        ids = self._prompt_ids(prompt, media, system, thinking, template, max_tokens)
        mtp, meter = self._metered(mtp, media)
        sampler = Sampler(settings, seed, self.vocab)
        capacity = min(self.context, len(ids) + max_tokens)
        text = ReplyText(self.tokenizer, thinking=thinking and template, stop=stop)
        passes = functools.partial(self._passes, ids, mtp, sampler, capacity, max_tokens, on_step)
        stop_ids = frozenset(self.tokenizer.stop_ids)
        embed = media and functools.partial(self._embed, media, meter, on_step)
        return Reply(
            ids, text, meter, passes, stop_ids=stop_ids, max_tokens=max_tokens, on_step=on_step, embed=embed,
            memory=self.memory, capacity=capacity,
        )  # fmt: skip

    def generate(self, prompt, **options) -> Result:
        """`reply(...)`, run to its end."""
        return self.reply(prompt, **options).result()

    def free(self):
        """Gives back what replies share: on a GPU keys and values, states, workspaces and captured graphs, in RAM the
        beginnings of prompts. The next reply makes them again. The vision tower goes to the CPU's memory."""
        self.prefix_cache.clear()
        self._release_vision()
        self.memory.free()

    def offload(self):
        """Gives up a GPU's memory: what replies share, and the weights, which go to RAM. Beginnings of prompts stay.
        A reply that is under way cannot go on; the next one brings all back and writes the same text."""
        self._release_vision()
        self.memory.offload()

    def restore(self):
        """Brings the weights back now. Raises FastQwenError where they do not fit, torch's error where memory ends all
        the same; they are then in RAM still."""
        self.memory.restore()

    def bytes_on_device(self) -> int:
        """Bytes of weights and of what replies share."""
        return self.memory.bytes

    def _release_vision(self):
        if self.vision is not None:
            self.vision.release()

    def _metered(self, mtp, media):
        """(what drafting is to be, the numbers of a reply before it starts)."""
        mtp = mtp if isinstance(mtp, Tree) else str(mtp)
        label = tree_name(mtp) if isinstance(mtp, Tree) else mtp
        meter = Meter(self.device, notes=[*self.notes, *self._call_notes(label)])
        if self.mtp_head is None:
            mtp = label = "off"
        meter.mtp = label
        if media is not None:
            meter.image_tokens = media.tokens
            meter.notes += media.notes
        return mtp, meter

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
            remedy = "shorten it" if media is None else "shorten it, or show less"
            raise FastQwenError(f"The prompt has {len(ids)} tokens and {whose} holds {limit}: {remedy}.")
        return ids

    def _media(self, images, videos, limits, background, video_fps) -> Media | None:
        if not any(hasattr(given, "shape") or given for given in (images, videos)):  # a tensor is no truth value
            return None
        if self.vision is None:
            raise FastQwenError(f"This model takes no images or videos: {self._no_vision}")
        return Media(self.vision, images, videos, **limits, image_background=background, video_fps=video_fps)

    def _embed(self, media, meter, on_step) -> Embedded | None:
        """The prompt's pictures, None where on_step ended the reply; where the GPU's memory is short, without what
        replies share, which is made again."""

        def on_done(done, total):
            return bool(on_step(Progress("images", done, total)))

        try:
            found = media.embed(on_done)
        except torch.OutOfMemoryError:
            if not self.memory.is_shared:
                raise
            self.memory.free()
            found = media.embed(on_done)
        meter.image_seconds, meter.vision_seconds = media.image_seconds, media.vision_seconds
        return found

    def _passes(self, ids, *arguments) -> Passes:
        passes = self._new_passes(ids, *arguments)
        if self.prefix_cache.budget_bytes > 0:
            trunk = self.trunk
            threads = torch.get_num_threads() if self.device.type == "cpu" else None
            grain = trunk.grain(passes.session.state)
            settings = trunk.kv, trunk.dtype, trunk.chunk, grain, trunk.pass_kernels, threads
            passes.session.reuse = PromptReuse(
                self.prefix_cache, settings, trunk.chunk, passes, grain, system_end(ids, self.tokenizer)
            )  # fmt: skip
        return passes

    def _new_passes(self, ids, mtp, sampler, capacity, max_tokens, on_step) -> Passes:
        self.memory.restore()
        if mtp != "off" and self.mtp_head.short is not None:
            self.mtp_head.short.begin(ids)
        stop_ids, settings = frozenset(self.tokenizer.stop_ids), sampler.settings
        drawn = supports(greedy=settings.is_greedy, top_k=settings.top_k)
        model = self._shared_model(capacity, on_step) if len(stop_ids) <= STOPS else None
        planner = self._chooser(mtp, settings, tokens=capacity - len(ids))  # now that capturing has timed passes
        if model is None:
            session, drafter = Session(self.trunk, capacity), self._drafter(mtp, planner, sampler, capacity)
            return HostPasses(session, drafter, sampler, stop_ids=stop_ids, max_tokens=max_tokens)
        if not drawn:
            model.draw_on_host()
        model.state.reset()
        return (DevicePasses if drawn else HostDrawnPasses)(
            model, Session(self.trunk, capacity, model.state), planner, settings, seed=sampler.seed,
            drafts=mtp != "off", stop_ids=stop_ids, max_tokens=max_tokens,
        )  # fmt: skip

    def _shared_model(self, capacity, on_step):
        return self.memory.model_for(capacity, lambda done, total: on_step(Progress("prepare", done, total)))

    def _chooser(self, mtp, settings, tokens):
        if mtp == "auto":
            return self._planner(settings, tokens)
        return Fixed(OFF if mtp == "off" else mtp if isinstance(mtp, Tree) else Tree.chain(int(mtp)))

    def _drafter(self, mtp, planner, sampler, capacity):
        if mtp == "off":
            return NoDrafts()

        def candidates(logits, text, count):
            history = torch.tensor(text, dtype=torch.long, device=logits.device)
            return sampler.candidates(logits, history, len(text), count)

        return HeadDrafts(self.mtp_head, self.trunk, planner, candidates, capacity)

    def _planner(self, settings: SamplingSettings, tokens: int) -> Planner:
        """One planner for a call; what was learnt of acceptance and cost is kept for settings like these."""
        kind = "greedy" if settings.is_greedy else settings
        drawn = supports(greedy=settings.is_greedy, top_k=settings.top_k)
        costs = self._costs if drawn else self._host_costs
        return Planner(self._statistics.of(kind), costs, tokens=tokens)

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
