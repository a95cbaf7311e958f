"""Does dye come out where it went in?  A round trip over all letters, and what is refused."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.templates.dye import Dye, Palette, Unverified, hollow_mark

LETTERS = st.characters(max_codepoint=0x3FFFF, exclude_categories=["Cs"])
TEXTS = st.lists(st.text(LETTERS, max_size=30), min_size=1, max_size=6)
PLAIN = Palette((), json=False)


@given(texts=TEXTS)
def test_what_is_dyed_comes_back(texts: list[str]) -> None:
    dye = Dye(PLAIN)
    for text in texts:
        dye.keep(text)
    try:
        dyed = dye.dyed(range(len(texts)))
    except Unverified:
        assert any(text.strip() and not any(c > "\x1f" and not c.isspace() for c in text) for text in texts)
        return
    rendered = "|".join(dyed)
    found = dye.undo(f"<{rendered}>")
    assert found.text == f"<{'|'.join(texts)}>"
    where = np.array([False, *(c > "\x1f" and not c.isspace() for text in texts for c in [*text, " "])])
    assert np.array_equal(found.dyed, where[: len(found.text)])


@given(text=st.text(LETTERS, max_size=60), needle=st.text(st.sampled_from("ab<>/ "), min_size=1, max_size=3))
def test_a_needle_is_found_where_it_was(text: str, needle: str) -> None:
    """The law behind it all: a template that looks for its constants sees them in dyed text exactly where they are in plain text."""
    changed = Palette((needle,), json=False).dyed(text)
    dyed = changed.tobytes().decode("utf-32-le")
    places = [place for place in range(len(text)) if text.startswith(needle, place)]
    assert places == [place for place in range(len(dyed)) if dyed.startswith(needle, place)]
    assert dyed.strip() == dyed[len(text) - len(text.lstrip()) : len(text.rstrip())] or not text.strip()
    assert [len(part) for part in dyed.split()] == [len(part) for part in text.split()]


def test_quotes_stay_where_json_is_written() -> None:
    assert Palette((), json=True).dyed('a"\\')[1:].tolist() == [ord('"'), ord("\\")]
    assert (Palette((), json=False).dyed('a"\\') > 0xFFFF).all()


def test_an_author_without_colour_gets_it_all_the_same() -> None:
    dye = Dye(Palette(("skip",), json=False))
    for text in ("skip", "other"):
        dye.keep(text)
    first, second = dye.dyed([0, 1])
    assert first != "skip" and dye.undo(first + second).bold
    dye = Dye(Palette(("skip",), json=False))
    for text in ("skip", "other"):
        dye.keep(text)
    assert dye.dyed([0, 0])[0] == "skip"  # the same author has colour elsewhere


def two() -> tuple[Dye, list[str]]:
    dye = Dye(PLAIN)
    for text in ("first words", "and more", "second"):
        dye.keep(text)
    return dye, dye.dyed([0, 0, 1])


def test_parts_of_an_author_may_move_or_be_missing() -> None:
    dye, (a, b, c) = two()
    for rendered in (f"{a} {b} {c}", f"{b} {a} {c}", f"{b} {c}", c, "", f"{a[:4]} {c}"):
        assert dye.undo(rendered).text == rendered.translate({ord(x): ord(x) & 0x3FFFF for x in a + b + c})


def test_authors_may_not_change_places_or_speak_twice() -> None:
    dye, (a, b, c) = two()
    for rendered in (f"{c} {a} {b}", f"{a} {b} {c} {c}", f"{a} {a} {b} {c}", f"{a} {c} {b}", f"{c} {a}"):
        with pytest.raises(Unverified, match="repeats or rearranges"):
            dye.undo(rendered)
    assert dye.undo(f"{c} {a} {a}", ordered=False).text == "second first words first words"


def test_turns_are_where_the_ink_changes() -> None:
    dye, (a, b, c) = two()
    assert dye.undo(f"{a} {b} {c}").turns == [len(a) + len(b) + 2]


def test_marks_come_out_as_letters() -> None:
    dye = Dye(Palette(("user",), json=False))
    marked = dye.mark("user asks")
    assert marked.startswith("user ") and marked != "user asks"
    found = dye.undo(f"x {marked} y")
    assert found.text == "x user asks y" and found.marks == [7] and not found.dyed.any()
    with pytest.raises(Unverified, match="prints a message twice"):
        dye.undo(marked + marked)
    assert dye.mark(" \n") == " \n"


def test_a_name_counts_where_it_is_met_first() -> None:
    dye = Dye(PLAIN)
    name = dye.once("add")
    found = dye.undo(f"call {name}, result of {name}")
    assert found.text == "call add, result of add" and np.flatnonzero(found.dyed).tolist() == [5]


def test_an_empty_place_can_be_found() -> None:
    found = Dye(PLAIN).undo(f"ab{hollow_mark(0)}c")
    assert found.hollow == [2] and found.dyed.tolist() == [False, False, True, False]


def test_foreign_planes_are_refused() -> None:
    for letter in ("\U00040000", "\U000a1234", "\U000dffff"):
        with pytest.raises(Unverified, match="planes that Unicode does not use"):
            Dye(PLAIN).mark(f"a{letter}")
        dye = Dye(PLAIN)
        dye.keep(f"a{letter}")
        with pytest.raises(Unverified, match="planes that Unicode does not use"):
            dye.dyed([0])


def test_a_palette_pickles_as_what_it_was_made_of() -> None:
    palette = Palette(("<a>", "."), json=True)
    again = pickle.dumps(palette)
    assert len(again) < 300
    assert np.array_equal(pickle.loads(again).dyed('x.<a>"'), palette.dyed('x.<a>"'))
