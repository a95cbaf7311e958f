"""Make one shard: the work of one process.  Records start..stop in, a published file and a few numbers out.

Records are encoded some at a time, so a process holds the tokens of a shard but never all of its records.
"""

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.cache import Cache
from penstock.cache.claims import Claim, Held, take_claim
from penstock.errors import SourceChanged, StoreError, TemplateError
from penstock.fingerprint import fingerprint
from penstock.reasons import NOTHING_TO_TRAIN
from penstock.store.digests import recall_digest, remember_digest
from penstock.store.shards import (
    Schema,
    ShardEntry,
    check_samples,
    encode_shard,
    read_shard,
    read_summary,
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
    stamp: str | None = None  # of the source: as long as it has this one, the cache keeps digests
    replace: bool = False  # whatever file has the shard's name
    claim: Held | None = None  # of another process, when the task was last tried
    take_over: bool = False  # that claim, if it is still the same


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeShard:
    """The result of a task."""

    shard: int
    digest: str | None  # None where another process reads the records
    # None where only the digest was asked for, or another process makes the shard
    entry: ShardEntry | None = None
    held: Held | None = None  # the claim of that process
    is_new: bool = False  # made now, not found
    damage: str = ""  # of the file that was found and replaced


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """How far a task has come."""

    rows: int  # finished; the next ones are being worked on
    tokens: int


class DigestShard:
    """The work of digesting rows: sent to a process once, called with each task."""

    def __init__(self, source: Source, cache: Cache | None) -> None:
        self.source = source
        self.cache = cache

    def __call__(self, task: ShardTask) -> MadeShard:
        digest = _known_digest(task, self.cache)
        if digest is None:
            digest = _read_digest(task, self.source, self.cache)
        return MadeShard(shard=task.shard, digest=digest)

    def check(self) -> None:
        """Raise an error if this process cannot read the records."""
        self.source.digest(0, min(1, len(self.source)))

    def describe(self, task: ShardTask, note: TaskProgress | None) -> str:
        return _described(task, note, self.source)


class MakeShard:
    """The work of making shards: sent to a process once, called with each task."""

    def __init__(self, source: Source, template: AnyTemplate, cache: Cache) -> None:
        self.source = source
        self.cache = cache
        self.template = template
        self.identity = template_identity(template)

    @cached_property
    def schema(self) -> Schema:
        """Late: a template may load its tokenizer for the size of its vocabulary."""
        return Schema.of(self.template)

    def check(self) -> None:
        """Raise an error if this process reads other records or has another template: a remembered one is opened, as it repeats what it was
        sent with.
        """
        self.source.digest(0, min(1, len(self.source)))
        here = template_identity(opened(self.template))
        different = differences(self.identity, here)
        if different:
            raise StoreError(
                f"its template differs: {'; '.join(different)}; give all nodes the same tokenizer and code"
            )

    def describe(self, task: ShardTask, note: TaskProgress | None) -> str:
        return _described(task, note, self.source)

    def keys(self, digests: Iterable[str]) -> list[str]:
        """The keys of shards whose records have these digests."""
        return [shard_key(records, self.identity) for records in digests]

    def claim_key(self, start: int, stop: int) -> str:
        """Under which a range of records is claimed.

        It is known before the records are read, and is the same on machines with copies of the data.  Two sources of one name and one
        size may share it: then one waits for the other, and makes its own shard.
        """
        return fingerprint(["shard", self.identity, self.source.name, start, stop])

    def __call__(self, task: ShardTask) -> Generator[TaskProgress, None, MadeShard]:
        """Make and publish a shard, unless it exists or another process makes it."""
        if task.replace:
            return (yield from self._make(task, Claim()))
        digest = _known_digest(task, self.cache)
        if digest is not None:
            entry, _ = self._find(task, digest)
            if entry is not None:
                return MadeShard(shard=task.shard, digest=digest, entry=entry)
        stale = task.claim if task.take_over else None
        claim = take_claim(self.claim_key(task.start, task.stop), self.cache, stale=stale)
        if isinstance(claim, Held):
            return MadeShard(shard=task.shard, digest=digest, held=claim)
        with claim:
            return (yield from self._make(task, claim))

    def _make(self, task: ShardTask, claim: Claim) -> Generator[TaskProgress, None, MadeShard]:
        """Make a shard, unless it was finished just before it was claimed."""
        rows = None
        digest = _known_digest(task, self.cache)
        if digest is None:
            rows = self._snapshot(task)
            digest = _read_digest(task, self.source if rows is None else rows, self.cache)
        damage = ""
        if not task.replace:
            entry, damage = self._find(task, digest)
            if entry is not None:
                return MadeShard(shard=task.shard, digest=digest, entry=entry)
        samples = yield from self._encode_rows(task, rows, digest, claim)
        key = shard_key(digest, self.identity)
        data, entry = encode_shard(samples, self.schema, key)
        is_replaced = task.replace or bool(damage)
        self.cache.publish(shard_name(key), lambda file: file.write(data), replace=is_replaced)
        return MadeShard(shard=task.shard, digest=digest, entry=entry, is_new=True, damage=damage)

    def _snapshot(self, task: ShardTask) -> Source | None:
        """The source with the records of a task in memory, so that the file is read once; None if it cannot do that."""
        snapshot = getattr(self.source, "snapshot", None)  # only our own sources have it
        rows: Source | None = None if snapshot is None else snapshot(task.start, task.stop)
        return rows

    def _find(self, task: ShardTask, digest: str) -> tuple[ShardEntry | None, str]:
        """Return the shard of these records if it is published and complete, else its problem.

        A local file is read and checked.  Objects of a bucket do not change, and are checked when they are fetched: only the beginning of
        one is read, so that machines do not download each other's shards.
        """
        key = shard_key(digest, self.identity)
        name = shard_name(key)
        if task.claim is not None:
            # on a network, a question by name may get an old answer until the folder is listed
            self.cache.names(name.rpartition("/")[0])
        if self.cache.size(name) is None:
            return None, ""
        self.cache.renew(name)  # no manifest names it yet
        num_rows = task.stop - task.start
        try:
            if self.cache.is_remote:
                return read_summary(key, self.cache, num_rows=num_rows)[0], ""
            return read_shard(key, self.cache, self.schema, num_rows=num_rows)[1], ""
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError):  # pruned just now
                return None, ""
            return None, str(error)

    def _encode_rows(
        self, task: ShardTask, rows: Source | None, digest: str, claim: Claim
    ) -> Generator[TaskProgress, None, Samples]:
        """Encode the records that have this digest.  `rows` are those that were digested; else they are compared with it."""
        snapshot = self._snapshot(task) if rows is None else rows
        source = self.source if snapshot is None else snapshot  # a stream is false: it has no len
        samples = yield from self._encode(task, source, claim)
        if rows is None and source.digest(task.start, task.stop) != digest:
            raise SourceChanged(
                f"{self.source.locate(task.start)}: records {task.start}..{task.stop} changed while they were tokenized; "
                f"run again; shards that did not change are kept"
            )
        return samples

    def _encode(
        self, task: ShardTask, source: Source, claim: Claim
    ) -> Generator[TaskProgress, None, Samples]:
        """Samples of all records.  A bad record is a sample without tokens, so that sample i stays record i."""
        num_rows = task.stop - task.start
        at_once = max(1, min(_MAX_ROWS, num_rows // _PARTS))
        done = 0
        tokens = 0
        template = opened(self.template)
        records = source.records(task.start, task.stop)
        parts: list[Samples] = []
        good: list[int] = []  # rows, counted from the task's first
        bad: dict[int, str] = {}
        while batch := list(islice(records, at_once)):
            yield TaskProgress(done, tokens)
            good_records = []
            rows = []
            for row, record in enumerate(batch, start=done):
                if isinstance(record, BadRow):
                    bad[row] = record.reason
                else:
                    good_records.append(record)
                    rows.append(row)
            try:
                samples = template.encode(good_records)
            except TemplateError as error:
                if error.record is None:
                    raise
                where = self.source.locate(task.start + rows[error.record])
                raise TemplateError(f"{where}: {error}") from error
            check_samples(samples, len(rows), self.schema)
            claim.beat()
            parts.append(samples)
            good += rows
            done += len(batch)
            tokens += len(samples.input_ids)
        if done != num_rows:
            raise StoreError(
                f"{self.source!r} gave {done} records for the range {task.start}..{task.stop}"
            )
        return _without_untrained(_join(parts, good, bad, self.schema), self.schema)


def _known_digest(task: ShardTask, cache: Cache | None) -> str | None:
    """The digest of a task's records, if the task or the cache has it."""
    if task.digest is not None or task.replace or cache is None:
        return task.digest
    return recall_digest(task.start, task.stop, task.stamp, cache)


def _read_digest(task: ShardTask, rows: Source, cache: Cache | None) -> str:
    """Digest the records of a task, and tell others: the files were as their stamp says before and after the reading."""
    digest = rows.digest(task.start, task.stop)
    if cache is not None:
        remember_digest(task.start, task.stop, task.stamp, digest, cache)
    return digest


def _described(task: ShardTask, note: TaskProgress | None, source: Source) -> str:
    """Describe a task whose process died."""
    first = source.locate(task.start)
    last = source.locate(task.stop - 1)
    text = f"shard {task.shard} (records {task.start}..{task.stop}, from {first} to {last})"
    if note is None:
        return text
    row = min(task.start + note.rows, task.stop - 1)
    return f"{text}, at or after record {row} ({source.locate(row)})"


def _offsets(lengths: Ints) -> Ints:
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)


def _joined(dtype: npt.DTypeLike, arrays: Iterable[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype), *arrays])


def _join(
    parts: Sequence[Samples], good: Sequence[int], bad: dict[int, str], schema: Schema
) -> Samples:
    """Return one sample for each record: the samples of all parts for the `good` records, and an empty one for each bad record."""
    good_rows = np.array(good, np.int64)

    def per_row(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A value for each record, 0 for bad ones."""
        spread = np.zeros(len(good) + len(bad), values.dtype)
        spread[good_rows] = values
        return spread

    def offsets(of_parts: Iterable[Any]) -> Ints:
        return _offsets(per_row(_joined(np.int64, map(np.diff, of_parts))))

    columns = {}
    for column in schema.columns:
        of_parts = [part.columns[column.name] for part in parts]
        values = _joined(column.dtype, (part.values for part in of_parts))
        if column.per == "sample":
            values = per_row(values)
        starts = offsets(part.offsets for part in of_parts) if column.per == "list" else None
        columns[column.name] = Values(values, starts)

    dropped = dict(bad)
    first_of_part = 0  # among the good rows
    firsts = []
    for part in parts:
        firsts.append(first_of_part)
        for record, reason in part.dropped.items():
            dropped[good[first_of_part + record]] = reason
        first_of_part += len(part.offsets) - 1
    notes = join_notes(zip(firsts, (part.notes for part in parts), strict=True))
    return Samples(
        input_ids=_joined(np.uint32, (part.input_ids for part in parts)),
        loss_mask=_joined(np.bool_, (part.loss_mask for part in parts)),
        offsets=offsets(part.offsets for part in parts),
        dropped=dropped,
        notes={
            name: {good[record]: size for record, size in records.items()}
            for name, records in notes.items()
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
    dropped = dict(samples.dropped)
    for row in np.flatnonzero(lacking).tolist():
        dropped[row] = NOTHING_TO_TRAIN
    columns = dict(samples.columns)
    for column in schema.columns:
        if column.per == "token":
            columns[column.name] = Values(samples.columns[column.name].values[kept])
    return replace(
        samples,
        input_ids=samples.input_ids[kept],
        loss_mask=samples.loss_mask[kept],
        offsets=_offsets(np.where(lacking, 0, lengths)),
        dropped=dropped,
        columns=columns,
    )
