"""Is an index used exactly as long as it is true?  Touched, moved, appended, rewritten: when is a file scanned?"""

import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import penstock.sources.index as index
import penstock.sources.text as lines
from penstock.cache import Cache
from penstock.errors import SourceChanged
from penstock.places.files import identify, open_file
from penstock.sources import open_source

ROWS = [{"row": row, "fill": "x" * (row % 90)} for row in range(2000)]


class Work:
    """Counts the bytes that are looked at for newlines."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scanned = 0
        take = lines.LineScan.take

        def counting_take(scan: Any, block: Any, position: int) -> Any:
            self.scanned += len(block)
            return take(scan, block, position)

        monkeypatch.setattr(lines.LineScan, "take", counting_take)

    def of(self, action: Callable[[], Any]) -> int:
        """Bytes scanned by an action."""
        self.scanned = 0
        action()
        return self.scanned


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    return Work(monkeypatch)


@pytest.fixture(autouse=True)
def no_file_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "SMALL", -1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    write(path, ROWS)
    return path


def write(path: Path, rows: list[Any]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    age(path)


def age(path: Path, seconds: float = 60) -> None:
    """Written a while ago, so that its time can be trusted."""
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns - int(seconds * 1e9)))
    time.sleep(0.03)  # this itself was a change, and its time cannot be set


def read(path: Path, cache: Cache) -> list[Any]:
    return list(open_source([str(path)], cache=cache))


def test_a_known_file_is_not_scanned(path: Path, cache: Cache, work: Work) -> None:
    assert work.of(lambda: read(path, cache)) == path.stat().st_size
    assert work.of(lambda: read(path, cache)) == 0


@pytest.mark.parametrize("how", ["touched", "moved", "appended", "rewritten"])
def test_another_version_of_a_file_is_scanned_once(
    path: Path, cache: Cache, work: Work, how: str
) -> None:
    read(path, cache)
    rows = list(ROWS)
    if how == "touched":
        age(path, -30)
    elif how == "moved":
        path = path.rename(path.with_name("other.jsonl"))
    elif how == "appended":
        rows += [{"new": 1}]
        write(path, rows)
    else:
        rows[1000] = {"row": "other", "fill": "y" * 9}
        write(path, rows)
    time.sleep(0.03)  # a new name is a change, too
    assert work.of(lambda: read(path, cache)) == path.stat().st_size
    assert work.of(lambda: read(path, cache)) == 0
    assert read(path, cache) == rows


def test_a_file_whose_time_another_write_could_get_too_is_not_trusted_by_its_time(
    path: Path, cache: Cache, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(index, "settled", lambda known: False)  # as where time is counted in seconds
        for _ in range(2):
            assert work.of(lambda: read(path, cache)) == path.stat().st_size
    assert read(path, cache) == ROWS


def test_one_scans_a_file_that_several_open_at_once(path: Path, cache: Cache, work: Work) -> None:
    def open_in_threads() -> None:
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(lambda _: read(path, cache), range(4))) == [ROWS] * 4

    time.sleep(0.03)  # settled
    assert work.of(open_in_threads) == path.stat().st_size
    assert list(cache.path("claims").iterdir()) == []


def test_a_file_that_grows_during_the_scan_has_no_index(
    path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = lines.LineScan.take

    def growing(scan: Any, block: Any, position: int) -> Any:
        with path.open("a") as file:
            file.write("{}\n")
        return take(scan, block, position)

    monkeypatch.setattr(lines.LineScan, "take", growing)
    with pytest.raises(SourceChanged, match="changed while open"):
        read(path, cache)
    assert list(cache.entries("memo")) == []


def test_the_index_stays_on_disk(path: Path, cache: Cache) -> None:
    found = lines.index_lines(open_file(identify(str(path))), cache)
    for words in (found.starts, found.lines):
        base: Any = words
        while getattr(base, "base", None) is not None:
            base = base.base
        assert type(base).__name__ == "memoryview" and type(base.obj).__name__ == "mmap"
        assert not words.flags.owndata


def test_a_small_file_leaves_nothing_behind(
    path: Path, cache: Cache, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = path.stat().st_size
    monkeypatch.setattr(index, "SMALL", size)
    for _ in range(2):
        assert work.of(lambda: read(path, cache)) == size
    assert read(path, cache) == ROWS and not cache.root.exists()
