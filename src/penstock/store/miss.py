"""Explain a cache miss: compare with the nearest store, field by field and shard by shard.

A manifest does not contain its records.  But a shard's key is made of records and template, so the same records under that
store's template give its keys.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.cache import Cache
from penstock.errors import StoreError
from penstock.store.inventory import Origin, load_origin, survey
from penstock.store.manifest import Manifest, store_fingerprint
from penstock.store.shards import shard_key, shard_name
from penstock.types import Ints

_MAX_TEXT = 60
_MAX_RANGES = 5  # of changed rows that are listed
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Change:
    """One field of a template's identity."""

    field: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.field}: {self.before} → {self.after}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """What exists of a store, and how it differs from the nearest one."""

    store: str
    num_shards: int
    num_ready: int  # of its shards, whether or not the store is finished
    is_hit: bool
    nearest: str | None = None
    seen: Origin | None = None  # of the nearest store; the name of this key in `cache why --json`
    template: tuple[Change, ...] = ()
    rows: tuple[
        tuple[int, int], ...
    ] = ()  # ranges of our rows that the nearest store does not contain
    num_rows: tuple[int, int] = (0, 0)  # of the nearest store, and of this one

    @property
    def lines(self) -> list[str]:
        """For people, the cause first."""
        if self.is_hit:
            return [f"{self.store[:8]} is complete in the cache: this is a hit"]
        made = f"{self.num_ready} of its {self.num_shards} shards are"
        lines = [f"{self.store[:8]} is not in the cache; {made}"]
        if self.num_ready == self.num_shards:
            lines.append(
                "all its shards are made, only its manifest is missing: prepare will finish at once"
            )
        elif self.nearest is None:
            lines.append("no other store shares its data or its template")
        else:
            name = f" ({self.seen.name})" if self.seen else ""
            lines.append(f"nearest: {self.nearest[:8]}{name}")
            lines += [f"template, {change}" for change in self.template]
            lines += self._data_lines()
        return lines

    def _data_lines(self) -> list[str]:
        before, after = self.num_rows
        if not self.rows and before == after:
            return ["data: the same"]
        lines = []
        if before != after:
            lines.append(f"data: {before:,} records → {after:,}")
        if self.rows == ((0, after),) and self.num_shards > 1:
            lines.append("data: no shard is shared")
        elif self.rows:
            ranges = ", ".join(f"{start:,}..{stop:,}" for start, stop in self.rows[:_MAX_RANGES])
            more = len(self.rows) - _MAX_RANGES
            if more > 0:
                ranges += f" and {more} more ranges"
            lines.append(f"data: changed or new within records {ranges}")
        return lines


def explain_miss(
    template: dict[str, Any], digests: Sequence[str], borders: Ints, cache: Cache
) -> Miss:
    """Look for a store in the cache; if it is not there, compare it with the most similar one.

    template: its identity.  digests: digests[i] is that of the records borders[i]..borders[i + 1], which are one shard.
    """
    keys = [shard_key(digest, template) for digest in digests]
    store = store_fingerprint(keys)
    files = survey(cache)
    manifests = {
        name: manifest
        for name, manifest in files.manifests.items()
        if not isinstance(manifest, StoreError)  # a damaged file
    }
    is_hit = store in manifests and manifests[store].is_whole(cache)
    num_ready = sum(shard_name(key) in files.entries for key in keys)
    without_nearest = Miss(store=store, num_shards=len(keys), num_ready=num_ready, is_hit=is_hit)
    shared = {name: _shared_shards(digests, manifest) for name, manifest in manifests.items()}
    nearest = _nearest(template, shared, manifests)
    if is_hit or nearest is None:
        return without_nearest
    return replace(
        without_nearest,
        nearest=nearest.name,
        seen=load_origin(nearest.name, cache),
        template=tuple(changes(nearest.template, template)),
        rows=tuple(_changed_rows(shared[nearest.name], borders.tolist())),
        num_rows=(nearest.counts.rows, int(borders[-1])),
    )


def _nearest(
    template: dict[str, Any], shared: Mapping[str, list[bool]], manifests: Mapping[str, Manifest]
) -> Manifest | None:
    """The store that shares most shards, and of those one with this template; None if all differ in both."""

    def likeness(name: str) -> tuple[int, bool, str]:
        return sum(shared[name]), manifests[name].template == template, name

    best = max(manifests, key=likeness, default=None)
    if best is None or likeness(best)[:2] == (0, False):
        return None
    return manifests[best]


def _shared_shards(digests: Sequence[str], manifest: Manifest) -> list[bool]:
    """Return whether each of our shards is made of records that the other store contains.

    digests: of the records of each shard.  A shard of the other store with the same records has the key that they give with
    its template.
    """
    theirs = {entry.key for entry in manifest.shards}
    return [shard_key(digest, manifest.template) in theirs for digest in digests]


def _changed_rows(shared: Sequence[bool], borders: Sequence[int]) -> list[tuple[int, int]]:
    """Ranges of records whose shards are not shared, joined where they touch."""
    ranges: list[tuple[int, int]] = []
    for is_shared, start, stop in zip(shared, borders, borders[1:], strict=False):
        if not is_shared:
            start = ranges.pop()[0] if ranges and ranges[-1][1] == start else start
            ranges.append((start, stop))
    return ranges


def changes(before: Any, after: Any, field: str = "") -> list[Change]:
    """Fields in which two plain JSON values differ, by their dotted names."""
    if isinstance(before, dict) and isinstance(after, dict):
        parts = []
        for key in sorted({*before, *after}):
            name = f"{field}.{key}" if field else str(key)
            parts += changes(before.get(key, _MISSING), after.get(key, _MISSING), name)
        return parts
    if type(before) is type(after) and before == after:
        return []
    return [Change(field, _short(before), _short(after))]


def _short(value: Any) -> str:
    text = "not there" if value is _MISSING else repr(value)
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}… ({len(text)} characters)"
