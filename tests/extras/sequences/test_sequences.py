"""Windows, encodings and batches of numbers and categories over time."""

import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import BadRecord, PlanError, SourceError
from penstock.sequences import Encoding, SequenceBatches, curriculum, learn_encoding, windows
from penstock.testing import check_source

LENGTHS = (9, 3, 4, 20, 1)


def records() -> list[dict[str, Any]]:
    return [
        {
            "name": f"s{number}",
            "price": [number + step / 8 for step in range(count)],
            "item": ["abc"[(number + step) % 3] if step != 2 else None for step in range(count)],
        }
        for number, count in enumerate(LENGTHS)
    ]


@pytest.fixture
def source(tmp_path: Path) -> Any:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records()))
    return ps.open(path, cache_dir=tmp_path / "cache")


@given(st.lists(st.integers(1, 30), min_size=1, max_size=4), st.data())
def test_every_step_is_in_a_window_and_the_last_ones_end_with_their_sequence(
    counts: list[int], data: st.DataObject
) -> None:
    length = data.draw(st.integers(1, 9))
    stride = data.draw(st.integers(1, length))
    source = ps.open([{"row": row, "x": list(range(1, n + 1))} for row, n in enumerate(counts)])
    made = list(windows(source, ["x"], length=length, stride=stride))
    for row, count in enumerate(counts):
        own = [record for record in made if record["row"] == row]
        assert [record["window"] for record in own] == list(range(len(own)))
        assert {int(step) for record in own for step in record["x"] if step} == {
            *range(1, count + 1)
        }
        assert own[-1]["x"][-1] == count
        ends = [record["start"] + length - record["left_pad_length"] for record in own]
        assert np.diff(ends).tolist() == [stride] * (len(own) - 1)
        for record in own:
            padding = record["left_pad_length"]
            steps = range(record["start"] + 1, record["start"] + 1 + length - padding)
            assert record["x"].tolist() == [0] * padding + list(steps)


def test_windows_are_a_source_with_a_key_of_their_own(source: Any) -> None:
    numbers = source.remove("item")
    made = windows(numbers, ["price"], length=4, stride=2)
    assert len(made) == 4 + 1 + 1 + 9 + 1
    check_source(made, expected=list(made))
    whole = made.digest(0, len(made))
    assert windows(numbers, ["price"], length=4, stride=3).digest(0, 3) != whole
    assert made[4]["price"].tolist() == [0, 1, 1.125, 1.25] and made[4]["left_pad_length"] == 1
    assert made.locate(5).line == 3


@pytest.mark.parametrize(
    ("record", "settings", "message"),
    [
        ({"x": [1], "y": [1, 2]}, {}, r"list:1: .*'x' has 1, 'y' has 2"),
        ({"x": [], "y": []}, {}, "a sequence without steps"),
        ({"x": "text", "y": [1]}, {}, "'x' is a str, expected a list"),
        ({"x": [1], "y": [1], "start": 3}, {}, "has the key 'start', which windows need"),
        ({"x": [1], "y": [1]}, {"stride": 9}, "in none; choose stride <= length"),
        ({"x": [1], "z": [1]}, {}, "no column 'y'"),
    ],
)
def test_what_has_no_windows_is_refused(record: Any, settings: Any, message: str) -> None:
    with pytest.raises((BadRecord, SourceError), match=message):
        len(windows(ps.open([record]), ["x", "y"], length=3, **settings))


def test_an_encoding_is_learnt_once_and_does_not_depend_on_the_order(
    source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    learnt = learn_encoding(source, categories=["item"], reals=["price"])
    assert learnt.ids["item"] == {"null": 3, '"a"': 4, '"b"': 5, '"c"': 6}
    prices = [value for record in records() for value in record["price"]]
    mean, deviation = learnt.scales["price"]
    assert mean == pytest.approx(np.mean(prices)) and deviation == pytest.approx(
        np.std(prices, ddof=1)
    )
    backwards = learn_encoding(source[::-1], categories=["item"], reals=["price"])
    assert backwards == learnt
    again = Encoding.from_json(learnt.to_json())
    assert again == learnt == pickle.loads(pickle.dumps(learnt))
    reads = []
    monkeypatch.setattr(type(source), "__iter__", lambda _: reads.append(1) or iter(()))
    assert learn_encoding(source, categories=["item"], reals=["price"]) == learnt
    assert not reads  # remembered by content


def test_an_encoded_record_holds_ids_and_normalised_numbers(source: Any) -> None:
    learnt = learn_encoding(source[:3], categories=["item", "name"], reals=["price"])
    assert learnt.num_ids == {"item": 3 + 4, "name": 3 + 3}
    encoded = source.map(learnt)
    assert encoded[3]["name"] == 0  # it was not in the part that was learnt from
    first = encoded[0]
    assert first["item"].dtype == np.int64 and first["price"].dtype == np.float32
    assert learnt.decode("item", first["item"]) == records()[0]["item"]
    assert learnt.decode("price", first["price"]) == pytest.approx(records()[0]["price"], abs=1e-5)
    joined = np.concatenate([encoded[row]["price"] for row in range(3)])
    assert math.isclose(joined.mean(), 0, abs_tol=1e-5) and joined.std(ddof=1) == pytest.approx(1)
    other = learn_encoding(source, categories=["item", "name"], reals=["price"])
    assert source.map(other).digest(0, 5) != encoded.digest(0, 5)  # it enters the key


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "found neither of categories= and reals="),
        ({"categories": ["item"], "reals": ["item"]}, "'item' in both"),
        ({"categories": ["itm"]}, "no column 'itm'.*did you mean 'item'"),
        ({"reals": ["item"]}, "'item' holds a value that is not a number"),
    ],
)
def test_what_cannot_be_learnt_is_named(source: Any, settings: Any, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        learn_encoding(source, **settings)


def test_not_finite_numbers_are_named_with_their_place() -> None:
    rows = ps.open([{"x": [1.0, 2.0]}, {"x": ["nan"]}])
    with pytest.raises(SourceError, match=r"list:2: 'x' holds NaN or infinity"):
        learn_encoding(rows, reals=["x"])
    with pytest.raises(SourceError, match="'x' has 1 value"):
        learn_encoding(ps.open([{"x": 1.0}]), reals=["x"])
    with pytest.raises(SourceError, match="version 9"):
        Encoding.from_json('{"version": 9, "ids": {}, "scales": {}}')


def test_batches_hold_the_last_steps_as_inputs_and_the_same_steps_later_as_targets() -> None:
    torch = pytest.importorskip("torch", reason="the extra penstock[torch] is not installed")
    source = ps.open([{"x": list(range(1, n + 1)), "id": n} for n in (3, 8, 6)])
    view = windows(source, ["x"], length=6)
    loader = ps.Loader(
        view,
        batch_size=4,
        shuffle=False,
        collate=SequenceBatches("x", length=4),
        rank=0,
        world_size=1,
    )
    [batch] = loader
    inputs, targets, metadata, *_ = batch
    assert inputs["x"].tolist() == [[0, 0, 1, 2], [0, 0, 0, 1], [4, 5, 6, 7], [2, 3, 4, 5]]
    assert targets["x"].tolist() == [[0, 1, 2, 3], [0, 0, 1, 2], [5, 6, 7, 8], [3, 4, 5, 6]]
    assert metadata["attention_valid_mask"].tolist()[0] == [False, False, True, True]
    assert metadata["target_valid_mask"].tolist()[0] == [False, True, True, True]
    assert batch.inputs["x"] is inputs["x"] and inputs["x"].dtype == torch.int64


def test_a_target_outside_its_split_is_not_valid() -> None:
    record = {
        "x": np.arange(6),
        "start_item_position": 10,
        "left_pad_length": 0,
        "split_start_item_position": 12,
        "split_end_item_position": 15,
        "sequence_id": 7,
        "subsequence_id": 1,
    }
    batch = SequenceBatches(["x"], output="numpy")([record])
    assert batch.targets["x"].tolist() == [[1, 2, 3, 4, 5]]
    assert batch.metadata["target_valid_mask"].tolist() == [[False, True, True, True, False]]
    assert batch.sequence_ids.tolist() == [7] and batch.subsequence_ids.tolist() == [1]
    gaps = SequenceBatches(["x"], target_offset=0, stored_offset=1, length=2, output="numpy")
    assert gaps([record]).targets["x"].tolist() == [[3, 4]] == gaps([record]).inputs["x"].tolist()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SequenceBatches("x", target_offset=2, stored_offset=1), "target_offset is 2, but"),
        (lambda: SequenceBatches("x", output="jax"), "output is 'jax'"),
        (lambda: SequenceBatches("x", length=9)([{"x": [1, 2, 3]}]), "windows of 3 steps, but"),
        (lambda: SequenceBatches("y")([{"x": [1, 2, 3]}]), "no column 'y'"),
        (
            lambda: SequenceBatches("x")([{"x": [1, 2, 3]}, {"x": [1, 2]}]),
            "shapes .* in one batch, expected windows of one length",
        ),
    ],
)
def test_batches_that_cannot_be_made_are_refused(make: Any, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        make()


def test_a_curriculum_is_a_sort_behind_a_shuffle() -> None:
    """Ties are in a random order that the seed decides; levels are in theirs."""
    source = ps.open([{"level": n % 3, "n": n} for n in range(60)])
    orders = [[r["n"] for r in source.shuffle(seed).sort("level")] for seed in (0, 1)]
    for order in orders:
        assert [n % 3 for n in order] == [0] * 20 + [1] * 20 + [2] * 20
    assert orders[0] != orders[1] and sorted(orders[0]) == list(range(60))


def test_a_curriculum_of_several_epochs_shuffles_ties_anew_and_resumes() -> None:
    source = ps.open([{"level": n % 3, "age": n % 2, "n": n} for n in range(60)])
    ordered = curriculum(source, "level", "age", epochs=3, seed=4, reverse=[True, False])
    assert len(ordered) == 180
    epochs = [[ordered[place]["n"] for place in range(60 * e, 60 * e + 60)] for e in range(3)]
    for order in epochs:
        keys = [(-(n % 3), n % 2) for n in order]
        assert keys == sorted(keys) and sorted(order) == list(range(60))
    assert len({tuple(order) for order in epochs}) == 3
    same = curriculum(source, "level", "age", epochs=3, seed=4, reverse=[True, False])
    other = curriculum(source, "level", "age", epochs=3, seed=5, reverse=[True, False])
    assert same.digest(0, 180) == ordered.digest(0, 180) != other.digest(0, 180)

    def loader() -> ps.Loader:
        return ps.Loader(
            ordered,
            batch_size=7,
            shuffle=False,
            collate=lambda records: [record["n"] for record in records],
            rank=0,
            world_size=1,
        )

    first = loader()
    batches = iter(first)
    head = [next(batches) for _ in range(11)]  # into the second epoch
    second = loader()
    second.load_state_dict(first.state_dict())
    delivered = [n for batch in (*head, *second) for n in batch]
    assert delivered == [n for order in epochs for n in order]
    with pytest.raises(SourceError, match="no column is named"):
        curriculum(source)
    with pytest.raises(SourceError, match="no column 'lvl'"):
        curriculum(source, "lvl")


def test_a_length_in_tokens_is_refused_for_plain_records(tmp_path: Path) -> None:
    """sequence_length, which is read as max_length, did nothing: sequifier takes the last steps with it."""
    data = tmp_path / "data.jsonl"
    data.write_text('{"x": [1, 2, 3, 4]}\n' * 4)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("data: data.jsonl\ntemplate: records\nbatch_size: 2\nsequence_length: 2\n")
    with pytest.raises(
        PlanError, match=r"take the last steps .*SequenceBatches\(inputs, length=2\)"
    ):
        ps.load(recipe)
    with pytest.raises(PlanError, match="max_length is 2, and plain records have no length"):
        ps.Loader(ps.open(data), batch_size=2, max_length=2)
    collate = SequenceBatches("x", length=2, output="numpy")
    loader = ps.Loader(ps.open(data), batch_size=4, collate=collate, rank=0, world_size=1)
    assert next(iter(loader)).inputs["x"].tolist() == [[2, 3]] * 4
