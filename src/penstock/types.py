"""The nouns that cross a border between rooms: record, samples, span, world; and the protocols of exchangeable parts."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

Record = dict[str, Any]  # one row of the user's data, exactly as written

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Ids = npt.NDArray[np.uint32]

# A piece of a sample in a row.  `source` counts the plan's sources, `sample` is the row number in that source.
SPAN = np.dtype([("source", "<i8"), ("sample", "<i8"), ("start", "<i8"), ("stop", "<i8")])

# How the plan learns lengths: (source number, sample ids) → one length per id; 0 means that nothing is there to train on.
Lengths = Callable[[int, Ints], Ints]

# How the plan learns whether a piece is worth a row: (source number, sample ids, starts, stops) → whether tokens
# start + 1 … stop - 1 of each sample hold a trained one.  Nothing predicts the first token of a piece, so it is no target.
# Asked only about pieces of samples that are cut: a store holds no sample without a target.
Targets = Callable[[int, Ints, Ints, Ints], Bools]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Who is asking: one data-parallel rank among `size`."""

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank {self.rank} of world size {self.size}: expected 0 <= rank < size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The home of a record: which file, which line (from 1), which byte (from 0)."""

    file: str
    line: int
    byte: int = 0

    def __str__(self) -> str:
        """file:line, as editors take it; with the byte where a whole document is one line, so that the line says nothing."""
        inside = f" (byte {self.byte})" if self.line == 1 and self.byte else ""
        return f"{self.file}:{self.line}{inside}"


UNRENDERED = "unrendered: "  # begins the name of a note: a field that the chat template does not print
UNENDED = "turns without an end"  # a note: turns behind which no token is trained that ends them
PARTIAL = "headers in part"  # a note: turns before which only a part of the generation prompt stands


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Records made into tokens, flat: sample i is `input_ids[offsets[i]:offsets[i + 1]]`; a dropped record has no tokens."""

    input_ids: Ids  # (num_tokens,)
    loss_mask: Bools  # (num_tokens,) True where a token is trained
    offsets: Ints  # (num_records + 1,)
    dropped: dict[int, str] = field(default_factory=dict)  # record number in this batch → reason
    notes: dict[str, dict[int, int]] = field(default_factory=dict)  # what was noticed → record number → characters
    assistant_characters: int = 0  # in the records, rendered or not

    def num_targets(self) -> Ints:
        """Targets of each sample: its trained tokens, without its first token, which nothing predicts."""
        running = np.concatenate((np.zeros(1, np.int64), np.cumsum(self.loss_mask, dtype=np.int64)))
        starts, stops = self.offsets[:-1], self.offsets[1:]
        return np.asarray(running[stops] - running[np.minimum(starts + 1, stops)], np.int64)


def join_notes(parts: Iterable[tuple[int, Mapping[str, Mapping[int, int]]]]) -> dict[str, dict[int, int]]:
    """Notes of parts that stand one after another; each part comes with the number of its first record."""
    joined: dict[str, dict[int, int]] = {}
    for first, notes in parts:
        for name, rows in notes.items():
            joined.setdefault(name, {}).update({first + row: characters for row, characters in rows.items()})
    return joined


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRow:
    """Stands in the place of a record that cannot be read, so that row numbers never shift."""

    reason: str  # short, for counting: bad_json, not_an_object …
    message: str  # long, for people, with the row's place once its source has added it


@dataclass(frozen=True, slots=True)
class RemovedNulls:
    """How many null members of structs were removed from some rows, because Arrow's schema may have added them."""

    columns: Counter[str] = field(default_factory=Counter)  # column → null members removed
    rows: int = 0  # rows with at least one

    def __add__(self, other: "RemovedNulls") -> "RemovedNulls":
        return RemovedNulls(self.columns + other.columns, self.rows + other.rows)


class Source(Protocol):
    """Record i of this place.  Never hears of rank, seed or epoch."""

    name: str

    def __len__(self) -> int: ...
    def __getitem__(self, row: int, /) -> Record: ...
    def records(self, start: int, stop: int) -> Iterator[Record | BadRow]:
        """Rows start..stop in order; the fast way to read many.  A BadRow only where the user chose not to stop at one."""
        ...

    def where(self, row: int) -> Where: ...
    def digest(self, start: int, stop: int) -> str:
        """A hash of what rows start..stop say, whatever their file is called."""
        ...

    def cuts(self, *, num_bytes: int, num_rows: int) -> Ints:
        """Row borders 0 = c0 < c1 < … = len, so that each range is about `num_bytes` and at most `num_rows` long."""
        ...


class Template(Protocol):
    """Record → tokens and loss mask.  Does not cut, pad or shift: those depend on the model."""

    vocab_size: int

    def identity(self) -> dict[str, Any]:
        """Everything that changes tokens, as plain JSON values; becomes part of the store's key."""
        ...

    def encode(self, records: Iterable[Record]) -> Samples: ...
    def decode(self, input_ids: npt.NDArray[np.unsignedinteger[Any]]) -> str: ...


def encoder_of(template: Template) -> Callable[[Iterable[Record]], Samples]:
    """How the records of one shard are encoded, in parts.

    A template that learns from row to row offers an `encoder`, which is made for each shard.  Of `encode` and `encoder`, the one that the
    most derived class defines is used, so that a subclass with its own `encode` is not passed over.
    """
    kinds = (kind for kind in type(template).__mro__ if {"encode", "encoder"} & vars(kind).keys())
    if "encoder" in vars(next(kinds, object)):
        encode: Callable[[Iterable[Record]], Samples] = template.encoder()  # type: ignore[attr-defined]  # not in the protocol
        return encode
    return template.encode


Task = TypeVar("Task")


class Engine(Protocol):
    """Runs tasks and yields results as they finish.  Knows nothing else."""

    def run(
        self,
        work: Callable[[Task], Any],
        tasks: Iterable[Task | None],
        *,
        told: Callable[[Task, Any], object] | None = None,
    ) -> Iterator[Any]:
        """Tasks are asked for when somebody is free; None means nothing just now.  Work that is a generator yields notes on its
        way, which `told` hears, and returns the result.  An error may ask the work to `describe(task, last note)`."""
        ...
