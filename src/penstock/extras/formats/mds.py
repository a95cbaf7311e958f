"""MDS, the format of mosaicml-streaming: a folder with shards that its `index.json` lists.

Every encoding is read but `pkl`, which would run code.  Images stay in their own format; raw pixels (`pil`) become PNM.  A compressed
shard is unpacked into the cache once.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from penstock.cache import Cache
from penstock.errors import SourceError
from penstock.extras.formats.binary_rows import (
    BinaryRows,
    Field,
    array,
    image,
    raw_image,
    read_starts,
    scalar,
    several,
)
from penstock.places.files import find, inside, is_file, open_file, read_json
from penstock.places.place import File, FileId
from penstock.settings import setting
from penstock.sources.compressed import unpacked
from penstock.sources.files import Files
from penstock.sources.opener import Opener, OpenRequest, open_files
from penstock.sources.rows import FileReader, FileRecords

INDEX = "index.json"
_SUFFIXES = (".mds", ".mds.gz", ".mds.zstd", ".mds.bz2", ".mds.br", ".mds.snappy")
_TYPES = [
    (name, bits, code)
    for code, name in enumerate(("uint", "int", "float"))
    for bits in (8, 16, 32, 64)
]
_TYPES.remove(("float", 8, 2))
_KINDS = {bits + code: f"<{name[0]}{bits // 8}" for name, bits, code in _TYPES}
_NAMES = {f"{name}{bits}": f"<{name[0]}{bits // 8}" for name, bits, _ in _TYPES}
_NDARRAY = re.compile(rf"ndarray(?::({'|'.join(_NAMES)})(?::(\d+(?:,\d+)*))?)?")


def is_mds_folder(path: str) -> bool:
    """Return whether the index.json here lists MDS shards."""
    return listed(path, "shards")


def listed(path: str, key: str) -> bool:
    """Return whether the index.json of a folder has a list of this name."""
    try:
        return isinstance(read_json(Path(path) / INDEX).get(key), list)
    except SourceError:
        return False


def _ndarray(raw: bytes, kind: str | None, shape: tuple[int, ...] | None) -> Any:
    at = 0
    if kind is None:
        if raw[:1] == b"" or raw[0] not in _KINDS:
            raise ValueError(
                f"its type is {raw[:1]!r}, expected one of {', '.join(map(str, _KINDS))}"
            )
        kind = _KINDS[raw[0]]
        at = 1
    if shape is None:
        if len(raw) <= at:
            raise ValueError(f"ends at byte {len(raw)}, before its shape")
        axes = raw[at] >> 2
        size = 1 << raw[at] % 4
        edges = raw[at + 1 : at + 1 + axes * size]
        shape = tuple(array(edges, f"<u{size}", (axes,)).tolist())
        at += 1 + axes * size
    return array(raw[at:], kind, shape)


_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "bytes": bytes,
    "str": partial(str, encoding="utf-8"),
    "int": scalar("<i8"),
    **{name: scalar(kind) for name, kind in _NAMES.items()},
    "str_int": lambda raw: int(raw.decode()),
    "str_float": lambda raw: float(raw.decode()),
    "str_decimal": lambda raw: Decimal(raw.decode()),
    "json": json.loads,
    "pil": raw_image,
    "jpeg": image,
    "png": image,
    "jpeg_array": partial(several, first=0, decode=image),
    "jpegarray": partial(several, first=0, decode=image),
    "list[pil]": partial(several, first=4, decode=raw_image),
    "list[jpeg]": partial(several, first=4, decode=image),
    "list[png]": partial(several, first=4, decode=image),
}


def _decoder(encoding: str, where: str) -> Callable[[bytes], Any]:
    if encoding in _DECODERS:
        return _DECODERS[encoding]
    if found := _NDARRAY.fullmatch(encoding):
        shape = tuple(map(int, found[2].split(","))) if found[2] else None
        return partial(_ndarray, kind=_NAMES.get(found[1]), shape=shape)
    if encoding == "pkl":
        raise SourceError(
            f"{where} is pickled (pkl): reading it runs code; write the dataset again with json or ndarray"
        )
    raise SourceError(
        f"{where} has the unknown encoding {encoding!r}, expected one of {', '.join(_DECODERS)}, ndarray"
    )


class _Shard(NamedTuple):
    """What the index says about a shard."""

    samples: int
    num_bytes: Any  # unpacked
    packing: str | None
    columns: tuple[tuple[str, str, int | None], ...]  # name, encoding, fixed size


@dataclass(frozen=True, slots=True, kw_only=True)
class MdsOptions:
    """A folder of MDS shards."""

    arrays: Mapping[str, str] | None = setting(
        "of MDS: types of the columns with the encoding bytes that hold arrays, such as {tokens: int64}",
        None,
    )
    max_expansion: int = setting("how many times larger a compressed shard may get", 1000)

    def __post_init__(self) -> None:
        if self.arrays is not None and not isinstance(self.arrays, dict):
            raise SourceError(
                f"arrays is {self.arrays!r}, expected a mapping such as {{tokens: int64}}"
            )


class MdsReader(FileReader):
    """Opens the shards that an index lists."""

    format = "mds"

    def __init__(self, folder: Path, options: MdsOptions, cache: Cache) -> None:
        self.options: MdsOptions = options
        self.shards = _listed_shards(folder)
        self._index = str(folder / INDEX)
        self._cache = cache
        self._check_arrays()
        for columns in {shard.columns for shard in self.shards.values()}:
            self._fields(columns)  # raises now what their shards would raise later

    def _check_arrays(self) -> None:
        columns = {name for shard in self.shards.values() for name, _, _ in shard.columns}
        for column, kind in (self.options.arrays or {}).items():
            if kind not in list(_NAMES) or column not in columns:
                raise SourceError(
                    f"arrays has {column}: {kind}, expected one of the columns {', '.join(sorted(columns))} "
                    f"and a type such as int64"
                )

    def counts(self, files: Sequence[FileId]) -> list[int]:
        """Return the counts of the index; each shard is compared with them when it is first read."""
        return [self.shards[file.path].samples for file in files]

    def open_rows(self, file: FileId) -> FileRecords:
        shard = self.shards[file.path]
        opened: File = open_file(file)
        if shard.packing:
            opened = unpacked(
                file,
                self._cache,
                max_expansion=self.options.max_expansion,
                packing=shard.packing,
            )
        if opened.identity.size != shard.num_bytes:
            size = f"{opened.identity.size} bytes{' unpacked' if shard.packing else ''}"
            raise SourceError(
                f"{file.path}: {size}, but {self._index} says {shard.num_bytes}; copy it again"
            )
        starts = read_starts(opened, shard.samples, listed_in=self._index)
        return BinaryRows(opened, self._fields(shard.columns), starts)

    def _fields(self, columns: tuple[tuple[str, str, int | None], ...]) -> list[Field]:
        made = []
        for name, encoding, size in columns:
            decode = _decoder(encoding, f"{self._index}: the column {name!r}")
            kind = (self.options.arrays or {}).get(name)
            if kind and encoding != "bytes":
                raise SourceError(
                    f"{self._index}: arrays has {name}: {kind}, but the column is {encoding}, not bytes"
                )
            decode = partial(array, kind=_NAMES[kind]) if kind else decode
            made.append(Field(name, f"{encoding} {kind or ''}", decode, size))
        return made


def open_mds(request: OpenRequest) -> Files:
    """Open a folder of MDS shards."""
    folder = request.folder("MDS shards")
    reader = MdsReader(folder, request.options, request.cache)
    listed_names = {path.partition(".mds")[0] for path in reader.shards}
    for path in find(folder):
        if path.endswith(_SUFFIXES) and path.partition(".mds")[0] not in listed_names:
            raise SourceError(
                f"{path}: not listed in {folder / INDEX}; merge the indexes, or remove the file"
            )
    source = open_files(request.of_folder(list(reader.shards)), reader)
    source.open_first_file()
    return source


MDS = Opener(MdsOptions, open_mds)


def _listed_shards(folder: Path) -> dict[str, _Shard]:
    """Return the shards that an index.json lists, by path; it must agree with itself and with the folder."""
    path = folder / INDEX
    index = read_json(path)
    shards = index.get("shards")
    if index.get("version") != 2 or not isinstance(shards, list) or not shards:
        said = f"version {index.get('version')!r} with {len(shards) if isinstance(shards, list) else 'no'} shards"
        raise SourceError(f"{path}: {said}, expected version 2 and a list of at least one shard")
    found: dict[str, _Shard] = {}
    kept: dict[Any, Any] = {}  # shards with the same columns share them
    for entry in shards:
        if not _is_entry(entry):
            expected = "one of format mds, version 2, with its columns"
            raise SourceError(f"{path}: a shard is {str(entry)[:200]}, expected {expected}")
        columns = tuple(
            zip(
                entry["column_names"], entry["column_encodings"], entry["column_sizes"], strict=True
            )
        )
        raw = entry["raw_data"]
        packed = entry.get("zip_data")
        is_packed = isinstance(packed, dict) and not is_file(folder / str(raw.get("basename")))
        packing = str(entry.get("compression")).partition(":")[0] if is_packed else None
        shard = inside(folder, (packed if is_packed else raw).get("basename"), named_by=path)
        if shard in found:
            raise SourceError(f"{path}: lists {shard} twice; make the folder again")
        found[shard] = _Shard(
            entry["samples"], raw.get("bytes"), packing, kept.setdefault(columns, columns)
        )
    return found


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or (entry.get("format"), entry.get("version")) != ("mds", 2):
        return False
    lists: list[Any] = [entry.get(f"column_{part}") for part in ("names", "encodings", "sizes")]
    if not all(isinstance(each, list) for each in lists) or not isinstance(
        entry.get("raw_data"), dict
    ):
        return False
    names, encodings, sizes = lists
    return (
        all(isinstance(each, str) for each in (*names, *encodings))
        and len(names) == len(encodings) == len(sizes) == len(set(names))
        and all(each is None or (type(each) is int and each >= 0) for each in sizes)
        and type(entry.get("samples")) is int
        and 0 <= entry["samples"] < 1 << 32
    )
