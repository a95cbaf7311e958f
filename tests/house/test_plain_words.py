"""Does every text use the words of the field?"""

import pytest

from . import plain_words
from .plain_words import ROOT, files, in_plain_words, replaced, replaced_in_code


def test_every_text_is_in_plain_words() -> None:
    wrong = [
        path.relative_to(ROOT).as_posix()
        for path in files()
        if in_plain_words(path) != path.read_text(encoding="utf-8")
    ]
    assert wrong == [], "python -m tests.house.plain_words replaces these words"


@pytest.mark.parametrize("word", sorted(plain_words.PLAIN))
def test_a_word_of_the_list_is_noticed(word: str) -> None:
    written = word.partition("(")[0]
    assert replaced(f"one {written} two") != f"one {written} two"


def test_names_stay_as_they_are() -> None:
    assert replaced_in_code('next to = f"{next to} next to {assigned}"  # again\n') == (
        'next to = f"{next to} next to {assigned}"  # again\n'
    )
    assert replaced_in_code('x["assigned"] = dealt_rows\n') == 'x["assigned"] = dealt_rows\n'
    assert replaced("Datasets lie next to it.") == "Datasets lie next to it."
