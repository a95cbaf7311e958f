"""Ranks compare their plans before they start: a rank that differs is named within seconds.

Ranks meet in torch.distributed's key-value store if it is running, else in files in the cache folder, under the name of the run.
No wait is endless: a rank that does not come is an error that names it.
"""

import contextlib
import json
import logging
import os
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.errors import PlanError, PlanMismatch
from penstock.loader.status import run_folder
from penstock.loader.world import RankInfo, running
from penstock.plan.plan import flat_summary
from penstock.words import differences

_log = logging.getLogger("penstock")

GRACE = (
    60.0  # seconds until a file counts although its rank has not read ours: that rank has failed
)
_PATIENCE = 600.0  # seconds to wait for ranks that do not come; PENSTOCK_PATIENCE changes it
_PAUSE = (0.01, 0.5)  # seconds between reads, first and longest
_WARN_AFTER = 10.0  # seconds


class FileBoard:
    """A folder in the cache, named after the run, with the methods of torch's key-value store.

    Files of an earlier start may be there: each rank overwrites its own.
    """

    def __init__(self, root: Path, run_id: str, exchange: str) -> None:
        self._folder = run_folder(root, f"{run_id}-{_restarts()}") / exchange

    def set(self, key: str, text: str) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            temporary = self._folder / f".{key}.{os.getpid()}.tmp"
            temporary.write_text(text)
            temporary.replace(self._folder / f"{key}.json")
        except OSError as error:
            raise PlanError(
                f"ranks compare their plans in {self._folder}, which cannot be written to: {error.strerror or error}; choose another "
                f"cache folder, start torch.distributed before the first batch, or leave out run_id"
            ) from error

    def check(self, keys: list[str]) -> bool:
        return all((self._folder / f"{key}.json").is_file() for key in keys)

    def get(self, key: str) -> bytes:
        return (self._folder / f"{key}.json").read_bytes()


def find_board(
    info: RankInfo, *, run_id: str | None, root: Path, exchange: str
) -> tuple[Any, Sequence[int]] | None:
    """Return where the ranks meet, and which of them; None if there is only one, or no place that all can see."""
    if len(info.members) == 1:
        return None
    found = running()
    environment = os.environ
    if info.origin == "mesh" or (
        info.origin in ("distributed", "environment") and found and found[0] == info.rank
    ):
        distributed = sys.modules["torch.distributed"]
        store = distributed.distributed_c10d._get_default_store()
        # torchrun may keep the store over restarts
        return distributed.PrefixStore(f"penstock/{_restarts()}/{exchange}", store), info.members
    if run_id is not None:
        return FileBoard(root, run_id, exchange), info.members
    elastic = environment.get("TORCHELASTIC_RUN_ID", "none")
    if info.origin != "environment" or elastic == "none":
        return None
    with contextlib.suppress(OSError):
        (root / "runs").mkdir(parents=True, exist_ok=True)
    if not ((root / "runs").is_dir() and os.access(root / "runs", os.W_OK)):
        _log.warning(
            "%s cannot be written to, so ranks do not compare their plans before they begin", root
        )
        return None
    # The cache folder may differ between nodes, so only the ranks of this node meet there.
    first = info.rank - int(environment.get("LOCAL_RANK", info.rank))
    local = int(environment.get("LOCAL_WORLD_SIZE", len(info.members)))
    return FileBoard(root, elastic, exchange), range(first, first + local)


def agree(
    mine: dict[str, Any],
    *,
    rank: int,
    others: Sequence[int],
    board: Any,
    patience: float | None = None,
) -> None:
    """Return when all of `others` have published the same as `mine`; PlanMismatch names the field and the rank that differ.

    Each start of a rank has a random mark, and publishes the marks that it has read.  A rank that has read our mark belongs to the same
    start: a file that an earlier start left cannot contain it, however long its rank takes to come again.
    """
    patience = (
        float(os.environ.get("PENSTOCK_PATIENCE", _PATIENCE)) if patience is None else patience
    )
    mine = json.loads(json.dumps(mine))
    mark = secrets.token_hex(4)
    has_leftovers = isinstance(board, FileBoard)
    first_read: dict[str, float] = {}  # mark of another rank → when
    waiting = set(others) - {rank}
    begun = time.monotonic()
    pause = _PAUSE[0]
    has_warned = False

    def publish() -> None:
        board.set(str(rank), json.dumps({"mine": mine, "mark": mark, "read": sorted(first_read)}))

    publish()
    while waiting:
        found = {
            other: json.loads(board.get(str(other)))
            for other in sorted(waiting)
            if board.check([str(other)])
        }
        now = time.monotonic()
        if new := {theirs["mark"] for theirs in found.values()} - first_read.keys():
            first_read.update(dict.fromkeys(new, now))
        if new and has_leftovers:
            publish()  # before an error: the others then learn the reason, too
        for other, theirs in found.items():
            is_current = not has_leftovers or mark in theirs["read"]
            if theirs["mine"] != mine and (is_current or now - first_read[theirs["mark"]] >= GRACE):
                raise PlanMismatch(_describe(rank, mine, other, theirs["mine"]))
            if theirs["mine"] == mine and is_current:
                waiting.discard(other)
        if waiting and now - begun > patience:
            raise PlanMismatch(
                f"rank {rank} has waited {patience:.0f} s for ranks {sorted(waiting)} to begin the same iteration; they failed, or do "
                f"not make a Loader; if they are slow, set PENSTOCK_PATIENCE to more seconds",
                code="ranks_wait",
            )
        if waiting and now - begun > _WARN_AFTER and not has_warned:
            _log.warning("rank %d waits for ranks %s to begin to iterate", rank, sorted(waiting))
            has_warned = True
        time.sleep(pause if waiting else 0)
        pause = min(2 * pause, _PAUSE[1])


def _describe(rank: int, mine: dict[str, Any], other: int, theirs: dict[str, Any]) -> str:
    """Name what differs between two ranks; their plans' fingerprints only if nothing else does."""
    flat = [
        flat_summary(value["settings"]) | value | {"settings": "", "plan": ""}
        for value in (mine, theirs)
    ]
    found = differences(*flat) or [f"plan {mine['plan'][:8]} → {theirs['plan'][:8]}"]
    return (
        f"ranks disagree on what to train: rank {rank} → rank {other}: {'; '.join(found)}; start all ranks with the same data, "
        f"settings and checkpoint"
    )


def _restarts() -> str:
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
