"""Make one shard: the work of one process.  Rows start..stop in, a published file and a few numbers out; and count progress.

Records are encoded some at a time, so a process holds the tokens of a shard but never all of its records.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.cache import Cache
from penstock.cache.claims import Claim, Held, publish_result, recall_result, take_claim
from penstock.errors import SourceChanged, StoreError, TemplateError
from penstock.extras.ray.remote_work import OnOtherMachines
from penstock.fingerprint import fingerprint
from penstock.reasons import NOTHING_TO_TRAIN
from penstock.store.digests import recall_digests, remember_digests
from penstock.store.shards import (
    Schema,
    ShardEntry,
    check_samples,
    encode_shard,
    read_shard,
    shard_key,
    shard_name,
    template_identity,
)
from penstock.types import (
    AnyTemplate,
    BadRow,
    Ints,
    Samples,
    Source,
    Values,
    join_notes,
    opened,
    rule_of,
)
from penstock.words import differences

_PARTS = 8  # a shard is encoded in at least so many parts
_MAX_ROWS = 1024  # of one part


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTask:
    """Records start..stop → one shard."""

    shard: int
    start: int
    stop: int
    digest: str | None = None  # of the records, where it is known; an error if they do not match
    digest_name: str | None = (
        None  # under which the cache keeps that digest, where files tell when they change
    )
    replace: bool = False  # whatever file has the shard's name
    claim: Held | None = None  # of another process, when the task was last tried
    take_over: bool = False  # that claim, if it is still the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The result of a task."""

    shard: int
    digest: str | None  # None where another process reads the records
    entry: ShardEntry | None = (
        None  # None where only the digest was asked for, or another process makes the shard
    )
    held: Held | None = None  # the claim of that process
    is_new: bool = False  # made now, not found
    damage: str = ""  # of the file that was found and replaced


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """How far a task has come."""

    rows: int  # finished; the next ones are being worked on
    tokens: int


class DigestShard(OnOtherMachines):
    """The work of digesting rows: sent to a process once, called with each task."""

    def __call__(self, task: ShardTask) -> Any:
        return Made(shard=task.shard, digest=self._known(task) or self._digest(task, self.source))

    def _known(self, task: ShardTask) -> str | None:
        """The digest of a task's records, if the task or the cache has it."""
        if (
            task.digest is not None
            or task.digest_name is None
            or self.cache is None
            or task.replace
        ):
            return task.digest
        found = recall_digests(task.digest_name, 1, self.cache)
        return found[0] if found else None

    def _digest(self, task: ShardTask, rows: Source) -> str:
        """Digest the records of a task, and publish the digest: the files were as their stamp says before and after the reading."""
        found = rows.digest(task.start, task.stop)
        if task.digest_name is not None and self.cache is not None:
            remember_digests(task.digest_name, [found], self.cache)
        return found

    def describe(self, task: ShardTask, note: TaskProgress | None) -> str:
        """Describe a task whose process died."""
        first = self.source.locate(task.start)
        last = self.source.locate(task.stop - 1)
        text = f"shard {task.shard} (rows {task.start}..{task.stop}, from {first} to {last})"
        if note is not None:
            row = min(task.start + note.rows, task.stop - 1)
            text += f", at or after row {row} ({self.source.locate(row)})"
        return text


class MakeShard(DigestShard):
    """The work of making shards."""

    cache: Cache

    def __init__(self, source: Source, template: AnyTemplate, cache: Cache) -> None:
        super().__init__(source, cache)
        self.template = template
        self.identity = template_identity(template)

    @cached_property
    def schema(self) -> Schema:
        return Schema.of(
            self.template
        )  # late: a template may load its tokenizer for the size of its vocabulary

    def check(self, sign: str) -> None:
        """Raise an error also if the template is another one here: a remembered one is opened, as it repeats what it was sent with."""
        super().check(sign)
        here = template_identity(opened(self.template))
        if found := differences(self.identity, here):
            raise StoreError(
                f"its template differs: {'; '.join(found)}; give all nodes the same tokenizer and code"
            )

    def keys(self, digests: Iterable[str]) -> list[str]:
        """The keys of shards whose records have these digests."""
        return [shard_key(records, self.identity) for records in digests]

    def __call__(self, task: ShardTask) -> Generator[TaskProgress, None, Made]:
        """Make and publish a shard, unless it exists or another process makes it."""
        digest = self._known(task)
        if digest is not None or task.digest_name is None or task.replace:
            return (yield from self._find_or_make(task, digest))
        # The key is not known before the records are read: claim their range, so that one process reads them.
        claim = take_claim(range_claim(task.digest_name), self.cache, stale=self._stale(task))
        if isinstance(claim, Held):
            return Made(shard=task.shard, digest=None, held=claim)
        with claim:
            return (yield from self._find_or_make(task, self._known(task)))

    def _stale(self, task: ShardTask) -> Held | None:
        return task.claim if task.take_over else None

    def _find_or_make(
        self, task: ShardTask, digest: str | None
    ) -> Generator[TaskProgress, None, Made]:
        rows = None
        if digest is None:
            rows = self._snapshot(task)
            digest = self._digest(task, self.source if rows is None else rows)
        key = shard_key(digest, self.identity)
        entry, damage = self._find(task, key)
        if entry is None:
            claim = (
                Claim(self.cache)
                if task.replace
                else take_claim(key, self.cache, stale=self._stale(task))
            )
            if isinstance(claim, Held):
                return Made(shard=task.shard, digest=digest, held=claim)
            with claim:
                if not damage:
                    entry, damage = self._find(
                        task, key
                    )  # it may have been finished just before the claim
                if entry is None:
                    samples = yield from self._encode_rows(task, rows, digest, claim)
                    data, entry = encode_shard(samples, self.schema, key)
                    is_replaced = task.replace or bool(damage)
                    self.cache.publish(
                        shard_name(key), lambda file: file.write(data), replace=is_replaced
                    )
                    publish_result(key, asdict(entry), self.cache)
                    return Made(
                        shard=task.shard, digest=digest, entry=entry, is_new=True, damage=damage
                    )
        return Made(shard=task.shard, digest=digest, entry=entry)

    def _snapshot(self, task: ShardTask) -> Source | None:
        """The source with the rows of a task in memory, so that the file is read once; None if it cannot do that."""
        snapshot = getattr(self.source, "snapshot", None)  # only our own sources have it
        found: Source | None = None if snapshot is None else snapshot(task.start, task.stop)
        return found

    def _find(self, task: ShardTask, key: str) -> tuple[ShardEntry | None, str]:
        """Return the shard if it is published and complete, else its problem.

        A shard is taken by its size if the process that made it runs on this machine and has sent its digest; else it is read.
        """
        name = shard_name(key)
        if (
            task.claim is not None
        ):  # on a network, a question by name may get an old answer until the folder is listed
            self.cache.names(name.rpartition("/")[0])
        size = None if task.replace else self.cache.size(name)
        if size is None:
            return None, ""
        with contextlib.suppress(
            TypeError, KeyError, AttributeError
        ):  # of another version of Penstock, or damaged
            found = ShardEntry.from_json(recall_result(key, self.cache))
            if (found.key, found.num_bytes, found.counts.rows) == (
                key,
                size,
                task.stop - task.start,
            ):
                return found, ""
        try:
            return read_shard(key, self.cache, self.schema, num_rows=task.stop - task.start)[1], ""
        except StoreError as error:
            return None, str(error)

    def _encode_rows(
        self, task: ShardTask, rows: Source | None, digest: str, claim: Claim
    ) -> Generator[TaskProgress, None, Samples]:
        """Encode the rows that have this digest.  `rows` are those that were digested; else they are compared with it."""
        held = self._snapshot(task) if rows is None else rows
        source = self.source if held is None else held  # not by truth: a stream's length is its end
        samples = yield from self._encode(task, source, claim)
        if rows is None and source.digest(task.start, task.stop) != digest:
            raise SourceChanged(
                f"{self.source.locate(task.start)}: rows {task.start}..{task.stop} changed while they were tokenized; "
                f"run again; shards that did not change are kept"
            )
        return samples

    def _encode(
        self, task: ShardTask, source: Source, claim: Claim
    ) -> Generator[TaskProgress, None, Samples]:
        """Samples of all rows.  A bad row is a sample without tokens, so that sample i stays row i."""
        num_rows = task.stop - task.start
        done = 0
        tokens = 0
        template = opened(self.template)
        records = source.records(task.start, task.stop)
        parts: list[Samples] = []
        good: list[int] = []  # rows, counted from the task's first
        bad: dict[int, str] = {}
        while batch := list(islice(records, max(1, min(_MAX_ROWS, num_rows // _PARTS)))):
            yield TaskProgress(done, tokens)
            bad |= {
                done + row: record.reason
                for row, record in enumerate(batch)
                if isinstance(record, BadRow)
            }
            rows = [row for row in range(done, done + len(batch)) if row not in bad]
            try:
                parts.append(template.encode([batch[row - done] for row in rows]))  # type: ignore[misc]  # no BadRow
            except TemplateError as error:
                if error.record is None:
                    raise
                raise TemplateError(
                    f"{self.source.locate(task.start + rows[error.record])}: {error}"
                ) from error
            check_samples(parts[-1], len(rows), self.schema)
            claim.beat()
            good += rows
            done += len(batch)
            tokens += len(parts[-1].input_ids)
        if done != num_rows:
            raise StoreError(
                f"{self.source!r} gave {done} records for rows {task.start}..{task.stop}"
            )
        return _without_untrained(_join(parts, good, bad, self.schema), self.schema)


def range_claim(digest_name: str) -> str:
    """The key under which a range of rows is claimed while its digest is not known."""
    return f"rows-{fingerprint(digest_name)}"


def _offsets(lengths: Ints) -> Ints:
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)


def _join(
    parts: Sequence[Samples], good: Sequence[int], bad: dict[int, str], schema: Schema
) -> Samples:
    """Return one sample for each row: the samples of all parts for the `good` rows, and an empty one for each bad row."""

    def flat(dtype: npt.DTypeLike, arrays: Iterable[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        return np.concatenate([np.zeros(0, dtype), *arrays])

    rows = np.array(good, np.int64)

    def per_row(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        found = np.zeros(len(good) + len(bad), values.dtype)
        found[rows] = values
        return found

    def offsets(found: Iterable[Any]) -> Ints:
        return _offsets(per_row(flat(np.int64, map(np.diff, found))))

    columns = {}
    for column in schema.columns:
        own = [part.columns[column.name] for part in parts]
        values = flat(column.dtype, (each.values for each in own))
        starts = offsets(each.offsets for each in own) if column.per == "list" else None
        columns[column.name] = Values(per_row(values) if column.per == "sample" else values, starts)
    firsts = _offsets(np.array([len(part.offsets) - 1 for part in parts])).tolist()
    dropped = {
        good[first + n]: why
        for first, part in zip(firsts, parts, strict=False)
        for n, why in part.dropped.items()
    }
    notes = join_notes(zip(firsts, (part.notes for part in parts), strict=False))
    return Samples(
        input_ids=flat(np.uint32, (part.input_ids for part in parts)),
        loss_mask=flat(np.bool_, (part.loss_mask for part in parts)),
        offsets=offsets(part.offsets for part in parts),
        dropped=dropped | bad,
        notes={
            name: {good[row]: size for row, size in found.items()} for name, found in notes.items()
        },
        assistant_characters=sum(part.assistant_characters for part in parts),
        columns=columns,
    )


def _without_untrained(samples: Samples, schema: Schema) -> Samples:
    """Drop and count samples without a target: a row of them alone would have no loss.  Prompts have none and stay."""
    if not all(rule_of(column).needs_target for column in schema.columns):
        return samples
    lengths = np.diff(samples.offsets)
    lacking = (samples.num_targets() == 0) & (lengths > 0)
    if not lacking.any():
        return samples
    kept = np.repeat(~lacking, lengths)
    per_token = [column.name for column in schema.columns if column.per == "token"]
    return replace(
        samples,
        input_ids=samples.input_ids[kept],
        loss_mask=samples.loss_mask[kept],
        offsets=_offsets(np.where(lacking, 0, lengths)),
        dropped={
            **samples.dropped,
            **dict.fromkeys(np.flatnonzero(lacking).tolist(), NOTHING_TO_TRAIN),
        },
        columns={
            **samples.columns,
            **{name: Values(samples.columns[name].values[kept]) for name in per_token},
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a store is, how fast, and how long it will take."""

    name: str
    rows: int
    num_rows: int
    num_bytes: int  # of the rows so far; 0 where the source does not know
    tokens: int
    shards: int
    num_shards: int
    seconds: float
    rows_per_second: float  # of the rows made by this run
    is_done: bool = False

    @property
    def seconds_left(self) -> float | None:
        """None before the first row is made."""
        return (self.num_rows - self.rows) / self.rows_per_second if self.rows_per_second else None

    def __str__(self) -> str:
        share = self.rows / self.num_rows if self.num_rows else 1.0
        parts = [f"{self.rows:,} of {self.num_rows:,} rows ({share:.0%})"]
        if self.num_bytes:
            speed = self.num_bytes / max(self.seconds, 1e-9)
            parts.append(f"{self.num_bytes / 1e6:,.0f} MB ({speed / 1e6:,.1f} MB/s)")
        parts += [f"{self.tokens:,} tokens", f"{self.rows_per_second:,.0f} rows/s"]
        if self.is_done:
            parts.append(f"{clock(self.seconds)} in all")
        elif (left := self.seconds_left) is not None:
            parts.append(f"{clock(left)} left")
        return f"{self.name}: {', '.join(parts)}"


def clock(seconds: float) -> str:
    """1:02:03, 2:03, 3 s."""
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    return (
        f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
    )


Show = Callable[[Progress], object]


class Meter:
    """Adds up the progress of all tasks and shows it."""

    def __init__(
        self, name: str, tasks: Sequence[ShardTask], show: Show | None, *, sizes: Sequence[int] = ()
    ) -> None:
        self._name = name
        self._show = show
        self._begun = time.monotonic()
        self._rows = {task.shard: task.stop - task.start for task in tasks}
        self._num_rows = sum(self._rows.values())
        self._sizes = sizes or [0] * len(tasks)
        self._notes: dict[int, TaskProgress] = {}  # the last one about each shard
        self._sums: Counter[str] = Counter()  # rows, tokens, num_bytes; found_rows, shards

    def note(self, task: ShardTask, note: TaskProgress) -> None:
        self._add(task.shard, note)
        self.show()

    def add_result(self, made: Made) -> None:
        if made.entry is not None:
            counts = made.entry.counts
            self._add(made.shard, TaskProgress(counts.rows, counts.tokens))
            self._sums.update(shards=1, found_rows=0 if made.is_new else counts.rows)
            self.show()

    def _add(self, shard: int, note: TaskProgress) -> None:
        last = self._notes.get(shard, TaskProgress(0, 0))
        self._notes[shard] = note
        rows = note.rows - last.rows
        size = self._sizes[shard]
        num_bytes = size * note.rows // self._rows[shard] - size * last.rows // self._rows[shard]
        self._sums.update(rows=rows, tokens=note.tokens - last.tokens, num_bytes=num_bytes)

    def show(self, *, is_done: bool = False) -> None:
        if self._show is None:
            return
        seconds = time.monotonic() - self._begun
        sums = self._sums
        progress = Progress(
            name=self._name,
            rows=sums["rows"],
            num_rows=self._num_rows,
            num_bytes=sums["num_bytes"],
            tokens=sums["tokens"],
            shards=sums["shards"],
            num_shards=len(self._rows),
            seconds=seconds,
            rows_per_second=(sums["rows"] - sums["found_rows"]) / seconds if seconds else 0.0,
            is_done=is_done,
        )
        self._show(progress)
