"""Samples that an evaluation set shares with the training set are found, counted and placed (finding N2)."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.cli.main import run
from penstock.report.overlap import Overlaps
from penstock.store import Store
from penstock.store.overlap import find_overlap, token_hashes


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def texts(start: int, stop: int) -> list[dict[str, Any]]:
    return [{"text": f"the quick fox number {row} jumps", "id": row} for row in range(start, stop)]


def recipe_of(folder: Path, tokenizer: Path, **more: Any) -> Path:
    keys = {
        "data": {"prose": "prose.jsonl"},
        "eval": {"held_out": "held_out.jsonl"},
        "tokenizer": str(tokenizer),
        "template": "text",
        "cache_dir": str(folder / "cache"),
        "max_length": 64,
        "batch_size": 2,
        **more,
    }
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(keys))
    return path


def verdicts(recipe: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    """The verdicts about overlap, by dataset."""
    run(["check", str(recipe), "--json", *options])
    return {
        each["source"]: verdict
        for each in json.loads(capsys.readouterr().out)
        for verdict in each["verdicts"]
        if verdict["question"] == "overlap"
    }


def test_check_finds_an_eval_set_that_is_the_training_set(
    tmp_path: Path, tokenizer_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """N2: an evaluation set identical to the training set gave no warning."""
    write(tmp_path / "prose.jsonl", texts(0, 50))
    write(tmp_path / "held_out.jsonl", texts(0, 50))
    verdict = verdicts(recipe_of(tmp_path, tokenizer_path), capsys)["held_out"]
    assert verdict["answer"] == "warn"
    assert "50 of 50 records (100.0%) are also in the training set 'prose'" in verdict["why"]
    assert "50 of 50 checked ones (100.0%) have its tokens" in verdict["why"]
    assert "all 50 records compared with all 50 records" in verdict["why"]
    assert f"{tmp_path}/held_out.jsonl:1 = {tmp_path}/prose.jsonl:1" in verdict["why"]
    assert verdict["first"][0] == f"{tmp_path}/held_out.jsonl:1"


def test_a_record_is_the_same_whatever_the_order_of_its_keys(
    tmp_path: Path, tokenizer_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "prose.jsonl", texts(0, 50))
    turned = [{"id": record["id"], "text": record["text"]} for record in texts(47, 60)]
    write(tmp_path / "held_out.jsonl", turned)
    verdict = verdicts(recipe_of(tmp_path, tokenizer_path), capsys)["held_out"]
    assert "3 of 13 records (23.1%) are also in the training set" in verdict["why"]
    assert f"held_out.jsonl:1 = {tmp_path}/prose.jsonl:48" in verdict["why"]


def test_records_that_differ_only_in_what_is_not_trained_share_their_tokens(
    tmp_path: Path, tokenizer_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "prose.jsonl", texts(0, 50))
    other_ids = [{**record, "id": -1} for record in texts(40, 60)]
    write(tmp_path / "held_out.jsonl", other_ids)
    verdict = verdicts(recipe_of(tmp_path, tokenizer_path), capsys)["held_out"]
    assert verdict["answer"] == "warn"
    assert "0 of 20 records (0.0%) are also in" in verdict["why"]
    assert "10 of 20 checked ones (50.0%) have its tokens" in verdict["why"]


def test_sets_without_a_shared_record_are_ok(
    tmp_path: Path, tokenizer_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "prose.jsonl", texts(0, 50))
    write(tmp_path / "held_out.jsonl", texts(50, 60))
    recipe = recipe_of(tmp_path, tokenizer_path)
    assert verdicts(recipe, capsys)["held_out"]["answer"] == "ok"
    assert run(["check", str(recipe)]) == 0
    assert "overlap" not in capsys.readouterr().out


def test_training_sets_that_share_records_are_named_and_more_rows_are_compared_than_checked(
    tmp_path: Path, tokenizer_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "prose.jsonl", [*texts(0, 90), *texts(0, 10)])
    write(tmp_path / "more.jsonl", texts(80, 120))
    write(tmp_path / "held_out.jsonl", texts(200, 203))
    data = {"prose": "prose.jsonl", "more": "more.jsonl"}
    recipe = recipe_of(tmp_path, tokenizer_path, data=data)
    found = verdicts(recipe, capsys, "--rows", "5")
    assert found["more"]["answer"] == "warn"
    assert "10 of 40 records (25.0%) are also in the training set 'prose'" in found["more"]["why"]
    run(["check", str(recipe), "--rows", "5"])
    out = capsys.readouterr().out
    assert "10 of 100 records (10.0%) repeat an earlier one (all 100 records)" in out


def test_a_bad_row_does_not_stop_the_comparison(
    tmp_path: Path, tokenizer_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "prose.jsonl", texts(0, 20))
    path.write_text("{]\n" + path.read_text())
    write(tmp_path / "held_out.jsonl", texts(0, 2))
    verdict = verdicts(recipe_of(tmp_path, tokenizer_path), capsys)["held_out"]
    assert "2 of 2 records (100.0%) are also in" in verdict["why"]


def test_of_large_data_a_part_is_compared_and_it_is_said(tmp_path: Path) -> None:
    from penstock.report.sampling import EncodedRows

    source = ps.open(write(tmp_path / "a.jsonl", texts(0, 5000)))
    overlaps = Overlaps(at_most=2000)
    nothing = EncodedRows(num_rows=5000, looked=10, bad=[])
    list(overlaps.compare("a", "train", source, nothing))
    (_, shared) = list(overlaps.compare("b", "test", source, nothing))
    assert "2,048 of 5,000 records compared with 2,048 of 5,000 records" in shared.why


def store_of(folder: Path, rows: list[list[int]], name: str) -> Store:
    return ps.prepare(
        [{"input_ids": ids} for ids in rows],
        template="pretokenized",
        vocab_size=70_000,
        cache_dir=folder,
        num_proc=1,
        name=name,
    )


def test_hashes_depend_on_the_tokens_and_their_order_and_on_nothing_else(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 60_000, rng.integers(2, 40)).tolist() for _ in range(300)]
    rows += [[0, 0], [0, 0, 0], [0, 1], [1, 0], [1, 1], [0, 0, 1]]
    first = store_of(tmp_path, rows, "first")
    turned = store_of(tmp_path, rows[::-1], "turned")
    hashes = token_hashes(first.tokens(0))
    assert np.array_equal(hashes, token_hashes(turned.tokens(0))[::-1])
    assert len(set(hashes.tolist())) == len({tuple(row) for row in rows})


def test_stores_are_compared_like_sets_of_samples(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    trained = [rng.integers(0, 9, rng.integers(2, 4)).tolist() for _ in range(200)]
    evaluated = [rng.integers(0, 9, rng.integers(2, 4)).tolist() for _ in range(60)]
    known = {tuple(row) for row in trained}
    expected = sum(tuple(row) in known for row in evaluated)
    overlap = find_overlap(store_of(tmp_path, evaluated, "e"), store_of(tmp_path, trained, "t"))
    assert overlap is not None and 0 < overlap.count == expected < 60
    assert (overlap.looked, overlap.looked_trained, overlap.is_whole) == (60, 200, True)
    for one, other in overlap.examples:
        first, second = (int(place.rpartition(":")[2]) - 1 for place in (one, other))
        assert evaluated[first] == trained[second]
    far = store_of(tmp_path, [[50_000 + row, 1] for row in range(9)], "far")
    assert find_overlap(far, store_of(tmp_path, trained, "t")) is None


def test_loading_either_part_of_a_recipe_warns_once_before_training(
    tmp_path: Path, tokenizer_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "prose.jsonl", texts(0, 50))
    write(tmp_path / "held_out.jsonl", texts(45, 65))
    recipe = recipe_of(tmp_path, tokenizer_path)
    options = {"output": "numpy", "rank": 0, "world_size": 1}
    with caplog.at_level(logging.WARNING, logger="penstock"):
        ps.load(recipe, **options)
        assert "are also in" not in caplog.text  # the eval set is not prepared
        ps.load(recipe, part="held_out", **options)
        ps.load(recipe, **options)
    said = [record.getMessage() for record in caplog.records if "also in" in record.getMessage()]
    assert len(said) == 1
    assert "eval set 'held_out': 5 of 20 samples (25.0%) are also in" in said[0]
    assert f"held_out.jsonl:1 = {tmp_path}/prose.jsonl:46" in said[0]


@pytest.mark.extra("view")
def test_the_report_says_it(tmp_path: Path, tokenizer_path: Path) -> None:
    write(tmp_path / "prose.jsonl", texts(0, 50))
    write(tmp_path / "held_out.jsonl", texts(45, 65))
    recipe = str(recipe_of(tmp_path, tokenizer_path))
    page = tmp_path / "report.html"
    assert run(["prepare", recipe]) == 0
    assert run(["report", recipe, "-o", str(page), "--no-compare"]) == 0
    assert "5 of 20 samples (25.0%) are also in the training set" in page.read_text()
