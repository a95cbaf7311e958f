"""Folders that litdata's `optimize` wrote: chunks that their `index.json` lists.

A record has the fields of an item that is a dict, or `field_0`, `field_1` … of a list; an item that is one array of ids is `input_ids`.
Nested items, pickled leaves, encrypted chunks, frames of zstd within a chunk and tables of Arrow are refused by name.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

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
from penstock.extras.formats.mds import INDEX, listed
from penstock.extras.formats.tokens import TokenLayout, TokenRows
from penstock.places.files import find, inside, open_file, read_json
from penstock.places.place import File, FileId
from penstock.settings import setting
from penstock.sources.compressed import unpacked
from penstock.sources.files import Files
from penstock.sources.index import mapped
from penstock.sources.opener import Opener, OpenRequest, open_files
from penstock.sources.rows import FileReader, FileRecords
from penstock.types import Ints

# Types by their numbers in data_format; those of numpy behind 10 depend on the platform that wrote them.
_TORCH = {
    1: "f4",
    3: "f8",
    9: "f2",
    11: "u1",
    12: "i1",
    13: "i2",
    14: "i2",
    15: "i4",
    16: "i4",
    17: "i8",
    18: "i8",
    19: "?",
    20: "u2",
}
_NUMPY = {
    0: "i1",
    1: "i2",
    2: "i4",
    3: "i8",
    4: "u1",
    5: "u2",
    6: "u4",
    7: "u8",
    8: "f2",
    9: "f4",
    10: "f8",
}
_CONTAINERS = ("builtins.dict", "collections.OrderedDict", "builtins.list", "builtins.tuple")
_FOOTER = b"LDARW01\0"


def is_litdata_folder(path: str) -> bool:
    """Return whether the index.json here lists chunks of litdata."""
    return listed(path, "chunks")


def _kind(types: dict[int, str], code: int) -> str:
    if code not in types:
        raise ValueError(f"its type is {code}, expected one of {', '.join(map(str, types))}")
    return f"<{types[code]}"


def _headed(raw: bytes, types: dict[int, str]) -> Any:
    """An array behind its type, its number of axes and its shape, which newer versions of litdata write big-endian for tensors."""
    order = (
        ">u4" if raw[:3] == b"\0\0\0" and raw[3:4] != b"\0" else "<u4"
    )  # 0 is the type int8 of an array
    if len(raw) < 8:
        raise ValueError(f"{len(raw)} bytes, expected a type and a shape")
    code, axes = np.frombuffer(raw, order, 2).tolist()
    shape = array(raw[8 : 8 + 4 * axes], order, (axes,)).tolist()
    return array(raw[8 + 4 * axes :], _kind(types, code), shape)


def _bool(raw: bytes) -> bool:
    if raw not in (b"\0", b"\1"):
        raise ValueError(f"found {raw[:4]!r}, expected one byte, 0 or 1")
    return raw == b"\1"


_DECODERS: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("str", "text"), partial(str, encoding="utf-8")),
    "int": scalar("<i8"),
    "float": scalar("<f8"),
    "bool": _bool,
    "bytes": bytes,
    "numpy": partial(_headed, types=_NUMPY),
    "tensor": partial(_headed, types=_TORCH),
    "pil": raw_image,
    **dict.fromkeys(("jpeg", "image", "tifffile", "file", "video", "audio"), image),
    "jpeg_array": partial(several, first=0, decode=image),
}


def _decoder(data_format: str, where: str) -> Callable[[bytes], Any]:
    name, _, detail = data_format.partition(":")
    if name in ("no_header_tensor", "no_header_numpy") and detail.isdigit():
        try:
            return partial(
                array, kind=_kind(_TORCH if name == "no_header_tensor" else _NUMPY, int(detail))
            )
        except ValueError as error:
            raise SourceError(f"{where} is {data_format}: {error}") from error
    if name == "pickle" or name == "graph":
        raise SourceError(
            f"{where} is pickled ({name}): reading it runs code; optimize the data again with plain values"
        )
    if name not in _DECODERS:
        raise SourceError(
            f"{where} is {data_format!r}, expected one of {', '.join(_DECODERS)}, no_header_tensor"
        )
    return _DECODERS[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class LitdataOptions:
    """A folder of litdata chunks."""

    max_expansion: int = setting("how many times larger a compressed chunk may get", 1000)


class LitdataReader(FileReader):
    """Opens the chunks that an index lists."""

    format = "litdata"

    def __init__(self, folder: Path, options: LitdataOptions, cache: Cache) -> None:
        self.options: LitdataOptions = options
        self._cache = cache
        self._index = folder / INDEX
        index = read_json(self._index)
        config = index.get("config")
        if not isinstance(config, dict):
            raise SourceError(f"{self._index}: config is {str(config)[:50]}, expected a mapping")
        self._is_tokens, self._packing = self._read_config(config)
        self._names, self._formats = self._read_fields(config)
        self.sizes = self._read_chunks(folder, index.get("chunks"))

    def _read_config(self, config: dict[str, Any]) -> tuple[bool, str | None]:
        for key in ("encryption", "ipc_compression"):
            if config.get(key):
                raise SourceError(
                    f"{self._index}: {key} is {str(config[key])[:50]}, which cannot be read; optimize without"
                )
        packing = config.get("compression")
        level = config.get("compression_level")
        if level not in (None, "chunk"):
            why = "optimize with compression_level='chunk', or without compression"
            raise SourceError(
                f"{self._index}: compression_level is {level!r}, expected whole chunks; {why}"
            )
        loader = config.get("item_loader", "PyTreeLoader")
        if loader not in ("PyTreeLoader", "TokensLoader"):
            raise SourceError(
                f"{self._index}: item_loader is {loader!r}, expected PyTreeLoader or TokensLoader"
            )
        return loader == "TokensLoader", None if packing is None else str(packing).partition(":")[0]

    def _read_fields(self, config: dict[str, Any]) -> tuple[list[str], list[str]]:
        """Return the names and formats of an item's leaves."""
        formats = config.get("data_format")
        spec = config.get("data_spec")
        try:
            _, root = json.loads(spec or "")
            kind = root["type"]
            children = root["children_spec"]
            names = json.loads(root["context"]) if kind in _CONTAINERS[:2] else None
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise SourceError(
                f"{self._index}: data_spec is {str(spec)[:80]}, expected a tree of items"
            ) from error
        is_flat = isinstance(children, list) and all(
            isinstance(c, dict) and c.get("type") is None for c in children
        )
        if (kind is not None and kind not in _CONTAINERS) or not is_flat:
            raise SourceError(
                f"{self._index}: items are nested ({str(spec)[:80]}…), expected flat dicts or lists of values"
            )
        if names is None:
            names = [f"field_{number}" for number in range(len(children))] if kind else [""]
        if (
            not isinstance(formats, list)
            or not all(isinstance(each, str) for each in (*formats, *names))
            or not len(names) == len(set(names)) == len(formats)
        ):
            raise SourceError(
                f"{self._index}: data_format is {str(formats)[:80]}, expected one for each of {names}"
            )
        if not kind:
            is_ids = formats[0].startswith("no_header_")
            names = ["input_ids" if is_ids else "field_0"]
        if self._is_tokens and (kind or not is_ids):
            raise SourceError(
                f"{self._index}: item_loader is TokensLoader, but items are {formats}, expected one array of ids"
            )
        return names, formats

    def _read_chunks(self, folder: Path, chunks: Any) -> dict[str, int]:
        sizes: dict[str, int] = {}
        if not isinstance(chunks, list) or not chunks:
            raise SourceError(
                f"{self._index}: chunks is {str(chunks)[:50]}, expected a list of at least one chunk"
            )
        for listed_chunk in chunks:
            chunk: Any = listed_chunk if isinstance(listed_chunk, dict) else {}
            size = chunk.get("chunk_size")
            if type(size) is not int or not 0 <= size < 1 << 32:
                raise SourceError(
                    f"{self._index}: a chunk is {str(listed_chunk)[:80]}, expected filename and chunk_size"
                )
            path = inside(folder, chunk.get("filename"), named_by=self._index)
            if path in sizes:
                raise SourceError(
                    f"{self._index}: lists {chunk['filename']!r} twice; optimize the data again"
                )
            sizes[path] = size
        if extra := [path for path in find(folder) if path.endswith(".bin") and path not in sizes]:
            raise SourceError(
                f"{extra[0]}: not listed in {self._index}; merge the indexes, or remove the file"
            )
        return sizes

    def _fields(self) -> list[Field]:
        return [
            Field(name, kind, _decoder(kind, f"{self._index}: the leaf {name!r}"))
            for name, kind in zip(self._names, self._formats, strict=True)
        ]

    def counts(self, files: Sequence[FileId]) -> list[int]:
        """Return the counts of the index; each chunk is compared with them when it is first read."""
        return [self.sizes[file.path] for file in files]

    def open_rows(self, file: FileId) -> FileRecords:
        opened: File = open_file(file)
        if self._packing:
            opened = unpacked(
                file,
                self._cache,
                max_expansion=self.options.max_expansion,
                packing=self._packing,
            )
        size = opened.identity.size
        if size >= 8 and opened.read(size - 8, size) == _FOOTER:
            raise SourceError(
                f"{file.path}: rows are a table of Arrow, which cannot be read; optimize items of plain values"
            )
        starts = read_starts(opened, self.sizes[file.path], listed_in=str(self._index))
        if self._is_tokens:
            return self._tokens(opened, starts)
        return BinaryRows(opened, self._fields(), starts)

    def _tokens(self, file: File, starts: Ints) -> FileRecords:
        """Chunks of TokensLoader: ids of all items back to back."""
        name, _, code = self._formats[0].partition(":")
        kind = np.dtype(_kind(_TORCH if name == "no_header_tensor" else _NUMPY, int(code)))
        edges, rest = np.divmod(starts - starts[0], kind.itemsize)
        if rest.any():
            row = int(rest.argmax())
            where = f"{file.identity.path}: item {row} begins at byte {starts[row]} (byte {4 * (row + 1)})"
            raise SourceError(f"{where}, inside an id of {kind.itemsize} bytes; make it again")
        count = int(edges[-1])
        first = int(starts[0])
        ids = (
            np.frombuffer(mapped(file, self._cache), kind, count, first)
            if count
            else np.zeros(0, kind)
        )
        return TokenRows(
            file, TokenLayout(ids, len(starts) - 1, edges.__getitem__, first_byte=first)
        )


def open_litdata(request: OpenRequest) -> Files:
    """Open a folder of litdata chunks."""
    reader = LitdataReader(request.folder("litdata chunks"), request.options, request.cache)
    source = open_files(request.of_folder(list(reader.sizes)), reader)
    source.open_first_file()
    return source


LITDATA = Opener(LitdataOptions, open_litdata)
