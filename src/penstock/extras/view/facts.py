"""Numbers of every record of the stores, as arrays: a filter over millions of records is then a few operations of numpy."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import numpy as np

from penstock.errors import PenstockError, PlanError
from penstock.loader import Loader
from penstock.reasons import NOTHING_TO_TRAIN, OVERLONG
from penstock.report.numbers import SourceNumbers, sources, stores
from penstock.report.trace import lacks_targets
from penstock.store import Store
from penstock.types import MEDIA, Bools, Ints, Samples

_log = logging.getLogger("penstock")

KINDS = ("image", "video", "audio")

Made = TypeVar("Made")


class Job(Generic[Made]):
    """Work in a thread of its own, with its progress.  `state` is what the page shows of it."""

    def __init__(self, work: "Callable[[Job[Made]], Made]", total: int) -> None:
        self.done = 0
        self.total = total
        self.result: Made | None = None
        self.error: str | None = None
        self._thread = threading.Thread(
            target=self._run, args=(work,), name="penstock-view", daemon=True
        )
        self._thread.start()

    def _run(self, work: "Callable[[Job[Made]], Made]") -> None:
        try:
            self.result = work(self)
        except PenstockError as error:
            self.error = str(error)
        except Exception as error:
            _log.exception("the viewer failed in the background")
            self.error = f"an error of Penstock itself: {type(error).__name__}: {error}"

    @property
    def state(self) -> dict[str, Any]:
        is_over = self.result is not None or self.error is not None
        return {"done": self.done, "of": self.total, "over": is_over, "error": self.error}

    def wait(self, seconds: float | None) -> Made | None:
        """Return the result if it is there within some seconds; None waits for the end."""
        self._thread.join(seconds)
        return self.result


class Facts:
    """Length, targets, media and drop reason of every record, all stores end to end; record `starts[s] + r` is record r of store s."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self.stores = stores(loader)
        found = list(self.stores.values())
        self.starts: Ints = np.cumsum([0, *map(len, found)]).astype(np.int64)
        self.lengths = np.concatenate([np.zeros(0, np.int32), *(store.lengths for store in found)])
        # what max_length limits: of a pair, the longest sequence
        self.longest = np.concatenate([np.zeros(0, np.int32), *(store.longest for store in found)])
        self.targets = np.zeros(self.lengths.size, np.int32)
        self.media = np.zeros(self.lengths.size, np.uint8)  # one bit for each of KINDS
        self.reasons = np.zeros(
            self.lengths.size, np.uint8
        )  # 0: a sample, else 1 + its place in `reason_names`
        self.reason_names: list[str] = []
        self.untrained = np.zeros(
            self.lengths.size, np.bool_
        )  # the plan cuts them into pieces without a target
        self.job: Job[tuple[SourceNumbers, ...]] = Job(self._read, self.lengths.size)

    @property
    def is_complete(self) -> bool:
        return self.job.result is not None

    def has(self, row: int) -> bool:
        """Whether the targets and the reason of a record are known by now."""
        return row < self.job.done or self.is_complete

    def _read(self, job: Job[Any]) -> tuple[SourceNumbers, ...]:
        for start, store in zip(self.starts.tolist(), self.stores.values(), strict=False):
            for shard in range(store.num_shards):
                first = start + int(store.shard_starts[shard])
                self._read_shard(store, shard, first)
                job.done = first + int(store.shard_sizes[shard])
        return sources(self._loader)

    def _read_shard(self, store: Store, shard: int, first: int) -> None:
        """Fill in the records of one shard."""
        tokens = store.tokens(shard)
        size = len(tokens.offsets) - 1
        offsets = tokens.offsets.astype(np.int64)
        mask = tokens.loss_mask(0, int(offsets[-1]))
        flat = Samples(input_ids=tokens.input_ids, loss_mask=mask, offsets=offsets)
        self.targets[first : first + size] = flat.num_targets()
        for row in np.flatnonzero(np.diff(offsets) > self._loader.plan.settings.capacity).tolist():
            own = mask[offsets[row] : offsets[row + 1]]
            self.untrained[first + row] = lacks_targets(own, self._loader.plan.settings)
        if MEDIA in store.columns:
            for row in np.flatnonzero(np.diff(offsets)).tolist():
                value = tokens.column_of(MEDIA, row).tobytes()
                self.media[first + row] = sum(
                    (f'"kind":"{kind}"'.encode() in value) << n for n, kind in enumerate(KINDS)
                )
        for code, reason in enumerate(tokens.reason_names, start=1):
            self.reasons[first + np.flatnonzero(tokens.reasons == code)] = self._code(reason)

    def _code(self, reason: str) -> int:
        if reason not in self.reason_names:
            self.reason_names.append(reason)
        return 1 + self.reason_names.index(reason)

    def reason_counts(self) -> dict[str, int]:
        """Count records by the reason for which they are in no step; those of the plan come last."""
        names = dict.fromkeys([*self.reason_names, NOTHING_TO_TRAIN, OVERLONG])
        counts = {name: int(np.count_nonzero(self._with_reason(name))) for name in names}
        return {name: count for name, count in counts.items() if count}

    def reason_of(self, row: int) -> str:
        if self.reasons[row]:
            return self.reason_names[int(self.reasons[row]) - 1]
        if self.untrained[row]:
            return NOTHING_TO_TRAIN
        return OVERLONG if self._overlong(slice(row, row + 1))[0] else ""

    def _overlong(self, rows: slice = slice(None)) -> Bools:
        """Which records the plan drops as too long."""
        settings = self._loader.plan.settings
        lengths = self.longest[rows]
        if settings.method.cuts or settings.on_overlong != "drop":
            return np.zeros(lengths.size, np.bool_)
        return np.asarray(lengths > settings.capacity)

    def matching(self, asked: Mapping[str, str]) -> Bools:
        """Return which records pass the filters; those that are not asked for let every record pass."""
        passed = np.ones(self.lengths.size, np.bool_)
        for name, values in (("length", self.lengths), ("targets", self.targets)):
            if low := asked.get(f"{name}_from"):
                passed &= values >= number(low, f"{name}_from")
            if high := asked.get(f"{name}_to"):
                passed &= values <= number(high, f"{name}_to")
        for key, is_low in (("share_from", True), ("share_to", False)):
            if given := asked.get(key):
                # a quotient would be rounded
                border = self.lengths * number(given, key)
                parts = self.targets * 100.0
                passed &= (parts >= border) if is_low else (parts <= border)
                passed &= self.lengths > 0
        if reason := asked.get("reason"):
            passed &= self._with_reason(reason)
        if kind := asked.get("media"):
            if kind not in KINDS:
                raise PlanError(f"media is {kind!r}, expected one of {', '.join(KINDS)}")
            passed &= (self.media & (1 << KINDS.index(kind))) > 0
        return passed

    def _with_reason(self, reason: str) -> Bools:
        is_dropped = (self.reasons > 0) | self.untrained | self._overlong()
        if reason in ("none", "any"):
            return np.asarray(is_dropped == (reason == "any"))
        if reason == OVERLONG:
            return self._overlong()
        names = [*self.reason_names]
        if self.is_complete and reason not in (*names, NOTHING_TO_TRAIN):
            known = ", ".join(["any", "none", *self.reason_counts()])
            raise PlanError(f"no record is dropped as {reason[:40]!r}, expected one of {known}")
        own = 1 + names.index(reason) if reason in names else len(names) + 1
        return np.asarray((self.reasons == own) | (self.untrained & (reason == NOTHING_TO_TRAIN)))


def number(text: str, name: str, *, least: float = 0) -> float:
    """Return a number of a URL; refuse anything else."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not least <= value < 1e18:
        raise PlanError(f"{name} is {text[:40]!r}, expected a number from {least:g} on")
    return value


def whole(text: str, name: str, *, least: int = 0) -> int:
    """Return a whole number of a URL; refuse anything else."""
    value = number(text, name, least=least)
    if value % 1:
        raise PlanError(f"{name} is {text[:40]!r}, expected a whole number")
    return int(value)


def yield_lock() -> None:
    """Let a request have the lock, which threads do not take in turn."""
    time.sleep(0.0005)
