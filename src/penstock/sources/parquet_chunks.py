"""Open a folder of Parquet chunks with `metadata.json`, as sequifier writes it.

`metadata.json` says {"total_samples": n, "batch_files": [{"path": "0.parquet", "samples": m}, …]}.  Rows are read as stored: sequifier
writes a row for each column of a sample, so `samples` is not the number of rows.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.errors import SourceError
from penstock.sources.folder import METADATA, listed_chunks, read_json
from penstock.sources.parquet import ParquetSource


class ParquetChunksSource(ParquetSource):
    """The Parquet files that a folder's metadata.json lists, in its order."""

    def __init__(self, paths: Sequence[str], *, name: str | None = None, split: str | None = None, **rest: Any) -> None:
        if len(paths) != 1:
            raise SourceError(f"{len(paths)} folders of Parquet chunks, expected one; join them with concat")
        if split is not None:
            raise SourceError(f"{paths[0]}: split {split!r} asked for, but such a folder is one split; leave split out")
        folder = Path(paths[0])
        samples = listed_chunks(folder, ".parquet")
        super().__init__(list(samples), name=name or folder.name, **rest)
        for index, (path, num_samples) in enumerate(samples.items()):
            num_rows = self._first_rows[index + 1] - self._first_rows[index]
            if num_rows < num_samples or (num_rows and not num_samples):
                raise SourceError(
                    f"{path}: {num_rows} rows, but {folder / METADATA} says {num_samples} samples, and a sample has at least a "
                    f"row; make the folder again"
                )


def is_parquet_chunk_folder(path: str) -> bool:
    """Whether a metadata.json here lists Parquet files."""
    try:
        entries = read_json(Path(path) / METADATA).get("batch_files")
    except SourceError:
        return False
    names = [entry.get("path") for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    return bool(names) and all(isinstance(name, str) and name.lower().endswith(".parquet") for name in names)
