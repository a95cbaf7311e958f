"""Do all ranks follow one plan?  Each shows what it is about to do and looks at the others; whoever differs is named, in seconds.

Through torch.distributed's own key-value store where it is running, else through files in the cache folder, under the name of the run.
Nothing waits without end: a rank that does not come is an error that names it.
"""

import json
import logging
import os
import secrets
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from penstock.errors import PlanError, PlanMismatch
from penstock.loader.world import Place, running

_log = logging.getLogger("penstock")

GRACE = 60.0  # seconds that a file may stand whose rank has not seen ours: it is left from an earlier start, or its rank has failed
_PATIENCE = 600.0  # seconds to wait for ranks that do not come; PENSTOCK_PATIENCE changes it
_LOOK = (0.01, 0.5)  # seconds between looks, at first and at most
_SAY = 10.0  # seconds after which a wait is worth a line


class Board(Protocol):
    """Where ranks pin what they are about to do."""

    grace: float | None  # None where nothing of an earlier start can hang

    def put(self, rank: int, text: str) -> None: ...
    def get(self, rank: int) -> str | None: ...


class FileBoard:
    """A folder in the cache, named after the run.  Files of an earlier start are overwritten by their ranks."""

    grace: float | None = GRACE

    def __init__(self, root: Path, run_id: str, exchange: str) -> None:
        name = "".join(c if c.isalnum() or c in "-_" else "_" for c in run_id)
        self._folder = root / "runs" / f"{name}-{_restarts()}" / exchange

    def put(self, rank: int, text: str) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            temporary = self._folder / f".{rank}.{os.getpid()}.tmp"
            temporary.write_text(text)
            temporary.replace(self._folder / f"{rank}.json")
        except OSError as error:
            raise PlanError(
                f"ranks compare their plans in {self._folder}, which cannot be written to: {error.strerror or error}; choose another "
                f"cache folder, start torch.distributed before the first batch, or leave out run_id"
            ) from error

    def get(self, rank: int) -> str | None:
        try:
            return (self._folder / f"{rank}.json").read_text()
        except OSError:
            return None


class StoreBoard:
    """torch.distributed's key-value store.  torchrun may keep one over its restarts, so the keys name the restart."""

    grace: float | None = None

    def __init__(self, store: Any, exchange: str) -> None:
        self._store, self._prefix = store, f"penstock/{_restarts()}/{exchange}"

    def put(self, rank: int, text: str) -> None:
        self._store.set(f"{self._prefix}/{rank}", text)

    def get(self, rank: int) -> str | None:
        key = f"{self._prefix}/{rank}"
        if not self._store.check([key]):
            return None
        text: str = self._store.get(key).decode()
        return text


def find_board(place: Place, *, run_id: str | None, root: Path, exchange: str) -> tuple[Board, Sequence[int]] | None:
    """Where the ranks meet, and which of them; None where there is nobody to meet, or no place that all can see."""
    if len(place.members) == 1:
        return None
    found = running()
    if place.told == "mesh" or (place.told in ("distributed", "environment") and found and found[0] == place.rank):
        store = sys.modules["torch.distributed"].distributed_c10d._get_default_store()
        return StoreBoard(store, exchange), place.members
    if run_id is not None:
        return FileBoard(root, run_id, exchange), place.members
    elastic = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    if place.told != "environment" or elastic == "none":
        return None
    # Nobody said that the cache folder is one for all nodes, so only the ranks of this node meet there.
    local = int(os.environ.get("LOCAL_WORLD_SIZE", len(place.members)))
    first = place.rank - int(os.environ.get("LOCAL_RANK", place.rank))
    if not _may_write(root / "runs"):  # a cache of somebody else, and nobody asked for a comparison
        _log.warning("%s cannot be written to, so ranks do not compare their plans before they begin", root)
        return None
    return FileBoard(root, elastic, exchange), range(first, first + local)


def agree(
    mine: dict[str, Any],
    *,
    rank: int,
    others: Sequence[int],
    board: Board,
    patience: float | None = None,
) -> None:
    """Return when all of `others` have shown the same as `mine`; PlanMismatch names the field and the rank that differ."""
    patience = float(os.environ.get("PENSTOCK_PATIENCE", _PATIENCE)) if patience is None else patience
    show = _Show(mine, rank, board)
    begun, pause, said = time.monotonic(), _LOOK[0], False
    waiting = {other for other in others if other != rank}
    while waiting:
        shown = {other: json.loads(text) for other in waiting if (text := board.get(other)) is not None}
        show.answer(shown.values())
        for other, theirs in shown.items():
            is_new = board.grace is None or show.mark in theirs.get("seen", ())
            if theirs.get("mine") == show.mine and is_new:
                waiting.discard(other)
            elif theirs.get("mine") != show.mine and (is_new or show.age(other, theirs) >= (board.grace or 0.0)):
                raise PlanMismatch(_difference(rank, mine, other, theirs.get("mine", theirs)))
        waited = time.monotonic() - begun
        if waiting and waited > _SAY and not said:
            _log.warning("rank %d waits for ranks %s to begin to iterate", rank, sorted(waiting))
            said = True
        if waiting and waited > patience:
            raise PlanMismatch(
                f"rank {rank} has waited {patience:.0f} s for ranks {sorted(waiting)} to begin the same iteration; they failed, or do "
                f"not make a Loader; if they are slow, set PENSTOCK_PATIENCE to more seconds"
            )
        if waiting:
            time.sleep(pause)
            pause = min(2 * pause, _LOOK[1])


class _Show:
    """What this rank pins.  Whoever has seen its mark is of the same start: a file that an earlier one left cannot know it, however long
    its rank takes to come again."""

    def __init__(self, mine: dict[str, Any], rank: int, board: Board) -> None:
        self.mine = json.loads(json.dumps(mine))  # as the others read it
        self.mark = secrets.token_hex(4)
        self._rank, self._board = rank, board
        self._seen: set[str] = set()
        self._since: dict[tuple[int, str], float] = {}
        self._put()

    def answer(self, shown: Iterable[dict[str, Any]]) -> None:
        """Tell the others that they were seen; before anything is raised, so that they learn why, too."""
        new = {theirs["mark"] for theirs in shown if "mark" in theirs} - self._seen
        if new and self._board.grace is not None:
            self._seen |= new
            self._put()

    def age(self, other: int, theirs: dict[str, Any]) -> float:
        """Seconds since this start of a rank was first looked at."""
        now = time.monotonic()
        return now - self._since.setdefault((other, theirs.get("mark", "")), now)

    def _put(self) -> None:
        text = json.dumps({"mine": self.mine, "mark": self.mark, "seen": sorted(self._seen)}, sort_keys=True)
        self._board.put(self._rank, text)


def _may_write(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _restarts() -> str:
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def _difference(rank: int, mine: dict[str, Any], other: int, theirs: dict[str, Any]) -> str:
    fields = _flat(mine), _flat(theirs)
    differing = [
        f"{key} {fields[0].get(key, 'default')!r} → {fields[1].get(key, 'default')!r}"
        for key in sorted({*fields[0], *fields[1]})
        if fields[0].get(key) != fields[1].get(key) and key != "plan"
    ] or [f"plan {mine['plan'][:8]} → {theirs['plan'][:8]}"]
    return (
        f"ranks disagree on what to train: rank {rank} → rank {other}: {'; '.join(differing)}; start all ranks with the same data, "
        f"settings and checkpoint"
    )


def _flat(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, entry in value.items():
        out |= _flat(entry, f"{prefix}{key} ") if isinstance(entry, dict) else {f"{prefix}{key}": entry}
    return out
