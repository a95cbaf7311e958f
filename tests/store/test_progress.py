"""Is it said how far the work is, and what came of it?"""

import io
import re
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

import penstock as ps
from penstock.report import progress as shown
from penstock.store import Progress

Write = Callable[..., Path]
RECORDS = [{"text": "the quick brown fox " * (row % 7)} for row in range(5000)]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "own"))


@pytest.mark.parametrize("num_proc", [1, 2])
@pytest.mark.parametrize("background", [False, True])
def test_a_function_hears_it_all(
    write_jsonl: Write, tokenizer_path: Path, num_proc: int, background: bool
) -> None:
    heard: list[Progress] = []
    paths = [write_jsonl(RECORDS[number::5], f"{number}.jsonl") for number in range(5)]
    source = ps.concat([ps.open(path) for path in paths])  # a shard for each
    store = ps.prepare(
        source,
        tokenizer=tokenizer_path,
        num_proc=num_proc,
        background=background,
        progress=heard.append,
    ).wait()
    last = heard[-1]
    assert last.is_done and (last.rows, last.num_rows, last.tokens) == (
        5000,
        5000,
        store.counts.tokens,
    )
    assert last.shards == last.num_shards == store.num_shards == 5
    assert last.num_bytes == pytest.approx(sum(path.stat().st_size for path in paths), rel=0.1)
    assert len(heard) > 5 and all(one.rows <= two.rows for one, two in pairwise(heard))
    assert all(one.seconds_left is None or one.seconds_left >= 0 for one in heard)


def test_words() -> None:
    half = Progress(
        name="wiki",
        rows=500,
        num_rows=1000,
        num_bytes=5_000_000,
        tokens=12345,
        shards=1,
        num_shards=2,
        seconds=10.0,
        rows_per_second=50.0,
    )
    assert (
        str(half)
        == "wiki: 500 of 1,000 rows (50%), 5 MB (0.5 MB/s), 12,345 tokens, 50 rows/s, 10 s left"
    )
    assert half.seconds_left == 10.0


@pytest.mark.parametrize(("how", "lines"), [("plain", True), ("auto", True), ("none", False)])
def test_a_log_gets_a_line_now_and_then(
    write_jsonl: Write, tokenizer_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, lines: bool
) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setattr(shown, "_FIRST_SECONDS", 0.0)
    ps.prepare(write_jsonl(RECORDS), tokenizer=tokenizer_path, num_proc=1, progress=how)
    found = out.getvalue().splitlines()
    assert bool(found) == lines
    assert all(
        re.fullmatch(r"data: [\d,]+ of 5,000 rows \(\d+%\), .* tokens, .*", line) for line in found
    )
    assert not lines or found[-1].endswith("in all")


def test_short_work_is_not_talked_about(
    write_jsonl: Write, tokenizer_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ps.prepare(write_jsonl(RECORDS[:10]), tokenizer=tokenizer_path)
    assert capfd.readouterr() == ("", "")


def test_a_terminal_gets_a_bar(
    write_jsonl: Write, tokenizer_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setattr(shown, "_FIRST_SECONDS", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    ps.prepare(write_jsonl(RECORDS, "[red].jsonl"), tokenizer=tokenizer_path, num_proc=1)
    assert "of 5,000 rows" in out.getvalue() and "[red]" in out.getvalue()  # a name is no markup
