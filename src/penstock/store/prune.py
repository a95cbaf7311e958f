"""What may go?  What was not used for longest, and is open nowhere; a shard stays as long as one store needs it.

A store is removed manifest first: from then on it does not exist, and whoever asks makes it again.  When names are taken
away, leases and manifests are read once more, so that whoever came in between gets the files back.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from penstock.cache import Cache, Discarded, Entry
from penstock.errors import StoreError
from penstock.store.manifest import Manifest, lengths_name, manifest_name, read
from penstock.store.schema import shard_name

_OURS = ("leases", "trash", "claims")  # who does what just now: small, and removed by whoever wrote it
_SEEN = "seen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """What is removed together: a store with the shards that only it needs, or one file or folder of something else."""

    name: str  # of the manifest, where it is a store
    files: tuple[str, ...]
    shards: frozenset[str] = frozenset()
    used: float

    @property
    def is_store(self) -> bool:
        return self.files[0] == self.name and store_of(self.name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """A cache as one look found it."""

    entries: dict[str, Entry]
    manifests: dict[str, Manifest | StoreError]  # by the store's fingerprint
    held: set[str]
    needed: Counter[str]  # shard → how many stores hold it

    def is_held(self, name: str) -> bool:
        return _is_held(name, self.held)

    def num_bytes(self, names: Iterable[str]) -> int:
        return sum(self.entries[name].num_bytes for name in names if name in self.entries)

    def own_shards(self, item: Item) -> list[str]:
        """Those that no other store needs."""
        return sorted(shard for shard in item.shards if self.needed[shard] == 1)

    def forget(self, item: Item) -> None:
        """A store that is gone: what it shared may go with the next one."""
        self.needed.subtract(item.shards)
        self.manifests.pop(store_of(item.name) or "", None)

    @property
    def total(self) -> int:
        return self.num_bytes(self.entries)


@dataclass(slots=True, kw_only=True)
class Pruned:
    """What went, and what is left."""

    stores: list[str] = field(default_factory=list)  # fingerprints
    num_files: int = 0
    num_bytes: int = 0
    num_left: int = 0  # bytes
    num_held: int = 0  # things that would have gone, but are in use


def seen_name(store: str) -> str:
    return f"{_SEEN}/{store}.json"


def survey(cache: Cache) -> Survey:
    """Every file, every lease, every manifest; in this order, because a lease on a shard ends after a manifest names it."""
    entries = {entry.name: entry for entry in cache.entries() if entry.name.partition("/")[0] not in _OURS}
    held = cache.held()
    entries |= {entry.name: entry for entry in cache.entries("stores")}
    manifests = _manifests(entries, cache)
    needed = Counter(shard for manifest in manifests.values() for shard in _shards([manifest]))
    return Survey(entries=entries, manifests=manifests, held=held, needed=needed)


def _manifests(names: Iterable[str], cache: Cache) -> dict[str, Manifest | StoreError]:
    found: dict[str, Manifest | StoreError] = {}
    for name in names:
        store = store_of(name)
        if store is not None:
            try:
                found[store] = read(store, cache)
            except StoreError as error:
                found[store] = error
    return found


def store_of(name: str) -> str | None:
    """The store whose manifest has this name."""
    store = name.rpartition("/")[2].removesuffix(".json")
    return store if name == manifest_name(store) else None


def prune(cache: Cache, *, max_bytes: int | None = None, older_than: float | None = None) -> Pruned:
    """Remove what is too much, or was not used for `older_than` seconds; never what is in use."""
    cache.tidy()
    found = survey(cache)
    oldest = None if older_than is None else cache.now() - older_than
    pruned = Pruned(num_left=found.total)
    left = found.total
    loose: list[
        Item
    ] = []  # removed together, at the end: there may be very many, and a look at the leases has its price
    for item in sorted(items(found), key=lambda item: (item.used, item.name)):
        is_too_much = max_bytes is not None and left > max_bytes
        is_too_old = oldest is not None and item.used < oldest
        if not (is_too_much or is_too_old):
            continue
        if found.is_held(item.name):
            pruned.num_held += 1
        elif item.is_store:
            left -= _remove([item], found, cache, pruned)
        else:
            loose.append(item)
            left -= found.num_bytes(item.files)
    _remove(loose, found, cache, pruned)
    return pruned


def _remove(chosen: list[Item], found: Survey, cache: Cache, pruned: Pruned) -> int:
    """Remove, and count; the bytes that are free now."""
    gone = remove_items(chosen, found, cache)
    num_bytes = found.num_bytes(gone)
    pruned.stores += [store for name in gone if (store := store_of(name))]
    pruned.num_files += len(gone)
    pruned.num_bytes += num_bytes
    pruned.num_left -= num_bytes
    return num_bytes


def items(found: Survey) -> list[Item]:
    """Everything in a cache, as what is removed together."""
    owned: set[str] = set()
    result = []
    for store, manifest in found.manifests.items():
        name = manifest_name(store)
        files = [name, lengths_name(store), seen_name(store)]
        shards = frozenset(shard for shard in _shards([manifest]) if shard in found.entries)
        owned.update(files, shards)
        present = tuple(file for file in files if file in found.entries)
        result.append(Item(name=name, files=present, shards=shards, used=found.entries[name].used))
    loose: dict[str, list[str]] = {}
    for name in found.entries.keys() - owned:
        loose.setdefault(_group(name), []).append(name)
    for group, names in loose.items():
        used = max(found.entries[name].used for name in names)
        result.append(Item(name=group, files=tuple(sorted(names)), used=used))
    return result


def remove_items(chosen: Sequence[Item], found: Survey, cache: Cache) -> list[str]:
    """Take the names away, then look whether anybody came in between; the names of files that are gone for good."""
    taken: list[tuple[Item, Discarded]] = []
    for item in chosen:
        first, *rest = item.files
        manifest = cache.discard(first)
        if item.is_store:
            # Whoever opens a store takes a lease before it looks for the manifest: it finds none, or is found here.
            held = cache.held()
            if _is_held(item.name, held):
                manifest.restore()
                continue
            rest += [shard for shard in found.own_shards(item) if shard not in held]
        taken += [(item, manifest), *((item, cache.discard(name)) for name in rest)]
    for item in chosen:
        found.forget(item)
    held = cache.held()  # before the manifests, as in a survey
    named = _named_since(found, cache)
    gone = []
    for item, part in taken:
        if part.name in held or part.name in named or _is_held(item.name, held):
            part.restore()
        else:
            part.empty()
            gone.append(part.name)
    return gone


def _named_since(found: Survey, cache: Cache) -> set[str]:
    """Shards of stores that were finished after the survey."""
    new = [name for entry in cache.entries("stores") if store_of(name := entry.name) not in found.manifests]
    return set(_shards(_manifests(new, cache).values()))


def _shards(manifests: Iterable[Manifest | StoreError]) -> Iterator[str]:
    for manifest in manifests:
        if not isinstance(manifest, StoreError):
            yield from dict.fromkeys(shard_name(entry.key) for entry in manifest.shards)


def _group(name: str) -> str:
    """What holds a file that stands alone: lengths belong to a manifest, chunks of a spooled stream are one chain."""
    if name.startswith("iterables/"):
        return name.rpartition("/")[0]
    return manifest_name(name.rpartition("/")[2].removesuffix(".lengths")) if name.endswith(".lengths") else name


def _is_held(name: str, held: set[str]) -> bool:
    """Whether somebody holds this name, or a folder around it."""
    parts = name.split("/")
    return any("/".join(parts[:depth]) in held for depth in range(1, len(parts) + 1))
