"""The nodes that load a model and give its memory back."""

from . import host
from .api import CATEGORY, io, known, verdict
from .clip import require_fastqwen
from .options import KEYS_AND_VALUES, QUANTIZE, LoadOptions


class FastQwenLoader(io.ComfyNode):
    """Checkpoint name -> CLIP."""

    @classmethod
    def define_schema(cls):
        """Ids are part of saved workflows: new inputs go last and are optional, none is ever renamed."""
        return known(
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
                ),
                *_option_inputs(),
            ],
            outputs=[
                io.Clip.Output(
                    display_name="CLIP",
                    tooltip="Connect to Text Generate (FastQwen), or to ComfyUI's own text generation nodes.",
                )
            ],
        )

    @classmethod
    def validate_inputs(cls, model):
        """Refuses a bad name when the workflow is queued. ComfyUI passes None for a linked input."""
        return model is None or verdict(host.resolve, model)

    @classmethod
    def execute(cls, model, **options):
        """Raises FastQwenError, one sentence, for a name or a checkpoint that cannot be used."""
        return io.NodeOutput(host.open_clip(model, LoadOptions(**options)))


def _option_inputs():
    return [
        known(
            io.Combo.Input,
            id="quantize",
            options=list(QUANTIZE),
            default="none",
            optional=True,
            tooltip="Packs plain 16-bit weights while loading: w4a8 is smallest, int8 nearest to the original. "
            "A checkpoint that is packed already needs none and is refused. Another choice may write another text.",
            advanced=True,
        ),
        known(
            io.Combo.Input,
            id="kv",
            options=list(KEYS_AND_VALUES),
            default="auto",
            optional=True,
            tooltip="How keys and values are kept. auto: int8 on a GPU, fp32 on a CPU. int8 holds twice the text that "
            "bf16 does in the same memory.",
            advanced=True,
        ),
        known(
            io.Int.Input,
            id="context",
            default=0,
            min=0,
            max=1 << 20,
            optional=True,
            tooltip="The most tokens that prompt and reply may have together; fewer need less memory. 0: as many as "
            "the model was made for.",
            advanced=True,
        ),
        known(
            io.Float.Input,
            id="vram_budget",
            default=0.0,
            min=0.0,
            max=1024.0,
            step=0.1,
            optional=True,
            tooltip="The most GPU memory for weights, in GB; layers beyond it are read from RAM: slower. 0: all.",
            advanced=True,
        ),
    ]


class FastQwenUnload(io.ComfyNode):
    """Anything -> the same, with a model's memory given back on the way."""

    @classmethod
    def define_schema(cls):
        """Ids are part of saved workflows: new inputs go last and are optional, none is ever renamed."""
        return known(
            io.Schema,
            node_id="FastQwenUnload",
            display_name="Unload FastQwen",
            category=CATEGORY,
            description="Passes its input through and frees the memory of FastQwen models at that moment. They are "
            "loaded again when next used.",
            search_aliases=["free memory", "free VRAM", "unload LLM", "qwen"],
            inputs=[
                io.AnyType.Input(
                    "value",
                    tooltip="Anything, such as the text that was written: the model is freed once this is there.",
                ),
                io.Clip.Input(
                    "clip",
                    optional=True,
                    tooltip="The model to free. Not connected: every model from Load FastQwen.",
                ),
            ],
            outputs=[io.AnyType.Output(display_name="value", tooltip="The input, unchanged.")],
        )

    @classmethod
    def execute(cls, value, clip=None):
        """Raises FastQwenError for a CLIP of another loader."""
        host.unload(clip if clip is None else require_fastqwen(clip))
        return io.NodeOutput(value)
