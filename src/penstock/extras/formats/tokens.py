"""Files of token ids: one array of ids, and where samples begin in it.  Ids are memory-mapped; a record is `{"input_ids": array}`.

| format | ids | where samples begin |
|---|---|---|
| Megatron `x.bin` | as `x.idx` says | `x.idx`: a header of 34 bytes; lengths i32, first bytes i64, first sequences of documents i64 |
| datatrove `x.ds` | u16 or u32 | `x.ds.index`: u64 ends; `x.ds.loss`, if there is one, is the loss mask, a byte for each id |
| llm.c `x.bin` | u16 or u32 behind 256 i32: magic, version, number of ids | at or behind each end-of-text id |
| nanoGPT `x.bin`, OLMo `x.npy` | raw | at or behind each end-of-text id, or in `x.csv.gz` |

All numbers are little-endian.  A file whose index does not cover each of its bytes exactly once is refused as a whole.
"""

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from penstock.cache import Cache
from penstock.errors import SourceChanged, SourceError
from penstock.fingerprint import Digest
from penstock.places.files import identify, is_file, open_file
from penstock.places.place import File, FileId
from penstock.settings import setting
from penstock.sources.compressed import unpacked
from penstock.sources.files import Files
from penstock.sources.index import WORD, known_of, mapped
from penstock.sources.opener import NoOptions, Opener, OpenRequest, open_files
from penstock.sources.rows import FileReader, FileRecords
from penstock.types import BadRow, Ints, Record
from penstock.words import did_you_mean

Array = npt.NDArray[Any]

_INDEX_HEADER = struct.Struct("<9sQBQQ")
_INDEX_MAGIC = b"MMIDIDX\x00\x00"
_INDEX_TYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_HEADERS = {20240520: (1, "<u2"), 20240801: (7, "<u4")}  # magic: version, type of ids
_TYPES = {"uint8": "<u1", "uint16": "<u2", "uint32": "<u4", "int32": "<i4", "int64": "<i8"}
_NUMPY = b"\x93NUMPY"
_AT_ONCE = 1 << 20  # rows or ids looked at together
_ROWS_AT_ONCE = 4096
_MAX_EXPANSION = 1000  # of .csv.gz: rows of numbers get small
_SCAN = "tokens 1"  # raise the number when borders are found in another way


@dataclass(frozen=True, slots=True)
class TokenLayout:
    """Where the samples of a file are.  `edges(rows)`: how many ids are before these rows; for `num_rows`, all of them."""

    ids: Array
    num_rows: int
    edges: Callable[[Any], Any]
    first_byte: int = 0
    mask: Array | None = None
    beside: tuple[File, ...] = ()  # mapped, too


class TokenRows(FileRecords):
    """One file of ids."""

    def __init__(self, file: File, layout: TokenLayout) -> None:
        self.file = file
        self._layout = layout
        self.num_bytes = layout.ids.nbytes

    def __len__(self) -> int:
        return self._layout.num_rows

    def record(self, row: int) -> Record | BadRow:
        return next(self.records(row, row + 1))

    def records(self, first: int, last: int) -> Iterator[Record | BadRow]:
        for start, stop in self._spans(first, last):
            record = {"input_ids": self._layout.ids[start:stop].copy()}
            if self._layout.mask is not None:
                record["loss_mask"] = self._layout.mask[start:stop].copy()
            yield record

    def add_digest(self, content: Digest, first: int, last: int) -> None:
        """Add the type and the bytes of each row."""
        kind = self._layout.ids.dtype.str.encode()
        arrays = [each for each in (self._layout.ids, self._layout.mask) if each is not None]
        for start, stop in self._spans(first, last):
            content.update(kind)
            for each in arrays:
                content.update(each[start:stop].view(np.uint8).data)

    def locate(self, row: int) -> tuple[int, int]:
        return row + 1, self._layout.first_byte + int(
            self._layout.edges(row)
        ) * self._layout.ids.itemsize

    def borders(self, num_bytes: int) -> Ints:
        """Cut at rows, every `num_bytes`."""
        size = self._layout.ids.itemsize
        steps = range(0, self.num_bytes // size, max(1, num_bytes // size))
        return np.array(
            [bisect_left(range(len(self)), at, key=self._layout.edges) for at in steps],
            np.int64,
        )

    def _spans(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        for begin in range(first, last, _ROWS_AT_ONCE):
            for file in (self.file, *self._layout.beside):
                file.check()  # reading a page behind the end of a truncated file kills the process
            edges = self._layout.edges(
                np.arange(begin, min(begin + _ROWS_AT_ONCE, last) + 1)
            ).tolist()
            yield from pairwise(edges)


class Companions:
    """The files next to files of ids, and how numbers in any of them are mapped."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        # None: it was not there when the source was opened, and must not come
        self._beside: dict[str, FileId | None] = {}

    def files(self) -> list[FileId]:
        return [file for file in self._beside.values() if file is not None]

    def open_beside(self, path: str, expected: str = "") -> File | None:
        """Open another file that belongs to one; it must stay as it is, too.  None if it may be missing (nothing expected) and is."""
        is_there = is_file(path)
        if expected and not is_there:
            raise SourceError(f"{path}: nothing found, expected {expected}; copy it here")
        known = self._beside.setdefault(path, identify(path) if is_there else None)
        if known is None and is_there:
            raise SourceChanged(
                f"{path}: was not there when the source was opened; open the source again"
            )
        return None if known is None else open_file(known)

    def array(self, file: File, kind: str, count: int | None = None, first_byte: int = 0) -> Array:
        """Map numbers of a file."""
        size = np.dtype(kind).itemsize
        num_bytes = file.identity.size - first_byte
        if count is None and num_bytes % size:
            raise SourceError(
                f"{file.identity.path}: {num_bytes} bytes from byte {first_byte} on are not a whole number of "
                f"{np.dtype(kind).name} values; the file is cut off, or has another type"
            )
        count = num_bytes // size if count is None else count
        return (
            np.frombuffer(mapped(file, self.cache), kind, count, first_byte)
            if count
            else np.zeros(0, kind)
        )


class HasLayout(Protocol):
    """A format of files of ids: it finds the samples of a file."""

    def layout(self, file: File) -> TokenLayout: ...


class TokensReader(FileReader):
    """Opens files of ids."""

    def __init__(
        self, format: str, options: object, companions: Companions, layouts: HasLayout
    ) -> None:
        self.format = format
        self.options = options
        self._companions = companions
        self._layouts = layouts

    def open_rows(self, file: FileId) -> FileRecords:
        opened = open_file(file)
        return TokenRows(opened, self._layouts.layout(opened))

    def files_beside(self) -> list[FileId]:
        return self._companions.files()


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronOptions:
    """`.bin` and `.idx` of Megatron, named by either."""

    sample: str | None = setting(
        "of Megatron: a record is one sequence, or one document; needed where documents have several sequences",
        None,
    )

    def __post_init__(self) -> None:
        if self.sample not in (None, "sequence", "document"):
            hint = did_you_mean(str(self.sample), ("sequence", "document"))
            raise SourceError(f"sample is {self.sample!r}, expected sequence or document{hint}")


class Megatron:
    """Finds the samples of files of Megatron."""

    def __init__(self, options: MegatronOptions, companions: Companions) -> None:
        self._sample = options.sample
        self._companions = companions

    def layout(self, file: File) -> TokenLayout:
        path = f"{file.identity.path[:-4]}.idx"
        index = self._companions.open_beside(path, "the index of a Megatron dataset")
        assert index is not None
        kind, num_sequences, num_edges = _megatron_header(index)
        at = [_INDEX_HEADER.size + num_sequences * size for size in (0, 4, 12)]
        lengths, starts, documents = (
            self._companions.array(index, each, count, first)
            for each, count, first in zip(
                ("<i4", "<i8", "<i8"), (num_sequences,) * 2 + (num_edges,), at, strict=True
            )
        )
        _check_sequences(path, lengths, starts, np.dtype(kind).itemsize, file.identity)
        _check_rising(
            path, documents, num_sequences, first_byte=at[2], what="a document begins at sequence"
        )
        if not num_edges or (documents[0], documents[-1]) != (0, num_sequences):
            raise SourceError(
                f"{path}: documents begin at sequences {documents[:3].tolist()}… (byte {at[2]}), expected 0 first and "
                f"{num_sequences} last; make it again"
            )
        ids = self._companions.array(file, kind)
        if self._sample is None and not np.array_equal(documents, np.arange(num_sequences + 1)):
            raise SourceError(
                f"{path}: {num_sequences} sequences in {num_edges - 1} documents; "
                f"say what a sample is with the option sample: sequence or document"
            )

        def edges(rows: Any) -> Any:
            if not num_sequences:
                return np.zeros_like(rows)
            return np.where(
                rows < num_sequences,
                starts[np.minimum(rows, num_sequences - 1)] // ids.itemsize,
                ids.size,
            )

        if self._sample == "document":
            return TokenLayout(
                ids, num_edges - 1, lambda rows: edges(documents[rows]), beside=(index,)
            )
        return TokenLayout(ids, num_sequences, edges, beside=(index,))


def open_megatron(request: OpenRequest) -> Files:
    """Open files of Megatron as one source."""
    for path in request.paths:
        if path[-4:] not in (".bin", ".idx"):
            raise SourceError(f"{path}: expected the .bin or the .idx of a Megatron dataset")
    data_files = list(dict.fromkeys(f"{path[:-4]}.bin" for path in request.paths))
    companions = Companions(request.cache)
    layouts = Megatron(request.options, companions)
    reader = TokensReader("megatron", request.options, companions, layouts)
    return open_files(replace(request, paths=data_files), reader)


MEGATRON = Opener(MegatronOptions, open_megatron)


def _megatron_header(index: File) -> tuple[str, int, int]:
    """Return the type of ids, the number of sequences, and that of documents + 1."""
    path = index.identity.path
    size = index.identity.size
    raw = index.read(0, min(size, _INDEX_HEADER.size))
    if not raw.startswith(_INDEX_MAGIC):
        raise SourceError(
            f"{path}: begins with {raw[:9]!r}, expected {_INDEX_MAGIC!r}; not an index of Megatron"
        )
    if len(raw) < _INDEX_HEADER.size:
        raise SourceError(f"{path}: ends at byte {size}, inside its header; make or copy it again")
    _, version, code, num_sequences, num_edges = _INDEX_HEADER.unpack(raw)
    if version != 1:
        raise SourceError(f"{path}: byte 9 says version {version}, expected 1")
    if code not in _INDEX_TYPES:
        known = ", ".join(map(str, _INDEX_TYPES))
        raise SourceError(
            f"{path}: byte 17 says type {code} of ids, expected a whole number ({known})"
        )
    expected = _INDEX_HEADER.size + 12 * num_sequences + 8 * num_edges
    if num_sequences and size == expected + num_sequences:
        raise SourceError(
            f"{path}: a multimodal index with the mode of each sequence; only plain tokens can be read"
        )
    if size != expected:
        counts = f"{num_sequences} sequences and {num_edges} edges of documents (bytes 18 and 26)"
        raise SourceError(
            f"{path}: {size} bytes, but {counts} need {expected}; make or copy it again"
        )
    return _INDEX_TYPES[code], num_sequences, num_edges


def _check_sequences(path: str, lengths: Array, starts: Array, itemsize: int, ids: FileId) -> None:
    """Refuse sequences that are not back to back, from the first to the last byte of the ids."""
    at = 0
    for begin in range(0, len(lengths), _AT_ONCE):
        some = lengths[begin : begin + _AT_ONCE].astype(np.int64)
        if (some < 0).any():
            row = begin + int((some < 0).argmax())
            byte = _INDEX_HEADER.size + 4 * row
            raise SourceError(
                f"{path}: sequence {row} has {lengths[row]} ids (byte {byte}), expected 0 or more"
            )
        ends = at + np.cumsum(some) * itemsize
        wrong = starts[begin : begin + _AT_ONCE] != np.concatenate([[at], ends[:-1]])
        if wrong.any():
            row = begin + int(wrong.argmax())
            byte = _INDEX_HEADER.size + 4 * len(lengths) + 8 * row
            expected = at if row == begin else int(ends[row - begin - 1])
            raise SourceError(
                f"{path}: sequence {row} begins at byte {starts[row]} of {ids.path} (byte {byte}), expected {expected}: "
                f"sequences must be back to back; make the dataset again"
            )
        at = int(ends[-1])
    if at != ids.size:
        raise SourceError(
            f"{ids.path}: {ids.size} bytes, but {path} describes {at}; make or copy both again"
        )


def _check_rising(path: str, edges: Array, last: int, *, first_byte: int, what: str) -> None:
    """Refuse edges that go back, or beyond the last one."""
    for begin in range(0, len(edges), _AT_ONCE):
        some = edges[max(begin - 1, 0) : begin + _AT_ONCE]
        wrong = (some < np.maximum.accumulate(some)) | (some < 0) | (some > last)
        if wrong.any():
            row = max(begin - 1, 0) + int(wrong.argmax())
            found = f"{what} {edges[row]} (byte {first_byte + 8 * row})"
            raise SourceError(
                f"{path}: {found}, expected numbers that rise from 0 to {last}; make it again"
            )


class Datatrove:
    """`.ds` of datatrove, with `.ds.index` and, if it is there, `.ds.loss` next to it."""

    def __init__(self, companions: Companions) -> None:
        self._companions = companions

    def layout(self, file: File) -> TokenLayout:
        path = file.identity.path
        size = file.identity.size
        index = self._companions.open_beside(
            f"{path}.index", "the ends of documents, which datatrove writes"
        )
        assert index is not None
        ends = self._companions.array(index, "<u8")
        num_ids = int(ends[-1]) if len(ends) else 0
        kind = {2 * num_ids: "<u2", 4 * num_ids: "<u4"}.get(size)
        if kind is None:
            raise SourceError(
                f"{path}: {size} bytes, but {index.identity.path} ends at id {num_ids} (byte {8 * len(ends) - 8}), "
                f"expected 2 or 4 bytes for each id; make or copy both again"
            )
        _check_rising(
            index.identity.path, ends, num_ids, first_byte=0, what="a document ends at id"
        )
        loss = self._companions.open_beside(f"{path}.loss")
        mask = None if loss is None else self._mask(loss, num_ids)

        def edges(rows: Any) -> Any:  # the first document begins at 0
            return (
                np.where(rows > 0, ends[np.maximum(rows, 1) - 1], 0).astype(np.int64)
                if num_ids
                else rows * 0
            )

        beside = (index,) if loss is None else (index, loss)
        return TokenLayout(
            self._companions.array(file, kind), len(ends), edges, mask=mask, beside=beside
        )

    def _mask(self, loss: File, num_ids: int) -> Array:
        mask = self._companions.array(loss, "<u1")
        if mask.size != num_ids:
            raise SourceError(
                f"{loss.identity.path}: {mask.size} bytes for {num_ids} ids, expected one each"
            )
        for begin in range(0, num_ids, _AT_ONCE):
            if (wrong := mask[begin : begin + _AT_ONCE] > 1).any():
                byte = begin + int(wrong.argmax())
                raise SourceError(
                    f"{loss.identity.path}: byte {byte} is {mask[byte]}, expected 0 or 1"
                )
        return mask.view(np.bool_)


def open_datatrove(request: OpenRequest) -> Files:
    """Open files of datatrove as one source."""
    companions = Companions(request.cache)
    reader = TokensReader("datatrove", request.options, companions, Datatrove(companions))
    return open_files(request, reader)


DATATROVE = Opener(NoOptions, open_datatrove)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBinOptions:
    """Raw ids, as nanoGPT, llm.c, modded-nanogpt and OLMo write them."""

    dtype: str | None = setting("for raw tokens: the type of the ids, if no header says it", None)
    eot: int | None = setting("for raw tokens: the id of the end-of-text token", None)
    eot_at: str | None = setting(
        "for raw tokens: whether a text has it at its end or start, as llm.c writes it", None
    )

    def __post_init__(self) -> None:
        if self.dtype not in (None, *_TYPES):
            raise SourceError(f"dtype is {self.dtype!r}, expected one of {', '.join(_TYPES)}")
        if self.eot is not None and (type(self.eot) is not int or self.eot < 0):
            raise SourceError(f"eot is {self.eot!r}, expected the id of the end-of-text token")
        if self.eot_at not in (None, "end", "start"):
            raise SourceError(f"eot_at is {self.eot_at!r}, expected end or start")


class TokenBin:
    """Finds the samples of raw ids."""

    def __init__(self, options: TokenBinOptions, companions: Companions) -> None:
        self._dtype = options.dtype
        self._eot = options.eot
        self._eot_at = options.eot_at
        self._companions = companions

    def layout(self, file: File) -> TokenLayout:
        path = file.identity.path
        kind, first_byte = self._header(file)
        ids = self._companions.array(file, kind, first_byte=first_byte)
        borders = f"{path[:-4]}.csv.gz"
        beside = None if self._eot is not None else self._companions.open_beside(borders)
        if self._eot is None and beside is None:
            raise SourceError(
                f"{path}: nothing says where samples begin, because {borders} does not exist; set the option eot: the id that "
                f"ends a text, such as 50256 of GPT-2"
            )
        files = [each.identity for each in (file, beside) if each is not None]
        at_start = (self._eot_at or ("start" if first_byte else "end")) == "start"

        def find() -> tuple[memoryview, None]:
            edges = (
                self._read_borders(files[1], ids.size)
                if self._eot is None
                else self._scan(file, ids, at_start)
            )
            return memoryview(edges.astype(WORD).tobytes()), None

        found = known_of(
            files,
            self._companions.cache,
            kind=f"{_SCAN} {[self._eot, kind, first_byte, at_start]}",
            find=find,
        )
        edges = np.frombuffer(found.payload, WORD)
        return TokenLayout(ids, len(edges) - 1, edges.__getitem__, first_byte=first_byte)

    def _header(self, file: File) -> tuple[str, int]:
        """Return the type of ids, and the byte of the first one."""
        path = file.identity.path
        size = file.identity.size
        raw = file.read(0, min(size, 1024))
        if raw.startswith(_NUMPY):
            why = "an array that np.save wrote, expected raw ids; write them with ids.tofile(path)"
            raise SourceError(f"{path}: {why}")
        magic = int.from_bytes(raw[:4], "little")
        if magic not in _HEADERS:
            if self._dtype is None:
                hint = (
                    f"; if it is of Megatron, {path[:-4]}.idx is missing"
                    if path.endswith(".bin")
                    else ""
                )
                raise SourceError(
                    f"{path}: nothing says how large an id is; set the option dtype: uint16 (nanoGPT) or uint32{hint}"
                )
            return _TYPES[self._dtype], 0
        expected, kind = _HEADERS[magic]
        if len(raw) < 1024:
            raise SourceError(
                f"{path}: ends at byte {size}, inside its header of 1024 bytes; make or copy it again"
            )
        version, count = np.frombuffer(raw, "<i4", 2, 4).tolist()
        if version != expected:
            raise SourceError(f"{path}: byte 4 says version {version}, expected {expected}")
        if self._dtype is not None and _TYPES[self._dtype] != kind:
            raise SourceError(
                f"{path}: its header says {np.dtype(kind).name}, but dtype is {self._dtype}; leave it out"
            )
        num_bytes = 1024 + count * np.dtype(kind).itemsize
        if num_bytes != size:
            raise SourceError(
                f"{path}: {size} bytes, but {count} ids (byte 8) need {num_bytes}; make or copy it again"
            )
        return kind, 1024

    def _scan(self, file: File, ids: Array, at_start: bool) -> Array:
        """Return the borders between samples: before each end-of-text id, or behind it."""
        found = [np.zeros(1, np.int64)]
        for begin in range(0, ids.size, _AT_ONCE):
            file.check()
            found.append(
                np.flatnonzero(ids[begin : begin + _AT_ONCE] == self._eot) + begin + (not at_start)
            )
        edges = np.concatenate([*found, [ids.size]])
        if ids.size and len(edges) == 2:
            raise SourceError(
                f"{file.identity.path}: none of {ids.size} ids ({ids.dtype.name}) is {self._eot}; check eot and dtype"
            )
        return edges[
            np.diff(edges, prepend=-1) > 0
        ]  # a text may begin at the first id, or end at the last

    def _read_borders(self, identity: FileId, num_ids: int) -> Array:
        """Return the borders that a .csv.gz lists as start, end, …; together they must be all ids."""
        text = unpacked(identity, self._companions.cache, max_expansion=_MAX_EXPANSION)
        edges = [0]
        byte = 0
        for line in text.read(0, text.identity.size).splitlines(keepends=True):
            start, end = (part.strip() for part in (*line.split(b",", 2), b"", b"")[:2])
            is_number = start.isdigit() and end.isdigit() and len(end) < 19
            if not (is_number and int(start) == edges[-1] <= int(end) <= num_ids):
                raise SourceError(
                    f"{identity.path}: line {len(edges)} (byte {byte} unpacked) is {line[:60]!r}, expected "
                    f"{edges[-1]},end,… with an end of at most {num_ids}; make both files again"
                )
            edges.append(int(end))
            byte += len(line)
        if edges[-1] != num_ids:
            raise SourceError(
                f"{identity.path}: the last text ends at id {edges[-1]}, but there are {num_ids}"
            )
        return np.array(edges, np.int64)


def open_token_bin(request: OpenRequest) -> Files:
    """Open raw ids as one source."""
    companions = Companions(request.cache)
    layouts = TokenBin(request.options, companions)
    return open_files(request, TokensReader("token_bin", request.options, companions, layouts))


TOKEN_BIN = Opener(TokenBinOptions, open_token_bin)
