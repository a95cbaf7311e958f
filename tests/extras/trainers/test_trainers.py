"""A training that was killed and resumed through its framework's own checkpoint trains what an uninterrupted one does, batch by batch."""

import json
from pathlib import Path

import pytest

from tests.policy import first_in_short_runs

from .conftest import need, run_job
from .runs import DIE_AT, RUNS, open_loader

NEEDS = {
    "ranks": ["transformers", "accelerate"],
    "hf": ["transformers", "accelerate"],
    "trl": ["trl", "datasets"],
    "accelerate": ["accelerate", "transformers"],
    "lightning": ["lightning", "transformers"],
    "torchdata": ["torchdata"],
}


def drive(name: str, folder: Path) -> None:
    need(*NEEDS[name])
    run_job("-m", "tests.extras.trainers.runs", name, folder)


def logged(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("name", first_in_short_runs(RUNS))
def test_killed_and_resumed_it_trains_the_same_batches(name, folder):
    drive(name, folder)
    lines = {part: logged(folder / f"{part}.jsonl") for part in ("whole", "cut", "rest")}
    loader = open_loader(folder, output="numpy")
    assert [line["ids"] for line in lines["whole"]] == [
        batch["input_ids"].tolist() for batch in loader
    ]
    assert len(lines["cut"]) == DIE_AT and lines["cut"] == lines["whole"][:DIE_AT]
    kept = len(lines["whole"]) - len(lines["rest"])
    assert 0 < kept < DIE_AT  # it went on from a checkpoint, not from the start
    assert lines["rest"] == lines["whole"][kept:]  # the losses too, to the last bit


@pytest.mark.soak
def test_the_trainer_on_two_ranks_is_killed_and_goes_on_with_one(folder):
    drive("ranks", folder)
    whole = [
        batch["input_ids"].tolist() for batch in open_loader(folder, output="numpy", batch_size=4)
    ]
    cut = [[line["ids"] for line in logged(folder / f"cut-{rank}.jsonl")] for rank in range(2)]
    steps = min(map(len, cut))
    assert steps >= DIE_AT - 1
    ranks = [
        open_loader(folder, output="numpy", batch_size=2, rank=rank, world_size=2)
        for rank in range(2)
    ]
    for step, *both in zip(
        range(steps), *ranks, strict=False
    ):  # the Trainer did not deal them out again
        assert [cut[rank][step] for rank in range(2)] == [
            batch["input_ids"].tolist() for batch in both
        ]
        assert sorted(cut[0][step] + cut[1][step]) == sorted(whole[step])
    rest = [line["ids"] for line in logged(folder / "rest.jsonl")]
    assert 0 < len(whole) - len(rest) < DIE_AT
    assert rest == whole[len(whole) - len(rest) :]
