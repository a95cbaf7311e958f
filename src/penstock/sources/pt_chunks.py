"""What does sample i of a folder of .pt chunks hold?  Tensors are memory-mapped by torch's safe loader, never unpickled.

The folder's `metadata.json` says {"total_samples": n, "batch_files": [{"path": "0.pt", "samples": m}, …]}, as sequifier
writes it.  A chunk is a dict of tensors whose first dimension counts samples, or a tuple: such a dict, then for each
sample its sequence, its window within the sequence, where the window starts, and how much of it is padding.
"""

import contextlib
import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.cache import Cache
from penstock.errors import SourceError
from penstock.files import FileId, RangeFile
from penstock.fingerprint import Digest
from penstock.sources.bad import BadRows
from penstock.sources.folder import METADATA, listed_chunks, read_json
from penstock.sources.parts import FilesSource, Part
from penstock.types import BadRow, Ints, Record

_MOST_MAPPED = 4096  # chunks of a source; a process may have some 65,000 maps
_ROWS_AT_ONCE = 256  # copied out of a chunk together, where all of them are read
_PER_SAMPLE = ("sequence_id", "subsequence_id", "start_item_position", "left_pad_length")
_NAMED = {f"{name}s": name for name in _PER_SAMPLE}  # as the newer layout calls them


class PtPart(Part):
    """One chunk.  Arrays are copied out of the map: they outlive it, and whoever writes to one changes nothing else."""

    def __init__(self, identity: FileId, num_samples: int, columns: dict[str, Any] | None = None) -> None:
        """`columns`: of the same file, mapped by an earlier part."""
        self._file = RangeFile(identity)
        self._path = identity.path
        self._columns = columns or self._load(_torch())
        for name, tensor in self._columns.items():
            if tensor.shape[0] != num_samples:
                raise SourceError(
                    f"{self._path}: column {name!r} holds {tensor.shape[0]} samples, but {METADATA} says {num_samples}; "
                    f"make the folder again"
                )
        self.num_rows = num_samples
        self.num_bytes = identity.size

    def record(self, row: int) -> Record | BadRow:
        self.check()  # pages behind the end of a file that was cut would be no memory
        return {name: _cell(column[row]) for name, column in self._columns.items()}

    def records(self, first: int, last: int) -> Iterator[Record | BadRow]:
        for row in range(first, last):
            yield self.record(row)

    def records_at(self, rows: Ints) -> list[Record | BadRow]:
        """One copy of each column's rows, cut into records: whoever keeps one of them keeps the memory of all that were read with it."""
        self.check()  # pages behind the end of a file that was cut would be no memory
        columns = [self._cells(column, rows) for column in self._columns.values()]
        names = list(self._columns)
        return [dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True)]

    def _cells(self, column: Any, rows: Ints) -> Any:
        """Each sample's part of a column: an array, or a plain number where a sample has but one."""
        found = self._array(column, rows)
        return found if found.ndim > 1 else found.tolist()

    def _array(self, column: Any, rows: Ints) -> npt.NDArray[Any]:
        if isinstance(column, np.ndarray):
            return column[rows]
        wide: npt.NDArray[Any] = column[rows].float().numpy()
        return wide

    def add_digest(self, content: Digest, first: int, last: int) -> None:
        """Each row as the bytes of its columns, behind their names, types and shapes: equal rows in other chunks have equal bytes."""
        self.check()
        for begin in range(first, last, _ROWS_AT_ONCE):
            rows = np.arange(begin, min(begin + _ROWS_AT_ONCE, last))
            arrays = {name: self._array(column, rows) for name, column in self._columns.items()}
            shapes = [[name, array.dtype.str, array.shape[1:]] for name, array in arrays.items()]
            head = json.dumps(shapes).encode()
            size = len(head) + sum(array.nbytes for array in arrays.values()) // len(rows)
            head = size.to_bytes(8, "little") + head  # so that a stream of rows says where each of them ends
            parts = [np.ascontiguousarray(array).reshape(len(rows), -1).view(np.uint8) for array in arrays.values()]
            heads = np.broadcast_to(np.frombuffer(head, np.uint8), (len(rows), len(head)))
            content.extend(np.concatenate([heads, *parts], axis=1).data)

    def check(self) -> None:
        self._file.check()

    @property
    def columns(self) -> dict[str, Any]:
        """By name, as arrays that lie in the file; they outlive this part."""
        return self._columns

    def _load(self, torch: ModuleType) -> dict[str, Any]:
        """Columns by name, as arrays that lie in the file."""
        with self._unreadable():
            content = torch.load(self._path, weights_only=True, mmap=True, map_location="cpu")
        columns: dict[str, Any] = {}
        for name, tensor in _tensors(content):
            if name in columns:
                raise SourceError(f"{self._path}: {name!r} is there twice, as a column and as a number of each sample")
            if not isinstance(tensor, torch.Tensor) or tensor.dim() < 1:
                kind = "a tensor without dimensions" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
                raise SourceError(f"{self._path}: {name!r} is {kind}, expected a tensor with a row per sample")
            with self._unreadable():
                # numpy has no bfloat16: such rows are widened one by one, which loses nothing
                columns[name] = tensor.detach() if tensor.dtype == torch.bfloat16 else tensor.detach().numpy()
        if not columns:
            raise SourceError(
                f"{self._path}: a {type(content).__name__} without columns, "
                f"expected a dict of tensors, or a tuple that begins with one"
            )
        return columns

    @contextlib.contextmanager
    def _unreadable(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # torch's loader raises whatever its zip reader and unpickler do
            if type(error).__name__ == "UnpicklingError":  # it met code; its own words advise to run it
                raise SourceError(
                    f"{self._path}: holds pickled code, or is not a file of torch.save; chunks are read without running any code, "
                    f"so save it again as plain tensors, or remove it if you do not know who made it"
                ) from error
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise SourceError(
                f"{self._path}: cannot be read as tensors: {reason}; is it cut off or damaged? save it again with torch.save"
            ) from error


class PtChunksSource(FilesSource):
    """A folder of .pt chunks.  A record is one sample's arrays, and its numbers as they are."""

    shape = "pt"

    def __init__(
        self,
        paths: Sequence[str],
        *,
        cache: Cache,
        name: str | None = None,
        bad: BadRows | None = None,
        split: str | None = None,
    ) -> None:
        if len(paths) != 1:
            raise SourceError(f"{len(paths)} folders of .pt chunks, expected one; join them with concat")
        if split is not None:
            raise SourceError(f"{paths[0]}: split {split!r} asked for, but such a folder is one split; leave split out")
        folder = Path(paths[0])
        self._num_samples = listed_chunks(folder, ".pt")
        super().__init__(list(self._num_samples), cache=cache, name=name or folder.name, bad=bad)

    def part(self, identity: FileId) -> Part:
        """Opening a chunk takes a millisecond and more; its map needs no open file, so it is kept when its part is closed."""
        part = PtPart(identity, self._num_samples[identity.path], self._mapped.pop(identity, None))
        self._mapped[identity] = part.columns
        while len(self._mapped) > _MOST_MAPPED:
            self._mapped.popitem(last=False)
        return part

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_mapped": OrderedDict()}

    def _open(self, identities: list[FileId], cache: Cache) -> None:
        """Rows are counted by the metadata; each chunk is held to it when it is first read."""
        self.cache = cache
        self.identities = identities
        self._parts = OrderedDict()
        self._mapped: OrderedDict[FileId, dict[str, Any]] = OrderedDict()
        self._first_rows = [0, *accumulate(self._num_samples[known.path] for known in identities)]
        self._part(0)  # says now what all the others would say later: no torch, another layout


def is_chunk_folder(path: str) -> bool:
    """Whether a metadata.json here lists chunks."""
    metadata = Path(path) / METADATA
    try:
        return metadata.is_file() and isinstance(read_json(metadata).get("batch_files"), list)
    except SourceError:
        return False


def _tensors(content: Any) -> Iterator[tuple[str, Any]]:
    """(name, tensor) of all that a chunk holds for each sample."""
    if isinstance(content, dict) and content.get("format") == "sequifier_tensor_batch":
        yield from _flat(content.get("sequences"), "")
        yield from _flat(content.get("metadata"), "")
        yield from ((name, content[key]) for key, name in _NAMED.items() if key in content)
    elif isinstance(content, dict):
        yield from _flat(content, "")
    elif isinstance(content, tuple | list) and content and isinstance(content[0], dict):
        yield from _flat(content[0], "")
        rest = list(content[1:])
        if rest and isinstance(rest[0], dict):  # older chunks keep the shifted columns, too
            yield from _flat(rest.pop(0), "targets.")
        names = (*_PER_SAMPLE, *(f"field_{number}" for number in range(len(_PER_SAMPLE), len(rest))))
        yield from zip(names, rest, strict=False)


def _flat(columns: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in columns.items() if isinstance(columns, dict) else ():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif value is not None:
            yield f"{prefix}{name}", value


def _cell(value: Any) -> Any:
    """One sample's part of a column, as the caller's own."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, np.generic):
        return value.item()
    wide = value.float().numpy()
    return wide if wide.ndim else wide.item()


def _torch() -> ModuleType:
    try:
        import torch
    except ImportError as error:
        raise SourceError(
            "reading .pt chunks needs torch, which is not installed; pip install 'penstock[torch]'"
        ) from error
    found: ModuleType = torch
    return found
