"""Does dye come out where it went in?  A round trip over all letters, and what is refused."""

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.templates.dye import Dye, Palette, Undyed, Unverified, hollow_mark
from penstock.templates.stitches import Stitches

LETTERS = st.characters(max_codepoint=0x3FFFF, exclude_categories=["Cs"])
TEXTS = st.lists(st.text(LETTERS, max_size=30), min_size=1, max_size=6)
PLAIN = Palette((), json=False)


def dyed_by(texts: list[str], authors: list[int], palette: Palette = PLAIN) -> tuple[Dye, list[str]]:
    dye = Dye(palette)
    for text, author in zip(texts, authors, strict=True):
        dye.add(text, author)
    return dye, dye.dyed()


def is_dyeable(letter: str) -> bool:
    return letter > "\x1f" and not letter.isspace()


@given(texts=TEXTS)
def test_what_is_dyed_comes_back(texts: list[str]) -> None:
    try:
        dye, dyed = dyed_by(texts, list(range(len(texts))))
    except Unverified:
        assert any(text.strip() and not any(map(is_dyeable, text)) for text in texts)
        return
    found = dye.undo(f"<{'|'.join(dyed)}>")
    assert found.text == f"<{'|'.join(texts)}>"
    where = [False, *(is_dyeable(letter) for text in texts for letter in [*text, " "])]
    assert found.places.tolist() == [place for place, yes in enumerate(where) if yes]
    # The same by the slow way, which does not expect anything.
    again = dye.undo(f"<{'|'.join(dyed)}>\U000f0000")
    assert again.text == found.text + "\U000f0000" and again.places.tolist() == found.places.tolist()
    assert again.turns == found.turns


@given(texts=TEXTS)
def test_stitches_and_dye_say_the_same(texts: list[str]) -> None:
    sewn = Stitches(PLAIN)
    stitched = sewn.undo("|".join(sewn.add(text, author) for author, text in enumerate(texts)))
    if stitched is None:  # some text cannot be sewn, or holds what a stitch is made of
        said = "".join(texts)
        assert any(text.strip() and not any(map(is_dyeable, text)) for text in texts) or not said.isprintable()
        return
    dye, dyed = dyed_by(texts, list(range(len(texts))))
    full = dye.undo("|".join(dyed))
    assert stitched.text == full.text == "|".join(texts)
    for (first, last), (start, stop) in zip(full.turns, stitched.turns, strict=True):  # what cannot be dyed is sewn on
        assert start <= first and last <= stop
        assert not any(map(is_dyeable, full.text[start:first] + full.text[last + 1 : stop + 1]))


def test_stitches_give_up_where_words_do_not_come_out_as_they_went_in() -> None:
    def undone(change: Any) -> Undyed | None:
        sewn = Stitches(Palette(("<t>",), json=False))
        return sewn.undo(change(sewn.add("first words", 0), sewn.mark("asks"), sewn.add("second", 2)))

    assert undone(lambda a, m, b: f"{a} {m} {b}") is not None
    for change in (
        lambda a, m, b: f"{b} {m} {a}",  # another order
        lambda a, m, b: f"{a} {a} {m} {b}",  # twice
        lambda a, m, b: f"{a} {m} {b} {m}",
        lambda a, m, b: f"{a[:-1]} {m} {b}",  # cut
        lambda a, m, b: f"{a.replace('s', 'z')} {m} {b}",  # changed inside
        lambda a, m, b: f"{m} {b}",  # dropped
        lambda a, m, b: f"{a} {m} {b} \U00040000",
    ):
        assert undone(change) is None
    unmarked = undone(lambda a, m, b: f"{a} {b}")  # who is not trained may be left out
    assert unmarked is not None and unmarked.turns == [(0, 10), (12, 17)] and not unmarked.marks
    sewn = Stitches(Palette(("<t>",), json=False))
    assert sewn.undo(sewn.add("<t>", 0)) is None  # nothing to sew at, though something is said
    sewn = Stitches(PLAIN)
    blank = sewn.undo(sewn.add(" \n", 0))
    assert sewn.is_blank and blank is not None and not blank.turns and not len(blank.places)


def test_stitches_do_without_a_tool_call_that_is_left_out_whole() -> None:
    def undone(change: Any) -> Undyed | None:
        sewn = Stitches(PLAIN)
        return sewn.undo(change(sewn.add("said", 0), sewn.call("", 0), sewn.call("called", 0), sewn.add("again", 2)))

    left_out = undone(lambda a, blank, call, b: f"{a} {b}")
    assert left_out is not None and left_out.turns == [(0, 3), (5, 9)]
    for change in (
        lambda a, blank, call, b: f"{a} {call[1:]} {b}",
        lambda a, blank, call, b: f"{a} {call[:-1]} {b}",
        lambda a, blank, call, b: f"{call} {a} {b}",
        lambda a, blank, call, b: f"{a} {call}",
    ):
        assert undone(change) is None


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
    palette = Palette(("skip",), json=False)
    dye, (first, second) = dyed_by(["skip", "other"], [0, 1], palette)
    assert first != "skip" and dye.undo(first + second).bold
    _, (first, _) = dyed_by(["skip", "other"], [0, 0], palette)
    assert first == "skip"  # the same author has colour elsewhere
    with pytest.raises(Unverified, match="nothing that can be dyed"):
        dyed_by(["\U000f0000"], [0])


def test_parts_of_an_author_may_move_or_be_missing() -> None:
    dye, (a, b, c) = dyed_by(["first words", "and more", "second"], [0, 0, 1])
    for rendered in (f"{a} {b} {c}", f"{b} {a} {c}", f"{b} {c}", c, "", f"{a[:4]} {c}"):
        assert dye.undo(rendered).text == rendered.translate({ord(x): ord(x) & 0x3FFFF for x in a + b + c})


def test_authors_may_not_change_places_or_speak_twice() -> None:
    dye, (a, b, c) = dyed_by(["first words", "and more", "second"], [0, 0, 1])
    for rendered in (f"{c} {a} {b}", f"{a} {b} {c} {c}", f"{a} {a} {b} {c}", f"{a} {c} {b}", f"{c} {a}"):
        with pytest.raises(Unverified, match="repeats or rearranges"):
            dye.undo(rendered)
    assert dye.undo(f"{c} {a} {a}", ordered=False).text == "second first words first words"


def test_a_turn_is_what_one_author_wrote() -> None:
    dye, (a, b, c) = dyed_by(["first words", "and more", "second"], [0, 0, 1])
    for rendered in (f"{a} {b} {c}", f"{a} {b} {c}\U000f0000"):
        found = dye.undo(rendered)
        assert found.turns == [(0, len(a) + len(b)), (len(a) + len(b) + 2, len(a) + len(b) + len(c) + 1)]


def test_marks_come_out_as_letters() -> None:
    dye = Dye(Palette(("user",), json=False))
    marked = dye.mark("user asks")
    assert marked.startswith("user ") and marked != "user asks"
    dye.dyed()
    found = dye.undo(f"x {marked} y")
    assert found.text == "x user asks y" and found.marks == [7] and not len(found.places)
    with pytest.raises(Unverified, match="prints a message twice"):
        dye.undo(marked + marked)
    assert dye.mark(" \n") == " \n"


def test_a_name_counts_where_it_is_met_first() -> None:
    dye = Dye(PLAIN)
    name = dye.once("add", 0)
    dye.dyed()
    found = dye.undo(f"call {name}, result of {name}")
    assert found.text == "call add, result of add" and found.places.tolist() == [5]
    assert dye.undo(f"call {name}").places.tolist() == [5]


def test_an_empty_place_can_be_found() -> None:
    found = Dye(PLAIN).undo(f"ab{hollow_mark(0, alone=True)}c")
    assert found.hollow == [2] and found.places.tolist() == [2]


def test_foreign_planes_are_refused() -> None:
    for letter in ("\U00040000", "\U000a1234", "\U000dffff"):
        with pytest.raises(Unverified, match="planes that Unicode does not use"):
            Dye(PLAIN).mark(f"a{letter}")
        with pytest.raises(Unverified, match="planes that Unicode does not use"):
            dyed_by([f"a{letter}"], [0])


def test_a_palette_pickles_as_what_it_was_made_of() -> None:
    palette = Palette(("<a>", "."), json=True)
    again = pickle.dumps(palette)
    assert len(again) < 300
    assert np.array_equal(pickle.loads(again).dyed('x.<a>"'), palette.dyed('x.<a>"'))
