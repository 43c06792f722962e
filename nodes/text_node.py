"""The node that writes text. Its inputs carry the names, ranges and defaults of ComfyUI's own text generation node."""

from ..engine import MTP_CHOICES
from . import host
from .api import CATEGORY, io, known, verdict
from .clip import require_fastqwen
from .reply_inputs import seed_input
from .request import CORE_FPS, SAMPLING_MODES, check_choices, request_from_inputs


class FastQwenTextGenerate(io.ComfyNode):
    """CLIP and prompt -> text. Inputs carry the names, ranges and defaults of ComfyUI's own text generation node."""

    @classmethod
    def define_schema(cls):
        """Ids are part of saved workflows: new inputs go last and are optional, none is ever renamed."""
        return known(
            io.Schema,
            node_id="FastQwenTextGenerate",
            display_name="Text Generate (FastQwen)",
            category=CATEGORY,
            description="Writes text with a model from Load FastQwen.",
            search_aliases=["LLM", "qwen", "caption", "prompt enhance", "generate text"],
            is_output_node=True,
            inputs=[*_main_inputs(), *_sampling_inputs(), *_optional_inputs()],
            outputs=[
                io.String.Output(display_name="generated_text", tooltip="The reply, without its reasoning."),
                io.String.Output(display_name="thinking", tooltip="The reasoning; empty when thinking is off."),
                io.String.Output(display_name="report", tooltip="Tokens, tokens a second, why it stopped, notes."),
            ],
        )

    @classmethod
    def validate_inputs(cls, sampling_mode=None, mtp=None):
        """Refuses a value that is not on its list when the workflow is queued. None: linked, or left out."""
        return verdict(check_choices, "on" if sampling_mode is None else sampling_mode, "auto" if mtp is None else mtp)

    @classmethod
    def execute(cls, clip, **inputs):
        """Raises FastQwenError for what the engine refuses, ComfyUI's interrupt when the user stops the run."""
        result = require_fastqwen(clip).generate_text(request_from_inputs(inputs), host.Watch())
        report = "\n".join(result.report.lines())
        return io.NodeOutput(result.text, result.thinking, report, ui={"text": (result.text,), "report": (report,)})


def _main_inputs():
    return [
        io.Clip.Input("clip", tooltip="The model from Load FastQwen."),
        io.String.Input(
            "prompt",
            multiline=True,
            dynamic_prompts=False,  # braces, brackets and // are the user's text, not wildcards and comments
            default="",
            tooltip="What to write. It reaches the model exactly as typed.",
        ),
        io.Int.Input(
            "max_length",
            default=512,
            min=1,
            max=32768,
            tooltip="The most tokens to write, reasoning included. Writing may end sooner.",
        ),
        io.Combo.Input(
            "sampling_mode",
            options=list(SAMPLING_MODES),
            default="on",
            tooltip="on: draw each token with the settings below. "
            "off: always take the likeliest token; the settings below and the seed then do nothing.",
        ),
    ]


def _sampling_inputs():
    return [
        io.Float.Input(
            "temperature",
            default=0.7,
            min=0.01,
            max=2.0,
            step=0.01,
            tooltip="Higher is more varied, lower is more predictable.",
        ),
        io.Int.Input(
            "top_k", default=64, min=0, max=1000, tooltip="Draw from this many likeliest tokens; 0 means all of them."
        ),
        io.Float.Input(
            "top_p",
            default=0.95,
            min=0.0,
            max=1.0,
            step=0.01,
            tooltip="Draw from the likeliest tokens that together have this probability; 1 means all, 0 is refused.",
        ),
        io.Float.Input(
            "min_p",
            default=0.05,
            min=0.0,
            max=1.0,
            step=0.01,
            tooltip="Leave out tokens less likely than this share of the likeliest one.",
        ),
        io.Float.Input(
            "repetition_penalty",
            default=1.05,
            min=0.0,
            max=5.0,
            step=0.01,
            tooltip="Above 1 makes tokens already written less likely; 1 changes nothing, 0 is refused.",
        ),
        seed_input("The same seed with the same inputs gives the same text."),
        io.Float.Input(
            "presence_penalty",
            optional=True,
            default=0.0,
            min=0.0,
            max=5.0,
            step=0.01,
            tooltip="Taken once from the score of every token already written; 0 changes nothing.",
        ),
    ]


def _optional_inputs():
    return [
        io.Boolean.Input(
            "thinking",
            optional=True,
            default=False,
            tooltip="Let the model reason first. The reasoning comes out of the thinking output.",
        ),
        known(
            io.Boolean.Input,
            id="use_default_template",
            optional=True,
            default=True,
            tooltip="Put the prompt into the model's chat template. Off: the prompt is continued as raw text.",
            advanced=True,
        ),
        known(
            io.Combo.Input,
            id="mtp",
            optional=True,
            options=list(MTP_CHOICES),
            default="auto",
            tooltip="How many tokens to guess ahead with the model's MTP head. Changes the speed, never the text.",
            advanced=True,
        ),
        io.String.Input(
            "system_prompt",
            optional=True,
            force_input=True,
            tooltip="Standing instructions, in a turn before the prompt.",
        ),
        known(
            io.String.Input,
            id="stop_texts",
            optional=True,
            multiline=True,
            dynamic_prompts=False,
            default="",
            tooltip="Writing ends before the first of these texts, one a line. \\n means a line break, \\t a tab.",
            advanced=True,
        ),
        *_picture_inputs(),
    ]


def _picture_inputs():
    return [
        io.Image.Input(
            "images",
            optional=True,
            tooltip="Pictures for the model to look at, in order: a batch counts as several. They stand before the "
            "prompt.",
        ),
        io.Image.Input(
            "video",
            optional=True,
            tooltip="The frames of a video, as a batch. Two a second are looked at.",
        ),
        known(
            io.Float.Input,
            id="video_fps",
            optional=True,
            default=CORE_FPS,
            min=0.1,
            max=1000.0,
            step=0.01,
            tooltip="Frames a second of the video input.",
            advanced=True,
        ),
    ]
