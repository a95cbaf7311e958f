"""Small stores to damage, count and remove: shards of a hundred rows, made of records in memory."""

from pathlib import Path
from typing import Any

import numpy as np

from penstock.cache import Cache
from penstock.engines import LocalEngine
from penstock.sources import ListSource
from penstock.store import Store, build
from penstock.types import Record, Samples


class Numbers:
    """A template without a tokenizer: a record's numbers are its ids, and every third is trained."""

    vocab_size = 50_000

    def __init__(self, **options: Any) -> None:
        self.options = options

    def identity(self) -> dict[str, Any]:
        return {"template": "numbers", "options": self.options}

    def encode(self, records: Any) -> Samples:
        numbers = [record["ids"] for record in records]
        ids = np.array([number for part in numbers for number in part], dtype=np.uint32)
        offsets = np.concatenate([[0], np.cumsum([len(part) for part in numbers])]).astype(np.int64)
        dropped = {row: "empty" for row, part in enumerate(numbers) if not part}
        return Samples(input_ids=ids, loss_mask=ids % 3 == 0, offsets=offsets, dropped=dropped)

    def decode(self, input_ids: Any) -> str:
        return " ".join(map(str, input_ids))


def records(num_rows: int, start: int = 0) -> list[Record]:
    """Empty, or of four tokens and more, so that one beyond the first is trained: the template trains every third."""
    return [
        {"ids": [(row * 31 + place * 7) % 50_000 for place in range(row % 23 and 3 + row % 23)]}
        for row in range(start, start + num_rows)
    ]


def make(rows: list[Record], cache: Cache, name: str = "list", **options: Any) -> Store:
    source = ListSource(rows)
    source.name = name
    engine = LocalEngine(1)
    return build(
        source, Numbers(**options), engine=engine, cache=cache, shard_bytes=1 << 20, shard_rows=100
    )


def shard_paths(store: Store) -> list[Path]:
    return [store.cache.path(f"shards/{key[:2]}/{key}.arrow") for key in store._keys]
