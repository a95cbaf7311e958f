"""Fast ways to parse and to look must find what the plain ones find."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.places.local import buffer
from penstock.sources.parse import has_long_digits, parse, parse_lines
from penstock.sources.text import newlines
from penstock.types import BadRow

NUMBER = b"9007199254740993"  # what parse_lines puts between lines

PIECES = [
    b'{"a": 1}',
    b'{"a": [{}, {"b": "x,y"}]}',
    b'{"a": 1}, {"b": 2}',  # two values in one line,
    b'{"a": [{}',  # and one value
    b"{}]}",  # in two lines: as many as there should be
    b'{"a": "x',
    b'y"}',
    b'{"a": 1},' + NUMBER + b',{"b": 2}',
    b'{"a": 1},9.007199254740993e15,{"b": 2}',
    b'{"a": 1},9007199254740992,{"b": 2}',
    b'{"a": ' + NUMBER + b"}",
    b"1",
    b"null",
    b"[]",
    b'{"a": 1}\r',
    b'{"a": 1}\r{"b": 2}',
    b"\xff",
    b"{}",
    b"",
    b"{",
    b"}",
    b",",
]


@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=6), st.booleans())
@example([b'{"a": 1}, {"b": 2}', b'{"a": [{}', b"{}]}"], True)
@example([b'{"a": 1},' + NUMBER + b',{"b": 2}', b'{"a": "x', b'y"}'], False)
@example([b'{"a": 1},9.007199254740993e15,{"b": 2}', b'{"a": "x', b'y"}'], True)
def test_lines_parsed_together_are_those_parsed_one_by_one(lines: list[bytes], ended: bool) -> None:
    together = parse_lines(b"\n".join(lines) + b"\n" * ended, len(lines))
    one_by_one = [parse(line, exact=False) for line in lines]
    assert together is None or together == one_by_one
    plain = not any(isinstance(record, BadRow) for record in one_by_one) and not any(
        NUMBER in line for line in lines
    )
    assert (together is not None) == plain


@given(
    st.lists(
        st.sampled_from([b"\n", b"\n" * 2, b"x", b"x" * 7, b"x" * 30, b"\n".ljust(8, b"x")]),
        max_size=40,
    )
)
def test_newlines_are_found_by_words_as_by_bytes(pieces: list[bytes]) -> None:
    block = np.frombuffer(b"".join(pieces), dtype=np.uint8)
    assert newlines(block).tolist() == np.flatnonzero(block == 10).tolist()


@pytest.mark.parametrize("size", [0, 100, 127, 128, 129, 1000, 16_384, 16_385, 50_000])
@pytest.mark.parametrize("digits", [18, 19, 40])
def test_long_digits_are_seen_wherever_they_stand(size: int, digits: int) -> None:
    for before in range(20):
        raw = b"x" * before + b"7" * digits + b"x" * (size - before - digits)
        assert has_long_digits(raw) == (digits >= 19)
        assert has_long_digits(raw[::-1]) == (digits >= 19)
        assert has_long_digits(b'{"id": 1234567890123, "t": "2026-11-15"}' + raw) == (digits >= 19)


def test_a_buffer_begins_where_a_cache_line_does() -> None:
    for num_bytes in (1, 4096, 1 << 20):
        room = buffer(num_bytes)
        assert len(room) == num_bytes
        assert np.frombuffer(room, dtype=np.uint8).ctypes.data % 64 == 0


SHORT = """
import resource, sys
import penstock as ps
from penstock.errors import SourceError
source = ps.open(sys.argv[1], on_bad="skip", cache_dir=sys.argv[2])
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (96 << 20),) * 2)
for rows in (len(source), 2):  # in blocks, and each by itself
    try:
        print(list(source.records(0, rows))[1:2])
    except SourceError as error:
        print(error)
"""


@pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="how much memory is used is read from /proc"
)
def test_a_row_that_is_too_large_for_the_memory_is_no_bad_row_to_be_skipped(tmp_path: Path) -> None:
    path = tmp_path / "large.jsonl"
    large = (
        b'{"ids": [' + b"1," * (10 << 20) + b"1]}\n"
    )  # 20 MiB, of which the parser makes eight times as much
    path.write_bytes(b"{}\n" + large + b"{}\n" * 40)
    command = [sys.executable, "-c", SHORT, str(path), str(tmp_path / "cache")]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert (
        lines
        == [
            f"{path}:2: there is not enough memory to parse the record (record 1, counted from 0; byte 3); "
            "run again with a smaller num_proc, or with more memory"
        ]
        * 2
    )
