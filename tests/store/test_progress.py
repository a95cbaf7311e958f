"""Is it said how far the work is, and what came of it?"""

import io
import logging
import re
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

import penstock as ps
from penstock import words
from penstock.cli import screen
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
        == "wiki: 500 of 1,000 records (50%), 5 MB (0.5 MB/s), 12,345 tokens, 50 records/s, 10 s left"
    )
    assert half.seconds_left == 10.0


@pytest.mark.parametrize(("how", "lines"), [("plain", True), ("auto", True), ("none", False)])
def test_a_log_gets_a_line_now_and_then(
    write_jsonl: Write, tokenizer_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, lines: bool
) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setattr(shown, "_FIRST_SECONDS", 0.0)
    monkeypatch.setattr(shown, "_LONG_SECONDS", 0.0)
    ps.prepare(write_jsonl(RECORDS), tokenizer=tokenizer_path, num_proc=1, progress=how)
    found = out.getvalue().splitlines()
    assert bool(found) == lines
    assert all(
        re.fullmatch(r"data: [\d,]+ of 5,000 records \(\d+%\), .* tokens, .*", line)
        for line in found
    )
    assert not lines or found[-1].endswith("in all")


@pytest.mark.parametrize(("rows_per_second", "is_said"), [(10.0, True), (2000.0, False)])
def test_a_log_gets_its_first_line_within_a_second_if_the_work_takes_more_than_three(
    monkeypatch: pytest.MonkeyPatch, rows_per_second: float, is_said: bool
) -> None:
    """The first line came after two seconds, for work of any length."""
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    begun = time.monotonic()
    with shown.showing("auto") as show:
        assert show is not None
        while time.monotonic() - begun < 0.95:
            show(_halfway(rows_per_second))
            time.sleep(0.02)
    assert bool(out.getvalue()) == is_said


def _halfway(rows_per_second: float) -> Progress:
    return Progress(
        name="wiki",
        rows=500,
        num_rows=1000,
        num_bytes=0,
        tokens=12345,
        shards=1,
        num_shards=2,
        seconds=1.0,
        rows_per_second=rows_per_second,
    )


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
    assert "of 5,000 records" in out.getvalue() and "[red]" in out.getvalue()  # a name is no markup


@pytest.mark.parametrize("width", [60, 79, 80, 99, 120, 199])
@pytest.mark.parametrize("name", ["chat", "a dataset with quite a long name of its own"])
def test_a_line_of_any_width_has_name_bar_share_and_time_left(width: int, name: str) -> None:
    """N9: at 80 columns the name, the bar and the time left were lost."""
    half = Progress(
        name=name,
        rows=123_456,
        num_rows=246_912,
        num_bytes=10**9,
        tokens=10**8,
        shards=3,
        num_shards=6,
        seconds=100.0,
        rows_per_second=1_234.5,
    )
    line = shown.bar_line(half, width)
    assert len(line) <= width
    assert line.startswith(name[:12]) and " 50%" in line and "1:40 left" in line
    drawn = [line.count(char) for char in "━─"]
    assert min(drawn) >= 4 and abs(drawn[0] - drawn[1]) <= 1
    if width >= 79:
        assert "123,456 of 246,912 records" in line
    if width >= 120:
        assert "100 M tokens" in line
    if width >= 199:
        assert "1,234 records/s" in line and "10.0 MB/s" in line
    plain = shown.bar_line(half, width, blocks=False)
    assert plain.isascii() or "…" in plain


def test_a_log_of_checked_rows_ends_with_all_of_them(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N9: `check` in a pipe printed 0 % and never 100 %."""
    monkeypatch.setattr(words, "_PROGRESS_SECONDS", 0.0)
    with caplog.at_level("INFO", logger="penstock"):
        progress = words.ProgressLog("checking records of chat", 2_000)
        progress(1_000)
        monkeypatch.setattr(words, "_PROGRESS_SECONDS", 60.0)
        progress(1_500)
        progress(1_900)
        progress(2_000)
        progress(2_000)
    assert [record.getMessage() for record in caplog.records] == [
        "checking records of chat: 1,000 of 2,000 (50 %)",
        "checking records of chat: 1,500 of 2,000 (75 %)",
        "checking records of chat: 2,000 of 2,000 (100 %)",
    ]


def test_the_end_is_said_once_if_it_is_the_first_that_is_said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "_PROGRESS_SECONDS", 0.0)
    with caplog.at_level("INFO", logger="penstock"):
        progress = words.ProgressLog("checking records of chat", 300)
        monkeypatch.setattr(words, "_PROGRESS_SECONDS", 60.0)
        progress(300)
        progress(300)
    assert [record.getMessage() for record in caplog.records] == [
        "checking records of chat: 300 of 300 (100 %)"
    ]


def test_a_pipe_shows_the_end_of_progress_even_soon_after_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "_PROGRESS_SECONDS", 0.0)
    with screen.library_log(logging.INFO):
        progress = words.ProgressLog("checking records of chat", 2_000)
        for done in (500, 1_000, 1_500, 2_000):
            progress(done)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "checking records of chat: 500 of 2,000 (25 %)",
        "checking records of chat: 2,000 of 2,000 (100 %)",
    ]
