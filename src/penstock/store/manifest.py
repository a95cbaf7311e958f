"""What belongs to a store, and is it whole?  Written last: a manifest that exists promises every shard it names.

It holds no path and no name, so that the same content gives the same manifest wherever it was made.  Its own digest, with
zeros in the digest's place, makes every changed byte of it an error.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.cache import Cache
from penstock.errors import StoreError
from penstock.fingerprint import Digest, digest, fingerprint
from penstock.store.reader import ShardTokens, parse_shard
from penstock.store.schema import FORMAT_VERSION, Counts, from_json, shard_name, to_json, total, whole
from penstock.types import Ints

_OWN_DIGEST = re.compile(rb'^ "digest": "([0-9a-f]{32})"', flags=re.MULTILINE)  # one space: of the outermost level
_HEX = re.compile(r"[0-9a-f]{32}")
_ZEROS = "0" * 32
_TRAILER = 16  # bytes of digest that end a file of lengths
_AT_ONCE = 64 << 20  # lengths are checked when they are mapped, up to this many bytes: 10 ms


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEntry:
    """One published shard: its key, its file's size and digest, and what it holds."""

    key: str
    num_bytes: int
    counts: Counts
    digest: str = ""  # of every byte of the file; added by `save` where it is not known yet


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Manifest:
    """The shards of a whole store, in order, and what made them.  Whoever keeps one loaded keeps its files from removal."""

    template: dict[str, Any]
    vocab_size: int
    shards: tuple[ShardEntry, ...]

    @property
    def name(self) -> str:
        return store_fingerprint([entry.key for entry in self.shards])

    @property
    def counts(self) -> Counts:
        return total([entry.counts for entry in self.shards])


def store_fingerprint(keys: list[str]) -> str:
    """The name of a store: its shard keys, in order."""
    return fingerprint({"format": FORMAT_VERSION, "shards": keys})


def manifest_name(name: str) -> str:
    return f"stores/{name[:2]}/{name}.json"


def lengths_name(name: str) -> str:
    return f"stores/{name[:2]}/{name}.lengths"


def lengths_bytes(num_rows: int) -> int:
    return 4 * num_rows + _TRAILER


def seal(key: str, cache: Cache, *, num_rows: int, vocab_size: int) -> tuple[ShardEntry, ShardTokens]:
    """What a manifest says of a shard, once every byte of it is read and right; and what the shard holds."""
    import pyarrow as pa

    name = shard_name(key)
    data = cache.read(name)
    path = cache.path(name)
    shard = parse_shard(pa.BufferReader(data), path, key=key, num_rows=num_rows, vocab_size=vocab_size, verify=True)
    return ShardEntry(key=key, num_bytes=len(data), counts=shard.counts, digest=digest(data)), shard


def save(manifest: Manifest, lengths: Iterable[Ints], cache: Cache) -> Manifest:
    """Lengths of all samples, as one raw int32 array, and then the manifest; the manifest with all digests."""
    name = manifest.name
    files = (
        manifest_name(name),
        lengths_name(name),
        *dict.fromkeys(shard_name(entry.key) for entry in manifest.shards),
    )
    cache.hold(*files, holder=manifest)  # until it is published, only this process knows that they belong together
    manifest = replace(manifest, shards=tuple(_sealed(entry, manifest.vocab_size, cache) for entry in manifest.shards))
    cache.hold(*files, holder=manifest)  # by the one that is returned, too

    def write_lengths(file: Any) -> None:
        content = Digest()
        for part in lengths:
            piece = part.astype("<i4").tobytes()
            content.extend(piece)
            file.write(piece)
        file.write(bytes.fromhex(content.hexdigest()))

    text = to_text(manifest)
    # replace: whoever comes here has just read every shard, so these bytes are right whatever lay there
    cache.publish(lengths_name(name), write_lengths, replace=True, hold=False)
    cache.publish(manifest_name(name), lambda file: file.write(text), replace=True, hold=False)
    cache.release(*files)  # the two manifests hold them now
    if cache.max_bytes is not None:
        from penstock.store.prune import prune  # here: it reads manifests

        prune(cache, max_bytes=cache.max_bytes)
    return manifest


def _sealed(entry: ShardEntry, vocab_size: int, cache: Cache) -> ShardEntry:
    if entry.digest:
        return entry
    return seal(entry.key, cache, num_rows=entry.counts.rows, vocab_size=vocab_size)[0]


def to_text(manifest: Manifest) -> bytes:
    value = {
        "format": FORMAT_VERSION,
        "digest": _ZEROS,
        "template": manifest.template,
        "vocab_size": manifest.vocab_size,
        "counts": to_json(manifest.counts),
        "shards": [
            {"key": entry.key, "num_bytes": entry.num_bytes, "digest": entry.digest, "counts": to_json(entry.counts)}
            for entry in manifest.shards
        ],
    }
    text = (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()
    return _OWN_DIGEST.sub(f' "digest": "{digest(text)}"'.encode(), text, count=1)


def load(name: str, cache: Cache) -> Manifest | None:
    """The manifest of a whole store, or None where there is none yet.  Its files are held as long as it is."""
    if cache.size(manifest_name(name), hold=False) is None:
        return None
    reading = _Reading()
    cache.hold(
        manifest_name(name), holder=reading
    )  # first the lease, then the look: whoever removes stores does it the other way
    try:
        manifest = read(name, cache)
    except StoreError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise
    cache.hold(manifest_name(name), holder=manifest)
    return manifest


class _Reading:
    """Holds a lease until there is a manifest to hold it."""


def read(name: str, cache: Cache) -> Manifest:
    """A manifest, checked, and held by nobody."""
    path = cache.path(manifest_name(name))
    data = cache.read(manifest_name(name))
    try:
        value = json.loads(data)
        found = value["format"]
        if found != FORMAT_VERSION:
            raise StoreError(f"format {found}, expected {FORMAT_VERSION}; remove it, it will be made again")
        shards = tuple(_entry(part) for part in value["shards"])
        manifest = Manifest(template=dict(value["template"]), vocab_size=whole(value["vocab_size"]), shards=shards)
        own = _OWN_DIGEST.search(data)
        if manifest.name == name and (
            own is None or own[1].decode() != digest(_OWN_DIGEST.sub(_zeroed, data, count=1))
        ):
            raise ValueError("its digest does not fit")
    except StoreError as error:
        raise StoreError(f"{path}: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"{path}: damaged ({error!r}); remove it, it will be made again") from error
    if manifest.name != name:
        raise StoreError(f"{path}: names other shards than its own name says; remove it, it will be made again")
    return manifest


def _zeroed(_: re.Match[bytes]) -> bytes:
    return f' "digest": "{_ZEROS}"'.encode()


def _entry(part: dict[str, Any]) -> ShardEntry:
    shard_name(part["key"])  # raises where it is none
    if not _HEX.fullmatch(part["digest"]):
        raise ValueError(f"{part['digest']!r} is no digest")
    return ShardEntry(
        key=part["key"],
        num_bytes=whole(part["num_bytes"]),
        counts=from_json(part["counts"]),
        digest=part["digest"],
    )


def is_whole(manifest: Manifest, cache: Cache) -> bool:
    """Whether every file that a manifest promises is still there, in its size."""
    if cache.size(lengths_name(manifest.name), hold=False) != lengths_bytes(manifest.counts.rows):
        return False
    return all(cache.size(shard_name(entry.key), hold=False) == entry.num_bytes for entry in manifest.shards)


def map_lengths(name: str, num_rows: int, cache: Cache) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Lengths of all samples of a whole store, memory-mapped."""
    data = cache.map(lengths_name(name), size=lengths_bytes(num_rows), hold=False)
    if cache.verify or len(data) <= _AT_ONCE:
        check_lengths(data, cache.path(lengths_name(name)))
    return np.frombuffer(data[:-_TRAILER], dtype="<i4")


def check_lengths(data: memoryview, path: Any) -> None:
    """Lengths decide which samples share a row: a wrong one would be a wrong batch."""
    if digest(data[:-_TRAILER]) != data[-_TRAILER:].hex():
        raise StoreError(f"{path}: damaged (its digest does not fit); remove it, it will be made again")
