"""Paragraphs of a text file: runs of lines that are not blank, found by one scan of any file."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.cache import Cache
from penstock.errors import SourceError
from penstock.sources import text as text_module

LINES = st.lists(
    st.sampled_from(
        ["a", "b c", "  indented", "ends in spaces  ", "", "", " \t", "é\u2028x", "\u00a0"]
    ),
    max_size=40,
)


def by_hand(content: str) -> list[tuple[str, int]]:
    """Paragraphs and their first lines, by a plain reading of the whole file."""
    found: list[tuple[str, int]] = []
    lines: list[str] = []
    for number, line in enumerate([*content.split("\n"), ""], start=1):
        if line.strip(" \t\r"):
            lines.append(line)
        elif lines:
            found.append(("\n".join(lines).removesuffix("\r"), number - len(lines)))
            lines = []
    return found


@given(lines=LINES, end=st.sampled_from(["\n", "\r\n"]), closed=st.booleans(), bom=st.booleans())
def test_paragraphs_are_what_a_plain_reading_gives(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], end: str, closed: bool, bom: bool
) -> None:
    folder = tmp_path_factory.mktemp("text")
    content = end.join(lines) + (end if closed else "")
    (folder / "t.txt").write_bytes(("\ufeff" if bom else "").encode() + content.encode())
    source = ps.open(folder / "t.txt", record="paragraph", cache_dir=folder / "cache")
    expected = by_hand(content)
    assert [record["text"] for record in source] == [text for text, _ in expected]
    assert [source[row]["text"] for row in range(len(source))] == [text for text, _ in expected]
    assert [source.locate(row).line for row in range(len(source))] == [line for _, line in expected]


def test_many_blank_lines_are_looked_at_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_module, "_AT_ONCE", 3)
    content = "".join(f"p {number}\n" + "\n" * (number % 5) for number in range(100))
    (tmp_path / "t.txt").write_text(content)
    source = ps.open(tmp_path / "t.txt", record="paragraph", cache_dir=tmp_path / "cache")
    assert [
        (source[row]["text"], source.locate(row).line) for row in range(len(source))
    ] == by_hand(content)


def test_a_huge_paragraph_is_read_whole_or_refused_by_its_size(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("word " * 600_000 + "\n\nshort\n")
    source = ps.open(tmp_path / "t.txt", record="paragraph", cache_dir=tmp_path / "cache")
    assert len(source) == 2 and len(source[0]["text"]) == 3_000_000 and source[1]["text"] == "short"
    small = ps.open(
        tmp_path / "t.txt",
        record="paragraph",
        max_row_bytes=1000,
        on_bad="skip",
        cache_dir=tmp_path / "cache",
    )
    assert [record["text"] for record in small] == ["short"] and small.bad.counts == {"too_long": 1}


def test_a_file_without_paragraphs_has_no_records(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("\n \n\t\n")
    assert len(ps.open(tmp_path / "t.txt", record="paragraph", cache_dir=tmp_path / "cache")) == 0


def test_blank_records_and_paragraphs_exclude_each_other(tmp_path: Path, cache: Cache) -> None:
    (tmp_path / "t.txt").write_text("a\n")
    with pytest.raises(SourceError, match="keep_blank cannot be used with record='paragraph'"):
        ps.open(tmp_path / "t.txt", record="paragraph", keep_blank=True, cache_dir=cache.root)
