"""Greetings, what the model can do, counting, small facts, and graceful answers to everything else."""

import random

from . import prompts, words
from .lists import NUMBERS
from .render import capital, with_article

CAN = "I can turn a short idea into an image prompt, write lists, continue a story and write short Python functions."
HELLO = ["Hello", "Hi", "Hey", "Good morning", "Good evening", "hello there", "hi!", "Hi there", "hello, how are you?", "How are you?", "Hey there!", "Greetings"]
HELLO_BACK = ["Hello! Give me a short idea, and I will turn it into an image prompt.", "Hi! What picture do you have in mind?", "Hello! " + CAN, "Hi there! Tell me an idea, for example {i}.", "Hello! I am well, thank you. What would you like to see?"]
WHO = ["What can you do?", "Who are you?", "What are you?", "Help", "How do you work?", "What is FastQwen?", "Are you a person?", "Which model are you?", "Tell me about yourself", "What do you do?"]
WHO_BACK = ["I am a small demo model. " + CAN, "I am the FastQwen demo, a small language model. " + CAN, CAN + " For example, try: {i}.", "I am a very small model with about five million parameters. " + CAN]
THANKS = ["Thank you", "Thanks!", "thanks a lot", "Great, thank you", "Nice", "Cool", "Well done"]
THANKS_BACK = ["You are welcome!", "You are welcome! Send me another idea at any time.", "Glad to help."]
BYE = ["Goodbye", "Bye", "See you", "Good night", "bye bye"]
BYE_BACK = ["Goodbye! Come back with another idea.", "Goodbye!", "See you soon!"]
HARD = """quantum computing; general relativity; the stock market; machine learning; the French Revolution; photosynthesis; blockchain; the meaning of life; inflation; climate models; string theory; neural networks;
DNA; the immune system; tax law; the Roman Empire; black holes; nuclear fusion; democracy; evolution; philosophy; economics; the internet; cryptography; how planes fly; the human brain; chess openings; world war two;
dark matter; thermodynamics; calculus; compilers; how a car engine works; the theory of games; linear algebra; the water cycle; vaccines; opera; the history of jazz; politics; gene editing"""
HARD = [t.strip() for t in HARD.replace("\n", " ").split(";")]
HARD_ASK = ["Explain {t}", "Explain {t}.", "What is {t}?", "Tell me about {t}", "Can you explain {t}?", "How does {t} work?", "Write an essay about {t}", "Explain {t} in simple words", "Teach me {t}", "Why is {t} important?", "Summarize {t}", "Explain {t} to a child"]
HARD_BACK = ["I am a small demo model, so I cannot explain {t} well. A larger model will give you a better answer. I can write an image prompt about {t} if you like.",
             "That is a big topic for a very small model. I do not know enough about {t} to explain it. Try asking me for a picture of {t}, a list or a short story.",
             "Sorry, {t} is beyond what this demo can explain. {c}", "I know too little about {t} to be useful here. {c}",
             "{T} is a topic for a larger model. This demo only has about five million parameters. {c}"]
FACTS = {
    "What is the capital of {k}?": dict(zip("France Germany Italy Spain Japan England Egypt Norway Sweden Greece Poland Austria Portugal Canada Russia China Ireland Peru Cuba Finland".split(),
                                            "Paris;Berlin;Rome;Madrid;Tokyo;London;Cairo;Oslo;Stockholm;Athens;Warsaw;Vienna;Lisbon;Ottawa;Moscow;Beijing;Dublin;Lima;Havana;Helsinki".split(";"))),
    "What is the opposite of {k}?": dict(x.split(":") for x in "hot:cold big:small fast:slow light:dark up:down day:night happy:sad old:new open:closed hard:soft full:empty left:right rich:poor early:late high:low wet:dry loud:quiet strong:weak".split()),
    "What sound does a {k} make?": dict(x.split(":") for x in "dog:woof cat:meow cow:moo sheep:baa duck:quack pig:oink horse:neigh frog:croak".split()),
    "What colour is {k}?": dict(x.split(":") for x in "the sky:blue;grass:green;snow:white;coal:black;a banana:yellow;a strawberry:red;a carrot:orange;a lemon:yellow;the sea:blue;milk:white".split(";")),
}
FACT_BACK = {"What is the capital of {k}?": "The capital of {k} is {v}.", "What is the opposite of {k}?": "The opposite of {k} is {v}.", "What sound does a {k} make?": 'A {k} says "{v}".', "What colour is {k}?": "{K} is {v}."}
DEFINE = dict(x.split(":") for x in """gravity:the force that pulls things toward the ground;a lighthouse:a tower with a bright light that guides ships;a library:a place where people read and borrow books;a volcano:a mountain that can throw out hot lava;
an island:land with water on every side;a map:a drawing that shows where places are;rain:water that falls from clouds;snow:frozen water that falls in soft white flakes;a poem:a short text that plays with sound and meaning;a robot:a machine that can do work by itself;
a shadow:the dark shape that a thing makes when it blocks light;a rainbow:an arc of colours that appears when sunlight meets rain;a desert:a dry place with little rain;a forest:a large area full of trees;the moon:the round body that circles the Earth;the sun:the star at the centre of our solar system;
a prompt:a text that tells a model what to make;a pixel:the smallest point of a digital image;a list:a row of items, one after the other;Python:a programming language that is easy to read;a function:a named piece of code that does one job;a loop:code that runs again and again;a watercolor:a painting made with water and thin colour;
a portrait:a picture of a person;depth of field:the part of a photo that looks sharp;golden hour:the time shortly after sunrise or before sunset, when the light is warm;a castle:a large old building with thick walls;a river:a long stream of water that flows to the sea;a compass:a tool that shows where north is;
bread:food made from flour, water and yeast;tea:a drink made from leaves and hot water;a bicycle:a vehicle with two wheels and pedals;a telescope:a tool that makes far things look near;an owl:a bird that hunts at night;a fox:a small wild animal with a red coat and a thick tail""".replace("\n", " ").replace("; ", ";").split(";"))
DEFINE_ASK = ["What is {k}?", "Define {k}", "Explain {k} in one sentence.", "what is {k}", "Tell me what {k} is."]


def _count(rng) -> tuple[str, str]:
    top = rng.choice((3, 5, 8, 10, 10, 12, 15, 20, rng.randint(3, 30)))
    if rng.random() < 0.2:
        return rng.choice(("Count down from {n} to 1", "Count backwards from {n}", "countdown from {n}")).replace("{n}", str(top)), ", ".join(str(i) for i in range(top, 0, -1))
    if rng.random() < 0.25:
        low = rng.randint(2, 30)
        high = low + rng.randint(2, 15)
        return rng.choice(("Count from {a} to {b}", "count from {a} up to {b}.", "Write the numbers from {a} to {b}")).replace("{a}", str(low)).replace("{b}", str(high)), ", ".join(str(i) for i in range(low, high + 1))
    shown = NUMBERS[top] if top in NUMBERS and rng.random() < 0.3 else str(top)
    ask = rng.choice(("Count from 1 to {n}", "Count to {n}", "count from 1 to {n}.", "Please count to {n}", "Write the numbers from 1 to {n}", "Can you count from one to {n}?", "Count up to {n}"))
    return ask.replace("{n}", shown), ", ".join(str(i) for i in range(1, top + 1))


def _fact(rng) -> tuple[str, str]:
    roll = rng.random()
    if roll < 0.25:
        a, b = rng.randint(1, 12), rng.randint(1, 12)
        return rng.choice(("What is {a} + {b}?", "{a} + {b}", "Add {a} and {b}", "How much is {a} plus {b}?")).replace("{a}", str(a)).replace("{b}", str(b)), f"{a} + {b} = {a + b}"
    if roll < 0.6:
        key = rng.choice(list(DEFINE))
        return rng.choice(DEFINE_ASK).replace("{k}", key), f"{capital(key)} is {DEFINE[key]}."
    ask = rng.choice(list(FACTS))
    key = rng.choice(list(FACTS[ask]))
    return ask.replace("{k}", key), FACT_BACK[ask].replace("{k}", key).replace("{K}", capital(key)).replace("{v}", FACTS[ask][key])


def _hard(rng, extra) -> tuple[str, str]:
    topic = rng.choice(HARD) if rng.random() < 0.6 else words.made_up(rng) if rng.random() < 0.4 or not extra else rng.choice(extra) + " " + rng.choice(("theory", "science", "law", "history", "design", "systems", "policy"))
    ask = rng.choice(HARD_ASK if not topic.startswith("how ") else HARD_ASK[:1] + HARD_ASK[3:5]).replace("{t}", topic)
    return ask, rng.choice(HARD_BACK).replace("{t}", topic).replace("{T}", capital(topic)).replace("{c}", CAN)


def sample(rng: random.Random, extra: list[str]) -> dict:
    """One chat sample of a few words to two sentences."""
    kind = rng.choices(("count", "fact", "hard", "hello", "who", "thanks", "bye"), (30, 22, 26, 8, 9, 4, 2))[0]
    thinking = ""
    if kind == "count":
        user, answer = _count(rng)
        thinking = "I will write every number once, in order." if rng.random() < 0.05 else ""
    elif kind == "fact":
        user, answer = _fact(rng)
    elif kind == "hard":
        user, answer = _hard(rng, extra)
        thinking = "This is a hard topic for a small model. I will say so and offer what I can do." if rng.random() < 0.05 else ""
    else:
        asks, backs = {"hello": (HELLO, HELLO_BACK), "who": (WHO, WHO_BACK), "thanks": (THANKS, THANKS_BACK), "bye": (BYE, BYE_BACK)}[kind]
        example = with_article(rng.choice(words.ANIMALS)) + " " + rng.choice(prompts.ALL_SETTINGS)[1]
        user, answer = rng.choice(asks), rng.choice(backs).replace("{i}", example)
    return {"system": rng.choice(("You are a helpful assistant.", "You are FastQwen, a small demo model.")) if rng.random() < 0.1 else "", "user": user, "thinking": thinking, "answer": answer}
