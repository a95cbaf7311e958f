"""A file that is not what its name says is called what it is, with what to do (findings N10 and N19)."""

import gzip
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.cli.main import run
from penstock.errors import BadRecord, SourceError

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0a1b\nsize 12345\n"
PAGE = "\n<!DOCTYPE html>\n<html><body>Sign in</body></html>\n"
ROWS = [{"text": "a"}, {"text": "b"}]


def text(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content)


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.jsonl", '{"text": "a"}\n')


def as_arrow(path: Path) -> None:
    table = pa.table({"text": ["a"]})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


@pytest.mark.parametrize(
    ("name", "write", "said"),
    [
        ("a.jsonl", text(json.dumps(ROWS)), "one JSON array.*ends in .json, or pass format='json'"),
        ("a.jsonl", text(json.dumps(ROWS, indent=1)), "one JSON array"),
        ("a.jsonl", text(json.dumps(ROWS * 9000)), "one JSON array"),
        *(
            (f"a.{end}", text(POINTER), "Git LFS to a file of 12,345 bytes.*git lfs pull")
            for end in ("jsonl", "json", "csv", "txt", "parquet", "arrow", "jsonl.gz")
        ),
        *(
            (f"a.{end}", text(PAGE), "a web page, not data.*download the file itself")
            for end in ("jsonl", "json", "csv", "parquet", "jsonl.gz")
        ),
        (
            "a.jsonl",
            lambda path: path.write_bytes(gzip.compress(b"{}")),
            "gzip; rename it to a.jsonl.gz",
        ),
        ("a.jsonl", zipped, "a ZIP archive; unpack it"),
        ("a.zip", zipped, "an archive; unpack it"),
        ("a.jsonl", lambda path: pq.write_table(pa.table({"text": ["a"]}), path), "a Parquet file"),
        ("a.csv", as_arrow, "an Arrow file"),
        ("a.xlsx", zipped, "a spreadsheet; save it as .csv"),
        ("a.pkl", text("x"), "a pickle, which is never opened"),
        ("data.gz", text("x"), "rename it so that it ends like .jsonl.gz"),
    ],
)
def test_a_file_of_another_kind_is_called_what_it_is(
    tmp_path: Path, name: str, write: Callable[[Path], object], said: str
) -> None:
    """N10: these gave `unexpected character` or two odd rows."""
    path = tmp_path / name
    write(path)
    with pytest.raises(SourceError, match=f"{name}: is .*{said}"):
        ps.open(path, cache_dir=tmp_path / "cache")


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("a.jsonl", '[1, 2]\n{"text": "a"}\n', 1),  # lines, of which the first is bad
        ("a.jsonl", '[{"text": "a"}]\n{"text": "a"}\n', 1),
        ("a.txt", "<html>\n", 1),  # a text may be about anything
        ("a.txt", "[{\n", 1),
        ("a.jsonl", '{"text": "version https://git-lfs.github.com/spec/v1"}\n', 1),
    ],
)
def test_what_only_looks_like_it_is_read(
    tmp_path: Path, name: str, content: str, rows: int
) -> None:
    (tmp_path / name).write_text(content)
    assert len(list(ps.open(tmp_path / name, on_bad="skip"))) == rows


@pytest.mark.parametrize("ending", ["", "\n", '\n{"text": "c"}\n'])
def test_half_a_line_is_called_cut(tmp_path: Path, ending: str) -> None:
    """N19: half a line was an `unexpected control character`."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n{"text": "b and mo' + ending)
    with pytest.raises(
        BadRecord, match=r"a.jsonl:2: not JSON: the record is cut off: .* 18 characters"
    ):
        list(ps.open(path))


def test_another_fault_is_not_called_cut(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a" "b": 1}\n')
    with pytest.raises(BadRecord) as found:
        list(ps.open(path))
    assert "cut" not in str(found.value)


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_preparing_nothing_is_an_error(
    tmp_path: Path, tokenizer_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    """N10: `prepare` of an empty file ended with 0 samples and exit code 0, after `text (0 of 0 …)`."""
    path = tmp_path / "empty.jsonl"
    path.write_text(content)
    arguments = [str(path), "--tokenizer", str(tokenizer_path), "--cache-dir", str(tmp_path / "c")]
    assert run(["prepare", *arguments]) == 3
    said = capsys.readouterr()
    assert "empty.jsonl: there are no records" in said.err
    assert "0 of 0" not in said.err + said.out
    assert run(["prepare", *arguments, "--template", "text"]) == 3
    assert "none of 0 records gives a sample: there are no records" in capsys.readouterr().err
    assert run(["check", *arguments]) == 1
    said = capsys.readouterr()
    assert "there are no records" in said.out
    assert "0 of 0" not in said.err + said.out
    with pytest.raises(SourceError, match="there are no records"):
        ps.prepare(path, tokenizer=tokenizer_path, cache_dir=tmp_path / "c")


def test_preparing_data_without_a_sample_is_an_error(
    tmp_path: Path, tokenizer_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"input_ids": [1, 2], "labels": [-100, -100]}\n' * 3)
    arguments = [str(path), "--set", "vocab_size=9", "--cache-dir", str(tmp_path / "c")]
    assert run(["prepare", *arguments, "--template", "pretokenized"]) == 3
    assert "none of 3 records gives a sample: 3 records nothing_to_train" in capsys.readouterr().err


def test_data_that_cannot_be_read_at_all_has_no_detected_template(
    tmp_path: Path, tokenizer_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("{]\n" * 3)
    source = ps.open(path, on_bad="skip")
    with pytest.raises(SourceError, match="none of 3 records can be read"):
        ps.prepare(source, tokenizer=tokenizer_path, cache_dir=tmp_path / "c")
