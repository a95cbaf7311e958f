"""Which data was this store made of?  A note for people, beside the store: it may be missing, and nothing depends on it."""

import contextlib
import json
import time
from dataclasses import asdict, dataclass

from penstock.cache import Cache
from penstock.errors import StoreError
from penstock.store.prune import seen_name
from penstock.store.store import Store

_MOST_PLACES = 20


@dataclass(frozen=True, slots=True)
class Seen:
    """A source as it was when a store was first made of it, or found for it after it was moved or renamed."""

    name: str
    places: tuple[str, ...]  # some of its files
    time: float  # seconds, by the clock of the machine that wrote it


def remember(store: Store) -> None:
    """Note the source's name and files.  A cache that cannot be written to is no reason to stop."""
    seen = Seen(store.name, tuple(_places(store)), round(time.time(), 3))
    known = recall(store.fingerprint, store.cache)
    if (known and (known.name, known.places) == (seen.name, seen.places)) or not store.cache.is_writable:
        return
    text = json.dumps(asdict(seen)).encode()
    with contextlib.suppress(StoreError):
        store.cache.publish(seen_name(store.fingerprint), lambda file: file.write(text), replace=True)


def recall(store: str, cache: Cache) -> Seen | None:
    try:
        value = json.loads(cache.read(seen_name(store)))
        return Seen(str(value["name"]), tuple(str(place) for place in value["places"]), float(value["time"]))
    except (StoreError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _places(store: Store) -> list[str]:
    rows = [int(row) for row, size in zip(store.shard_starts, store.shard_sizes, strict=False) if size]
    step = -(-len(rows) // _MOST_PLACES) or 1
    return list(dict.fromkeys(store.source.where(row).file for row in rows[::step]))
