"""source × template × engine → store: cut → digest → make shards → publish → manifest.

A worker reads, digests, encodes and writes a shard itself; this process only counts, and writes the manifest last.
"""

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.cache import Cache
from penstock.cache.claims import WaitingRoom, sweep_claims
from penstock.errors import StoreError
from penstock.store.digests import (
    SHARD_BYTES,
    SHARD_ROWS,
    RowRanges,
    forget_digests,
    rows_per_shard,
)
from penstock.store.inventory import prune
from penstock.store.manifest import Manifest, load, save, store_fingerprint
from penstock.store.progress import Show, SpeedMeter
from penstock.store.shards import ShardEntry, open_shard, read_summary, shard_name
from penstock.store.store import RENEW_SECONDS, Store
from penstock.store.work import DigestShard, MadeShard, MakeShard, ShardTask, TaskProgress
from penstock.types import (
    AnyTemplate,
    Column,
    Engine,
    Ints,
    Source,
    columns_of,
    longest_sequences,
    run_inline,
)
from penstock.words import size as in_words

_JOIN_SECONDS = 10.0

_log = logging.getLogger("penstock")


def build(
    source: Source,
    template: AnyTemplate,
    *,
    engine: Engine,
    cache: Cache,
    refresh: bool = False,
    background: bool = False,
    progress: Show | None = None,
    shard_bytes: int = SHARD_BYTES,
    shard_rows: int | None = None,
) -> Store:
    """Make a store; return when all shards are made.  Published shards are not made again, unless `refresh`.

    background: return as soon as all digests are known, and make the shards in the order in which they are read.
    """
    num_rows = shard_rows or rows_per_shard(columns_of(template))
    if background and is_open_stream(source):
        from penstock.store.stream import StreamStore  # which builds itself when it is waited for

        return StreamStore(
            source=source, template=template, cache=cache, engine=engine, num_rows=num_rows
        )
    ranges = RowRanges(source, cache, num_bytes=shard_bytes, num_rows=num_rows)
    work = MakeShard(source, template, cache)
    digests = None if refresh else ranges.recall()
    if background and digests is None:
        digests = _read_digests(source, ranges, engine, refresh=refresh)
    if digests is not None and not refresh:
        manifest = _find_manifest(work, digests)
        if manifest is not None:
            return _store(work, ranges, digests, manifest=manifest)
    _say_older_format(cache)
    tasks = _tasks(ranges, digests, replace=refresh)
    builder = Builder(work, tasks, engine, progress, sizes=ranges.sizes())
    if background and digests is not None:
        return _store(work, ranges, digests, builder=builder.start())
    manifest = builder.run()
    if digests is None:
        digests = ranges.remember(builder.digests)
    return _store(work, ranges, digests, manifest=manifest)


def is_open_stream(source: Any) -> bool:
    """Whether a source is a stream whose end was not read yet."""
    return getattr(source, "is_stream", False) and not source.has_ended


def find(
    source: Source, template: Callable[[], AnyTemplate], *, columns: Sequence[Column], cache: Cache
) -> Store | None:
    """The store that `build` would return at once, or None.  No record is read and nothing is made.

    `template` is only called where the cache knows the digests of the source; `columns` are those that it declares.
    """
    ranges = RowRanges(source, cache, num_rows=rows_per_shard(columns))
    digests = ranges.recall()
    if digests is None:
        return None
    work = MakeShard(source, template(), cache)
    manifest = _find_manifest(work, digests)
    return None if manifest is None else _store(work, ranges, digests, manifest=manifest)


def digest_shards(
    source: Source,
    *,
    engine: Engine,
    cache: Cache,
    shard_bytes: int = SHARD_BYTES,
    shard_rows: int = SHARD_ROWS,
) -> tuple[Ints, list[str]]:
    """The borders at which `build` would cut a source, and the digest of each piece.  Unchanged files are not read."""
    ranges = RowRanges(source, cache, num_bytes=shard_bytes, num_rows=shard_rows)
    return ranges.borders, ranges.recall() or _read_digests(source, ranges, engine)


def _read_digests(
    source: Source, ranges: RowRanges, engine: Engine, *, refresh: bool = False
) -> list[str]:
    """Digest all records; read those whose digest the cache does not have, with `refresh` all."""
    tasks = _tasks(ranges, None, replace=refresh)
    digests = {}
    for made in engine.run(DigestShard(source, ranges.cache), tasks):
        digests[made.shard] = made.digest
    if len(digests) < len(ranges.pairs):
        raise StoreError(
            f"{engine!r} ended after {len(digests)} of {len(ranges.pairs)} shards, without an error"
        )
    return ranges.remember([digests[shard] for shard in range(len(ranges.pairs))])


def _tasks(ranges: RowRanges, digests: list[str] | None, *, replace: bool) -> list[ShardTask]:
    return [
        ShardTask(
            shard=shard,
            start=start,
            stop=stop,
            digest=digests[shard] if digests else None,
            stamp=ranges.stamp,
            replace=replace,
        )
        for shard, (start, stop) in enumerate(ranges.pairs)
    ]


def _find_manifest(work: MakeShard, digests: list[str]) -> Manifest | None:
    """The manifest of a store of these records, if all files that it promises exist."""
    manifest = load(store_fingerprint(work.keys(digests)), work.cache)
    return manifest if manifest is not None and manifest.is_whole(work.cache) else None


def _say_older_format(cache: Cache) -> None:
    """Log once that stores of Penstock 0.2 are not read.  Only that release kept digests in a folder of this name."""
    if cache.where not in _SAID and cache.names("digests"):
        _log.warning(
            "%s has stores of Penstock 0.2, whose format this release does not read: they are prepared again; "
            "`penstock cache prune --older-than 1d` removes the old files",
            cache.where,
        )
    _SAID.add(cache.where)


_SAID: set[str] = set()


def _store(
    work: MakeShard,
    ranges: RowRanges,
    digests: list[str],
    *,
    manifest: Manifest | None = None,
    builder: "Builder | None" = None,
) -> Store:
    store = Store(
        source=work.source,
        template=work.template,
        cache=work.cache,
        keys=work.keys(digests),
        shard_sizes=np.diff(ranges.borders).astype(np.int64),
        manifest=manifest,
        builder=builder,
    )
    # commands print it themselves
    _log.info("%s: %s", store.name, store.describe(), extra={"is_answer": True})
    return store


class Builder:
    """Makes the shards of one store: in this thread, or in a thread of its own while a trainer reads the store.

    A copy of it in another process makes what it is asked for itself, or waits for this process.
    """

    def __init__(
        self,
        work: MakeShard,
        tasks: list[ShardTask],
        engine: Engine,
        progress: Show | None,
        *,
        sizes: list[int],
    ) -> None:
        """Start the engine, in the caller's thread."""
        self._work = work
        self._tasks = tasks
        self._is_refresh = any(task.replace for task in tasks)
        self._queue = ShardQueue(tasks, sizes=sizes)
        self._meter = SpeedMeter(work.source.name, tasks, progress, sizes=sizes)
        self._engine = repr(engine)
        self._results = engine.run(work, self._queue, on_note=self._note)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_over = False
        self._owner = os.getpid()
        self._error: BaseException | None = None
        self._next_renewal = time.monotonic() + RENEW_SECONDS
        self.manifest: Manifest | None = None  # once all shards are made

    def _note(self, task: ShardTask, note: TaskProgress) -> None:
        if self._queue.is_stopped:
            # an engine without processes cannot be closed from another thread
            raise StoreError("the store was closed")
        self._meter.note(task, note)

    @property
    def digests(self) -> list[str]:
        """The digest of each shard's records, once all are made."""
        return [self._queue.digests[shard] for shard in range(len(self._tasks))]

    def run(self) -> Manifest:
        """Make all shards, and publish the manifest."""
        queue = self._queue
        try:
            for result in self._results:
                with self._changed:
                    queue.add_result(result)
                    self._changed.notify_all()
                self._meter.add_result(result)
                self._renew_shards()
            if not queue.is_done:
                how_far = f"{len(queue.entries)} of {len(queue.tasks)} shards"
                raise StoreError(f"{self._engine} ended after {how_far}, without an error")
            self.manifest = self._finish()
            self._meter.show(is_done=True)
        except KeyboardInterrupt as error:
            # With refresh the next run would begin at the first shard again.
            how = " without refresh" if self._is_refresh else ""
            how_far = f"{len(queue.entries)} of {len(queue.tasks)} shards are finished and kept"
            raise KeyboardInterrupt(f"{how_far}: run the same again{how} to continue") from error
        finally:
            self._close()
        return self.manifest

    def _renew_shards(self) -> None:
        """Hourly, keep the finished shards for another day: no manifest names them yet."""
        now = time.monotonic()
        if now < self._next_renewal:
            return
        self._next_renewal = now + RENEW_SECONDS
        for entry in [*self._queue.entries.values()]:
            self._work.cache.renew(shard_name(entry.key))

    def _finish(self) -> Manifest:
        """Publish the manifest: every shard was written or read, and digested, by the process that reported it."""
        work = self._work
        cache = work.cache
        sweep_claims(cache)
        forget_digests(cache)
        if not self._is_refresh:
            manifest = _find_manifest(work, self.digests)
            if manifest is not None:
                return manifest
        entries = tuple(self._queue.entries[shard] for shard in range(len(self._tasks)))
        manifest = Manifest(
            template=work.identity, vocab_size=work.schema.vocab_size, shards=entries
        )
        # lengths of one shard at a time: all may not fit into memory
        lengths: Iterable[npt.NDArray[Any]] = map(self._lengths, entries)
        if manifest.row_sequences > 1:
            lengths = chain(lengths, map(self._longest, entries))
        save(manifest, lengths, cache)
        if cache.max_bytes is not None:
            _keep_below(cache, cache.max_bytes)
        return manifest

    def _lengths(self, entry: ShardEntry) -> Ints:
        published, lengths = read_summary(entry.key, self._work.cache, num_rows=entry.counts.rows)
        if published != entry:
            raise StoreError(
                f"{self._work.cache.path(shard_name(entry.key))}: changed after it was made; run again, and pass refresh=True"
            )
        return lengths

    def _longest(self, entry: ShardEntry) -> npt.NDArray[np.int32]:
        """Return the lengths of the longest sequences of a shard's samples."""
        work = self._work
        work.cache.fetch_all([entry.file])
        tokens = open_shard(entry.key, work.cache, work.schema, num_rows=entry.counts.rows)
        return longest_sequences(tokens.columns, tokens.offsets)

    def start(self) -> "Builder":
        """Run in a thread."""
        self._thread = threading.Thread(
            target=self._run_in_thread, name="penstock-prepare", daemon=True
        )
        self._thread.start()
        return self

    def _run_in_thread(self) -> None:
        try:
            self.run()
        except BaseException as error:  # raised again where a reader needs what is missing now
            if not self._queue.is_stopped:
                _log.warning("preparing in the background has stopped: %s", error)
                self._error = error
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()

    def want(self, shards: Iterable[int]) -> None:
        """Make these first, in this order."""
        if self._is_mine:
            self._queue.want([shard for shard in shards if shard not in self._queue.entries])

    def make(self, shard: int) -> None:
        """Return when the shard is made; raise the error that stopped it."""
        if self._is_mine:
            self.want([shard])
            queue = self._queue
            with self._changed:
                self._changed.wait_for(
                    lambda: shard in queue.entries or shard in queue.waiting or self._is_over
                )
            if shard in queue.entries:
                return
            if self._error is not None:
                raise self._error
        make_here(self._work, self._tasks[shard])

    def wait(self) -> None:
        """Return when all shards are made and the manifest is written."""
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error
        if self.manifest is None:
            raise StoreError(
                "the store was closed before all of its shards were made; prepare it again to continue"
            )

    def stop(self) -> None:
        """End the work under way; finished shards are kept."""
        if self._is_mine:
            self._queue.is_stopped = True
            self._close()
            if self._thread is not None and self._thread is not threading.current_thread():
                self._thread.join(_JOIN_SECONDS)

    @property
    def _is_mine(self) -> bool:
        return os.getpid() == self._owner

    def _close(self) -> None:
        with contextlib.suppress(Exception):  # not every engine's iterator has it
            self._results.close()  # type: ignore[attr-defined]

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        for name in ("_queue", "_meter", "_results", "_changed", "_thread", "_error"):
            state[name] = None
        state["_owner"] = -1
        return state


def make_here(work: MakeShard, task: ShardTask) -> None:
    """Make one shard in this thread, or wait for the process that makes it."""
    queue = ShardQueue([task])
    for made in run_inline(work, queue):
        queue.add_result(made)


def _keep_below(cache: Cache, max_bytes: int) -> None:
    """Prune a cache to its limit; say so where what was used lately is more than that."""
    pruned = prune(cache, max_bytes=max_bytes)
    if pruned.num_left > max_bytes:
        _log.warning(
            "%s holds %s, more than its limit of %s: what is left was used within a day, and is kept",
            cache.where,
            in_words(pruned.num_left),
            in_words(max_bytes),
        )


def large_first(shards: Iterable[int], sizes: Sequence[int]) -> list[int]:
    """Order shards so that a large one does not begin last and keep one process busy while the others wait.

    Shards below twice the median keep their order: it is the order in which they are read.
    """
    median = sorted(sizes)[len(sizes) // 2] if sizes else 0
    if not median:  # sizes are not known
        return list(shards)
    return sorted(shards, key=lambda shard: sizes[shard] // (2 * median), reverse=True)


class ShardQueue:
    """The shards to make: those that a reader waits for, then the largest, then the rest in order.

    An engine takes a task whenever a process is free.  Shards that other processes make come last, as their waiting room says.  One
    thread may take tasks while others ask for shards.
    """

    def __init__(self, tasks: Sequence[ShardTask], *, sizes: Sequence[int] = ()) -> None:
        """`sizes` of the shards, where known: those of at least twice the usual size go first."""
        self.tasks = {task.shard: task for task in tasks}
        self.entries: dict[int, ShardEntry] = {}  # of finished shards
        self.digests: dict[int, str] = {}
        self.waiting = WaitingRoom()  # shards that other processes make
        self.is_stopped = False  # set it to yield no more tasks
        self._left = set(self.tasks)
        # both may name shards that are not left
        self._order = deque(large_first(self.tasks, sizes))
        self._wanted: deque[int] = deque()
        self._lock = threading.Lock()

    def __length_hint__(self) -> int:
        return len(self._left)

    @property
    def is_done(self) -> bool:
        """Whether every shard is made."""
        return len(self.entries) == len(self.tasks)

    def __iter__(self) -> Iterator[ShardTask | None]:
        """Yield tasks until all are done, or no more are needed; None if no task is ready."""
        while True:
            with self._lock:
                if self.is_stopped or self.is_done:
                    return
                shard = self._next()
            yield None if shard is None else self.tasks[shard]

    def _next(self) -> int | None:
        while self._wanted or self._order:
            shard = (self._wanted or self._order).popleft()
            if shard in self._left:
                self._left.remove(shard)
                return shard
        return self.waiting.next_due()

    def want(self, shards: Iterable[int]) -> None:
        """Make these first, in this order."""
        with self._lock:
            self._wanted = deque(dict.fromkeys([*shards, *self._wanted]))

    def add_result(self, result: MadeShard) -> None:
        """Note the result of a task."""
        shard = result.shard
        if result.damage:
            _log.warning("%s; Penstock made it again", result.damage)
        with self._lock:
            if result.digest is not None:
                self.digests[shard] = result.digest
            if result.entry is not None:
                self.entries[shard] = result.entry
                self.waiting.leave(shard)
            elif result.held is not None:
                is_stale = self.waiting.wait(shard, result.held)
                self.tasks[shard] = replace(
                    self.tasks[shard], digest=result.digest, claim=result.held, take_over=is_stale
                )
