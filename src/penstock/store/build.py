"""source × template × engine → store.  Cuts rows into shards, names each by its content, makes the missing ones."""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from penstock.cache import Cache
from penstock.errors import SourceChanged, StoreError, TemplateError
from penstock.fingerprint import fingerprint
from penstock.store.manifest import Manifest, ShardEntry, is_whole, load, save, store_fingerprint
from penstock.store.reader import open_shard
from penstock.store.schema import FORMAT_VERSION, shard_name
from penstock.store.store import Store
from penstock.store.writer import write_shard
from penstock.types import BadRow, Engine, Ints, Record, Samples, Source, Template

SHARD_BYTES = 8 << 20
SHARD_ROWS = 1 << 16

_log = logging.getLogger("penstock")


@dataclass(frozen=True, slots=True)
class ShardTask:
    """Records start..stop → one shard."""

    shard: int
    start: int
    stop: int
    digest: str  # of the records, as they were when the shard got its key
    key: str
    replace: bool = False  # whatever lies under that name


@dataclass(frozen=True, slots=True)
class MakeShard:
    """The work of one process: sent to it once, called with each task."""

    source: Source
    template: Template
    cache: Cache

    def __call__(self, task: ShardTask) -> int:
        """Make and publish a shard; its number."""
        bad: dict[int, str] = {}
        try:
            samples = self.template.encode(_good(self.source.records(task.start, task.stop), bad))
        except TemplateError as error:
            if error.record is None:
                raise
            row = int(_good_rows(task.stop - task.start, bad)[error.record])
            raise TemplateError(f"{self.source.where(task.start + row)}: {error}") from error
        found = len(samples.offsets) - 1 + len(bad)
        if found != task.stop - task.start:
            raise StoreError(f"{self.template!r} gave {found} samples for {task.stop - task.start} records")
        samples = _with_bad(samples, bad)
        if self.source.digest(task.start, task.stop) != task.digest:
            raise SourceChanged(
                f"{self.source.where(task.start)}: rows {task.start}..{task.stop} changed while they were tokenized; "
                f"run again, what did not change is kept"
            )
        vocab_size = self.template.vocab_size
        self.cache.publish(
            shard_name(task.key),
            lambda file: write_shard(file, samples, vocab_size=vocab_size),
            replace=task.replace,
        )
        return task.shard


def _good(records: Iterable[Record | BadRow], bad: dict[int, str]) -> Iterator[Record]:
    """The records that can be read; the others are noted in `bad`, by their number in this shard."""
    for number, record in enumerate(records):
        if isinstance(record, BadRow):
            bad[number] = record.reason
        else:
            yield record


def _good_rows(num_rows: int, bad: dict[int, str]) -> Ints:
    return np.delete(np.arange(num_rows, dtype=np.int64), list(bad))


def _with_bad(samples: Samples, bad: dict[int, str]) -> Samples:
    """Bad rows as samples without tokens, so that sample i stays row i."""
    if not bad:
        return samples
    lengths = np.zeros(len(samples.offsets) - 1 + len(bad), np.int64)
    rows = _good_rows(len(lengths), bad)
    lengths[rows] = np.diff(samples.offsets)
    dropped = {int(rows[number]): reason for number, reason in samples.dropped.items()} | bad
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    return replace(samples, offsets=offsets, dropped=dict(sorted(dropped.items())))


def build(
    source: Source,
    template: Template,
    *,
    engine: Engine,
    cache: Cache,
    refresh: bool = False,
    shard_bytes: int = SHARD_BYTES,
    shard_rows: int = SHARD_ROWS,
) -> Store:
    """A whole store.  Shards that are there already are not made again, unless `refresh`."""
    borders = source.cuts(num_bytes=shard_bytes, num_rows=shard_rows)
    tasks = _tasks(source, template, borders)
    keys = [task.key for task in tasks]
    manifest = None if refresh else load(store_fingerprint(keys), cache)
    if manifest is None or not is_whole(manifest, cache):
        for _ in engine.run(MakeShard(source, template, cache), _missing(tasks, template, cache, refresh)):
            pass
        manifest = _finish(template, tasks, cache)
    store = Store(
        source=source,
        template=template,
        cache=cache,
        keys=keys,
        shard_sizes=np.diff(borders).astype(np.int64),
        manifest=manifest,
    )
    _log.info("%s: %s", store.name, store.describe())
    return store


def _tasks(source: Source, template: Template, borders: Ints) -> list[ShardTask]:
    identity = template.identity()
    tasks = []
    for shard, (start, stop) in enumerate(zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True)):
        content = source.digest(start, stop)
        key = fingerprint({"format": FORMAT_VERSION, "records": content, "template": identity})
        tasks.append(ShardTask(shard=shard, start=start, stop=stop, digest=content, key=key))
    return tasks


def _missing(tasks: list[ShardTask], template: Template, cache: Cache, refresh: bool) -> list[ShardTask]:
    """Tasks for shards that are not there, or not whole.  Equal content twice is one shard and one task."""
    missing = []
    for task in {task.key: task for task in tasks}.values():
        if refresh:
            missing.append(replace(task, replace=True))
        elif cache.size(shard_name(task.key)) is None:
            missing.append(task)
        else:
            try:
                open_shard(task.key, cache, num_rows=task.stop - task.start, vocab_size=template.vocab_size)
            except StoreError as error:
                _log.warning("%s; it is made again now", error)
                missing.append(replace(task, replace=True))
    return missing


def _finish(template: Template, tasks: list[ShardTask], cache: Cache) -> Manifest:
    """Open every shard once, so that the manifest promises only what is whole."""
    entries: list[ShardEntry] = []
    lengths: list[Ints] = []
    for task in tasks:
        num_rows = task.stop - task.start
        shard = open_shard(task.key, cache, num_rows=num_rows, vocab_size=template.vocab_size)
        size = cache.size(shard_name(task.key))
        entries.append(ShardEntry(key=task.key, num_bytes=size or 0, counts=shard.counts))
        lengths.append(np.diff(shard.offsets))
    manifest = Manifest(template=template.identity(), vocab_size=template.vocab_size, shards=tuple(entries))
    save(manifest, lengths, cache)
    return manifest
