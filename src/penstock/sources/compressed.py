"""How does a compressed file get random access?  It is spooled once, block by block, into the cache; then it is a file.

A stream that is cut off, damaged, or followed by anything but another member is refused as a whole: half a file that
looks like a file is worse than none.  A cut exactly between two members cannot be told from a shorter file.
"""

import bz2
import io
import logging
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Protocol, cast

from penstock.cache import Cache
from penstock.errors import SourceError
from penstock.files import FileId, RangeFile, identify
from penstock.sources.sidecar import digest_of, index
from penstock.sources.sums import Summed, damaged, from_file, once, to_file

_log = logging.getLogger("penstock")

MAX_EXPANSION = 100
SUMS = ".sums"  # behind the name of a spool: the file of its checksums

_READ = 1 << 16  # compressed bytes at once
_PIECE = 1 << 20  # and what may come out of them at once
_GRACE = 64 << 20  # up to here a file may grow whatever its size: a small one of equal lines is no bomb
_XZ_MEMORY = 256 << 20  # `xz -9` needs 65 MiB; a hostile header may ask for 4 GiB


class SpooledFile(RangeFile):
    """The text of a compressed file.  It changes when that file does."""

    def __init__(self, identity: FileId, origin: RangeFile) -> None:
        self.origin = origin
        super().__init__(identity)

    def check(self) -> None:
        self.origin.check()

    def __reduce__(self) -> tuple[type["RangeFile"], tuple[FileId, RangeFile]]:  # type: ignore[override]
        return SpooledFile, (self.identity, self.origin)


def is_compressed(path: str) -> bool:
    return _suffix(path) in _CODECS


def _suffix(path: str) -> str:
    """In lower case, as names are read wherever a shape is found by them."""
    return os.path.splitext(path)[1].lower()  # noqa: PTH122 - asked of every file of a folder, and Path takes ten times as long


def spool(identity: FileId, cache: Cache, *, max_expansion: int) -> SpooledFile:
    """The plain text of a compressed file: from the cache, or by one pass that leaves it there."""
    origin = RangeFile(identity)
    content = index(origin, cache, kind="compressed", write=lambda file, _out, _old: ((0, 0), digest_of(file))).content
    name = f"spools/{content[:2]}/{content}{_suffix(identity.path)}.text"
    if (fault := spool_fault(cache, name)) is not None:
        if fault:
            _log.warning("%s: %s; it is unpacked again", cache.path(name), fault)
        _publish(origin, cache, name, max_expansion)
    return SpooledFile(identify(str(cache.path(name))), origin)


def spool_fault(cache: Cache, name: str, *, full: bool = False) -> str | None:
    """What is wrong with a spool; "" where there is none, None where it is what was written."""
    num_bytes = cache.size(name)
    if num_bytes is None:
        return ""
    if cache.size(name + SUMS) is None:
        return "its checksums are missing"
    sums = from_file(cache.read(name + SUMS), num_bytes)
    if sums is None:
        return f"{num_bytes} bytes, of which its checksums do not speak"
    path = str(cache.path(name))
    text = RangeFile(identify(path))
    if full:
        return damaged(text.read, num_bytes, sums, full=True)
    return once(path, lambda: damaged(text.read, num_bytes, sums))


def _publish(origin: RangeFile, cache: Cache, name: str, max_expansion: int) -> None:
    """The text first: without its checksums it does not count."""
    written: list[bytes] = []

    def write(out: IO[bytes]) -> None:
        summed = Summed(out)
        _expand(origin, cast(IO[bytes], summed), max_expansion)
        written[:] = [to_file(summed.num_bytes, summed.sums())]

    cache.publish(name, write, replace=True)
    cache.publish(name + SUMS, lambda out: out.write(written[0]), replace=True)


def _pieces(origin: RangeFile, num_bytes: int) -> Iterator[bytes]:
    size = origin.identity.size
    for start in range(0, size, num_bytes):
        yield origin.read(start, min(size, start + num_bytes))
    origin.check()


def _expand(origin: RangeFile, out: IO[bytes], max_expansion: int) -> None:
    path, size = origin.identity.path, origin.identity.size
    limit = max(_GRACE, max_expansion * size)
    written = 0
    for piece in _text(origin):
        written += len(piece)
        if written > limit:
            raise SourceError(
                f"{path}: {size:_} bytes grow beyond {limit:_}; if this is not a bomb, raise "
                f"max_expansion (now {max_expansion})"
            )
        out.write(piece)


def _text(origin: RangeFile) -> Iterator[bytes]:
    """What is inside, in pieces; whatever a codec complains of becomes one error."""
    path, suffix = origin.identity.path, _suffix(origin.identity.path)
    written = 0
    try:
        for piece in _CODECS[suffix](origin):
            written += len(piece)
            yield piece
    except _FAULTS as error:
        raise SourceError(
            f"{path}: not a whole {suffix} stream, after {written:_} bytes of text: {error}; fetch or make the file again"
        ) from error


class _Decoder(Protocol):
    """What bz2 and lzma offer, and `_Gunzip` too."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    @property
    def needs_input(self) -> bool: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Gunzip:
    """One gzip member with a bound on what comes out at once."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=31)
        self.needs_input = True

    def decompress(self, data: bytes, max_length: int) -> bytes:
        piece = self._member.decompress(self._member.unconsumed_tail + data, max_length)
        self.needs_input = len(piece) < max_length
        return piece

    @property
    def eof(self) -> bool:
        return self._member.eof

    @property
    def unused_data(self) -> bytes:
        return self._member.unused_data


def _members(make: Callable[[], _Decoder]) -> Callable[[RangeFile], Iterator[bytes]]:
    """Text of one or more members, one after another."""

    def text(origin: RangeFile) -> Iterator[bytes]:
        decoder, num_members = None, 0
        for data in _pieces(origin, _READ):
            while data or (decoder and not decoder.needs_input):
                if decoder is None:
                    decoder, num_members = make(), num_members + 1
                piece = decoder.decompress(data, _PIECE)
                data = b""
                if piece:
                    yield piece
                if decoder.eof:
                    data, decoder = decoder.unused_data, None
        if decoder is not None or not num_members:
            raise EOFError("the file is empty" if not num_members else "the file ends inside a member")

    return text


def _unzstd(origin: RangeFile) -> Iterator[bytes]:
    import pyarrow as pa  # here, so that only .zst files pay for it

    if not origin.identity.size:
        raise EOFError("the file is empty")  # which pyarrow takes for no frames
    reader = pa.PythonFile(_Reader(origin), mode="r")
    with pa.CompressedInputStream(reader, "zstd") as stream:
        while piece := stream.read(_PIECE):
            yield piece
    origin.check()


class _Reader(io.RawIOBase):
    """A file for pyarrow: reads in order."""

    def __init__(self, origin: RangeFile) -> None:
        self._origin = origin
        self._position = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        stop = self._origin.identity.size
        if size >= 0:
            stop = min(stop, self._position + size)
        data = self._origin.read(self._position, stop)
        self._position = stop
        return data


_FAULTS = (EOFError, zlib.error, lzma.LZMAError, OSError)  # OSError: bz2 and pyarrow; our own reads raise SourceError
_CODECS: dict[str, Callable[[RangeFile], Iterator[bytes]]] = {
    ".gz": _members(_Gunzip),
    ".bz2": _members(bz2.BZ2Decompressor),
    ".xz": _members(lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)),
    ".zst": _unzstd,
}
SUFFIXES = tuple(_CODECS)
