"""Is an index used exactly as long as it is true?  Touched, moved, copied, appended, rewritten: what is read, and what is scanned."""

import json
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock.sources.index as index
import penstock.sources.text as lines
from penstock.cache import Cache
from penstock.errors import SourceChanged
from penstock.places import File, identify, open_file
from penstock.sources import JsonlSource

ROWS = [
    {"row": row, "fill": "x" * (row % 90)} for row in range(2000)
]  # wider than all probes together


class Work:
    """Counts what is done to find an index."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scanned = 0  # bytes looked at for newlines
        self.digested = 0  # bytes looked at only to know that they are the same
        take, extend = lines.LineScan.take, index.extend

        def counting_take(scan: Any, block: Any, position: int) -> Any:
            self.scanned += len(block)
            return take(scan, block, position)

        def counting_extend(content: Any, file: File, stop: int) -> None:
            self.digested += stop
            extend(content, file, stop)

        monkeypatch.setattr(lines.LineScan, "take", counting_take)
        monkeypatch.setattr(index, "extend", counting_extend)
        monkeypatch.setattr(lines, "extend", counting_extend)

    def of(self, action: Callable[[], Any]) -> tuple[int, int]:
        """(bytes scanned, bytes digested) by an action."""
        self.scanned = self.digested = 0
        action()
        return self.scanned, self.digested


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
    return list(JsonlSource([str(path)], cache=cache))


def test_a_known_file_is_neither_scanned_nor_digested(path: Path, cache: Cache, work: Work) -> None:
    size = path.stat().st_size
    assert work.of(lambda: read(path, cache)) == (size, 0)
    assert work.of(lambda: read(path, cache)) == (0, 0)


@pytest.mark.parametrize("how", ["touched", "moved", "copied", "replaced"])
def test_the_same_content_elsewhere_is_digested_once_and_not_scanned(
    path: Path, cache: Cache, work: Work, how: str
) -> None:
    size = path.stat().st_size
    read(path, cache)
    other = path.with_name("other.jsonl")
    if how == "touched":
        age(path, -30)
        other = path
    elif how == "moved":
        path.rename(other)
    elif how == "copied":
        shutil.copyfile(path, other)
        age(other)
    else:
        shutil.copy2(path, other)
        other.replace(path)  # another inode under the old name, with the old time
        other = path
    time.sleep(0.03)  # a new name is a change, too
    assert work.of(lambda: read(other, cache)) == (0, size)
    assert work.of(lambda: read(other, cache)) == (0, 0)
    assert read(other, cache) == ROWS


def test_a_file_whose_time_another_write_could_get_too_is_not_trusted_by_its_time(
    path: Path, cache: Cache, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = path.stat().st_size
    with monkeypatch.context() as patch:
        patch.setattr(
            index, "settled", lambda known: False
        )  # as on a file system that counts in seconds
        read(path, cache)
        assert work.of(lambda: read(path, cache)) == (0, size)
        assert not cache.path(
            "claims"
        ).exists()  # no process waits for what only this process can use
    read(path, cache)
    assert work.of(lambda: read(path, cache)) == (0, 0)


def test_one_scans_a_file_that_several_open_at_once(path: Path, cache: Cache, work: Work) -> None:
    def open_in_threads() -> None:
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(lambda _: read(path, cache), range(4))) == [ROWS] * 4

    time.sleep(0.03)  # settled
    assert work.of(open_in_threads) == (path.stat().st_size, 0)
    assert list(cache.path("claims").iterdir()) == []


def test_a_row_changed_between_the_probes_is_noticed(path: Path, cache: Cache, work: Work) -> None:
    before = path.stat()
    read(path, cache)
    changed = [*ROWS]
    changed[400], changed[401] = ROWS[401], ROWS[400]  # rows move, the size and every probe stay
    path.write_text("".join(json.dumps(row) + "\n" for row in changed))
    assert path.stat().st_size == before.st_size
    age(path)
    assert work.of(lambda: read(path, cache)) == (before.st_size, before.st_size)
    assert read(path, cache) == changed


@pytest.mark.parametrize("ends", [b"", b"\n", b"\n\n  \n"])
def test_what_is_appended_is_all_that_is_scanned(
    path: Path, cache: Cache, work: Work, ends: bytes
) -> None:
    path.write_bytes(path.read_bytes().rstrip(b"\n") + ends)
    age(path)
    old = path.stat().st_size
    assert read(path, cache) == ROWS
    more = b'{"late": 1}\n\n{"late": 2}' if ends else b'\n{"late": 1}\n\n{"late": 2}'
    with path.open("ab") as file:
        file.write(more)
    age(path)
    scanned, digested = work.of(lambda: read(path, cache))
    assert (
        digested == old and len(more) <= scanned < len(more) + 200
    )  # and the last line, which might have gone on
    source = JsonlSource([str(path)], cache=cache)
    assert list(source) == [*ROWS, {"late": 1}, {"late": 2}]
    fresh = JsonlSource([str(path)], cache=Cache(path.parent / "other"))
    assert [source.locate(row) for row in range(len(source))] == [
        fresh.locate(row) for row in range(len(fresh))
    ]
    assert work.of(lambda: read(path, cache)) == (0, 0)


def test_appending_after_a_change_in_the_old_part_scans_all(
    path: Path, cache: Cache, work: Work
) -> None:
    read(path, cache)
    old = path.stat().st_size
    changed = [*ROWS, {"late": 1}]
    changed[400], changed[401] = ROWS[401], ROWS[400]
    write(path, changed)
    assert work.of(lambda: read(path, cache)) == (path.stat().st_size, old)
    assert read(path, cache) == changed


PIECE = st.lists(
    st.sampled_from([b'{"a": 1}', b"\n", b"\r\n", b" ", b"\xef", b"\xbb\xbf", b'{"b"', b": 2}"]),
    max_size=8,
)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40
)
@given(pieces=st.lists(PIECE.map(b"".join), min_size=2, max_size=4), bom=st.booleans())
def test_an_index_that_grew_is_the_index_of_the_whole(
    tmp_path: Path, pieces: list[bytes], bom: bool
) -> None:
    folder = tmp_path / os.urandom(8).hex()
    folder.mkdir()
    path, content = folder / "a.jsonl", b"\xef\xbb\xbf" if bom else b""
    for number, piece in enumerate(pieces):
        content += piece
        path.write_bytes(content)
        grown = lines.index_lines(open_file(identify(str(path))), Cache(folder / "cache"))
        fresh = lines.index_lines(open_file(identify(str(path))), Cache(folder / f"cache-{number}"))
        assert (
            grown.starts.tolist() == fresh.starts.tolist()
            and grown.lines.tolist() == fresh.lines.tolist()
        )
    sizes = [
        [file.read_bytes() for file in (folder / name).rglob("*.rows")]
        for name in ("cache", f"cache-{number}")
    ]
    assert set(sizes[1]) <= set(sizes[0])  # byte for byte, the digest in it too


def test_a_damaged_note_is_made_again(path: Path, cache: Cache, work: Work) -> None:
    for damage in (b"", b"[]", b'{"size": 1}', b"\xff"):
        read(path, cache)
        (note,) = (cache.root / "offsets" / "notes").rglob("*.json")
        note.write_bytes(damage)
        assert work.of(lambda: read(path, cache)) == (0, path.stat().st_size)


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
    assert list((cache.root / "offsets").rglob("*.rows")) == []


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
        assert work.of(lambda: read(path, cache)) == (size, 0)
    assert read(path, cache) == ROWS and not cache.root.exists()
