"""How does `datasets` see a store?  As one of its own data sets, over the same files: the columns are views of the memory map."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.errors import StoreError
from penstock.store.reader import ShardTokens

if TYPE_CHECKING:
    from penstock.store.store import Store


def to_hf(store: "Store") -> Any:
    """A `datasets.Dataset` with `input_ids` and `loss_mask`; records that were dropped are left out."""
    try:
        import datasets
        from datasets.table import InMemoryTable
    except ImportError as error:
        raise StoreError("to_hf() needs the package `datasets`: pip install datasets") from error
    batches = [_batch(store.tokens(shard)) for shard in range(store.num_shards)]
    ids = pa.from_numpy_dtype(store.id_dtype)
    schema = pa.schema([("input_ids", pa.list_(ids)), ("loss_mask", pa.list_(pa.bool_()))])
    made = datasets.Dataset(InMemoryTable(pa.Table.from_batches(batches, schema)), fingerprint=store.fingerprint[:16])
    lengths = store.lengths
    return made if lengths.all() else made.select(np.flatnonzero(lengths))


def _batch(tokens: ShardTokens) -> pa.RecordBatch:
    offsets = pa.array(tokens.offsets)
    mask = pa.Array.from_buffers(pa.bool_(), len(tokens.input_ids), [None, pa.py_buffer(tokens.mask_bits)])
    columns = [pa.ListArray.from_arrays(offsets, values) for values in (pa.array(tokens.input_ids), mask)]
    return pa.record_batch(columns, names=["input_ids", "loss_mask"])
