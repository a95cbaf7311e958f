"""The journal of a run whose mixture changes: which mixtures it has had, as its plan and its saved states say.

Stores of earlier mixtures are looked for in the cache; without them only earlier steps cannot be explained.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from penstock.cache import Cache, open_cache
from penstock.errors import PlanError, PlanMismatch
from penstock.loader.plans import plan_source
from penstock.plan.order import PlanSource, check_numbers, sizes_of_rows
from penstock.plan.plan import ALL_SOURCES
from penstock.plan.segments import Mixture, Start
from penstock.store import Store
from penstock.store.inventory import list_stores
from penstock.store.kept import MissingStore, kept_store, not_grown

_OTHER = "give new data a name of its own"


class SourceEntry(NamedTuple):
    """A source of a mixture, as a journal has it."""

    name: str
    key: str  # of its store
    num_samples: int
    weight: str | None


class MixtureEntry(NamedTuple):
    """A mixture of a run, as a journal has it: what `Mixture.identity` says."""

    at: list[int] | None  # epoch, block and row of its begin; None while only the rows are known
    rows: int  # of the run before it
    point: int | None  # of a table of weights: steps or tokens before it
    mix_by: str | None
    stopping_strategy: str | None
    sources: tuple[SourceEntry, ...]

    @property
    def mix(self) -> tuple[Any, ...]:
        """What is mixed and how, without when."""
        return self.mix_by, self.stopping_strategy, self.sources


def mixture_entry(identity: Sequence[Any]) -> MixtureEntry:
    """Return the entry of a mixture, from its identity or from the JSON of a state."""
    at, rows, point, mix_by, stopping_strategy, sources = identity
    entries = tuple(SourceEntry(*source) for source in sources)
    return MixtureEntry(at, rows, point, mix_by, stopping_strategy, entries)


@dataclass(frozen=True, slots=True)
class KnownStores:
    """The stores of a run by name, and the cache in which those of its earlier mixtures may be."""

    by_name: Mapping[str, Any]

    @property
    def cache(self) -> Cache:
        caches = [store.cache for store in self.by_name.values() if store.cache is not None]
        return caches[0] if caches else open_cache()

    def of_mixtures(self, journal: Sequence[MixtureEntry], *, is_exact: bool) -> dict[str, Any]:
        """Return the stores of all mixtures of a journal by name; of a source that several mixtures have, that of the last.

        is_exact: the stores with the keys of the journal, not stores of the same name that have grown since.
        """
        stores = {}
        for mixture in journal:
            for source in mixture.sources:
                stores[source.name] = self._store_of(source, is_exact=is_exact)
        return stores

    def _store_of(self, source: SourceEntry, *, is_exact: bool) -> Any:
        """Return the store of a source: of this run, else from the cache, else a MissingStore."""
        name = source.name
        store_of_run = self.by_name.get(name)
        if store_of_run is not None and (not is_exact or store_of_run.fingerprint == source.key):
            return store_of_run
        kept = kept_store(name, source.key, self.cache)
        return kept or MissingStore(name, source.key, source.num_samples, self.cache)

    def old_mixture(self, summary: Mapping[str, Any]) -> list[MixtureEntry]:
        """Return the journal of a run that never changed, from what its state says of its sources."""
        named = summary.get("sources") or []
        weights = summary.get("weights") or [None] * len(named)
        is_listed = isinstance(weights, list) and len(weights) == len(named)
        if not is_listed or any(name == ALL_SOURCES for name, _ in named):
            raise PlanMismatch(
                "the state has too many sources to name them; load it into a Loader of the old mixture, and call change_mixture"
            )
        sources = []
        for (name, digest), weight in zip(named, weights, strict=True):
            store = self._with_digest(name, digest)
            sources.append(SourceEntry(name, store.fingerprint, len(store), weight))
        return [
            MixtureEntry(
                at=[0, 0, 0],
                rows=0,
                point=None,
                mix_by=summary.get("mix_by"),
                stopping_strategy=summary.get("stopping_strategy"),
                sources=tuple(sources),
            )
        ]

    def _with_digest(self, name: str, digest: str) -> Any:
        """Return the store of a source, of this run or in the cache."""
        cache = self.cache
        stores_of_run = {store.fingerprint: store for store in self.by_name.values()}
        keys_in_cache = [info.store for info in list_stores(cache).stores]
        for key in dict.fromkeys([*stores_of_run, *keys_in_cache]):
            store = stores_of_run.get(key) or kept_store(name, key, cache)
            if store is not None and plan_source(name, store).digest == digest:
                return store
        raise PlanMismatch(
            f"the store of source {name!r} of the saved run is not in {cache.root}, and what it has delivered is known only "
            f"with it; prepare it again in this cache, or resume with the mixture of the saved run"
        )


def read_journal(journal: Any) -> tuple[list[MixtureEntry], Start]:
    """Return the mixtures of a journal and the start of the segment that the state is in."""
    try:
        start = Start.from_json(journal["start"])
        mixtures = [mixture_entry(identity) for identity in journal["mixtures"]]
        for mixture in mixtures:
            sizes = [source.num_samples for source in mixture.sources]
            place = (0, 0, 0) if mixture.at is None else mixture.at  # epoch, block, row
            check_numbers(mixture.rows, mixture.point or 0, *place, *sizes)
            if not mixture.sources or len(place) != 3:
                raise ValueError("a mixture that no run has")
        if not 0 <= start.number < len(mixtures):
            raise ValueError("a start of no mixture")
        return mixtures, start
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, zlib.error) as error:
        raise PlanMismatch(
            f"the state is damaged: journal: {error}; use an older checkpoint"
        ) from error


def shares_of(mixture: Mixture) -> tuple[Any, ...]:
    """What a mixture mixes, whatever the order of its sources and the sum of its weights."""
    sources = {source.name: (source.key, source.num_samples) for source in mixture.sources}
    if mixture.weights is None:
        return sources, None
    weights = [Fraction(weight) for weight in mixture.weights]
    shares = {
        source.name: weight / sum(weights)
        for source, weight in zip(mixture.sources, weights, strict=True)
    }
    return (
        sources,
        shares,
        mixture.mix_by or "samples",
        mixture.stopping_strategy or "first_exhausted",
    )


def undated(mixture: MixtureEntry) -> MixtureEntry:
    """Return a mixture without the rows of a table of weights: they depend on the batch and world size with which the run began."""
    return mixture if mixture.point is None else mixture._replace(rows=0)


def named(mixture: MixtureEntry) -> dict[str, Any]:
    """Return what is mixed and how under the names that errors and commands show."""
    values = {"mix_by": mixture.mix_by, "stopping_strategy": mixture.stopping_strategy}
    for source in mixture.sources:
        weight = "" if source.weight is None else f", weight {source.weight}"
        values[f"source {source.name!r}"] = (
            f"{source.key[:8]}, {source.num_samples:,} samples{weight}"
        )
    return values


def changed_words(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Say what differs between two mixtures."""
    both = [name for name in after if name in before and before[name] != after[name]]
    words = [f"{name} added: {after[name]}" for name in after if name not in before]
    words += [f"{name} removed: it keeps its place" for name in before if name not in after]
    return words + [f"{name}: {before[name]} → {after[name]}" for name in both]


def mixture_from(entry: MixtureEntry, stores: Mapping[str, Any]) -> Mixture:
    """Return the mixture of an entry, with the rows that its sources had then."""
    sources = []
    for source in entry.sources:
        shard_sizes = sizes_of_rows(stores[source.name].shard_sizes, 0, source.num_samples)
        sources.append(PlanSource(name=source.name, key=source.key, shard_sizes=shard_sizes))
    weights = [source.weight for source in entry.sources if source.weight is not None]
    has_weights = len(weights) == len(sources)
    at = entry.at
    return Mixture(
        sources=tuple(sources),
        weights=tuple(weights) if has_weights else None,
        mix_by=entry.mix_by,
        stopping_strategy=entry.stopping_strategy,
        at=None if at is None else (at[0], at[1], at[2]),
        rows=entry.rows,
        point=entry.point,
    )


def check_source(name: str, store: Any, stores_so_far: Mapping[str, Any]) -> None:
    """Refuse a source whose place in the run is not known for sure."""
    other = next(
        (
            other_name
            for other_name, other_store in stores_so_far.items()
            if other_name != name and other_store.fingerprint == store.fingerprint
        ),
        None,
    )
    if other is not None and name not in stores_so_far:
        raise PlanError(
            f"dataset {name!r} contains the same data as {other!r}, which this run already uses: keep the name {other!r} to continue "
            f"where it stopped; a new name would repeat all samples"
        )
    old = stores_so_far.get(name)
    if old is None or old.fingerprint == store.fingerprint:
        return
    if not (isinstance(old, Store) and isinstance(store, Store)) or isinstance(old, MissingStore):
        raise PlanError(
            f"source {name!r} has other data than before, {old.fingerprint[:8]}, and cannot be compared with it; {_OTHER}"
        )
    if reason := not_grown(old, store):
        raise PlanError(f"source {name!r} has other data than before: {reason}; {_OTHER}")
