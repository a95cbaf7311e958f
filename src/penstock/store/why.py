"""Why is this not a hit?  Held against the nearest store that there is, field by field and shard by shard.

A manifest does not say what its records were.  But a shard's key is made of records and template, so our own records under
that store's template must give its keys, wherever they are the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.cache import Cache
from penstock.errors import StoreError
from penstock.store.manifest import Manifest, is_whole, store_fingerprint
from penstock.store.prune import survey
from penstock.store.schema import shard_key, shard_name
from penstock.store.seen import Seen, recall
from penstock.types import Ints

_MOST_TEXT = 60


@dataclass(frozen=True, slots=True)
class Change:
    """One field of a template's identity."""

    field: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.field}: {self.before} → {self.after}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """What a store that is asked for has, and how it differs from the nearest one."""

    store: str
    num_shards: int
    num_ready: int  # shards of it that are there, whether or not the store is finished
    is_hit: bool
    nearest: str | None = None
    seen: Seen | None = None
    template: tuple[Change, ...] = ()
    rows: tuple[tuple[int, int], ...] = ()  # ranges of our rows that the nearest store does not have
    num_rows: tuple[int, int] = (0, 0)  # of the nearest store, and asked for

    @property
    def lines(self) -> list[str]:
        """For people, the cause first."""
        if self.is_hit:
            return [f"{self.store[:8]} is there and whole: this is a hit"]
        lines = [f"{self.store[:8]} is not there; {self.num_ready} of its {self.num_shards} shards are"]
        if self.num_ready == self.num_shards:
            lines.append("all its shards are made, only the last step was interrupted: prepare will finish at once")
        elif self.nearest is None:
            lines.append("no other store has any of this data, or this template")
        else:
            lines.append(f"nearest: {self.nearest[:8]}{f' ({self.seen.name})' if self.seen else ''}")
            lines += [f"template, {change}" for change in self.template]
            lines += self._data_lines()
        return lines

    def _data_lines(self) -> list[str]:
        before, after = self.num_rows
        if not self.rows and before == after:
            return ["data: the same"]
        lines = [f"data: {before:,} rows → {after:,}"] if before != after else []
        if len(self.rows) == 1 and self.rows[0] == (0, after) and self.num_shards > 1:
            return [*lines, "data: no shard is the same"]
        ranges = ", ".join(f"{start:,}..{stop:,}" for start, stop in self.rows[:5])
        more = f" and {len(self.rows) - 5} more ranges" if len(self.rows) > 5 else ""
        return [*lines, f"data: changed or new within rows {ranges}{more}"] if self.rows else lines


def why(template: dict[str, Any], records: Sequence[str], borders: Ints, cache: Cache) -> Why:
    """`template`: its identity.  `records`: the digest of each shard's records, rows borders[i]..borders[i + 1]."""
    keys = [shard_key(content, template) for content in records]
    store = store_fingerprint(keys)
    found = survey(cache)
    whole = {name: manifest for name, manifest in found.manifests.items() if not isinstance(manifest, StoreError)}
    answer = Why(
        store=store,
        num_shards=len(keys),
        num_ready=sum(shard_name(key) in found.entries for key in keys),
        is_hit=store in whole and is_whole(whole[store], cache),
    )
    if answer.is_hit:
        return answer
    rated = [(_rate(template, records, manifest), name) for name, manifest in whole.items()]
    if not rated or max(rated)[0] == (0, 0):
        return answer
    nearest = whole[max(rated)[1]]
    return Why(
        store=store,
        num_shards=answer.num_shards,
        num_ready=answer.num_ready,
        is_hit=False,
        nearest=nearest.name,
        seen=recall(nearest.name, cache),
        template=tuple(changes(nearest.template, template)),
        rows=tuple(_changed_rows(records, borders, nearest)),
        num_rows=(nearest.counts.rows, int(borders[-1])),
    )


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


_MISSING = object()


def _short(value: Any) -> str:
    if value is _MISSING:
        return "not there"
    text = repr(value)
    return text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 1]}… ({len(text)} characters)"


def _rate(template: dict[str, Any], records: Sequence[str], manifest: Manifest) -> tuple[int, int]:
    """How near: shards of the same records, then whether the template is the same."""
    theirs = {entry.key for entry in manifest.shards}
    same = sum(shard_key(content, manifest.template) in theirs for content in records)
    return same, int(manifest.template == template)


def _changed_rows(records: Sequence[str], borders: Ints, manifest: Manifest) -> list[tuple[int, int]]:
    theirs = {entry.key for entry in manifest.shards}
    ranges: list[tuple[int, int]] = []
    for content, start, stop in zip(records, borders[:-1].tolist(), borders[1:].tolist(), strict=True):
        if shard_key(content, manifest.template) in theirs:
            continue
        if ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], stop)
        else:
            ranges.append((start, stop))
    return ranges
