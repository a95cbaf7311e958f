"""Which stores are there?  By fingerprint, by the name of their data, with what they hold and cost."""

from dataclasses import dataclass
from typing import Any

from penstock.cache import Cache
from penstock.errors import StoreError
from penstock.store.manifest import lengths_name, manifest_name
from penstock.store.prune import Item, Survey, items, remove_items, store_of, survey
from penstock.store.schema import Counts, shard_name, to_json
from penstock.store.seen import Seen, recall
from penstock.store.store import Store

_FEWEST = 4  # digits of a fingerprint that may stand for it: fewer could be a name


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreInfo:
    """A store as a list shows it."""

    store: str  # its fingerprint
    seen: Seen | None
    counts: Counts | None  # None where the manifest is damaged
    num_shards: int
    num_bytes: int  # of all its files
    num_own: int  # of those that no other store shares: what removing it gives back
    used: float
    is_held: bool
    problem: str | None = None  # what is wrong at first sight

    @property
    def name(self) -> str:
        return self.seen.name if self.seen else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A cache, for people."""

    stores: tuple[StoreInfo, ...]  # the last used first
    num_bytes: int  # of everything in the cache
    num_unfinished: int  # shards that belong to no store: of work that was interrupted, or is under way


def list_stores(cache: Cache) -> Listing:
    found = survey(cache)
    stores = [
        _info(store, item, found, cache) for item in items(found) if item.is_store and (store := store_of(item.name))
    ]
    return Listing(
        stores=tuple(sorted(stores, key=lambda info: (-info.used, info.store))),
        num_bytes=found.total,
        num_unfinished=sum(name.startswith("shards/") and not found.needed[name] for name in found.entries),
    )


def summary(store: Store) -> dict[str, Any]:
    """A finished store, as plain JSON values."""
    return {
        "store": store.fingerprint,
        "name": store.name,
        "cache": str(store.cache.root),
        "num_shards": store.num_shards,
        "samples": store.counts.samples,
        **to_json(store.counts),
    }


def find_store(wanted: str, cache: Cache) -> str:
    """The fingerprint that begins like this, or the one store made of data with this name."""
    infos = list_stores(cache).stores
    matches = [info.store for info in infos if len(wanted) >= _FEWEST and info.store.startswith(wanted)]
    matches = matches or [info.store for info in infos if wanted and info.name == wanted]
    if len(matches) == 1:
        return matches[0]
    if matches:
        found = ", ".join(match[:12] for match in matches[:5])
        raise StoreError(f"{wanted!r} means {len(matches)} stores: {found}; give more of the fingerprint")
    raise StoreError(
        f"{wanted!r}: no such store in {cache.root}, which has {len(infos)}; `penstock cache ls` lists them"
    )


def remove(wanted: str, cache: Cache) -> tuple[str, int]:
    """Remove a store, and the shards that only it needs; its fingerprint, and the bytes that are free now."""
    store = find_store(wanted, cache)
    found = survey(cache)
    name = manifest_name(store)
    item = next(item for item in items(found) if item.name == name)
    gone = [] if found.is_held(name) else remove_items([item], found, cache)
    if not gone:
        raise StoreError(f"{cache.path(name)}: in use by another process, so it stays; stop that process first")
    return store, found.num_bytes(gone)


def _info(store: str, item: Item, found: Survey, cache: Cache) -> StoreInfo:
    manifest = found.manifests[store]
    counts, num_shards = (None, 0) if isinstance(manifest, StoreError) else (manifest.counts, len(manifest.shards))
    return StoreInfo(
        store=store,
        seen=recall(store, cache),
        counts=counts,
        num_shards=num_shards,
        num_bytes=found.num_bytes((*item.files, *item.shards)),
        num_own=found.num_bytes((*item.files, *found.own_shards(item))),
        used=item.used,
        is_held=found.is_held(item.name),
        problem=_problem(store, found),
    )


def _problem(store: str, found: Survey) -> str | None:
    """What a look at names and sizes can tell; `verify` tells the rest."""
    manifest = found.manifests[store]
    if isinstance(manifest, StoreError):
        return str(manifest)
    if lengths_name(store) not in found.entries:
        return "its lengths are missing"
    expected = {shard_name(entry.key): entry.num_bytes for entry in manifest.shards}
    missing = sum(name not in found.entries for name in expected)
    wrong = sum(name in found.entries and found.entries[name].num_bytes != size for name, size in expected.items())
    parts = [f"{missing} shards missing"] * bool(missing) + [f"{wrong} shards of another size"] * bool(wrong)
    return ", ".join(parts) or None
