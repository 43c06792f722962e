"""From a node's widget values to what the engine takes."""

import re
from dataclasses import dataclass

from ..engine import GREEDY, MTP_CHOICES, SamplingSettings
from ..weights import FastQwenError

SAMPLING_MODES = ("on", "off")
CORE_FPS = 24.0  # what ComfyUI's own text node takes a batch of frames for
_ESCAPES = {r"\n": "\n", r"\t": "\t", r"\\": "\\"}


@dataclass(frozen=True)
class TextRequest:
    """One reply to write: the arguments of `Engine.reply` that the nodes set. `prompt` is a text or messages.

    `images` are tensors [H, W, C] in 0..1, in the order of their places in the prompt; `videos` are pairs of frames
    [F, H, W, C] and frames a second, and come after them.
    """

    prompt: str | list
    system: str | None
    thinking: bool
    template: bool
    settings: SamplingSettings
    seed: int
    max_tokens: int
    mtp: str
    stop: tuple[str, ...] = ()
    images: tuple = ()
    videos: tuple = ()

    def arguments(self):
        """Keyword arguments of `Engine.reply`; pictures only where there are some."""
        given = dict(
            system=self.system,
            thinking=self.thinking,
            template=self.template,
            settings=self.settings,
            seed=self.seed,
            max_tokens=self.max_tokens,
            mtp=self.mtp,
            stop=self.stop,
        )
        shown = dict(images=list(self.images), videos=list(self.videos))
        return given | {name: items for name, items in shown.items() if items}


def check_choices(sampling_mode, mtp):
    """Raises FastQwenError for a value that is not on its list: a link, or an older ComfyUI, lets any text through."""
    for name, value, choices in (("sampling_mode", sampling_mode, SAMPLING_MODES), ("mtp", mtp, MTP_CHOICES)):
        if value not in choices:
            raise FastQwenError(f"{name} is {value!r}: choose one of {', '.join(choices)}.")


def request_from_inputs(inputs):
    """Builds the request from the inputs of FastQwenTextGenerate.

    `inputs` maps input ids to values. Optional ones may be missing, as they are in a workflow saved before they
    existed. Raises FastQwenError for a value that is not on its list or that the engine refuses.
    """
    mtp = inputs.get("mtp", "auto")
    check_choices(inputs["sampling_mode"], mtp)
    return TextRequest(
        prompt=inputs["prompt"],
        system=inputs.get("system_prompt") or None,  # an empty text box means no system turn, not an empty one
        thinking=inputs.get("thinking", False),
        template=inputs.get("use_default_template", True),
        settings=sampling(inputs),
        seed=inputs["seed"],
        max_tokens=inputs["max_length"],
        mtp=mtp,
        stop=stop_lines(inputs.get("stop_texts") or ""),
        images=pictures(inputs.get("images")),
        videos=clips(inputs.get("video"), inputs.get("video_fps", CORE_FPS)),
    )


def stop_lines(text):
    r"""Stop texts, one a line; empty lines count for nothing. `\n`, `\t` and `\\` stand for what cannot be typed."""
    lines = [line for line in text.splitlines() if line]
    return tuple(re.sub(r"\\[nt\\]", lambda match: _ESCAPES[match[0]], line) for line in lines)


def pictures(images):
    """ComfyUI's pictures as a tuple of [H, W, C]: a batch [B, H, W, C], a list of batches or pictures, or None."""
    if images is None:
        return ()
    batches = images if isinstance(images, (list, tuple)) else [images]
    return tuple(picture for batch in batches for picture in (batch if batch.ndim == 4 else [batch]))


def clips(frames, fps):
    """ComfyUI's video, a batch of frames [F, H, W, C] or None, as the engine's videos."""
    return () if frames is None else ((frames, float(fps)),)


def sampling(inputs):
    """The sampling settings of a text node's inputs, or of a call to ComfyUI's `clip.generate`."""
    if inputs["sampling_mode"] == "off":
        return GREEDY
    return SamplingSettings(
        temperature=inputs["temperature"],
        top_k=inputs["top_k"],
        top_p=inputs["top_p"],
        min_p=inputs["min_p"],
        repetition_penalty=inputs["repetition_penalty"],
        presence_penalty=inputs.get("presence_penalty") or 0.0,
    )
