"""A Trainer that evaluates on a Loader sees every sample once, at every evaluation and on however many ranks."""

import json
from collections import Counter
from pathlib import Path

import pytest

from penstock.extras.trainers.guards import EvalBatches

from .conftest import need, run_job
from .runs import open_loader


def rows(folder: Path, **options: object) -> Counter:
    loader = open_loader(folder, epochs=1, output="numpy", **options)
    return Counter(
        tuple(ids[numbers >= 0].tolist())
        for batch in loader
        for ids, numbers in zip(batch["input_ids"], batch["seq_idx"], strict=True)
        if (numbers >= 0).any()
    )


def test_every_sample_is_evaluated_once(folder):
    need("transformers", "trl")
    run_job("-m", "tests.extras.trainers.evaluations", folder)
    found = json.loads((folder / "found.json").read_text())

    whole = rows(folder, seed=9)
    assert (
        found["hf"]["logged"] == len(found["hf"]["passes"]) == 2
    )  # the second begins at the start again
    for part in found["hf"]["passes"]:
        assert Counter(tuple(row) for row in part if row) == whole
    logged, again, expected = found["hf"]["loss"]
    assert logged == pytest.approx(again, rel=1e-6) and again == pytest.approx(expected, rel=1e-5)
    short, short_expected, long = found["hf"]["several"]
    assert short == pytest.approx(short_expected, rel=1e-5) and long == pytest.approx(
        expected, rel=1e-5
    )
    assert found["hf"]["predicted"] == pytest.approx(expected, rel=1e-5)
    for text, said in zip(
        (
            "epochs=2, expected 1",
            "last_step='drop' leaves samples out",
            "leave output=",
            "leave output=",
            "skip_steps= leaves the samples of 1 steps out",
        ),
        found["hf"]["refused"],
        strict=True,
    ):
        assert text in said

    for part in found["trl"]["passes"]:
        assert Counter(tuple(row) for row in part if row) == rows(folder)
    logged, again, expected = found["trl"]["loss"]
    assert logged == pytest.approx(again, rel=1e-6) and again == pytest.approx(expected, rel=1e-5)

    (mine, loss, steps), (theirs, same, _) = found["ranks"]
    assert loss == same == pytest.approx(found["alone"], rel=1e-5)
    assert (
        len(mine) == len(theirs) == steps and theirs[-1] == [] and mine[-1]
    )  # nothing left for the second rank
    together = Counter(tuple(row) for row in mine + theirs if row)
    assert (
        set(together.values()) == {1} and together.total() == 2 * steps - 1
    )  # not assigned out a second time


def test_an_evaluation_begins_at_the_first_batch_of_its_pass_also_after_a_state_was_loaded(folder):
    pytest.importorskip("torch")
    whole = [batch["input_ids"].tolist() for batch in open_loader(folder, epochs=1)]
    loader = open_loader(folder, epochs=1)
    next(iter(loader))
    resumed = open_loader(folder, epochs=1)
    resumed.load_state_dict(loader.state_dict())
    for _ in range(2):
        assert [batch["input_ids"].tolist() for batch in EvalBatches(resumed)] == whole
