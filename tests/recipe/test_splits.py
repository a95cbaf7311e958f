"""Splits are read from the names of files and folders, as people and `datasets` write them."""

from pathlib import Path

import pytest

from penstock.places import find
from penstock.recipe.splits import find_splits, short_places
from penstock.sources.splits import split_of


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("train.jsonl", "train"),
        ("train-00000-of-00010.parquet", "train"),
        ("my_training_set.csv", "train"),
        ("gsm8k_test.jsonl", "test"),
        ("test2.jsonl", "test"),
        ("dev.tools.jsonl", "dev"),
        ("VAL.json", "val"),
        ("eval/part-0.jsonl", "eval"),
        ("validation/train/a.jsonl", "train"),
        ("test/a.jsonl", "test"),
        ("latest.jsonl", None),
        ("protest-evaluator.jsonl", None),
        ("valley.jsonl", None),
        ("trainer.jsonl", None),
        ("train_test.jsonl", None),
        ("dev/train_test.jsonl", "dev"),
        ("a.jsonl", None),
    ],
)
def test_a_split_is_a_word_of_its_own(path: str, split: str | None) -> None:
    assert split_of(path) == split


def make(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text('{"text": "a"}\n')
    return folder


def test_the_folder_itself_says_nothing(tmp_path: Path) -> None:
    """A folder called test that is given by name is data to train on."""
    assert find_splits([str(make(tmp_path / "test", "a.jsonl", "b.jsonl"))]) is None


def test_a_hub_layout_is_found_below_its_readme(tmp_path: Path) -> None:
    folder = make(
        tmp_path / "set",
        "README.md",
        "data/train-0.jsonl",
        "data/train-1.jsonl",
        "data/test-0.jsonl",
    )
    found = find_splits([str(folder)])
    assert found is not None and [Path(file).name for file in found.train] == [
        "train-0.jsonl",
        "train-1.jsonl",
    ]
    assert list(found.eval_sets) == ["test"] and not found.others


def test_a_file_or_a_glob_has_no_splits(tmp_path: Path) -> None:
    make(tmp_path, "train.jsonl", "test.jsonl")
    assert (
        find_splits([str(tmp_path / "test.jsonl")]) is None
        and find_splits([f"{tmp_path}/*.jsonl"]) is None
    )


def test_many_files_are_written_as_a_glob_that_means_exactly_them(tmp_path: Path) -> None:
    train = [f"train-{number:02}.jsonl" for number in range(12)]
    make(tmp_path, *train, "test-00.jsonl")
    found = find_splits([str(tmp_path)])
    assert found is not None and short_places(found.train) == [f"{tmp_path}/train-*.jsonl"]
    assert find(short_places(found.train)[0]) == found.train
    assert short_places(found.eval_sets["test"]) == [f"{tmp_path}/test-00.jsonl"]
    make(tmp_path, "train-notes.jsonl.bak")
    few = found.train[:2]
    assert short_places(few) == few


def test_a_folder_of_one_split_is_written_as_the_folder(tmp_path: Path) -> None:
    make(tmp_path, "train/a.jsonl", "train/b.jsonl", "dev/a.jsonl")
    found = find_splits([str(tmp_path)])
    assert found is not None and short_places(found.train) == [f"{tmp_path}/train"]
