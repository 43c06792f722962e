"""A subject of an idea: its noun phrase, how a later sentence refers to it, its pronouns."""

import dataclasses
import random

from . import bodies, words
from .render import with_article

NOUNS = {"animal": words.ANIMALS, "person": words.WOMEN + words.MEN + words.PEOPLE * 2, "creature": words.CREATURES, "building": words.BUILDINGS,
         "vehicle": words.VEHICLES, "landscape": words.LANDSCAPES, "object": words.OBJECTS, "food": words.FOODS, "plant": words.PLANTS}
SHARE = {"animal": 26, "person": 22, "creature": 11, "building": 8, "vehicle": 6, "landscape": 7, "object": 7, "food": 3, "plant": 5, "thing": 9}
COUNTS = ["two", "three", "four", "five", "a pair of", "a group of", "several", "many"]
HUMAN = ("person",)


@dataclasses.dataclass
class Subject:
    """One subject; `kind` is a key of bodies.ACTIONS, `count` is "" for one, `name` a proper name or ""."""

    noun: str
    kind: str
    adjective: str = ""
    count: str = ""
    action: str = ""
    name: str = ""
    gender: str = "it"
    bare: bool = False  # proper noun or mass phrase: no article

    @property
    def plural(self) -> bool:
        return bool(self.count)

    def head(self, adjective: bool = True) -> str:
        noun = words.plural(self.noun) if self.count else self.noun
        return f"{self.adjective} {noun}" if self.adjective and adjective else noun

    def phrase(self) -> str:
        """The first mention: "a red fox", "two old robots", "a baker named Orla", "Zorvia"."""
        if self.bare:
            return self.noun
        text = f"{self.count} {self.head()}" if self.count else with_article(self.head())
        return f"{text} named {self.name}" if self.name else text

    def the(self, rng: random.Random) -> str:
        if self.bare:
            return self.noun
        if self.name and rng.random() < 0.5:
            return self.name
        return "the " + self.head(adjective=rng.random() < 0.4)

    def pronouns(self) -> dict[str, str]:
        """Values of the slots he (subject), it (object), its (possessive)."""
        if self.plural:
            return {"he": "they", "it": "them", "its": "their"}
        return {"it": {"he": "it", "it": "it", "its": "its"}, "he": {"he": "he", "it": "him", "its": "his"},
                "she": {"he": "she", "it": "her", "its": "her"}}[self.gender]

    def body(self) -> list[str]:
        """The templates that describe it."""
        if self.kind == "animal":
            last = self.noun.split()[-1]
            kind = "feather" if last in bodies.BIRDS else "smooth" if last in bodies.SMOOTH or "fish" in self.noun or last == "ray" else "fur"
            return bodies.BODIES[kind]
        return bodies.BODIES[self.kind]


def _gender(noun: str, rng: random.Random) -> str:
    if noun in words.WOMEN:
        return "she"
    return "he" if noun in words.MEN else rng.choice(("he", "she"))


def draw(rng: random.Random, extra: list[str], kinds: tuple[str, ...] = (), simple: bool = False) -> Subject:
    """A random subject. `extra`: English words used as nouns of no known kind. `simple` leaves out action, name and count."""
    kind = rng.choices(list(kinds or SHARE), [SHARE[k] for k in (kinds or SHARE)])[0]
    if kind == "thing":
        return _unknown(rng, extra, simple)
    subject = Subject(rng.choice(NOUNS[kind]), kind)
    if rng.random() < 0.04:
        subject.noun = words.made_up(rng)
    if kind in HUMAN:
        subject.gender = _gender(subject.noun, rng)
    if rng.random() < 0.45:
        subject.adjective = _adjective(rng, subject, extra)
    if simple:
        return subject
    if rng.random() < 0.13 and kind not in ("food", "landscape"):
        subject.count = rng.choice(COUNTS[:4] if rng.random() < 0.6 else COUNTS)
    elif rng.random() < 0.12 and kind in ("person", "animal", "creature"):
        subject.name = words.proper_name(rng)
    if rng.random() < 0.45 and not subject.name:
        action = rng.choice(bodies.ACTIONS[kind])
        if not (subject.plural and (" a " in f" {action} " or " an " in action)):
            subject.action = action
    return subject


def _adjective(rng, subject: Subject, extra: list[str]) -> str:
    roll = rng.random()
    if roll < 0.70:
        choice = rng.choice(words.ADJECTIVES[subject.kind])
    elif roll < 0.90:
        choice = rng.choice(words.MATERIALS)
    elif roll < 0.96:
        choice = words.made_up(rng, 2)
    else:
        choice = rng.choice(extra) if extra else "strange"
    clash = set(choice.split("-")) & set(subject.noun.replace("-", " ").split())
    two = subject.noun.split()[0] in set(sum(words.ADJECTIVES.values(), []))  # "old old man", "tall tiny robot"
    return "" if clash or two else choice


def _unknown(rng, extra: list[str], simple: bool) -> Subject:
    roll = rng.random()
    if roll < 0.25:
        return Subject(words.made_up(rng), "thing", rng.choice(["", "", "small", "blue", "old", "glowing", words.made_up(rng, 2)]))
    if roll < 0.40:
        if rng.random() < 0.6:
            return Subject(words.proper_name(rng), "person", bare=True, action=rng.choice(["", rng.choice(bodies.ACTIONS["person"])]), gender=rng.choice(("he", "she")))
        return Subject(words.proper_name(rng), "thing", bare=True)
    noun = rng.choice(extra) if extra else words.made_up(rng)
    if rng.random() < 0.35:
        first = rng.choice(extra) if extra else "odd"
        noun = f"{first} {noun}" if first != noun else noun
    subject = Subject(noun, "thing")
    if rng.random() < 0.4:
        subject.adjective = rng.choice(["small", "old", "glowing", "red", "blue", "strange", "giant", "tiny", "golden", "broken", "quiet"])
    if not simple and rng.random() < 0.4:
        subject.action = rng.choice(bodies.ACTIONS["thing"])
    return subject
