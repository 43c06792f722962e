"""Types of options: argparse refuses a value that makes no sense in the option's own name and unit, before anything is
read or loaded."""

import argparse

FEWEST_ROWS = 512  # of mtp/short_head.py, which needs torch
LARGEST = 1e6  # of frames a second and of GB: what is above overflows where it is multiplied, and is a mistake
LARGEST_WHOLE = 10**15  # likewise
LONGEST = 40  # characters of a value in a sentence


def path(text: str) -> str:
    """A name that is not empty: an empty one would mean the current folder, or no name at all."""
    if not text:
        raise argparse.ArgumentTypeError("the name is empty: give a path")
    return text


def integer(text: str) -> int:
    """A whole number, negative ones too, of any size."""
    value = _read(int, text)
    if value is None:
        raise argparse.ArgumentTypeError(f"{_shown(text)} is no whole number")
    return value


def whole(low: int, unit: str = ""):
    """A whole number of at least `low`."""

    def convert(text: str) -> int:
        value = _whole(text)
        if value is None or value < low:
            of = unit and f" of {unit}"
            raise argparse.ArgumentTypeError(f"{_shown(text)} is no whole number{of} of at least {low}")
        return value

    return convert


def number(low: float, high: float, unit: str = "", *, above: bool = False):
    """A number from `low` to `high`, with `above` from above `low`. NaN is none."""

    def convert(text: str) -> float:
        value = _read(float, text)
        if value is None or not low <= value <= high or (above and value == low):
            lower = f"above {low:g}" if above else f"of at least {low:g}"
            raise argparse.ArgumentTypeError(
                f"{_shown(text)} is no number{unit and ' of ' + unit} {lower} and at most {high:.0f}"
            )
        return value

    return convert


def draft_rows(text: str) -> int:
    """How many rows of the output head drafts choose from; 0: all."""
    value = _whole(text)
    if value is None or value and (value < FEWEST_ROWS or value % 16):
        raise argparse.ArgumentTypeError(
            f"{_shown(text)} is no multiple of 16 of at least {FEWEST_ROWS}, and not 0 for all"
        )
    return value


def _shown(text):
    return repr(text if len(text) <= LONGEST else text[:LONGEST] + "...")


def _whole(text):
    value = _read(int, text)
    if value is not None and value > LARGEST_WHOLE:
        raise argparse.ArgumentTypeError(f"{_shown(text)} is too large a number")
    return value


def _read(kind, text):
    try:
        return kind(text)
    except ValueError:
        return None
