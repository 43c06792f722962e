"""Subjects of ideas by kind, names and made-up words."""


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.replace("\n", " ").split(",") if part.strip()]


ANIMALS = _split("""fox, wolf, bear, owl, cat, dog, kitten, puppy, horse, deer, rabbit, tiger, lion, elephant, whale, dolphin,
otter, raccoon, squirrel, hedgehog, badger, crow, raven, eagle, hawk, heron, swan, duck, goose, penguin, seal, polar bear, panda,
red panda, koala, kangaroo, camel, goat, sheep, lamb, cow, bull, pig, frog, toad, turtle, tortoise, snake, lizard, chameleon,
gecko, octopus, jellyfish, shark, goldfish, koi fish, seahorse, crab, lobster, butterfly, moth, bee, dragonfly, beetle, spider,
snail, ladybug, parrot, peacock, hummingbird, robin, sparrow, flamingo, pelican, seagull, rooster, hen, bat, mouse, rat, hamster,
lynx, leopard, snow leopard, panther, cheetah, jaguar, giraffe, zebra, rhino, hippo, monkey, gorilla, orangutan, lemur, sloth,
moose, elk, bison, yak, llama, alpaca, donkey, wild boar, beaver, mole, weasel, ferret, stag, mare, stallion, hound, corgi,
husky, greyhound, golden retriever, tabby cat, black cat, white cat, barn owl, walrus, manta ray, salmon, stork, crane, woodpecker, kingfisher""")

WOMEN = _split("""woman, girl, queen, princess, witch, ballerina, grandmother, old woman, young woman, little girl, priestess, nun,
huntress, bride, seamstress, mother, sorceress, actress, lady, empress, mermaid""")
MEN = _split("""man, boy, king, prince, wizard, old man, young man, little boy, monk, fisherman, grandfather, father, blacksmith,
samurai, knight, cowboy, sailor, gentleman, emperor, viking, lumberjack, bearded man, businessman""")
PEOPLE = _split("""astronaut, pilot, dancer, painter, musician, violinist, pianist, chef, baker, gardener, farmer, librarian,
teacher, scientist, explorer, archer, pirate, soldier, hunter, traveller, wanderer, merchant, shepherd, miner, mechanic,
photographer, detective, engineer, nurse, doctor, student, child, surfer, skater, climber, cyclist, hiker, diver, boxer, runner,
street musician, lighthouse keeper, clockmaker, alchemist, beekeeper, potter, tailor, ninja, bard, druid, ranger, thief,
warrior, gladiator, jester, puppeteer, magician, fortune teller, mail carrier, barista, guitarist, drummer, singer, DJ, monk in training,
toymaker, glassblower, carpenter, ferryman, tourist, skier, gamer, hacker, cartographer, astronomer""")
CREATURES = _split("""dragon, griffin, phoenix, unicorn, fairy, goblin, troll, giant, golem, robot, android, cyborg, ghost, spirit,
elf, dwarf, centaur, minotaur, kraken, sea serpent, werewolf, vampire, demon, angel, gargoyle, alien, mech, tree spirit,
ice dragon, baby dragon, rock giant, forest guardian, water nymph, sphinx, pegasus, hydra, kitsune, yeti, cyclops, gnome,
scarecrow, skeleton, clockwork bird, tiny robot, old robot, cloud creature, moss creature, lava beast, paper dragon, skeleton king""")
BUILDINGS = _split("""castle, lighthouse, cottage, cabin, tower, temple, cathedral, church, windmill, watermill, bridge, farmhouse,
barn, mansion, palace, library, train station, greenhouse, tree house, house, skyscraper, shrine, pagoda, monastery, fortress,
village, harbour, bakery, bookshop, cafe, diner, gas station, observatory, museum, theatre, market, city, town, ruined abbey,
stone arch, igloo, pyramid, log cabin, beach house, water tower, factory, workshop, inn, tavern, wizard tower, space station,
floating island, haunted house, abandoned hospital, glass house, clock tower, apartment block, old mill, boathouse, ramen shop""")
VEHICLES = _split("""car, sports car, train, steam train, tram, bicycle, motorcycle, truck, van, bus, taxi, boat, sailboat, ship,
pirate ship, rowing boat, submarine, airship, hot air balloon, plane, biplane, helicopter, spaceship, rocket, rover, tractor,
caravan, carriage, sled, canoe, fishing boat, gondola, tank, hovercraft, cable car, scooter, vintage car, racing car, ferry,
cargo ship, flying car, starship, pickup truck, camper van, double-decker bus, speedboat""")
LANDSCAPES = _split("""waterfall, mountain, mountain lake, valley, canyon, volcano, glacier, forest, river, beach, meadow, field of
lavender, rice terrace, desert, island, cliff, cave, swamp, jungle, hillside, coastline, lagoon, prairie, vineyard, orchard,
frozen lake, coral reef, sand dune, fjord, pine forest, bamboo grove, garden, wheat field, tea plantation, sea cave, hot spring,
birch forest, salt flat, autumn forest, city street, narrow alley, harbour town, city skyline, mountain road, country lane""")
OBJECTS = _split("""teapot, clock, pocket watch, lantern, book, old book, violin, guitar, piano, camera, typewriter, radio, chair,
armchair, table, lamp, candle, mirror, key, compass, telescope, globe, map, vase, teacup, bottle, sword, shield, helmet, crown,
ring, necklace, mask, umbrella, suitcase, backpack, shoe, hat, coat, chess set, music box, snow globe, crystal ball, potion bottle,
treasure chest, gramophone, kite, bicycle wheel, wooden toy, doll, teddy bear, headphones, television, computer, keyboard,
microscope, hourglass, quill, letter, envelope, statue, fountain, bell, anchor, telephone, perfume bottle, wristwatch, sneaker,
gemstone, glass sphere, marble bust, origami crane, jar of fireflies, stack of books, wooden box, paper boat""")
FOODS = _split("""cup of coffee, cup of tea, bowl of ramen, loaf of bread, slice of cake, plate of pancakes, bowl of soup, pizza,
burger, basket of apples, bowl of fruit, glass of wine, ice cream, birthday cake, croissant, plate of sushi, pot of honey,
apple pie, jar of jam, plate of pasta, chocolate cake, lemon tart, bowl of cherries, wheel of cheese, roast chicken, salad,
taco, doughnut, stack of waffles, bowl of rice, plate of cookies, hot chocolate, glass of lemonade, watermelon, strawberry tart""")
PLANTS = _split("""rose, sunflower, tulip, lotus flower, oak tree, cherry tree, pine tree, willow tree, maple tree, bonsai tree,
cactus, fern, mushroom, orchid, lily, daisy, dandelion, bouquet of flowers, apple tree, ivy wall, poppy, water lily, glowing mushroom,
ancient tree, giant tree, bluebell, thistle, pumpkin, palm tree, redwood, succulent, wildflower, lemon tree, dead tree, magnolia""")

ADJECTIVES = {
    "animal": _split("red, white, black, grey, brown, golden, small, tiny, huge, old, young, sleepy, curious, playful, fluffy, shy, proud, wild, lonely, brave, wet, happy, angry, silver, spotted, fat, hungry, giant, blue, elegant"),
    "person": _split("old, young, tired, smiling, lonely, tall, brave, quiet, mysterious, cheerful, elegant, serious, shy, friendly, blind, red-haired, hooded, futuristic, medieval, thoughtful, sad, happy, freckled, masked"),
    "creature": _split("ancient, small, huge, tiny, friendly, sleeping, red, green, golden, black, crystal, shy, gentle, fierce, glowing, mechanical, rusty, blue, white, lonely, broken, young, giant, mossy, wooden"),
    "building": _split("old, abandoned, ruined, small, tall, white, stone, wooden, ancient, lonely, gothic, futuristic, quiet, hidden, cozy, crooked, floating, snowy, red, glowing, medieval, modern, forgotten"),
    "vehicle": _split("old, red, rusty, vintage, blue, yellow, white, black, futuristic, abandoned, small, huge, silver, steampunk, green, broken, sleek, orange, wooden, dusty"),
    "landscape": _split("misty, quiet, hidden, wild, golden, green, snowy, foggy, stormy, calm, remote, ancient, lush, rocky, sunlit, alien, dreamy, windy, enchanted"),
    "object": _split("old, antique, golden, broken, rusty, glowing, small, wooden, silver, black, white, red, blue, magical, dusty, ornate, tiny, cracked, green, brass, simple, forgotten"),
    "food": _split("fresh, steaming, delicious, rustic, small, big, homemade, colourful, warm, tasty, golden, simple, elegant"),
    "plant": _split("red, white, blue, yellow, pink, old, tall, small, lonely, wild, glowing, giant, purple, blooming, golden, twisted, frosted, tiny"),
}
MATERIALS = _split("""crystal, paper, clockwork, steampunk, cyberpunk, neon, porcelain, glass, origami, lego, wool, bronze, jade, marble,
stone, ice, robot, cardboard, clay, felt, wooden, golden, chrome, ghost, baroque, gothic, tribal, pixel, plush, amber, bone, obsidian""")
FIRST = _split("""Mara, Orla, Tobin, Elias, Anya, Bram, Cora, Dmitri, Esme, Felix, Greta, Hugo, Ines, Jonas, Kaia, Leif, Mina, Nadia,
Otto, Petra, Quinn, Rosa, Silas, Thea, Ulric, Vera, Wren, Xena, Yusuf, Zara, Ada, Ben, Clara, Daniel, Emma, Finn, Grace, Henry, Ivy,
Jack, Kate, Liam, Maya, Noah, Olive, Paul, Ruth, Sam, Tom, Uma, Victor, Will, Yara, Zoe, Akira, Yuki, Hana, Ravi, Priya, Amara, Kofi,
Lucia, Mateo, Sofia, Ivan, Olga, Chen, Mei, Omar, Leila, Astrid, Sven, Freya, Nils, Juno, Iris, Pavel, Dara, Milo, Nina, Lena, Theo""")
PLACES = _split("""Kyoto, Paris, Venice, Iceland, Norway, Tokyo, London, New York, Morocco, Prague, Lisbon, Cairo, Rome, Berlin,
Scotland, Nepal, Peru, Patagonia, Havana, Istanbul, Vienna, Kenya, Alaska, Ireland, Hong Kong, Mumbai, Bali, Amsterdam, Oslo, Seoul,
Mexico, Chicago, San Francisco, Siberia, Greece, Tuscany, Vietnam, Barcelona, Edinburgh, the Alps, the Sahara, the Arctic, Mars, the Moon""")

ONSETS = "b bl br c ch cl cr d dr f fl fr g gl gr h j k kr l m n p pl pr qu r s sh sk sl sn st str t th tr v w y z zh".split()
VOWELS = "a e i o u a e i o ai ea ee oo ou ia".split()
CODAS = "b ck d f g l ll m n nd ng nk nt p r rd rk rn s sh sk ss st t th x z".split() + [""] * 8


def made_up(rng, syllables: int = 0) -> str:
    """A pronounceable word that no dictionary has; teaches copying letter by letter."""
    count = syllables or rng.choice((1, 2, 2, 2, 3))
    return "".join(rng.choice(ONSETS) + rng.choice(VOWELS) + (rng.choice(CODAS) if i == count - 1 or rng.random() < 0.4 else "")
                   for i in range(count))


def proper_name(rng) -> str:
    """A given name, at times a made-up one."""
    return rng.choice(FIRST) if rng.random() < 0.6 else made_up(rng, 2).capitalize()


def plural(noun: str) -> str:
    """The plural of a noun phrase's head (the word before " of ", else the last word)."""
    if " of " in noun:
        head, rest = noun.split(" of ", 1)
        return plural(head) + " of " + rest
    if " in " in noun:
        head, rest = noun.split(" in ", 1)
        return plural(head) + " in " + rest
    first, last = noun.rpartition(" ")[0], noun.rpartition(" ")[2]
    odd = {"man": "men", "woman": "women", "child": "children", "mouse": "mice", "goose": "geese", "wolf": "wolves", "elf": "elves",
           "dwarf": "dwarves", "thief": "thieves", "sheep": "sheep", "deer": "deer", "fish": "fish", "salmon": "salmon", "bison": "bison",
           "moose": "moose", "elk": "elk", "loaf": "loaves", "leaf": "leaves", "samurai": "samurai", "businessman": "businessmen",
           "fisherman": "fishermen", "gentleman": "gentlemen", "ferryman": "ferrymen", "goldfish": "goldfish", "hovercraft": "hovercraft",
           "headphones": "headphones", "box": "boxes", "fox": "foxes", "lynx": "lynxes", "octopus": "octopuses", "shelf": "shelves",
           "werewolf": "werewolves", "spaceship": "spaceships", "gecko": "geckos", "radio": "radios", "piano": "pianos", "taco": "tacos"}
    if last in odd:
        out = odd[last]
    elif last.endswith(("s", "sh", "ch", "x", "z")):
        out = last + "es"
    elif last.endswith("y") and last[-2:-1] not in "aeiou":
        out = last[:-1] + "ies"
    elif last.endswith("o") and last in ("hero", "potato", "tomato", "volcano", "buffalo"):
        out = last + "es"
    else:
        out = last + "s"
    return f"{first} {out}" if first else out
