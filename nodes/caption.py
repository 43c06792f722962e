"""One caption for each picture, made as `fastqwen caption` makes them. Knows nothing of ComfyUI."""

from collections.abc import Callable
from dataclasses import dataclass

from ..engine import FastQwenError, Result, SamplingSettings
from ..engine.caption import STYLES as ENGINE_STYLES
from ..engine.caption import CaptionOptions, finish
from ..engine.report import LENGTH, notes_of
from .request import TextRequest
from .verbatim import split_words

OWN = "only the prompt"
STYLES = (*ENGINE_STYLES, OWN)


@dataclass(frozen=True)
class CaptionWish:
    """What the node's inputs ask for; engine/caption.py says what the first seven mean, `exclude` is a list in a text.

    Every picture is written with the same seed, so that its caption does not depend on the others.
    """

    style: str = "detailed"
    prompt: str = ""
    trigger: str = ""
    prefix: str = ""
    suffix: str = ""
    exclude: str = ""
    max_words: int = 0
    seed: int = 0
    temperature: float = 0.7
    max_tokens: int = 512
    thinking: bool = False

    def options(self) -> CaptionOptions:
        """The engine's options. Raises FastQwenError for a value that it refuses, or if there is nothing to ask."""
        prompt = self.prompt.strip() or None
        if self.style == OWN and prompt is None:
            raise FastQwenError(f"The style is {OWN!r} and the prompt is empty: write what to ask of the pictures.")
        return CaptionOptions(
            style=None if self.style == OWN else self.style,
            prompt=prompt,
            trigger=self.trigger,
            prefix=self.prefix,
            suffix=self.suffix,
            exclude=split_words(self.exclude),
            max_words=self.max_words or None,
        )


def captions(wish: CaptionWish, pictures, write: Callable[[TextRequest], Result]) -> tuple[list[str], str]:
    """A caption per picture [H, W, C], and a report in lines. Raises FastQwenError and what `write` raises.

    A reply that is no caption gives an empty one and a warning: the rest of a data set is not lost for it.
    """
    options = wish.options()
    texts, lines, reports = [], [], []
    for number, picture in enumerate(pictures, start=1):
        result = write(_request(wish, options, picture))
        reports.append(result.report)
        lines.append(f"picture {number}: {result.report.short()}")
        try:
            texts.append(finish(result.text, options, cut=result.report.stop_reason == LENGTH))
        except FastQwenError as error:
            texts.append("")
            lines.append(f"  warning: no caption: {error}")
    return texts, "\n".join([*lines, *notes_of(reports)])


def _request(wish, options, picture):
    return TextRequest(
        prompt=options.question,
        system=None,
        thinking=wish.thinking,
        template=True,
        settings=SamplingSettings(temperature=wish.temperature),
        seed=wish.seed,
        max_tokens=wish.max_tokens,
        mtp="auto",
        images=(picture,),
    )
