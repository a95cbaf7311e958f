"""Folders of Parquet or .pt chunks with a metadata.json, and what is said where it is missing."""

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.cache import Cache
from penstock.errors import SourceError
from penstock.sources import open_source
from penstock.testing import check_source


def rows(first: int, last: int) -> list[dict[str, Any]]:
    """Two rows for each sample, which are not windows."""
    return [
        {"sequenceId": sample, "column": name, "value": sample * 10}
        for sample in range(first, last)
        for name in "ab"
    ]


def folder(path: Path, **metadata: Any) -> Path:
    path.mkdir()
    pq.write_table(pa.Table.from_pylist(rows(3, 5)), path / "b.parquet")
    pq.write_table(pa.Table.from_pylist(rows(0, 3)), path / "a.parquet")
    files = [{"path": "b.parquet", "samples": 2}, {"path": "a.parquet", "samples": 3}]
    (path / "metadata.json").write_text(
        json.dumps({"total_samples": 5, "batch_files": files, **metadata})
    )
    return path


def test_a_folder_of_parquet_opens_in_the_order_of_its_metadata(
    tmp_path: Path, cache: Cache
) -> None:
    source = open_source(folder(tmp_path / "chunks"), cache=cache)
    check_source(source, expected=[*rows(3, 5), *rows(0, 3)])
    assert source.name == "chunks" and source.describe().format == "parquet"
    only = open_source(tmp_path / "chunks", cache=cache, columns=["value"])
    assert list(only) == [{"value": row["value"]} for row in source]
    assert (
        len(open_source(tmp_path / "chunks", cache=cache, format="parquet")) == 10
    )  # the plain files, by name


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"total_samples": 6}, "total_samples is 6, but its chunks hold 5"),
        (
            {"total_samples": 2, "batch_files": [{"path": "b.parquet", "samples": 2}]},
            "a.parquet: not listed in",
        ),
        (
            {
                "total_samples": 9,
                "batch_files": [
                    {"path": "a.parquet", "samples": 7},
                    {"path": "b.parquet", "samples": 2},
                ],
            },
            "a.parquet: 6 rows, but .*metadata.json says 7 samples",
        ),
        (
            {"total_samples": 1, "batch_files": [{"path": "../x.parquet", "samples": 1}]},
            "expected one inside its folder",
        ),
    ],
)
def test_metadata_that_contradicts_the_parquet_folder_is_refused(
    tmp_path: Path, cache: Cache, metadata: dict[str, Any], message: str
) -> None:
    with pytest.raises(SourceError, match=message):
        open_source(folder(tmp_path / "chunks", **metadata), cache=cache)


def test_a_folder_of_pt_files_without_metadata_says_what_is_missing(
    tmp_path: Path, cache: Cache
) -> None:
    (tmp_path / "0.pt").write_bytes(b"x")
    for place in (tmp_path, tmp_path / "0.pt"):
        with pytest.raises(SourceError, match=r"open its folder, which needs a metadata\.json"):
            open_source(place, cache=cache)


class Code:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return print, ("ran",)


def test_a_chunk_with_pickled_code_is_refused_in_plain_words(
    tmp_path: Path, cache: Cache, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch", reason="the extra penstock[torch] is not installed")
    torch.save({"item": torch.arange(3), "code": Code()}, tmp_path / "zip.pt")
    (tmp_path / "bare.pt").write_bytes(pickle.dumps(Code()))
    for name in ("zip.pt", "bare.pt"):
        files = [{"path": name, "samples": 3}]
        chunks = tmp_path / name.removesuffix(".pt")
        chunks.mkdir()
        (tmp_path / name).rename(chunks / name)
        (chunks / "metadata.json").write_text(
            json.dumps({"total_samples": 3, "batch_files": files})
        )
        with pytest.raises(SourceError) as caught:
            open_source(chunks, cache=cache)
        said = str(caught.value)
        assert name in said and "\x1b" not in said and "weights_only" not in said
    assert "holds pickled code" in said or "cannot be read as tensors" in said
    assert "ran" not in capsys.readouterr().out
