"""Short Python functions: a request, the function with a docstring, at times one sentence after it."""

import random

from .render import capital

# (names, parameters, docstring, body lines)
FUNCTIONS = [
    ("add|add_numbers|sum_two", "a, b", "Return the sum of {0} and {1}.", ["return {0} + {1}"], "adds two numbers"), ("subtract|difference", "a, b", "Return {0} minus {1}.", ["return {0} - {1}"], "subtracts two numbers"),
    ("multiply|product", "a, b", "Return the product of {0} and {1}.", ["return {0} * {1}"], "multiplies two numbers"), ("divide|safe_divide", "a, b", "Return {0} divided by {1}, or None if {1} is zero.", ["if {1} == 0:", "    return None", "return {0} / {1}"], "divides two numbers"),
    ("square", "x", "Return the square of {0}.", ["return {0} * {0}"], "squares a number"), ("is_even", "n", "Return True if {0} is even.", ["return {0} % 2 == 0"], "checks if a number is even"), ("is_odd", "n", "Return True if {0} is odd.", ["return {0} % 2 == 1"], "checks if a number is odd"),
    ("factorial", "n", "Return the factorial of {0}.", ["result = 1", "for i in range(2, {0} + 1):", "    result *= i", "return result"], "computes the factorial of a number"),
    ("fibonacci|fib", "n", "Return the first {0} Fibonacci numbers.", ["numbers = [0, 1]", "while len(numbers) < {0}:", "    numbers.append(numbers[-1] + numbers[-2])", "return numbers[:{0}]"], "returns Fibonacci numbers"),
    ("is_prime", "n", "Return True if {0} is a prime number.", ["if {0} < 2:", "    return False", "for i in range(2, int({0} ** 0.5) + 1):", "    if {0} % i == 0:", "        return False", "return True"], "checks if a number is prime"),
    ("reverse_string|reverse", "text", "Return {0} in reverse order.", ["return {0}[::-1]"], "reverses a string"), ("is_palindrome", "text", "Return True if {0} reads the same in both directions.", ["cleaned = {0}.lower()", "return cleaned == cleaned[::-1]"], "checks if a string is a palindrome"),
    ("count_vowels", "text", "Return the number of vowels in {0}.", ["return sum(1 for letter in {0}.lower() if letter in \"aeiou\")"], "counts the vowels in a string"), ("count_words|word_count", "text", "Return the number of words in {0}.", ["return len({0}.split())"], "counts words in a text"),
    ("largest|find_max", "numbers", "Return the largest number in {0}.", ["result = {0}[0]", "for number in {0}:", "    if number > result:", "        result = number", "return result"], "finds the largest number in a list"),
    ("smallest|find_min", "numbers", "Return the smallest number in {0}.", ["result = {0}[0]", "for number in {0}:", "    if number < result:", "        result = number", "return result"], "finds the smallest number in a list"),
    ("average|mean", "numbers", "Return the mean of {0}.", ["return sum({0}) / len({0})"], "computes the average of a list"), ("total|sum_list", "numbers", "Return the sum of all {0}.", ["total = 0", "for number in {0}:", "    total += number", "return total"], "sums a list of numbers"),
    ("unique|remove_duplicates", "items", "Return {0} without duplicates, in the same order.", ["result = []", "for item in {0}:", "    if item not in result:", "        result.append(item)", "return result"], "removes duplicates from a list"),
    ("flatten", "lists", "Return one list with the items of all {0}.", ["return [item for part in {0} for item in part]"], "flattens a list of lists"), ("sort_numbers|sort_list", "numbers", "Return {0} in ascending order.", ["return sorted({0})"], "sorts a list"),
    ("sort_by_length", "words", "Return {0} sorted by length.", ["return sorted({0}, key=len)"], "sorts words by length"), ("to_celsius|fahrenheit_to_celsius", "degrees", "Convert {0} Fahrenheit to Celsius.", ["return ({0} - 32) * 5 / 9"], "converts Fahrenheit to Celsius"),
    ("to_fahrenheit|celsius_to_fahrenheit", "degrees", "Convert {0} Celsius to Fahrenheit.", ["return {0} * 9 / 5 + 32"], "converts Celsius to Fahrenheit"), ("clamp", "value, low, high", "Return {0} limited to the range from {1} to {2}.", ["return max({1}, min({0}, {2}))"], "clamps a value to a range"),
    ("gcd", "a, b", "Return the greatest common divisor of {0} and {1}.", ["while {1}:", "    {0}, {1} = {1}, {0} % {1}", "return {0}"], "computes the greatest common divisor"), ("count_letters|letter_counts", "text", "Return how often each letter occurs in {0}.", ["counts = {{}}", "for letter in {0}:", "    counts[letter] = counts.get(letter, 0) + 1", "return counts"], "counts the letters in a string"),
    ("read_lines", "path", "Return the lines of the file at {0}.", ["with open({0}, encoding=\"utf-8\") as file:", "    return file.read().splitlines()"], "reads the lines of a file"), ("write_text", "path, text", "Write {1} to the file at {0}.", ["with open({0}, \"w\", encoding=\"utf-8\") as file:", "    file.write({1})"], "writes text to a file"),
    ("greet|hello", "name", "Return a greeting for {0}.", ["return f\"Hello, {{{0}}}!\""], "greets a person by name"), ("hello_world", "", "Print a greeting to the world.", ["print(\"Hello, world!\")"], "prints hello world"), ("capitalize_words|title_case", "text", "Return {0} with every word capitalized.", ["return \" \".join(word.capitalize() for word in {0}.split())"], "capitalizes every word"),
    ("filter_even|even_numbers", "numbers", "Return the even numbers in {0}.", ["return [number for number in {0} if number % 2 == 0]"], "filters even numbers from a list"), ("squares", "n", "Return the squares of the numbers from 1 to {0}.", ["return [i * i for i in range(1, {0} + 1)]"], "returns a list of squares"),
    ("count_to|print_numbers", "n", "Print the numbers from 1 to {0}.", ["for i in range(1, {0} + 1):", "    print(i)"], "prints the numbers from 1 to n"), ("fizzbuzz", "n", "Print the numbers from 1 to {0} with Fizz and Buzz.", ["for i in range(1, {0} + 1):", "    if i % 15 == 0:", "        print(\"FizzBuzz\")", "    elif i % 3 == 0:", "        print(\"Fizz\")", "    elif i % 5 == 0:", "        print(\"Buzz\")", "    else:", "        print(i)"], "plays FizzBuzz"),
    ("area_of_circle|circle_area", "radius", "Return the area of a circle with the given {0}.", ["return 3.14159 * {0} ** 2"], "computes the area of a circle"), ("area|rectangle_area", "width, height", "Return the area of a rectangle.", ["return {0} * {1}"], "computes the area of a rectangle"), ("merge|merge_dicts", "first, second", "Return a dictionary with the keys of {0} and {1}.", ["result = dict({0})", "result.update({1})", "return result"], "merges two dictionaries"),
    ("chunk|split_list", "items, size", "Split {0} into parts of {1} items.", ["return [{0}[i:i + {1}] for i in range(0, len({0}), {1})]"], "splits a list into chunks"), ("binary_search", "items, target", "Return the index of {1} in the sorted list {0}, or -1.", ["low, high = 0, len({0}) - 1", "while low <= high:", "    middle = (low + high) // 2", "    if {0}[middle] == {1}:", "        return middle", "    if {0}[middle] < {1}:", "        low = middle + 1", "    else:", "        high = middle - 1", "return -1"], "does a binary search"),
    ("swap", "a, b", "Return {0} and {1} in swapped order.", ["return {1}, {0}"], "swaps two values"), ("power", "base, exponent", "Return {0} raised to the power {1}.", ["return {0} ** {1}"], "raises a number to a power"), ("starts_with", "text, prefix", "Return True if {0} starts with {1}.", ["return {0}[:len({1})] == {1}"], "checks the start of a string"),
    ("last_item|last", "items", "Return the last item of {0}.", ["return {0}[-1]"], "returns the last item of a list"), ("count_items|length", "items", "Return the number of items in {0}.", ["return len({0})"], "counts the items in a list"), ("roll_dice|roll", "", "Return a random number from 1 to 6.", ["import random", "return random.randint(1, 6)"], "rolls a dice"), ("shuffle_list", "items", "Return {0} in random order.", ["import random", "result = list({0})", "random.shuffle(result)", "return result"], "shuffles a list"),
]
RENAME = {"a": ["x", "first", "left"], "b": ["y", "second", "right"], "numbers": ["values", "data"], "items": ["values", "elements"], "text": ["string", "s"], "n": ["number", "count"], "x": ["number", "value"], "words": ["names"], "name": ["person"]}
ASK = ["Write a Python function that {d}.", "Write a Python function that {d}", "write a python function which {d}", "Python function that {d}", "Can you write a function in Python that {d}?", "Give me a short Python function that {d}.", "I need a Python function that {d}.",
       "Write a short Python function called {f} that {d}.", "Show me Python code that {d}", "Write `{f}({p})` in Python. It {d}.", "Python: a function that {d}"]
AFTER = ["", "", "", "\n\nThe function {d}.", "\n\nCall it as `{f}({p})`."]


def sample(rng: random.Random, extra: list[str]) -> dict:
    """One chat sample whose answer is a fenced Python function."""
    names, parameters, doc, body, does = rng.choice(FUNCTIONS)
    name = rng.choice(names.split("|"))
    args = [p for p in parameters.split(", ") if p]
    if rng.random() < 0.35 and "letter" not in "".join(body) and "number in" not in "".join(body):
        pick = rng.randrange(3)
        args = [RENAME[p][pick % len(RENAME[p])] if p in RENAME else p for p in args]
    if extra and rng.random() < 0.12:
        name = f"{rng.choice(extra)}_{name}"
        ask = "Write a Python function called {f} that {d}."
    else:
        ask = rng.choice(ASK)
    lines = [f'    """{doc.format(*args)}"""'] + ["    " + line.format(*args) for line in body]
    fill = {"{d}": does, "{f}": name, "{p}": ", ".join(args)}
    user, after = ask, rng.choice(AFTER)
    for key, value in fill.items():
        user, after = user.replace(key, value), after.replace(key, value)
    code = f"```python\ndef {name}({', '.join(args)}):\n" + "\n".join(lines) + "\n```" + after
    thinking = f"I need a function that {does}. It takes {' and '.join(args) or 'no arguments'}." if rng.random() < 0.05 else ""
    return {"system": "You are a helpful assistant." if rng.random() < 0.1 else "", "user": capital(user), "thinking": thinking, "answer": code}
