"""The V3 nodes: schemas, and execute methods that hand over to the adapter. The only file that imports the node API."""

import inspect

from comfy_api.latest import ComfyExtension, io, ui

from ..engine import MTP_CHOICES, FastQwenError
from . import host
from .clip import require_fastqwen
from .request import SAMPLING_MODES, check_choices, request_from_inputs

CATEGORY = "text/FastQwen"


def _verdict(check, *arguments):
    """ComfyUI's form of a validation result: True, or the error's sentence."""
    try:
        check(*arguments)
    except FastQwenError as error:
        return str(error)
    return True


def _known(make, **arguments):
    """`make(**arguments)` without those that this ComfyUI is too old to know."""
    known = inspect.signature(make).parameters
    return make(**{name: value for name, value in arguments.items() if name in known})


class FastQwenLoader(io.ComfyNode):
    """Checkpoint name -> CLIP."""

    @classmethod
    def define_schema(cls):
        """Ids are part of saved workflows: new inputs go last, none is ever renamed."""
        return _known(
            io.Schema,
            node_id="FastQwenLoader",
            display_name="Load FastQwen",
            category=CATEGORY,
            description="Loads a Qwen3.5, 3.6 or 3.8 checkpoint for text generation.",
            search_aliases=["LLM", "qwen", "load text model", "load LLM"],
            inputs=[
                io.Combo.Input(
                    "model",
                    options=host.model_names(),
                    tooltip="A .safetensors file or a Hugging Face folder in models/text_encoders or models/LLM, "
                    "or 'demo', the tiny model that comes with FastQwen.",
                )
            ],
            outputs=[io.Clip.Output(display_name="CLIP", tooltip="Connect to Text Generate (FastQwen).")],
        )

    @classmethod
    def validate_inputs(cls, model):
        """Refuses a bad name when the workflow is queued. ComfyUI passes None for a linked input."""
        return model is None or _verdict(host.resolve, model)

    @classmethod
    def execute(cls, model):
        """Raises FastQwenError, one sentence, for a name or a checkpoint that cannot be used."""
        return io.NodeOutput(host.open_clip(model))


class FastQwenTextGenerate(io.ComfyNode):
    """CLIP and prompt -> text. Inputs carry the names, ranges and defaults of ComfyUI's own text generation node."""

    @classmethod
    def define_schema(cls):
        """Ids are part of saved workflows: new inputs go last and are optional, none is ever renamed."""
        return _known(
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
            ],
        )

    @classmethod
    def validate_inputs(cls, sampling_mode=None, mtp=None):
        """Refuses a value that is not on its list when the workflow is queued. None: linked, or left out."""
        return _verdict(check_choices, "on" if sampling_mode is None else sampling_mode, "auto" if mtp is None else mtp)

    @classmethod
    def execute(cls, clip, **inputs):
        """Raises FastQwenError for what the engine refuses, ComfyUI's interrupt when the user stops the run."""
        result = require_fastqwen(clip).generate_text(request_from_inputs(inputs), on_step=host.Watch().on_step)
        return io.NodeOutput(result.text, result.thinking, ui=ui.PreviewText(result.text))


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
        io.Int.Input(
            "seed",
            default=0,
            min=0,
            max=0xFFFFFFFFFFFFFFFF,
            control_after_generate=True,
            tooltip="The same seed with the same inputs gives the same text.",
        ),
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
        _known(
            io.Boolean.Input,
            id="use_default_template",
            optional=True,
            default=True,
            tooltip="Put the prompt into the model's chat template. Off: the prompt is continued as raw text.",
            advanced=True,
        ),
        _known(
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
    ]


class FastQwenExtension(ComfyExtension):
    """The pack, as ComfyUI asks for it."""

    async def get_node_list(self):
        """Registers the model folder first: the loader's choices come from it."""
        host.register_folders()
        return [FastQwenLoader, FastQwenTextGenerate]
