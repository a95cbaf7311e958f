"""Run tasks in processes of this machine, by `multiprocessing`.  A free process takes the next task.

On Linux workers are forked: they start in milliseconds and share the loaded tokenizer.  Elsewhere, and where forks are forbidden, they
are spawned, and the work is sent to each of them once.  A task and its result are a few numbers.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from operator import length_hint
from pathlib import Path
from typing import Any

from penstock import plugins
from penstock.errors import StoreError
from penstock.forks import may_fork
from penstock.types import Engine, OnNote, Task, run_inline
from penstock.words import did_you_mean

START_METHODS = ("fork", "spawn")

# Ranks that a launcher has put on this machine: torchrun and accelerate, Open MPI, MPICH, MVAPICH.
_LOCAL_RANKS = (
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "MV2_COMM_WORLD_LOCAL_SIZE",
)

# What a plugin of the group `engines` is: a function of the engine's whole name and num_proc.
OpenEngine = Callable[[str, int | None], Engine]


class LocalEngine:
    """`num_proc` processes (None: the cores there are).  One process is this one, unless `inline` is False."""

    def __init__(
        self, num_proc: int | None = None, *, start_method: str | None = None, inline: bool = True
    ) -> None:
        # Elsewhere fork is missing, or unsafe because system libraries start threads.
        self.start_method = start_method or ("fork" if sys.platform == "linux" else "spawn")
        self._may_spawn = start_method is None
        if self.start_method not in START_METHODS:
            raise StoreError(
                f"start_method is {start_method!r}, expected one of {', '.join(START_METHODS)}"
            )
        self.num_proc = check_num_proc(num_proc) or num_cores()
        self.inline = inline

    def run(
        self,
        work: Callable[[Task], Any],
        tasks: Iterable[Task | None],
        *,
        on_note: OnNote[Task] | None = None,
    ) -> Iterator[Any]:
        """Yield results as they finish, as `Engine.run` says.  The first error stops the rest and is raised here.

        Processes start before this returns, in the caller's thread.  A daemonic process of `multiprocessing`, such as
        a worker of a torch DataLoader, may not have children: there the tasks run in the process itself.
        """
        num_proc = min(self.num_proc, length_hint(tasks, self.num_proc))
        # a child has imported it; in another thread, it may be half imported
        current_process = getattr(sys.modules.get("multiprocessing"), "current_process", None)
        is_daemonic = current_process is not None and current_process().daemon
        if (self.inline and num_proc <= 1) or is_daemonic:
            return run_inline(work, tasks, on_note)
        from penstock.engines.pool import Results

        method = self.start_method
        if self._may_spawn and not may_fork():
            method = "spawn"
        return Results(work, iter(tasks), on_note, method, max(1, num_proc))

    def __repr__(self) -> str:
        return f"LocalEngine({self.num_proc})"


def open_engine(
    engine: str | Engine, *, num_proc: int | None = None, inline: bool = True
) -> Engine:
    """Return an engine by its name, or the user's own, which chooses its number of processes itself.

    A plugin of the group `engines` is called with the whole name and num_proc.  Its name is what stands before "://": the plugin "ray"
    opens the engine "ray://host:port", too.
    """
    if not isinstance(engine, str):
        if not isinstance(engine, Engine):
            raise _no_engine(engine, "")
        if num_proc is not None:
            raise StoreError(
                f"num_proc is {num_proc!r}, but {engine!r} is your own engine; set the number there"
            )
        return engine
    if engine == "local":
        return LocalEngine(num_proc, inline=inline)
    scheme = engine.partition("://")[0]
    known = plugins.names("engines")
    if scheme not in known:
        hint = plugins.not_installed("engines", scheme)
        raise _no_engine(engine, hint or did_you_mean(engine, ["local", *known]))
    open_plugin: OpenEngine = plugins.load("engines", scheme)
    return open_plugin(engine, check_num_proc(num_proc))


def _no_engine(engine: object, hint: str) -> StoreError:
    names = ", ".join(repr(name) for name in ("local", *plugins.names("engines")))
    return StoreError(
        f"engine is {engine!r}, expected {names} or an object with a method run(work, tasks, *, on_note=None){hint}"
    )


def check_num_proc(num_proc: int | None) -> int | None:
    """Return the number of processes; raise StoreError if it is not one."""
    if num_proc is not None and (
        not hasattr(num_proc, "__index__") or isinstance(num_proc, bool) or num_proc < 1
    ):
        raise StoreError(
            f"num_proc is {num_proc!r}, expected a whole number of at least 1 (or None for all cores)"
        )
    return num_proc


def num_cores(*, root: Path = Path("/")) -> int:
    """Count the cores that this process may use: by affinity and cgroup, shared with the other ranks on this machine.

    root: the folder of `proc` and `sys`.
    """
    total = os.cpu_count() or 1
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else total
    limit = cgroup_cores(root) or total
    ranks = next(
        (int(text) for name in _LOCAL_RANKS if (text := os.environ.get(name, "")).isdecimal()), 1
    )
    # A launcher that pinned each rank to its own cores has divided them already.
    return max(1, min(own, limit, min(total, limit) // max(1, ranks)))


def cgroup_cores(root: Path) -> int | None:
    """Return the whole cores of the tightest cpu limit from this process's cgroup up to the root; None without a limit."""
    limits = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        for mount in (controllers, *controllers.split(",")) if controllers else ("", "unified"):
            # Inside a container the path may be the host's and not exist here; the mount itself always does.
            group = Path(path.lstrip("/"))
            limits += [
                _limit(root / "sys/fs/cgroup" / mount / each) for each in (group, *group.parents)
            ]
    found = [limit for limit in limits if limit]
    return max(1, int(min(found))) if found else None


def _limit(group: Path) -> float:
    """Return the cores that one cgroup grants: version 2 has "quota period" in one file, version 1 has two.  0: no limit."""
    words = _read(group / "cpu.max").split() or [
        _read(group / f"cpu.cfs_{name}_us") for name in ("quota", "period")
    ]
    try:
        return max(0, int(words[0])) / int(words[1])
    except (ValueError, IndexError, ZeroDivisionError):  # "max", or no such file
        return 0


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
