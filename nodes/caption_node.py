"""The node that captions pictures."""

from . import host
from .api import CATEGORY, io, known
from .caption import STYLES, CaptionWish, captions
from .clip import require_fastqwen
from .reply_inputs import reply_inputs, seed_input
from .request import pictures

NAMES = ("style", "prompt", "trigger", "prefix", "suffix", "exclude", "max_words", "seed", "temperature", "thinking")


class FastQwenImageCaption(io.ComfyNode):
    """CLIP and pictures -> one caption each."""

    @classmethod
    def define_schema(cls):
        """Ids are part of saved workflows: new inputs go last and are optional, none is ever renamed."""
        return known(
            io.Schema,
            node_id="FastQwenImageCaption",
            display_name="Caption Images (FastQwen)",
            category=CATEGORY,
            description="Writes a caption for every picture, for people or for training an image model.",
            search_aliases=["caption", "describe image", "image to text", "tagger", "VLM", "LLM", "qwen"],
            is_output_node=True,
            inputs=[*_main_inputs(), *_optional_inputs()],
            outputs=[
                io.String.Output(
                    display_name="captions",
                    is_output_list=True,
                    tooltip="One caption for each picture, in order.",
                ),
                io.String.Output(display_name="report", tooltip="Tokens, tokens a second, warnings, for each picture."),
            ],
        )

    @classmethod
    def execute(cls, clip, images, **inputs):
        """Raises FastQwenError for what the engine refuses, ComfyUI's interrupt when the user stops the run."""
        given = {name: inputs[name] for name in NAMES if inputs.get(name) is not None}
        wish = CaptionWish(**given, max_tokens=inputs.get("max_length", 512))
        model, watch = require_fastqwen(clip), host.Watch()

        def write(request):
            watch.next_reply()
            return model.generate_text(request, watch)

        texts, report = captions(wish, pictures(images), write)
        return io.NodeOutput(texts, report, ui={"text": ("\n\n".join(texts),), "report": (report,)})


def _main_inputs():
    return [
        io.Clip.Input("clip", tooltip="The model from Load FastQwen; its checkpoint needs a vision tower."),
        io.Image.Input("images", tooltip="The pictures. Every one of a batch or a list gets its own caption."),
        io.Combo.Input(
            "style",
            options=list(STYLES),
            default="detailed",
            tooltip="The question, and how the reply is read: a sentence, a paragraph, tags, booru tags, JSON with "
            "both, or plain text on the prompt below alone.",
        ),
        io.String.Input(
            "prompt",
            multiline=True,
            dynamic_prompts=False,
            default="",
            tooltip="Asked in place of the style's question. Empty: the style's own.",
        ),
        seed_input("Every picture is captioned with this seed, so its caption does not depend on the others."),
    ]


def _optional_inputs():
    return [
        io.String.Input(
            "trigger",
            optional=True,
            default="",
            tooltip="A word that a training will tie to the subject; put first in every caption.",
        ),
        io.String.Input("prefix", optional=True, default="", tooltip="Put before every caption, behind the trigger."),
        io.String.Input("suffix", optional=True, default="", tooltip="Put behind every caption."),
        io.String.Input(
            "exclude",
            optional=True,
            default="",
            tooltip="Tags separated by commas that are left out; for tags, booru tags and JSON.",
        ),
        io.Int.Input(
            "max_words",
            optional=True,
            default=0,
            min=0,
            max=10000,
            tooltip="Longer captions end with the last whole sentence or tag that fits. 0: no limit.",
        ),
        *reply_inputs("Higher is more varied", max_length=512, each="picture"),
    ]
