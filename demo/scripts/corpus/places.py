"""Settings of ideas by kind: phrases an idea may use, and what a prompt says about them."""

SETTINGS = {
    "snow": """in the snow; on a frozen lake; in a snowy forest; during a snowstorm; on a snowy hill; in deep snow; under falling snow;
in a winter village; in the frozen north; on a snow-covered street; in an ice cave; in winter; on a glacier; in a blizzard""",
    "forest": """in a forest; in a dark forest; in the woods; in a pine forest; under an old oak tree; in a misty forest; in an autumn forest;
in a bamboo forest; deep in the woods; in an enchanted forest; on a forest path; in a clearing; among tall trees; in a birch forest""",
    "city": """in a city street; in a busy city; on a rooftop; in a narrow alley; in a neon city; in a cyberpunk city; on a street corner;
at a bus stop; at a crosswalk; in a big city; in an old town; on a city bridge; in Times Square; downtown""",
    "rain": """in the rain; on a rainy street; during a storm; in heavy rain; under a red umbrella in the rain; in a thunderstorm;
by a rainy window; on a wet pavement; in a rainy city; after the rain""",
    "sea": """by the sea; on the beach; at the beach; on a cliff above the sea; on a pier; in a harbour; on the open ocean; by the shore;
on a rocky coast; on a small island; at sea; on the waves; near a lighthouse; on a sandy beach""",
    "water": """by a lake; on a river; beside a waterfall; on a quiet pond; by a stream; on a lake; near a river; on a wooden dock;
in a swamp; in a boat on a lake; at the edge of a pond""",
    "underwater": """under the sea; underwater; in a coral reef; on the sea floor; in the deep ocean; in a sunken city; in a sunken ship""",
    "mountain": """on a mountain; on a mountain top; in the mountains; on a high ridge; on a cliff; in a mountain valley; at the summit;
on a rocky peak; above the clouds; in an alpine meadow; on a mountain pass""",
    "desert": """in the desert; on a sand dune; in a canyon; in a desert town; on a dusty road; in the dunes; at an oasis; in a red desert;
on a dry plain""",
    "field": """in a field; in a meadow; in a wheat field; in a field of flowers; on a hill; in tall grass; in a lavender field;
in a sunflower field; on a farm; on a green hill; in the countryside; on a country road; under a lone tree""",
    "garden": """in a garden; in a rose garden; in a greenhouse; in a secret garden; in a Japanese garden; in a park; on a park bench;
in an orchard; in a courtyard; beside a fountain; in a vegetable garden""",
    "room": """in a cozy room; by the fireplace; on a wooden table; at a desk; by a window; in a kitchen; in an attic; on a windowsill;
in a small cafe; in a bedroom; on an old shelf; in a living room; in a candlelit room; at home; on a sofa; on a kitchen table""",
    "hall": """in a library; in a museum; in a grand hall; in a cathedral; in a theatre; in a castle; in a throne room; on a stage;
in an old bookshop; in a ballroom; in a train station; in a school; in a tavern""",
    "workshop": """in a workshop; in a laboratory; in a garage; in a factory; in a forge; in a studio; at a workbench; in an art studio;
in a clock shop; in a server room""",
    "ruins": """in ancient ruins; in an abandoned city; in a ruined temple; in an old graveyard; in an abandoned factory; among broken columns;
in a forgotten temple; in an overgrown castle; in a cave; in a dungeon; in a wasteland""",
    "space": """in space; on the moon; on Mars; on an alien planet; in a spaceship; among the stars; in orbit; in a space station;
near a black hole; on a distant planet; in a nebula""",
    "sky": """in the sky; above the clouds; on a floating island; on a cloud; high above a city; in a hot air balloon; in a sky full of stars""",
    "market": """in a market; in a night market; at a fair; at a carnival; in a spice market; at a flower stall; in a village square;
at a festival; at a street food stall""",
}
SETTINGS = {kind: [p.strip() for p in text.replace("\n", " ").split(";")] for kind, text in SETTINGS.items()}
INDOOR = ("room", "hall", "workshop")
NO_TIME = INDOOR + ("underwater", "space")

DETAILS = {
    "snow": ["Fresh snow covers the ground in {soft} drifts", "Small flakes drift through the cold air", "Frost glitters on every branch",
             "Behind {it}, bare trees fade into a pale white haze", "A line of footprints leads back into the distance", "Ice crystals sparkle along the edges of the frame",
             "The snow is untouched except for a few {soft} shadows", "Cold mist hangs low over the white ground", "Thin ice shines between the drifts"],
    "forest": ["Tall trunks rise on both sides like columns", "Moss and ferns cover the ground", "Thin mist moves between the trees", "Fallen leaves make a {soft} carpet",
               "Roots twist across the path in the foreground", "Branches overhead form a natural arch", "Tiny spores and dust float in the air", "The trees behind fade into {colour} shadow",
               "Small mushrooms grow along a fallen log"],
    "city": ["Tall buildings frame the view on both sides", "Signs and windows glow in {colour} and {colour}", "Blurred figures and cars pass in the background", "Steam rises from a grate in the street",
             "Cables and balconies crowd the upper part of the frame", "Reflections stretch across the pavement", "Rows of lit windows climb into the distance", "A few posters peel from the brick walls"],
    "rain": ["Raindrops streak through the light", "Puddles mirror the {colour} lights above", "Water runs along the edge of the street", "Everything shines with a thin film of water",
             "Drops bead on every surface", "Mist rises where the rain hits the ground", "Heavy clouds press down from above", "Ripples spread through the puddles in the foreground"],
    "sea": ["Waves break into white foam behind {it}", "The horizon is a clean line between {colour} water and sky", "Wet sand reflects the sky like a mirror", "Gulls circle far away", "Salt spray hangs in the air",
            "Dark rocks stand in the shallow water", "The tide leaves curved lines in the sand", "A few distant sails dot the horizon"],
    "water": ["The water is still and reflects the {colour} sky", "Reeds and tall grass line the bank", "Ripples spread slowly across the surface", "A thin mist floats above the water",
              "Smooth stones show through the clear shallows", "Trees lean over the water on the far side", "Fallen leaves float near the edge"],
    "underwater": ["Rays of light fall from the surface far above", "Small bubbles rise past {it}", "Bright corals and sea plants sway in the current", "Schools of tiny fish move in the background",
                   "The water fades from turquoise to deep blue", "Fine sand drifts over the sea floor"],
    "mountain": ["Layered ridges fade into blue distance", "Clouds fill the valley far below", "Sharp rocks and patches of grass fill the foreground", "A narrow trail winds toward the summit",
                 "Snow still clings to the highest peaks", "The air is thin and very clear", "An eagle is a small dark shape in the sky"],
    "desert": ["Wind draws fine ripples in the sand", "Long dunes curve toward the horizon", "Heat makes the distance shimmer", "Dry grass and scattered stones break the smooth surface",
               "A cloud of dust hangs in the air", "The rock walls show bands of {colour} and ochre", "Far away, a single tree throws a long shadow"],
    "field": ["Tall grass bends in the wind", "Wild flowers in {colour} and {colour} dot the ground", "Low hills roll away behind {it}", "A wooden fence leads the eye into the distance",
              "Pollen and tiny insects float in the light", "A wide sky takes up the upper half of the frame", "Far off, a farmhouse sits among the trees"],
    "garden": ["Flowers in {colour} and {colour} fill the borders", "Petals lie scattered on the stone path", "Climbing plants cover an old wall", "Dew shines on the leaves",
               "A butterfly hovers near the blossoms", "Neat hedges frame the scene", "Dappled shade falls across the grass"],
    "room": ["Warm wood and {soft} fabrics fill the background", "Books and small objects crowd a shelf behind {it}", "A curtain moves slightly in the draught", "Dust floats in a beam of light",
             "A worn rug covers the floor", "A cup of tea steams nearby", "The walls are painted in a muted {colour}", "A plant in a clay pot stands in the corner"],
    "hall": ["High arches rise into shadow", "Rows of old books and carved wood line the walls", "The polished floor reflects the light", "Tall windows throw long shapes across the floor",
             "Heavy {colour} curtains frame the scene", "Dust drifts slowly through the quiet air", "Gold details shine in the background"],
    "workshop": ["Tools hang in neat rows on the wall", "Sparks and dust float in the air", "Gears, wires and half-finished parts cover the bench", "Shelves full of jars and boxes fill the background",
                 "Sketches and notes are pinned to the wall", "A small lamp lights the work area", "Metal surfaces catch {colour} reflections"],
    "ruins": ["Broken stones lie half buried in the ground", "Ivy climbs over the cracked walls", "Light falls through holes in the roof", "Weathered carvings are still visible on the stone",
              "Dust and dry leaves gather in the corners", "Roots push between the old blocks", "A fallen column lies across the foreground"],
    "space": ["Thousands of stars fill the black sky", "A ringed planet hangs in the background", "A~ {colour} nebula glows behind {it}", "Fine dust floats without weight", "The curve of a planet shines along one edge",
              "Small rocks drift slowly past", "Sharp shadows show that there is no air"],
    "sky": ["Soft clouds spread out like a sea below", "The air is clear and full of light", "Birds pass far below", "Streaks of {colour} cloud cross the sky", "The land is only a faint pattern far beneath",
            "Wisps of mist curl around the edges"],
    "market": ["Colourful stalls are stacked with fruit, cloth and spices", "Paper lanterns hang above the crowd", "Smoke and steam rise from the food stalls", "Striped awnings throw {colour} shade",
               "People move past in a blur of colour", "Hand-painted signs hang over the tables", "Baskets and crates fill the foreground"],
    "plain": ["The background is simple and slightly out of focus", "Behind {it}, shapes fade into a {soft} {colour} haze", "A few small details tell the story of the place", "The ground shows {texture} details in {colour} and {colour}",
              "The space around {it} is open and uncluttered", "The background fades from {colour} to a darker tone", "Small particles float in the air",
              "Layers of foreground and background give the scene depth"],
}

TIMES = {
    "dawn": ["at dawn", "at sunrise", "in the early morning", "on a misty morning"],
    "day": ["at noon", "on a sunny day", "in bright daylight", "on a cloudy day", "on a summer day", "on a spring morning"],
    "dusk": ["at sunset", "at dusk", "at golden hour", "in the evening", "at twilight"],
    "night": ["at night", "under the stars", "at midnight", "under a full moon", "by moonlight"],
}
LIGHT = {
    "dawn": ["pale morning light", "the first light of day", "soft pink sunrise light", "low golden morning sun", "cool blue dawn light", "thin early sunlight"],
    "day": ["bright clear daylight", "soft overcast light", "warm afternoon sun", "clean natural light", "dappled sunlight", "strong midday sun", "gentle diffused daylight"],
    "dusk": ["warm golden hour light", "a deep orange sunset", "fading purple twilight", "long low sunlight", "glowing amber evening light", "the last light of the day"],
    "night": ["cool silver moonlight", "faint starlight", "deep blue night light", "the glow of distant lamps", "pale moonlight", "the warm glow of a lantern"],
    "room": ["warm lamplight", "soft window light", "flickering candlelight", "a single beam of daylight from a window", "the warm glow of a fire", "dim amber light"],
    "underwater": ["filtered blue light", "shimmering turquoise light", "soft rays from above"],
    "space": ["hard white sunlight", "cold starlight", "the glow of a distant star", "sharp rim light"],
}
LIGHT_USE = [
    "{Light} falls from the {side} and leaves {soft} shadows on {the}", "{Light} shapes every surface and brings out the {texture} textures",
    "The scene is lit by {light}, with {soft} shadows and bright highlights", "{Light} touches the edges of {the} and separates {it} from the background",
    "Lighting: {light}, {soft} contrast, {colour} reflections", "{Light} fills the frame and gives everything a {tone} tone", "{The} [is/are] lit by {light} from the {side}",
    "Lit by {light}, the colours shift between {colour} and {colour}", "{Light} makes the {colour} tones glow", "The light is {tone}: {light} with {soft} falloff",
    "{Light} spills across the scene, leaving the corners in shadow",
]
