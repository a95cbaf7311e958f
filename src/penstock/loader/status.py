"""The state of a running job as small files in the cache, one for each rank, for `penstock view`.

Files are written only under a run_id, at most once a second, and replaced as a whole.  A job never fails because of it.
"""

import json
import logging
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cache import open_cache
from penstock.errors import PlanError
from penstock.loader.batch import Batch
from penstock.loader.run import Run
from penstock.plan.plan import NumberedStep

if TYPE_CHECKING:
    from penstock.loader.loader import Loader

_log = logging.getLogger("penstock")

_VERSION = 1
_EVERY = 1.0  # seconds
_FOLDER = "live"
_MOST_POINTS = 1_000  # of a number that is logged


def run_folder(root: Path, run_id: str) -> Path:
    """Return the folder of a run in the cache."""
    # a number is a name, too: the id of a Slurm job
    name = "".join(c if c.isalnum() or c in "-_" else "_" for c in str(run_id))
    return root / "runs" / name


class LoggedNumbers:
    """Numbers that a training has logged, by name and step: all of them while they are few, then every second, fourth, … one."""

    def __init__(self) -> None:
        self._points: dict[str, list[tuple[int, float]]] = {}
        self._counts: dict[str, int] = {}  # of points that were given
        self._every: dict[str, int] = {}  # one of so many is kept

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        """Add the numbers of a step; a step back replaces what came after it."""
        for name, number in numbers.items():
            points = self._points.setdefault(name, [])
            every = self._every.setdefault(name, 1)
            while points and points[-1][0] >= step:
                points.pop()
            count = self._counts.get(name, 0)
            self._counts[name] = count + 1
            if count % every and points:
                continue
            points.append((step, float(number)))
            if len(points) > _MOST_POINTS:
                self._points[name] = points[::2]
                self._every[name] = 2 * every

    def as_dict(self) -> dict[str, list[tuple[int, float]]]:
        """Return the points by name; what is not a number, such as a loss that has become infinite, is left out of the file."""
        return {
            name: [point for point in points if math.isfinite(point[1])]
            for name, points in self._points.items()
        }


class StatusFile:
    """Writes the state of one rank of a run."""

    def __init__(self, root: Path, run_id: str, rank: int, plan: str) -> None:
        """plan: its fingerprint; loaders of one run, such as those of eval sets, have files of their own."""
        self._folder = run_folder(root, run_id) / _FOLDER
        self._name = f"{plan[:8]}-{rank}"
        self._own = {"version": _VERSION, "run_id": run_id, "rank": rank, "plan": plan}
        self._next = 0.0
        self._begun = time.time()
        self._has_failed = False

    @property
    def is_due(self) -> bool:
        """Whether the last state is a second old."""
        return time.monotonic() >= self._next

    def write(self, state: dict[str, Any]) -> None:
        """Replace the file; after a failure, warn once and write no more."""
        if self._has_failed:
            return
        self._next = time.monotonic() + _EVERY
        times = {"begun": self._begun, "written": time.time()}
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            draft = self._folder / f".{self._name}.{os.getpid()}.tmp"
            draft.write_text(json.dumps({**self._own, **times, **state}))
            draft.replace(self._folder / f"{self._name}.json")
        except OSError as error:
            self._has_failed = True
            _log.warning(
                "%s: the state of the run cannot be written there, so penstock view does not show it: %s",
                self._folder,
                error.strerror or error,
            )


def read_status(root: Path, run_id: str) -> list[dict[str, Any]]:
    """Return what each rank of a run has last written, by rank; nothing if the run is unknown."""
    states = []
    folder = run_folder(root, run_id) / _FOLDER
    try:
        paths = sorted(folder.glob("*.json"))
    except OSError as error:  # such as a name that is too long for a file system
        raise PlanError(
            f"run_id {run_id[:40]!r}: its folder cannot be read: {error.strerror}"
        ) from error
    for path in paths:
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            is_own = state["run_id"] == run_id and state["version"] == _VERSION
            if is_own:
                _ = (
                    int(state["rank"]),
                    int(state["world_size"]),
                    float(state["written"]),
                    str(state["plan"]),
                )
        except FileNotFoundError:  # removed in this moment
            continue
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PlanError(f"{path}: not the state of a run: {error}; remove the file") from error
        states += [state] if is_own else []  # two names may share a folder, as a/b and a_b
    return sorted(states, key=lambda state: int(state["rank"]))


def run_ids(root: Path) -> list[str]:
    """Return the names of all runs that have written their state, the last one first."""
    last_written: dict[str, float] = {}
    for path in (root / "runs").glob(f"*/{_FOLDER}/*.json"):
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            last_written[str(state["run_id"])] = max(
                last_written.get(str(state["run_id"]), 0.0), float(state["written"])
            )
        except (OSError, ValueError, KeyError, TypeError):
            continue  # `read_status` says what is wrong with it
    return sorted(last_written, key=lambda name: -last_written[name])


class StatusObserver:
    """Writes where a run is: nothing without a run_id."""

    def __init__(self) -> None:
        self._loader: Loader | None = None
        self._file: StatusFile | None = None

    def attach(self, loader: "Loader") -> None:
        self._loader = loader
        run_id = loader.settings.run_id
        if run_id is not None and self._file is None:
            root = (loader.stores[0].cache or open_cache()).root
            fingerprint = loader.plan.fingerprint
            self._file = StatusFile(root, run_id, loader.rank_info.rank, fingerprint)

    def begin(self, run: Run) -> None:
        """The first step is written."""

    def step(self, run: Run, step: NumberedStep, batch: Batch) -> None:
        if self._file is not None and self._file.is_due:
            self._write(run, finished=False)

    def end(self, run: Run) -> None:
        self._write(run, finished=True)

    def _write(self, run: Run, *, finished: bool) -> None:
        if self._file is None or self._loader is None:
            return
        loader = self._loader
        state = {
            "step": run.cursor.step,
            "epoch": run.cursor.position.epoch,
            "finished": finished,
            "world_size": loader.world.size,
            "batch_size": loader.batch_size,
            "epochs": run.loop.epochs,
            "metrics": loader.metrics.as_dict(),
            "logged": loader.logged.as_dict(),
        }
        self._file.write(state)
