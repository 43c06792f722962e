"""Lists of N items: known topics, and patterns that copy an unknown topic."""

import random

from . import words
from .render import capital, with_article

TOPICS = {
    "animals": words.ANIMALS, "farm animals": "cow, sheep, goat, pig, horse, donkey, hen, rooster, duck, goose, turkey, rabbit, dog, cat",
    "wild animals": "fox, wolf, bear, lion, tiger, elephant, deer, moose, lynx, giraffe, zebra, rhino, hippo, monkey, badger, otter",
    "sea animals": "whale, dolphin, shark, octopus, jellyfish, seahorse, crab, lobster, seal, walrus, manta ray, turtle, starfish, squid",
    "birds": "owl, eagle, hawk, raven, crow, robin, sparrow, swan, duck, goose, heron, parrot, peacock, penguin, flamingo, pelican, stork, crane",
    "insects": "bee, ant, butterfly, moth, beetle, dragonfly, ladybug, wasp, grasshopper, cricket, fly, mosquito",
    "fruits": "apple, banana, orange, pear, grape, cherry, peach, plum, mango, lemon, lime, strawberry, blueberry, raspberry, melon, kiwi, fig, pineapple, apricot",
    "vegetables": "carrot, potato, onion, tomato, cucumber, pepper, cabbage, spinach, broccoli, pea, bean, leek, garlic, celery, pumpkin, radish, beetroot, lettuce",
    "colours": "red, blue, green, yellow, orange, purple, pink, brown, black, white, grey, turquoise, gold, silver, violet, teal, crimson",
    "colors": "red, blue, green, yellow, orange, purple, pink, brown, black, white, gray, turquoise, gold, silver, violet, teal, crimson",
    "countries": "France, Germany, Italy, Spain, Japan, China, India, Brazil, Canada, Mexico, Egypt, Kenya, Norway, Sweden, Greece, Poland, Peru, Chile, Turkey, Australia",
    "cities": "Paris, London, Rome, Berlin, Tokyo, New York, Cairo, Madrid, Lisbon, Vienna, Prague, Oslo, Seoul, Mumbai, Sydney, Toronto, Istanbul, Athens",
    "rivers": "the Nile, the Amazon, the Danube, the Rhine, the Thames, the Seine, the Mississippi, the Ganges, the Volga, the Congo",
    "planets": "Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus, Neptune", "months": "January, February, March, April, May, June, July, August, September, October, November, December",
    "days of the week": "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday", "seasons": "spring, summer, autumn, winter",
    "flowers": "rose, tulip, lily, daisy, sunflower, orchid, poppy, violet, iris, lavender, peony, marigold, jasmine, daffodil", "trees": "oak, pine, birch, maple, willow, beech, ash, cedar, fir, elm, cherry, palm, chestnut, redwood",
    "sports": "football, tennis, basketball, swimming, running, cycling, rowing, boxing, hockey, golf, skiing, climbing, volleyball, judo", "hobbies": "painting, reading, cooking, gardening, hiking, knitting, photography, drawing, fishing, chess, dancing, singing, cycling, pottery",
    "musical instruments": "piano, violin, guitar, flute, drum, trumpet, cello, harp, clarinet, saxophone, trombone, banjo, accordion", "drinks": "water, tea, coffee, milk, orange juice, lemonade, hot chocolate, apple juice, cocoa, soda",
    "tools": "hammer, saw, screwdriver, wrench, drill, pliers, axe, shovel, rake, chisel, ladder, tape measure", "jobs": "teacher, doctor, nurse, baker, pilot, farmer, engineer, painter, chef, librarian, carpenter, gardener, lawyer, dentist",
    "vehicles": "car, train, bus, bicycle, truck, boat, plane, ship, tram, motorcycle, helicopter, scooter, van", "fairy tale creatures": words.CREATURES[:12], "clothes": "shirt, coat, hat, scarf, dress, shoes, socks, trousers, jacket, gloves, sweater, belt, boots",
    "art styles": "watercolor, oil painting, pixel art, anime, art nouveau, pencil sketch, low poly, paper collage, ink drawing, impressionism, woodblock print, pop art, cubism",
    "camera angles": "low angle, high angle, eye level, bird's eye view, close-up, wide shot, over the shoulder, three-quarter view, ground level", "moods": "calm, mysterious, hopeful, lonely, cheerful, dreamy, tense, nostalgic, peaceful, magical, playful, epic",
    "types of light": "morning light, golden hour, moonlight, candlelight, neon light, overcast light, studio light, firelight, starlight, lamplight, window light, rim light",
    "kitchen items": "pan, pot, knife, fork, spoon, plate, bowl, cup, kettle, whisk, oven, fridge, toaster, cutting board", "school subjects": "mathematics, history, geography, biology, chemistry, physics, art, music, English, sport",
    "programming languages": "Python, C, Java, JavaScript, Rust, Go, Ruby, Swift, Kotlin, Lua", "things to pack for a trip": "a passport, a toothbrush, warm socks, a book, a water bottle, a phone charger, a jacket, a map, sunglasses, a hat, a camera",
    "healthy habits": "drink water, sleep eight hours, eat vegetables, walk every day, stretch in the morning, read before bed, rest your eyes, cook at home, spend time outside, breathe slowly",
    "ways to relax": "read a book, take a walk, listen to music, drink tea, take a warm bath, draw something, call a friend, bake bread, watch the clouds, stretch slowly",
    "girl names": words.FIRST[:20], "things in a garden": "flowers, a bench, a path, a tree, a pond, a fence, a shed, a fountain, grass, herbs, a bird bath", "breakfast foods": "eggs, toast, porridge, pancakes, yogurt, cereal, fruit, bacon, a croissant, jam",
    "shapes": "circle, square, triangle, rectangle, oval, star, hexagon, pentagon, diamond, cube", "board games": "chess, checkers, backgammon, dominoes, go, ludo, a memory game, a card game, a word game, a dice game",
}
TOPICS = {k: v if isinstance(v, list) else [x.strip() for x in v.split(",")] for k, v in TOPICS.items()}
NUMBERS = {3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine", 10: "ten"}
ASK = ["List {n} {t}", "Name {n} {t}", "Give me {n} {t}", "Write a list of {n} {t}", "Tell me {n} {t}", "{n} {t}", "Can you list {n} {t}?", "Please name {n} {t}.", "I need {n} {t}", "What are {n} {t}?", "Make a list of {n} {t}."]
ABOUT = ["List {n} ideas about {t}", "Give me {n} ideas for a picture of {t}", "List {n} facts about {t}", "{n} image ideas about {t}", "Write {n} titles for a story about {t}", "Suggest {n} scenes with {t}", "List {n} items about {t}", "List {n} things about {t}"]
IDEAS = ["{T} at sunrise", "{T} in the rain", "{T} on a quiet street", "{T} seen from above", "{T} in a snowy field", "{T} beside an old window", "{T} under the stars", "{T} reflected in water", "{T} in a misty forest", "A close view of {t}", "{T} in soft morning light",
         "{T} on a wooden table", "{T} in an old photograph", "{T} at the end of a long road", "{T} drawn in ink", "{T} in a busy market", "A tiny model of {t}", "{T} in warm candlelight", "{T} by the sea", "{T} inside a glass jar"]
TITLES = ["The Secret of {t}", "The Last Days of {t}", "A Night with {t}", "The Lost Map of {t}", "Looking for {t}", "The Song of {t}", "A Letter about {t}", "The Return of {t}", "Under the Shadow of {t}", "How {t} Changed Everything", "The Road to {t}", "The Girl Who Found {t}"]
FACTS = ["{T} can be small or large.", "Many people know {t} from stories and pictures.", "{T} can look different in every light.", "Children often draw {t}.", "There is more than one kind of {t}.", "{T} can be found in many places.", "{T} is easier to understand with a picture.",
         "It takes time to learn about {t}.", "{T} has a history of its own.", "People have many names for {t}.", "An artist can show {t} in many ways."]


def sample(rng: random.Random, extra: list[str]) -> dict:
    """One chat sample whose answer is a list with exactly the number of items asked for."""
    count = rng.choice((3, 3, 4, 5, 5, 5, 6, 7, 8, 10))
    if rng.random() < 0.62:
        topic = rng.choice(list(TOPICS))
        items = TOPICS[topic]
        count = min(count, len(items))
        ordered = topic in ("planets", "months", "days of the week", "seasons")
        chosen = items[:count] if ordered else rng.sample(items, count)
        chosen = [capital(i) for i in chosen]
        request = rng.choice(ASK)
    else:
        noun = rng.choice(words.ANIMALS + words.OBJECTS + words.CREATURES + words.PLANTS) if rng.random() < 0.5 else (rng.choice(extra) if extra and rng.random() < 0.6 else words.made_up(rng))
        request = rng.choice(ABOUT)
        bank = TITLES if "titles" in request else FACTS if "facts" in request or "things" in request else IDEAS
        topic = with_article(noun)
        shown = "the " + noun.title() if bank is TITLES else topic
        chosen = [capital(t.replace("{t}", shown).replace("{T}", capital(topic))) for t in rng.sample(bank, count)]
    user = request.replace("{n}", NUMBERS.get(count, str(count)) if rng.random() < 0.45 else str(count)).replace("{t}", topic)
    bullets = rng.random() < 0.25
    if bullets and rng.random() < 0.5:
        user = user.rstrip(".?") + rng.choice((" as bullet points", " with bullets", " as a bulleted list"))
    else:
        bullets = False if "bullet" not in user and rng.random() < 0.7 else bullets
    marks = [f"- {x}" if bullets else f"{i}. {x}" for i, x in enumerate(chosen, 1)]
    lead = rng.choice(("", "", "", "Here are {n} {k}:\n\n", "Here is the list:\n\n")).replace("{n}", NUMBERS.get(count, str(count))).replace("{k}", topic if request in ASK else "ideas" if bank is IDEAS else "titles" if bank is TITLES else "points")
    thinking = f"The user wants {count} items about {topic}. I will write one item on each line." if rng.random() < 0.05 else ""
    return {"system": "You are a helpful assistant." if rng.random() < 0.1 else "", "user": capital(user), "thinking": thinking, "answer": lead + "\n".join(marks)}
