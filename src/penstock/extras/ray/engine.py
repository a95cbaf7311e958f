"""Run tasks on the nodes of a Ray cluster.  Needs the extra `ray`.

A worker is an actor that lives as long as the run: it loads a tokenizer once.  The work lies in the object store next to this process, so
no other node that dies takes it away.  Ray restarts nothing by itself: this process starts workers, counts how many have died on a task,
and names that task in the error.
"""

import contextlib
import logging
import os
import signal
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import length_hint
from typing import Any
from urllib.parse import urlsplit

try:
    import ray
except ModuleNotFoundError as missing:
    from penstock.errors import StoreError

    raise StoreError(
        f"engine 'ray' needs Ray ({missing}); install it: pip install 'penstock[ray]'"
    ) from missing
from ray import cloudpickle
from ray.exceptions import RayError, RayTaskError

from penstock.engines.pool import TaskResults
from penstock.errors import PenstockError, StoreError
from penstock.extras.ray import worker as ray_worker
from penstock.extras.ray.cluster import options_of_init
from penstock.extras.ray.remote_work import RemoteWork, on_other_machines
from penstock.extras.ray.worker import Worker
from penstock.types import PAUSE, OnNote, Task
from penstock.words import shortened

_MOST_TRIES = 3  # of a task whose workers die
_MOST_FAILED_STARTS = 5  # in a row
_POLL_SECONDS = 0.5  # between checks whether the results were closed
_LOOK_SECONDS = 3.0  # between looks for new nodes
_LOG_SECONDS = 30.0
_PATIENCE = 600.0  # seconds without any worker
_CONNECT_SECONDS = 10.0
_GRACE_SECONDS = 5.0  # for killed workers to be gone
_NO_MORE = object()

_log = logging.getLogger("penstock")
cloudpickle.register_pickle_by_value(
    ray_worker
)  # not by name: a node may have another one, or none


class _Connection:
    """A connection to Ray that Penstock made.  It ends with the last engine that uses it, unless the user has made another one since."""

    def __init__(self, address: str) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        handler = signal.getsignal(signal.SIGTERM) if is_main else None
        options = options_of_init() if address == "ray" else {"address": address}
        try:
            if address == "ray":  # not a Ray Client server: it gives up soon by itself
                _knock(os.environ.get("RAY_ADDRESS", ""))
            ray.init(**options, logging_level=logging.WARNING)
        except (RayError, ConnectionError, RuntimeError, ImportError, OSError, ValueError) as error:
            raise StoreError(f"engine {address!r} cannot connect to Ray: {error}") from error
        finally:
            if callable(handler):  # Ray has replaced the user's own
                signal.signal(signal.SIGTERM, handler)
        self.address = address
        _connections[_job()] = self
        weakref.finalize(self, _disconnect, _job())


_connections: "weakref.WeakValueDictionary[str, _Connection]" = (
    weakref.WeakValueDictionary()
)  # by Ray's name of the job
_connecting = threading.Lock()


def _job() -> str:
    return str(ray.get_runtime_context().get_job_id())


def _knock(address: str) -> None:
    """Raise OSError if nothing listens at host:port: Ray itself would try for minutes."""
    found = urlsplit(f"//{address}")
    if "://" not in address and found.hostname and found.port:
        try:
            socket.create_connection((found.hostname, found.port), timeout=_CONNECT_SECONDS).close()
        except OSError as error:
            raise OSError(f"nothing answers at {found.hostname}:{found.port} ({error})") from error


def _disconnect(job: str) -> None:
    with contextlib.suppress(Exception):  # the cluster may be gone
        if ray.is_initialized() and _job() == job:
            ray.shutdown()


class RayEngine:
    """One worker per CPU of a Ray cluster, or `num_proc` of them.

    address: "ray" for the connection that this process has, else the cluster that RAY_ADDRESS names, else a new one on this machine;
    another cluster that runs on this machine is not joined.  "ray://host:port" connects to the Ray Client server of a cluster.  A
    connection that Penstock made ends with its last engine.
    """

    def __init__(self, address: str = "ray", num_proc: int | None = None) -> None:
        self.address = address
        self.num_proc = num_proc
        self._connection: _Connection | None = None  # None: the user's

    def run(
        self,
        work: Callable[[Task], Any],
        tasks: Iterable[Task | None],
        *,
        on_note: OnNote[Task] | None = None,
    ) -> Iterator[Any]:
        """Yield results as they finish, as `Engine.run` says.  The first error stops the rest and is raised here."""
        if length_hint(tasks, 1) == 0:
            return iter(())
        with _connecting:
            self._connection = (
                _connections.get(_job()) if ray.is_initialized() else _Connection(self.address)
            )
        if self.address not in ("ray", getattr(self._connection, "address", None)):
            raise StoreError(
                f"engine is {self.address!r}, but this process has a connection to Ray already; write engine: ray to use it, or end it "
                f"with ray.shutdown()"
            )
        return RayResults(self, work, tasks, on_note)

    def __repr__(self) -> str:
        return f"RayEngine({self.address!r})"


@dataclass(slots=True, eq=False)
class _Job:
    """A task, and how its workers died so far."""

    task: Any
    note: Any = None  # the last one
    deaths: list[str] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _RayWorker:
    """An actor, and its call under way: `open` and `check` before its first task, None while it is idle."""

    actor: Any
    call: Any
    node: str = ""  # empty until it has opened the work
    owner: str = ""  # what the work calls its process; known before the check, which may leave a lease in the cache
    is_ready: bool = False
    job: _Job | None = None


class RayResults(TaskResults):
    """Start workers, give each idle one a task, and yield results.  Deleting this ends the workers; so does `close`."""

    def __init__(
        self,
        engine: RayEngine,
        work: Callable[[Any], Any],
        tasks: Iterable[Any],
        on_note: OnNote[Any] | None,
    ) -> None:
        work = on_other_machines(work)
        super().__init__(work, iter(tasks), on_note)
        self._engine: RayEngine | None = engine  # its connection must stay
        self._most = engine.num_proc
        self._useful = length_hint(
            tasks, 1 << 30
        )  # more workers than tasks would start for nothing
        self._again: deque[_Job] = deque()  # jobs whose worker has died
        self._workers: list[_RayWorker] = []
        self._next_look = 0.0
        self._next_log = time.monotonic() + _LOG_SECONDS
        self._alone_since = time.monotonic()  # matters while no worker is alive
        self._failed_starts = deque[str](maxlen=_MOST_FAILED_STARTS)
        try:
            parcel = cloudpickle.dumps(work)
        except Exception as error:
            raise StoreError(
                f"the work cannot be sent to a worker: {type(error).__name__}: {error}"
            ) from error
        self._parcel = ray.put(parcel)
        self._versions = Worker.versions()
        self._remote = ray.remote(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")(Worker)
        open_files = contextlib.ExitStack()
        self._stop = weakref.finalize(self, _stop, self._workers, work, open_files, os.getpid())
        self._nonce = (
            open_files.enter_context(work.announced()) if isinstance(work, RemoteWork) else None
        )

    def _advance(self) -> bool:
        self._add_workers()
        has_none = self._give_tasks()
        if (
            not self._has_more
            and not self._again
            and all(each.job is None for each in self._workers)
        ):
            return False
        self._receive(PAUSE if has_none else _POLL_SECONDS)
        return True

    def _end(self) -> None:
        self._is_closed = True
        self._stop()
        self._engine = (
            None  # the connection may end now: what reads the results may keep this object
        )

    def _add_workers(self) -> None:
        """Start workers: one for each CPU of the cluster, also of nodes that have joined since the last look."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_SECONDS
        cpus = int(sum(node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]))
        if len(self._failed_starts) == _MOST_FAILED_STARTS:
            if not self._workers:
                raise StoreError(
                    f"{_MOST_FAILED_STARTS} workers of Ray died as they started: {self._failed_starts[-1]}"
                )
        else:
            for _ in range(len(self._workers), min(self._most or max(1, cpus), self._useful)):
                actor = self._remote.remote()
                self._workers.append(
                    _RayWorker(actor, actor.open.remote(self._parcel, self._versions))
                )
        if any(each.is_ready for each in self._workers):
            return
        waited = now - self._alone_since
        found = f"the cluster has {cpus} CPUs, {ray.available_resources().get('CPU', 0):g} free"
        if waited > _PATIENCE:
            raise StoreError(
                f"Ray has had no worker for {waited:.0f} s: {found}; add nodes, or end what uses them, and run again: what is "
                f"finished is kept"
            )
        if now > self._next_log:
            self._next_log = now + _LOG_SECONDS
            _log.warning("waiting for Ray to start a worker, for %.0f s: %s", waited, found)

    def _give_tasks(self) -> bool:
        """Give tasks to idle workers, first those whose worker has died; return whether one stays idle because no task is ready."""
        for each in self._workers:
            if each.call is not None or self._is_closed:
                continue
            if self._again:
                each.job = self._again.popleft()
            else:
                task = next(self._tasks, _NO_MORE) if self._has_more else _NO_MORE
                if task is None:
                    return True
                if task is _NO_MORE:
                    self._has_more = False
                    break
                each.job = _Job(task)
            each.call = each.actor.step.remote(each.job.task)
        return False

    def _receive(self, timeout: float) -> None:
        """Wait for answers of workers; raise the error of a task."""
        calls = {each.call: each for each in self._workers if each.call is not None}
        if not calls:
            time.sleep(timeout)
            return
        ready, _ = ray.wait(list(calls), num_returns=1, timeout=timeout)
        ready, _ = (
            ray.wait(list(calls), num_returns=len(calls), timeout=0) if ready else (ready, [])
        )
        for call in ready:
            each = calls[call]
            each.call = None
            try:
                answer = ray.get(call)
            except RayTaskError as error:
                raise StoreError(
                    f"a result cannot be sent from its worker: {error.cause}"
                ) from error
            except RayError as error:
                self._lose(each, shortened(" ".join(str(error).split()), 600))
                continue
            if each.is_ready:
                self._hear(each, answer)
            else:
                self._admit(each, answer)

    def _admit(self, each: _RayWorker, answer: Any) -> None:
        """Have a worker that has opened the work check its files, and take one that has checked them; raise StoreError for a problem."""
        is_checked = bool(each.node)
        if is_checked:
            problem = answer
        else:
            each.node, each.owner, problem = answer
        if problem:
            raise StoreError(f"node {each.node}: {problem}")
        if is_checked or self._nonce is None:
            each.is_ready = True
            self._failed_starts.clear()
        else:
            each.call = each.actor.check.remote(self._nonce)

    def _hear(self, each: _RayWorker, items: list[tuple[str, Any]]) -> None:
        job = each.job
        assert job is not None
        for kind, value in items:
            if kind == "note":
                job.note = value
                if self._on_note is not None:
                    self._on_note(job.task, value)
            elif kind == "done":
                each.job = None
                self._done.append(value)
            else:
                if isinstance(value, PenstockError):
                    value.args = (f"{value} (on node {each.node})",)
                value.add_note(
                    f"on node {each.node}, at work on {self._describe(job.task, job.note)}"
                )
                raise value
        if each.job is not None:
            each.call = each.actor.step.remote()

    def _lose(self, dead: _RayWorker, cause: str) -> None:
        """Have another worker do the task of a dead one; raise StoreError if it has killed too many."""
        self._workers.remove(dead)
        self._next_look = 0.0
        with contextlib.suppress(Exception):  # out of reach is not dead
            ray.kill(dead.actor)
        if dead.is_ready:
            self._alone_since = time.monotonic()
        else:
            self._failed_starts.append(cause)
            _log.warning("a worker died as it started: %s", cause)
        if isinstance(self._work, RemoteWork) and dead.owner:
            self._work.forget([dead.owner], at_work=dead.job is not None)
        if (job := dead.job) is None:
            return
        job.deaths.append(f"on node {dead.node}: {cause}")
        task = self._describe(job.task, job.note)
        if len(job.deaths) == _MOST_TRIES:
            raise StoreError(
                f"{_MOST_TRIES} workers died, one after another, while they worked on {task}; what is finished is kept: run again, with a "
                f"smaller num_proc if memory ran out, or with engine 'local' and num_proc=1 to see it happen; the last one {job.deaths[-1]}"
            )
        _log.warning(
            "a worker died while it worked on %s; another one tries again; %s", task, job.deaths[-1]
        )
        job.note = None
        self._again.append(job)


def _stop(
    workers: list[_RayWorker], work: Any, open_files: contextlib.ExitStack, owner: int
) -> None:
    """Kill all workers, and remove what they left in the cache."""
    if os.getpid() != owner:  # a forked process has a copy of the list, not of the workers
        return
    ended = [*workers]
    workers.clear()
    with contextlib.suppress(Exception):
        for each in (
            ended if ray.is_initialized() else ()
        ):  # else they are gone, and a call would start Ray again
            ray.kill(each.actor)
        calls = [each.call for each in ended if each.call is not None]
        if calls and ray.is_initialized():
            ray.wait(calls, num_returns=len(calls), timeout=_GRACE_SECONDS)
    with contextlib.suppress(Exception):  # the cache may be gone
        if isinstance(work, RemoteWork):
            owners = [each.owner for each in ended if each.owner]
            work.forget(owners, at_work=any(each.job is not None for each in ended))
    open_files.close()
