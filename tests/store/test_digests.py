"""Are rows read again only when they may have changed, and is content the truth?"""

import gzip
import json
import os
import resource
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.cache import Cache
from penstock.engines import LocalEngine
from penstock.errors import SourceChanged
from penstock.places.files import settled
from penstock.places.place import FileId
from penstock.sources import Files, ListSource, concat, open_source
from penstock.sources.bad import BadRows
from penstock.sources.text import TextRows
from penstock.sources.views import FanOut
from penstock.store import Store, build
from penstock.store.digests import RowRanges, remember_digest, stamp
from penstock.templates import TextTemplate, open_tokenizer

Write = Callable[..., Path]
RECORDS = [{"text": "the quick brown fox " * (row % 7), "row": row} for row in range(500)]


@pytest.fixture
def template(tokenizer_path: Path) -> TextTemplate:
    return TextTemplate(open_tokenizer(tokenizer_path))


@pytest.fixture
def digested(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows whose content was digested in this process, one entry per range."""
    rows: list[int] = []
    plain = TextRows.add_digest

    def add_digest(self: TextRows, content: Any, first: int, last: int) -> None:
        rows.append(last - first)
        plain(self, content, first, last)

    monkeypatch.setattr(TextRows, "add_digest", add_digest)
    return rows


def small(path: Path, template: Any, cache: Cache, **more: Any) -> Store:
    source = open_source(path, cache=cache)
    return build(source, template, engine=LocalEngine(1), cache=cache, shard_rows=100, **more)


def test_unchanged_files_are_not_read_again(
    write_jsonl: Write, cache: Cache, template: TextTemplate, digested: list[int]
) -> None:
    path = write_jsonl(RECORDS)
    first = small(path, template, cache)
    assert sum(digested) == 500  # for the keys: what is encoded is what was digested
    digested.clear()
    assert small(path, template, cache).fingerprint == first.fingerprint and digested == []
    other = TextTemplate(template.tokenizer, eos=False)
    assert (
        small(path, other, cache).fingerprint != first.fingerprint and sum(digested) == 500
    )  # after the work
    digested.clear()
    assert (
        small(path, template, cache, refresh=True).fingerprint == first.fingerprint
        and sum(digested) == 500
    )


def test_a_second_process_reads_no_rows_whose_digest_the_first_has_published(
    write_jsonl: Write, cache: Cache, template: TextTemplate, digested: list[int]
) -> None:
    path = write_jsonl(RECORDS)
    first = small(path, template, cache)
    (whole,) = files_of(cache, "digests")
    whole.unlink()  # as if the first process were still at work
    digested.clear()
    assert small(path, template, cache).fingerprint == first.fingerprint and digested == []


def test_a_snapshot_is_read_once_and_gives_digest_and_records_of_its_rows(
    tmp_path: Path, cache: Cache
) -> None:
    """Through files of every size, views and concatenation; a file that changes meanwhile is noticed."""
    paths = [tmp_path / f"{number}.jsonl" for number in range(3)]
    for number, path in enumerate(paths):
        path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS * (1 + 9 * number)))
    whole = open_source(tmp_path, cache=cache)
    for source in (whole, whole[300:], concat([open_source(path, cache=cache) for path in paths])):
        for start, stop in ((0, 10), (450, 700), (490, 2000), (0, len(source))):
            held = source.snapshot(start, stop)
            assert held is not None
            assert held.digest(start, stop) == source.digest(start, stop)
            assert list(held.records(start, stop)) == list(source.records(start, stop))
            assert held.locate(stop - 1) == source.locate(stop - 1)
    held = whole.snapshot(0, len(whole))
    text = paths[2].read_text()
    paths[2].write_text(text.replace("quick", "quack"))
    with pytest.raises(SourceChanged):
        held.digest(0, len(whole))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lines.txt", "the quick\nbrown\n" * 3),
        ("table.csv", "text,n\nthe quick,1\n" + "fox,2\n" * 5),
        ("document.json", json.dumps([{"text": "the quick"}] * 9)),
        ("lines.jsonl", '{"text": "the quick"}\n' * 9),
        ("bad row.jsonl", '{"text": "the quick"}\n' * 9 + "no JSON\n"),
        ("blank lines.jsonl", '{"text": "the quick"}\n\n' * 9),
    ],
)
def test_a_snapshot_of_a_small_file_keeps_what_was_digested(
    tmp_path: Path, cache: Cache, name: str, text: str
) -> None:
    """Also if an edit in place keeps size and time: tokens of other bytes would get the key of the digested ones."""
    path = tmp_path / name
    path.write_text(text)
    before = path.stat()
    source = open_source(path, cache=cache, bad=BadRows("skip"))
    num_rows, records = len(source), list(source.records(0, len(source)))
    held = source.snapshot(0, num_rows)
    assert held is not None and held.digest(0, num_rows) == source.digest(0, num_rows)
    with path.open("r+") as file:
        file.write(text.replace("quick", "quack"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert list(source.records(0, num_rows)) != records
    assert list(held.records(0, num_rows)) == records


def test_a_snapshot_keeps_no_more_files_open_than_a_source(tmp_path: Path, cache: Cache) -> None:
    """Thousands of small compressed files may be one shard."""
    for number in range(9):
        (tmp_path / f"{number}.jsonl.gz").write_bytes(gzip.compress(b'{"text": "fox"}\n'))
    source = open_source(tmp_path / "*.gz", cache=cache)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, limits[1]))  # of which a source takes an eighth
    try:
        assert source.snapshot(0, 8) is not None
        assert source.snapshot(0, 9) is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_refresh_in_the_background_reads_rows_whose_digest_is_known(
    write_jsonl: Write, cache: Cache, template: TextTemplate, digested: list[int]
) -> None:
    """Else there would be no way out where a file system does not tell that a file has changed."""
    path = write_jsonl(RECORDS)
    first = small(path, template, cache)
    state = stamp(open_source(path, cache=cache))
    for start in range(0, 500, 100):
        remember_digest(start, start + 100, state, "0" * 32, cache)
    digested.clear()
    store = small(path, template, cache, refresh=True, background=True)
    store.wait()
    assert store.fingerprint == first.fingerprint
    assert sum(digested) == 2 * 500  # for the keys, and of what is encoded


def test_whatever_may_have_changed_is_read(
    write_jsonl: Write, cache: Cache, template: TextTemplate, digested: list[int], tmp_path: Path
) -> None:
    path = write_jsonl(RECORDS)
    first = small(path, template, cache)
    status = path.stat()
    digested.clear()
    path.touch()
    assert small(path, template, cache).fingerprint == first.fingerprint and sum(digested) == 500
    digested.clear()
    moved = tmp_path / "moved.jsonl"
    shutil.copy2(path, moved)
    assert small(moved, template, cache).fingerprint == first.fingerprint and sum(digested) == 500
    # Rewritten in place with the same length, and its time put back: only the time of change tells.
    text = path.read_text().replace('"row": 0}', '"row": 9}')
    with path.open("r+") as file:
        file.write(text)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert small(path, template, cache).fingerprint != first.fingerprint


def test_a_stamp_waits_for_the_tick_in_which_a_file_was_written(
    write_jsonl: Write, cache: Cache
) -> None:
    path = write_jsonl(RECORDS)
    source = open_source(path, cache=cache)
    assert stamp(source) is not None
    assert time.time_ns() - path.stat().st_ctime_ns > 20_000_000
    path.write_text("{}\n")
    assert stamp(source) is None  # it is no longer what was opened


def test_times_that_another_write_could_get_too_are_not_settled() -> None:
    now = time.time_ns()
    coarse, future = now // 1_000_000_000 * 1_000_000_000, now + 5_000_000_001
    assert not settled(FileId("a", 1, coarse)) and not settled(FileId("a", 1, future))
    assert settled(FileId("a", 1, coarse - 5_000_000_000)) and settled(FileId("a", 1, now | 1))


def test_stamps_of_views(write_jsonl: Write, cache: Cache) -> None:
    paths = [write_jsonl(RECORDS, name) for name in ("a.jsonl", "b.jsonl")]
    one, two = (open_source(path, cache=cache) for path in paths)
    stamps = [
        stamp(source)
        for source in (
            one,
            two,
            one[:100],
            one[100:],
            one[::2],
            concat([one, two]),
            concat([two, one]),
            one.select([3, 1]),
            one.select([1, 3]),
            two.select([1, 3]),
            one.filter(lambda r: r["row"] > 9),
            open_source(paths[0], cache=cache, max_row_bytes=99),
        )
    ]
    assert None not in stamps and len(set(stamps)) == len(stamps)
    assert stamp(open_source(paths[0], cache=cache)) == stamps[0]
    for source in (
        ListSource(RECORDS),
        one.map(dict),
        ListSource(RECORDS).filter(bool),
        concat([one, ListSource(RECORDS)]),
        ListSource([])[:0],
    ):
        assert stamp(source) is None


def files_of(cache: Cache, kind: str) -> list[Path]:
    """What is remembered of this kind."""
    return [path for path in (cache.root / "memo" / kind).rglob("*") if path.is_file()]


@pytest.mark.parametrize("damage", [b"", b"{}", b"\0" * 500])
def test_damaged_digests_are_not_used(
    write_jsonl: Write, cache: Cache, template: TextTemplate, digested: list[int], damage: bytes
) -> None:
    path = write_jsonl(RECORDS)
    first = small(path, template, cache)
    files = [*files_of(cache, "digests"), *files_of(cache, "ranges")]
    assert len(files) == 1 + 5  # of the whole file, and of each shard
    for file in files:
        file.write_bytes(damage)
    digested.clear()
    assert small(path, template, cache).fingerprint == first.fingerprint and sum(digested) == 500
    source = open_source(path, cache=cache)
    assert (
        RowRanges(source, cache, num_rows=100).recall() is not None
    )  # and there is a good one again
    assert RowRanges(ListSource(RECORDS), cache, num_rows=100).recall() is None
    assert (
        RowRanges(source, cache, num_rows=500).recall() is None
        and RowRanges(source, None).recall() is None
    )


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.txt", "a.parquet", "a.arrow"])
def test_files_of_every_shape_have_a_stamp_so_a_prepared_data_set_is_found_without_reading_it(
    name: str, tmp_path: Path, cache: Cache
) -> None:
    path = tmp_path / name
    table = pa.Table.from_pylist(RECORDS[:3])
    if name == "a.parquet":
        pq.write_table(table, path)
    elif name == "a.arrow":
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    else:
        path.write_text(
            json.dumps(RECORDS[:3])
            if name == "a.json"
            else "text\n"
            if name == "a.csv"
            else '{"text": 1}\n'
        )
    assert stamp(open_source(path, cache=cache)) is not None


def test_how_a_text_is_cut_into_records_is_part_of_its_stamp(tmp_path: Path, cache: Cache) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n\nthree\n")
    marks = [
        stamp(open_source(tmp_path / "a.txt", cache=cache, record=each))
        for each in ("line", "paragraph", "file")
    ]
    assert None not in marks
    assert len(set(marks)) == 3


def test_records_fanned_out_have_a_stamp_of_their_files_and_of_their_turns(
    write_jsonl: Write, cache: Cache
) -> None:
    path = write_jsonl(RECORDS[:5])
    source = open_source(path, cache=cache)
    twice, again, thrice = (FanOut(source, lambda _, n=n: n, key="turn") for n in (2, 2, 3))
    assert stamp(twice) == stamp(again) is not None
    assert len({stamp(source), stamp(twice), stamp(thrice)}) == 3
    assert stamp(FanOut(ListSource(RECORDS[:5]), lambda _: 2, key="turn")) is None


def test_a_folder_of_datasets_with_an_indices_file_is_found_prepared_without_reading_it(
    tmp_path: Path, cache: Cache, template: TextTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    for name, table in (
        ("data.arrow", pa.Table.from_pylist(RECORDS)),
        ("indices.arrow", _indices(range(499, 9, -3))),
    ):
        with pa.ipc.new_stream(folder / name, table.schema) as writer:
            writer.write_table(table)
    files = {
        "_data_files": [{"filename": "data.arrow"}],
        "_indices_files": [{"filename": "indices.arrow"}],
    }
    (folder / "state.json").write_text(json.dumps(files))
    (folder / "dataset_info.json").write_text("{}")
    mark = stamp(open_source(folder, cache=cache))
    first = small(folder, template, cache)
    assert mark is not None and stamp(open_source(folder, cache=cache)) == mark
    digested: list[Any] = []
    monkeypatch.setattr(Files, "digest", lambda *range_: digested.append(range_))
    assert small(folder, template, cache).fingerprint == first.fingerprint and not digested
    monkeypatch.undo()
    with pa.ipc.new_stream(folder / "indices.arrow", _indices([]).schema) as writer:
        writer.write_table(_indices(range(0, 490, 3)))
    assert stamp(open_source(folder, cache=cache)) != mark
    assert small(folder, template, cache).fingerprint != first.fingerprint


def _indices(rows: Iterable[int]) -> pa.Table:
    return pa.table({"indices": pa.array(rows, pa.uint64())})
