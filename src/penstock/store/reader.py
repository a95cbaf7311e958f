"""What is in this shard?  Memory-mapped, checked for wholeness when opened, handed out as views."""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.cache import Cache
from penstock.errors import StoreError
from penstock.store.schema import FORMAT_VERSION, METADATA, Counts, from_json, id_dtype, shard_name
from penstock.types import Bools


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


def open_shard(key: str, cache: Cache, *, num_rows: int, vocab_size: int) -> ShardTokens:
    """A published shard; StoreError where it is not what its name promises."""
    path = cache.path(shard_name(key))
    try:
        with pa.memory_map(str(path)) as file:
            reader = pa.ipc.open_file(file)
            metadata = json.loads(reader.schema.metadata[METADATA])
            if metadata["format"] != FORMAT_VERSION:
                raise ValueError(f"format {metadata['format']}, expected {FORMAT_VERSION}")
            if reader.num_record_batches != 1:
                raise ValueError(f"{reader.num_record_batches} record batches, expected 1")
            batch = reader.get_batch(0)  # zero-copy; keeps the map alive after the file is closed
            shard = _views(batch, from_json(metadata["counts"]), id_dtype(vocab_size))
    except FileNotFoundError as error:
        raise StoreError(f"{path}: no such shard; prepare the store again, only what is missing is made") from error
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error}; check the disk and its permissions") from error
    except (ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
        raise StoreError(f"{path}: damaged ({error}); pass refresh=True to make it again") from error
    if len(shard.offsets) - 1 != num_rows:
        raise StoreError(
            f"{path}: {len(shard.offsets) - 1} rows, expected {num_rows}; pass refresh=True to make it again"
        )
    return shard


def _views(batch: pa.RecordBatch, counts: Counts, dtype: np.dtype[Any]) -> ShardTokens:
    ids, mask = batch.column("input_ids"), batch.column("loss_mask")
    values = ids.values
    if values.type != pa.from_numpy_dtype(dtype):
        raise ValueError(f"ids of type {values.type}, expected {dtype}")
    offsets = np.frombuffer(ids.buffers()[1], dtype="<i4")[: len(ids) + 1]
    num_tokens = len(values)
    bits = mask.values.buffers()[1]
    shard = ShardTokens(
        input_ids=values.to_numpy(zero_copy_only=True),
        offsets=offsets,
        mask_bits=np.frombuffer(bits, dtype=np.uint8)[: (num_tokens + 7) // 8],
        counts=counts,
    )
    whole = (counts.rows, counts.tokens) == (len(ids), num_tokens) and len(mask.values) == num_tokens
    if not whole or offsets[0] != 0 or offsets[-1] != num_tokens or (np.diff(offsets) < 0).any():
        raise ValueError("counts, offsets and ids disagree")
    return shard
