"""List the stores of a cache, remove one, and prune what was not used for longest.  A file that is open is never removed.

A shard stays as long as one store needs it.  A store is removed manifest first: from then on it does not exist, and is made again
when it is asked for.  After names are taken away, leases and manifests are read once more; a process that came in between gets
its files back.
"""

import contextlib
import json
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from penstock.cache import Cache, Discarded, Entry
from penstock.errors import StoreError
from penstock.store.counts import Counts
from penstock.store.manifest import Manifest, lengths_name, manifest_name, read
from penstock.store.shards import shard_name
from penstock.store.store import Store
from penstock.words import spread

_INTERNAL = (
    "leases",
    "trash",
    "claims",
    "results",
)  # small files that processes write for each other, and remove
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
                _origin_name(store.fingerprint), lambda file: file.write(text), replace=True
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
    held: set[str]
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
        found = []
        for group, files in groups.items():
            files.sort(key=lambda name: (name != group, name))  # the manifest first
            used = max(
                self.entries[name].used for name in (files[:1] if files[0] == group else files)
            )
            manifest = self.manifests.get(_store_of(group) or "")
            shards = frozenset() if manifest is None else _shards(manifest)
            found.append(Item(name=group, files=tuple(files), shards=shards, used=used))
        return found


def survey(cache: Cache) -> Survey:
    """Read all entries, then leases, then manifests: a lease on a shard ends after a manifest names the shard."""
    entries = {
        entry.name: entry
        for entry in cache.entries()
        if entry.name.partition("/")[0] not in _INTERNAL
    }
    held = cache.held()
    entries |= {entry.name: entry for entry in cache.entries("stores")}
    return Survey(entries=entries, held=held, manifests=_manifests(entries, cache))


def _manifests(names: Iterable[str], cache: Cache) -> dict[str, Manifest | StoreError]:
    found: dict[str, Manifest | StoreError] = {}
    for store in filter(None, map(_store_of, names)):
        try:
            found[store] = read(store, cache)
        except StoreError as error:
            found[store] = error
    return found


def _store_of(name: str) -> str | None:
    """The store whose manifest has this name."""
    store = name.rpartition("/")[2].removesuffix(".json")
    return store if name == manifest_name(store) else None


def _shards(manifest: Manifest | StoreError) -> frozenset[str]:
    keys = () if isinstance(manifest, StoreError) else (entry.key for entry in manifest.shards)
    return frozenset(map(shard_name, keys))


def _group(name: str) -> str:
    """What a file is removed with: lengths and origin with their manifest."""
    folder, _, last = name.rpartition("/")
    return (
        manifest_name(last.partition(".")[0])
        if folder == "seen" or last.endswith(".lengths")
        else name
    )


def _is_held(name: str, held: set[str]) -> bool:
    """Whether a process holds this name, or a folder around it."""
    parts = name.split("/")
    return any("/".join(parts[:depth]) in held for depth in range(1, len(parts) + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What was removed, and what is left."""

    stores: list[str]  # fingerprints
    num_files: int
    num_bytes: int
    num_left: int  # bytes
    num_held: int  # items that would have been removed, but are in use


def prune(cache: Cache, *, max_bytes: int | None = None, older_than: float | None = None) -> Pruned:
    """Remove files beyond `max_bytes`, or not used for `older_than` seconds; never files in use."""
    cache.tidy()
    found = survey(cache)
    oldest = None if older_than is None else cache.now() - older_than
    chosen: list[Item] = []
    left = found.total
    needed = found.needed
    num_held = 0
    for item in sorted(found.items(), key=lambda item: (item.used, item.name)):
        is_too_much = max_bytes is not None and left > max_bytes
        is_too_old = oldest is not None and item.used < oldest
        if not (is_too_much or is_too_old):
            continue
        if _is_held(item.name, found.held):
            num_held += 1
            continue
        chosen.append(item)
        needed.subtract(item.shards)
        left -= found.num_bytes(
            (*item.files, *(shard for shard in item.shards if not needed[shard]))
        )
    gone = _remove_items(chosen, found, cache)
    stores = [store for store in map(_store_of, gone) if store]
    num_bytes = found.num_bytes(gone)
    num_left = found.total - num_bytes
    return Pruned(
        stores=stores,
        num_files=len(gone),
        num_bytes=num_bytes,
        num_left=num_left,
        num_held=num_held,
    )


def _remove_items(chosen: Sequence[Item], found: Survey, cache: Cache) -> list[str]:
    """Remove the names, then restore those that a process began to use meanwhile; return the removed names."""
    first = {item.files[0]: cache.discard(item.files[0]) for item in chosen}
    # A process that opens a store takes its lease before it reads the manifest: it finds none, or is found here.
    held = cache.held()
    stays = dict(found.manifests)
    taken: dict[str, tuple[Item, Discarded]] = {}
    for item in chosen:
        if _is_held(item.name, held):
            first[item.files[0]].restore()
        else:
            taken[item.files[0]] = item, first[item.files[0]]
            stays.pop(item.store or "", None)
    needed = held.union(*map(_shards, stays.values()))
    for item, _ in list(taken.values()):
        for name in (*item.files[1:], *sorted(item.shards - needed - taken.keys())):
            taken[name] = item, cache.discard(name)
    held = cache.held()  # before the manifests, as in a survey
    new = [entry.name for entry in cache.entries("stores") if _store_of(entry.name) not in stays]
    needed = held.union(*map(_shards, _manifests(new, cache).values()))
    gone = []
    for name, (item, file) in taken.items():
        if name in needed or _is_held(item.name, held):
            file.restore()
        else:
            file.empty()
            gone.append(name)
    return gone


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
    is_held: bool
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
    found = survey(cache)
    needed = found.needed
    stores = []
    for item in found.items():
        if item.store is None:
            continue
        manifest = found.manifests[item.store]
        readable = None if isinstance(manifest, StoreError) else manifest
        own = [shard for shard in item.shards if needed[shard] == 1]
        info = StoreInfo(
            store=item.store,
            seen=load_origin(item.store, cache),
            counts=readable.counts if readable else None,
            num_shards=len(readable.shards) if readable else 0,
            num_bytes=found.num_bytes((*item.files, *item.shards)),
            num_own=found.num_bytes((*item.files, *own)),
            used=item.used,
            is_held=_is_held(item.name, found.held),
            problem=_problem(readable, found.entries) if readable else str(manifest),
        )
        stores.append(info)
    stores.sort(key=lambda info: (-info.used, info.store))
    num_unfinished = sum(name.startswith("shards/") and not needed[name] for name in found.entries)
    return Listing(stores=tuple(stores), num_bytes=found.total, num_unfinished=num_unfinished)


def _problem(manifest: Manifest, entries: dict[str, Entry]) -> str | None:
    if lengths_name(manifest.name) not in entries:
        return "its lengths are missing"
    sizes = [
        (entries[name].num_bytes if name in entries else None, size)
        for name, size in manifest.shard_files.items()
    ]
    missing = sum(found is None for found, _ in sizes)
    wrong = sum(found not in (None, size) for found, size in sizes)
    parts = [f"{missing} shards missing"] * bool(missing) + [
        f"{wrong} shards of another size"
    ] * bool(wrong)
    return ", ".join(parts) or None


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


def remove(wanted: str, cache: Cache) -> tuple[str, int]:
    """Remove a store and the shards that only it needs; return its fingerprint and the bytes that are free now."""
    store = find_store(wanted, cache)
    found = survey(cache)
    gone = _remove_items([item for item in found.items() if item.store == store], found, cache)
    if not gone:
        path = cache.path(manifest_name(store))
        raise StoreError(
            f"{path}: not removed, because another process uses it; stop that process first"
        )
    return store, found.num_bytes(gone)
