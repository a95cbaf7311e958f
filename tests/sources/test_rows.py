"""Do all shapes of text keep what sources promise: over several files, in threads and forked processes, with one limit?"""

import bz2
import csv
import gzip
import io
import json
import multiprocessing
import pickle
import random
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock.sources.text as lines
from penstock.cache import Cache
from penstock.errors import BadRecord, SourceChanged, SourceError
from penstock.sources import BadRows, RowAccess, open_source
from penstock.testing import check_source
from penstock.types import BadRow

Records = list[dict[str, str]]
NewFolder = Callable[[], Path]


def as_csv(records: Records) -> bytes:
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, ["text"], quoting=csv.QUOTE_ALL)
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue().encode()


def as_jsonl(records: Records) -> bytes:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


# Each writes records {"text": …} without line ends in the text, so that all shapes can hold them.
SHAPES: dict[str, Callable[[Records], bytes]] = {
    ".jsonl": as_jsonl,
    ".json": lambda records: json.dumps(records, indent=1).encode(),
    ".csv": as_csv,
    ".txt": lambda records: "".join(record["text"] + "\n" for record in records).encode(),
    ".jsonl.gz": lambda records: gzip.compress(as_jsonl(records)),
    ".csv.bz2": lambda records: bz2.compress(as_csv(records)),
}
EACH_SHAPE = pytest.mark.parametrize("suffix", SHAPES)


def write(folder: Path, suffix: str, parts: list[Records]) -> None:
    for number, part in enumerate(parts):
        (folder / f"part-{number}{suffix}").write_bytes(SHAPES[suffix](part))


def many(num_rows: int) -> Records:
    chance = random.Random(7)
    return [{"text": f"{row} " + "wörd " * chance.randrange(40)} for row in range(num_rows)]


@pytest.fixture(params=SHAPES)
def source(request: pytest.FixtureRequest, tmp_path: Path, cache: Cache) -> RowAccess:
    records = many(3000)
    write(tmp_path, request.param, [records[:1000], [], records[1000:1001], records[1001:]])
    return open_source(tmp_path, cache=cache)


def test_every_shape_keeps_the_contract(source: RowAccess) -> None:
    check_source(source, expected=many(3000), max_pickle=2000)
    assert source.name and len(pickle.dumps(source)) < 2000


def read_some(source: RowAccess, seed: int) -> list[tuple[int, Any]]:
    chance = random.Random(seed)
    chosen = [chance.randrange(len(source)) for _ in range(200)]
    first = chance.randrange(len(source))
    return [(row, source[row]) for row in chosen] + list(
        enumerate(source[first : first + 300], first)
    )


def test_threads_and_forked_processes_read_the_same(source: RowAccess) -> None:
    expected = many(3000)
    fork = multiprocessing.get_context("fork")
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(read_some, [source] * 8, range(8)))
    with ProcessPoolExecutor(
        2, mp_context=fork, initializer=read_some, initargs=(source, 0)
    ) as processes:
        found += list(processes.map(read_some, [source] * 4, range(4)))
    for some in found:
        assert all(record == expected[row] for row, record in some)


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1).filter(
    str.strip
)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=120
)
@given(
    parts=st.lists(
        st.lists(st.builds(lambda text: {"text": text}, TEXT), max_size=5), min_size=1, max_size=3
    ),
    suffix=st.sampled_from(list(SHAPES)),
    chosen=st.slices(8),
    block=st.sampled_from([1, 30, 1 << 20]),
)
def test_slices_of_several_files_are_slices_of_the_list(
    new_folder: NewFolder,
    monkeypatch: pytest.MonkeyPatch,
    parts: list[Records],
    suffix: str,
    chosen: slice,
    block: int,
) -> None:
    monkeypatch.setattr(lines, "_BLOCK", block)  # rows are read as many as fit, but at least one
    folder = new_folder()
    write(folder, suffix, parts)
    source = open_source(folder, cache=Cache(folder / "cache"))
    records = [record for part in parts for record in part]
    assert list(source) == records
    assert list(source[chosen]) == records[chosen]


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".txt"])
def test_a_row_beyond_the_limit_is_bad_and_its_neighbours_are_not(
    tmp_path: Path, cache: Cache, suffix: str
) -> None:
    records = [{"text": "a"}, {"text": "x" * 5000}, {"text": "b"}, {"text": "y" * 5000}]
    write(tmp_path, suffix, [records])
    bad = BadRows(on_bad="quarantine", quarantine=str(tmp_path / "bad.out"))
    limited = open_source(tmp_path, cache=cache, bad=bad, max_row_bytes=100)
    assert [record for record in limited.records(0, 4) if not isinstance(record, BadRow)] == [
        records[0],
        records[2],
    ]
    assert bad.rows == [1, 3] and bad.counts == {"too_long": 2}
    entries = [json.loads(line) for line in (tmp_path / "bad.out").read_text().splitlines()]
    assert [(entry["row"], entry["raw"]) for entry in entries] == [
        (1, ""),
        (3, ""),
    ]  # its place alone
    with pytest.raises(
        BadRecord,
        match=r"the record has 5[,0-9]+ bytes, expected at most max_row_bytes=100 \(record 1, counted from 0; byte \d+\)",
    ):
        limited[1]
    free = open_source(tmp_path, cache=cache)
    assert list(free) == records
    for row in range(4):
        assert (free.digest(row, row + 1) == limited.digest(row, row + 1)) == (row in (0, 2))


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".txt"])
def test_a_file_that_vanishes_or_changes_is_refused_by_every_way_to_read(
    tmp_path: Path, cache: Cache, suffix: str
) -> None:
    write(tmp_path, suffix, [many(10)])
    path = tmp_path / f"part-0{suffix}"
    for spoil in (lambda: path.write_bytes(SHAPES[suffix](many(9))), path.unlink):
        source = open_source(path, cache=cache)
        copy = pickle.dumps(source)
        assert source[0] == many(1)[0]
        spoil()
        for read in (lambda: source[0], lambda: list(source), lambda: source.digest(0, 1)):  # noqa: B023 - used at once
            with pytest.raises(SourceChanged, match="changed while open"):
                read()
        with pytest.raises(SourceError, match=r"changed while open|No such file"):
            pickle.loads(copy)[0]
