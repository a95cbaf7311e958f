"""Is an answer computed once, kept as long as it holds, and never taken from a file that is not what was written?"""

import logging
import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from penstock.cache import Cache
from penstock.cache.memo import (
    CONTENT,
    find_damage,
    forget_old,
    memo,
    memo_file,
    recall,
    remember,
    warn,
)


class Question:
    """Counts how often it is asked."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked = 0

    def __call__(self) -> Any:
        self.asked += 1
        return self.answer


def files(cache: Cache) -> list[Path]:
    return [path for path in (cache.root / "memo").rglob("*") if path.is_file()]


@pytest.mark.parametrize("stamp", [CONTENT, "written at 7"])
def test_an_answer_is_computed_once(cache: Cache, stamp: str) -> None:
    question = Question({"rows": [1, 2]})
    for _ in range(3):
        assert memo("rows", "a.jsonl", stamp, question, Cache(cache.root)) == {"rows": [1, 2]}
    assert question.asked == 1
    assert recall("rows", "a.jsonl", stamp, cache) == {"rows": [1, 2]}


def test_another_stamp_is_another_question(cache: Cache) -> None:
    assert memo("rows", "a.jsonl", 1, lambda: "old", cache) == "old"
    assert memo("rows", "a.jsonl", 2, lambda: "new", cache) == "new"
    assert recall("rows", "a.jsonl", 1, cache) == "old"


def test_without_a_stamp_nothing_is_remembered(cache: Cache) -> None:
    question = Question(1)
    for _ in range(2):
        memo("rows", "a.jsonl", None, question, cache)
    remember("rows", "a.jsonl", None, 1, cache)
    assert question.asked == 2
    assert recall("rows", "a.jsonl", None, cache) is None
    assert not cache.root.exists()


def test_without_a_cache_answers_about_contents_are_kept_in_the_process() -> None:
    question = Question(1)
    for _ in range(2):
        memo("kept in this process", "a", CONTENT, question, None)
    assert question.asked == 1


def test_an_error_is_not_remembered(cache: Cache) -> None:
    def fail() -> None:
        raise ValueError

    with pytest.raises(ValueError):
        memo("rows", "a", 1, fail, cache)
    assert memo("rows", "a", 1, lambda: 5, cache) == 5


def test_a_warning_is_given_again(cache: Cache, caplog: pytest.LogCaptureFixture) -> None:
    def compute() -> int:
        warn("the tokenizer has no end")
        return 1

    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            memo("warned", "a", 1, compute, cache)
    assert [record.message for record in caplog.records] == ["the tokenizer has no end"] * 3


@pytest.mark.parametrize("damage", [b"", b"\0", b"{}" * 100])
def test_a_damaged_file_is_made_again_with_a_warning(
    cache: Cache, caplog: pytest.LogCaptureFixture, damage: bytes
) -> None:
    memo("rows", "a", 1, lambda: 5, cache)
    (path,) = files(cache)
    path.write_bytes(damage)
    assert [problem for _, _, problem in find_damage(cache) if problem]
    assert memo("rows", "a", 1, lambda: 5, cache) == 5
    assert "Penstock makes it again" in caplog.text
    assert [problem for _, _, problem in find_damage(cache)] == [None]


def test_bytes_are_written_once_and_mapped(cache: Cache) -> None:
    times = []

    def write(out: IO[bytes]) -> dict[str, int]:
        times.append(1)
        for _ in range(3):
            out.write(b"x" * (1 << 20))
        return {"rows": 3}

    for _ in range(2):
        table = memo_file("table", "a", 1, write, cache)
        assert (len(table.payload), table.value) == (3 << 20, {"rows": 3})
    assert len(times) == 1
    (path,) = files(cache)
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)
    assert bytes(memo_file("table", "a", 1, write, cache).payload) == b"x" * (3 << 20)
    assert len(times) == 2


def test_where_nothing_can_be_written_the_answer_is_computed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = Cache(tmp_path / "file" / "cache")
    assert memo("rows", "a", 1, lambda: 5, cache) == 5

    def write(out: IO[bytes]) -> None:
        out.write(b"abc")

    assert bytes(memo_file("table", "a", 1, write, cache).payload) == b"abc"
    assert "is kept in memory" in caplog.text


def ask(root: Path, log: Path) -> None:
    def write(out: IO[bytes]) -> int:
        with log.open("a") as file:
            file.write("x")
        out.write(b"y" * 100_000)
        return os.getpid()

    memo_file("table", "shared", 1, write, Cache(root))


def test_one_process_writes_and_the_others_wait(cache: Cache, tmp_path: Path) -> None:
    log = tmp_path / "log"
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=ask, args=(cache.root, log)) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert log.read_text() == "x"


@pytest.fixture
def old_and_new(cache: Cache) -> Iterator[Cache]:
    remember("ranges", "old", 1, 1, cache)
    (old,) = files(cache)
    os.utime(old, (1, 1))
    remember("ranges", "new", 1, 1, cache)
    yield cache


def test_old_answers_of_a_kind_can_be_forgotten(old_and_new: Cache) -> None:
    forget_old("ranges", 3600, old_and_new)
    assert recall("ranges", "old", 1, old_and_new) is None
    assert recall("ranges", "new", 1, old_and_new) == 1
