"""What may go?  What was not used for longest, and is open nowhere; a shard stays as long as one store needs it.

A store is removed manifest first: from then on it does not exist, and whoever asks makes it again.  After each name is
taken away, the leases are read once more, so that a reader who came in between gets the file back.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.cache import Cache, Entry
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """A cache as one look found it."""

    entries: dict[str, Entry]
    manifests: dict[str, Manifest | StoreError]  # by the store's fingerprint
    held: set[str]

    def is_held(self, name: str) -> bool:
        return _is_held(name, self.held)

    def num_bytes(self, names: Iterable[str]) -> int:
        return sum(self.entries[name].num_bytes for name in names if name in self.entries)

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
    """Every file, every manifest, every lease."""
    entries = {entry.name: entry for entry in cache.entries() if entry.name.partition("/")[0] not in _OURS}
    manifests: dict[str, Manifest | StoreError] = {}
    for name in entries:
        store = store_of(name)
        if store is not None:
            try:
                manifests[store] = read(store, cache)
            except StoreError as error:
                manifests[store] = error
    return Survey(entries=entries, manifests=manifests, held=cache.held())


def store_of(name: str) -> str | None:
    """The store whose manifest has this name."""
    store = name.rpartition("/")[2].removesuffix(".json")
    return store if name == manifest_name(store) else None


def prune(cache: Cache, *, max_bytes: int | None = None, older_than: float | None = None) -> Pruned:
    """Remove what is too much, or was not used for `older_than` seconds; never what is in use."""
    cache.tidy()
    found = survey(cache)
    oldest = None if older_than is None else cache.now() - older_than
    needed = Counter(shard for item in items(found) for shard in item.shards)
    pruned = Pruned(num_left=found.total)
    for item in sorted(items(found), key=lambda item: (item.used, item.name)):
        is_too_much = max_bytes is not None and pruned.num_left > max_bytes
        is_too_old = oldest is not None and item.used < oldest
        if not (is_too_much or is_too_old):
            continue
        if found.is_held(item.name):
            pruned.num_held += 1
            continue
        shards = [shard for shard in sorted(item.shards) if needed[shard] == 1]
        gone = remove_item(item, shards, cache)
        if gone:
            needed.subtract(item.shards)
            _count(pruned, item, gone, found)
    return pruned


def items(found: Survey) -> list[Item]:
    """Everything in a cache, as what is removed together."""
    owned: set[str] = set()
    result = []
    for store, manifest in found.manifests.items():
        name = manifest_name(store)
        files = [name, lengths_name(store), seen_name(store)]
        keys = [] if isinstance(manifest, StoreError) else [shard_name(entry.key) for entry in manifest.shards]
        shards = frozenset(key for key in keys if key in found.entries)
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


def remove_item(item: Item, shards: list[str], cache: Cache) -> list[str]:
    """Files that are gone now; none where somebody took the item up meanwhile."""
    first, *rest = item.files
    taken = [cache.discard(first)]
    if _is_held(item.name, cache.held()):
        taken[0].restore()
        return []
    taken += [cache.discard(name) for name in (*rest, *shards)]
    held = cache.held()
    gone = []
    for part in taken:
        if part.name in held:  # by its own name: a shard that a store under way counts on
            part.restore()
        else:
            part.empty()
            gone.append(part.name)
    return gone


def _count(pruned: Pruned, item: Item, gone: list[str], found: Survey) -> None:
    num_bytes = found.num_bytes(gone)
    pruned.num_files += len(gone)
    pruned.num_bytes += num_bytes
    pruned.num_left -= num_bytes
    store = store_of(item.name)
    if store is not None:
        pruned.stores.append(store)


def _group(name: str) -> str:
    """The chunks of a spooled stream are one chain; anything else stands alone."""
    return name.rpartition("/")[0] if name.startswith("iterables/") else name


def _is_held(name: str, held: set[str]) -> bool:
    """Whether somebody holds this name, or a folder around it."""
    parts = name.split("/")
    return any("/".join(parts[:depth]) in held for depth in range(1, len(parts) + 1))
