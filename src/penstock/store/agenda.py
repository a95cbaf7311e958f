"""Which shard next?  What somebody waits for, then the largest; what another process makes is waited for, but not forever.

An engine asks whenever a process is free.  Safe to be asked by one thread while others say what they want.
"""

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from penstock.cache import Cache
from penstock.store import claims
from penstock.store.claims import Held
from penstock.store.make import Made, ShardTask
from penstock.store.manifest import ShardEntry
from penstock.store.schema import shard_name

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # seconds between looks at what others have finished
_PATIENCE = 600.0  # seconds; then a shard is made here, although its owner still says that it works on it
_TELL_SECONDS = 30.0

_log = logging.getLogger("penstock")


class Stopped(BaseException):
    """Raised where the next task would be given, once nobody wants any more."""


@dataclass(slots=True)
class _Watch:
    """A shard that another process makes."""

    key: str
    held: Held
    begun: float  # when the claim was first looked at again
    changed: float  # when it last showed a sign of life


class Agenda:
    """The tasks of one store."""

    def __init__(
        self, tasks: Sequence[ShardTask], cache: Cache, *, sizes: Sequence[int] = (), digest_first: bool
    ) -> None:
        """`sizes` of the shards, where known.  `digest_first`: all digests before the first shard is made."""
        self._cache = cache
        self.tasks = {task.shard: task for task in tasks}
        usual = sorted(sizes)[len(sizes) // 2] if len(sizes) else 0
        # Whatever is at least twice the usual size goes first; the others keep their order, in which they lie on disk.
        order = sorted(tasks, key=lambda task: -(sizes[task.shard] // (2 * usual))) if usual else tasks
        self._undigested = deque(task for task in tasks if digest_first and task.digest is None)
        early = {task.shard for task in self._undigested}
        self._left = {task.shard: task for task in order if task.shard not in early}  # in the order in which they go
        self._wanted: deque[int] = deque()
        self._given: set[int] = set()
        self._waiting: dict[int, _Watch] = {}
        self._pause, self._next_look, self._told = _FIRST_PAUSE, 0.0, time.monotonic()
        self._lock = threading.Lock()
        self._is_stopped = False
        self.digests: dict[int, str] = {task.shard: task.digest for task in tasks if task.digest is not None}
        self.entries: dict[int, ShardEntry] = {}  # of finished shards

    @property
    def num_shards(self) -> int:
        return len(self.tasks)

    def __length_hint__(self) -> int:
        return len(self._undigested) or len(self._left)

    @property
    def is_digested(self) -> bool:
        """Whether the digest of every shard is known."""
        return len(self.digests) == len(self.tasks)

    @property
    def is_done(self) -> bool:
        """Whether every shard is made."""
        return len(self.entries) == len(self.tasks)

    def __iter__(self) -> Iterator[ShardTask | None]:
        """Tasks until all are done; None where there is nothing to do but wait."""
        while True:
            with self._lock:
                if self._is_stopped:
                    raise Stopped
                if self.is_done:
                    return
                task = self._next()
            yield task

    def _next(self) -> ShardTask | None:
        if self._undigested:
            task = replace(self._undigested.popleft(), only_digest=True)
        else:
            if self._waiting:
                self._look()
            while self._wanted and self._wanted[0] not in self._left:
                self._wanted.popleft()
            shard = self._wanted.popleft() if self._wanted else next(iter(self._left), None)
            if shard is None:
                return None
            task = self._left.pop(shard)
        self._given.add(task.shard)
        return task

    def take(self, made: Made) -> None:
        """What became of a task."""
        if made.damage:
            _log.warning("%s; it was made again", made.damage)
        if made.entry is not None:
            # The process that made it holds it too, but may end before the manifest is written, which alone keeps it later.
            self._cache.hold(shard_name(made.entry.key), holder=self)
        with self._lock:
            self._given.discard(made.shard)
            self.digests[made.shard] = made.digest
            task = self.tasks[made.shard] = replace(self.tasks[made.shard], digest=made.digest)
            if made.entry is not None:
                self.entries[made.shard] = made.entry
            elif made.held is not None:
                now = time.monotonic()
                self._waiting[made.shard] = _Watch(made.key, made.held, inf, now)
            else:
                self._left[made.shard] = task

    def want(self, shards: Iterable[int]) -> None:
        """Make these first, in this order."""
        with self._lock:
            wished = list(shards)
            rest = [shard for shard in self._wanted if shard not in set(wished)]
            self._wanted = deque([*wished, *rest])

    def stop(self) -> None:
        with self._lock:
            self._is_stopped = True

    @property
    def is_stopped(self) -> bool:
        return self._is_stopped

    def _look(self) -> None:
        """At what others make.  What is finished, given up, or shows no life any more, is on the list again."""
        now = time.monotonic()
        if now < self._next_look:
            return
        held = claims.look(self._cache)
        published: set[str] = set()
        for folder in {shard_name(watch.key).rpartition("/")[0] for watch in self._waiting.values()}:
            published.update(self._cache.names(folder))  # listed, not asked for by name: see claims.look
        before = len(self._waiting)
        for shard, watch in list(self._waiting.items()):
            stale = self._stale(shard, watch, held.get(watch.key), shard_name(watch.key) in published, now)
            if stale is not None:
                del self._waiting[shard]
                self._left[shard] = replace(self.tasks[shard], stale=stale)
        self._pause = _FIRST_PAUSE if len(self._waiting) < before else min(2 * self._pause, _LONGEST_PAUSE)
        self._next_look = now + self._pause * (0.5 + secrets.randbelow(1000) / 1000)  # not all at the same time
        if self._waiting and now - self._told > _TELL_SECONDS:
            self._told = now
            shard, watch = next(iter(self._waiting.items()))
            _log.info(
                "waiting for %d shards that other processes make; shard %d by %s for %.0f s",
                len(self._waiting), shard, watch.held, now - watch.begun,
            )  # fmt: skip

    def _stale(self, shard: int, watch: _Watch, held: Held | None, is_published: bool, now: float) -> str | None:
        """None to go on waiting; else what a claim says that may be taken over, or "" where there is none to mind."""
        if is_published or held is None or held.is_dead:
            return ""
        if held.value != watch.held.value:
            watch.held, watch.changed = held, now
        watch.begun = min(watch.begun, now)
        silent, waited = now - watch.changed, now - watch.begun
        if silent <= claims.STALE_SECONDS and waited <= _PATIENCE:
            return None
        _log.warning(
            "shard %d is claimed by %s, waited for %.0f s, last sign of life %.0f s ago; it is made here now",
            shard, held, waited, silent,
        )  # fmt: skip
        return held.value
