"""Does a table read lazily give what Python's csv module gives, cell for cell, wherever its quotes and blocks end?"""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import penstock.sources.index as index
from penstock.cache import Cache
from penstock.errors import BadRecord, SourceError
from penstock.sources import BadRows, open_source
from penstock.types import BadRow

NewFolder = Callable[[], Path]

HOSTILE = st.text(st.sampled_from('",\t\r\n ax\0é\u2028'), max_size=40)


def cells(content: str, delimiter: str) -> list[list[str]]:
    """The oracle: the standard library, whole text, empty lines left out as DictReader does."""
    reader = csv.reader(io.StringIO(content, newline=""), delimiter=delimiter)
    return [row for row in reader if row]


def numbers(content: str, delimiter: str) -> list[int]:
    """The line at which each of those records begins, from 1."""
    reader = csv.reader(io.StringIO(content, newline=""), delimiter=delimiter)
    found, before = [], 0
    for row in reader:
        if row:
            found.append(before + 1)
        before = reader.line_num
    return found


def ends_inside_quotes(content: str, delimiter: str) -> bool:
    """Another line is another record, unless a quote takes it in."""
    return len(cells(content + "\nx\n", delimiter)) == len(cells(content, delimiter)) > 0


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=300
)
@example(content='5" pipe,x\n"a"b",c\n', delimiter=",", block=3, bom=False)
@example(content='""""\n""\n"a"""\r"\r\n"\r\n\r\n', delimiter=",", block=1, bom=True)
@example(content='x"\n"\n\n\r\n"y', delimiter=",", block=1, bom=False)
@given(
    content=HOSTILE,
    delimiter=st.sampled_from(",\t"),
    block=st.integers(1, 9) | st.just(1 << 20),
    bom=st.booleans(),
)
def test_records_are_those_of_the_csv_module(
    new_folder: NewFolder,
    monkeypatch: pytest.MonkeyPatch,
    content: str,
    delimiter: str,
    block: int,
    bom: bool,
) -> None:
    monkeypatch.setattr(index, "_READ", block)
    expected = cells(content, delimiter)
    width = len(expected[0]) if expected else 1
    folder = new_folder()
    path = folder / "a.csv"
    path.write_bytes((b"\xef\xbb\xbf" if bom else b"") + content.encode())
    names = [str(column) for column in range(width)]
    source = open_source(
        [str(path)],
        cache=Cache(folder / "cache"),
        names=names,
        delimiter=delimiter,
        bad=BadRows(on_bad="skip"),
    )
    found = list(source.records(0, len(source)))
    assert len(found) == len(expected)
    assert [source.locate(row).line for row in range(len(source))] == numbers(content, delimiter)
    for number, (record, row) in enumerate(zip(found, expected, strict=True)):
        if number == len(expected) - 1 and ends_inside_quotes(content, delimiter):
            assert isinstance(record, BadRow) and record.reason == "open_quote"
        elif len(row) != width:
            assert isinstance(record, BadRow) and record.reason == "wrong_width"
        else:
            assert record == dict(zip(names, row, strict=True)) == source[number]


CELL = st.text(st.characters(codec="utf-8") | st.sampled_from('",\r\n'), max_size=8)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60
)
@given(
    rows=st.lists(st.tuples(CELL, CELL, CELL), max_size=8),
    block=st.sampled_from([2, 5, 64]),
    end=st.sampled_from(["\r\n", "\n"]),
)
def test_what_the_csv_module_writes_comes_back(
    new_folder: NewFolder, monkeypatch: pytest.MonkeyPatch, rows: list[Any], block: int, end: str
) -> None:
    monkeypatch.setattr(index, "_READ", block)
    folder = new_folder()
    paths = [folder / "1.tsv", folder / "2.tsv"]
    for path, part in zip(paths, (rows[:3], rows[3:]), strict=True):
        with path.open("w", newline="", encoding="utf-8") as file:
            # all cells quoted, as before 3.13 the writer forgets to quote a \r that is not its line end
            writer = csv.writer(file, delimiter="\t", lineterminator=end, quoting=csv.QUOTE_ALL)
            writer.writerows([("a", "b", 'c\n"d"'), *part])
    source = open_source(folder, cache=Cache(folder / "cache"))
    assert list(source) == [dict(zip(("a", "b", 'c\n"d"'), row, strict=True)) for row in rows]
    assert list(source[::-1]) == list(source)[::-1]


def write(tmp_path: Path, content: str, name: str = "a.csv") -> Path:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8", newline="")
    return path


def test_a_cell_may_be_longer_than_the_csv_module_allows(tmp_path: Path, cache: Cache) -> None:
    long = "x" * (csv.field_size_limit() + 1)
    source = open_source(write(tmp_path, f'a,b\n"{long}",{long}\n1,2\n'), cache=cache)
    assert source[0] == {"a": long, "b": long} and source[1] == {"a": "1", "b": "2"}


def test_cells_are_strings_unless_types_are_asked_for(tmp_path: Path, cache: Cache) -> None:
    path = write(
        tmp_path, 'i,f,b,j,s\n007, 1.5,TRUE,"{""k"": [1, 12345678901234567890123]}",007\n,,,,\n'
    )
    assert open_source(path, cache=cache)[0] == {
        "i": "007",
        "f": " 1.5",
        "b": "TRUE",
        "j": '{"k": [1, 12345678901234567890123]}',
        "s": "007",
    }
    types = {"i": "int", "f": "float", "b": "bool", "j": "json"}
    source = open_source(path, cache=cache, types=types)
    assert source[0] == {
        "i": 7,
        "f": 1.5,
        "b": True,
        "j": {"k": [1, 12345678901234567890123]},
        "s": "007",
    }
    assert source[1] == {"i": None, "f": None, "b": None, "j": None, "s": ""}
    assert source.digest(0, 2) != open_source(path, cache=cache).digest(0, 2)


@pytest.mark.parametrize(
    ("kind", "cell", "reason"),
    [
        ("int", "1.0", "column 'a' is '1.0': expected a whole number"),
        ("int", "1_000", "expected a whole number"),
        ("int", "9" * 5000, "fewer digits"),
        ("float", "nan", "expected a finite number"),
        ("float", "1e999", "expected a finite number"),
        ("bool", "yes", "expected true, false, 1 or 0"),
        ("json", "{", "not JSON: "),
    ],
)
def test_a_cell_of_another_type_is_a_bad_row(
    tmp_path: Path, cache: Cache, kind: str, cell: str, reason: str
) -> None:
    path = write(tmp_path, f"a\n1\n{cell}\n0\n")
    source = open_source(path, cache=cache, types={"a": kind})
    assert source[2] == {"a": 0}
    with pytest.raises(BadRecord) as caught:
        source[1]
    assert str(caught.value).startswith(f"{path}:3: ") and reason in str(caught.value)


def test_a_row_of_another_width_is_bad_and_says_what_was_expected(
    tmp_path: Path, cache: Cache
) -> None:
    path = write(tmp_path, 'a,b\n1,2\n"1\n",2,3\n4\n5,6\n')
    source = open_source(path, cache=cache)
    with pytest.raises(BadRecord) as caught:
        list(source)
    assert str(caught.value).startswith(
        f"{path}:3: the row has 3 cells, expected 2 (a, b) (record 1, counted from 0; byte 8); fix"
    )
    bad = BadRows(on_bad="skip")
    assert list(open_source(path, cache=cache, bad=bad)) == [
        {"a": "1", "b": "2"},
        {"a": "5", "b": "6"},
    ]
    assert bad.counts == {"wrong_width": 2} and bad.rows == [1, 2]


def test_quotes_can_be_turned_off(tmp_path: Path, cache: Cache) -> None:
    path = write(tmp_path, 'a\tb\n"so\tit"\n"\t"\n', "a.tsv")
    assert list(open_source(path, cache=cache, quotes=False)) == [
        {"a": '"so', "b": 'it"'},
        {"a": '"', "b": '"'},
    ]


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("a,b,a\n", {}, r"a\.csv:1: column 'a' is named twice; rename one, or pass names="),
        ("", {"names": ["x", "x"]}, "names=: column 'x' is named twice"),
        (
            "a,b\n",
            {"types": {"c": "int"}},
            r"a\.csv:1: types names the column 'c', expected one of a, b",
        ),
        (
            "a,b\n",
            {"types": {"a": "date"}},
            "types has 'date', expected one of int, float, bool, json",
        ),
        ("a,b\n", {"delimiter": ";;"}, "delimiter is ';;', expected one ASCII character"),
        ("a,b\n", {"delimiter": '"'}, "expected one ASCII character"),
        ('\n"a,b\n1,2\n', {}, r"a\.csv:2: no header: a quote is opened and never closed; fix"),
        ("a,b\n", {"max_row_bytes": 3}, r"a\.csv:1: the header has 4 bytes"),
        ("a,b\n", {"max_row_bytes": 0}, "max_row_bytes is 0, expected a number ≥ 1"),
    ],
)
def test_tables_that_cannot_be_opened_say_why(
    tmp_path: Path, cache: Cache, content: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SourceError, match=message):
        open_source(write(tmp_path, content), cache=cache, **options)


def test_files_with_other_columns_are_refused_and_another_order_is_not(
    tmp_path: Path, cache: Cache
) -> None:
    write(tmp_path, "a,b\n1,2\n", "1.csv")
    write(tmp_path, "b,a\n3,4\n", "2.csv")
    write(tmp_path, "", "3.csv")
    assert list(open_source(tmp_path, cache=cache)) == [{"a": "1", "b": "2"}, {"b": "3", "a": "4"}]
    path = write(tmp_path, "\na,c\n5,6\n", "4.csv")
    with pytest.raises(
        SourceError,
        match=rf"{path}:2: other columns than in .*1\.csv: only one of them has 'b', 'c'",
    ):
        open_source(tmp_path, cache=cache)


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_a_header_of_one_column_with_another_delimiter_is_refused(
    tmp_path: Path, cache: Cache, mark: str
) -> None:
    path = write(tmp_path, f"question{mark}answer\none{mark}two\n")
    with pytest.raises(
        SourceError, match=r"the header is one column, .*; set the option delimiter to"
    ):
        open_source(path, cache=cache)
    assert open_source(path, cache=cache, delimiter=mark)[0] == {"question": "one", "answer": "two"}
    assert open_source(path, cache=cache, delimiter=",")[0] == {
        f"question{mark}answer": f"one{mark}two"
    }


def test_an_empty_table_has_no_rows(tmp_path: Path, cache: Cache) -> None:
    for content in ("", "\n\r\n", "a,b", "a,b\n\n"):
        assert list(open_source(write(tmp_path, content), cache=cache)) == []


def test_a_limit_of_the_csv_module_that_the_user_lowered_is_no_error(
    tmp_path: Path, cache: Cache
) -> None:
    (tmp_path / "a.csv").write_text('a,b\n"' + "x" * 2000 + '",1\n"y",2\n')
    before = csv.field_size_limit(1000)
    try:
        source = open_source(tmp_path / "a.csv", cache=cache)
        assert [len(source[0]["a"]), *(len(record["a"]) for record in source)] == [2000, 2000, 1]
    finally:
        csv.field_size_limit(before)
