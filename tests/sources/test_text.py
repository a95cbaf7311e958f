"""Is a text, read lazily, what splitting the whole of it gives?"""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import penstock.sources.index as index
from penstock.cache import Cache
from penstock.errors import BadRecord, SourceError
from penstock.sources import BadRows, open_source

NewFolder = Callable[[], Path]

SPACE = " \t\r\n"
SEPARATORS = ["line", "file", "\n\n", "\n", "<|endoftext|>", "\u2028", "aa", "--"]
CONTENT = st.lists(
    st.sampled_from(
        ["\n", "\r\n", "\r", " ", "a", "é", "<|endoftext|>", "-", "\u2028", "\x85", "\0"]
    )
)


def pieces(content: str, split: str, keep_blank: bool) -> list[str]:
    """The oracle: the whole text, split by str.split."""
    separator = "\n" if split == "line" else split
    found = [content] if split == "file" else content.split(separator)
    if split == "line":
        found = [piece.removesuffix("\r") for piece in found[:-1]] + found[-1:]
    if found[-1] == "":  # what follows the last separator is nothing
        found.pop()
    return found if keep_blank else [piece for piece in found if piece.strip(SPACE)]


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=300
)
@example(parts=list("aaa"), split="aa", keep_blank=True, block=1, bom=True)
@given(
    parts=CONTENT,
    split=st.sampled_from(SEPARATORS),
    keep_blank=st.booleans(),
    block=st.integers(1, 9) | st.just(1 << 20),
    bom=st.booleans(),
)
def test_lazy_equals_eager(
    new_folder: NewFolder,
    monkeypatch: pytest.MonkeyPatch,
    parts: list[str],
    split: str,
    keep_blank: bool,
    block: int,
    bom: bool,
) -> None:
    monkeypatch.setattr(index, "_READ", block)
    content = "".join(parts)
    path = new_folder() / "a.txt"
    path.write_bytes((b"\xef\xbb\xbf" if bom else b"") + content.encode())
    expected = [{"text": piece} for piece in pieces(content, split, keep_blank)]
    for _ in ("scan", "sidecar"):
        source = open_source(
            [str(path)], cache=Cache(path.parent / "cache"), record=split, keep_blank=keep_blank
        )
        assert list(source) == expected
        assert [source[row] for row in range(len(source))] == expected
    raw = path.read_bytes()
    for row, record in enumerate(expected):
        where = source.locate(row)
        assert raw[where.byte :].startswith(record["text"].encode())
        assert where.line == raw[: where.byte].count(b"\n") + 1


def test_a_file_may_be_a_record(tmp_path: Path, cache: Cache) -> None:
    for name, content in (("1.md", "# One\n\ntext\n"), ("2.md", " \n"), ("10.md", "ten")):
        (tmp_path / name).write_text(content)
    source = open_source(tmp_path, cache=cache, record="file")
    assert list(source) == [
        {"text": "# One\n\ntext\n"},
        {"text": "ten"},
    ]  # a blank file is no record
    assert source.locate(1).file == str(tmp_path / "10.md")
    assert len(open_source(tmp_path, cache=cache, record="file", keep_blank=True)) == 3


def test_how_it_is_split_is_part_of_the_content(tmp_path: Path, cache: Cache) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one two\nthree")
    digests = {
        open_source(path, cache=cache, record=split).digest(0, 1) for split in ("line", "file", " ")
    }
    assert len(digests) == 3


def test_what_is_not_utf8_is_a_bad_row(tmp_path: Path, cache: Cache) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"good\nb\xe4d\n\xed\xa0\x80\ngood\n")
    bad = BadRows(on_bad="skip")
    assert list(open_source(path, cache=cache, bad=bad)) == [{"text": "good"}] * 2
    assert bad.counts == {"bad_utf8": 2}
    with pytest.raises(
        BadRecord,
        match=r"a\.txt:2: not UTF-8: byte 0xe4 at byte 1 of the record \(record 1, counted from 0; byte \d+\)",
    ):
        open_source(path, cache=cache)[1]


def test_an_empty_separator_is_refused(tmp_path: Path, cache: Cache) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(
        SourceError,
        match="record is '', expected 'line', 'paragraph', 'file' or the text between two records",
    ):
        open_source(tmp_path / "a.txt", cache=cache, record="")


def test_a_row_beyond_the_limit_is_not_read(tmp_path: Path, cache: Cache) -> None:
    path = tmp_path / "a.txt"
    path.write_text("short\n" + "x" * 5000 + "\nshort\n")
    for split, rows in (("line", 2), ("\n", 2), ("file", 0)):
        bad = BadRows(on_bad="skip")
        source = open_source(path, cache=cache, bad=bad, max_row_bytes=100, record=split)
        assert list(source) == [{"text": "short"}] * rows
        assert bad.counts == {"too_long": 1}
