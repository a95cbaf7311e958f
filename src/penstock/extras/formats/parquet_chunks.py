"""Folders of Parquet chunks with a `metadata.json`.

sequifier writes a row for each column of a sample, so the `samples` of the metadata are not the number of rows.
"""

from collections.abc import Sequence
from typing import Any

from penstock.errors import SourceError
from penstock.extras.formats.chunks import METADATA, listed_chunks
from penstock.sources.file_source import one_folder
from penstock.sources.parquet import ParquetSource


class ParquetChunksSource(ParquetSource):
    """The Parquet files that a folder's metadata.json lists, in its order."""

    def __init__(
        self,
        paths: Sequence[str],
        *,
        name: str | None = None,
        split: str | None = None,
        **rest: Any,
    ) -> None:
        folder = one_folder(paths, "Parquet chunks", split)
        samples = listed_chunks(folder, ".parquet")
        super().__init__(list(samples), name=name or folder.name, **rest)
        for index, (path, num_samples) in enumerate(samples.items()):
            num_rows = self._num_rows(index)
            if num_rows < num_samples or (num_rows and not num_samples):
                says = f"{folder / METADATA} says {num_samples} samples, and a sample has at least a row"
                raise SourceError(f"{path}: {num_rows} rows, but {says}; make the folder again")
