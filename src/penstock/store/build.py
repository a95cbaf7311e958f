"""source × template × engine → store.  Cut rows into shards, name each by its content, make the missing ones.

A worker reads, digests, encodes and writes a shard itself; the parent only counts.
"""

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Any

import numpy as np

from penstock.cache import Cache
from penstock.cache.claims import STALE_SECONDS, Held, sweep_claims
from penstock.errors import StoreError
from penstock.store.digests import SHARD_BYTES, SHARD_ROWS, RowRanges, rows_per_shard
from penstock.store.inventory import prune
from penstock.store.manifest import Manifest, load, save, store_fingerprint
from penstock.store.shards import ShardEntry, open_shard, shard_name
from penstock.store.store import Store
from penstock.store.work import DigestShard, Made, MakeShard, Meter, ShardTask, Show, TaskProgress
from penstock.types import AnyTemplate, Column, Engine, Ints, Source, columns_of, run_inline

# seconds until a claimed shard is tried again
_FIRST_PAUSE = 0.05
_MAX_PAUSE = 2.0
_MAX_WAIT = 600.0  # seconds; then a shard is made here, although its owner still works on it
_LOG_SECONDS = 30.0
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
    known = None if refresh else ranges.recall()
    if background and known is None:
        known = _digest(source, ranges, engine, refresh=refresh)
    if known is not None and not refresh and (manifest := _find_manifest(work, known)) is not None:
        return _store(work, ranges, known, manifest=manifest)
    tasks = _tasks(ranges, known, replace=refresh)
    builder = Builder(work, tasks, engine, progress, sizes=ranges.sizes())
    if background and known is not None:
        return _store(work, ranges, known, builder=builder.start())
    manifest = builder.run()
    return _store(work, ranges, known or ranges.remember(builder.digests), manifest=manifest)


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
    known = ranges.recall()
    if known is None:
        return None
    work = MakeShard(source, template(), cache)
    manifest = _find_manifest(work, known)
    return None if manifest is None else _store(work, ranges, known, manifest=manifest)


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
    return ranges.borders, ranges.recall() or _digest(source, ranges, engine)


def _digest(
    source: Source, ranges: RowRanges, engine: Engine, *, refresh: bool = False
) -> list[str]:
    """Digest all rows; read those whose digest the cache does not have, with `refresh` all."""
    tasks = _tasks(ranges, None, replace=refresh)
    found = {
        made.shard: made.digest for made in engine.run(DigestShard(source, ranges.cache), tasks)
    }
    if len(found) < len(ranges.pairs):
        raise StoreError(
            f"{engine!r} ended after {len(found)} of {len(ranges.pairs)} shards, without an error"
        )
    return ranges.remember([found[shard] for shard in range(len(ranges.pairs))])


def _tasks(ranges: RowRanges, known: list[str] | None, **options: Any) -> list[ShardTask]:
    return [
        ShardTask(
            shard=shard,
            start=start,
            stop=stop,
            digest=known[shard] if known else None,
            digest_name=ranges.name_of(shard),
            **options,
        )
        for shard, (start, stop) in enumerate(ranges.pairs)
    ]


def _find_manifest(work: MakeShard, found: list[str]) -> Manifest | None:
    """The manifest of a store of these records, if all files that it promises exist."""
    manifest = load(store_fingerprint(work.keys(found)), work.cache)
    return manifest if manifest is not None and manifest.is_whole(work.cache) else None


def _store(work: MakeShard, ranges: RowRanges, found: list[str], **made: Any) -> Store:
    keys = work.keys(found)
    sizes = np.diff(ranges.borders).astype(np.int64)
    store = Store(
        source=work.source,
        template=work.template,
        cache=work.cache,
        keys=keys,
        shard_sizes=sizes,
        **made,
    )
    _log.info(
        "%s: %s", store.name, store.describe(), extra={"is_answer": True}
    )  # commands print it themselves
    return store


class _Lease:
    """Holds shards that no manifest names yet."""


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
        self._lease: _Lease | None = _Lease()
        work.cache.hold("shards", holder=self._lease)  # also shards of an earlier run
        self._queue = ShardQueue(tasks, sizes=sizes)
        self._meter = Meter(work.source.name, tasks, progress, sizes=sizes)
        self._engine = repr(engine)
        self._results = engine.run(work, self._queue, on_note=self._note)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_over = False
        self._owner = os.getpid()
        self._error: BaseException | None = None
        self.manifest: Manifest | None = None  # once all shards are made

    def _note(self, task: ShardTask, note: TaskProgress) -> None:
        if (
            self._queue.is_stopped
        ):  # an engine without processes cannot be closed from another thread
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
            for made in self._results:
                if made.entry is not None:
                    # Its process holds the shard too, but may end before the manifest is written.
                    self._work.cache.hold(shard_name(made.entry.key), holder=self._lease)
                with self._changed:
                    queue.add_result(made)
                    self._changed.notify_all()
                self._meter.add_result(made)
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
            self._lease = None
            self._close()
        return self.manifest

    def _finish(self) -> Manifest:
        """Publish the manifest: every shard was written or read, and digested, by the process that reported it."""
        work = self._work
        cache = self._work.cache
        sweep_claims(cache)
        if not self._is_refresh and (known := _find_manifest(work, self.digests)) is not None:
            return known
        entries = tuple(self._queue.entries[shard] for shard in range(len(self._tasks)))
        manifest = Manifest(
            template=work.identity, vocab_size=work.schema.vocab_size, shards=entries
        )
        save(
            manifest, map(self._lengths, entries), cache
        )  # one shard at a time: all may not fit into memory
        if cache.max_bytes is not None:
            prune(cache, max_bytes=cache.max_bytes)
        return manifest

    def _lengths(self, entry: ShardEntry) -> Ints:
        cache = self._work.cache
        counts = entry.counts
        cache.fetch_all(
            [entry.file]
        )  # from a bucket, where another machine may have put it: checks its digest
        shard = open_shard(
            entry.key, cache, self._work.schema, num_rows=counts.rows, num_bytes=entry.num_bytes
        )
        return np.diff(shard.offsets)

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
        alone = ShardQueue([self._tasks[shard]])
        for made in run_inline(
            self._work, alone
        ):  # in this thread, or wait for the process that makes it
            alone.add_result(made)

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
        own = ("_lease", "_queue", "_meter", "_results", "_changed", "_thread", "_error")
        return {**self.__dict__, **dict.fromkeys(own), "_owner": -1}


@dataclass(slots=True)
class _Waiting:
    """A shard that another process makes."""

    held: Held
    begun: float
    changed: float  # when its owner last showed a sign of life
    pause: float = _FIRST_PAUSE


class ShardQueue:
    """The shards to make: those that a reader waits for, then the largest, then the rest in order.

    An engine takes a task whenever a process is free.  Shards that other processes make come last, each again after a pause until
    it is found, or given up by its owner, or taken over.  One thread may take tasks while others ask for shards.
    """

    def __init__(self, tasks: Sequence[ShardTask], *, sizes: Sequence[int] = ()) -> None:
        """`sizes` of the shards, where known: those of at least twice the usual size go first."""
        self.tasks = {task.shard: task for task in tasks}
        self.entries: dict[int, ShardEntry] = {}  # of finished shards
        self.digests: dict[int, str] = {}
        usual = sorted(sizes)[len(sizes) // 2] if sizes else 0
        self._left = set(self.tasks)
        self._order = deque(
            sorted(self.tasks, key=lambda shard: -(sizes[shard] // (2 * usual)) if usual else 0)
        )
        self._wanted: deque[int] = deque()  # this and `_order` may name shards that are not left
        self.waiting: dict[int, _Waiting] = {}  # shards that other processes make
        self._retries: list[tuple[float, int]] = []  # heap of (when, shard)
        self._next_log = time.monotonic() + _LOG_SECONDS
        self._lock = threading.Lock()
        self.is_stopped = False  # set it to yield no more tasks

    def __length_hint__(self) -> int:
        return len(self._left)

    @property
    def is_done(self) -> bool:
        """Whether every shard is made."""
        return len(self.entries) == len(self.tasks)

    def __iter__(self) -> Iterator[ShardTask | None]:
        """Yield tasks until all are done, or no more are needed; None if there is no task now."""
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
        is_due = bool(self._retries) and self._retries[0][0] <= time.monotonic()
        return heappop(self._retries)[1] if is_due else None

    def want(self, shards: Iterable[int]) -> None:
        """Make these first, in this order."""
        with self._lock:
            self._wanted = deque(dict.fromkeys([*shards, *self._wanted]))

    def add_result(self, made: Made) -> None:
        """Note the result of a task."""
        if made.damage:
            _log.warning("%s; Penstock made it again", made.damage)
        with self._lock:
            if made.digest is not None:
                self.digests[made.shard] = made.digest
            if made.entry is not None:
                self.entries[made.shard] = made.entry
                self.waiting.pop(made.shard, None)
            elif made.held is not None:
                self._try_later(made.shard, made.held, made.digest)

    def _try_later(self, shard: int, held: Held, digest: str | None) -> None:
        now = time.monotonic()
        each = self.waiting.setdefault(shard, _Waiting(held, now, now))
        if held != each.held:
            each.held = held
            each.changed = now
        silent = now - each.changed
        waited = now - each.begun
        is_stale = silent > STALE_SECONDS or waited > _MAX_WAIT
        if is_stale:
            text = "shard %d is claimed by %s, waited for %.0f s, last sign of life %.0f s ago; it is made here now"
            _log.warning(text, shard, held, waited, silent)
        elif now > self._next_log:
            self._next_log = now + _LOG_SECONDS
            text = "waiting for %d shards that other processes make; shard %d by %s for %.0f s"
            _log.info(text, len(self.waiting), shard, held, waited)
        self.tasks[shard] = replace(
            self.tasks[shard], digest=digest, claim=held, take_over=is_stale
        )
        pause = max(
            each.pause, _MAX_PAUSE * len(self.waiting) / 1000
        )  # thousands of shards are tried less often
        each.pause = min(2 * each.pause, _MAX_PAUSE)
        when = now + pause * (0.5 + os.urandom(1)[0] / 256)  # not all processes at once
        heappush(self._retries, (0.0 if is_stale else when, shard))
