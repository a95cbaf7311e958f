"""Data of `datasets`: folders that it wrote, read without it, and its Dataset and IterableDataset in memory.

Two kinds of folders: what `save_to_disk` writes (`state.json` next to the data; `dataset_dict.json` above the splits), and the cache of
`load_dataset` (`dataset_info.json` next to `name-split-00000-of-00004.arrow`).  Their JSON names Arrow streams.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import SourceError
from penstock.places.files import find, inside, is_file, natural, read, read_json
from penstock.places.place import FileId
from penstock.settings import setting
from penstock.sources.arrow import arrow_reader
from penstock.sources.bad import BadRows
from penstock.sources.base import RowAccess
from penstock.sources.columnar import ColumnarOptions, Columns, number_types, reading
from penstock.sources.files import Files, InMemory, RowsInMemory
from penstock.sources.opener import Opener, OpenRequest
from penstock.sources.rows import FileReader, FileRecords
from penstock.sources.values import ToRecords, check_nulls
from penstock.sources.views import Selection
from penstock.types import BadRow, Ints, Record, RemovedNulls

_DICT = "dataset_dict.json"
_STATE = "state.json"
_INFO = "dataset_info.json"
# What maps and shuffles leave in the same folder is called cache-….arrow.
_CACHED = re.compile(
    r"(?!cache-|tmp)(?P<name>.+?)-(?P<split>[^-]+)(?:-\d{5}-of-(?P<total>\d{5}))?\.arrow"
)
_ROWS = 1000  # read at once
_DICTS = ("DatasetDict", "IterableDatasetDict")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saved:
    files: list[str]
    columns: list[str] | None = None  # those that the dataset was formatted to show
    indices: tuple[str, ...] = ()  # files that say which rows, in which order
    num_rows: int | None = None  # as the folder says


def open_hf_folder(request: OpenRequest) -> RowAccess:
    """Open the Arrow streams of a folder, in the order that the dataset was saved with.

    Values as stored: a class label is its number, an image {"bytes", "path"}.  Cells of the feature type `Json` are values, as they are
    for `datasets`.
    """
    folder = request.folder_with_splits("datasets")
    saved = _find(folder, request.split)
    options = request.options
    if options.columns is None and saved.columns is not None:
        options = replace(options, columns=saved.columns)
    columns = Columns("hf", options, parse_json=True)
    source = Files(
        saved.files,
        arrow_reader(columns, request.cache),
        cache=request.cache,
        name=request.name or folder.name,
        bad=request.bad,
    )
    if saved.num_rows is not None and saved.num_rows != len(source):
        raise SourceError(
            f"{folder}: {len(source)} records, but {_INFO} says {saved.num_rows}; "
            f"a file is damaged or of another run: load the dataset again"
        )
    return Selection(source, _order(saved.indices, len(source))) if saved.indices else source


HF = Opener(ColumnarOptions, open_hf_folder)


def is_hf_folder(path: str) -> bool:
    """Return whether `datasets` made this folder."""
    folder = Path(path)
    if is_file(folder / _DICT):
        return True
    return is_file(folder / _INFO) and (is_file(folder / _STATE) or bool(_cached(folder)))


def _find(folder: Path, split: str | None) -> _Saved:
    if is_file(folder / _DICT):
        splits = _strings(read_json(folder / _DICT).get("splits"), folder / _DICT, "splits")
        chosen = _choose(str(folder), splits, split)
        inside(folder, f"{chosen}/{_STATE}", named_by=folder / _DICT)
        return _saved(folder / chosen, None)
    if is_file(folder / _STATE):
        return _saved(folder, split)
    if is_file(folder / _INFO) and (cached := _cached(folder)):
        chosen = _choose(str(folder), sorted(cached, key=natural), split)
        return _from_cache(folder, cached[chosen], chosen)
    raise SourceError(
        f"{folder}: not a folder of datasets, expected {_DICT}, {_STATE} or {_INFO} next to it .arrow files"
    )


def _saved(folder: Path, split: str | None) -> _Saved:
    """Read what Dataset.save_to_disk wrote."""
    state = read_json(folder / _STATE)
    if split is not None and split != state.get("_split"):
        found = (
            f"only the split {state['_split']!r}"
            if state.get("_split")
            else "one dataset without splits"
        )
        raise SourceError(
            f"{folder}: split {split!r} asked for, but it holds {found}; leave split out"
        )
    files = _names(state.get("_data_files"), folder)
    if not files:
        raise SourceError(
            f"{folder / _STATE}: names no data files, expected _data_files; save the dataset again"
        )
    # datasets before 2.0 kept a selection or shuffle as a list of row numbers next to all rows
    indices = _names(state.get("_indices_files") or state.get("_indices_data_files") or [], folder)
    columns = state.get("_format_columns")
    if columns is not None:
        columns = _strings(columns, folder / _STATE, "_format_columns")
    return _Saved(
        files=files,
        columns=None if state.get("_output_all_columns") else columns,
        indices=tuple(indices),
    )


def _cached(folder: Path) -> dict[str, dict[str, int]]:
    """Return the splits in the cache of load_dataset: their file names, and how many files each name says there are."""
    splits: dict[str, dict[str, int]] = {}
    for name in (Path(path).name for path in find(folder)):
        if found := _CACHED.fullmatch(name):
            splits.setdefault(found["split"], {})[name] = int(found["total"] or 1)
    return splits


def _from_cache(folder: Path, total_by_name: dict[str, int], split: str) -> _Saved:
    """Return the files of a split in the cache of load_dataset, and the records that the folder says it has.

    total_by_name: how many files the split has, as the name of each of its files says.  A missing file is refused: nothing else tells.
    """
    num_files = len(total_by_name)
    totals = sorted(set(total_by_name.values()))
    if totals != [num_files]:
        said = " and ".join(map(str, totals))
        raise SourceError(
            f"{folder}: split {split!r} has {num_files} files whose names say {said}; load the dataset again"
        )
    files = [inside(folder, name, named_by=folder / _INFO) for name in total_by_name]
    return _Saved(files=files, num_rows=_num_rows_of(folder, split))


def _num_rows_of(folder: Path, split: str) -> int | None:
    """Return the records of a split, if dataset_info.json says them."""
    splits = read_json(folder / _INFO).get("splits")
    info = splits.get(split) if isinstance(splits, dict) else None
    num_rows = info.get("num_examples") if isinstance(info, dict) else None
    return num_rows if isinstance(num_rows, int) else None


def _choose(where: str, splits: list[str], split: str | None) -> str:
    if split is None and len(splits) == 1:
        return splits[0]
    if split is None or split not in splits:
        asked = "none was chosen" if split is None else f"{split!r} is none of them"
        raise SourceError(
            f"{where}: it holds the splits {', '.join(splits)} and {asked}; choose with split="
        )
    return split


def _names(entries: Any, folder: Path) -> list[str]:
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise SourceError(
            f"{folder / _STATE}: its lists of files are not lists of objects; save the dataset again"
        )
    return [inside(folder, entry.get("filename"), named_by=folder / _STATE) for entry in entries]


def _strings(value: Any, path: Path, key: str) -> list[str]:
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise SourceError(
            f"{path}: {key} is {value!r}, expected a list of names; save the dataset again"
        )
    return value


def _order(paths: tuple[str, ...], num_rows: int) -> Ints:
    """Read record numbers from the files of an indices mapping."""
    pieces = []
    for path in paths:
        with reading(path, "Arrow"):
            column = pa.ipc.open_stream(read(path)).read_all().column("indices")
            column.validate(full=True)
            pieces.append(column.to_numpy())
    order: Ints = np.concatenate(pieces).astype(np.int64)
    if len(order) and not 0 <= order.min() <= order.max() < num_rows:
        row = order.max() if order.max() >= num_rows else order.min()
        raise SourceError(
            f"{paths[0]}: names the record {row}, but the data has {num_rows} records; save the dataset again"
        )
    return order


def is_hf_iterable(place: Any) -> bool:
    return _kind(place) == "IterableDataset"


def pick_split(place: Any, split: str | None) -> Any:
    """Return one dataset out of a DatasetDict; anything else as it is."""
    if _kind(place) in _DICTS:
        return place[_choose(f"a {_kind(place)}", list(place), split)]
    if split is not None and str(place.split) != split:
        raise SourceError(
            f"split {split!r} asked for, but a {_kind(place)} is one split already; leave split out"
        )
    return place


def hf_iterable(place: Any, *, nulls: str = "deep") -> Callable[[], Iterator[Record]]:
    """Return a function that iterates an IterableDataset from its start, as plain Python values."""
    return partial(_iterate, place, check_nulls(nulls))


@dataclass(frozen=True, slots=True, kw_only=True)
class NullOptions:
    """The option of records in memory."""

    nulls: str = setting(
        "of Parquet, Arrow and datasets: deep removes the nulls that the schema added, keep leaves them",
        "deep",
    )

    def __post_init__(self) -> None:
        check_nulls(self.nulls)


@dataclass(frozen=True, slots=True, kw_only=True)
class HfIterableOptions(NullOptions):
    """The options of an IterableDataset."""

    version: str | int | None = setting(
        "for an iterable: with it and a name, what was read of it is kept and found again", None
    )

    def spool_version(self) -> str | int | None:
        """Return a version that also names what changes the spooled records."""
        if self.version is None or self.nulls == "deep":
            return self.version
        return f"{self.version} nulls=keep"


class _DatasetRows(FileRecords):
    """The records of a Dataset in memory."""

    def __init__(self, dataset: Any, nulls: str, identity: FileId) -> None:
        self.file = InMemory(identity)
        self.num_bytes = dataset.data.nbytes
        self._num_rows = len(dataset)
        self._is_custom = dataset.format["type"] == "custom"
        self._dataset = dataset
        if not self._is_custom:
            self._dataset = dataset.with_format("arrow", columns=dataset.format["columns"])
        self._nulls = nulls
        self._to_records: ToRecords | None = None

    def __len__(self) -> int:
        return self._num_rows

    def record(self, row: int) -> Record | BadRow:
        return next(self.records(row, row + 1))

    def records(self, first: int, last: int) -> Iterator[Record | BadRow]:
        for start in range(first, last, _ROWS):
            rows = self._dataset[start : min(start + _ROWS, last)]
            if self._is_custom:
                for cells in zip(*rows.values(), strict=True):
                    yield dict(zip(rows, cells, strict=True))
            else:
                for batch in rows.to_batches():
                    yield from self._converter(batch.schema)(batch)

    def removed_nulls(self, row: int) -> RemovedNulls:
        batches = () if self._is_custom else self._dataset[row : row + 1].to_batches()
        return sum(
            (self._converter(batch.schema).removed_nulls(batch) for batch in batches),
            start=RemovedNulls(),
        )

    def _converter(self, schema: pa.Schema) -> ToRecords:
        """Made of the first rows: only they show the format's schema."""
        if self._to_records is None:
            self._to_records = ToRecords(schema, parse_json=True, nulls=self._nulls)
        return self._to_records

    def borders(self, num_bytes: int) -> Ints:
        """Cut as if all records were selected: the size of a selection is not known."""
        rows_per_cut = max(1, self._dataset.data.num_rows * num_bytes // max(self.num_bytes, 1))
        return np.arange(0, self._num_rows, rows_per_cut, dtype=np.int64)


class _DatasetReader(FileReader):
    """Reads a Dataset in memory as if it were a file."""

    format = "datasets"

    def __init__(self, dataset: Any, options: NullOptions) -> None:
        self.options = options
        self._dataset = dataset
        self._nulls = options.nulls

    def open_rows(self, file: FileId) -> FileRecords:
        return _DatasetRows(self._dataset, self._nulls, file)

    def files_beside(self) -> list[FileId]:
        return [FileId(str(file["filename"]), 0, 0) for file in self._dataset.cache_files]

    def number_columns(self, files: Sequence[FileId]) -> dict[str, str]:
        return number_types(self._dataset.features.arrow_schema)


def open_dataset(
    dataset: Any, options: NullOptions, *, name: str | None = None, bad: BadRows | None = None
) -> RowsInMemory:
    """Open the records of a Dataset in memory: with its selections and shuffles, its renamed and formatted columns.

    Values are as in its folder (see `open_hf_folder`) whatever the format's type, but a function given to `set_transform` is applied.
    Pickles as the Dataset does: its files by name, tables in memory whole.
    """
    if _kind(dataset) != "Dataset":
        raise SourceError(
            f"a {type(dataset).__name__} has no records by number, expected a Dataset"
        )
    facts = (dataset.info.dataset_name, dataset.split)
    return RowsInMemory(
        _DatasetReader(dataset, options),
        name=name or "-".join(str(fact) for fact in facts if fact) or "dataset",
        num_bytes=dataset.data.nbytes,
        bad=bad,
        repr_name="HfDataset",
    )


def _iterate(dataset: Any, nulls: str) -> Iterator[Record]:
    plain = dataset.with_format(None)
    to_records = ToRecords(
        dataset.features.arrow_schema if dataset.features is not None else [], nulls=nulls
    )
    if dataset.features is not None:
        raw = {name: _undecoded(feature) for name, feature in dataset.features.items()}
        if raw != dict(dataset.features):
            plain = plain.cast(type(dataset.features)(raw))
    for record in plain:
        yield to_records.convert(dict(record))


def _undecoded(feature: Any) -> Any:
    """Return a feature whose images and sounds stay the bytes they are stored as; JSON becomes values."""
    if isinstance(feature, dict):
        return {name: _undecoded(inner) for name, inner in feature.items()}
    if hasattr(feature, "feature"):  # a list
        return replace(feature, feature=_undecoded(feature.feature))
    if getattr(feature, "decode", False) is True and type(feature).__name__ != "Json":
        return replace(feature, decode=False)
    return feature


def _kind(place: Any) -> str:
    """Return the class of `datasets` that this is or descends from, by name: importing it takes seconds."""
    for base in type(place).__mro__:
        if base.__module__.partition(".")[0] == "datasets" and base.__name__ in (
            "Dataset",
            "IterableDataset",
            *_DICTS,
        ):
            return base.__name__
    return ""
