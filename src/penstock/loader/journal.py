"""The journal of a run whose mixture changes: which mixtures it has had, as its plan and its saved states say.

Stores of earlier mixtures are looked for in the cache; without them only earlier steps cannot be explained.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

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


@dataclass(frozen=True, slots=True)
class KnownStores:
    """The stores of a run by name, and the cache in which those of its earlier mixtures may be."""

    by_name: Mapping[str, Any]

    @property
    def cache(self) -> Cache:
        caches = [store.cache for store in self.by_name.values() if store.cache is not None]
        return caches[0] if caches else open_cache()

    def of_mixtures(self, journal: Sequence[Any], *, is_exact: bool) -> dict[str, Any]:
        """Return the stores of all mixtures of a journal.  is_exact: those of its keys, not grown ones of the same name."""
        stores = {}
        for *_, sources in journal:
            for name, key, size, _ in sources:
                own = self.by_name.get(name)
                if own is not None and not (is_exact and own.fingerprint != key):
                    stores[name] = own
                    continue
                kept = kept_store(name, key, self.cache)
                stores[name] = kept or MissingStore(name, key, size, self.cache)
        return stores

    def old_mixture(self, summary: Mapping[str, Any]) -> list[Any]:
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
            sources.append([name, store.fingerprint, len(store), weight])
        return [
            [[0, 0, 0], 0, None, summary.get("mix_by"), summary.get("stopping_strategy"), sources]
        ]

    def _with_digest(self, name: str, digest: str) -> Any:
        """Return the store of a source, of this run or in the cache."""
        cache = self.cache
        own = {store.fingerprint: store for store in self.by_name.values()}
        for key in dict.fromkeys([*own, *(info.store for info in list_stores(cache).stores)]):
            store = own.get(key) or kept_store(name, key, cache)
            if store is not None and plan_source(name, store).digest == digest:
                return store
        raise PlanMismatch(
            f"the store of source {name!r} of the saved run is not in {cache.root}, and what it has delivered is known only "
            f"with it; prepare it again in this cache, or resume with the mixture of the saved run"
        )


def read_journal(journal: Any) -> tuple[list[Any], Start]:
    """Return the mixtures of a journal and the start of the segment that the state is in."""
    try:
        start = Start.from_json(journal["start"])
        for at, rows, point, _, _, sources in journal["mixtures"]:
            check_numbers(rows, point or 0, *(at or ()), *(size for _, _, size, _ in sources))
            if not sources or len(at or (0, 0, 0)) != 3:
                raise ValueError("a mixture that no run has")
        if not 0 <= start.number < len(journal["mixtures"]):
            raise ValueError("a start of no mixture")
        return list(journal["mixtures"]), start
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


def undated(identity: list[Any]) -> list[Any]:
    """The identity of a mixture without its rows, which depend on the batch and world size with which the run began."""
    at, rows, point, *rest = identity
    return [at, rows if point is None else None, point, *rest]


def named(identity: list[Any]) -> dict[str, Any]:
    *_, mix_by, stopping_strategy, sources = identity
    return {"mix_by": mix_by, "stopping_strategy": stopping_strategy} | {
        f"source {name!r}": f"{key[:8]}, {size:,} samples"
        + ("" if weight is None else f", weight {weight}")
        for name, key, size, weight in sources
    }


def changed_words(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Say what differs between two mixtures."""
    both = [name for name in after if name in before and before[name] != after[name]]
    words = [f"{name} added: {after[name]}" for name in after if name not in before]
    words += [f"{name} removed: it keeps its place" for name in before if name not in after]
    return words + [f"{name}: {before[name]} → {after[name]}" for name in both]


def mixture_from(identity: list[Any], stores: Mapping[str, Any]) -> Mixture:
    at, rows, point, mix_by, stopping_strategy, sources = identity
    made = [
        PlanSource(name=name, key=key, shard_sizes=sizes_of_rows(stores[name].shard_sizes, 0, size))
        for name, key, size, _ in sources
    ]
    weights = [weight for *_, weight in sources]
    return Mixture(
        sources=tuple(made),
        weights=None if None in weights else tuple(weights),
        mix_by=mix_by,
        stopping_strategy=stopping_strategy,
        at=None if at is None else (at[0], at[1], at[2]),
        rows=rows,
        point=point,
    )


def check_source(name: str, store: Any, known: Mapping[str, Any]) -> None:
    """Refuse a source whose place in the run is not known for sure."""
    other = next(
        (
            each
            for each, old in known.items()
            if each != name and old.fingerprint == store.fingerprint
        ),
        None,
    )
    if other is not None and name not in known:
        raise PlanError(
            f"source {name!r} has the data of {other!r}, which this run has had: under the old name it goes on where it was; "
            f"under a new one everything would come again"
        )
    old = known.get(name)
    if old is None or old.fingerprint == store.fingerprint:
        return
    if not (isinstance(old, Store) and isinstance(store, Store)) or isinstance(old, MissingStore):
        raise PlanError(
            f"source {name!r} has other data than before, {old.fingerprint[:8]}, and cannot be compared with it; {_OTHER}"
        )
    if reason := not_grown(old, store):
        raise PlanError(f"source {name!r} has other data than before: {reason}; {_OTHER}")
