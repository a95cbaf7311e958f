"""Which module reads which shape?  It is imported when the first such file is opened: pyarrow and torch stay out until then.

A line here is all that a new shape needs.  Its source is called as `source(paths, cache=, name=, bad=, **options)`, and its
attribute `OPTIONS` names the options that it takes.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """A shape of files.  Suffixes may have several parts (`.jsonl.gz`); the longest that fits decides."""

    module: str
    source: str
    suffixes: tuple[str, ...] = ()
    folder: str = ""  # the module's function that tells whether a folder as a whole has this shape
    marks: tuple[str, ...] = ()  # it is asked where one of these files lies in the folder
    is_list: bool = False  # a list of other places: its source also takes `defaults=` for them


def packed(*suffixes: str) -> tuple[str, ...]:
    """These suffixes, plain and compressed."""
    return tuple(suffix + packing for suffix in suffixes for packing in ("", ".gz", ".zst", ".bz2", ".xz"))


SHAPES = {
    "jsonl": Shape("jsonl", "JsonlSource", packed(".jsonl", ".ndjson")),
    "json": Shape("json", "JsonSource", packed(".json")),
    "csv": Shape("csv", "CsvSource", packed(".csv", ".tsv")),
    "text": Shape("text", "TextSource", packed(".txt", ".text", ".md")),
    "parquet": Shape("parquet", "ParquetSource", (".parquet",)),
    "arrow": Shape("arrow", "ArrowSource", (".arrow", ".feather", ".ipc")),
    "hf": Shape(
        "hf_dir",
        "HfFolderSource",
        folder="is_hf_folder",
        marks=("dataset_dict.json", "dataset_info.json", "state.json"),
    ),
    "parquet_chunks": Shape(
        "parquet_chunks", "ParquetChunksSource", folder="is_parquet_chunk_folder", marks=("metadata.json",)
    ),
    "pt": Shape("pt_chunks", "PtChunksSource", folder="is_chunk_folder", marks=("metadata.json",)),
    "yaml": Shape("yaml_list", "open_list", (".yaml", ".yml"), is_list=True),
}
