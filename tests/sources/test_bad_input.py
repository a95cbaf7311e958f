"""What happens to each kind of bad input?  One table: it is tested here, and the page in the docs is written from it.

`python tests/sources/test_bad_input.py` writes the page again.
"""

import bz2
import gzip
import io
import json
import lzma
import os
import re
import resource
import struct
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.cache import Cache
from penstock.errors import BadRecord, SourceError
from penstock.sources import BadRows, open_source
from penstock.types import BadRow
from tests.extras.formats.token_files import ids_bytes, litdata_item, write_litdata, write_megatron

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "bad-input.md"
NewFolder = Callable[[], Path]

A, B = {"n": 1}, {"n": 2}
GOOD = b'{"n": 1}\n', b'{"n": 2}\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Files, and what reading them gives: rows (a record, or the reason why there is none), or a refusal when opened."""

    section: str
    input: str
    files: dict[str, bytes]
    rows: list[dict[str, Any] | str] = field(default_factory=list)
    refused: str = ""  # what the error says
    note: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    def outcome(self) -> str:
        """In words, made of what the test checks."""
        if self.refused:
            said = "refused when opened"
        elif reasons := sorted({row for row in self.rows if isinstance(row, str)}):
            said = "bad record " + ", ".join(f"`{reason}`" for reason in reasons)
        else:
            said = "read" if self.rows else "no records"
        return f"{said}; {self.note}" if self.note else said


def line(
    name: str, raw: bytes, outcome: dict[str, Any] | str, note: str = "", **options: Any
) -> Case:
    """A line between two good ones, which must arrive."""
    content = GOOD[0] + raw + b"\n" + GOOD[1]
    rows: list[dict[str, Any] | str] = [A, outcome, B]
    return Case(
        section=JSONL, input=name, files={"a.jsonl": content}, rows=rows, note=note, options=options
    )


def lines(name: str, content: bytes, rows: list[dict[str, Any] | str], note: str = "") -> Case:
    return Case(section=JSONL, input=name, files={"a.jsonl": content}, rows=rows, note=note)


def zstd(content: bytes) -> bytes:
    packed: bytes = pa.Codec("zstd").compress(content, asbytes=True)
    return packed


def parquet(table: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    pq.write_table(table, out)
    written: bytes = out.getvalue().to_pybytes()
    return written


def arrow(table: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table)
    written: bytes = out.getvalue().to_pybytes()
    return written


JSONL, JSON, CSV, TEXT = "JSON lines", "JSON documents", "Tables", "Text"
COMPRESSED, COLUMNS, TARS, PLACES = (
    "Compressed files",
    "Columns",
    "Tars and folders of media",
    "Files and folders",
)
TOKENS = "Token files"
DEEP = b'{"n": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
TABLE = pa.table({"n": [1, 2]})
WHOLE = b"".join(GOOD)
CUT = "not a complete"

JSONL_CASES = [
    line("broken JSON", b'{"n": 1,, }', "bad_json"),
    lines("last line cut off", WHOLE + b'{"n": ', [A, B, "bad_json"]),
    lines("no newline at the end", WHOLE[:-1], [A, B]),
    lines("byte order mark", b"\xef\xbb\xbf" + WHOLE, [A, B], "the mark is skipped"),
    line("byte order mark inside the file", b"\xef\xbb\xbf{}", "bad_json"),
    lines("CRLF", WHOLE.replace(b"\n", b"\r\n"), [A, B]),
    lines(
        "lone CR as line end",
        WHOLE.replace(b"\n", b"\r"),
        ["bad_json"],
        "only `\\n` ends a line, so this is one",
    ),
    line("lone CR between tokens", b'{"n":\r3}', {"n": 3}, "it is whitespace to JSON"),
    line("NUL bytes", b"\0\0\0", "bad_json"),
    line("NUL byte in a string", b'{"t": "\0"}', "bad_json", "escaped (`\\u0000`) it is read"),
    line("escaped NUL", rb'{"t": "\u0000"}', {"t": "\0"}),
    line("invalid UTF-8", b'{"t": "\xff"}', "bad_utf8"),
    line("UTF-16", '{"n": 1}'.encode("utf-16"), "bad_utf8", "only UTF-8 is read"),
    line("lone surrogate, escaped", rb'{"t": "\ud800"}', "bad_json", "no text could hold it"),
    line("lone surrogate as bytes", b'{"t": "\xed\xa0\x80"}', "bad_utf8"),
    line("surrogate pair, escaped", rb'{"t": "\ud83d\ude42"}', {"t": "🙂"}),
    line(
        "U+2028, U+2029, U+0085 in a string",
        '{"t": "\u2028\u2029\x85"}'.encode(),
        {"t": "\u2028\u2029\x85"},
    ),
    lines(
        "blank lines",
        b"\n \t\r\n" + GOOD[0] + b"\n\n" + GOOD[1] + b"\n",
        [A, B],
        "no records, but counted as lines",
    ),
    line("NaN, Infinity", b'{"n": NaN, "m": -Infinity}', "bad_json", "write null"),
    line("a number beyond a double (`1e400`)", b'{"n": 1e400}', "bad_json"),
    line(
        "an integer of 30 digits",
        b'{"n": 123456789012345678901234567890}',
        {"n": 123456789012345678901234567890},
    ),
    line("an integer of 310 digits or more", b'{"n": ' + b"9" * 310 + b"}", "bad_json"),
    line(
        "a key given twice",
        b'{"n": 3, "n": 4}',
        {"n": 4},
        "the last one wins, as in every JSON parser",
    ),
    line(
        "a key given twice, `unique_keys=True`",
        b'{"n": 3, "n": 4}',
        "duplicate_key",
        unique_keys=True,
    ),
    line("not an object: array", b"[1, 2]", "not_an_object"),
    line("not an object: null, number, string", b"null", "not_an_object"),
    line("two objects in a line", b"{} {}", "bad_json"),
    line("nested 100,000 deep", DEEP, "bad_json"),
    line(
        "a line longer than `max_row_bytes` (256 MiB)",
        b'{"t": "' + b"x" * 1000 + b'"}',
        "too_long",
        "it is not read, memory stays as it is",
        max_row_bytes=100,
    ),
    lines("empty file", b"", []),
]


def document(
    name: str, content: bytes, rows: list[dict[str, Any] | str], note: str = "", refused: str = ""
) -> Case:
    return Case(
        section=JSON, input=name, files={"a.json": content}, rows=rows, note=note, refused=refused
    )


JSON_CASES = [
    document("broken element", b'[{"n": 1}, {"n" 3}, {"n": 2}]', [A, "bad_json", B]),
    document(
        "element that is not an object", b'[{"n": 1}, null, {"n": 2}]', [A, "not_an_object", B]
    ),
    document("comma behind the last element", b'[{"n": 1},]', [A, "bad_json"]),
    document(
        "cut off anywhere",
        b'[{"n": 1}, {"n": 2}',
        [],
        refused="the file ends inside the value that begins here",
    ),
    document(
        "a quote that is never closed", b'[{"n": 1}, {"n: 2}]', [], refused="the file ends inside"
    ),
    document("something behind the end", b'[{"n": 1}] x', [], refused="more text follows the end"),
    document(
        "several arrays in an object",
        b'{"a": [{}], "b": [{}]}',
        [],
        "`field=` chooses",
        "the object holds 2 arrays",
    ),
    document("one record per line", WHOLE, [A, B]),
    document(
        "an object without an array of objects",
        b'{"a": 1}',
        [],
        refused="the document is one object",
    ),
    document(
        "UTF-16",
        '[{"n": 1}]'.encode("utf-16"),
        [],
        "only UTF-8 is read",
        refused="the file is UTF-16",
    ),
    document("empty file", b"", [], refused="holds only whitespace"),
    document("nested 100,000 deep", b"[" + DEEP + b"]", ["bad_json"]),
]


def table(
    name: str,
    content: bytes,
    rows: list[dict[str, Any] | str],
    note: str = "",
    refused: str = "",
    **options: Any,
) -> Case:
    return Case(
        section=CSV,
        input=name,
        files={"a.csv": content},
        rows=rows,
        note=note,
        refused=refused,
        options=options,
    )


X = {"a": "1", "b": "2"}
CSV_CASES = [
    table(
        "more or fewer cells than columns",
        b"a,b\n1,2\n1\n1,2\n1,2,3\n",
        [X, "wrong_width", X, "wrong_width"],
    ),
    table(
        "a quote that is never closed",
        b'a,b\n1,2\n1,"2\n1,2\n',
        [X, "open_quote"],
        "it may hold the rest of the file",
    ),
    table("a quote inside a cell", b'a,b\n1,2" x\n', [{"a": "1", "b": '2" x'}]),
    table("text behind a closing quote", b'a,b\n1,"2"x\n', [{"a": "1", "b": "2x"}]),
    table("line ends in quotes", b'a,b\n1,"2\r\n\n"\n', [{"a": "1", "b": "2\r\n\n"}]),
    table("CRLF, lone CR as line end", b"a,b\r1,2\r\n1,2", [X, X]),
    table("byte order mark", b"\xef\xbb\xbfa,b\n1,2\n", [X], "the mark is skipped"),
    table("blank lines", b"\na,b\n\n1,2\n\r\n1,2\n\n", [X, X], "no records, but counted as lines"),
    table("invalid UTF-8", b"a,b\n1,\xff\n1,2\n", ["bad_utf8", X]),
    table(
        "a cell that is not of the type asked for",
        b"a\nx\n1\n",
        ["bad_value", {"a": 1}],
        types={"a": "int"},
    ),
    table(
        "an empty cell of a column with a type",
        b"a,b\n,x\n",
        [{"a": None, "b": "x"}],
        "None",
        types={"a": "int"},
    ),
    table(
        "UTF-16",
        "a,b\n1,2\n".encode("utf-16"),
        [],
        "only UTF-8 is read",
        refused="the file is UTF-16",
    ),
    table("a column named twice", b"a,a\n1,2\n", [], refused="column 'a' is named twice"),
    table("empty file, or a header alone", b"", []),
    Case(
        section=CSV,
        input="files with other columns",
        files={"1.csv": b"a,b\n1,2\n", "2.csv": b"a,c\n1,2\n"},
        refused="other columns than in",
    ),
]


def text(
    name: str,
    content: bytes,
    rows: list[dict[str, Any] | str],
    note: str = "",
    refused: str = "",
    **options: Any,
) -> Case:
    return Case(
        section=TEXT,
        input=name,
        files={"a.txt": content},
        rows=rows,
        note=note,
        refused=refused,
        options=options,
    )


T = {"text": "a"}
TEXT_CASES = [
    text("invalid UTF-8", b"a\n\xff\na\n", [T, "bad_utf8", T]),
    text(
        "UTF-16", "a\nb\n".encode("utf-16"), [], "only UTF-8 is read", refused="the file is UTF-16"
    ),
    text("CRLF", b"a\r\na\r\n", [T, T], "the CR belongs to the line end"),
    text("lone CR", b"a\ra\n", [{"text": "a\ra"}], "it is text"),
    text(
        "U+2028, U+0085, form feed",
        "a\u2028\x85\fa\n".encode(),
        [{"text": "a\u2028\x85\fa"}],
        "they are text",
    ),
    text("NUL bytes", b"a\0\n", [{"text": "a\0"}], "they are text"),
    text("byte order mark", b"\xef\xbb\xbfa\n", [T], "the mark is skipped"),
    text("blank lines", b"\n \na\n\n", [T], "no records, but counted as lines"),
    text("blank lines, `keep_blank=True`", b"\na\n", [{"text": ""}, T], keep_blank=True),
    text(
        "a line longer than `max_row_bytes`",
        b"a\n" + b"x" * 99 + b"\na\n",
        [T, "too_long", T],
        max_row_bytes=50,
    ),
    text("empty file", b"", []),
]


def packed(
    name: str, suffix: str, content: bytes, note: str = "", refused: str = CUT, **options: Any
) -> Case:
    files = {f"a.jsonl{suffix}": content}
    return Case(
        section=COMPRESSED, input=name, files=files, note=note, refused=refused, options=options
    )


COMPRESSED_CASES = [
    packed(
        "cut off: gz",
        ".gz",
        gzip.compress(WHOLE)[:-1],
        "no record is given out, not even the first",
    ),
    packed("cut off: zst", ".zst", zstd(WHOLE)[:-1]),
    packed("cut off: bz2", ".bz2", bz2.compress(WHOLE)[:-1]),
    packed("cut off: xz", ".xz", lzma.compress(WHOLE)[:-1]),
    packed("something behind the end", ".gz", gzip.compress(WHOLE) + b"\0", "also zeros"),
    packed("not compressed, or in another way", ".gz", WHOLE),
    packed("empty file", ".zst", b""),
    Case(
        section=COMPRESSED,
        input="several members, one behind the other",
        files={"a.jsonl.gz": gzip.compress(GOOD[0]) + gzip.compress(GOOD[1])},
        rows=[A, B],
        note="a cut exactly between two cannot be noticed",
    ),
    packed(
        "text of more than `max_expansion` (100) times its size",
        ".gz",
        gzip.compress(bytes(65 << 20)),
        "up to 64 MiB are always let through",
        "expand to more than",
    ),
]

COLUMNS_CASES = [
    Case(section=COLUMNS, input="Parquet without records", files={"a.parquet": parquet(TABLE[:0])}),
    Case(
        section=COLUMNS,
        input="Parquet cut off",
        files={"a.parquet": parquet(TABLE)[:-3]},
        refused=r"a\.parquet",
    ),
    Case(
        section=COLUMNS,
        input="Arrow cut off",
        files={"a.arrow": arrow(TABLE)[:-3]},
        refused=r"a\.arrow",
    ),
    Case(
        section=COLUMNS,
        input="Parquet files with other columns or types",
        files={"1.parquet": parquet(TABLE), "2.parquet": parquet(pa.table({"n": ["x"]}))},
        refused=r"2\.parquet",
    ),
    Case(
        section=COLUMNS,
        input="Parquet whose footer was damaged",
        files={"a.parquet": parquet(TABLE)[:-9] + b"\xff" + parquet(TABLE)[-8:]},
        refused=r"a\.parquet",
    ),
    Case(
        section=COLUMNS,
        input="null members that Arrow added to tools, calls and messages",
        files={
            "a.parquet": parquet(
                pa.table(
                    {"tools": [[{"name": "f", "strict": None}], [{"name": "g", "strict": True}]]}
                )
            )
        },
        rows=[{"tools": [{"name": "f"}]}, {"tools": [{"name": "g", "strict": True}]}],
        note='they are removed and counted; `nulls="keep"` keeps them',
    ),
]


def tar(*files: tuple[str, bytes], link: str = "") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as made:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))
        if link:
            member = tarfile.TarInfo(link)
            member.type, member.linkname = tarfile.SYMTYPE, "elsewhere"
            made.addfile(member)
    return out.getvalue()


def tarred(
    name: str,
    content: bytes,
    rows: list[dict[str, Any] | str],
    note: str = "",
    refused: str = "",
    suffix: str = ".tar",
) -> Case:
    return Case(
        section=TARS,
        input=name,
        files={f"a{suffix}": content},
        rows=rows,
        note=note,
        refused=refused,
    )


ONE, TWO = ("1.txt", b"one"), ("2.txt", b"two")
FIRST = {"__key__": "1", "txt": "one"}
TWO_SAMPLES = tar(ONE, TWO)
TAR_CASES = [
    tarred("cut off", TWO_SAMPLES[:1100], ["bad_tar"], "the first sample is not known to be whole"),
    tarred("cut off inside the last member", TWO_SAMPLES[:1537], [FIRST, "bad_tar"]),
    tarred(
        "a header with a wrong checksum",
        TWO_SAMPLES[:1024] + b"x" + TWO_SAMPLES[1025:],
        ["bad_tar"],
        "in the same way",
    ),
    tarred("no end mark", TWO_SAMPLES[:2048], [FIRST, "bad_tar"]),
    tarred(
        "two tars, one behind the other", TWO_SAMPLES * 2, [FIRST, "bad_tar"], "write them as one"
    ),
    tarred("not a tar, or empty", b"x" * 600, [], refused="cannot be read as a tar"),
    tarred(
        "a compressed tar",
        gzip.compress(TWO_SAMPLES),
        [],
        refused="has no random access",
        suffix=".tar.gz",
    ),
    tarred("a link, a device, a sparse file", tar(ONE, link="2.jpg"), [FIRST, "bad_member"]),
    tarred(
        "members of a sample that are not neighbours",
        tar(("2.cls", b"1"), ONE, TWO),
        ["split_sample", FIRST, "split_sample"],
    ),
    tarred("one field twice", tar(ONE, ("2.txt", b""), ("2.TXT", b"")), [FIRST, "duplicate_key"]),
    tarred(
        "members without a key and an extension",
        tar(("README", b""), ONE, ("._1.jpg", b"")),
        [FIRST],
        "left out, and logged",
    ),
    tarred(
        "broken JSON, invalid UTF-8",
        tar(ONE, ("2.json", b"{"), ("3.txt", b"\xff")),
        [FIRST, "bad_json", "bad_utf8"],
    ),
]
FOLDER_CASES = [
    Case(
        section=TARS,
        input="folder: a metadata file that names a missing file, or one outside",
        files={
            "metadata.jsonl": b'{"file_name": "gone.jpg"}\n{"file_name": "../a.jpg"}\n',
            "a.jpg": b"",
        },
        rows=["bad_member", "bad_member"],
    ),
]


def tokens(
    name: str, write: Callable[[Path], None], refused: str, note: str = "", **options: Any
) -> Case:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        files = {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}
    return Case(
        section=TOKENS, input=name, files=files, refused=refused, note=note, options=options
    )


def megatron_with(place: int, lie: bytes, *, cut: int | None = None) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        write_megatron(folder / "a", IDS)
        raw = (folder / "a.idx").read_bytes()
        (folder / "a.idx").write_bytes((raw[:place] + lie + raw[place + len(lie) :])[:cut])

    return write


def litdata_with(
    place: int, lie: bytes, *, leaf: str = "int", cut: int | None = None
) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        items = [litdata_item(struct.pack("<q", row)) for row in range(2)]
        write_litdata(folder, [items], names=["n"], formats=[leaf])
        raw = (folder / "chunk-0-0.bin").read_bytes()
        (folder / "chunk-0-0.bin").write_bytes((raw[:place] + lie + raw[place + len(lie) :])[:cut])

    return write


def raw_ids(folder: Path) -> None:
    (folder / "a.bin").write_bytes(ids_bytes(IDS, "u2"))


IDS = [[5, 6, 0], [7, 0]]
TOKEN_CASES = [
    tokens(
        "Megatron: another magic, version or type of ids",
        megatron_with(0, b"X"),
        "begins with b'XMID",
    ),
    tokens("Megatron: index cut off", megatron_with(0, b"", cut=40), "40 bytes, but 2 sequences"),
    tokens(
        "Megatron: a count of 2⁶⁴ - 1",
        megatron_with(18, b"\xff" * 8),
        "18446744073709551615 sequences",
    ),
    tokens("Megatron: a negative length", megatron_with(34, b"\xff" * 4), "sequence 0 has -1 ids"),
    tokens(
        "Megatron: pointers that overlap, or lead beyond the end",
        megatron_with(50, b"\2"),
        "must be back to back",
    ),
    tokens(
        "Megatron: documents of several sequences",
        lambda folder: write_megatron(folder / "a", IDS, documents=[0, 2]),
        "say what a sample is",
        "`sample=` says what a row is",
    ),
    tokens("raw ids without a type", raw_ids, "set the option dtype", "`dtype=` says it"),
    tokens(
        "raw ids without borders", raw_ids, "set the option eot", "`eot=` says it", dtype="uint16"
    ),
    tokens(
        "raw ids in which `eot` does not occur", raw_ids, "none of 5 ids", dtype="uint16", eot=9
    ),
    tokens(
        "raw ids that end inside an id",
        raw_ids,
        "not a whole number of uint32",
        dtype="uint32",
        eot=0,
    ),
    tokens(
        "MDS and litdata: pickled fields",
        litdata_with(0, b"", leaf="pickle"),
        "reading it runs code",
    ),
    tokens(
        "MDS and litdata: another number of rows than in index.json",
        litdata_with(0, b"\3"),
        "byte 0 says 3 rows",
    ),
    tokens(
        "MDS and litdata: rows that overlap, or end beyond the file",
        litdata_with(8, b"\1"),
        "row 1 begins at byte 1,",
    ),
    tokens(
        "MDS and litdata: cut off", litdata_with(0, b"", cut=30), "expected a number from 28 to 30"
    ),
    Case(
        section=TOKENS,
        input="MDS and litdata: a field that ends beyond its row, or cannot be decoded",
        files=tokens("", litdata_with(28, b"\7"), "x").files,
        rows=[{"n": 0}, "bad_value"],
    ),
]

CASES = [
    *(*JSONL_CASES, *JSON_CASES, *CSV_CASES, *TEXT_CASES, *COMPRESSED_CASES, *COLUMNS_CASES),
    *(*TAR_CASES, *FOLDER_CASES, *TOKEN_CASES),
]


OF_AN_EXTRA = {TARS: pytest.mark.extra("media"), TOKENS: pytest.mark.extra("formats")}


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=OF_AN_EXTRA.get(case.section, ())) for case in CASES],
    ids=[f"{case.section}: {case.input}" for case in CASES],
)
def test_each_bad_input_has_the_outcome_of_the_table(new_folder: NewFolder, case: Case) -> None:
    folder = new_folder()
    for name, content in case.files.items():
        (folder / name).write_bytes(content)
    place = folder / next(iter(case.files)) if len(case.files) == 1 else folder
    cache = Cache(folder / "cache")
    if case.refused:
        for on_bad in ("stop", "skip"):  # what is wrong with a file as a whole is never skipped
            with pytest.raises(SourceError, match=case.refused) as caught:
                open_source(place, cache=cache, bad=BadRows(on_bad=on_bad), **case.options)
            assert str(folder) in str(caught.value)
        return
    source = open_source(place, cache=cache, bad=BadRows(on_bad="skip"), **case.options)
    found = [
        row.reason if isinstance(row, BadRow) else row for row in source.records(0, len(source))
    ]
    assert json.dumps(found) == json.dumps(case.rows)
    strict = open_source(place, cache=cache, **case.options)
    for number, row in enumerate(case.rows):
        if isinstance(row, str):
            with pytest.raises(BadRecord) as caught:
                list(strict.records(number, number + 1))
            where = strict.locate(number)
            assert str(caught.value).startswith(f"{where.file}:{where.line}: ")
            assert str(caught.value).endswith(
                "; fix or remove the line, or set on_bad to 'skip' or 'quarantine' (counted)"
            )
        else:
            assert strict[number] == row


# Places, with the file that was open when it happened.  The tests above are named for what they are; these need hands.
PLACES_ROWS = {
    "changes while open": (
        "`SourceChanged`, by whatever reads it next",
        "test_a_file_that_changes_or_vanishes",
    ),
    "vanishes or is replaced while open": (
        "`SourceChanged`, in the same way",
        "test_a_file_that_changes_or_vanishes",
    ),
    "may not be read": ("refused when opened", "test_a_file_that_may_not_be_read"),
    "folder that may not be listed, met by a glob": (
        "refused when opened",
        "test_a_folder_that_may_not_be_listed",
    ),
    "name that chooses no records": ("refused when opened", "test_places_with_nothing_to_read"),
    "folder with nothing in it": ("refused when opened", "test_places_with_nothing_to_read"),
    "glob or path that is not there": ("refused when opened", "test_places_with_nothing_to_read"),
    "unknown extension": (
        "refused when opened; `format=` names the shape",
        "test_places_with_nothing_to_read",
    ),
    "a line of 1 GiB": (
        "bad record `too_long`; the next record arrives",
        "test_a_line_of_a_gibibyte",
    ),
}


@pytest.mark.parametrize("happens", ["append", "rewrite", "remove", "replace"])
def test_a_file_that_changes_or_vanishes(tmp_path: Path, cache: Cache, happens: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(WHOLE)
    source = open_source(path, cache=cache, bad=BadRows(on_bad="skip"))
    other = tmp_path / "other"
    other.write_bytes(WHOLE)
    {
        "append": lambda: path.write_bytes(WHOLE + WHOLE),
        "rewrite": lambda: (path.write_bytes(WHOLE[::-1]), os.utime(path, ns=(0, 0))),
        "remove": path.unlink,
        "replace": lambda: other.replace(path),
    }[happens]()
    for read in (lambda: source[0], lambda: list(source), lambda: source.digest(0, 1)):
        with pytest.raises(
            SourceError, match=rf"{path}: changed while open: .*; open the source again"
        ):
            read()


def test_places_with_nothing_to_read(tmp_path: Path, cache: Cache) -> None:
    (tmp_path / "a.xyz").touch()
    (tmp_path / "empty").mkdir()
    for name, message in (
        ("a.xyz", "unknown format '.xyz', expected one of .jsonl"),
        ("empty", "nothing found, expected a file"),
        ("*.jsonl", "nothing found, expected at least one file to match"),
        ("gone.jsonl", "nothing found, expected a file; check the path"),
    ):
        with pytest.raises(SourceError) as caught:
            open_source(tmp_path / name, cache=cache)
        assert str(caught.value).startswith(f"{tmp_path / name}: {message}")
    (tmp_path / "two.jsonl").write_bytes(WHOLE)
    with pytest.raises(SourceError, match=r"two\.jsonl@\[100:50\] selects none of 2 records"):
        open_source(f"{tmp_path}/two.jsonl@[100:50]", cache=cache)


OPEN = """
import os, sys
from penstock.cache import Cache
from penstock.errors import SourceError
from penstock.sources import BadRows, open_source
"""


def test_a_file_that_may_not_be_read() -> None:
    # a folder that others may enter, unlike those that pytest makes: it is the file that must be refused
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder) / "a.jsonl"
        path.write_bytes(WHOLE)
        path.chmod(0)
        script = f"""{OPEN}
if os.geteuid() == 0:  # to whom everything may be read
    os.seteuid(65534)
try:
    open_source({str(path)!r}, cache=Cache("unused"))
except SourceError as error:
    print(error)
"""
        result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert (
            result.stdout == f"{path}: Permission denied; check the path and its permissions\n"
        ), result.stderr


def test_a_folder_that_may_not_be_listed() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        for name in ("open", "closed"):
            (Path(folder) / name).mkdir()
            (Path(folder) / name / "a.jsonl").write_bytes(WHOLE)
        (Path(folder) / "closed").chmod(0)
        script = f"""{OPEN}
if os.geteuid() == 0:
    os.seteuid(65534)
try:
    open_source({folder + "/**/*.jsonl"!r}, cache=Cache("unused"))
except SourceError as error:
    print(error)
"""
        result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        expected = f"{folder}/closed: Permission denied; check the path and its permissions\n"
        assert result.stdout == expected, result.stderr


@pytest.mark.soak
def test_a_line_of_a_gibibyte(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        file.write(GOOD[0] + b'{"t": "')
        file.seek(1 << 30, os.SEEK_CUR)  # a hole: NUL bytes that take no space
        file.write(b'"}\n' + GOOD[1])
    script = f"""{OPEN}
bad = BadRows(on_bad="skip")
source = open_source({str(path)!r}, cache=Cache({str(tmp_path / "cache")!r}), bad=bad)
assert len(source) == 3
assert [dict(record) for record in source] == [{A}, {B}]
assert bad.counts == {{"too_long": 1}}, bad.counts
assert source[2] == {B}
print(source.digest(0, 3))
"""
    limit = 768 << 20  # of address space: less than the line
    result = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr


LINE = st.one_of(
    st.sampled_from([b'{"n": 1}', b'{"n": [1, {}]}', b" {}\r"]),
    st.binary(max_size=12).filter(lambda raw: b"\n" not in raw),
    st.sampled_from([b"", b"{", b"null", b'{"t": "\xff"}', b"\0", b'{"a": NaN}', b"{}{}"]),
)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150
)
@given(raw_lines=st.lists(LINE, max_size=15), max_bad=st.none() | st.integers(0, 6))
def test_every_line_is_delivered_or_counted(
    new_folder: NewFolder, raw_lines: list[bytes], max_bad: int | None
) -> None:
    """The oracle is `json`, made strict, on each line by itself."""
    folder = new_folder()
    path, quarantine = folder / "a.jsonl", folder / "bad.out"
    path.write_bytes(b"{}\n" + b"\n".join(raw_lines))
    expected = [strictly(raw) for raw in [b"{}", *raw_lines] if raw.strip(b" \t\r\n")]
    num_bad = sum(record is None for record in expected)
    bad = BadRows(on_bad="quarantine", max_bad=max_bad, quarantine=str(quarantine))
    source = open_source(path, cache=Cache(folder / "cache"), bad=bad)
    assert len(source) == len(expected)
    if max_bad is not None and num_bad > max_bad:
        with pytest.raises(
            BadRecord, match=f"this is bad record number {max_bad + 1} and max_bad is {max_bad}"
        ):
            list(source)
        return
    found = [
        None if isinstance(record, BadRow) else record for record in source.records(0, len(source))
    ]
    assert found == expected
    assert list(source) == [
        record for record in expected if record is not None
    ]  # read twice, counted once
    assert bad.counts.total() == num_bad
    entries = (
        [json.loads(entry) for entry in quarantine.read_text().splitlines()] if num_bad else []
    )
    assert [entry["row"] for entry in entries] == [
        row for row, record in enumerate(expected) if record is None
    ]


def strictly(raw: bytes) -> Any:
    def refuse(text: str) -> None:
        raise ValueError(text)

    try:
        record = json.loads(raw.decode(), parse_constant=refuse)
        json.dumps(record, ensure_ascii=False).encode()  # a lone surrogate has no bytes
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def page() -> str:
    """The page in the docs."""
    text = [
        "# Bad input",
        "",
        "What happens to input that is not as it should be. This page is written by `tests/sources/test_bad_input.py`, which",
        "also checks every line of it.",
        "",
        'A *bad record* keeps its number. By default reading stops there with `file:line: reason`; with `on_bad="skip"` or',
        '`on_bad="quarantine"` it is counted under its reason and left out. A file that is *refused when opened* raises a',
        "`SourceError` that names it, whatever `on_bad` says.",
    ]
    for section in dict.fromkeys(case.section for case in CASES):
        text += ["", f"## {section}", "", "| input | outcome |", "|---|---|"]
        text += [
            f"| {case.input} | {case.outcome()} |" for case in CASES if case.section == section
        ]
    text += ["", f"## {PLACES}", "", "| a file, folder or line | outcome |", "|---|---|"]
    text += [f"| {name} | {outcome} |" for name, (outcome, _) in PLACES_ROWS.items()]
    return "\n".join(text) + "\n"


def test_the_page_says_what_is_tested() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        f"run: python {Path(__file__).relative_to(PAGE.parents[2])}"
    )
    for name, (_, test) in PLACES_ROWS.items():
        assert re.match(r"test_\w+", test) and callable(globals()[test]), name


if __name__ == "__main__":
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
