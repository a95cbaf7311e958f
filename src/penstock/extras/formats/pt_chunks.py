"""Folders of .pt chunks: tensors are memory-mapped by torch's safe loader, never unpickled.

The folder's `metadata.json` says {"total_samples": n, "batch_files": [{"path": "0.pt", "samples": m}, …]}, as sequifier writes it.  A chunk
is what sequifier 3 writes (a dict that names its version), a dict of tensors whose first dimension counts samples, or a tuple: such a
dict, then for each sample its sequence, its window within the sequence, where the window starts, and how much of it is padding.
"""

import contextlib
import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import SourceError
from penstock.extras.formats.chunks import CURRICULUM, METADATA, PER_SAMPLE, listed_chunks
from penstock.fingerprint import Digest
from penstock.places.files import open_file
from penstock.places.place import FileId
from penstock.sources.files import Files
from penstock.sources.opener import NoOptions, Opener, OpenRequest, open_files
from penstock.sources.rows import FileReader, FileRecords
from penstock.types import BadRow, Ints, Record

_MOST_MAPPED = 4096  # chunks of a source; a process may have some 65,000 maps
_ROWS_AT_ONCE = 256  # copied out of a chunk together
_FORMAT = "sequifier_tensor_batch"
_VERSION = 5  # of sequifier 3.1; older ones have fewer parts
_MASK = "depth_valid_masks."  # begins the names of masks in records


class PtRows(FileRecords):
    """One chunk.  Arrays are copied out of the map: they outlive it, and writing to one changes nothing else."""

    def __init__(
        self, identity: FileId, num_samples: int, columns: dict[str, Any] | None = None
    ) -> None:
        """`columns`: of the same file, mapped before."""
        self.file = open_file(identity)
        self.columns = columns or _load(identity.path)
        for name, tensor in self.columns.items():
            if tensor.shape[0] != num_samples:
                raise SourceError(
                    f"{identity.path}: column {name!r} holds {tensor.shape[0]} samples, but {METADATA} says "
                    f"{num_samples}; make the folder again"
                )
        self._num_rows = num_samples
        self.num_bytes = identity.size

    def __len__(self) -> int:
        return self._num_rows

    def record(self, row: int) -> Record | BadRow:
        self.file.check()  # reading a page behind the end of a truncated file kills the process
        cells = {name: _rows_of(column, row) for name, column in self.columns.items()}
        return {name: cell.copy() if cell.ndim else cell.item() for name, cell in cells.items()}

    def records(self, first: int, last: int) -> Iterator[Record | BadRow]:
        for row in range(first, last):
            yield self.record(row)

    def records_at(self, rows: Ints) -> list[Record | BadRow]:
        """Copy each column's rows once and cut them into records, which share the memory of that copy."""
        self.file.check()
        arrays = (_rows_of(column, rows) for column in self.columns.values())
        columns = [array if array.ndim > 1 else array.tolist() for array in arrays]
        return [dict(zip(self.columns, cells, strict=True)) for cells in zip(*columns, strict=True)]

    def add_digest(self, content: Digest, first: int, last: int) -> None:
        """Add each row as names, types and shapes of its columns, then their bytes: equal rows in other chunks add the same."""
        self.file.check()
        for begin in range(first, last, _ROWS_AT_ONCE):
            rows = np.arange(begin, min(begin + _ROWS_AT_ONCE, last))
            arrays = {name: _rows_of(column, rows) for name, column in self.columns.items()}
            shapes = [[name, array.dtype.str, array.shape[1:]] for name, array in arrays.items()]
            head = json.dumps(shapes).encode()
            size = len(head) + sum(array.nbytes for array in arrays.values()) // len(rows)
            head = size.to_bytes(8, "little") + head  # frames each row
            parts = [
                np.ascontiguousarray(array).reshape(len(rows), -1).view(np.uint8)
                for array in arrays.values()
            ]
            heads = np.broadcast_to(np.frombuffer(head, np.uint8), (len(rows), len(head)))
            content.extend(np.concatenate([heads, *parts], axis=1).data)


class PtReader(FileReader):
    """Opens the chunks that a metadata.json lists.  A record is one sample's arrays, and its numbers as they are."""

    format = "pt"
    options = NoOptions()

    def __init__(self, num_samples: dict[str, int]) -> None:
        """num_samples: of each chunk, by its path."""
        self._num_samples = num_samples
        self._mapped: OrderedDict[FileId, dict[str, Any]] = OrderedDict()

    def counts(self, files: Sequence[FileId]) -> list[int]:
        """Return the counts of the metadata; each chunk is compared with them when it is first read."""
        return [self._num_samples[file.path] for file in files]

    def open_rows(self, file: FileId) -> FileRecords:
        """Open a chunk.  That takes a millisecond or more, so its map, which needs no open file, outlives the rows."""
        rows = PtRows(file, self._num_samples[file.path], self._mapped.pop(file, None))
        self._mapped[file] = rows.columns
        while len(self._mapped) > _MOST_MAPPED:
            self._mapped.popitem(last=False)
        return rows

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": OrderedDict()}


def open_pt_chunks(request: OpenRequest) -> Files:
    """Open a folder of .pt chunks."""
    num_samples = listed_chunks(request.folder(".pt chunks"), ".pt")
    source = open_files(request.of_folder(list(num_samples)), PtReader(num_samples))
    source.open_first_file()  # raises now what all the others would raise later: no torch, another layout
    return source


PT = Opener(NoOptions, open_pt_chunks)


def _load(path: str) -> dict[str, Any]:
    """Return columns by name, as arrays in the mapped file."""
    try:
        import torch
    except ImportError as error:
        raise SourceError(
            "reading .pt chunks needs torch, which is not installed; pip install 'penstock[torch]'",
            code="no_torch",
        ) from error
    with _readable(path):
        content = torch.load(path, weights_only=True, mmap=True, map_location="cpu")
    columns: dict[str, Any] = {}
    try:
        tensors = list(_tensors(content))
    except SourceError as error:
        raise SourceError(f"{path}: {error}") from error
    for name, tensor in tensors:
        if name in columns:
            raise SourceError(
                f"{path}: {name!r} is there twice, as a column and as a number of each sample"
            )
        if not isinstance(tensor, torch.Tensor) or tensor.dim() < 1:
            kind = (
                "a tensor without dimensions"
                if isinstance(tensor, torch.Tensor)
                else type(tensor).__name__
            )
            raise SourceError(
                f"{path}: {name!r} is {kind}, expected a tensor with a row per sample"
            )
        with _readable(path):
            # numpy has no bfloat16: such rows are widened when they are read, which loses nothing
            columns[name] = (
                tensor.detach() if tensor.dtype == torch.bfloat16 else tensor.detach().numpy()
            )
    if not columns:
        kind = f"a {type(content).__name__} without columns"
        raise SourceError(
            f"{path}: {kind}, expected a dict of tensors, or a tuple that begins with one"
        )
    return columns


@contextlib.contextmanager
def _readable(path: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # torch's loader raises whatever its zip reader and unpickler do
        if (
            type(error).__name__ == "UnpicklingError"
        ):  # there is code in it; torch's message advises to run it
            raise SourceError(
                f"{path}: holds pickled code, or is not a file of torch.save; chunks are read without running any code, "
                f"so save it again as plain tensors, or remove it if you do not know who made it"
            ) from error
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        advice = "is it cut off or damaged? save it again with torch.save"
        raise SourceError(f"{path}: cannot be read as tensors: {reason}; {advice}") from error


def _rows_of(column: Any, rows: Ints | int) -> npt.NDArray[Any]:
    """Return rows of a column, or one; several are a copy."""
    if isinstance(column, np.ndarray):
        return column[rows]
    wide: npt.NDArray[Any] = column[rows].float().numpy()
    return wide


def _tensors(content: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, tensor) of all that a chunk holds for each sample."""
    if isinstance(content, dict) and content.get("format") == _FORMAT:
        yield from _of_payload(content)
    elif isinstance(content, dict):
        yield from _flat(content, "")
    elif isinstance(content, tuple | list) and content and isinstance(content[0], dict):
        yield from _flat(content[0], "")
        rest = list(content[1:])
        if rest and isinstance(rest[0], dict):  # older chunks keep the shifted columns, too
            yield from _flat(rest.pop(0), "targets.")
        names = (
            *PER_SAMPLE,
            *(f"field_{number}" for number in range(len(PER_SAMPLE), len(rest))),
        )
        yield from zip(names, rest, strict=False)


def _of_payload(content: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what a chunk of sequifier 3 holds for each sample.  Every part is known, so that none is left out unseen."""
    version = content.get("version")
    if version is not None and not (isinstance(version, int) and version <= _VERSION):
        raise SourceError(
            f"a payload of sequifier of version {version!r}, expected at most {_VERSION}; make the folder again with sequifier 3, or "
            f"open it with a release of Penstock that knows this version"
        )
    plurals = {f"{name}s": name for name in PER_SAMPLE}
    metadata = content.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    known = {"format", "version", "sequences", "metadata", *plurals}
    known_of_metadata = {"depth_valid_masks", "sample_positions", "curriculum_columns"}
    beside = [name for name in content if name not in known]
    beside += [name for name in metadata if name not in known_of_metadata]
    for name in beside:
        if content.get(name, metadata.get(name)) is not None:
            raise SourceError(f"a payload of sequifier with the unknown part {name!r}")
    yield from _flat(content.get("sequences"), "")
    yield from _flat(metadata.get("depth_valid_masks"), _MASK)
    yield from _curriculum(metadata.get("sample_positions"), metadata.get("curriculum_columns"))
    yield from ((name, content[stored]) for stored, name in plurals.items() if stored in content)


def _curriculum(positions: Any, names: Any) -> Iterator[tuple[str, Any]]:
    """Yield the curriculum columns, by their names; one without a name is called `position`."""
    if positions is None:
        return
    columns = [positions] if positions.dim() == 1 else list(positions.unbind(1))
    given = list(names or ["position"])
    if len(given) != len(columns):
        raise SourceError(
            f"curriculum_columns names {len(given)} columns, but sample_positions has {len(columns)}"
        )
    yield from (
        (f"{CURRICULUM}{name}", column) for name, column in zip(given, columns, strict=True)
    )


def _flat(columns: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in columns.items() if isinstance(columns, dict) else ():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif value is not None:
            yield f"{prefix}{name}", value
