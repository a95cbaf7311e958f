"""Folders of Parquet chunks with a `metadata.json`.

sequifier writes a row for each column of a sample, so the `samples` of the metadata are not the number of rows.
"""

from penstock.errors import SourceError
from penstock.extras.formats.chunks import METADATA, listed_chunks
from penstock.sources.files import Files
from penstock.sources.opener import Opener, OpenRequest
from penstock.sources.parquet import ParquetOptions, open_parquet


def open_parquet_chunks(request: OpenRequest) -> Files:
    """Open the Parquet files that a folder's metadata.json lists, in its order."""
    folder = request.folder("Parquet chunks")
    num_samples = listed_chunks(folder, ".parquet")
    source = open_parquet(request.of_folder(list(num_samples)))
    for path, num_rows in zip(num_samples, source.rows_of_files(), strict=True):
        listed = num_samples[path]
        if num_rows < listed or (num_rows and not listed):
            raise SourceError(
                f"{path}: {num_rows} rows, but {folder / METADATA} says {listed} samples, and a sample has at least a row; "
                f"make the folder again"
            )
    return source


PARQUET_CHUNKS = Opener(ParquetOptions, open_parquet_chunks)
