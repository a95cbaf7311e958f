"""What does sample i of a folder of .pt chunks hold?  Tensors are memory-mapped by torch's safe loader, never unpickled.

The folder's `metadata.json` says {"total_samples": n, "batch_files": [{"path": "0.pt", "samples": m}, …]}, as sequifier
writes it.  A chunk is a dict of tensors whose first dimension counts samples, or a tuple: such a dict, then for each
sample its sequence, its window within the sequence, where the window starts, and how much of it is padding.
"""

import contextlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from penstock.cache import Cache
from penstock.errors import SourceError
from penstock.files import FileId, RangeFile
from penstock.sources.bad import BadRows
from penstock.sources.folder import METADATA, listed_chunks, read_json
from penstock.sources.parts import FilesSource, Part
from penstock.types import BadRow, Record

_PER_SAMPLE = ("sequence_id", "subsequence_id", "start_item_position", "left_pad_length")
_NAMED = {f"{name}s": name for name in _PER_SAMPLE}  # as the newer layout calls them


class PtPart(Part):
    """One chunk.  Arrays are copied out of the map: they outlive it, and whoever writes to one changes nothing else."""

    def __init__(self, identity: FileId, num_samples: int) -> None:
        self._file = RangeFile(identity)
        self._path = identity.path
        self._columns = self._load(_torch())
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

    def check(self) -> None:
        self._file.check()

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
        return PtPart(identity, self._num_samples[identity.path])

    def _open(self, identities: list[FileId], cache: Cache) -> None:
        """Rows are counted by the metadata; each chunk is held to it when it is first read."""
        self.cache = cache
        self.identities = identities
        self._parts = OrderedDict()
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
