"""The words that made-up records consist of; the tokenizer of `conftest.py` has most of them as single tokens."""

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "and",
    "runs",
    "far",
    "away",
    "from",
    "home",
]
