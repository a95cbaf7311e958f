"""Does anything that could steer a terminal get through?"""

import json
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from penstock.words import escape

STEERING = {
    "escape": "\x1b[31mred",
    "title": "\x1b]0;owned\x07",
    "clipboard": "\x1b]52;c;aGk=\x07",
    "link": "\x1b]8;;http://x\x1b\\click",
    "device control": "\x1bP1;2q\x1b\\",
    "c1 csi": "\x9b31m",
    "c1 osc": "\x9d0;x\x9c",
    "delete": "a\x7fb",
    "return": "ok\rFAKE",
    "newline": "a\nb",
    "backspace": "a\bb",
    "bidi": "\u202eevil\u202c \u2066x\u2069",
    "mark": "\u200e\u200f\u061c",
    "hidden": "\u200b\u2060\ufeff\u00ad",
    "tags": "\U000e0041\U000e007f",
    "line ends": "a\u2028b\u2029c\x85d",
    "half": "\ud800",
    "nul": "a\0b",
}


def is_safe(text: str) -> bool:
    return all(
        unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp") or char in "\u200c\u200d"
        for char in text
    )


@pytest.mark.parametrize("kind", STEERING)
def test_what_steers_is_spelled_out(kind: str) -> None:
    text = STEERING[kind]
    shown = escape(text)
    assert is_safe(shown) and "\\" in shown
    assert len(shown) > len(text) and shown.encode()


def test_every_single_character_is_safe_or_spelled_out() -> None:
    for number in range(sys.maxunicode + 1):
        if not is_safe(shown := escape(chr(number))):
            pytest.fail(f"U+{number:04X} came through as {shown!r}")


def test_plain_text_of_any_language_stays() -> None:
    for text in (
        "plain, text! ~",
        "größer → 漢字 кириллица",
        "👩\u200d💻",
        "می\u200cخواهم",
        "a\\x1b",
    ):
        assert escape(text) == text


def test_spelling_says_which() -> None:
    assert escape("\x1b \x9b \u202e \U000e0041") == r"\x1b \x9b \u202e \U000e0041"
    assert escape("a\n\tb\x1b", keep="\n\t") == "a\n\tb\\x1b"
    assert escape(ValueError("\x07")) == r"\x07"


@pytest.mark.extra("example")
def test_a_line_break_in_a_files_name_makes_no_line_of_its_own(here: Any, tmp_path: Path) -> None:
    made = here("example", "chat")
    assert made[0] == 0, made
    data = tmp_path / "chat\n0 failures.jsonl"
    record = (tmp_path / "example-chat" / "chat.jsonl").read_text().splitlines()[0]
    data.write_text(f"{record}\n{record}\n")
    tokenizer = str(tmp_path / "example-chat" / "tokenizer")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps({"data": str(data), "tokenizer": tokenizer, "max_length": 256}))
    for command in ("check", "show"):
        code, said, errors = here(command, recipe)
        assert not code, (said, errors)
        assert "chat\\n0 failures.jsonl:" in said, said
        assert "\n0 failures.jsonl" not in said, said
