"""Inputs that nodes have in common."""

from .api import io, known


def seed_input(tooltip):
    """Any seed that ComfyUI's own samplers take, with their control after a run."""
    return io.Int.Input(
        "seed", default=0, min=0, max=0xFFFFFFFFFFFFFFFF, control_after_generate=True, tooltip=tooltip
    )  # fmt: skip


def reply_inputs(varied, max_length, each):
    """Temperature, max_length and thinking, all optional and advanced.

    `varied` says what a temperature does, `max_length` is the default, `each` names what one reply is for.
    """
    common = {"optional": True, "advanced": True}
    return [
        known(
            io.Float.Input,
            id="temperature",
            default=0.7,
            min=0.0,
            max=2.0,
            step=0.01,
            tooltip=f"{varied}; 0 always takes the likeliest word.",
            **common,
        ),
        known(
            io.Int.Input,
            id="max_length",
            default=max_length,
            min=1,
            max=32768,
            tooltip=f"The most tokens to write for one {each}, reasoning included.",
            **common,
        ),
        known(
            io.Boolean.Input,
            id="thinking",
            default=False,
            tooltip="Let the model reason first: slower, and it needs a larger max_length.",
            **common,
        ),
    ]
