"""Ranks compare their plans before they begin a loop: a rank that differs is named within seconds.

Ranks meet in torch.distributed's key-value store.  Without it they are not compared, and are told so once.  No wait is endless: a rank
that does not come is an error that names it.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

from penstock.errors import PlanMismatch
from penstock.loader.batch import Batch
from penstock.loader.run import Run
from penstock.loader.world import RankInfo, running, warn_once
from penstock.plan.plan import NumberedStep, flat_summary
from penstock.words import differences

if TYPE_CHECKING:
    from penstock.loader.loader import Loader

_log = logging.getLogger("penstock")

_PATIENCE = 600.0  # seconds to wait for ranks that do not come; PENSTOCK_PATIENCE changes it
_PAUSE = (0.01, 0.5)  # seconds between reads, first and longest
_WARN_AFTER = 10.0  # seconds
_NUMBERS = (
    count()
)  # of this process's loaders that compare plans: all ranks make these in one order


class Board(Protocol):
    """Where ranks meet: the part of torch's key-value stores that is used."""

    def set(self, key: str, value: str) -> object:
        """Publish a value."""

    def check(self, keys: list[str]) -> bool:
        """Whether all of these keys are published."""

    def get(self, key: str) -> bytes:
        """Return a published value."""


class RanksAgree:
    """Refuses to begin a loop that ranks would begin in different ways."""

    def __init__(self) -> None:
        self._loader: Loader | None = None
        self._number = -1
        self._loops = 0

    def attach(self, loader: "Loader") -> None:
        if self._loader is None and len(loader.rank_info.members) > 1:
            self._number = next(_NUMBERS)
        self._loader = loader

    def begin(self, run: Run) -> None:
        """Compare what all ranks are about to do."""
        self._loops += 1
        loader = self._loader
        if loader is None or len(loader.rank_info.members) == 1:
            return
        if self._number < 0:  # a trainer has given it ranks
            self._number = next(_NUMBERS)
        board = find_board(loader.rank_info, f"{self._number}-{self._loops}")
        if board is None:
            if loader.settings.run_id is not None or loader.rank_info.origin != "arguments":
                warn_once(
                    "ranks do not compare their plans before they begin: torch.distributed does not run in this process; initialise it "
                    "before the first batch, or make sure that all ranks have the same data, settings and checkpoint"
                )
            return
        mine = {
            **run.state(),
            **run.dealing(loader.world.size),
            "epochs": loader.settings.epochs,
            "per_epoch": run.loop.per_epoch,
            "skip_steps": sorted(run.loop.skipped),
            "max_steps": run.loop.max_steps,
            "max_tokens": loader.settings.max_tokens,
            "tokens_per_step": loader.settings.tokens_per_step,
            "check": "",
        }
        agree(mine, rank=loader.rank_info.rank, others=loader.rank_info.members, board=board)

    def step(self, run: Run, step: NumberedStep, batch: Batch) -> None:
        """Ranks that began alike stay alike."""

    def end(self, run: Run) -> None:
        """Nothing is left on the board that matters."""


def find_board(info: RankInfo, exchange: str) -> Board | None:
    """Return torch.distributed's store, if the ranks of a Loader are its ranks."""
    group = running()
    is_same = info.origin in ("distributed", "environment") and group and group[0] == info.rank
    if info.origin not in ("mesh", "trainer") and not is_same:
        return None
    distributed = sys.modules["torch.distributed"]
    store = distributed.distributed_c10d._get_default_store()
    # torchrun may keep the store over restarts
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    board: Board = distributed.PrefixStore(f"penstock/{restarts}/{exchange}", store)
    return board


def agree(
    mine: dict[str, Any],
    *,
    rank: int,
    others: Sequence[int],
    board: Board,
    patience: float | None = None,
) -> None:
    """Return when all of `others` have published the same as `mine`; PlanMismatch names the field and the rank that differ."""
    if patience is None:
        patience = float(os.environ.get("PENSTOCK_PATIENCE", _PATIENCE))
    mine = json.loads(json.dumps(mine))
    board.set(str(rank), json.dumps(mine))
    waiting = set(others) - {rank}
    begun = time.monotonic()
    pause = _PAUSE[0]
    has_warned = False
    while waiting:
        for other in sorted(waiting):
            if not board.check([str(other)]):
                continue
            theirs = json.loads(board.get(str(other)))
            if theirs != mine:
                raise PlanMismatch(_describe(rank, mine, other, theirs))
            waiting.discard(other)
        if not waiting:
            return
        waited = time.monotonic() - begun
        if waited > patience:
            raise PlanMismatch(
                f"rank {rank} has waited {patience:.0f} s for ranks {sorted(waiting)} to begin the same iteration; they failed, or do "
                f"not make a Loader; if they are slow, set PENSTOCK_PATIENCE to more seconds",
                code="ranks_wait",
            )
        if waited > _WARN_AFTER and not has_warned:
            _log.warning("rank %d waits for ranks %s to begin to iterate", rank, sorted(waiting))
            has_warned = True
        time.sleep(pause)
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
