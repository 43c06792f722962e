"""From a node's widget values to what the engine takes."""

from dataclasses import dataclass

from ..engine import GREEDY, MTP_CHOICES, SamplingSettings
from ..weights import FastQwenError

SAMPLING_MODES = ("on", "off")


@dataclass(frozen=True)
class TextRequest:
    """One reply to write: the arguments of `Engine.reply` that the node sets."""

    prompt: str
    system: str | None
    thinking: bool
    template: bool
    settings: SamplingSettings
    seed: int
    max_tokens: int
    mtp: str


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
        settings=_settings(inputs),
        seed=inputs["seed"],
        max_tokens=inputs["max_length"],
        mtp=mtp,
    )


def _settings(inputs):
    if inputs["sampling_mode"] == "off":
        return GREEDY
    return SamplingSettings(
        temperature=inputs["temperature"],
        top_k=inputs["top_k"],
        top_p=inputs["top_p"],
        min_p=inputs["min_p"],
        repetition_penalty=inputs["repetition_penalty"],
        presence_penalty=inputs.get("presence_penalty", 0.0),
    )
