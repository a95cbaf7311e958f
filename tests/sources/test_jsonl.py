"""Does a lazy JSONL source give what a plain full read gives, row by row, and say where each row lives?"""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock.sources.index as index
import penstock.sources.text as line_index
from penstock.cache import Cache
from penstock.errors import BadRecord, SourceChanged, SourceError
from penstock.sources import open_source

Write = Callable[..., Path]

RECORDS: list[dict[str, Any]] = [
    {"text": "plain", "n": 1},
    {"b": 1, "a": None},
    {
        "big": 123456789012345678901234567890,
        "small": -1,
        "float": 1.5,
        "max": 2**64 - 1,
        "min": -(2**63) - 1,
    },
    {"text": 'zeile\u2028 mit 🙂 und \\n "quotes"', "nested": {"a": [1, {"b": []}], "c": {}}},
    {},
]


def plain(path: Path) -> list[Any]:
    """The oracle: the standard library, whole file, lines split at newlines only."""
    lines = path.read_bytes().decode("utf-8-sig").split("\n")
    return [json.loads(line) for line in lines if line.strip(" \t\r\n")]


def line_numbers(path: Path) -> list[int]:
    lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return [number for number, line in enumerate(lines, 1) if line.strip(b" \t\r\n")]


def same(source: Any, expected: list[Any]) -> None:
    assert len(source) == len(expected)
    assert list(source) == expected
    assert [source[row] for row in range(len(source))] == expected
    assert json.dumps(list(source)) == json.dumps(expected)  # types and order of keys, too


def test_records_are_exactly_as_written(write_jsonl: Write, cache: Cache) -> None:
    source = open_source(write_jsonl(RECORDS), cache=cache)
    same(source, RECORDS)
    assert source[-1] == RECORDS[-1] and source[-len(RECORDS)] == RECORDS[0]
    for row in (len(RECORDS), -len(RECORDS) - 1):
        with pytest.raises(IndexError, match="expected -5 <= record < 5"):
            source[row]


LINE = st.one_of(
    st.dictionaries(
        st.text(max_size=5), st.one_of(st.integers(), st.text(max_size=30), st.none()), max_size=3
    ).map(lambda record: json.dumps(record, ensure_ascii=False).encode("utf-8", "surrogatepass")),
    st.sampled_from(
        [b"", b" ", b"\r", b"\t \r", b'  {"a": 1}  ', b'{"a": 12345678901234567890123}']
    ),
).filter(lambda line: b"\xed" not in line)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150
)
@given(
    files=st.lists(
        st.tuples(st.lists(LINE, max_size=12), st.sampled_from([b"\n", b"\r\n"]), st.booleans()),
        max_size=4,
    ),
    bom=st.booleans(),
    block=st.sampled_from([1, 2, 3, 7, 64, 1 << 20]),
)
def test_lazy_equals_eager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: Any, bom: bool, block: int
) -> None:
    monkeypatch.setattr(index, "_READ", block)  # the scan must not care where its blocks end
    folder = tmp_path / os.urandom(8).hex()
    folder.mkdir()
    paths, expected, homes = [], [], []
    for number, (lines, newline, ends) in enumerate(files or [([], b"\n", False)]):
        path = folder / f"{number}.jsonl"
        content = newline.join(lines) + (newline if ends else b"")
        path.write_bytes((b"\xef\xbb\xbf" if bom else b"") + content)
        paths.append(str(path))
        expected += plain(path)
        homes += [(str(path), line) for line in line_numbers(path)]
    source = open_source(paths, cache=Cache(folder / "cache"))
    same(source, expected)
    assert [
        (source.locate(row).file, source.locate(row).line) for row in range(len(source))
    ] == homes
    same(open_source(paths, cache=Cache(folder / "cache")), expected)  # from the sidecar
    cuts = source.cuts(num_bytes=20, num_rows=3)
    assert cuts[0] == 0 and cuts[-1] == len(source)
    assert (np.diff(cuts) > 0).all() and (np.diff(cuts) <= 3).all()


@pytest.mark.parametrize(
    "chosen", [slice(2, 4), slice(None, None, -1), slice(-3, None), slice(1, 100, 2), slice(4, 1)]
)
def test_slices_are_views(write_jsonl: Write, cache: Cache, chosen: slice) -> None:
    source = open_source(write_jsonl(RECORDS), cache=cache)
    view = source[chosen]
    same(view, RECORDS[chosen])
    same(view[::2], RECORDS[chosen][::2])
    rows = range(len(RECORDS))[chosen]
    assert [view.locate(row) for row in range(len(view))] == [source.locate(row) for row in rows]
    cuts = view.cuts(num_bytes=10, num_rows=2)
    assert cuts[0] == 0 and cuts[-1] == len(view) and (np.diff(cuts) > 0).all()


def test_ranges_of_records(write_jsonl: Write, cache: Cache) -> None:
    records = [{"row": row, "fill": "x" * (row % 1000)} for row in range(5000)]
    source = open_source(write_jsonl(records), cache=cache)
    for start, stop in ((0, 5000), (0, 0), (17, 18), (1234, 4321), (5000, 5000)):
        assert list(source.records(start, stop)) == records[start:stop]
    with pytest.raises(IndexError, match=r"records 5\.\.6000"):
        list(source.records(5, 6000))


def test_where_counts_blank_lines_and_bytes(tmp_path: Path, cache: Cache) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\n{"a":1}\n\r\n   \n{"a":2}')
    source = open_source(path, cache=cache)
    first, second = source.locate(0), source.locate(-1)
    assert (first.line, first.byte, second.line, second.byte) == (2, 1, 5, 15)
    assert str(second) == f"{path}:5"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"a": 1', "not JSON: the record is cut off: it ends inside a value, after 7 characters"),
        (b'{"a": NaN}', "not JSON: "),
        (b'{"a": "\\ud800"}', "not JSON: "),
        (b'{"a": "\xff"}', "not JSON: "),
        (b"[1, 2]", "the record is an array, expected an object"),
        (b"null", "the record is null, expected an object"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not JSON: "),
        (b'{"a": ' + b"9" * 5000 + b"}", "not JSON: number is infinity"),
    ],
)
def test_a_bad_line_is_named_by_file_line_and_byte(
    tmp_path: Path, cache: Cache, line: bytes, reason: str
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 0}\n\n' + line + b'\n{"a": 2}\n')
    source = open_source(path, cache=cache)
    assert len(source) == 3 and source[2] == {"a": 2}  # a bad line keeps its number
    for read in (lambda: source[1], lambda: list(source)):
        with pytest.raises(BadRecord) as caught:
            read()
        assert str(caught.value).startswith(f"{path}:3: ")
        assert reason in str(caught.value) and "record 1" in str(caught.value)


def test_long_integers_survive_in_any_company(tmp_path: Path, cache: Cache) -> None:
    path = tmp_path / "a.jsonl"
    lines = (
        ['{"a": 1, "b": "%s"}' % ("x" * 5000)] * 50
        + ['{"a": 1234567890123456789012, "b": 1e3}']
        + ['{"a": -0}'] * 50
    )
    path.write_text("\n".join(lines))
    same(open_source(path, cache=cache), [json.loads(line) for line in lines])


def test_the_second_open_does_not_scan(
    write_jsonl: Write, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "SMALL", 0)  # such files are scanned every time
    path = write_jsonl(RECORDS)
    open_source(path, cache=cache)
    monkeypatch.setattr(line_index, "_scan_lines", lambda *_: pytest.fail("scanned again"))
    same(open_source(path, cache=cache), RECORDS)


def test_a_file_rewritten_within_one_tick_is_scanned_again(
    write_jsonl: Write, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "SMALL", 0)
    path = write_jsonl([{"a": 1}, {"b": 23}])
    before = path.stat()
    open_source(path, cache=cache)
    path.write_text('{"a": 12}\n{"b": 3}\n')  # the same size, and by force the same time
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    same(open_source(path, cache=cache), [{"a": 12}, {"b": 3}])


@pytest.mark.parametrize("damage", [b"", b"x" * 13, b"\0" * 256])
def test_a_damaged_sidecar_is_made_again(
    write_jsonl: Write, cache: Cache, monkeypatch: pytest.MonkeyPatch, damage: bytes
) -> None:
    monkeypatch.setattr(index, "SMALL", 0)
    path = write_jsonl(RECORDS)
    open_source(path, cache=cache)
    (entry,) = cache.entries("memo/index")
    published = cache.path(entry.name)
    published.unlink()
    published.write_bytes(damage)
    same(open_source(path, cache=cache), RECORDS)


def test_a_file_that_changes_while_open_is_refused(write_jsonl: Write, cache: Cache) -> None:
    path = write_jsonl(RECORDS)
    source = open_source(path, cache=cache)
    with path.open("a") as file:
        file.write('{"late": 1}\n')
    for read in (
        lambda: list(source),
        lambda: source.digest(0, 5),
        lambda: pickle.loads(pickle.dumps(source))[0],
    ):
        with pytest.raises(SourceChanged, match=r"data\.jsonl: changed while open"):
            read()


def test_a_source_pickles_small_and_reads_the_same(write_jsonl: Write, cache: Cache) -> None:
    source = open_source(write_jsonl([{"row": row} for row in range(10_000)]), cache=cache)
    frozen = pickle.dumps(source)
    assert len(frozen) < 1000
    copy = pickle.loads(frozen)
    assert list(copy) == list(source) and copy.name == source.name == "data"
    assert list(pickle.loads(pickle.dumps(source[::-3]))) == list(source[::-3])


def test_the_digest_is_of_lines_and_not_of_files(tmp_path: Path, cache: Cache) -> None:
    lines = [b'{"row": %d}' % row for row in range(100)]
    (tmp_path / "whole.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    (tmp_path / "p-1.jsonl").write_bytes(b"\n".join(lines[:40]))
    (tmp_path / "p-2.jsonl").write_bytes(b"\n".join(lines[40:]) + b"\n")
    whole = open_source(tmp_path / "whole.jsonl", cache=cache)
    parts = open_source(tmp_path / "p-*.jsonl", cache=cache)
    assert list(whole) == list(parts)
    for start, stop in ((0, 100), (0, 40), (39, 41), (40, 100), (7, 7)):
        assert (
            whole.digest(start, stop)
            == parts.digest(start, stop)
            == whole[start:stop].digest(0, stop - start)
        )
    assert len({whole.digest(start, start + 1) for start in range(100)}) == 100
    assert whole[::-1].digest(0, 100) != whole.digest(0, 100)


def test_appending_moves_no_border_but_the_last(write_jsonl: Write, cache: Cache) -> None:
    records = [{"row": row, "fill": "x" * (row % 50)} for row in range(1000)]
    before = open_source(write_jsonl(records), cache=cache).cuts(num_bytes=5000, num_rows=100)
    after = open_source(write_jsonl(records + records), cache=cache).cuts(
        num_bytes=5000, num_rows=100
    )
    assert after[: len(before) - 1].tolist() == before[:-1].tolist()


def test_many_small_files_share_shards_and_a_change_stays_local(
    write_jsonl: Write, cache: Cache, tmp_path: Path
) -> None:
    for number in range(100):
        write_jsonl([{"row": row} for row in range(10)], f"p-{number}.jsonl")
    before = open_source(tmp_path / "p-*.jsonl", cache=cache)
    cuts = before.cuts(num_bytes=1000, num_rows=10_000)
    assert len(cuts) == pytest.approx(len(before) * 10.9 / 1000, rel=0.3)
    keys = {
        before.digest(start, stop)
        for start, stop in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)
    }
    write_jsonl([{"row": row, "new": 1} for row in range(9)], "p-50.jsonl")
    after = open_source(tmp_path / "p-*.jsonl", cache=cache)
    cuts = after.cuts(num_bytes=1000, num_rows=10_000)
    more = {
        after.digest(start, stop)
        for start, stop in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)
    }
    assert len(more - keys) <= 3


def test_more_files_than_are_kept_open(write_jsonl: Write, cache: Cache, tmp_path: Path) -> None:
    for number in range(150):
        write_jsonl([{"file": number}], f"p-{number}.jsonl")
    source = open_source(tmp_path, cache=cache)
    assert source.name == tmp_path.name and repr(source).startswith("Files(")
    assert [record["file"] for record in source] == list(range(150))
    assert [source[row]["file"] for row in range(149, -1, -1)] == list(range(149, -1, -1))


def test_what_cannot_be_opened_is_named(tmp_path: Path, cache: Cache) -> None:
    (tmp_path / "a.xyz").touch()
    with pytest.raises(
        SourceError, match=r"a\.xyz: unknown format '\.xyz', expected one of \.jsonl"
    ):
        open_source(tmp_path / "a.xyz", cache=cache)
    with pytest.raises(SourceError, match="cannot open a int as a source"):
        open_source(3, cache=cache)
