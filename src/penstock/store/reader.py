"""What is in this shard?  Memory-mapped, checked for wholeness when opened, handed out as views."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.cache import Cache
from penstock.errors import StoreError
from penstock.store.schema import (
    FORMAT_VERSION,
    METADATA,
    Counts,
    content_digest,
    from_json,
    id_dtype,
    schema,
    shard_name,
)
from penstock.types import Bools

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTokens:
    """Samples of a shard, flat, as views of its file: sample i is `input_ids[offsets[i]:offsets[i + 1]]`."""

    input_ids: npt.NDArray[np.unsignedinteger[Any]]  # (num_tokens,) uint16 or uint32
    offsets: npt.NDArray[np.int32]  # (num_rows + 1,)
    mask_bits: npt.NDArray[np.uint8]  # (ceil(num_tokens / 8),) token t is trained if bit t % 8 of byte t // 8 is set
    counts: Counts

    def loss_mask(self, start: int, stop: int) -> Bools:
        """True where tokens start..stop of the shard are trained."""
        if start >= stop:
            return np.zeros(0, dtype=np.bool_)
        first = start // 8
        bits = np.unpackbits(self.mask_bits[first : (stop + 7) // 8], bitorder="little")
        return bits[start - 8 * first : stop - 8 * first].view(np.bool_)


def open_shard(key: str, cache: Cache, *, num_rows: int, vocab_size: int, num_bytes: int | None = None) -> ShardTokens:
    """A published shard; StoreError where it is not what its name promises.

    Sizes, header and offsets are always checked; every token is, against the shard's digest, where the cache verifies.
    """
    import pyarrow as pa

    name = shard_name(key)
    path = cache.path(name)
    try:
        with cache.opened(name, size=num_bytes) as fd, pa.memory_map(_reopened(fd, path)) as file:
            return parse_shard(file, path, key=key, num_rows=num_rows, vocab_size=vocab_size, verify=cache.verify)
    except StoreError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise StoreError(f"{path}: no such shard; prepare the store again, only what is missing is made") from error
        raise


def parse_shard(
    file: "pa.NativeFile", path: Path, *, key: str, num_rows: int, vocab_size: int, verify: bool
) -> ShardTokens:
    """The samples in an open shard file; they keep its memory alive."""
    import pyarrow as pa

    try:
        reader = pa.ipc.open_file(file)
        metadata = json.loads(reader.schema.metadata[METADATA])
        if metadata["format"] != FORMAT_VERSION:
            raise ValueError(f"format {metadata['format']}, expected {FORMAT_VERSION}")
        if metadata["key"] not in ("", key):
            raise ValueError(f"it is shard {metadata['key']}, expected {key}")
        expected = schema(vocab_size, {})
        if not reader.schema.equals(expected):
            raise ValueError(f"columns {_columns(reader.schema)}, expected {_columns(expected)}")
        if reader.num_record_batches != 1:
            raise ValueError(f"{reader.num_record_batches} record batches, expected 1")
        batch = reader.get_batch(0)  # zero-copy; keeps the map alive after the file is closed
        batch.validate()  # a damaged header may promise more than the file holds
        shard = _views(batch, from_json(metadata["counts"]), id_dtype(vocab_size))
        if verify:
            _check_content(shard, str(metadata["digest"]), vocab_size)
    except OSError as error:  # pyarrow's word for a file that ends too early, too
        raise StoreError(f"{path}: cannot be read: {error}; check the disk, or pass refresh=True") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, pa.ArrowException) as error:
        raise StoreError(f"{path}: damaged ({error}); pass refresh=True to make it again") from error
    if len(shard.offsets) - 1 != num_rows:
        raise StoreError(
            f"{path}: {len(shard.offsets) - 1} rows, expected {num_rows}; pass refresh=True to make it again"
        )
    return shard


def _views(batch: "pa.RecordBatch", counts: Counts, dtype: np.dtype[Any]) -> ShardTokens:
    ids, mask = batch.column("input_ids"), batch.column("loss_mask")
    if any(column.null_count for column in (ids, mask, ids.values, mask.values, batch.column("row"))):
        raise ValueError("values are missing")
    values = ids.values
    offsets = np.frombuffer(ids.buffers()[1], dtype="<i4")[: len(ids) + 1]
    num_tokens = len(values)
    bits = mask.values.buffers()[1]
    shard = ShardTokens(
        input_ids=np.frombuffer(values.buffers()[1], dtype=dtype)[:num_tokens],
        offsets=offsets,
        mask_bits=np.frombuffer(bits, dtype=np.uint8)[: (num_tokens + 7) // 8],
        counts=counts,
    )
    whole = (counts.rows, counts.tokens) == (len(ids), num_tokens) and len(mask.values) == num_tokens
    if not whole or offsets[0] != 0 or offsets[-1] != num_tokens or (np.diff(offsets) < 0).any():
        raise ValueError("counts, offsets and ids disagree")
    return shard


def _check_content(shard: ShardTokens, digest: str, vocab_size: int) -> None:
    if content_digest(shard.offsets, shard.input_ids, shard.mask_bits) != digest:
        raise ValueError("its tokens are not those that were written")
    trained = int(np.bitwise_count(shard.mask_bits).sum())
    if trained != shard.counts.trained:
        raise ValueError(f"{trained} trained tokens, expected {shard.counts.trained}")
    if len(shard.input_ids) and int(shard.input_ids.max()) >= vocab_size:
        raise ValueError(f"id {int(shard.input_ids.max())}, expected ids below {vocab_size}")


def _columns(found: "pa.Schema") -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in found)


def _reopened(fd: int, path: Path) -> str:
    """A name for an open file: pyarrow takes no descriptors, and the path may lead elsewhere by now."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        if Path(folder).is_dir():
            return f"{folder}/{fd}"
    return str(path)
