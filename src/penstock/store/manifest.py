"""What belongs to a store, and is it whole?  Written last: a manifest that exists promises every shard it names.

It holds no path and no name, so that the same content gives the same manifest wherever it was made.
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.cache import Cache
from penstock.errors import StoreError
from penstock.fingerprint import fingerprint
from penstock.store.schema import FORMAT_VERSION, Counts, from_json, shard_name, to_json, total
from penstock.types import Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEntry:
    """One published shard: its key, its file's size and what it holds."""

    key: str
    num_bytes: int
    counts: Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The shards of a whole store, in order, and what made them."""

    template: dict[str, Any]
    vocab_size: int
    shards: tuple[ShardEntry, ...]

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


def save(manifest: Manifest, lengths: list[Ints], cache: Cache) -> None:
    """Lengths of all samples, as one raw int32 array, and then the manifest."""
    name = store_fingerprint([entry.key for entry in manifest.shards])

    def write_lengths(file: Any) -> None:
        for part in lengths:
            file.write(part.astype("<i4").tobytes())

    value = {
        "format": FORMAT_VERSION,
        "template": manifest.template,
        "vocab_size": manifest.vocab_size,
        "counts": to_json(manifest.counts),
        "shards": [
            {"key": entry.key, "num_bytes": entry.num_bytes, "counts": to_json(entry.counts)}
            for entry in manifest.shards
        ],
    }
    text = json.dumps(value, indent=1, sort_keys=True) + "\n"
    # replace: whoever comes here has just opened every shard, so these bytes are right whatever lay there
    cache.publish(lengths_name(name), write_lengths, replace=True)
    cache.publish(manifest_name(name), lambda file: file.write(text.encode()), replace=True)


def load(name: str, cache: Cache) -> Manifest | None:
    """The manifest of a whole store, or None where there is none yet."""
    if cache.size(manifest_name(name)) is None:
        return None
    path = cache.path(manifest_name(name))
    try:
        value = json.loads(cache.read(manifest_name(name)))
        found = value["format"]
        if found != FORMAT_VERSION:
            raise StoreError(f"{path}: format {found}, expected {FORMAT_VERSION}; remove it, it will be made again")
        shards = tuple(
            ShardEntry(key=part["key"], num_bytes=part["num_bytes"], counts=from_json(part["counts"]))
            for part in value["shards"]
        )
        manifest = Manifest(template=value["template"], vocab_size=value["vocab_size"], shards=shards)
        keys = [entry.key for entry in shards if shard_name(entry.key)]
    except StoreError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"{path}: damaged ({error!r}); remove it, it will be made again") from error
    if store_fingerprint(keys) != name:
        raise StoreError(f"{path}: names other shards than its own name says; remove it, it will be made again")
    return manifest


def is_whole(manifest: Manifest, cache: Cache) -> bool:
    """Whether every file that a manifest promises is still there, in its size."""
    name = store_fingerprint([entry.key for entry in manifest.shards])
    if cache.size(lengths_name(name)) != 4 * manifest.counts.rows:
        return False
    return all(cache.size(shard_name(entry.key)) == entry.num_bytes for entry in manifest.shards)


def map_lengths(name: str, num_rows: int, cache: Cache) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Lengths of all samples of a whole store, memory-mapped."""
    return np.frombuffer(cache.map(lengths_name(name), size=4 * num_rows), dtype="<i4")
