"""The manifest of a store, written last: a manifest that exists promises every shard it names.

It contains no path and no name, so the same content gives the same manifest wherever it was made.  Its own digest, computed
with zeros in the digest's place, makes every changed byte of it an error.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.cache import Cache
from penstock.errors import StoreError
from penstock.fingerprint import Digest, digest, fingerprint
from penstock.store.counts import Counts, total
from penstock.store.shards import FORMAT_VERSION, Schema, ShardEntry, shard_name
from penstock.types import row_sequences

_OWN_DIGEST = re.compile(
    rb'^ "digest": "([0-9a-f]{32})"', flags=re.MULTILINE
)  # one space: of the outermost level
_ZEROS = "0" * 32
_TRAILER = 16  # bytes of digest at the end of a file of lengths
_CHECKED_BYTES = 64 << 20  # lengths are checked when they are mapped, up to this size: 10 ms
_MAKE_AGAIN = "remove it, it will be made again"

Lengths = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The shards of a whole store, in order, and what made them."""

    template: dict[str, Any]
    vocab_size: int
    shards: tuple[ShardEntry, ...]

    @property
    def name(self) -> str:
        return store_fingerprint([entry.key for entry in self.shards])

    @property
    def counts(self) -> Counts:
        return total([entry.counts for entry in self.shards])

    @property
    def schema(self) -> Schema:
        return Schema.from_identity(self.vocab_size, self.template)

    @property
    def row_sequences(self) -> int:
        """Sequences of a sample: 2 for pairs."""
        return row_sequences(self.schema.columns)

    @property
    def shard_files(self) -> dict[str, int]:
        """The size of every shard's file, by name."""
        return {shard_name(entry.key): entry.num_bytes for entry in self.shards}

    def is_whole(self, cache: Cache) -> bool:
        """Whether every file that this manifest promises exists, with the right size."""
        lengths_bytes = _lengths_bytes(self.counts.rows, self.row_sequences)
        sizes = self.shard_files | {lengths_name(self.name): lengths_bytes}
        return cache.sizes(sizes) == sizes


def store_fingerprint(keys: list[str]) -> str:
    """The name of a store: its shard keys, in order."""
    return fingerprint({"format": FORMAT_VERSION, "shards": keys})


def manifest_name(name: str) -> str:
    return f"stores/{name[:2]}/{name}.json"


def lengths_name(name: str) -> str:
    return f"stores/{name[:2]}/{name}.lengths"


def _lengths_bytes(num_rows: int, sequences: int) -> int:
    """Return the size of a file of lengths: behind those of samples of several sequences stand those of their longest ones."""
    return 4 * num_rows * (2 if sequences > 1 else 1) + _TRAILER


def save(manifest: Manifest, lengths: Iterable[npt.NDArray[Any]], cache: Cache) -> None:
    """Publish the lengths of all samples, as one raw int32 array, and then the manifest.

    lengths: part by part; of samples of several sequences, those of all samples, and then those of all longest sequences.
    """
    name = manifest.name

    def write_lengths(file: Any) -> None:
        content = Digest()
        for part in lengths:
            piece = part.astype("<i4").tobytes()
            content.extend(piece)
            file.write(piece)
        file.write(bytes.fromhex(content.hexdigest()))

    # replace: these bytes are right whatever was there
    cache.publish(lengths_name(name), write_lengths, replace=True)
    cache.publish(manifest_name(name), lambda file: file.write(_to_text(manifest)), replace=True)


def _to_text(manifest: Manifest) -> bytes:
    value = {
        "format": FORMAT_VERSION,
        "digest": _ZEROS,
        "counts": asdict(manifest.counts),
        **asdict(manifest),
    }
    text = (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()
    return _with_digest(text, digest(text))


def _with_digest(text: bytes, value: str) -> bytes:
    return _OWN_DIGEST.sub(f' "digest": "{value}"'.encode(), text, count=1)


def load(name: str, cache: Cache) -> Manifest | None:
    """Return the manifest of a complete store, or None if there is none.  It counts as used now, and is kept for a day."""
    if cache.size(manifest_name(name)) is None:
        return None
    cache.renew(manifest_name(name))  # before it is read: `prune` looks at the time last
    try:
        return read(name, cache)
    except StoreError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def read(name: str, cache: Cache) -> Manifest:
    """Read and check a manifest."""
    return parse(cache.read(manifest_name(name)), name, where=cache.path(manifest_name(name)))


def parse(data: bytes, name: str, *, where: Path | str, advice: str = _MAKE_AGAIN) -> Manifest:
    """Return the manifest of the store `name` from its bytes, checked.

    where: where they were read.  advice: what to do if they are wrong.
    """
    try:
        value = json.loads(data)
        if value["format"] != FORMAT_VERSION:
            raise StoreError(
                f"{where}: format {value['format']}, expected {FORMAT_VERSION}; {advice}"
            )
        shards = tuple(map(ShardEntry.from_json, value["shards"]))
        manifest = Manifest(
            template=dict(value["template"]), vocab_size=value["vocab_size"], shards=shards
        )
        for entry in shards:
            shard_name(entry.key)  # raises where it is not a key
        if manifest.name != name:
            raise StoreError(f"{where}: lists other shards than its file name says; {advice}")
        own = _OWN_DIGEST.search(data)
        if own is None or own[1].decode() != digest(_with_digest(data, _ZEROS)):
            raise ValueError("its digest does not match")
    except StoreError as error:
        if str(error).startswith(str(where)):
            raise
        raise StoreError(f"{where}: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"{where}: damaged ({error!r}); {advice}") from error
    return manifest


def map_lengths(name: str, num_rows: int, cache: Cache, *, sequences: int = 1) -> Lengths:
    """Lengths of all samples of a whole store, memory-mapped; behind them, those of the longest of several sequences."""
    data = cache.map(lengths_name(name), size=_lengths_bytes(num_rows, sequences))
    if cache.verify == "always" or not are_checked_by_shard(num_rows):
        _check_lengths(data, cache.path(lengths_name(name)))
    return np.frombuffer(data[:-_TRAILER], dtype="<i4")


def are_checked_by_shard(num_rows: int) -> bool:
    """Whether a file of lengths is so large that each shard is compared with its part of it, when the shard is mapped."""
    return _lengths_bytes(num_rows, 1) > _CHECKED_BYTES


def check_shard_lengths(own: Lengths, listed: Lengths, name: str, cache: Cache) -> None:
    """Compare the lengths of a shard's samples with what the file of lengths says about them."""
    if not np.array_equal(own, listed):
        path = cache.path(lengths_name(name))
        raise StoreError(
            f"{path}: damaged (it lists other lengths than the samples of a shard have); {_MAKE_AGAIN}"
        )


def read_lengths(name: str, cache: Cache) -> Lengths:
    """The same, read and checked."""
    data = memoryview(cache.read(lengths_name(name)))
    _check_lengths(data, cache.path(lengths_name(name)))
    return np.frombuffer(data[:-_TRAILER], dtype="<i4")


def _check_lengths(data: memoryview, path: Path) -> None:
    """Lengths decide which samples share a row: a wrong one would be a wrong batch."""
    if digest(data[:-_TRAILER]) != data[-_TRAILER:].hex():
        raise StoreError(f"{path}: damaged (its digest does not match); {_MAKE_AGAIN}")
