"""Does `datasets` see the same samples, over the same files?"""

from pathlib import Path

import numpy as np
import pytest

from penstock.cache import Cache
from penstock.engines import LocalEngine
from penstock.sources import ListSource
from penstock.store import build
from penstock.templates import TextTemplate, open_tokenizer

pytest.importorskip("datasets")


@pytest.mark.parametrize(
    "texts", [["the fox", "a lazy dog"] * 90, ["", "the fox", "", "a dog"] * 90, [""], []]
)
def test_a_store_is_a_data_set(cache: Cache, tokenizer_path: Path, texts: list[str]) -> None:
    template = TextTemplate(open_tokenizer(tokenizer_path))
    source = ListSource([{"text": text} for text in texts])
    store = build(source, template, engine=LocalEngine(1), cache=cache, shard_rows=50)
    found = store.to_hf()
    kept = [sample for sample in store if len(sample)]
    assert (
        found.column_names == ["input_ids", "loss_mask"]
        and len(found) == len(kept) == store.counts.samples
    )
    assert found["input_ids"][:] == [sample.input_ids.tolist() for sample in kept]
    assert found["loss_mask"][:] == [sample.loss_mask.tolist() for sample in kept]
    assert str(found.features["input_ids"].feature.dtype) == "uint16"


def test_nothing_is_copied(cache: Cache, tokenizer_path: Path) -> None:
    template = TextTemplate(open_tokenizer(tokenizer_path))
    source = ListSource([{"text": f"the fox {row}"} for row in range(100)])
    store = build(source, template, engine=LocalEngine(1), cache=cache)
    chunk = store.to_hf().data.column("input_ids").chunk(0)
    ids = np.frombuffer(chunk.values.buffers()[1], store.schema.id_dtype)
    assert np.shares_memory(ids, store.tokens(0).input_ids)
