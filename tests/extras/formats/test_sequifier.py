"""Folders as sequifier 3.1 writes them: payload version 5 of .pt chunks, and Parquet with a row per window and column."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.cache import Cache
from penstock.errors import BadRecord, SourceError
from penstock.sequences import SequenceBatches
from penstock.sources import RowAccess, open_source
from penstock.testing import check_source

torch = pytest.importorskip("torch", reason="the extra penstock[torch] is not installed")

WIDTH = 5
TYPES = {"item": "Int64", "price": "Float32"}


def windows(first: int, last: int) -> dict[str, Any]:
    """The arrays of windows first..last."""
    rows = np.arange(first, last)
    steps = np.arange(WIDTH)
    return {
        "item": rows[:, None] * 10 + steps,
        "price": (rows[:, None] / 8 + steps).astype(np.float32),
        "curriculum.level": rows % 3,
        "curriculum.age": rows + 40,
        "sequence_id": rows // 2,
        "subsequence_id": rows % 2,
        "start_item_position": rows * 5,
        "left_pad_length": rows % 4,
        "split_start_item_position": rows * 5 + 1,
        "split_end_item_position": rows * 5 + 4,
    }


def expected(first: int, last: int) -> list[dict[str, Any]]:
    arrays = windows(first, last)
    return [
        {
            name: array[row].copy() if array.ndim > 1 else int(array[row])
            for name, array in arrays.items()
        }
        for row in range(last - first)
    ]


def write_metadata(folder: Path, counts: dict[str, int], **more: Any) -> Path:
    files = [{"path": name, "samples": count} for name, count in counts.items()]
    metadata = {
        "total_samples": sum(counts.values()),
        "batch_files": files,
        "column_data_types": TYPES,
        "window_length": WIDTH,
        "max_target_offset": 1,
        "stored_window_layout_version": 2,
        "curriculum_column": ["level", "age"],
        **more,
    }
    (folder / "metadata.json").write_text(json.dumps(metadata))
    return folder


def payload(first: int, last: int) -> dict[str, Any]:
    tensors = {name: torch.from_numpy(array) for name, array in windows(first, last).items()}
    return {
        "format": "sequifier_tensor_batch",
        "version": 5,
        "sequences": {name: tensors[name] for name in TYPES},
        "metadata": {
            "depth_valid_masks": {},
            "sample_positions": torch.stack(
                [tensors["curriculum.level"], tensors["curriculum.age"]], dim=1
            ),
            "curriculum_columns": ["level", "age"],
        },
        **{
            f"{name}s": tensors[name]
            for name in list(tensors)
            if name not in TYPES and not name.startswith("curriculum.")
        },
    }


@pytest.fixture
def pt_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "pt"
    folder.mkdir()
    torch.save(payload(0, 4), folder / "a.pt")
    torch.save(payload(4, 7), folder / "b.pt")
    return write_metadata(folder, {"a.pt": 4, "b.pt": 3})


def long_rows(first: int, last: int) -> list[dict[str, Any]]:
    """A row for each window and column; numbers of all columns have one type, and steps count down to the last."""
    stored = []
    for record in expected(first, last):
        beside = {
            "sequenceId": record["sequence_id"],
            "subsequenceId": record["subsequence_id"],
            "startItemPosition": record["start_item_position"],
            "leftPadLength": record["left_pad_length"],
            "splitStartItemPosition": record["split_start_item_position"],
            "splitEndItemPosition": record["split_end_item_position"],
            "__sequifier_curriculum_value__level": record["curriculum.level"],
            "__sequifier_curriculum_value__age": record["curriculum.age"],
        }
        for name in ("price", "item"):
            steps = {str(WIDTH - 1 - step): float(record[name][step]) for step in range(WIDTH)}
            stored.append({**beside, "inputCol": name, **steps})
    return stored


def write_parquet(folder: Path, rows: list[dict[str, Any]], name: str = "a.parquet") -> None:
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / name, row_group_size=3)


@pytest.fixture
def parquet_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "parquet"
    write_parquet(folder, long_rows(0, 4))
    write_parquet(folder, long_rows(4, 7), "b.parquet")
    return write_metadata(folder, {"a.parquet": 4, "b.parquet": 3})


def test_both_ways_to_write_a_folder_give_the_same_windows(
    pt_folder: Path, parquet_folder: Path, cache: Cache
) -> None:
    """Q4: version 5 was refused, split bounds vanished, and Parquet gave a record for each row."""
    for folder in (pt_folder, parquet_folder):
        source = open_source(folder, cache=cache)
        assert len(source) == 7
        check_source(source, expected=expected(0, 7))
        first = source[0]
        assert first["item"].dtype == np.int64 and first["price"].dtype == np.float32


def test_some_columns_of_windows_in_parquet(parquet_folder: Path, cache: Cache) -> None:
    source = open_source(parquet_folder, cache=cache, columns=["price"])
    assert (
        "item" not in source[0]
        and source[3]["price"].tolist() == expected(3, 4)[0]["price"].tolist()
    )
    with pytest.raises(SourceError, match="columns: no column 'prize'; did you mean 'price'"):
        open_source(parquet_folder, cache=cache, columns=["prize"])


def test_depth_columns_and_their_masks(tmp_path: Path, cache: Cache) -> None:
    content = payload(0, 3)
    content["sequences"]["legs"] = torch.arange(3 * WIDTH * 2).reshape(3, WIDTH, 2)
    mask = torch.arange(3 * WIDTH * 2).reshape(3, WIDTH, 2) % 3 > 0
    content["metadata"]["depth_valid_masks"] = {"trip": mask}
    torch.save(content, tmp_path / "a.pt")
    record = open_source(write_metadata(tmp_path, {"a.pt": 3}), cache=cache)[1]
    assert record["legs"].shape == (WIDTH, 2) and record["legs"][0].tolist() == [10, 11]
    assert record["depth_valid_masks.trip"].tolist() == mask[1].tolist()


def test_one_curriculum_column_is_not_a_matrix(tmp_path: Path, cache: Cache) -> None:
    content = payload(0, 3)
    content["metadata"] |= {"sample_positions": torch.arange(3), "curriculum_columns": ["level"]}
    torch.save(content, tmp_path / "a.pt")
    source = open_source(write_metadata(tmp_path, {"a.pt": 3}), cache=cache)
    assert source[2]["curriculum.level"] == 2 and "curriculum.age" not in source[2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 6}, r"a.pt: a payload of sequifier of version 6, expected at most 5"),
        ({"secrets": 1}, "with the unknown part 'secrets'"),
        (
            {"metadata": {"curriculum_columns": ["a"], "sample_positions": torch.zeros(3, 2)}},
            "names 1 columns, but sample_positions has 2",
        ),
        ({"left_pad_lengths": torch.zeros(2)}, "'left_pad_length' holds 2 samples"),
    ],
)
def test_what_a_payload_may_not_hold(
    tmp_path: Path, cache: Cache, change: Any, message: str
) -> None:
    torch.save({**payload(0, 3), **change}, tmp_path / "a.pt")
    with pytest.raises(SourceError, match=message):
        open_source(write_metadata(tmp_path, {"a.pt": 3}), cache=cache)


def test_rows_that_make_no_window_are_refused(tmp_path: Path, cache: Cache) -> None:
    rows = long_rows(0, 3)
    write_parquet(tmp_path / "short", rows[:-1])
    with pytest.raises(
        SourceError, match=r"5 rows, but metadata.json says 3 samples, and each has 2"
    ):
        len(open_source(write_metadata(tmp_path / "short", {"a.parquet": 3}), cache=cache))
    mixed = [*rows[:3], rows[4], rows[3], rows[5]]
    write_parquet(tmp_path / "mixed", mixed)
    source: RowAccess = open_source(
        write_metadata(tmp_path / "mixed", {"a.parquet": 3}), cache=cache
    )
    with pytest.raises(BadRecord, match="2 rows for price, expected one window with price, item"):
        source[1]
    write_parquet(tmp_path / "types", rows)
    with pytest.raises(SourceError, match="column_data_types says 'Number' for 'item'"):
        open_source(
            write_metadata(
                tmp_path / "types", {"a.parquet": 3}, column_data_types={"item": "Number"}
            ),
            cache=cache,
        )


# Folders and a batch that sequifier 3.1.1.0 itself has made (foreign/sequifier/make.py)

MADE = Path(__file__).parent / "foreign" / "sequifier"


def open_made(form: str, tmp_path: Path) -> RowAccess:
    return open_source(MADE / form, cache=Cache(tmp_path / "cache"))


def items_of_table() -> list[list[str]]:
    """The items of each sequence, as the table that sequifier read has them."""
    items: list[list[str]] = [[] for _ in range(12)]
    with (MADE / "items.csv").open() as file:
        for row in csv.DictReader(file):
            items[int(row["sequenceId"])].append(row["item"])
    return items


@pytest.mark.parametrize("form", ["pt", "parquet"])
def test_windows_of_the_release_hold_the_items_of_its_table(form: str, tmp_path: Path) -> None:
    items = items_of_table()
    ids = json.loads((MADE / form / "metadata.json").read_text())["id_maps"]["item"]
    source = open_made(form, tmp_path)
    assert len(source) == 28
    for record in source:
        start = record["start_item_position"]
        expected_items = items[record["sequence_id"]][start : start + 5]
        assert record["item"].tolist() == [ids[item] for item in expected_items]
        assert record["item"].dtype == np.int64 and record["price"].dtype == np.float64
        assert record["curriculum.level"] == record["sequence_id"] % 3
        assert record["left_pad_length"] == record["split_start_item_position"] == 0
        assert record["split_end_item_position"] == int(len(items[record["sequence_id"]]) * 0.7)


def test_both_forms_of_the_release_give_the_same_records(tmp_path: Path) -> None:
    of_tensors = list(open_made("pt", tmp_path))
    of_rows = list(open_made("parquet", tmp_path))
    for one, other in zip(of_tensors, of_rows, strict=True):
        assert list(one) == list(other)
        assert all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("form", ["pt", "parquet"])
def test_a_batch_is_the_one_that_the_release_trains_with(form: str, tmp_path: Path) -> None:
    theirs = json.loads((MADE / "batch.json").read_text())
    collate = SequenceBatches(["item", "price"], ["item"], length=4, output="numpy")
    loader = ps.Loader(
        open_made(form, tmp_path), batch_size=28, shuffle=False, collate=collate, output="numpy"
    )
    batch = next(iter(loader))
    ours = {"inputs": batch.inputs, "targets": batch.targets, "metadata": batch.metadata}
    assert {part: set(arrays) for part, arrays in theirs.items()} == {
        part: set(arrays) for part, arrays in ours.items()
    }
    for part, arrays in theirs.items():
        for name, values in arrays.items():
            assert np.array_equal(ours[part][name], np.array(values)), (part, name)


def test_a_curriculum_orders_by_level_with_ties_in_random_order(tmp_path: Path) -> None:
    source = open_made("pt", tmp_path)
    orders = []
    for epoch in range(2):
        ordered = list(source.shuffle(epoch).sort("curriculum.level"))
        assert [record["curriculum.level"] for record in ordered] == sorted(
            record["curriculum.level"] for record in source
        )
        orders.append([(record["sequence_id"], record["subsequence_id"]) for record in ordered])
    assert orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1])
