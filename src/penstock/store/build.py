"""source × template × engine → store.  Cuts rows into shards, names each by its content, makes the missing ones.

A process reads, digests, encodes and writes a shard by itself, so work begins at once and the parent only counts.
"""

import logging
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np

from penstock.cache import Cache
from penstock.errors import StoreError
from penstock.store import claims, digests
from penstock.store.agenda import Agenda
from penstock.store.background import Background
from penstock.store.make import MakeShard, ShardTask
from penstock.store.manifest import Manifest, is_whole, load, save, store_fingerprint
from penstock.store.progress import Meter, Show
from penstock.store.reader import open_shard
from penstock.store.schema import shard_key
from penstock.store.store import Store
from penstock.types import Engine, Ints, Source, Template

SHARD_BYTES = 8 << 20
SHARD_ROWS = 1 << 16

_log = logging.getLogger("penstock")


def build(
    source: Source,
    template: Template,
    *,
    engine: Engine,
    cache: Cache,
    refresh: bool = False,
    background: bool = False,
    progress: Show | None = None,
    shard_bytes: int = SHARD_BYTES,
    shard_rows: int = SHARD_ROWS,
) -> Store:
    """A store.  Shards that are there already are not made again, unless `refresh`.  `background`: returns as soon as it is known which
    shards there are, and makes them in the order in which they are asked for; else when all are made."""
    borders = source.cuts(num_bytes=shard_bytes, num_rows=shard_rows)
    mark = digests.stamp(source)  # before a byte is read
    known = None if refresh else digests.recall(mark, borders, cache)
    work = MakeShard(source, template, cache)
    job = _Job(work, borders, cache)
    if known is not None and (manifest := job.find(known)) is not None:
        return job.store(known, manifest=manifest)
    tasks = [
        ShardTask(shard=shard, start=start, stop=stop, digest=known[shard] if known else None, replace=refresh)
        for shard, (start, stop) in enumerate(pairwise(borders.tolist()))
    ]
    sizes = _sizes(source, borders)
    agenda = Agenda(tasks, cache, sizes=sizes, digest_first=background)
    cache.hold("shards", holder=job)  # also what an earlier run left, for which no manifest speaks yet
    meter = Meter(source.name, tasks, progress, sizes=sizes)

    def remember() -> list[str]:
        made = [agenda.digests[shard] for shard in range(len(tasks))]
        if known is None:
            digests.remember(mark, source, borders, made, cache)
        return made

    if background:
        runner = Background(work, agenda, meter, engine)
        found = remember()
        if not refresh and (manifest := job.find(found)) is not None:
            runner.stop()
            return job.store(found, manifest=manifest)
        return job.store(found, background=runner.start(lambda: job.finish(agenda, refresh=refresh)))
    _run(engine, work, agenda, meter)
    return job.store(remember(), manifest=job.finish(agenda, refresh=refresh))


def find(
    source: Source,
    template: Callable[[], Template],
    *,
    cache: Cache,
    shard_bytes: int = SHARD_BYTES,
    shard_rows: int = SHARD_ROWS,
) -> Store | None:
    """The store that `build` would return at once, or None.  No record is read and nothing is made.

    `template` is only called where the cache knows what the source's files hold.
    """
    borders = source.cuts(num_bytes=shard_bytes, num_rows=shard_rows)
    known = digests.recall(digests.stamp(source), borders, cache)
    if known is None:
        return None
    job = _Job(MakeShard(source, template(), cache), borders, cache)
    manifest = job.find(known)
    return None if manifest is None else job.store(known, manifest=manifest)


def digest_shards(
    source: Source,
    template: Template,
    *,
    engine: Engine,
    cache: Cache,
    shard_bytes: int = SHARD_BYTES,
    shard_rows: int = SHARD_ROWS,
) -> tuple[Ints, list[str]]:
    """Where `build` would cut a source, and the digest of each piece; nothing is made.  Files that did not change are not read."""
    borders = source.cuts(num_bytes=shard_bytes, num_rows=shard_rows)
    mark = digests.stamp(source)
    found = digests.recall(mark, borders, cache)
    if found is None:
        tasks = [
            ShardTask(shard=shard, start=start, stop=stop, only_digest=True)
            for shard, (start, stop) in enumerate(pairwise(borders.tolist()))
        ]
        made = sorted(engine.run(MakeShard(source, template, cache), tasks), key=lambda made: made.shard)
        found = [one.digest for one in made]
        digests.remember(mark, source, borders, found, cache)
    return borders, found


def _run(engine: Engine, work: MakeShard, agenda: Agenda, meter: Meter) -> None:
    results = engine.run(work, agenda, told=meter.told)
    try:
        for made in results:
            agenda.take(made)
            meter.made(made)
    except KeyboardInterrupt as error:
        how_far = f"{len(agenda.entries)} of {agenda.num_shards} shards are finished and kept"
        raise KeyboardInterrupt(f"{how_far}: run the same again{_unless_refreshed(agenda)} to go on") from error
    if not agenda.is_done:
        raise StoreError(
            f"{engine!r} ended after {len(agenda.entries)} of {agenda.num_shards} shards, without an error"
        )
    meter.finished()


def _unless_refreshed(agenda: Agenda) -> str:
    """With refresh the next run would begin at the first shard again, and without it those not reached stay as they were."""
    return " without refresh" if any(task.replace for task in agenda.tasks.values()) else ""


class _Job:
    """What a store is made of, and how it is finished."""

    def __init__(self, work: MakeShard, borders: Ints, cache: Cache) -> None:
        self._work, self._borders, self._cache = work, borders, cache

    def find(self, found: list[str]) -> Manifest | None:
        """The manifest of a store of these records, where all that it promises is there."""
        manifest = load(store_fingerprint(self._keys(found)), self._cache)
        return manifest if manifest is not None and is_whole(manifest, self._cache) else None

    def finish(self, agenda: Agenda, *, refresh: bool) -> Manifest:
        """Promise what is whole: every shard was written or read, and its digest taken, by the process that reported it."""
        claims.sweep(self._cache)
        found = [agenda.digests[shard] for shard in range(len(self._borders) - 1)]
        if not refresh and (manifest := self.find(found)) is not None:
            return manifest
        template = self._work.template
        entries = tuple(agenda.entries[shard] for shard in range(len(self._borders) - 1))
        manifest = Manifest(template=self._work.identity, vocab_size=template.vocab_size, shards=entries)
        return save(manifest, self._lengths(manifest), self._cache)

    def _lengths(self, manifest: Manifest) -> Iterator[Ints]:
        """Shard by shard: those of all together may be more than fits into memory."""
        for entry in manifest.shards:
            shard = open_shard(
                entry.key,
                self._cache,
                num_rows=entry.counts.rows,
                vocab_size=manifest.vocab_size,
                num_bytes=entry.num_bytes,
            )
            yield np.diff(shard.offsets).astype(np.int64)

    def store(
        self, found: list[str], *, manifest: Manifest | None = None, background: Background | None = None
    ) -> Store:
        store = Store(
            source=self._work.source,
            template=self._work.template,
            cache=self._cache,
            keys=self._keys(found),
            shard_sizes=np.diff(self._borders).astype(np.int64),
            manifest=manifest,
            background=background,
        )
        _log.info("%s: %s", store.name, store.describe())
        return store

    def _keys(self, found: list[str]) -> list[str]:
        return [shard_key(records, self._work.identity) for records in found]


def _sizes(source: Source, borders: Ints) -> list[int]:
    """About how many bytes each shard's records take, as far as the places of rows tell; empty where they do not."""
    known = [_size(source, start, stop, int(borders[-1])) for start, stop in pairwise(borders.tolist())]
    if not any(known):
        return []
    usual = sorted(known)[len(known) // 2]
    return [size or usual for size in known]


def _size(source: Source, start: int, stop: int, num_rows: int) -> int:
    first = source.where(start)
    if stop < num_rows and (behind := source.where(stop)).file == first.file:
        return max(0, behind.byte - first.byte)
    last = source.where(stop - 1)  # the last row of a file: take it to be as long as the others
    return max(0, last.byte - first.byte) * (stop - start) // max(1, stop - start - 1) if last.file == first.file else 0
