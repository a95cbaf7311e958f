"""Does a stream become a source, and is no row asked for twice?"""

import multiprocessing
import pickle
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.cache import Cache
from penstock.errors import BadRecord, SourceError, StoreError
from penstock.sources import open_source
from penstock.testing import check_source

RECORDS: list[dict[str, Any]] = [
    {"row": row, "text": "ü\u2028" * (row % 5), "big": 10**30 + row} for row in range(50)
]


def numbers(count: int, start: int = 0) -> Iterator[dict[str, Any]]:
    return ({"row": row} for row in range(start, count))


class Stream:
    """A function that yields records and counts what it was asked."""

    def __init__(self, records: list[Any]) -> None:
        self.given = records
        self.asked: list[int] = []
        self.calls = 0

    def __call__(self) -> Iterator[Any]:
        self.calls += 1
        for row, record in enumerate(self.given):
            self.asked.append(row)
            if isinstance(record, Exception):
                raise record
            yield record


def kept(stream: Any, cache: Cache, version: str = "1") -> Any:
    return open_source(stream, cache=cache, name="stream", version=version)


def spools(cache: Cache) -> list[Path]:
    return sorted((cache.root / "iterables").rglob("*"))


def test_a_stream_is_a_source_like_any_other(cache: Cache) -> None:
    check_source(open_source(Stream(RECORDS), cache=cache), expected=RECORDS)
    source = kept(partial(iter, RECORDS), cache)
    check_source(source, expected=RECORDS, max_pickle=10_000)
    check_source(kept(partial(iter, RECORDS), cache), expected=RECORDS)
    check_source(open_source(partial(iter, []), cache=cache), expected=[])
    assert str(source.locate(3)) == "stream:4" and source.files == []


@pytest.mark.parametrize(
    "place",
    [
        lambda: iter(RECORDS),
        lambda: RECORDS,
        dict(enumerate(RECORDS)).values(),
        iter(RECORDS),
        Stream(RECORDS),
    ],
)
def test_whatever_can_be_iterated_will_do(place: Any, cache: Cache) -> None:
    source = ps.open(place, cache_dir=cache.root)
    assert list(source) == RECORDS and list(source) == RECORDS and source[-1] == RECORDS[-1]


def test_no_more_is_read_than_is_asked_for(cache: Cache) -> None:
    stream = Stream(RECORDS)
    source = open_source(stream, cache=cache)
    assert stream.calls == 0 and repr(source) == "StreamSource('Stream', 0 records so far)"
    assert source[3] == RECORDS[3] and stream.asked == [0, 1, 2, 3]
    assert (
        source[1] == RECORDS[1]
        and list(source.records(2, 6)) == RECORDS[2:6]
        and stream.asked == list(range(6))
    )
    assert next(iter(source)) == RECORDS[0] and source.digest(0, 5) and source.locate(5).line == 6
    assert stream.asked == list(range(6)) and repr(source).endswith("6 records so far)")
    assert len(source) == 50 and stream.asked == list(range(50)) and stream.calls == 1
    assert repr(source) == "StreamSource('Stream', 50 records)"
    with pytest.raises(IndexError, match="expected -50 <= record < 50"):
        source[50]


def test_iteration_does_not_wait_for_the_end(cache: Cache) -> None:
    def endless() -> Iterator[dict[str, int]]:
        row = 0
        while True:
            yield {"row": row}
            row += 1

    source = open_source(endless, cache=cache)
    rows = iter(source)
    assert [next(rows)["row"] for _ in range(100)] == list(range(100))
    assert [record["row"] for record in source[100:200:30]] == [100, 130, 160, 190]
    assert (
        source[5:3].digest(0, 0)
        and source[:150].locate(149).line == 150
        and source.num_known == 200
    )


def test_a_whole_spool_needs_no_stream(cache: Cache) -> None:
    assert len(kept(Stream(RECORDS), cache)) == 50
    again = Stream([{"other": 1}])
    source = kept(again, cache)
    assert list(source) == RECORDS and again.calls == 0
    assert list(kept(again, cache, version="2")) == [{"other": 1}] and again.calls == 1
    assert len(spools(cache)) == 2


def test_without_a_version_nothing_is_left(cache: Cache) -> None:
    source = open_source(Stream(RECORDS), cache=cache, name="stream")
    folder = source.cache.root
    assert len(source) == 50 and folder.exists() and not cache.root.exists()
    del source
    assert not folder.exists()
    with pytest.raises(SourceError, match="version is given without name"):
        open_source(Stream(RECORDS), cache=cache, version=1)


def test_a_stream_that_was_not_read_to_its_end_is_read_again(cache: Cache) -> None:
    first = kept(Stream(RECORDS), cache)
    assert first[20] == RECORDS[20] and spools(cache) == []
    stream = Stream(RECORDS)
    second = kept(stream, cache)
    assert second[2] == RECORDS[2] and stream.asked == [0, 1, 2]
    assert list(second) == RECORDS == list(first)


def test_a_stream_that_fails_keeps_what_it_gave(cache: Cache) -> None:
    failing = Stream([*RECORDS[:10], OSError("line is down"), *RECORDS[10:]])
    source = kept(failing, cache)
    for _ in range(2):
        with pytest.raises(
            SourceError,
            match=r"stream:11: the iterable raised OSError: line is down; the 10 records before it can be read",
        ):
            len(source)
    assert source[9] == RECORDS[9]
    failing.given.pop(10)  # the line is up again
    assert list(source) == RECORDS
    assert list(kept(Stream([]), cache)) == RECORDS


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ([*RECORDS[:5], {"row": "new"}, *RECORDS[6:]], "record 5 differs"),
        (RECORDS[:8], "it ends at record 8"),
    ],
)
def test_a_stream_that_differs_after_an_error_is_refused(
    cache: Cache, changed: list[Any], message: str
) -> None:
    stream = Stream([*RECORDS[:10], OSError("line is down")])
    source = kept(stream, cache)
    with pytest.raises(SourceError, match="line is down"):
        len(source)
    stream.given = changed
    with pytest.raises(SourceError, match=rf"stream: {message} from what the stream gave before"):
        len(source)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ((1, 2), "is a tuple, expected a dict"),
        ({"a": (1, 2)}, "holds a tuple, expected plain JSON values"),
        ({"a": {"b": [b"x"]}}, "holds a bytes"),
        ({1: 2}, "holds the key 1 of type int"),
        ({"a": float("nan")}, "holds the number nan"),
        ({"a": "\ud800"}, "holds what JSON cannot hold"),
        ({"a": 10**5000}, "holds what JSON cannot hold"),
    ],
)
def test_what_json_would_change_is_refused_by_row(cache: Cache, record: Any, message: str) -> None:
    source = open_source(Stream([{}, record, {}]), cache=cache, name="stream")
    for _ in range(2):  # and not stepped over when asked again
        with pytest.raises(BadRecord, match=rf"^stream:2: record 1 {message}"):
            source[2]
    assert source[0] == {}


def test_deep_records_are_refused_and_not_lost(cache: Cache) -> None:
    deep: Any = {}
    for _ in range(5000):
        deep = {"a": deep}
    with pytest.raises(BadRecord, match=r"^stream:1: record 0 holds"):
        open_source(Stream([deep]), cache=cache, name="stream")[0]


def test_an_iterator_is_begun_once_and_stays_in_its_process(cache: Cache) -> None:
    source = open_source(iter([*RECORDS[:3], None, *RECORDS[3:]]), cache=cache)
    with pytest.raises(BadRecord, match="record 3 is a NoneType"):
        len(source)
    with pytest.raises(SourceError, match="an iterator can be read only once"):
        len(source)
    with pytest.raises(
        SourceError, match="an iterator cannot be sent to another process; read it to the end first"
    ):
        pickle.dumps(open_source(iter(RECORDS), cache=cache))
    whole = open_source(iter(RECORDS), cache=cache)
    assert len(whole) == 50 and list(pickle.loads(pickle.dumps(whole))) == RECORDS


def test_a_copy_in_another_process_reads_on_for_itself(cache: Cache) -> None:
    source = kept(partial(numbers, 50), cache)
    source[10]
    copy = pickle.loads(pickle.dumps(source))
    assert (
        [record["row"] for record in copy]
        == list(range(50))
        == [record["row"] for record in source]
    )


def _in_child(source: Any, queue: Any) -> None:
    queue.put([record["row"] for record in source])


def test_a_forked_process_does_not_share_the_stream(tmp_path: Path, cache: Cache) -> None:
    path = tmp_path / "lines"
    path.write_text("".join(f"{row}\n" for row in range(500)))

    def lines() -> Iterator[dict[str, int]]:
        with path.open(buffering=16) as file:  # a place in a file, which a fork shares
            for line in file:
                yield {"row": int(line)}

    source = kept(lines, cache)
    assert source[100] == {"row": 100}
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(source, queue))
    child.start()
    theirs = queue.get(timeout=60)
    child.join()
    assert theirs == list(range(500)) == [record["row"] for record in source]


def test_threads_read_one_stream_together(cache: Cache) -> None:
    stream = Stream([{"row": row} for row in range(2000)])
    source = kept(stream, cache)
    wrong: list[Any] = []

    def reader(seed: int) -> None:
        for number in range(400):
            row = number * 5 + seed % 5 if seed % 2 else (number * 7919 + seed) % 2000
            if source[row] != {"row": row}:
                wrong.append(row)

    threads = [threading.Thread(target=reader, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and stream.calls == 1 and stream.asked == list(range(2000))


@pytest.mark.parametrize("damage", ["shorter", "flipped", "gone"])
def test_a_damaged_spool_is_made_again(
    cache: Cache, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    len(kept(Stream(RECORDS), cache))
    *_, path = spools(cache)
    whole = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(whole[:100] if damage == "shorter" else whole.replace(b"3", b"4", 1))
    stream = Stream(RECORDS)
    assert list(kept(stream, cache)) == RECORDS and stream.calls == 1
    assert damage == "gone" or "Penstock makes it again" in caplog.text


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"file: a file, expected a folder"):
        len(kept(Stream(RECORDS), Cache(tmp_path / "file")))
