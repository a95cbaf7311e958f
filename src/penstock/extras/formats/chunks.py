"""Folders whose `metadata.json` lists their chunks: {"total_samples": n, "batch_files": [{"path": "0.pt", "samples": m}, …]}.

sequifier writes such folders, of .pt files or of Parquet files.
"""

from pathlib import Path

from penstock.errors import SourceError
from penstock.places.files import find, inside, read_json

METADATA = "metadata.json"  # lists the chunks of a folder
PER_SAMPLE = (
    "sequence_id",
    "subsequence_id",
    "start_item_position",
    "left_pad_length",
    "split_start_item_position",
    "split_end_item_position",
)
CURRICULUM = "curriculum."  # begins the names of curriculum columns in records


def listed_chunks(folder: Path, suffix: str) -> dict[str, int]:
    """Return the chunks that a metadata.json lists, with their samples; it must agree with itself and with the folder."""
    path = folder / METADATA
    metadata = read_json(path)
    entries = metadata.get("batch_files")
    if not isinstance(entries, list) or not entries:
        raise SourceError(f"{path}: batch_files is {str(entries)[:50]}, expected a list of chunks")
    chunks: dict[str, int] = {}
    for entry in entries:
        samples = entry.get("samples") if isinstance(entry, dict) else None
        if type(samples) is not int or samples < 0:
            raise SourceError(f"{path}: a chunk is {str(entry)[:80]}, expected {{path, samples}}")
        chunk = inside(folder, entry.get("path"), named_by=path)
        if chunk in chunks:
            raise SourceError(f"{path}: lists {entry['path']!r} twice; make the folder again")
        chunks[chunk] = samples
    total = metadata.get("total_samples")
    if total != sum(chunks.values()):
        raise SourceError(
            f"{path}: total_samples is {total}, but its chunks hold {sum(chunks.values())}"
        )
    # sequifier leaves out a chunk that it failed to read, and with it the samples
    for found in find(folder):
        if found.endswith(suffix) and found not in chunks:
            raise SourceError(
                f"{found}: not listed in {path}; list it there, or remove it from the folder"
            )
    return chunks


def _listed(folder: str) -> list[object] | None:
    """Return the chunks that the metadata.json of a folder lists, or None."""
    try:
        entries = read_json(Path(folder) / METADATA).get("batch_files")
    except SourceError:
        return None
    return entries if isinstance(entries, list) else None


def is_chunk_folder(folder: str) -> bool:
    """Return whether a metadata.json here lists chunks."""
    return _listed(folder) is not None


def is_parquet_chunk_folder(folder: str) -> bool:
    """Return whether a metadata.json here lists Parquet files."""
    names = [entry.get("path") for entry in _listed(folder) or () if isinstance(entry, dict)]
    return bool(names) and all(
        isinstance(name, str) and name.lower().endswith(".parquet") for name in names
    )
