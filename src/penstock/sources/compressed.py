"""Compressed files: unpacked once into the cache, then read like plain ones.

A stream that is cut off, damaged, or followed by anything but another member is refused as a whole.  A cut exactly between two members
looks like a shorter file.  `gzip.open` and its like are not used: they accept zeros or anything else behind a member.
"""

import bz2
import io
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from penstock.cache import Cache
from penstock.cache.memo import CONTENT, memo, memo_file
from penstock.errors import SourceError
from penstock.places.files import open_file
from penstock.places.place import File, FileId
from penstock.sources.index import digest_of, version_of

_READ = 1 << 12  # compressed bytes at once; even a bomb makes less than 100 MB of them
_PIECE = 1 << 20  # bytes of text at once, of zstd
_GRACE = 64 << 20  # a file may always grow to this size: a small one of equal lines is not a bomb
_XZ_MEMORY = 256 << 20  # `xz -9` needs 65 MiB; a hostile header may ask for 4 GiB
_FAULTS = (
    EOFError,
    zlib.error,
    lzma.LZMAError,
    OSError,
)  # OSError: bz2 and pyarrow; our own reads raise SourceError


class UnpackedFile:
    """The text of a compressed file, in the cache.  It changes when that file does."""

    on_disk = True

    def __init__(self, origin: File, text: memoryview) -> None:
        self.identity = replace(origin.identity, size=len(text))
        self.check = origin.check
        self._text = text

    def read(self, start: int, stop: int) -> bytes:
        return bytes(self._text[start:stop])

    def readinto(self, buffer: bytearray | memoryview, start: int) -> int:
        some = self._text[start : start + len(buffer)]
        buffer[: len(some)] = some
        return len(some)

    def map(self) -> memoryview:
        return self._text


def is_compressed(path: str) -> bool:
    return path[-4:].lower().endswith(_SUFFIXES)


def _suffix(path: str) -> str:
    return Path(path).suffix.lower()


def unpacked(
    identity: FileId, cache: Cache, *, max_expansion: int, packing: str | None = None
) -> UnpackedFile:
    """Return the plain text of a compressed file: from the cache, or by one pass that leaves it there.

    packing: how it is compressed, if its name does not say: gz, bz2, xz, zstd, br or snappy.
    """
    origin = open_file(identity)
    suffix = _suffix(identity.path) if packing is None else f".{packing}"
    if suffix not in (*_DECODERS, *_CODECS):
        raise SourceError(
            f"{identity.path}: compressed as {packing}, which cannot be read; unpack it"
        )
    content = memo(
        "content", identity.path, version_of([identity]), lambda: digest_of(origin), cache
    )
    text = memo_file(
        "unpacked",
        [content, suffix],
        CONTENT,
        lambda out: _expand(origin, out, suffix, max_expansion),
        cache,
        what=f"the text of {identity.path}",
    ).payload
    return UnpackedFile(origin, text)


def _expand(origin: File, out: IO[bytes], suffix: str, max_expansion: int) -> None:
    """Write the text of a compressed file."""
    path = origin.identity.path
    size = origin.identity.size
    limit = max(_GRACE, max_expansion * size)
    written = 0
    try:
        for piece in (
            _unpack_arrow(origin, suffix, limit)
            if suffix in _CODECS
            else _unpack(origin, _DECODERS[suffix])
        ):
            written += len(piece)
            if written > limit:
                why = (
                    f"if it is not a decompression bomb, raise max_expansion (now {max_expansion})"
                )
                raise SourceError(f"{path}: {size:,} bytes expand to more than {limit:,}; {why}")
            out.write(piece)
    except _FAULTS as error:
        raise SourceError(
            f"{path}: not a complete {suffix} stream, after {written:,} bytes of text: {error}; "
            f"download or make the file again"
        ) from error


def _unpack(origin: File, make: Callable[[], Any]) -> Iterator[bytes]:
    """Yield the text of one or more members; `make` makes the decoder of each."""
    size = origin.identity.size
    decoder = None
    num_members = 0
    for start in range(0, size, _READ):
        data = origin.read(start, min(size, start + _READ))
        while data:
            if decoder is None:
                decoder = make()
                num_members = num_members + 1
            yield decoder.decompress(data)
            data = b""
            if decoder.eof:
                data = decoder.unused_data
                decoder = None
    origin.check()
    if decoder is not None or not num_members:
        raise EOFError("the file is empty" if not num_members else "the file ends inside a member")


def _unpack_arrow(origin: File, suffix: str, limit: int) -> Iterator[bytes]:
    """Yield the text of what pyarrow can unpack; snappy is one block that begins with the size of its text."""
    import pyarrow as pa  # here, so that only such files pay for it

    size = origin.identity.size
    if not size:
        raise EOFError("the file is empty")  # pyarrow would read it as no frames
    if suffix == ".snappy":
        start = origin.read(0, min(size, 5))
        length = next((place for place, byte in enumerate(start) if byte < 128), len(start)) + 1
        num_bytes = sum((byte & 127) << 7 * place for place, byte in enumerate(start[:length]))
        if num_bytes > limit:
            raise EOFError(
                f"it says that it expands to {num_bytes:,} bytes, expected at most {limit:,}"
            )
        yield pa.decompress(origin.read(0, size), num_bytes, "snappy", asbytes=True)
    else:
        with pa.CompressedInputStream(
            pa.PythonFile(StreamCursor(origin), mode="r"), _CODECS[suffix]
        ) as stream:
            while piece := stream.read(_PIECE):
                yield piece
    origin.check()


class StreamCursor(io.RawIOBase):
    """A file object for pyarrow, on top of reads that share no position."""

    def __init__(self, file: File) -> None:
        super().__init__()
        self._file = file
        self._at = 0

    def read(self, size: int | None = -1, /) -> bytes:
        end = self._file.identity.size
        stop = end if size is None or size < 0 else min(self._at + size, end)
        data = self._file.read(self._at, stop) if stop > self._at else b""
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.identity.size}[
            whence
        ]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


_DECODERS: dict[str, Callable[[], Any]] = {
    ".gz": lambda: zlib.decompressobj(wbits=31),
    ".bz2": bz2.BZ2Decompressor,
    ".xz": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY),
}
_CODECS = {".zst": "zstd", ".zstd": "zstd", ".br": "brotli", ".snappy": "snappy"}  # pyarrow's
_SUFFIXES = (*_DECODERS, ".zst")
