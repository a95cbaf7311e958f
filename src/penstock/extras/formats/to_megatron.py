"""Write a store as a Megatron dataset: `PREFIX.bin` with the ids of all samples, `PREFIX.idx` with where each begins."""

import os
import struct
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.errors import StoreError
from penstock.places.local import LOCAL

if TYPE_CHECKING:
    from penstock.store.store import Store

_HEADER = struct.Struct("<9sQBQQ")  # magic, version, type of ids, sequences, documents + 1
_CODES = {"<u2": 8, "<i4": 4}
_SMALL_VOCABULARY = 65_500  # ids of fewer fit 16 bits, as Megatron decides it


class MegatronFiles(NamedTuple):
    """What was written."""

    path: str  # without .bin and .idx
    sequences: int
    tokens: int
    untrained: int  # tokens that are not in the loss mask, which Megatron's files do not keep
    dropped: int  # rows without a sample, left out


def write_megatron(
    store: "Store", prefix: str | os.PathLike[str], *, drop_loss_mask: bool
) -> MegatronFiles:
    """Write each sample as a sequence and a document of its own.  `.idx` comes last: it promises that `.bin` is complete."""
    path = os.path.abspath(os.fspath(prefix))  # noqa: PTH100
    counts = store.wait().counts
    untrained = counts.tokens - counts.trained
    if store.columns:
        names = ", ".join(column.name for column in store.columns)
        raise StoreError(
            f"{store!r} has the columns {names}, which a Megatron dataset cannot keep; use to_hf()"
        )
    if untrained and not drop_loss_mask:
        raise StoreError(
            f"{store!r}: {untrained:,} of {counts.tokens:,} tokens are not trained, but a Megatron dataset has no loss mask: "
            f"all of them would be; pass drop_loss_mask=True if that is what you need"
        )
    lengths = store.lengths[store.lengths > 0].astype(np.int64)
    kind = "<u2" if store.vocab_size < _SMALL_VOCABULARY else "<i4"
    if store.vocab_size > 1 << 31 or (len(lengths) and int(lengths.max()) >= 1 << 31):
        raise StoreError(f"{store!r}: ids and lengths of a Megatron dataset must be below 2 ** 31")
    index = _index(lengths, kind)
    if Path(f"{path}.idx").exists() and Path(f"{path}.idx").read_bytes() != index:
        raise _exists(f"{path}.idx")

    def write_ids(out: IO[bytes]) -> None:
        for shard in range(store.num_shards):
            out.write(store.tokens(shard).input_ids.astype(kind).tobytes())

    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{path}: its folder cannot be made: {error.strerror or error}") from error
    for name, write in ((f"{path}.bin", write_ids), (f"{path}.idx", lambda out: out.write(index))):
        try:
            LOCAL.create(name, write)
        except FileExistsError as error:
            raise _exists(name) from error
        except OSError as error:
            raise StoreError(f"{name}: cannot be written: {error.strerror or error}") from error
    return MegatronFiles(path, len(lengths), counts.tokens, untrained, counts.rows - counts.samples)


def _index(lengths: "np.ndarray[tuple[int], np.dtype[np.int64]]", kind: str) -> bytes:
    ends = np.cumsum(lengths) * np.dtype(kind).itemsize
    header = _HEADER.pack(b"MMIDIDX\0\0", 1, _CODES[kind], len(lengths), len(lengths) + 1)
    starts = np.concatenate([[0], ends])[:-1]
    documents = np.arange(len(lengths) + 1)
    parts = (lengths.astype("<i4"), starts.astype("<i8"), documents.astype("<i8"))
    return header + b"".join(part.tobytes() for part in parts)


def _exists(path: str) -> StoreError:
    return StoreError(
        f"{path}: exists already, with other content; remove it, or choose another prefix"
    )
