"""What does a shard look like on disk?  Arrow IPC, one record batch, readable with plain pyarrow.

    input_ids  list<uint16 | uint32>   narrowest type for the vocabulary; empty where the record was dropped
    loss_mask  list<bool>              one bit per token
    row        int32                   record number, counted from the shard's first record

Rows are counted inside the shard because a shard is named by what its records say, wherever they stand.
The schema's metadata holds one JSON value under `penstock`: the shard's key, its counts and a digest of its tokens.
"""

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import StoreError
from penstock.fingerprint import Digest, fingerprint

if TYPE_CHECKING:
    import pyarrow as pa  # 30 ms that only those pay who open or write a shard

FORMAT_VERSION = 4  # raise when the same samples give other bytes; announced under "On-disk format"
FIRST_FEW = 5  # places kept per reason
METADATA = b"penstock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """Records that gave no sample, for one reason: how many, and the first few."""

    count: int
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something noticed about records that gave samples: in how many, the first few, and how many characters it concerns."""

    count: int
    rows: tuple[int, ...]
    characters: int  # or turns, where the note is about turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What a shard, or a whole store, holds."""

    rows: int
    tokens: int
    trained: int  # tokens with loss
    dropped: dict[str, Dropped] = field(default_factory=dict)
    notes: dict[str, Note] = field(default_factory=dict)
    assistant_characters: int = 0  # in the records, rendered or not

    @property
    def samples(self) -> int:
        return self.rows - sum(part.count for part in self.dropped.values())


def total(parts: list[Counts]) -> Counts:
    """Counts of shards in their order, with rows counted from the first shard's first record."""
    dropped: dict[str, Dropped] = {}
    notes: dict[str, Note] = {}
    first = 0
    for part in parts:
        for name, note in part.notes.items():
            known_note = notes.get(name, Note(count=0, rows=(), characters=0))
            notes[name] = Note(
                count=known_note.count + note.count,
                rows=(*known_note.rows, *(first + row for row in note.rows))[:FIRST_FEW],
                characters=known_note.characters + note.characters,
            )
        for reason, more in part.dropped.items():
            known = dropped.get(reason, Dropped(count=0, rows=()))
            rows = (*known.rows, *(first + row for row in more.rows))[:FIRST_FEW]
            dropped[reason] = Dropped(count=known.count + more.count, rows=rows)
        first += part.rows
    return Counts(
        rows=first,
        tokens=sum(part.tokens for part in parts),
        trained=sum(part.trained for part in parts),
        dropped=dict(sorted(dropped.items())),
        notes=dict(sorted(notes.items())),
        assistant_characters=sum(part.assistant_characters for part in parts),
    )


def to_json(counts: Counts) -> dict[str, Any]:
    return asdict(counts)


def from_json(value: dict[str, Any]) -> Counts:
    dropped = {
        reason: Dropped(count=whole(part["count"]), rows=tuple(whole(row) for row in part["rows"]))
        for reason, part in value["dropped"].items()
    }
    notes = {
        name: Note(
            count=whole(part["count"]),
            rows=tuple(whole(row) for row in part["rows"]),
            characters=whole(part["characters"]),
        )
        for name, part in value["notes"].items()
    }
    names = ("rows", "tokens", "trained", "assistant_characters")
    rows, tokens, trained, characters = (whole(value[name]) for name in names)
    return Counts(
        rows=rows, tokens=tokens, trained=trained, dropped=dropped, notes=notes, assistant_characters=characters
    )


def whole(value: Any) -> int:
    """A count from a file that anybody may have written."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r}, expected a count")
    return value


def id_dtype(vocab_size: int) -> np.dtype[Any]:
    """The narrowest type that holds every id."""
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")


def schema(vocab_size: int, metadata: dict[str, Any]) -> "pa.Schema":
    import pyarrow as pa

    ids = pa.from_numpy_dtype(id_dtype(vocab_size))
    text = json.dumps(metadata, sort_keys=True, separators=(",", ":"))
    return pa.schema(
        [("input_ids", pa.list_(ids)), ("loss_mask", pa.list_(pa.bool_())), ("row", pa.int32())],
        metadata={METADATA: text.encode()},
    )


def content_digest(offsets: np.ndarray[Any, Any], ids: np.ndarray[Any, Any], bits: np.ndarray[Any, Any]) -> str:
    """A digest of everything in a shard that reaches a trainer."""
    content = Digest()
    for part in (offsets, ids, bits):
        content.update(np.ascontiguousarray(part).view(np.uint8).data)
    return content.hexdigest()


def shard_key(records: str, template: dict[str, Any]) -> str:
    """The name of a shard: a digest of its records, and everything that makes tokens of them."""
    return fingerprint({"format": FORMAT_VERSION, "records": records, "template": template})


def shard_name(key: str) -> str:
    if not isinstance(key, str) or len(key) != 32 or not set(key) <= set("0123456789abcdef"):
        raise StoreError(f"{key!r} is no shard key, expected 32 hex digits; the manifest that names it is damaged")
    return f"shards/{key[:2]}/{key}.arrow"
