"""Idea -> image prompt: the main task. An answer always repeats the idea's own words."""

import dataclasses
import random

from . import bodies, lexicon, places, subjects, words
from .render import Writer, capital, with_article

STILL = ("sleeping", "resting")
AWAKE = ("eyes", "looks", "gaze", "pauses", "watches", "ready", "aware", "expression")
MOVING = ("running", "jumping", "flying", "dancing", "chasing", "riding", "driving", "hunting", "yawning", "fighting", "walking", "racing")
WITH_IS = ("covered", "made", "wrapped", "parked", "seen", "surrounded", "built", "half")
ALL_SETTINGS = [(kind, phrase) for kind, phrases in places.SETTINGS.items() for phrase in phrases]
ALL_TIMES = [(kind, phrase) for kind, phrases in places.TIMES.items() for phrase in phrases]
RAIN_LIGHT = ["soft overcast light", "cool grey light", "gentle diffused daylight", "the glow of street lamps"]


@dataclasses.dataclass
class Idea:
    """What the user has in mind. Empty text = the idea does not say; `style` names a medium."""

    subjects: list
    setting: str = ""
    setting_kind: str = ""
    time: str = ""
    time_kind: str = ""
    style: str = ""

    @property
    def many(self) -> bool:
        return len(self.subjects) > 1 or self.subjects[0].plural

    def nouns(self, with_action: bool = True) -> str:
        text = " and ".join(s.phrase() for s in self.subjects)
        action = self.subjects[-1].action
        return f"{text} {action}" if action and with_action else text


def draw(rng: random.Random, extra: list[str]) -> Idea:
    """A random idea; `extra` are English words used as unknown nouns."""
    if rng.random() < 0.13:
        idea = _pair(rng, extra)
    else:
        idea = Idea([subjects.draw(rng, extra)])
    first = idea.subjects[0]
    if first.kind != "landscape" and rng.random() < 0.66:
        _set_place(rng, idea, extra)
    if idea.setting and first.action.endswith(" " + idea.setting.split()[0]):
        first.action = ""
    if idea.setting_kind not in places.NO_TIME and rng.random() < 0.22 and "night" not in idea.setting and "stars" not in idea.setting:
        idea.time_kind, idea.time = rng.choice(ALL_TIMES)
    if rng.random() < 0.16:
        idea.style = rng.choice(lexicon.LEXICON["art" if rng.random() < 0.8 else "photo"])
    return idea


def _set_place(rng, idea: Idea, extra: list[str]) -> None:
    if rng.random() < 0.12:
        place = rng.choice(words.PLACES) if rng.random() < 0.6 else words.made_up(rng, 2).capitalize()
        idea.setting, idea.setting_kind = f"{'on' if place in ('Mars', 'the Moon') else 'in'} {place}", "space" if place in ("Mars", "the Moon") else "plain"
    elif extra and rng.random() < 0.07:
        idea.setting, idea.setting_kind = rng.choice(("in a {}", "near a {}", "beside a {}", "inside a {}")).replace(" a {}", " " + with_article(rng.choice(extra))), "plain"
    else:
        kinds = bodies.FITS[idea.subjects[0].kind]
        kind, phrase = rng.choice(ALL_SETTINGS)
        if kind not in kinds and rng.random() < 0.7:  # odd combinations stay possible: a whale in a library
            kind = rng.choice([k for k in kinds if k != "plain"] or ["field"])
            phrase = rng.choice(places.SETTINGS[kind])
        idea.setting_kind, idea.setting = kind, phrase


def _pair(rng, extra) -> Idea:
    kinds = ("animal", "person", "creature", "thing") if rng.random() < 0.8 else ("object", "food", "plant")
    first, second = subjects.draw(rng, extra, kinds, simple=True), subjects.draw(rng, extra, kinds, simple=True)
    while second.noun == first.noun:
        second = subjects.draw(rng, extra, kinds, simple=True)
    if rng.random() < 0.45 and kinds[0] == "animal":
        second.action = rng.choice(["playing chess", "dancing", "walking", "sleeping", "having tea", "watching the sky", "fighting", "sharing an umbrella", "looking at the stars", "reading a book",
                                    "talking", "riding a bicycle", "running", "sitting together", "playing music", "cooking"])
    return Idea([first, second])


def idea_text(rng: random.Random, idea: Idea) -> str:
    """The idea as a user would type it: with or without articles, as keywords, with the style first or last."""
    setting, time = idea.setting, idea.time
    roll = rng.random()
    if roll < 0.12 and len(idea.subjects) == 1 and not idea.subjects[0].name:
        parts = [idea.subjects[0].head() if not idea.subjects[0].bare else idea.subjects[0].noun, idea.subjects[0].action, _strip(setting), _strip(time)]
        text = ", ".join(p for p in parts if p)
    else:
        text = " ".join(p for p in (idea.nouns(), setting, time) if p)
        if roll < 0.32 and text.startswith(("a ", "an ")):
            text = text.split(" ", 1)[1]
    if idea.style:
        form = rng.choice(["{s} of {t}", "{as} of {t}", "{t}, {s}", "{t}, {s}", "{t} in the style of {as}", "{t} as {as}", "{t}. Style: {s}"])
        text = form.replace("{as}", with_article(idea.style)).replace("{s}", idea.style).replace("{t}", text)
    if rng.random() < 0.25:
        text = capital(text)
    return text + "." if rng.random() < 0.12 else text


def _strip(phrase: str) -> str:
    tokens = phrase.split()
    while len(tokens) > 1 and tokens[0] in ("in", "on", "at", "by", "under", "during", "a", "an", "the", "near", "deep", "beside", "among", "inside"):
        tokens.pop(0)
    return " ".join(tokens)


def _light(rng, idea: Idea) -> str:
    kind = idea.setting_kind
    if kind in places.INDOOR:
        return rng.choice(places.LIGHT["room"])
    if kind in ("underwater", "space"):
        return rng.choice(places.LIGHT[kind])
    if _grey(idea) and idea.time_kind in ("", "day", "dawn"):
        return rng.choice(RAIN_LIGHT)
    return rng.choice(places.LIGHT[idea.time_kind or "day"])


def _grey(idea: Idea) -> bool:
    """True when the setting's weather leaves no clear sun."""
    return idea.setting_kind == "rain" or any(word in idea.setting for word in ("storm", "blizzard", "misty", "falling snow"))


def complete(rng: random.Random, idea: Idea) -> Idea:
    """A copy with what the idea left open: a setting that suits the subject, a time of day, a medium."""
    full = dataclasses.replace(idea)
    if not full.setting and full.subjects[0].kind != "landscape":
        full.setting_kind = rng.choice(bodies.FITS[full.subjects[0].kind])
        if full.setting_kind != "plain" and rng.random() < 0.95:
            full.setting = rng.choice(places.SETTINGS[full.setting_kind])
    full.setting_kind = full.setting_kind or "plain"
    if "night" in full.setting or "stars" in full.setting:
        full.time_kind = "night"
    elif not full.time_kind and full.setting_kind not in places.NO_TIME:
        full.time_kind, phrase = rng.choice(ALL_TIMES)
        full.time = phrase if rng.random() < 0.55 and not (_grey(full) and any(w in phrase for w in ("sun", "bright", "noon", "summer", "golden", "moon", "stars"))) else ""
    if not full.style:
        full.style = rng.choice(lexicon.LEXICON["photo" if rng.random() < 0.6 else "art"])
        if full.subjects[0].kind in ("landscape", "building"):
            full.style = full.style.replace("close-up", "wide")
    return full


def _values(rng, idea: Idea, subject, light: str) -> dict[str, str]:
    scene = " ".join(p for p in (idea.nouns(), idea.setting) if p)
    time = f" {idea.time}" if idea.time else ""
    the = " and ".join(s.the(rng) for s in idea.subjects) if len(idea.subjects) > 1 and subject is idea else (subject if subject is not idea else idea.subjects[0]).the(rng)
    pronouns = {"he": "they", "it": "them", "its": "their"} if subject is idea and idea.many else (idea.subjects[0] if subject is idea else subject).pronouns()
    return {"scene": scene, "time": time, "np": idea.nouns(), "set": idea.setting, "medium": idea.style, "light": light, "the": the, **pronouns}


OPENERS = ["A~ {medium} of {scene}{time}", "A~ {mood} {medium} of {scene}{time}", "{Scene}{time}, shown as a~ {mood} {medium}", "{Scene}{time}, rendered as a~ {medium}", "The scene shows {scene}{time}",
           "This {medium} shows {scene}{time}", "A detailed {medium} showing {scene}{time}", "{Scene}{time}, lit by {light}", "A~ {mood} scene: {scene}{time}", "A~ {medium} with {scene} as the main subject",
           "The focus of this {medium} is {scene}{time}", "Picture {scene}{time}, seen from {angle}", "A highly detailed {medium} of {scene}{time}, with {light}", "{Scene}{time}"]


def _opener(rng, idea: Idea, writer: Writer) -> str:
    action = idea.subjects[-1].action
    verbal = action.split(" ")[0].endswith("ing") and action.split(" ")[0] not in ("glowing", "floating") or action.split(" ")[0] in WITH_IS if action else False
    if verbal and rng.random() < 0.25 and (idea.setting or idea.time):
        lead = idea.setting if idea.setting and rng.random() < 0.6 else idea.time
        rest = idea.setting if lead != idea.setting else ""
        if lead:
            be = "are" if idea.many else "is"
            return f"{capital(lead)}, {idea.nouns(False)} {be} {action}" + (f" {rest}" if rest else "")
    if idea.setting and rng.random() < 0.14:
        return writer.expand("{Set}{time}, {np} [becomes/become] the clear centre of a~ {mood} {medium}" if not idea.many else "{Set}{time}, {np} fill the centre of a~ {mood} {medium}")
    return writer.expand(rng.choice(OPENERS))


def _technique(rng, idea: Idea, general: Writer) -> list[str]:
    style = idea.style
    if "photo" in style or "film" in style:
        return [general.expand(rng.choice(lexicon.CAMERA))]
    for key in lexicon.SURFACE:
        if key in style:
            return [rng.choice(lexicon.SURFACE[key])]
    return [f"The style is that of {with_article(style)}, with clear shapes and careful detail"]


def _subject_lines(rng, idea: Idea, writers: list[Writer], count: int) -> list[str]:
    lines = []
    for index in range(count):
        subject, writer = idea.subjects[index % len(idea.subjects)], writers[index % len(writers)]
        options = subject.body()
        action = idea.subjects[-1].action
        if any(word in action for word in MOVING):
            options = [t for t in options if "still" not in t and "pause" not in t and "relaxed" not in t]
        if any(word in action for word in STILL):
            options = [t for t in options if not any(word in t for word in AWAKE)] or bodies.BODIES["thing"][:2]
        if subject.plural:
            options = [t for t in options if "{fabric}" not in t and "{He}" not in t] or options
        if len(idea.subjects) > 1:  # with two subjects a pronoun would be unclear: name the one meant
            options = [t for t in options if t.startswith("{The}")] or bodies.BODIES["thing"][:1]
        lines.append(writer.expand(writer.pick(options)))
    return lines


def answer(rng: random.Random, idea: Idea) -> tuple[str, str]:
    """(the image prompt of 60 to 120 words, the light it uses) for a completed idea."""
    light = _light(rng, idea)
    first = idea.subjects[0].kind
    phrases = lexicon.for_scene(rng, first, idea.time_kind)
    general = Writer(rng, phrases, _values(rng, idea, idea, light), idea.many)
    writers = [Writer(rng, phrases, _values(rng, idea, s, light), s.plural) for s in idea.subjects]
    for writer in writers:
        writer.used = general.used
    opener = _opener(rng, idea, general)
    middle = _subject_lines(rng, idea, writers, max(len(idea.subjects), rng.choice((1, 2, 2))))
    details = [general.expand(t) for t in rng.sample(places.DETAILS[idea.setting_kind], rng.choice((1, 2, 2)))]
    if len(details) == 2 and rng.random() < 0.4:
        details = [details[0] + rng.choice((", while ", ", and ")) + details[1][0].lower() + details[1][1:]]
    uses = [t for t in places.LIGHT_USE if "{the}" not in t.lower() or first != "landscape"]
    lighting = [] if light in opener else [general.expand(rng.choice(uses))]
    composition = [t for t in lexicon.COMPOSITION if "{the}" not in t.lower() or first != "landscape"]
    body = middle + details if rng.random() < 0.65 else details + middle
    if rng.random() < 0.3:
        body = lighting + body
    else:
        body = body + lighting
    technique = _technique(rng, idea, general)
    early = rng.random() < 0.75
    body += technique if early else []
    close = [general.expand(rng.choice(lexicon.MOOD))]
    late = [general.expand(rng.choice(composition)), *([] if early else technique)]
    near = _subject_lines(rng, idea, writers, 2) + [general.expand(t) for t in rng.sample(places.DETAILS[idea.setting_kind], 2)]
    return _fit(rng.randint(64, 102), opener, body, late, near, close), light


def _same(line: str, other: str) -> bool:
    """True when two sentences come from one template (they begin or end alike) or one holds the other."""
    return line.split()[:4] == other.split()[:4] or line.split()[-3:] == other.split()[-3:] or line[1:] in other or {line.split(" ")[0], other.split(" ")[0]} == {"Shot"} or _technical(line) and _technical(other)


def _technical(line: str) -> bool:
    return any(word in line for word in ("lens", "camera", "Captured", "depth of field", "framing", "Wide framing"))


def _fit(target: int, opener: str, body: list[str], late: list[str], near: list[str], close: list[str]) -> str:
    """Joins sentences: below `target` words adds from `late` (at the end) and `near` (next to the opener, where a
    pronoun is still clear); above 115 words drops from the end of the body."""
    def count() -> int:
        return sum(len(s.split()) for s in [opener, *body, *close])

    while late + near and count() < target:
        source = late or near
        line = source.pop(0)
        if not any(_same(line, other) for other in body):
            body.insert(len(body) if source is late else 0, line)
    while len(body) > 2 and count() > 115:
        body.pop()
    return " ".join(capital(s) + "." for s in [opener, *body, *close])
