"""What a prompt says about a subject itself, by kind; and what subjects of a kind can be doing in an idea."""

BIRDS = set("""owl crow raven eagle hawk heron swan duck goose penguin parrot peacock hummingbird robin sparrow flamingo pelican seagull
rooster hen stork crane woodpecker kingfisher""".split())
SMOOTH = set("""frog toad turtle tortoise snake lizard chameleon gecko octopus jellyfish shark goldfish seahorse crab lobster whale dolphin
salmon beetle spider snail ladybug bee dragonfly butterfly moth elephant rhino hippo""".split())

BODIES = {
    "fur": ["{Its} thick fur catches the light in {soft} {colour} tones", "Every hair is visible, from the ears to the tip of the tail", "{Its} eyes are bright and alert", "{Its} ears are raised and {its} [gaze is/gazes are] steady",
            "{The} [looks/look] toward the viewer with a calm expression", "The fur is {texture} and detailed, with {colour} highlights", "{Its} whiskers and eyelashes are drawn in fine detail", "{The} [pauses/pause] with one paw raised",
            "{Its} breath is just visible in the air", "{The} [seems/seem] relaxed but aware of every sound", "A small spark of light shines in {its} eyes", "{Its} [body forms a clear, simple silhouette/bodies form a clear, simple group]"],
    "feather": ["{Its} feathers show {texture} patterns in {colour} and {colour}", "Every feather is clear and carefully layered", "{Its} eyes are round, bright and focused", "{The} [turns/turn] slightly, showing a clean profile",
                "A {soft} sheen of {colour} runs along the wings", "{The} [seems/seem] ready to take flight at any moment", "{Its} wings are half open and full of detail", "{The} [holds/hold] perfectly still and [watches/watch] the distance"],
    "smooth": ["{Its} skin shows {texture} patterns in {colour} and {colour}", "Light slides over {its} smooth surface", "{Its} shape is simple, elegant and easy to read", "Tiny details and {colour} spots cover {its} body",
               "{Its} eyes reflect a point of light", "{The} [moves/move] slowly, with {soft} curves", "Every curve of {its} body is drawn in fine detail"],
    "person": ["{Its} [face shows/faces show] quiet concentration", "{He} [wears/wear] a~ {colour} {fabric} with {texture} folds", "{Its} expression is {mood} and natural", "Loose strands of hair move in the air", "{Its} hands are drawn with care and show every gesture",
               "{Its} eyes are focused on something beyond the frame", "The fabric of the {fabric} has {texture} details", "{The} [looks/look] past the viewer with a~ {mood} expression", "{Its} pose is relaxed and believable",
               "Small details such as buttons, seams and stitches are visible", "{Its} skin has a natural texture, with {soft} highlights on the cheeks", "A~ {colour} {fabric} gives {it} a clear silhouette", "{Its} gaze is steady and full of {feeling}"],
    "creature": ["{Its} [form is/forms are] {texture} and full of strange details", "{Its} eyes glow with a {soft} {colour} light", "Faint {colour} light runs along {its} body", "{The} [towers/tower] over the scene without feeling cruel", "{Its} surface mixes {texture} and {colour} details",
                 "{The} [moves/move] with slow, heavy grace", "Small sparks and particles drift around {it}", "{Its} silhouette is clear and memorable", "{The} [looks/look] both powerful and gentle", "Every scratch and mark tells part of {its} story",
                 "{Its} expression is curious rather than dangerous"],
    "building": ["The walls are made of {stone} with {texture} details", "Warm light glows in a few of the windows", "Ivy climbs over one side of {the}", "Smoke or mist curls around the roof", "{Its} outline is sharp against the sky", "Old steps lead up to the entrance",
                 "The surface shows the marks of many years", "Small details such as hinges, lamps and railings are clear", "{The} [rises/rise] above everything around {it}", "Shadows collect under the arches and edges", "The windows reflect streaks of {colour}",
                 "A narrow path leads to {its} door"],
    "vehicle": ["{Its} surface is {metal} with {colour} details", "Scratches and dust show that {he} [has/have] travelled far", "The lights glow with a {soft} {colour} beam", "Reflections slide along {its} curves", "Small mechanical parts are drawn in fine detail",
                "A trail of dust and light hangs behind {it}", "{The} [looks/look] solid, heavy and real", "{Its} lines are clean and full of energy", "The windows reflect the sky and the ground"],
    "landscape": ["Several layers of depth lead from the foreground to the horizon", "Details in the foreground are sharp, while the distance fades into {colour} haze", "The shapes are natural, {soft} and full of variety", "The sky takes up a large part of the frame, with {soft} clouds",
                  "Small details reward a closer look", "The eye follows a natural line into the distance", "Patches of {colour} and {colour} break up the larger shapes", "The air looks clear and fresh", "There are no people in the scene, only space and silence"],
    "object": ["{Its} surface is {texture}, with small scratches and {colour} reflections", "The material looks real enough to touch", "Light runs along {its} edges and picks out every detail", "{The} [casts/cast] a {soft} shadow to one side", "Signs of age make {it} feel loved and used",
               "Fine patterns cover {the}", "{The} [shows/show] subtle details in {colour} and {colour}", "{Its} shape is simple and elegant", "A thin layer of dust catches the light", "Every small part of {the} is sharp and clear"],
    "food": ["Steam and light make {the} look fresh", "The textures look rich, from crisp edges to soft centres", "Small crumbs and drops are scattered nearby", "The colours are warm, with {colour} and {colour} accents", "{The} [is/are] served on a simple ceramic plate",
             "A~ {colour} cloth lies folded beside {it}", "Every detail looks fresh and carefully prepared", "Highlights shine on the moist surface"],
    "plant": ["{Its} leaves show {texture} veins and {soft} edges", "Drops of dew hang from the edges", "The colours shift from {colour} to {colour}", "Light shines through the thin parts and makes them glow", "{Its} stem and roots form a graceful line", "A few fallen petals or leaves lie below",
              "{The} [reaches/reach] toward the light", "Tiny insects hover nearby"],
    "thing": ["{The} [is/are] shown in fine detail, with {texture} surfaces and {colour} accents", "Every part of {the} is clear and believable", "{Its} shape is easy to read and full of character", "Small details make {the} feel real", "{Its} colours are mostly {colour} and {colour}",
              "{The} [is/are] the clear focus of the image", "Fine {texture} textures cover {the}", "{The} [has/have] a strong, simple silhouette", "Soft highlights follow the edges of {the}", "The eye goes to {the} first, then to the setting"],
}

ACTIONS = {
    "animal": """sleeping; running; jumping; looking at the moon; looking at the viewer; drinking water; playing with a ball; wearing a hat; wearing a red scarf; reading a book;
hunting; resting; walking; sitting on a chair; drinking tea; playing the piano; chasing a butterfly; hiding behind a tree; looking out of a window; riding a bicycle; wearing glasses;
standing on a rock; yawning; watching the rain; catching a fish; sitting on a throne; wearing a crown; flying a kite; playing chess; in a spacesuit; cooking soup; wearing armor; driving a car""",
    "person": """reading a book; playing the violin; playing a guitar; walking a dog; holding a lantern; holding a sword; looking at the stars; drinking coffee; dancing; sleeping; writing a letter;
painting a picture; fishing; riding a horse; riding a bicycle; waiting for a train; cooking; feeding birds; climbing a ladder; repairing a clock; carrying a basket of flowers; holding an umbrella; playing chess;
looking out of a window; wearing a red coat; wearing a mask; standing alone; sitting on a bench; with red hair; with a long white beard; with blue eyes; in a yellow raincoat; in a black suit; walking; running; smiling;
holding a map; talking to a robot; planting a tree; baking bread; meditating; singing; watching a sunset; rowing a boat; flying a kite; opening a door; holding a cat""",
    "creature": """sleeping; flying; guarding a treasure; reading a book; holding a flower; looking at the stars; playing chess; drinking tea; walking; watering a plant; painting a picture; resting on a rock;
rising from the water; breathing fire; sitting on a throne; playing a flute; standing guard; dancing; carrying a lantern; holding a balloon; cooking dinner; hiding; watching over a village; feeding a bird; repairing a clock""",
    "building": """covered in ivy; covered in snow; with glowing windows; with a red roof; with a blue door; on fire; made of glass; with a tall tower; under construction; seen from above; surrounded by flowers; built into a cliff""",
    "vehicle": """driving fast; covered in rust; crossing a bridge; parked under a tree; leaving the station; sailing into a storm; taking off; landing; racing; with bright headlights; covered in flowers; full of books; half buried in sand""",
    "landscape": """with a small cabin; with a winding river; with a lone tree; with fog; with a rainbow; seen from above; with distant mountains; full of flowers; with a wooden bridge; with a herd of deer""",
    "object": """covered in dust; full of stars; glowing; wrapped in vines; made of glass; covered in moss; floating in the air; with golden details; half buried in sand; with a galaxy inside; lying open; next to a candle""",
    "food": """with steam rising; with fresh herbs; with whipped cream; on a wooden board; with chocolate sauce; next to a window; with a candle; with fresh berries""",
    "plant": """in full bloom; covered in frost; covered in dew; growing through a crack; glowing; in a clay pot; swaying in the wind; with a bee; wrapped in lights; growing from an old book""",
    "thing": """glowing; floating; covered in moss; made of glass; seen from above; with golden details; sleeping; standing alone; in motion; surrounded by flowers""",
}
ACTIONS = {kind: [a.strip() for a in text.replace("\n", " ").split(";")] for kind, text in ACTIONS.items()}
FITS = {  # kinds of setting that suit a kind of subject when the idea names none
    "animal": "snow forest city rain sea water mountain desert field garden room ruins",
    "person": "snow forest city rain sea water mountain desert field garden room hall workshop ruins space market",
    "creature": "snow forest city rain sea mountain desert field garden hall workshop ruins space sky",
    "building": "snow forest rain sea water mountain desert field garden", "vehicle": "snow forest city rain mountain desert field market",
    "landscape": "plain", "object": "room hall workshop forest ruins field garden", "food": "room garden market",
    "plant": "snow forest rain field garden room ruins mountain", "thing": "snow forest city sea mountain field garden room hall space plain",
}
FITS = {kind: text.split() for kind, text in FITS.items()}
