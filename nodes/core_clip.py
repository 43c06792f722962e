"""What ComfyUI's own text nodes call on a CLIP, so that they run on FastQwen when only the loader is exchanged.

Written from the calls that TextGenerate, TextGenerateLTX2Prompt and LoraLoader make; both forms of picture input, and
arguments that older versions leave out, are taken.
"""

import codecs
import logging
import re
from dataclasses import dataclass, field
from types import SimpleNamespace

from ..engine import FastQwenError
from .request import CORE_FPS, TextRequest, clips, pictures, sampling

logger = logging.getLogger(__name__)

RAW_START = "<|im_start|>"  # a prompt that begins so is a whole conversation, as in ComfyUI's Qwen3.5 tokenizer
SEED_OF_NONE = 42  # ComfyUI's own when a node gives none
_MTP = {True: "auto", False: "off", None: "auto"}
# The LTX-2 prompt node writes Gemma's turns, which mean nothing to Qwen: they are read and written anew as Qwen's.
_GEMMA = re.compile(
    r"<start_of_turn>system\n(?P<system>.*?)<end_of_turn>\n"
    r"<start_of_turn>user\n(?:\n?<image_soft_token>\n)?(?P<user>.*)<end_of_turn>\n<start_of_turn>model\n",
    re.DOTALL,
)
_warned = set()


class NotTextGeneration(AttributeError):
    """A FastQwen handle was used as if it were one of ComfyUI's own text encoders."""

    def __init__(self, attribute):
        super().__init__(
            f"The model from 'Load FastQwen' only writes text and has no {attribute!r}: connect it to "
            "'Text Generate (FastQwen)', and use a text encoder's own loader for conditioning."
        )


@dataclass(frozen=True)
class Prompt:
    """What `tokenize` gives and `generate` takes: the prompt as it was, for the engine makes its own tokens."""

    text: str
    system: str | None = None
    thinking: bool = False
    template: bool = True
    images: tuple = field(default=(), repr=False)
    videos: tuple = field(default=(), repr=False)

    def __getitem__(self, key):
        raise NotTextGeneration(f"tokens[{key!r}]")


class NoLayers:
    """Stands where a text encoder's module would be: nothing in it can be patched."""

    def state_dict(self):
        """No weights."""
        return {}


class CoreCalls:
    """The methods of a CLIP that concern writing text. Needs `generate_text`, `with_engine` and `watch`."""

    tokenizer = SimpleNamespace(clip_name="qwen35")
    cond_stage_model = NoLayers()

    def tokenize(self, text, return_word_ids=False, *, image=None, images=None, thinking=False, **others):
        """The prompt for `generate`. `skip_template` changes nothing, as in ComfyUI's own Qwen3.5 tokenizer.

        image  one batch [B, H, W, C]
        images  a list of batches
        others  of them, `video`, a batch of frames, and `system_prompt` are used; audio is announced as unused
        """
        if others.get("audio") is not None:
            _warn_once("audio", "FastQwen: the audio input is not used, these models do not hear.")
        shown = dict(
            images=pictures(images) if images is not None and len(images) else pictures(image),
            videos=clips(others.get("video"), CORE_FPS),
        )
        system = others.get("system_prompt") or None
        if text.startswith(RAW_START):
            return Prompt(text, template=False, **shown)
        gemma = _GEMMA.fullmatch(text)
        if gemma:
            text, system = gemma["user"].strip(), "\n\n".join(filter(None, (system, gemma["system"].strip())))
        return Prompt(text, system, bool(thinking), **shown)

    def generate(
        self, tokens, do_sample=True, max_length=256, temperature=1.0, top_k=50, top_p=0.95, min_p=0.0,
        repetition_penalty=1.0, seed=None, presence_penalty=0.0, mtp=None, **others,
    ):  # fmt: skip
        """Token ids of a reply; with thinking they begin with the id of <think>. Raises what the engine raises."""
        if not isinstance(tokens, Prompt):
            raise FastQwenError("These tokens come from another model's tokenizer: use one loader for the whole node.")
        draws = do_sample and temperature > 0
        settings = dict(
            sampling_mode="on" if draws else "off", temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
            repetition_penalty=repetition_penalty, presence_penalty=presence_penalty,
        )  # fmt: skip
        request = TextRequest(
            prompt=tokens.text,
            system=tokens.system,
            thinking=tokens.thinking,
            template=tokens.template,
            settings=sampling(settings),
            seed=SEED_OF_NONE if seed is None else seed,
            max_tokens=max_length,
            mtp=_MTP[mtp] if mtp is None or isinstance(mtp, bool) else str(mtp),
            images=tokens.images,
            videos=tokens.videos,
        )
        ids = list(self.generate_text(request, self.watch()).token_ids)
        return self.with_engine(lambda engine: _core_ids(ids, tokens, engine.tokenizer))

    def decode(self, token_ids, skip_special_tokens=True):
        """The text of ids; a character cut off at the end is left out."""

        def text(engine):
            tokenizer = engine.tokenizer
            think = _think_ids(tokenizer)  # named by nodes that split the reasoning off
            ids = [i for i in token_ids if not skip_special_tokens or i in think or not tokenizer.is_special(i)]
            return codecs.getincrementaldecoder("utf-8")("replace").decode(tokenizer.decode_bytes(ids))

        return self.with_engine(text)

    def add_patches(self, patches, *strengths):
        """Takes no patch and says so once: a LoRA for another text encoder means nothing to this model."""
        _warn_once("patches", "FastQwen: LoRAs do not change a model from 'Load FastQwen'.")
        return []

    def is_dynamic(self):
        """Never loaded in pieces by ComfyUI."""
        return False


def _core_ids(ids, prompt, tokenizer):
    opening, closing = _think_ids(tokenizer)
    if not prompt.template:
        return ids
    if prompt.thinking:
        return [opening, *ids]
    # Without thinking there is none to split off: what a model writes of it all the same is dropped.
    kept, inside = [], False
    for token in ids:
        if token in (opening, closing):
            inside = token == opening
        elif not inside:
            kept.append(token)
    return kept


def _think_ids(tokenizer):
    return tokenizer.token_id("<think>"), tokenizer.token_id("</think>")


def _warn_once(key, sentence):
    if key not in _warned:
        _warned.add(key)
        logger.warning(sentence)
