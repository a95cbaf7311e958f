"""What once went wrong with sources, each named after what must not happen again."""

import gzip
import json
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.cache import Cache
from penstock.errors import BadRecord, SourceChanged, SourceError
from penstock.sources import concat, open_source
from penstock.sources import open as opening
from penstock.sources.bad import BadRows
from penstock.sources.views import FanOut

LONG_AGO = 10**18  # 2001, in nanoseconds and whole seconds
ROWS = [{"row": row, "text": "x" * (50 + row % 40)} for row in range(2000)]


def fill(path: Path, *rows: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def swapped(rows: list[Any], row: int) -> list[Any]:
    """Same size, same head, middle and tail; a border between two rows is elsewhere, by more than a space could hide."""
    assert abs(len(rows[row]["text"]) - len(rows[row + 1]["text"])) > 9
    return [*rows[:row], rows[row + 1], rows[row], *rows[row + 2 :]]


# Names


def test_a_link_to_a_folder_above_repeats_no_file(tmp_path: Path, cache: Cache) -> None:
    fill(tmp_path / "d" / "a.jsonl", {"row": 0})
    (tmp_path / "d" / "loop").symlink_to(tmp_path / "d")
    (tmp_path / "d" / "v2").mkdir()
    fill(tmp_path / "d" / "v2" / "b.jsonl", {"row": 1})
    (tmp_path / "d" / "latest").symlink_to(tmp_path / "d" / "v2")
    for pattern in ("d/**", "d/**/*.jsonl"):
        source = open_source(f"{tmp_path}/{pattern}", cache=cache)
        assert source.files == [
            str(tmp_path / "d" / "a.jsonl"),
            str(tmp_path / "d" / "v2" / "b.jsonl"),
        ]


def test_a_folder_reached_by_a_link_alone_is_not_left_out(tmp_path: Path, cache: Cache) -> None:
    fill(tmp_path / "elsewhere" / "a.jsonl", {"row": 0})
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "link").symlink_to(tmp_path / "elsewhere")
    assert open_source(f"{tmp_path}/d/**", cache=cache).files == [
        str(tmp_path / "d" / "link" / "a.jsonl")
    ]


def test_a_link_that_leads_nowhere_is_no_gap_in_a_folder(tmp_path: Path, cache: Cache) -> None:
    fill(tmp_path / "d" / "a.jsonl", {"row": 0})
    (tmp_path / "d" / "b.jsonl").symlink_to(tmp_path / "gone.jsonl")
    with pytest.raises(SourceError, match=r"d/b\.jsonl: nothing found"):
        open_source(tmp_path / "d", cache=cache)


def test_a_pipe_is_no_gap_in_a_folder(tmp_path: Path, cache: Cache) -> None:
    fill(tmp_path / "d" / "a.jsonl", {"row": 0})
    os.mkfifo(tmp_path / "d" / "b.jsonl")
    with pytest.raises(SourceError, match=r"d/b\.jsonl: not a regular file"):
        open_source(tmp_path / "d", cache=cache)


def test_brackets_in_the_name_of_a_folder_are_no_pattern(tmp_path: Path, cache: Cache) -> None:
    fill(tmp_path / "[set1]" / "chat" / "a.jsonl", {"row": 0}, {"row": 1})
    assert len(open_source(f"{tmp_path}/[set1]/*/*.jsonl", cache=cache)) == 2
    fill(tmp_path / "s" / "b.jsonl", {"row": 0})
    assert (
        len(open_source(f"{tmp_path}/[s]/*.jsonl", cache=cache)) == 1
    )  # no such folder, so a pattern


@pytest.mark.parametrize("place", ["x" * 5000, "a\0b.jsonl", '{"text": 1}\n' * 100])
def test_what_can_be_no_path_is_an_error_of_ours(cache: Cache, place: str) -> None:
    with pytest.raises(SourceError, match="check the path") as raised:
        open_source(place, cache=cache)
    assert len(str(raised.value)) < 1000


def test_a_folder_that_is_not_there_is_no_file_of_unknown_shape(
    tmp_path: Path, cache: Cache
) -> None:
    with pytest.raises(
        SourceError, match="nowhere: nothing found, expected a file; check the path"
    ):
        open_source(tmp_path / "nowhere", cache=cache)


def test_a_folder_that_may_not_be_read_is_an_error_of_ours(cache: Cache) -> None:
    with tempfile.TemporaryDirectory() as root:
        Path(root).chmod(0o755)
        fill(Path(root) / "d" / "a.jsonl", {"row": 0})
        (Path(root) / "d").chmod(0)
        me = os.geteuid()
        try:
            if me == 0:
                os.seteuid(65534)  # root may read everything
            with pytest.raises(SourceError, match="d: Permission denied; check the path"):
                open_source(Path(root) / "d", cache=cache)
        finally:
            os.seteuid(me)
            (Path(root) / "d").chmod(0o755)


def test_an_empty_path_is_not_the_current_folder(
    tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "a.jsonl", {"row": 0})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError, match="the path is empty"):
        open_source("", cache=cache)


def test_rows_of_a_glob_want_an_at(tmp_path: Path, cache: Cache) -> None:
    fill(tmp_path / "a.jsonl", {"row": 0}, {"row": 1})
    with pytest.raises(SourceError, match=r"written with an @: .*/\*\.jsonl@\[:1\]$"):
        open_source(f"{tmp_path}/*.jsonl[:1]", cache=cache)
    assert len(open_source(f"{tmp_path}/*.jsonl@[:1]", cache=cache)) == 1


def test_suffixes_that_shout_are_understood_to_their_end(tmp_path: Path, cache: Cache) -> None:
    (tmp_path / "A.JSONL.GZ").write_bytes(gzip.compress(b'{"row": 0}\n'))
    assert list(open_source(tmp_path / "A.JSONL.GZ", cache=cache)) == [{"row": 0}]
    (tmp_path / "B.TSV").write_text("a\tb\n1\t2\n")
    (tmp_path / "C.Tsv.Gz").write_bytes(gzip.compress(b"a\tb\n1\t2\n"))
    for name in ("B.TSV", "C.Tsv.Gz"):
        assert list(open_source(tmp_path / name, cache=cache)) == [{"a": "1", "b": "2"}]


def test_a_readme_is_not_the_data_of_the_folders_beside_it(tmp_path: Path, cache: Cache) -> None:
    fill(tmp_path / "data" / "README.md", "about")
    fill(tmp_path / "data" / "train" / "a.jsonl", {"row": 0})
    with pytest.raises(
        SourceError, match=r"data: no data next to README\.md; .* write .*/data/\*\* for"
    ):
        open_source(tmp_path / "data", cache=cache)
    assert len(open_source(f"{tmp_path}/data/**", cache=cache)) == 1
    assert len(open_source(tmp_path / "data" / "README.md", cache=cache)) == 1


def test_a_shape_that_is_asked_for_does_not_hush_what_is_left_out(
    tmp_path: Path, cache: Cache, caplog: pytest.LogCaptureFixture
) -> None:
    fill(tmp_path / "d" / "a.jsonl", {"row": 0})
    fill(tmp_path / "d" / "b.csv", "x")
    with caplog.at_level("INFO", "penstock"):
        open_source(tmp_path / "d", cache=cache, format="jsonl")
    assert "left out: b.csv" in caplog.text


def test_a_policy_for_bad_rows_is_not_dropped_by_a_source_that_is_open(
    tmp_path: Path, cache: Cache
) -> None:
    source = open_source(fill(tmp_path / "a.jsonl", {"row": 0}), cache=cache)
    with pytest.raises(SourceError, match="on_bad='skip', but the source is open already"):
        open_source(source, cache=cache, bad=BadRows("skip"))


# Rows


def test_a_place_is_plain_numbers_whatever_the_row_is(tmp_path: Path, cache: Cache) -> None:
    source = open_source(fill(tmp_path / "a.jsonl", {"row": 0}, {"row": 1}), cache=cache)
    assert (
        json.dumps(
            [source.locate(np.int64(-1)).line, source.select(np.arange(2)).locate(np.int32(1)).line]
        )
        == "[2, 2]"
    )


def test_scattered_rows_cost_no_more_than_rows_by_number(tmp_path: Path, cache: Cache) -> None:
    source = open_source(fill(tmp_path / "a.jsonl", *ROWS * 20), cache=cache)
    started = time.process_time()
    by_number = [source[row] for row in range(len(source))[::-1]]
    spent = time.process_time() - started
    started = time.process_time()
    assert list(source[::-1]) == by_number
    assert (
        time.process_time() - started < 3 * spent + 0.05
    )  # once 4 times as much, and 20 times a plain read


def test_too_many_bad_rows_are_too_many_the_second_time(tmp_path: Path, cache: Cache) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('bad\n{"row": 1}\nbad\n')
    source = open_source(path, cache=cache, bad=BadRows("skip", max_bad=1))
    for _ in range(3):
        with pytest.raises(BadRecord, match="max_bad is 1"):
            list(source)
    assert source.bad_counts == {"bad_json": 2}


# Files that change


def test_an_index_is_not_trusted_because_somebody_put_the_time_back(
    tmp_path: Path, cache: Cache
) -> None:
    path = fill(tmp_path / "a.jsonl", *ROWS)
    os.utime(path, ns=(LONG_AGO, LONG_AGO))
    time.sleep(0.05)
    open_source(path, cache=cache)
    with path.open("r+") as file:
        file.write("".join(json.dumps(row) + "\n" for row in swapped(ROWS, 439)))
    os.utime(path, ns=(LONG_AGO, LONG_AGO))
    time.sleep(0.05)
    source = open_source(path, cache=cache)
    assert [source[row] for row in range(2000)] == swapped(
        ROWS, 439
    )  # by number: lines read together need no borders


def test_another_file_of_the_same_size_and_time_is_another_file(
    tmp_path: Path, cache: Cache
) -> None:
    path, other = fill(tmp_path / "a.jsonl", *ROWS), fill(tmp_path / "b.jsonl", *swapped(ROWS, 439))
    for each in (path, other):
        os.utime(each, ns=(LONG_AGO, LONG_AGO))
    sent = pickle.dumps(open_source(path, cache=cache))
    other.rename(path)
    with pytest.raises(SourceChanged, match="another file has taken its place"):
        pickle.loads(sent)[439]


def test_a_file_that_is_opened_again_has_as_many_rows_as_before(
    tmp_path: Path, cache: Cache
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"row": 0}\n{"row": 1}\n')
    os.utime(path, ns=(LONG_AGO, LONG_AGO))
    sent = pickle.dumps(open_source(path, cache=cache))
    with path.open("r+") as file:
        file.write('{"row":         0}\n   ')
    os.utime(path, ns=(LONG_AGO, LONG_AGO))
    with pytest.raises(SourceChanged, match="it has 1 records, expected 2"):
        pickle.loads(sent)[1]


def test_a_row_of_a_parquet_file_that_was_overwritten_is_not_given_out(
    tmp_path: Path, cache: Cache
) -> None:
    for name, first in (("a.parquet", 0), ("b.parquet", 5000)):
        pq.write_table(
            pa.table({"row": range(first, first + 5000)}), tmp_path / name, row_group_size=1000
        )
    source = open_source(tmp_path / "a.parquet", cache=cache)
    assert source[0] == {"row": 0}
    shutil.copyfile(tmp_path / "b.parquet", tmp_path / "a.parquet")
    for row in (1, 4000):
        with pytest.raises(SourceChanged):
            source[row]


def test_an_index_that_was_cut_off_is_made_again(tmp_path: Path, cache: Cache) -> None:
    path = fill(tmp_path / "a.jsonl", *ROWS)
    os.utime(path, ns=(LONG_AGO, LONG_AGO))
    time.sleep(0.05)
    open_source(path, cache=cache)
    (entry,) = cache.entries("memo/index")
    index = cache.path(entry.name)
    size = index.stat().st_size
    os.truncate(index, size // 16 * 8)
    assert len(open_source(path, cache=cache)) == len(ROWS)
    assert index.stat().st_size == size


# Many files


@pytest.fixture
def few_files() -> Iterator[None]:
    """A process that may open little more than it has open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = max(int(fd.name) for fd in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(taken + 40, before[0]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("few_files")
def test_many_sources_share_the_files_that_a_process_may_open(tmp_path: Path, cache: Cache) -> None:
    paths = [fill(tmp_path / f"{number}.jsonl", {"row": number}) for number in range(300)]
    together = concat([open_source(path, cache=cache) for path in paths])
    assert [together[row]["row"] for row in range(300)] == list(range(300))
    whole = open_source(tmp_path, cache=cache)
    assert [record["row"] for record in whole] == list(range(300))


@pytest.mark.usefixtures("few_files")
@pytest.mark.parametrize("shape", ["arrow", "parquet"])
def test_what_is_decoded_holds_no_file_open(tmp_path: Path, cache: Cache, shape: str) -> None:
    for number in range(150):
        table = pa.table({"row": [2 * number, 2 * number + 1]})
        if shape == "parquet":
            pq.write_table(table, tmp_path / f"{number}.parquet")
        else:
            with (
                pa.OSFile(str(tmp_path / f"{number}.arrow"), "wb") as out,
                pa.ipc.new_file(out, table.schema) as writer,
            ):
                writer.write_table(table)
    source = open_source(tmp_path, cache=cache)
    for _ in range(2):
        assert [source[row]["row"] for row in range(300)] == list(range(300))


def test_what_lies_beside_many_files_costs_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [*(f"{tmp_path}/{number}.jsonl" for number in range(20_000)), f"{tmp_path}/README.md"]
    monkeypatch.setattr(opening, "find", lambda _: found)
    started = time.process_time()
    assert opening._data_files(str(tmp_path), None) == found[:-1]
    assert (
        time.process_time() - started < 2
    )  # once 8 seconds for 10,000: a set of all files was made for each


# Columns


def test_a_text_that_all_rows_share_does_not_fill_memory(tmp_path: Path, cache: Cache) -> None:
    words = pa.array(["x" * 20_000])
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), words)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": column, "row": range(20_000)}), path, store_schema=False)
    assert path.stat().st_size < 1 << 20
    # in a process of its own: Arrow remembers the largest request of a process, also one that a damaged file made in vain
    script = (
        "import sys, penstock as ps, pyarrow as pa\n"
        "source = ps.open(sys.argv[1], cache_dir=sys.argv[2])\n"
        "before = pa.total_allocated_bytes()\n"
        "assert source[19_999]['row'] == 19_999\n"
        "assert pa.total_allocated_bytes() - before < 100 << 20  # 400 MB when decoded\n"
        "assert pa.default_memory_pool().max_memory() < 300 << 20\n"
    )
    command = [sys.executable, "-c", script, str(path), str(cache.root)]
    subprocess.run(command, check=True)


def test_times_in_views_and_runs_are_pythons_own(tmp_path: Path, cache: Cache) -> None:
    times = pa.array([1000, 2000], pa.timestamp("ns"))
    arrays = {
        "runs": pa.RunEndEncodedArray.from_arrays(pa.array([1, 3], pa.int32()), times),
        "views": pa.array([[1000], None, []], pa.list_view(pa.timestamp("ns"))),
    }
    batch = pa.record_batch(list(arrays.values()), list(arrays))
    with (
        pa.OSFile(str(tmp_path / "a.arrow"), "wb") as out,
        pa.ipc.new_stream(out, batch.schema) as writer,
    ):
        writer.write_batch(batch)
    first, second, third = open_source(tmp_path / "a.arrow", cache=cache)
    assert [type(first["runs"]).__module__, first["runs"].microsecond] == ["datetime", 1]
    assert first["views"] == [first["runs"]]
    assert (second["views"], third["views"]) == (None, [])
    assert second["runs"] == third["runs"]


def test_times_in_other_columns_do_not_touch_runs_of_text(tmp_path: Path, cache: Cache) -> None:
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["a", "b"]))
    times = pa.array([1000, 2000, None], pa.timestamp("ns"))
    batch = pa.record_batch([runs, times], ["runs", "times"])
    with (
        pa.OSFile(str(tmp_path / "a.arrow"), "wb") as out,
        pa.ipc.new_stream(out, batch.schema) as writer,
    ):
        writer.write_batch(batch)
    records = list(open_source(tmp_path / "a.arrow", cache=cache))
    assert [record["runs"] for record in records] == ["a", "a", "b"]
    assert [record["times"] and record["times"].microsecond for record in records] == [1, 2, None]


# Streams and lists


# Processes


@pytest.mark.parametrize("kind", ["filter", "fan_out"])
def test_a_fork_while_a_view_finds_its_rows_does_not_hang(
    tmp_path: Path, cache: Cache, kind: str
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def passes(record: dict[str, int]) -> bool:
        begun.set()
        return go_on.wait(20)

    source = open_source(fill(tmp_path / "a.jsonl", {"row": 0}), cache=cache)
    chosen = source.filter(passes) if kind == "filter" else FanOut(source, passes, key="turn")
    thread = threading.Thread(target=lambda: len(chosen))
    thread.start()
    begun.wait(20)
    child = os.fork()
    if not child:
        signal.signal(
            signal.SIGALRM, signal.SIG_DFL
        )  # pytest's own would let the child live on as a second pytest
        signal.alarm(10)
        go_on.set()
        try:
            os._exit(len(chosen) != 1)
        finally:
            os._exit(1)
    go_on.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
