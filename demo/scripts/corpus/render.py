"""The small template language of the grammars.

A template is text with four kinds of marks:
    {slot}      a phrase drawn from the lexicon of that name, or a value of the scene (the, It, its ...)
    [is/are]    left form for a singular subject, right form for a plural one
    a~ word     "a" or "an" by the word that follows
Phrases drawn once are not drawn again inside one sample, so a prompt does not repeat an adjective.
"""

import random
import re

SLOT = re.compile(r"\{(\w+)\}")
NUMBER = re.compile(r"\[([^/\]]*)/([^\]]*)\]")
ARTICLE = re.compile(r"\b([Aa])~ (['\"]?)(\w+)")
HARD = ("uni", "use", "usu", "uti", "eur", "ewe", "one", "once", "ura")
SILENT = ("hour", "honest", "heir", "honour", "honor")


def article(word: str) -> str:
    """"a" or "an" for an English word (by its first letters)."""
    low = word.lower()
    if low.startswith(SILENT):
        return "an"
    if low.startswith(HARD) and not low.startswith(("unin", "unim", "unid")):
        return "a"
    return "an" if low[:1] in "aeiou" and low[:1] else "a"


def with_article(phrase: str) -> str:
    """`phrase` with its indefinite article."""
    return f"{article(phrase)} {phrase}"


def capital(text: str) -> str:
    """`text` with its first letter in upper case."""
    return text[:1].upper() + text[1:]


class Writer:
    """Expands templates for one sample; remembers what it has drawn."""

    def __init__(self, rng: random.Random, lexicon: dict, values: dict | None = None, plural: bool = False):
        self.rng, self.lexicon, self.values, self.plural = rng, lexicon, values or {}, plural
        self.used: set[str] = set()

    def pick(self, options) -> str:
        """One of `options` not drawn before in this sample, if any is left."""
        for _ in range(6):
            choice = self.rng.choice(options)
            if choice not in self.used:
                break
        self.used.add(choice)
        return choice

    def expand(self, template: str) -> str:
        """The finished text of `template`; KeyError for an unknown slot."""
        for _ in range(4):
            if "{" not in template:
                break
            template = SLOT.sub(self._slot, template)
        template = NUMBER.sub(lambda m: m.group(2 if self.plural else 1), template)
        return ARTICLE.sub(self._article, template)

    def _slot(self, match) -> str:
        name = match.group(1)
        if name in self.values:
            return self.values[name]
        low = name[:1].lower() + name[1:]
        if name != low:
            return capital(self.values[low] if low in self.values else self.pick(self.lexicon[low]))
        return self.pick(self.lexicon[name])

    @staticmethod
    def _article(match) -> str:
        word = article(match.group(3))
        return (word if match.group(1) == "a" else capital(word)) + " " + match.group(2) + match.group(3)
