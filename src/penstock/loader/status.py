"""The state of a running job as small files in the cache, one for each rank, for `penstock view`; what no step delivers, and why.

Files are written only under a run_id, at most once a second, and replaced as a whole.  A job never fails because of it.
"""

import json
import logging
import os
import time
from pathlib import Path
from typing import Any

from penstock.cache import Cache
from penstock.errors import PlanError
from penstock.loader.state import Run
from penstock.plan.counters import NOTHING, Counters
from penstock.reasons import EMPTY, NOTHING_TO_TRAIN, OVERLONG

_log = logging.getLogger("penstock")

_OR_CUT = ", or choose on_overlong='split' or 'truncate'"
_VERSION = 1
_EVERY = 1.0  # seconds
_FOLDER = "live"


def run_folder(root: Path, run_id: str) -> Path:
    """Return the folder of a run in the cache."""
    name = "".join(c if c.isalnum() or c in "-_" else "_" for c in run_id)
    return root / "runs" / name


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
    """Return what each rank of a run has last written, by rank; nothing if there is no such run."""
    found = []
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
        found += [state] if is_own else []  # two names may share a folder, as a/b and a_b
    return sorted(found, key=lambda state: int(state["rank"]))


def run_ids(root: Path) -> list[str]:
    """Return the names of all runs that have written their state, the last one first."""
    found: dict[str, float] = {}
    for path in (root / "runs").glob(f"*/{_FOLDER}/*.json"):
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            found[str(state["run_id"])] = max(
                found.get(str(state["run_id"]), 0.0), float(state["written"])
            )
        except (OSError, ValueError, KeyError, TypeError):
            continue  # `read_status` says what is wrong with it
    return sorted(found, key=lambda name: -found[name])


def open_status(cache: Cache | None, run_id: str | None, rank: int, plan: str) -> StatusFile | None:
    """Return the file of this rank in the cache, if the run has a name."""
    return None if run_id is None else StatusFile((cache or Cache()).root, run_id, rank, plan)


def count_rest(run: Run) -> Counters:
    """Count what comes after the last step of the current loop: skipped steps, and samples that no batch holds."""
    position = run._cursor.position
    end = run.loop_end(run._cursor)
    counters = NOTHING
    if run._skip:
        for step in run.plan.steps(start=position, num_rows=run._rows_per_step, epochs=end):
            counters += step.count_skipped()
            position = step.after
    return counters + run.plan.count_rest(position, run._rows_per_step, epochs=end)


def why_no_steps(run: Run, *, can_cut: bool) -> tuple[Counters, PlanError]:
    """Return what is dropped, and an error that says why a pass has no step."""
    if run.epochs == 0:
        return NOTHING, PlanError("the run has no step: epochs is 0", code="no_step")
    position = run._cursor.position
    epochs = run.loop_end(run._cursor) or position.epoch + 1
    if run.plan.num_steps(run._rows_per_step, epochs=epochs, start=position):
        return NOTHING, PlanError(
            f"no batch is left: skip_steps= names every step of the run ({len(run._skip):,} of them)",
            code="no_step",
        )
    counters = run.plan.count(position.epoch, run._rows_per_step)
    dropped = counters.dropped_words()
    advice = "raise max_length; " if NOTHING_TO_TRAIN in dropped else ""
    if OVERLONG in dropped:
        advice = f"raise max_length{_OR_CUT if can_cut else ''}; "
    if not dropped and (empty := counters.samples_dropped[EMPTY]):
        dropped = f"all {empty:,} samples are empty ({'; '.join(store.describe() for store in run.stores)})"
    why = f"the run has no step: {dropped or 'there are no samples'}; {advice}see loader.counters"
    return counters, PlanError(why, code="no_step")
