"""The one error class for a user's mistake."""


class FastQwenError(ValueError):
    """Bad input, told in one sentence: what was found, where, and what to do about it."""
