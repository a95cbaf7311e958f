"""List the stores of a cache, remove one, and prune what was not used for longest.

Nothing records who reads a file.  Instead, what was used within a day is kept: a store counts as used when it is opened, and as long as a
process has it open, which renews the time of its manifest every hour; a shard that no manifest names yet counts from when it was written or
found.
A reader that may not write to the cache cannot renew anything: what it reads is kept for a day after others have used it.

A shard stays as long as one store needs it.  A store is removed manifest first: from then on it does not exist, and is made again
when it is asked for.
"""

import contextlib
import json
import math
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from penstock.cache import Cache, Entry
from penstock.errors import StoreError
from penstock.store.counts import Counts
from penstock.store.manifest import Manifest, lengths_name, manifest_name, read
from penstock.store.shards import shard_name
from penstock.store.store import RENEW_SECONDS, Store
from penstock.words import spread

KEEP_SECONDS = 86400.0  # what was used within this time is never pruned
LOADED = "loaded"  # the folder of stores that were made elsewhere
_INTERNAL = ("claims",)  # small files that processes write for each other, and remove
_MIN_DIGITS = 4  # of a fingerprint that may be given instead of all; fewer could be a name
_MAX_FILES = 20  # named in an origin


@dataclass(frozen=True, slots=True)
class Origin:
    """The data that a store was made of, for display only: it may be missing."""

    name: str
    places: tuple[str, ...]  # some of its files
    time: float  # seconds, by the clock of the machine that wrote it


def _origin_name(store: str) -> str:
    return f"seen/{store}.json"


def save_origin(store: Store) -> None:
    """Write down the source's name and files.  A cache that cannot be written to is not an error."""
    rows = store.shard_starts[:-1].tolist()
    places = dict.fromkeys(
        store.source.locate(rows[each]).file for each in spread(len(rows), _MAX_FILES)
    )
    origin = Origin(store.name, tuple(places), round(time.time(), 3))
    known = load_origin(store.fingerprint, store.cache)
    if known is None or (known.name, known.places) != (origin.name, origin.places):
        text = json.dumps(asdict(origin)).encode()
        with contextlib.suppress(StoreError):
            store.cache.publish(
                _origin_name(store.fingerprint),
                lambda file: file.write(text),
                replace=True,
                durable=False,
            )


def load_origin(store: str, cache: Cache) -> Origin | None:
    try:
        value = json.loads(cache.read(_origin_name(store)))
        return Origin(
            str(value["name"]), tuple(str(place) for place in value["places"]), float(value["time"])
        )
    except (StoreError, ValueError, KeyError, TypeError, RecursionError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """What is removed together: a store, or a file or folder that belongs to none."""

    name: str  # of the manifest, where it is a store
    files: tuple[str, ...]
    shards: frozenset[str] = frozenset()  # of the store; other stores may need them, too
    used: float

    @property
    def store(self) -> str | None:
        return _store_of(self.name) if self.name in self.files else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The files of a cache at one moment."""

    entries: dict[str, Entry]
    manifests: dict[str, Manifest | StoreError]  # by the store's fingerprint

    def num_bytes(self, names: Iterable[str]) -> int:
        return sum(self.entries[name].num_bytes for name in names if name in self.entries)

    @property
    def total(self) -> int:
        return self.num_bytes(self.entries)

    @property
    def needed(self) -> Counter[str]:
        """How many stores need each shard."""
        return Counter(shard for manifest in self.manifests.values() for shard in _shards(manifest))

    def items(self) -> list[Item]:
        """List everything in a cache, grouped by what is removed together."""
        groups: dict[str, list[str]] = {}
        for name in self.entries.keys() - self.needed.keys():
            groups.setdefault(_group(name), []).append(name)
        return [self._item(group, files) for group, files in groups.items()]

    def _item(self, group: str, files: list[str]) -> Item:
        """Return the item of these files, which are removed together."""
        others = sorted(name for name in files if name != group)
        # a manifest is removed first, and it alone says when its store was used
        if group in files:
            ordered = (group, *others)
            used = self.entries[group].used
        else:
            ordered = tuple(others)
            used = max(self.entries[name].used for name in others)
        manifest = self.manifests.get(_store_of(group) or "")
        shards = frozenset() if manifest is None else _shards(manifest)
        return Item(name=group, files=ordered, shards=shards, used=used)


def survey(cache: Cache) -> Survey:
    """Read all entries, then manifests."""
    entries = {}
    for entry in cache.entries():
        if entry.name.partition("/")[0] not in _INTERNAL:
            entries[entry.name] = entry
    return Survey(entries=entries, manifests=_manifests(entries, cache))


def _manifests(names: Iterable[str], cache: Cache) -> dict[str, Manifest | StoreError]:
    manifests: dict[str, Manifest | StoreError] = {}
    for store in filter(None, map(_store_of, names)):
        try:
            manifests[store] = read(store, cache)
        except StoreError as error:
            manifests[store] = error
    return manifests


def _store_of(name: str) -> str | None:
    """The store whose manifest has this name."""
    store = name.rpartition("/")[2].removesuffix(".json")
    return store if name == manifest_name(store) else None


def _shards(manifest: Manifest | StoreError) -> frozenset[str]:
    keys = () if isinstance(manifest, StoreError) else (entry.key for entry in manifest.shards)
    return frozenset(map(shard_name, keys))


def _group(name: str) -> str:
    """What a file is removed with: lengths and origin with their manifest, and all files of a loaded store with its own."""
    folder, _, last = name.rpartition("/")
    if name.startswith(f"{LOADED}/"):
        own = "/".join(name.split("/")[:2])
        return f"{own}/{manifest_name(own.rpartition('/')[2].partition('-')[0])}"
    return (
        manifest_name(last.partition(".")[0])
        if folder == "seen" or last.endswith(".lengths")
        else name
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What was removed, and what is left."""

    stores: list[str]  # fingerprints
    num_files: int
    num_bytes: int
    num_left: int  # bytes
    num_recent: int  # items that would have been removed, but were used within a day


def prune(cache: Cache, *, max_bytes: int | None = None, older_than: float | None = None) -> Pruned:
    """Remove files beyond `max_bytes`, or not used for `older_than` seconds; never what was used within a day."""
    cache.tidy()
    before = survey(cache)
    now = cache.now()
    left = before.total
    needed = before.needed
    gone: list[str] = []
    num_recent = 0
    for item in sorted(before.items(), key=lambda item: (item.used, item.name)):
        is_too_much = max_bytes is not None and left > max_bytes
        is_too_old = older_than is not None and item.used < now - older_than
        if not (is_too_much or is_too_old):
            continue
        removed = _remove_item(item, needed, cache, unused_since=now - KEEP_SECONDS)
        gone += removed
        left -= before.num_bytes(removed)
        num_recent += not removed
    return Pruned(
        stores=[store for store in map(_store_of, gone) if store],
        num_files=len(gone),
        num_bytes=before.total - left,
        num_left=left,
        num_recent=num_recent,
    )


def _remove_item(
    item: Item, needed: Counter[str], cache: Cache, *, unused_since: float
) -> list[str]:
    """Remove an item unless it was used since, and the shards that nothing else needs; return the removed names.

    needed: how many stores need each shard, kept up to date.
    """
    first, *others = item.files
    if not cache.remove_unused(first, since=unused_since):
        return []
    needed.subtract(item.shards)
    removed = [first]
    shards = [shard for shard in sorted(item.shards) if not needed[shard]]
    for name in (*others, *shards):
        # a shard that is younger than its store was found for another one, whose manifest is not written yet
        if cache.remove_unused(name, since=unused_since):
            removed.append(name)
    return removed


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreInfo:
    """A store in a list."""

    store: str  # its fingerprint
    seen: Origin | None  # the name of this key in `cache ls --json`
    counts: Counts | None  # None where the manifest is damaged
    num_shards: int
    num_bytes: int  # of all its files
    num_own: int  # of those that no other store shares: what removing it frees
    used: float
    problem: str | None = None  # by names and sizes; `verify` reads every byte

    @property
    def name(self) -> str:
        return self.seen.name if self.seen else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The stores of a cache."""

    stores: tuple[StoreInfo, ...]  # the last used first
    num_bytes: int  # of everything in the cache
    num_unfinished: int  # shards of no store: of work that was interrupted, or is under way


def list_stores(cache: Cache) -> Listing:
    files = survey(cache)
    needed = files.needed
    stores = []
    for item in files.items():
        if item.store is None:
            continue
        manifest = files.manifests[item.store]
        readable = None if isinstance(manifest, StoreError) else manifest
        own_shards = [shard for shard in item.shards if needed[shard] == 1]
        info = StoreInfo(
            store=item.store,
            seen=load_origin(item.store, cache),
            counts=readable.counts if readable else None,
            num_shards=len(readable.shards) if readable else 0,
            num_bytes=files.num_bytes((*item.files, *item.shards)),
            num_own=files.num_bytes((*item.files, *own_shards)),
            used=item.used,
            problem=_problem(readable, files.entries) if readable else str(manifest),
        )
        stores.append(info)
    stores.sort(key=lambda info: (-info.used, info.store))
    num_unfinished = sum(name.startswith("shards/") and not needed[name] for name in files.entries)
    return Listing(stores=tuple(stores), num_bytes=files.total, num_unfinished=num_unfinished)


def _problem(manifest: Manifest, entries: dict[str, Entry]) -> str | None:
    if lengths_name(manifest.name) not in entries:
        return "its lengths are missing"
    missing = 0
    wrong = 0
    for name, size in manifest.shard_files.items():
        if name not in entries:
            missing += 1
        elif entries[name].num_bytes != size:
            wrong += 1
    problems = []
    if missing:
        problems.append(f"{missing} shards missing")
    if wrong:
        problems.append(f"{wrong} shards of another size")
    return ", ".join(problems) or None


def summary(store: Store) -> dict[str, Any]:
    """A finished store as plain JSON values."""
    own = {"store": store.fingerprint, "name": store.name, "cache": store.cache.where}
    return {
        **own,
        "num_shards": store.num_shards,
        "samples": store.counts.samples,
        **asdict(store.counts),
    }


def find_store(wanted: str, cache: Cache) -> str:
    """Return the fingerprint that begins with this text, or that of the one store whose data has this name."""
    infos = list_stores(cache).stores
    matches = [
        info.store for info in infos if len(wanted) >= _MIN_DIGITS and info.store.startswith(wanted)
    ]
    matches = matches or [info.store for info in infos if wanted and info.name == wanted]
    if len(matches) > 1:
        found = ", ".join(match[:12] for match in matches[:5])
        raise StoreError(
            f"{wanted!r} matches {len(matches)} stores: {found}; give more digits of the fingerprint"
        )
    if not matches:
        where = f"{cache.where}, which has {len(infos)}"
        raise StoreError(f"{wanted!r}: no such store in {where}; `penstock cache ls` lists them")
    return matches[0]


def remove(wanted: str, cache: Cache, *, force: bool = False) -> tuple[str, int]:
    """Remove a store and the shards that only it needs; return its fingerprint and the bytes that are free now.

    force: also a store that was used lately, so that a process may have it open.
    """
    store = find_store(wanted, cache)
    before = survey(cache)
    (item,) = (item for item in before.items() if item.store == store)
    last = math.inf if force else cache.now() - 2 * RENEW_SECONDS
    gone = _remove_item(item, before.needed, cache, unused_since=last)
    if not gone:
        minutes = (cache.now() - item.used) / 60
        raise StoreError(
            f"{cache.path(manifest_name(store))}: not removed: it was used {minutes:.0f} minutes ago, and a process that has it open "
            f"renews it every hour; pass --force (force=True) if nothing reads it"
        )
    return store, before.num_bytes(gone)
