"""How do samples become a shard file?  The same samples give the same bytes, whoever writes them."""

from typing import IO, TYPE_CHECKING, Any

import numpy as np

from penstock.errors import StoreError
from penstock.store.schema import (
    FIRST_FEW,
    FORMAT_VERSION,
    Counts,
    Dropped,
    Note,
    content_digest,
    id_dtype,
    schema,
    to_json,
)
from penstock.types import Samples

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_TOKENS = (1 << 31) - 1  # Arrow's list offsets are int32


def count(samples: Samples) -> Counts:
    dropped: dict[str, list[int]] = {}
    for row, reason in sorted(samples.dropped.items()):
        dropped.setdefault(reason, []).append(row)
    return Counts(
        rows=len(samples.offsets) - 1,
        tokens=len(samples.input_ids),
        trained=int(np.count_nonzero(samples.loss_mask)),
        dropped={
            reason: Dropped(count=len(rows), rows=tuple(rows[:FIRST_FEW])) for reason, rows in sorted(dropped.items())
        },
        notes={
            name: Note(count=len(rows), rows=tuple(sorted(rows)[:FIRST_FEW]), characters=sum(rows.values()))
            for name, rows in sorted(samples.notes.items())
        },
        assistant_characters=samples.assistant_characters,
    )


def write_shard(file: IO[bytes], samples: Samples, *, vocab_size: int, key: str = "") -> Counts:
    """Lay samples out as one Arrow record batch.  `key`: so that a file under another shard's name is noticed."""
    import pyarrow as pa

    _check(samples, vocab_size)
    counts = count(samples)
    ids = samples.input_ids.astype(id_dtype(vocab_size), copy=False)
    offsets = samples.offsets.astype("<i4")
    bits = np.packbits(samples.loss_mask, bitorder="little")
    metadata = {
        "format": FORMAT_VERSION,
        "key": key,
        "counts": to_json(counts),
        "digest": content_digest(offsets, ids, bits),
    }
    columns = schema(vocab_size, metadata)
    batch = pa.record_batch(
        [
            _lists(columns.field("input_ids").type, offsets, ids, len(ids)),
            _lists(columns.field("loss_mask").type, offsets, bits, len(ids)),
            _array(pa.int32(), np.arange(counts.rows, dtype="<i4"), counts.rows),
        ],
        schema=columns,
    )
    with pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)
    return counts


def _lists(kind: "pa.ListType", offsets: np.ndarray[Any, Any], values: np.ndarray[Any, Any], length: int) -> "pa.Array":
    import pyarrow as pa

    children = [_array(kind.value_type, values, length)]
    return pa.Array.from_buffers(kind, len(offsets) - 1, [None, pa.py_buffer(offsets)], children=children)


def _array(kind: "pa.DataType", values: np.ndarray[Any, Any], length: int) -> "pa.Array":
    """Not `pa.array`: it imports pandas where there is one, a third of a second in every process."""
    import pyarrow as pa

    return pa.Array.from_buffers(kind, length, [None, pa.py_buffer(values)])


def _check(samples: Samples, vocab_size: int) -> None:
    """A template may be the user's own: hold it to its word before anything is published."""
    ids, offsets = samples.input_ids, samples.offsets
    if len(ids) > _MAX_TOKENS:
        raise StoreError(
            f"{len(ids)} tokens in one shard, expected at most {_MAX_TOKENS}; is one record a whole corpus?"
        )
    if len(ids) and int(ids.max()) >= vocab_size:
        raise StoreError(f"the template gave id {int(ids.max())}, expected ids below its vocab_size {vocab_size}")
    if len(samples.loss_mask) != len(ids):
        raise StoreError(f"the template gave {len(ids)} ids and a loss mask of {len(samples.loss_mask)}")
    lengths = np.diff(offsets)
    if not len(offsets) or offsets[0] != 0 or offsets[-1] != len(ids) or (lengths < 0).any():
        raise StoreError("the template gave offsets that do not rise from 0 to the number of ids")
    silent = set(np.flatnonzero(lengths == 0).tolist()) ^ set(samples.dropped)
    if silent:
        raise StoreError(
            f"the template gave record {min(silent)} no tokens and no reason, or tokens and a reason for dropping it"
        )
