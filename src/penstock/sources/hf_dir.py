"""What did `datasets` write into this folder?  Read without it: the folder's JSON names Arrow streams, and those we can read.

Two kinds of folders: what `save_to_disk` writes (`state.json` beside the data; `dataset_dict.json` above the splits), and
the cache of `load_dataset` (`dataset_info.json` beside `name-split-00000-of-00004.arrow`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.cache import Cache
from penstock.errors import SourceError
from penstock.files import natural, read
from penstock.sources.arrow import ArrowSource
from penstock.sources.bad import BadRows
from penstock.sources.chosen import Selection
from penstock.sources.columnar import COLUMNAR_OPTIONS, reading
from penstock.sources.folder import inside, read_json
from penstock.sources.view import Rows
from penstock.types import Ints

_DICT, _STATE, _INFO = "dataset_dict.json", "state.json", "dataset_info.json"
# What maps and shuffles leave in the same folder is called cache-….arrow.
_CACHED = re.compile(r"(?!cache-|tmp)(?P<name>.+?)-(?P<split>[^-]+)(?:-\d{5}-of-(?P<total>\d{5}))?\.arrow")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    files: list[str]
    columns: list[str] | None = None  # those that the data set was formatted to show
    indices: tuple[str, ...] = ()  # files that say which rows, in which order
    num_rows: int | None = None  # as the folder says


class _HfFiles(ArrowSource):
    """The Arrow streams of a folder.  Cells of the feature type `Json` are values, as they are for `datasets`."""

    shape = "hf"
    parse_json = True


class HfFolderSource(Rows):
    """A folder of `datasets`.  Values as stored: a class label is its number, an image {"bytes", "path"}."""

    shape = "hf"
    OPTIONS = ("split", *COLUMNAR_OPTIONS)

    def __init__(
        self,
        paths: Sequence[str],
        *,
        cache: Cache,
        name: str | None = None,
        bad: BadRows | None = None,
        split: str | None = None,
        columns: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        if len(paths) != 1:
            raise SourceError(f"{len(paths)} folders of datasets, expected one; join them with concat")
        folder = Path(paths[0])
        found = _find(folder, split)
        if columns is None:
            columns = found.columns
        files = _HfFiles(found.files, cache=cache, name=name or folder.name, bad=bad, columns=columns, **options)
        super().__init__(files)
        self._files = files
        self._indices = found.indices
        self._order: Ints | None = _order(found.indices, len(files)) if found.indices else None
        if found.num_rows is not None and found.num_rows != len(files):
            raise SourceError(
                f"{folder}: {len(files)} rows, but {_INFO} says {found.num_rows}; "
                f"a file is damaged or of another run: load the data set again"
            )

    @property
    def rows(self) -> range | Ints:
        if not self._indices:
            return range(len(self._files))
        if self._order is None:
            self._order = _order(self._indices, len(self._files))
        return self._order

    @property
    def num_bytes(self) -> int | None:
        return None if self._indices else self._files.num_bytes

    def stamp(self) -> Any:
        return None if self._indices else self._files.stamp()

    def cuts(self, *, num_bytes: int, num_rows: int) -> Ints:
        rows = self.rows
        chosen = self._files if isinstance(rows, range) else Selection(self._files, rows)
        return chosen.cuts(num_bytes=num_bytes, num_rows=num_rows)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_order": None}  # read again where it is needed

    def __repr__(self) -> str:
        files = "1 file" if len(self.files) == 1 else f"{len(self.files)} files"
        return f"HfFolderSource({self.name!r}, {len(self):_} rows, {files}, {self._files.num_bytes:_} bytes)"


def is_hf_folder(path: str) -> bool:
    """Whether `datasets` made this folder."""
    folder = Path(path)
    if (folder / _DICT).is_file():
        return True
    return (folder / _INFO).is_file() and ((folder / _STATE).is_file() or bool(_cached(folder)))


def _find(folder: Path, split: str | None) -> _Found:
    if (folder / _DICT).is_file():
        splits = _strings(read_json(folder / _DICT).get("splits"), folder / _DICT, "splits")
        chosen = _choose(folder, splits, split)
        inside(folder, f"{chosen}/{_STATE}", named_by=folder / _DICT)
        return _saved(folder / chosen, None)
    if (folder / _STATE).is_file():
        return _saved(folder, split)
    cached = _cached(folder)
    if not cached:
        raise SourceError(f"{folder}: no folder of datasets, expected {_DICT}, {_STATE} or {_INFO} beside .arrow files")
    return _from_cache(folder, cached, _choose(folder, sorted(cached, key=natural), split))


def _saved(folder: Path, split: str | None) -> _Found:
    """What Dataset.save_to_disk wrote."""
    state = read_json(folder / _STATE)
    if split is not None and split != state.get("_split"):
        found = f"only the split {state['_split']!r}" if state.get("_split") else "one data set without splits"
        raise SourceError(f"{folder}: split {split!r} asked for, but it holds {found}; leave split out")
    files = _names(state.get("_data_files"), folder)
    if not files:
        raise SourceError(f"{folder / _STATE}: names no data files, expected _data_files; save the data set again")
    # datasets before 2.0 kept a selection or shuffle as a list of row numbers beside all rows
    indices = _names(state.get("_indices_files") or state.get("_indices_data_files") or [], folder)
    columns = state.get("_format_columns")
    if columns is not None:
        columns = _strings(columns, folder / _STATE, "_format_columns")
    return _Found(
        files=files,
        columns=None if state.get("_output_all_columns") else columns or None,
        indices=tuple(indices),
    )


def _cached(folder: Path) -> dict[str, dict[str, int]]:
    """Splits in the cache of load_dataset → file names, and of how many files each is one."""
    splits: dict[str, dict[str, int]] = {}
    for path in sorted(folder.glob("*.arrow"), key=lambda path: natural(path.name)):
        if found := _CACHED.fullmatch(path.name):
            splits.setdefault(found["split"], {})[path.name] = int(found["total"] or 1)
    return splits


def _from_cache(folder: Path, cached: dict[str, dict[str, int]], split: str) -> _Found:
    names = cached[split]
    totals = set(names.values())
    if len(totals) != 1 or len(names) != (total := totals.pop()):
        raise SourceError(
            f"{folder}: split {split!r} has {len(names)} files of which the names speak of "
            f"{' and '.join(str(number) for number in sorted(set(names.values())))}; load the data set again"
        )
    splits = read_json(folder / _INFO).get("splits")
    info = splits.get(split) if isinstance(splits, dict) else None
    num_rows = info.get("num_examples") if isinstance(info, dict) else None
    files = [inside(folder, name, named_by=folder / _INFO) for name in names]
    assert len(files) == total
    return _Found(files=files, num_rows=num_rows if isinstance(num_rows, int) else None)


def _choose(folder: Path, splits: list[str], split: str | None) -> str:
    if split is None and len(splits) == 1:
        return splits[0]
    if split is None or split not in splits:
        asked = "none was chosen" if split is None else f"{split!r} is none of them"
        raise SourceError(
            f"{folder}: it holds the splits {', '.join(splits)} and {asked}; name one: {folder}:{splits[0]}, or split="
        )
    return split


def _names(entries: Any, folder: Path) -> list[str]:
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise SourceError(f"{folder / _STATE}: its lists of files are no lists of objects; save the data set again")
    return [inside(folder, entry.get("filename"), named_by=folder / _STATE) for entry in entries]


def _strings(found: Any, path: Path, key: str) -> list[str]:
    if not isinstance(found, list) or not found or not all(isinstance(name, str) for name in found):
        raise SourceError(f"{path}: {key} is {found!r}, expected a list of names; save the data set again")
    return found


def _order(paths: tuple[str, ...], num_rows: int) -> Ints:
    """Row numbers from the files of an indices mapping."""
    pieces = []
    for path in paths:
        with reading(path, "Arrow"):
            column = pa.ipc.open_stream(read(path)).read_all().column("indices")
            column.validate(full=True)
            pieces.append(column.to_numpy())
    order: Ints = np.concatenate(pieces).astype(np.int64)
    if len(order) and not 0 <= order.min() <= order.max() < num_rows:
        raise SourceError(
            f"{paths[0]}: names the row {order.max() if order.max() >= num_rows else order.min()}, "
            f"but the data has {num_rows} rows; save the data set again"
        )
    return order
