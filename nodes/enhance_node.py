"""The node that turns an idea into finished prompts."""

from . import host
from .api import CATEGORY, io, known, verdict
from .clip import require_fastqwen
from .enhance import LANGUAGES, MOST_VARIANTS, Wish, enhance, unchanged
from .presets import LENGTHS, preset, preset_names
from .reply_inputs import reply_inputs, seed_input
from .request import pictures


class FastQwenPromptEnhance(io.ComfyNode):
    """CLIP and an idea -> prompts, negative prompt, report."""

    @classmethod
    def define_schema(cls):
        """Ids are part of saved workflows: new inputs go last and are optional, none is ever renamed."""
        return known(
            io.Schema,
            node_id="FastQwenPromptEnhance",
            display_name="Enhance Prompt (FastQwen)",
            category=CATEGORY,
            description="Writes finished prompts for an image or video model from a short idea.",
            search_aliases=["prompt enhance", "prompt upsampling", "magic prompt", "LLM", "qwen", "rewrite prompt"],
            is_output_node=True,
            inputs=[*_main_inputs(), *_optional_inputs()],
            outputs=[
                io.String.Output(
                    display_name="prompts",
                    is_output_list=True,
                    tooltip="One prompt for each variant; what is connected here runs once for each.",
                ),
                io.String.Output(
                    display_name="negative", tooltip="The preset's negative prompt; empty where the model has none."
                ),
                io.String.Output(display_name="report", tooltip="Seeds, tokens, tokens a second, warnings."),
            ],
        )

    @classmethod
    def validate_inputs(cls, preset):
        """Refuses a preset that cannot be used when the workflow is queued. None: linked."""
        return preset is None or verdict(_preset, preset)

    @classmethod
    def fingerprint_inputs(cls, preset=None, **others):
        """A preset file that was edited makes the node run again."""
        return preset and repr(_preset(preset))

    @classmethod
    def check_lazy_status(cls, bypass=False, **others):
        """A bypassed node does not load the model."""
        return [] if bypass else [name for name in ("clip", "image") if name in others and others[name] is None]

    @classmethod
    def execute(cls, idea, preset, bypass=False, clip=None, **inputs):
        """Raises FastQwenError for what cannot be met, ComfyUI's interrupt when the user stops the run."""
        chosen = _preset(preset)
        if bypass:
            return _output(unchanged(idea, chosen))
        wish = _wish(idea, chosen, inputs)
        model, watch = require_fastqwen(clip), host.Watch()

        def write(request):
            watch.next_reply()
            return model.generate_text(request, watch)

        return _output(enhance(wish, write))


def _preset(name):
    return preset(name, host.preset_folder())


def _wish(idea, chosen, inputs):
    return Wish(
        idea,
        chosen,
        language=inputs["language"],
        length=inputs["length"],
        variants=inputs["variants"],
        keep=inputs.get("keep_words") or "",
        seed=inputs["seed"],
        temperature=inputs.get("temperature", 0.7),
        max_tokens=inputs.get("max_length", 1024),
        thinking=inputs.get("thinking", False),
        images=pictures(inputs.get("image")),
    )


def _output(done):
    shown = "\n\n".join(done.prompts)
    ui = {"text": (shown,), "report": (done.report,)}
    return io.NodeOutput(done.prompts, done.negative, done.report, ui=ui)


def _main_inputs():
    return [
        io.Clip.Input("clip", lazy=True, tooltip="The model from Load FastQwen."),
        io.String.Input(
            "idea",
            multiline=True,
            dynamic_prompts=False,  # wildcards in the idea are for the node that draws
            default="",
            tooltip='What the picture or video should show. "Quoted text", (weights:1.2), <lora:...> and __wildcards__ '
            "come out letter for letter.",
        ),
        io.Combo.Input(
            "preset",
            options=preset_names(host.preset_folder()),
            default="plain",
            tooltip="How the model that draws wants its prompts. Your own go as JSON files into user/fastqwen/presets.",
        ),
        io.Combo.Input(
            "language",
            options=list(LANGUAGES),
            default=LANGUAGES[0],
            tooltip="The language of the prompt. Tag presets write English unless Chinese is chosen.",
        ),
        io.Combo.Input(
            "length", options=list(LENGTHS), default="medium", tooltip="About how long; the preset says how many words."
        ),
        io.Int.Input(
            "variants",
            default=1,
            min=1,
            max=MOST_VARIANTS,
            tooltip="How many prompts to write. The second one is what the seed after this one gives, and so on.",
        ),
        seed_input("The same seed with the same inputs gives the same prompt."),
    ]


def _optional_inputs():
    return [
        io.String.Input(
            "keep_words",
            optional=True,
            default="",
            tooltip="Words or phrases, separated by commas, that must be in the prompt letter for letter.",
        ),
        io.Boolean.Input(
            "bypass",
            optional=True,
            default=False,
            tooltip="Pass the idea on unchanged, without loading the model.",
        ),
        *reply_inputs("Higher is more varied, lower keeps closer to the idea", max_length=1024, each="prompt"),
        io.Image.Input(
            "image",
            optional=True,
            lazy=True,
            tooltip="A reference picture. What the idea leaves open is taken from it.",
        ),
    ]
