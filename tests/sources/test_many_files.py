"""Many small files: the rows, digests and errors of a few large ones, with one file of counts in the cache."""

import json
import os
import random
from pathlib import Path

import pytest

from penstock.cache import Cache
from penstock.errors import BadRecord, SourceChanged
from penstock.sources import BadRows, open_source

LINES = [
    b'{"row": 1}\n',
    b'{"row": 2, "text": "\xc3\xa4"}\r\n',
    b"\n",
    b"  \t\r\n",
    b' {"row": 3}\n',
    b'{"big": 123456789012345678901234567890}\n',
    b'{"a": {"b": [1, 2.5, null]}}\n',
]


def small_files(folder: Path, count: int = 150) -> list[bytes]:
    """Files of nothing, of blank lines, without a last line end, and of odd and plain lines."""
    chance = random.Random(7)
    contents = []
    for number in range(count):
        lines = [
            chance.choice(LINES if number % 3 else LINES[:1]) for _ in range(chance.randrange(5))
        ]
        content = b"".join(lines)
        content = content[:-1] if number % 5 == 0 and content.endswith(b"}\n") else content
        (folder / f"part-{number}.jsonl").write_bytes(content)
        contents.append(content)
    return contents


def test_many_small_files_give_the_rows_and_digests_of_one_large_file(tmp_path: Path) -> None:
    (tmp_path / "many").mkdir()
    contents = small_files(tmp_path / "many")
    large = b"".join(
        content + (b"" if content.endswith(b"\n") or not content else b"\n") for content in contents
    )
    (tmp_path / "large.jsonl").write_bytes(
        large + json.dumps({"filler": "x" * (1 << 17)}).encode() + b"\n"
    )
    one = open_source(tmp_path / "large.jsonl", cache=Cache(tmp_path / "cache"))[:-1]
    for _ in range(2):  # counted, then from the cache
        many = open_source(tmp_path / "many", cache=Cache(tmp_path / "cache"))
        assert list(many) == list(one) and len(many) == len(one) > 100
        assert [many[row] for row in range(len(many))] == list(one)
        assert many.locate(0).file.endswith(".jsonl") and many.locate(len(many) - 1).line >= 1


def test_a_digest_does_not_depend_on_whether_a_file_is_read_whole(
    tmp_path: Path, cache: Cache
) -> None:
    """The rows of a file one by one, and all at once, by the same lines in files that are and are not small."""
    rows = [json.dumps({"row": row, "text": "x" * 700}).encode() + b"\n" for row in range(200)]
    for number in range(100):
        (tmp_path / f"s-{number}.jsonl").write_bytes(
            b"".join(rows[2 * number : 2 * number + 2]).removesuffix(b"\n")
        )
    (tmp_path / "large.jsonl").write_bytes(b"".join(rows))
    many = open_source(f"{tmp_path}/s-*.jsonl", cache=cache)
    large = open_source(tmp_path / "large.jsonl", cache=cache)
    assert large.num_bytes is not None and large.num_bytes > 1 << 16
    for start, stop in ((0, 200), (1, 199), (3, 4), (10, 20)):
        assert many.digest(start, stop) == large.digest(start, stop)
        assert list(many.records(start, stop)) == list(large.records(start, stop))


def test_counts_are_kept_in_one_file_and_found_again(tmp_path: Path) -> None:
    (tmp_path / "many").mkdir()
    small_files(tmp_path / "many")
    cache = Cache(tmp_path / "cache")
    num_rows = len(open_source(tmp_path / "many", cache=cache))
    (entry,) = cache.entries("memo/counts")
    data = bytearray(cache.path(entry.name).read_bytes())
    data[20] ^= 1  # damaged counts are not believed
    cache.path(entry.name).write_bytes(data)
    assert len(open_source(tmp_path / "many", cache=cache)) == num_rows
    assert cache.path(entry.name).read_bytes() != bytes(data)


def test_a_file_that_changed_between_two_openings_is_counted_again(tmp_path: Path) -> None:
    (tmp_path / "many").mkdir()
    for number in range(100):
        (tmp_path / "many" / f"{number}.jsonl").write_text('{"a": 1}\n')
    assert len(open_source(tmp_path / "many", cache=Cache(tmp_path / "cache"))) == 100
    changed = tmp_path / "many" / "50.jsonl"
    before = changed.stat()
    changed.write_text("{}\n{}\n{}\n")  # as long as before
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert changed.stat().st_size == before.st_size
    source = open_source(tmp_path / "many", cache=Cache(tmp_path / "cache"))
    assert len(source) == 102 and source[50:53][0] == {}


def test_a_small_file_that_changes_while_open_is_noticed(tmp_path: Path, cache: Cache) -> None:
    for number in range(100):
        (tmp_path / f"{number}.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    source = open_source(f"{tmp_path}/*.jsonl", cache=cache)
    (tmp_path / "50.jsonl").write_text('{"a": 1}\n{"a": 2}\n{"a": 3}\n')
    for read in (lambda: list(source), lambda: source.digest(0, 200)):
        with pytest.raises(SourceChanged, match=r"50\.jsonl"):
            read()


def test_a_bad_row_in_one_of_many_small_files_has_its_place(tmp_path: Path, cache: Cache) -> None:
    for number in range(100):
        (tmp_path / f"{number}.jsonl").write_text(
            '{"a": 1}\n{"a": }\n' if number == 50 else '{"a": 1}\n{"a": 2}\n'
        )
    with pytest.raises(BadRecord, match=r"50\.jsonl:2"):
        list(open_source(f"{tmp_path}/*.jsonl", cache=cache))
    source = open_source(f"{tmp_path}/*.jsonl", cache=cache, bad=BadRows("skip"))
    assert len(list(source)) == 199 and dict(source.bad_counts) == {"bad_json": 1}


def test_many_small_json_documents_are_not_taken_for_lines(tmp_path: Path) -> None:
    """Each has as many lines as rows, or twice as many, and rows under two fields."""
    (tmp_path / "many").mkdir()
    for number in range(100):
        text = '{"a": [{"n": 1},\n{"n": 2}], "b": [{"n": 3}]}\n'
        (tmp_path / "many" / f"{number}.json").write_text(text)
    for field, expected in (("a", [{"n": 1}, {"n": 2}]), ("b", [{"n": 3}])) * 2:
        source = open_source(tmp_path / "many", cache=Cache(tmp_path / "cache"), field=field)
        assert list(source) == expected * 100 and source[len(source) - 1] == expected[-1]
