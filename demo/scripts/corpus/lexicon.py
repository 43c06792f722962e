"""Phrases shared by all prompt templates: colours, textures, media, camera and mood words."""


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.replace("\n", " ").split(",") if part.strip()]


LEXICON = {
    "colour": _split("amber, teal, deep blue, crimson, gold, silver, violet, emerald, rust, cream"),
    "soft": _split("soft, gentle, delicate, smooth, faint, subtle, light"),
    "texture": _split("fine, rough, worn, smooth, natural, intricate, rich, tactile, weathered"),
    "tone": _split("warm, cool, quiet, dreamy, golden, muted, rich, calm, dramatic, natural"),
    "side": _split("left, right, side, back, upper left, upper right"),
    "fabric": _split("wool coat, linen shirt, leather jacket, long cloak, knitted scarf, velvet robe, raincoat, embroidered vest, simple tunic, patched coat, silk shawl"),
    "stone": _split("weathered stone, old brick, dark timber, pale plaster, rough granite, carved wood, cracked concrete, polished marble"),
    "metal": _split("polished chrome, brushed steel, worn brass, painted metal, scratched copper, dented iron"),
    "angle": ["a low angle", "eye level", "a slightly high angle", "a three-quarter view", "a wide angle", "a close distance", "a respectful distance", "ground level", "a bird's eye view"],
    "lens": ["an 85mm lens", "a 35mm lens", "a 50mm lens", "a wide 24mm lens", "a macro lens", "a long telephoto lens", "a vintage lens"],
    "photo": ["photograph", "cinematic photograph", "editorial photograph", "film photograph", "wide photograph", "close-up photograph", "documentary photograph", "film still"],
    "art": ["watercolor painting", "oil painting", "digital painting", "ink drawing", "pencil sketch", "children's book illustration", "concept art piece", "gouache painting", "pastel drawing",
            "vintage poster", "woodblock print", "comic panel", "anime illustration", "pixel art scene", "charcoal drawing", "fantasy illustration", "stained glass design", "paper collage",
            "3D render", "low poly render", "claymation scene", "line art drawing", "impressionist painting", "art nouveau poster", "isometric illustration"],
    "adverb": _split("quietly, calmly, alone, softly, boldly, proudly, peacefully"),
    "place_in_frame": ["in the centre of the frame", "slightly left of centre", "slightly right of centre", "in the lower third of the frame", "in the foreground", "close to the viewer", "small against the wide background"],
}

SURFACE = {
    "watercolor": ["Soft washes of colour bleed into the paper", "Loose brushwork leaves patches of white paper", "Thin layers of pigment give a light, airy feel"],
    "oil": ["Thick brush strokes are visible on the canvas", "Rich layers of paint catch the light", "The paint is laid on in bold, confident strokes"],
    "ink": ["Clean black lines vary from thin to bold", "Fine hatching builds the shadows", "Empty space balances the dark strokes"],
    "pencil": ["Light pencil lines and careful shading build the form", "Smudged graphite softens the background", "The paper grain shows through the shading"],
    "anime": ["Clean outlines and flat shading keep the shapes clear", "Large expressive shapes and bright colours fill the frame", "The background is painted with great care"],
    "pixel": ["Every shape is built from crisp square pixels", "A limited palette keeps the image clear", "Small blocks of colour suggest the details"],
    "3D": ["Smooth materials and soft global light give it a polished look", "Every surface has a clear material and a fine finish", "Subtle reflections make the shapes feel solid"],
    "comic": ["Bold outlines and halftone dots give it energy", "Strong shadows divide the panel", "Flat colours and thick lines keep it readable"],
    "paint": ["Visible brush strokes give the surface life", "The brushwork is loose in the background and precise in the centre", "Layers of colour build up a rich surface"],
    "drawing": ["Careful lines describe every edge", "The lines are loose and full of energy", "Simple shapes and clear outlines guide the eye"],
    "print": ["Flat shapes and a limited palette make it bold", "Strong shapes and clear borders organise the picture", "The colours are few but well chosen"],
    "illustration": ["The shapes are simple, friendly and easy to read", "Clear silhouettes and rich colours tell the story", "The style is detailed but never crowded"],
}

CAMERA = [
    "Shot from {angle} with {lens}, shallow depth of field", "The camera looks from {angle}, with {the} sharp and the background blurred", "Taken with {lens}, natural colours, fine grain",
    "A shallow depth of field keeps the focus on {the}", "Shot with {lens}, crisp focus, {tone} colour grading", "The framing is tight and the focus is sharp on {the}",
    "Wide framing leaves room around {the}", "Captured from {angle}, high detail, realistic textures",
]
COMPOSITION = [
    "{The} [stands/stand] out {place_in_frame}", "The composition places {the} {place_in_frame}", "Strong lines lead the eye toward {the}", "The view is from {angle}",
    "Negative space around {the} keeps the image simple", "{The} [is/are] placed {place_in_frame}, with open space around {it}", "The composition is balanced, with clear layers of depth",
    "The palette is limited to {colour}, {colour} and {colour}", "The colours are {colour} and {colour}, with a touch of {colour}", "A palette of {colour} and {colour} ties everything together",
]
MOOD = [
    "The mood is {mood} and {mood}", "The overall feeling is one of {feeling}", "It feels {mood}, {mood} and full of {feeling}", "The image has a {mood} mood and a sense of {feeling}",
    "The whole scene suggests {feeling} and {feeling}", "The atmosphere is {mood}, with a hint of {feeling}", "Mood: {mood}, {mood}", "Everything about the scene feels {mood}",
    "A {mood} atmosphere with a strong sense of {feeling}", "The result is {mood} and detailed", "The final image is {mood}, rich in detail and easy to read",
]
MOOD = [m.replace("a {mood}", "a~ {mood}").replace("A {mood}", "A~ {mood}") for m in MOOD]

PALETTES = {
    "warm": _split("amber, crimson, gold, rust, cream, copper, coral, orange, warm brown, honey yellow, brick red"),
    "cold": _split("teal, deep blue, silver, turquoise, indigo, slate grey, ivory, pale blue, icy white, steel blue"),
    "earth": _split("olive, rust, cream, ochre, moss green, warm brown, slate grey, sand, copper, dark green"),
    "vivid": _split("magenta, teal, violet, gold, emerald, orange, turquoise, crimson, lime green, electric blue"),
    "soft": _split("pale pink, lavender, cream, mint green, ivory, pale blue, peach, dusty rose, silver grey, pale yellow"),
    "dark": _split("black, deep blue, violet, dark green, silver, indigo, charcoal grey, blood red, bronze, deep purple"),
}
MOODS = {
    "calm": (_split("calm, peaceful, quiet, dreamy, tender, timeless, serene, gentle"), ["stillness", "warmth", "comfort", "hope", "quiet strength", "tenderness"]),
    "happy": (_split("cheerful, playful, joyful, cozy, hopeful, magical, bright, friendly"), ["wonder", "warmth", "curiosity", "freedom", "joy", "comfort"]),
    "dark": (_split("mysterious, tense, lonely, eerie, melancholy, quiet, dramatic, haunting"), ["solitude", "mystery", "tension", "longing", "silence", "suspense"]),
    "epic": (_split("epic, heroic, dramatic, magical, powerful, timeless, grand, bold"), ["adventure", "wonder", "freedom", "quiet strength", "mystery", "courage"]),
    "old": (_split("nostalgic, timeless, quiet, dreamy, melancholy, cozy, gentle, thoughtful"), ["nostalgia", "longing", "warmth", "solitude", "stillness", "memory"]),
}


def for_scene(rng, kind: str, time: str) -> dict:
    """The lexicon with one palette and one family of moods, so that a prompt's words agree with each other."""
    palettes = {"night": ("dark", "cold", "vivid"), "dusk": ("warm", "vivid", "soft", "earth"), "dawn": ("soft", "warm", "cold")}
    palette = rng.choice(palettes.get(time, ("warm", "cold", "earth", "vivid", "soft")))
    mood, feeling = MOODS[rng.choice(("dark", "epic", "calm", "old") if time == "night" else ("calm", "happy", "epic", "old", "calm", "happy", "dark"))]
    lenses = LEXICON["lens"] if kind in ("object", "food", "plant", "animal") else [x for x in LEXICON["lens"] if "macro" not in x]
    return LEXICON | {"colour": PALETTES[palette], "mood": mood, "feeling": feeling, "lens": lenses}
