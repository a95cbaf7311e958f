"""A folder is never trained on its test and dev files unasked (finding N1)."""

import json
import logging
from pathlib import Path

import pytest

import penstock as ps
from penstock.errors import SourceError
from penstock.recipe.run import open_recipe
from penstock.sources import RowAccess
from penstock.templates import PretokenizedTemplate


def write(folder: Path, **rows_of: int) -> Path:
    """Make a file of rows for each name; two underscores become a folder."""
    for name, num_rows in rows_of.items():
        path = folder / f"{name.replace('__', '/')}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps({"text": f"{name} {row}"}) for row in range(num_rows)]
        path.write_text("\n".join(lines) + "\n")
    return folder


def names(source: RowAccess) -> list[str]:
    return [Path(file).name for file in source.files]


def test_a_folder_is_opened_without_its_test_and_dev_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """N1: 400 rows of train, test and dev were trained on without a warning."""
    write(tmp_path, train=4, test=3, dev=2)
    source = ps.open(tmp_path, cache_dir=tmp_path / "cache")
    assert len(source) == 4 and names(source) == ["train.jsonl"]
    (said,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "left out" in said.getMessage()
    assert "dev.jsonl, test.jsonl" in said.getMessage()
    assert "name the files" in said.getMessage()


def test_files_without_a_split_are_trained_on_beside_test_files(tmp_path: Path) -> None:
    write(tmp_path, part_0=4, part_1=1, latest=1, valid=3)
    assert names(ps.open(tmp_path)) == ["latest.jsonl", "part_0.jsonl", "part_1.jsonl"]


@pytest.mark.parametrize("everything", ["", "/*", "/**"])
def test_a_glob_of_everything_is_a_folder(tmp_path: Path, everything: str) -> None:
    write(tmp_path, train=4, test=3)
    assert names(ps.open(f"{tmp_path}{everything}")) == ["train.jsonl"]


def test_nested_folders_named_after_splits_are_told_apart(tmp_path: Path) -> None:
    write(tmp_path, train__a=4, test__a=3, validation__b=2)
    assert len(ps.open(f"{tmp_path}/**")) == 4


def test_files_that_are_named_are_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, train=4, test=3)
    assert len(ps.open(tmp_path / "test.jsonl")) == 3
    assert len(ps.open([tmp_path / "train.jsonl", tmp_path / "test.jsonl"])) == 7
    assert len(ps.open(tmp_path, split="test")) == 3
    assert len(ps.open(tmp_path, split="train+test")) == 7
    assert len(ps.open(f"{tmp_path}/t*st.jsonl")) == 3
    assert not caplog.records
    assert len(ps.open(f"{tmp_path}/*.jsonl")) == 7
    assert "used like the others: test.jsonl" in caplog.text


def test_rows_of_a_folder_are_counted_without_its_test_files(tmp_path: Path) -> None:
    write(tmp_path, a=4, test=3)
    assert len(ps.open(f"{tmp_path}@[:100]")) == 4
    assert len(ps.open([tmp_path, tmp_path / "test.jsonl"])) == 7


def test_a_folder_of_test_files_only_opens_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, test=3, dev=2)
    assert len(ps.open(tmp_path)) == 5
    assert "every file has the name of an evaluation set" in caplog.text


def test_the_name_of_the_folder_itself_does_not_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "test", a=3)
    assert len(ps.open(tmp_path / "test")) == 3
    assert not caplog.records


def test_the_split_train_of_a_folder_with_other_words_for_tests_is_refused(tmp_path: Path) -> None:
    """A relative: `split: train` took all files unless one was called test, valid or dev."""
    write(tmp_path, a=4, eval=3)
    with pytest.raises(SourceError, match="no file name contains the split 'train'"):
        ps.open(tmp_path, split="train")


def test_prepare_of_a_folder_leaves_test_files_out(tmp_path: Path) -> None:
    write(tmp_path / "data", train=4, test=3)
    template = PretokenizedTemplate(vocab_size=9)
    for path in (tmp_path / "data").iterdir():
        path.write_text('{"input_ids": [1, 2]}\n' * (4 if "train" in path.name else 3))
    store = ps.prepare(tmp_path / "data", template=template, cache_dir=tmp_path / "cache")
    assert len(store) == 4


def test_a_recipe_trains_on_training_files_and_evaluates_on_the_others(tmp_path: Path) -> None:
    """The same folder as `data` and as an eval set: neither part has a row of the other."""
    write(tmp_path / "data", train=4, test=3, dev=2, more=1)
    recipe = ps.Recipe.of(
        str(tmp_path / "data"),
        eval={"held_out": str(tmp_path / "data")},
        template="text",
        tokenizer=_tokenizer(tmp_path),
        cache_dir=str(tmp_path / "cache"),
    )
    (train,) = open_recipe(recipe)
    (held_out,) = open_recipe(recipe, part="held_out")
    assert [Path(file).name for file in train.source.files] == ["more.jsonl", "train.jsonl"]
    assert [Path(file).name for file in held_out.source.files] == ["dev.jsonl", "test.jsonl"]


def _tokenizer(folder: Path) -> str:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    path = folder / "tokenizer.json"
    Tokenizer(WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>")).save(str(path))
    return str(path)


def test_a_file_named_with_two_words_for_evaluation_is_not_trained_on(tmp_path: Path) -> None:
    """Two different words for evaluation were passed over like `train_test`, so the file was trained on without a word."""
    write(tmp_path, part=4, dev_test=3, eval_testing=2, train_test=1)
    assert names(ps.open(tmp_path)) == ["part.jsonl", "train_test.jsonl"]


def test_brackets_in_the_name_of_a_folder_do_not_make_its_name_count(tmp_path: Path) -> None:
    """The folder that was given was taken for a glob, so its own name `exp-test[1]` made its files evaluation sets."""
    folder = write(tmp_path / "exp-test[1]", part=4, train=5, dev=2)
    assert names(ps.open(folder)) == ["part.jsonl", "train.jsonl"]
