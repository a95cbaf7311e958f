"""What people try who come from `datasets` and pandas works, or says what to use (finding N14)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import penstock as ps
from penstock.errors import BadRecord, SourceError
from penstock.testing import check_source

ROWS = [{"text": f"the fox {row}", "n": row} for row in range(30)]


@pytest.fixture
def source(tmp_path: Path) -> Any:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return ps.open(path, cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("view", ["whole", "slice", "selection", "mapped", "list"])
def test_a_column_is_a_sequence_of_its_values(source: Any, view: str) -> None:
    """N14: `source["text"]` was a raw TypeError."""
    chosen = {
        "whole": source,
        "slice": source[5:],
        "selection": source.select([3, 1]),
        "mapped": source.map(lambda record: {**record, "n": -record["n"]}),
        "list": ps.open(ROWS),
    }[view]
    column = chosen["n"]
    values = [record["n"] for record in chosen]
    assert list(column) == values and len(column) == len(values)
    assert column[0] == values[0] and column[-1] == values[-1]
    assert list(column[1:3]) == values[1:3]
    assert values[0] in column


def test_a_column_that_is_not_there_is_named(source: Any) -> None:
    with pytest.raises(KeyError, match=r"no column 'txt'; did you mean 'text'.*there are text, n"):
        source["txt"]
    partly = ps.open([{"a": 1}, {"b": 2}])
    assert partly["a"][0] == 1
    with pytest.raises(KeyError, match="the record has no 'a'"):
        list(partly["a"])


def test_a_list_of_numbers_selects_rows(source: Any) -> None:
    for rows in ([4, 2], (4, 2), np.array([4, 2]), range(4, 1, -2)):
        assert [record["n"] for record in source[rows]] == [4, 2]


@pytest.mark.parametrize("wrong", [1.5, None, {}, np.float64(2)])
def test_what_is_no_row_is_refused_in_words(source: Any, wrong: Any) -> None:
    for each in (source, source[3:9], ps.open(ROWS)):
        with pytest.raises(
            TypeError, match="expected a record number, a slice, a list of record numbers"
        ):
            each[wrong]


def test_head_column_names_and_to_pandas(source: Any) -> None:
    assert list(source.head(2)) == ROWS[:2] and len(source.head()) == 5
    assert len(source.head(99)) == 30
    assert source.column_names == ["text", "n"]
    frame = source[3:6].to_pandas()
    assert frame.to_dict("records") == ROWS[3:6]


def test_shuffle_is_a_view_that_the_seed_decides(source: Any) -> None:
    orders = {seed: [record["n"] for record in source.shuffle(seed)] for seed in (0, 1)}
    assert all(sorted(order) == list(range(30)) for order in orders.values())
    assert orders[0] != orders[1] != list(range(30))
    assert [record["n"] for record in source.shuffle(seed=1)] == orders[1]
    assert source.shuffle(1).locate(0).line == orders[1][0] + 1


@pytest.mark.parametrize(
    ("name", "hint"), [("features", "column_names"), ("take", "head"), ("iloc", "source")]
)
def test_a_name_of_another_library_says_what_to_use(source: Any, name: str, hint: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}'; .*{hint}"):
        getattr(source, name)
    assert not hasattr(source, name)


FRAME = pd.DataFrame({"text": ["the fox", "a dog", "one"], "n": [1, 2, 3]})


def tables() -> list[Any]:
    found: list[Any] = [FRAME, pa.Table.from_pandas(FRAME), pa.RecordBatch.from_pandas(FRAME)]
    try:
        import polars
    except ImportError:
        return found
    return [*found, polars.DataFrame({"text": ["the fox", "a dog", "one"], "n": [1, 2, 3]})]


@pytest.mark.parametrize("table", tables(), ids=lambda table: type(table).__module__)
def test_a_table_is_opened_and_prepared(table: Any, tmp_path: Path, tokenizer_path: Path) -> None:
    """N14: `ps.prepare(DataFrame)` said `record 0 is a str`."""
    source = ps.open(table)
    assert len(source) == 3 and source[1] == {"text": "a dog", "n": 2}
    assert [record["n"] for record in source[1:]] == [2, 3]
    check_source(source, expected=[source[row] for row in range(3)])
    store = ps.prepare(
        ps.open(table)[:2], tokenizer=tokenizer_path, template="text", cache_dir=tmp_path / "cache"
    )
    assert len(store) == 2 and store[0].text == "the fox<|endoftext|>"
    assert ps.prepare(table, tokenizer=tokenizer_path, template="text", cache_dir=tmp_path / "c")


def test_an_index_with_a_name_is_a_column_and_numbers_of_rows_are_not() -> None:
    assert ps.open(FRAME.set_index("n"))[0] == {"n": 1, "text": "the fox"}
    assert ps.open(FRAME[FRAME.n > 1])[0] == {"text": "a dog", "n": 2}


def test_a_frame_of_mixed_values_is_refused_in_words() -> None:
    with pytest.raises(SourceError, match=r"values of several types.*to_dict"):
        ps.open(pd.DataFrame({"a": [1, "x", {}]}))


def test_slices_of_a_store_and_its_refusals(
    source: Any, tmp_path: Path, tokenizer_path: Path
) -> None:
    """N14: `store[:2]` was a raw TypeError."""
    store = ps.prepare(source, tokenizer=tokenizer_path, template="text", cache_dir=tmp_path / "c")
    assert [sample.row for sample in store[:2]] == [0, 1]
    assert [sample.row for sample in store[-2:]] == [28, 29]
    assert [sample.row for sample in store[[5, 3]]] == [5, 3]
    assert store[np.int64(3)].row == 3
    for wrong in ("input_ids", 1.5, None):
        with pytest.raises(TypeError, match="expected the number of a sample"):
            store[wrong]
    with pytest.raises(IndexError):
        store[30]


def test_reprs_say_what_a_thing_holds(source: Any, tmp_path: Path, tokenizer_path: Path) -> None:
    store = ps.prepare(source, tokenizer=tokenizer_path, template="text", cache_dir=tmp_path / "c")
    loader = ps.Loader(store, batch_size=2, max_length=64, rank=0, world_size=1, output="numpy")
    batch = next(iter(loader))
    assert repr(batch).startswith("Batch(step 0, ") and "input_ids 2×64 int64" in repr(batch)
    assert repr(loader.metrics).startswith("Metrics(1 step, 2 rows, ")
    assert repr(loader.plan).startswith("Plan(data (30 samples); rows of 64 tokens")
    assert repr(store).startswith("Store('a', 30 samples, ")
    names = [name for name in dir(loader) if not name.startswith("__")]
    assert not any(name.startswith("_") for name in names)
    assert {"state_dict", "counters", "metrics", "explain", "plan"} <= set(names)
    assert not {"made_by_worker", "make_collator", "loop_end"} & set(names)
    assert all(hasattr(loader, name) for name in names)


def test_a_list_of_other_things_is_still_refused() -> None:
    with pytest.raises(BadRecord, match="record 0 is a int"):
        ps.open([1, 2])


def test_a_table_with_two_columns_of_one_name_is_refused() -> None:
    """The second column replaced the first one silently; files with such columns were refused already."""
    table = pa.table([["a"], ["b"]], names=["text", "text"])
    with pytest.raises(SourceError, match="column 'text' is there twice"):
        ps.open(table)
    with pytest.raises(SourceError, match="column 'text' is there twice"):
        ps.open(table.to_batches()[0])


def test_a_sparse_column_of_pandas_is_refused_by_name() -> None:
    """It ended in a raw TypeError of pyarrow."""
    frame = pd.DataFrame({"text": ["a", "b"], "n": pd.arrays.SparseArray([0, 1])})
    with pytest.raises(SourceError, match=r"column n.*convert it"):
        ps.open(frame)
