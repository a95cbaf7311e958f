"""Large losses are refused, with a percentage and a reason next to every count (finding N5)."""

from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.cli.main import run
from penstock.errors import PlanError
from penstock.store import Store


def make_store(
    folder: Path, lengths: list[int], *, untrained: int = 0, name: str = "data"
) -> Store:
    """Samples of these lengths, and records without a token to train on."""
    records: list[dict[str, Any]] = [
        {"input_ids": [row % 90] * length} for row, length in enumerate(lengths)
    ]
    records += [{"input_ids": [1, 2], "labels": [-100, -100]}] * untrained
    for record in records:
        record.setdefault("labels", record["input_ids"])
    return ps.prepare(
        records, template="pretokenized", vocab_size=90, cache_dir=folder, num_proc=1, name=name
    )


def load(stores: Any, **options: Any) -> ps.Loader:
    given = {"batch_size": 1, "max_length": 10, "rank": 0, "world_size": 1, "output": "numpy"}
    return ps.Loader(stores, **{**given, **options})


def test_a_loader_refuses_to_train_on_a_small_rest(tmp_path: Path) -> None:
    """N5: 273 of 300 samples were dropped with one line in the log, without a percentage."""
    store = make_store(tmp_path, [20] * 273 + [5] * 27)
    with pytest.raises(PlanError) as refused:
        load(store)
    said = str(refused.value)
    assert "273 of 300 records (91.0%), with 97.6% of the tokens" in said
    assert "overlong 273 (longer than max_length)" in said
    assert "raise max_length, or choose on_overlong: split or truncate" in said
    assert "set max_dropped=0.98" in said
    assert len(load(store, max_dropped=0.98)) == 14
    assert len(load(store, on_overlong="truncate")) > 0
    assert len(load(store, packing="concat")) > 0


def test_tokens_count_as_much_as_samples(tmp_path: Path) -> None:
    """A quarter of the samples can hold most of the tokens."""
    store = make_store(tmp_path, [100] * 10 + [5] * 30)
    with pytest.raises(PlanError, match=r"10 of 40 records \(25.0%\), with 87.0% of the tokens"):
        load(store)


def test_records_that_gave_no_sample_count(tmp_path: Path) -> None:
    store = make_store(tmp_path, [5] * 4, untrained=6)
    with pytest.raises(PlanError, match=r"6 of 10 records \(60.0%\).*nothing_to_train 6"):
        load(store)
    assert "6 dropped (60.0%)" in store.describe()


def test_each_data_set_of_a_mixture_is_judged_by_itself(tmp_path: Path) -> None:
    good = make_store(tmp_path, [5] * 90, name="good")
    lost = make_store(tmp_path, [50] * 9 + [5], name="lost")
    with pytest.raises(PlanError, match=r"dataset 'lost': 9 of 10 records \(90.0%\)"):
        load({"good": good, "lost": lost})


def test_samples_that_are_cut_before_their_first_target_count(tmp_path: Path) -> None:
    records = [{"input_ids": [1] * 30, "labels": [-100] * 20 + [1] * 10}] * 9
    records.append({"input_ids": [1] * 5, "labels": [1] * 5})
    store = ps.prepare(
        records, template="pretokenized", vocab_size=90, cache_dir=tmp_path, num_proc=1
    )
    with pytest.raises(PlanError, match=r"9 of 10 records .*nothing_to_train 9"):
        load(store, on_overlong="truncate")


def test_what_is_dropped_on_purpose_at_the_end_of_an_epoch_does_not_count(tmp_path: Path) -> None:
    store = make_store(tmp_path, [10] * 12)
    assert len(load(store, batch_size=7, last_step="drop")) == 1


@pytest.mark.parametrize("wrong", [-0.1, 1.5, "half", True, None])
def test_a_share_is_expected(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(PlanError, match=r"max_dropped is .*expected a (share from 0 to 1|number)"):
        load(make_store(tmp_path, [5] * 4), max_dropped=wrong)


def write_recipe(folder: Path, **keys: Any) -> Path:
    """Four short and six long samples."""
    import json

    ids = [[1] * 5] * 4 + [[1] * 50] * 6
    text = "".join(json.dumps({"input_ids": row, "labels": row}) + "\n" for row in ids)
    (folder / "data.jsonl").write_text(text)
    path = folder / "recipe.yaml"
    keys = {"template": "pretokenized", "vocab_size": 9, "max_length": 10, "batch_size": 1, **keys}
    lines = [f"{key}: {value}" for key, value in {"data": "data.jsonl", **keys}.items()]
    path.write_text("\n".join([*lines, f"cache_dir: {folder / 'cache'}", ""]))
    return path


def test_check_and_plan_fail_and_commands_that_look_at_the_loss_do_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """N5: with 79 % of the tokens dropped, `check` ended with exit code 0."""
    recipe = str(write_recipe(tmp_path))
    assert run(["check", recipe]) == 1
    out = capsys.readouterr().out
    assert "6 of 10 records (60.0%) are dropped, with 93.8% of the tokens (overlong 6)" in out
    assert "set max_dropped" in out
    assert run(["stats", recipe]) == 0
    assert "6 of 10 samples (60.0%, too long" in capsys.readouterr().out
    assert run(["plan", recipe]) == 1
    assert "more than max_dropped=0.5 allows" in capsys.readouterr().out
    with pytest.raises(PlanError, match="max_dropped"):
        ps.load(recipe, output="numpy")
    allowed = str(write_recipe(tmp_path, max_dropped=0.95))
    assert run(["check", allowed]) == 0
    assert run(["plan", allowed]) == 0
    assert len(ps.load(allowed, output="numpy", rank=0, world_size=1)) == 2


def test_a_change_of_mixture_refuses_a_data_set_that_a_new_loader_would_refuse(
    tmp_path: Path,
) -> None:
    """A store of which 90 % is dropped could be added to a run, and max_dropped did not count there."""
    good = make_store(tmp_path, [5] * 40, name="good")
    lost = make_store(tmp_path, [20] * 36 + [6] * 4, name="lost")
    loader = load({"good": good})
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(PlanError, match=r"dataset 'lost': 36 of 40 records \(90.0%\)"):
        loader.change_mixture({"good": good, "lost": lost})
    assert loader.state_dict() == state  # a refused change changes nothing
    allowed = load({"good": good}, max_dropped=1)
    next(iter(allowed))
    allowed.change_mixture({"good": good, "lost": lost})
    assert len(allowed.journal) == 2
