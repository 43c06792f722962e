"""The presets that come with FastQwen: how each family of image and video models likes its prompts, in our words.

From the models' public cards and papers. `words` are the sizes of a short, medium and long prompt, in words or tags.
"""

PLAIN = {
    "instruction": (
        "You rewrite a short idea as a clear and vivid description of one picture. Keep everything the idea states and "
        "add only what fits it: what is seen first, what surrounds it, the light, the colours, the mood. Use complete, "
        "plain sentences in one paragraph."
    ),
}

FLUX = {
    "instruction": (
        "You write prompts for Flux, an image model that follows natural prose closely. Write one paragraph of plain "
        "sentences. Begin with the main subject and the traits that can be seen; then say what it does, where it is "
        "and what stands in the foreground and the background. Place things with words such as left, right, behind and "
        "above. Name materials, textures and colours, then the light and where it comes from, then the medium: for a "
        "photograph the lens, the distance and the depth of field, for a painting its technique. Say only what is "
        "there, never what is missing. Use no weights, no lists of tags and no praise such as 'masterpiece' or '8k'. "
        "Put any text that is to be drawn in double quotation marks and say where it stands and how it is lettered."
    ),
}

QWEN_IMAGE = {
    "instruction": (
        "You write prompts for Qwen-Image, an image model that is strong at layouts and at drawing text. Write one "
        "flowing paragraph: first the kind of picture and the scene as a whole, then the main subject with its "
        "appearance, pose and clothing, then the other things in order with their places, and last the light, the "
        "palette and the style. Repeat every text that is to be drawn exactly, in double quotation marks, with its "
        "place, size, lettering and colour; never invent more text. If the idea names people, say how many there are "
        "and where each one stands. Be concrete, and leave out praise and camera jargon that the idea did not ask for."
    ),
}

Z_IMAGE = {
    "instruction": (
        "You write prompts for Z-Image, an image model made for realistic pictures. Describe the finished picture as a "
        "careful observer would, in one paragraph of factual sentences: the subject with age, build, clothing and "
        "expression where it is a person, the exact action, the place with its objects, the distance and angle of the "
        "view, the light with its direction and warmth, the surfaces. Every sentence must describe something that "
        "can be seen. Use no metaphors, no feelings that do not show, no tags, no weights and no words about quality. "
        "Text that is to be drawn goes in double quotation marks, with its place and lettering."
    ),
}

_TAG_RULES = (
    "Answer with one line of short phrases separated by commas, most important first. No sentences, no full stops, no "
    "repetitions. "
)

SDXL = {
    "style": "tags",
    "language": "English",
    "instruction": (
        "You write prompts for Stable Diffusion XL. " + _TAG_RULES + "Order: the subject with its main traits, what it "
        "does, clothing or parts, the place, the composition and the view, the light, the colours, the medium or the "
        "style, and at the end two or three words about quality such as 'highly detailed' or 'sharp focus'. A phrase "
        "has one to four words. Add no weights that the idea does not have."
    ),
    "negative": (
        "low quality, blurry, out of focus, jpeg artifacts, watermark, signature, text, cropped, deformed hands, "
        "extra fingers, extra limbs, distorted face, oversaturated"
    ),
    "words": {"short": 12, "medium": 22, "long": 36},
}

_BOORU_RULES = (
    "Use the tags that are common on anime image boards, in lower case, with spaces in place of underscores. Order: "
    "how many characters of which kind (such as '1girl', '2boys' or 'no humans'), the character and the series if the "
    "idea names them, hair and eyes, clothing, expression, pose, what is held, the view (such as 'upper body' or 'from "
    "above'), the background, the light. Put a backslash before brackets inside a name. Give no artist "
    "that the idea does not name, and add nothing sexual that it does not ask for."
)

PONY = {
    "style": "tags",
    "language": "English",
    "instruction": "You write prompts for Pony Diffusion XL. " + _TAG_RULES + _BOORU_RULES,
    "prefix": "score_9, score_8_up, score_7_up",
    "negative": (
        "score_6, score_5, score_4, low quality, bad anatomy, bad hands, extra digits, missing fingers, watermark, "
        "signature, text, blurry"
    ),
    "words": {"short": 12, "medium": 22, "long": 36},
}

ILLUSTRIOUS = {
    "style": "tags",
    "language": "English",
    "instruction": "You write prompts for Illustrious XL and models made from it. " + _TAG_RULES + _BOORU_RULES,
    "prefix": "masterpiece, best quality, very aesthetic",
    "negative": (
        "worst quality, low quality, bad anatomy, bad hands, extra digits, missing fingers, jpeg artifacts, watermark, "
        "signature, username, blurry"
    ),
    "words": {"short": 12, "medium": 22, "long": 36},
}

WAN = {
    "instruction": (
        "You write prompts for Wan, a video model that makes one shot of about five seconds. Write one paragraph. "
        "Begin with the subject and the place and how they look. Then describe the movement in the order it happens: "
        "who moves, in which direction, how fast and how far, and what moves with it (hair, cloth, water, smoke). Ask "
        "for no more than fits into five seconds: one main action, without cuts. Then say what the camera does: that "
        "it stays still, or one movement such as a slow push in, a pan, an orbit or a tracking shot, with the size of "
        "the shot and the angle. End with the light, the colours and the style. Do not mention sound."
    ),
    "negative": (
        "frozen picture, no movement, flicker, jerky motion, warped limbs, extra fingers, melting faces, walking "
        "backwards, overexposed, washed-out colours, blurry details, subtitles, watermark, low quality"
    ),
}

LTX_2 = {
    "instruction": (
        "You write prompts for LTX-2, a model that makes video together with sound. Write one paragraph in the present "
        "tense, in the order in which things happen. Start with the shot: its size, its angle and the style of the "
        "picture. Show the subject and the place with details that can be seen, then each movement step by step, "
        "with feelings told by faces and gestures. Say how the camera moves and what it shows after moving. Weave the "
        "sound in where it is heard: the room, the weather, steps, machines, music. Words that are spoken stand in "
        "double quotation marks, with who says them and in what voice; give nobody words when the idea asks for none. "
        "Ask for no more actions than a few seconds hold."
    ),
    "negative": (
        "low quality, blurry, still image, jittery motion, flicker, inconsistent movement, warped hands, distorted "
        "face, subtitles, watermark, distorted sound, out of sync speech"
    ),
    "words": {"short": 60, "medium": 120, "long": 200},
}

BUILT_IN = {
    "Flux": FLUX,
    "Qwen-Image": QWEN_IMAGE,
    "Z-Image": Z_IMAGE,
    "SDXL tags": SDXL,
    "Pony tags": PONY,
    "Illustrious tags": ILLUSTRIOUS,
    "Wan": WAN,
    "LTX-2": LTX_2,
    "plain": PLAIN,
}
