"""Who makes shards while the trainer runs?  A thread that feeds the engine, and answers whoever asks for a shard.

The same tasks, the same files: only when they are made differs, and that those come first which somebody waits for.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

from penstock.errors import StoreError
from penstock.store.agenda import Agenda, Stopped
from penstock.store.make import MakeShard, Note, ShardTask, run_here
from penstock.store.manifest import Manifest
from penstock.store.progress import Meter
from penstock.store.schema import shard_key, shard_name
from penstock.types import Engine

_JOIN_SECONDS = 10.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 2.0  # seconds between looks at whether somebody else has made a shard

_log = logging.getLogger("penstock")


class Background:
    """The making of one store.  A copy of it in another process makes what it is asked for by itself, or waits for ours."""

    def __init__(self, work: MakeShard, agenda: Agenda, meter: Meter, engine: Engine) -> None:
        """Starts the engine, here in the caller's thread, and waits until all digests are known."""
        self._work = work
        self._agenda = agenda
        self._meter = meter
        self._results = engine.run(work, agenda, told=self._told)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_over = False
        self._owner = os.getpid()
        self._error: BaseException | None = None
        self.manifest: Manifest | None = None  # once all shards are made
        try:
            while not agenda.is_digested:
                agenda.take(next(self._results))
        except BaseException:
            self._close()
            raise
        self._tasks = dict(agenda.tasks)  # each with its digest

    def start(self, finish: Callable[[], Manifest]) -> "Background":
        self._thread = threading.Thread(target=self._run, args=(finish,), name="penstock-prepare", daemon=True)
        self._thread.start()
        return self

    def want(self, shards: Iterable[int]) -> None:
        """Make these first, in this order."""
        if self._is_mine:
            self._agenda.want([shard for shard in shards if shard not in self._agenda.entries])

    def make(self, shard: int) -> None:
        """Return when the shard is made; raise what kept it from being made."""
        if not self._is_mine:
            self._make_here(shard)
            return
        if shard in self._agenda.entries:
            return
        self._agenda.want([shard])
        pause = _FIRST_PAUSE
        with self._changed:
            while not self._changed.wait_for(lambda: shard in self._agenda.entries or self._is_over, pause):
                if self._is_published(shard):  # by another process, which ours have not noticed yet
                    return
                pause = min(2 * pause, _LONGEST_PAUSE)
        if shard in self._agenda.entries:
            return
        if self._error is not None:
            raise self._error
        self._make_here(shard)

    def wait(self) -> Manifest:
        """Return when all shards are made and the manifest is written."""
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error
        if self.manifest is None:
            raise StoreError("the store was closed before all of its shards were made; prepare it again to go on")
        return self.manifest

    def stop(self) -> None:
        """End the work under way; what is finished is kept."""
        if not self._is_mine:
            return
        self._agenda.stop()
        self._close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)

    @property
    def _is_mine(self) -> bool:
        return os.getpid() == self._owner

    def _is_published(self, shard: int) -> bool:
        name = shard_name(shard_key(self._tasks[shard].digest or "", self._work.identity))
        return name in self._work.cache.names(name.rpartition("/")[0])

    def _told(self, task: ShardTask, note: Note) -> None:
        if self._agenda.is_stopped:
            raise Stopped
        self._meter.told(task, note)

    def _run(self, finish: Callable[[], Manifest]) -> None:
        try:
            for made in self._results:
                self._agenda.take(made)
                self._meter.made(made)
                with self._changed:
                    self._changed.notify_all()
            if not self._agenda.is_done:  # the engine was stopped before it asked for the next task
                raise Stopped
            self.manifest = finish()
            self._meter.finished()
        except Stopped:
            pass
        except BaseException as error:  # raised again where somebody asks for what is missing now
            _log.warning("preparing in the background has stopped: %s", error)
            self._error = error
        finally:
            self._close()
            with self._changed:
                self._is_over = True
                self._changed.notify_all()

    def _close(self) -> None:
        with contextlib.suppress(Exception):
            self._results.close()  # type: ignore[attr-defined]  # the engine's own offer, not every iterator's

    def _make_here(self, shard: int) -> None:
        """In this thread, or wait for the process that makes it."""
        alone = Agenda([self._tasks[shard]], self._work.cache, digest_first=False)
        for made in run_here(self._work, alone):
            alone.take(made)

    def __getstate__(self) -> dict[str, Any]:
        mine = ("_agenda", "_meter", "_results", "_changed", "_thread", "_error")
        return {**self.__dict__, **dict.fromkeys(mine), "_owner": -1}
