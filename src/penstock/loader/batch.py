"""A batch: arrays by name, and where they come from.  Metrics: sums over the batches of a Loader."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from penstock.errors import PlanError
from penstock.notebook import shown_in_notebooks
from penstock.plan.ranks import Share, Spread
from penstock.plan.rows import Rows
from penstock.types import MEDIA, Ints, MediaItem, Where, unpack_media
from penstock.words import plural, shortened

if TYPE_CHECKING:
    from penstock.loader.loader import Loader
    from penstock.loader.parts import Parts
    from penstock.loader.run import Run
    from penstock.plan.plan import NumberedStep

Provenance = list[list[tuple[Where, int, int]]]
Made = TypeVar("Made")

_SUMMED_TOGETHER = 64  # steps: the cost per step is then small
_NO_STEP = Spread(0, 0.0, 0)


class Whole(dict[str, Any]):
    """What a user's collate returned for plain records, if it is not a dict: it is delivered as it is, under no name."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        return Whole, (self.value,)


@shown_in_notebooks
class Batch(dict[str, Any]):
    """Arrays by name, and where they come from."""

    def __init__(
        self,
        arrays: Mapping[str, Any],
        share: Share,
        stores: Sequence[Any],
        step: int,
        trained: int = 0,
    ) -> None:
        super().__init__(arrays)
        self._whole = arrays if isinstance(arrays, Whole) else None
        self.step = step
        self.share = share
        self._stores = stores
        self.trained = trained  # tokens with a label

    @property
    def arrays(self) -> "dict[str, Any]":
        """What this batch was made of."""
        return self if self._whole is None else self._whole

    @property
    def delivered(self) -> Any:
        """What a loop over the Loader is given: this batch, or what the user's collate made of plain records instead of a dict."""
        return self if self._whole is None else self._whole.value

    def __missing__(self, key: str) -> Any:
        if not self and not self.rows.spans.size:
            raise PlanError(
                f"this rank has no record in step {self.step}, the last one, which last_step='pad' fills up: its batch is empty, and "
                f"collate was not called; test `if batch:` before you use it, or choose last_step='drop' or last_step='repeat'"
            )
        raise KeyError(key)

    @property
    def rows(self) -> Rows:
        """The spans of each row."""
        return self.share.rows

    @property
    def places(self) -> Ints:
        """Which row of the step each row is, counted over all ranks in the global order."""
        return self.share.places

    @property
    def provenance(self) -> Provenance:
        """For each row, its spans as (where the record is, first token, last token + 1).  Costs nothing until it is used."""
        if not self._stores:
            raise PlanError(
                f"this batch came from another process without its stores; ask loader.explain({self.step})"
            )
        return provenance(self.rows, self._stores)

    @property
    def media(self) -> list[list[tuple[Where, MediaItem]]]:
        """For each row, its images, videos and audio clips in order, as (where the record is, the item).  Costs nothing until used."""
        if not self._stores:
            raise PlanError(
                f"this batch came from another process without its stores; ask loader.explain({self.step})"
            )
        return [
            [
                (self._stores[source].source.locate(sample), item)
                for source, sample, _, _ in self.rows[row].tolist()
                for item in media_of(self._stores[source], sample)
            ]
            for row in range(self.rows.num_rows)
        ]

    def to(self, device: Any, **options: Any) -> "Batch":
        """Return the same batch with its tensors on `device`, with step and provenance."""
        moved = {
            name: value.to(device, **options) if hasattr(value, "to") else value
            for name, value in self.items()
        }
        return Batch(moved, self.share, self._stores, self.step, self.trained)

    def __repr__(self) -> str:
        """Shapes and types of the arrays; `dict(batch)` shows their values."""
        arrays = ", ".join(
            f"{name} {'×'.join(map(str, value.shape)) or 'scalar'} {value.dtype}"
            if hasattr(value, "shape") and hasattr(value, "dtype")
            else f"{name} {shortened(repr(value), 40)}"
            for name, value in self.items()
        )
        samples = plural(int(np.count_nonzero(self.rows.spans["start"] == 0)), "sample")
        trained = f", {plural(self.trained, 'trained token')}" if self.trained else ""
        return f"Batch(step {self.step}, {samples}{trained}: {arrays})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Batch, (
            dict(self) if self._whole is None else self._whole,
            self.share,
            (),
            self.step,
            self.trained,
        )  # stores are not sent with every batch


def provenance(rows: Rows, stores: Sequence[Any]) -> Provenance:
    """Return for each row its spans as (where the record is, first token, last token + 1)."""
    return [
        [
            (stores[source].source.locate(sample), start, stop)
            for source, sample, start, stop in rows[r].tolist()
        ]
        for r in range(rows.num_rows)
    ]


def explain_step(loader: "Loader", step: int) -> Provenance:
    """Return where every span of all ranks' rows at `step` comes from, without running to it."""
    return provenance(loader.run.look_up(step).rows, loader.run.stores)


def has_media(store: Any) -> bool:
    """Whether samples of the store may hold images, videos or audio."""
    return MEDIA in store.columns


def media_of(store: Any, sample: int) -> list[MediaItem]:
    """Return the media of one sample, in the order of their placeholders."""
    return unpack_media(memoryview(store[sample].columns[MEDIA.name])) if has_media(store) else []


class Metrics:
    """What this rank was given since its Loader was made, how long it waited, and what all ranks were given in the last step."""

    def __init__(self, names: list[str], max_length: int, parts: "Parts | None" = None) -> None:
        """max_length: the tokens of a full row.  parts: of the Loader; supplies and stages of columns may have counts of their own."""
        self._names = names
        self._max_length = max_length
        self._parts = parts
        self._earlier_counts: Mapping[str, Mapping[str, int]] = {}  # of stages before a change
        self._earlier_traffic: Mapping[str, float] = {}  # of supplies before a change of the stores
        self._tokens = np.zeros(len(names), np.int64)  # per source
        self._samples = self._rows = self._padding_rows = self._trained = self._steps = 0
        self._shortest = 0
        self._longest = 0
        self._wait = self._slowest = 0.0
        self._last: Share | None = None
        self._pending: list[Rows] = []  # not summed yet

    def __repr__(self) -> str:
        numbers = self.as_dict()
        shares = ", ".join(f"{name} {share:.1%}" for name, share in numbers["shares"].items())
        return (
            f"Metrics({plural(numbers['steps'], 'step')}, {plural(numbers['rows'], 'row')}, "
            f"{plural(numbers['samples'], 'sample')}, {plural(numbers['tokens'], 'token')} "
            f"({numbers['trained_tokens']:,} trained), {numbers['fill'] or 0.0:.1%} filled, "
            f"{numbers['wait_seconds']:.1f} s waited; {shares})"
        )

    def name_sources(self, names: list[str]) -> None:
        """Count sources that were added, too."""
        if names == self._names:
            return
        self._add_up()
        found = dict(zip(self._names, self._tokens.tolist(), strict=True))
        self._names = names
        self._tokens = np.array([found.get(name, 0) for name in names], np.int64)

    def follow(self, names: list[str], parts: "Parts") -> None:
        """Go on with the sources and parts that a change has brought."""
        self._earlier_counts = self._stage_counts()
        self._earlier_traffic = self._traffic()
        self._parts = parts
        self.name_sources(names)

    def _traffic(self) -> dict[str, float]:
        """Return what was read of other machines so far."""
        traffic = dict(self._earlier_traffic)
        for supply in self._parts.supplies if self._parts is not None else ():
            for name, number in supply.traffic().items():
                traffic[name] = traffic.get(name, 0) + number
        return traffic

    def _stage_counts(self) -> dict[str, dict[str, int]]:
        """Return what stages of columns have counted so far."""
        counts = {name: dict(of_stage) for name, of_stage in self._earlier_counts.items()}
        stages = self._parts.stages if self._parts is not None else {}
        for name, stage in stages.items():
            count = getattr(stage, "counts", None)
            for what, number in (count() if count is not None else {}).items():
                of_stage = counts.setdefault(name, {})
                of_stage[what] = of_stage.get(what, 0) + number
        return counts

    def attach(self, loader: Any) -> None:
        """Nothing has to be known of the Loader."""

    def begin(self, run: "Run") -> None:
        """Nothing is counted before a step is delivered."""

    def end(self, run: "Run") -> None:
        """All steps are counted."""

    def step(self, run: "Run", step: "NumberedStep", batch: Batch) -> None:
        """Count a batch that was delivered."""
        self._trained += batch.trained
        self._steps += 1
        self._slowest += batch.share.cost.slowest
        self._last = batch.share
        self._pending.append(batch.rows)
        if len(self._pending) >= _SUMMED_TOGETHER:
            self._add_up()

    def _add_up(self) -> None:
        rows = Rows.join(self._pending)
        self._pending = []
        sizes = rows.spans["stop"] - rows.spans["start"]
        self._tokens += np.bincount(
            rows.spans["source"], weights=sizes, minlength=len(self._names)
        ).astype(np.int64)
        self._samples += int(np.count_nonzero(rows.spans["start"] == 0))
        row_lengths = np.diff(np.concatenate(([0], np.cumsum(sizes)))[rows.starts])
        real = row_lengths[row_lengths > 0]
        self._rows += real.size
        self._padding_rows += rows.num_rows - real.size
        if real.size:
            self._shortest = min(self._shortest or int(real.min()), int(real.min()))
            self._longest = max(self._longest, int(real.max()))

    def timed(self, batches: Iterator[Made]) -> Iterator[Made]:
        """Yield from `batches` and add up the time spent waiting."""
        before = time.perf_counter()
        for value in batches:
            self._wait += time.perf_counter() - before
            yield value
            del value  # keep no reference: memory that the consumer releases can be used again
            before = time.perf_counter()

    def as_dict(self) -> dict[str, Any]:
        self._add_up()
        tokens = int(self._tokens.sum())
        capacity = (self._rows + self._padding_rows) * self._max_length
        # None where there is nothing yet to divide by: 1.0 would be a full row, and 0.0 an empty one
        mean = tokens / self._rows if self._rows else None
        shares = (self._tokens / max(tokens, 1)).tolist()
        traffic = self._traffic()
        numbers = {
            "steps": self._steps,
            "rows": self._rows,
            "padding_rows": self._padding_rows,
            "samples": self._samples,
            "tokens": tokens,
            "trained_tokens": self._trained,
            "padding_tokens": capacity - tokens,
            "fill": tokens / capacity if capacity else None,
            "row_length": {"min": self._shortest, "mean": mean, "max": self._longest},
            "shares": dict(zip(self._names, shares, strict=True)),
            "wait_seconds": self._wait,
            "ranks": {
                "tokens": asdict(self._last.tokens if self._last else _NO_STEP),
                "cost": asdict(self._last.cost if self._last else _NO_STEP),
                "slowest": self._slowest / self._steps if self._steps else None,
            },
        }
        numbers |= self._stage_counts()
        return numbers | {"remote": traffic} if traffic else numbers
