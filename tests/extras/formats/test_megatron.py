"""Does a store become a Megatron dataset, byte for byte, and never lose a loss mask silently?"""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import StoreError
from penstock.store import Store
from tests.extras.formats.token_files import read_megatron

ROWS = [[5, 6, 1], [7, 1], [8, 9, 10, 11, 1]]


def store_of(folder: Path, rows: list[list[int]], vocab_size: int = 100, **columns: Any) -> Store:
    records = [
        {"input_ids": row, **{name: values[place] for name, values in columns.items()}}
        for place, row in enumerate(rows)
    ]
    (folder / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return ps.prepare(
        folder / "a.jsonl",
        template="pretokenized",
        vocab_size=vocab_size,
        cache_dir=folder / "c",
        progress="none",
    )


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows=st.lists(st.lists(st.integers(0, 99), max_size=6), min_size=1, max_size=8),
    vocab_size=st.sampled_from([100, 65_499, 65_500, 200_000]),
)
def test_samples_come_back_from_the_files(
    rows: list[list[int]], vocab_size: int, tmp_path_factory: Any
) -> None:
    folder = tmp_path_factory.mktemp("megatron")
    store = store_of(folder, rows, vocab_size)
    files = store.to_megatron(folder / "out" / "a")
    kept = [row for row in rows if len(row) > 1]  # the only token of a sample is no target
    assert read_megatron(folder / "out" / "a") == (
        "u2" if vocab_size < 65_500 else "i4",
        kept,
        [*range(len(kept) + 1)],
    )
    assert (files.sequences, files.tokens, files.dropped) == (
        len(kept),
        sum(map(len, kept)),
        len(rows) - len(kept),
    )
    source = ps.open(folder / "out" / "a", cache_dir=folder / "c")
    assert [record["input_ids"].tolist() for record in source] == kept


def test_a_loss_mask_is_dropped_only_if_asked_for(tmp_path: Path) -> None:
    store = store_of(tmp_path, ROWS, loss_mask=[[0, *[1] * (len(row) - 1)] for row in ROWS])
    with pytest.raises(
        StoreError, match="3 of 10 tokens are not trained, but a Megatron dataset has no loss mask"
    ):
        store.to_megatron(tmp_path / "a")
    assert not list(tmp_path.glob("a.bin"))
    assert store.to_megatron(tmp_path / "a", drop_loss_mask=True).untrained == 3
    assert read_megatron(tmp_path / "a")[1] == ROWS


def test_other_files_of_that_name_stay(tmp_path: Path) -> None:
    store = store_of(tmp_path, ROWS)
    store.to_megatron(tmp_path / "a")
    before = (tmp_path / "a.idx").stat().st_ino
    store.to_megatron(tmp_path / "a")  # the same bytes: nothing to do
    assert (tmp_path / "a.idx").stat().st_ino == before
    for name in ("a.bin", "a.idx"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(b"other")
        with pytest.raises(StoreError, match=rf"{name}: exists already, with other content"):
            store.to_megatron(tmp_path / "a")
        (tmp_path / name).write_bytes(content)


def test_columns_and_folders_that_cannot_be_written_are_refused(
    tmp_path: Path, tokenizer_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="its folder cannot be made"):
        store_of(tmp_path, ROWS).to_megatron(tmp_path / "file" / "a")
    pairs = [{"prompt": "one", "chosen": " two", "rejected": " three"}]
    store = ps.prepare(
        pairs,
        tokenizer=tokenizer_path,
        template="preference",
        cache_dir=tmp_path / "c",
        progress="none",
    )
    with pytest.raises(
        StoreError, match=r"has the columns .*, which a Megatron dataset cannot keep"
    ):
        store.to_megatron(tmp_path / "a", drop_loss_mask=True)
