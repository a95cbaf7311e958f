"""SkyRL's real SFT trainer takes a Loader: its own samples and masks, in an order that survives kills."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("skyrl", reason="make installs it: tests/requirements-no-deps.txt")

EPOCHS, STEPS = 3, 5  # steps of an epoch: 18 samples in batches of 4


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict:
    job = [
        sys.executable,
        "-m",
        "tests.extras.trainers.skyrl_sft_job",
        str(tmp_path_factory.mktemp("skyrl")),
    ]
    done = subprocess.run(job, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def samples_of(steps: list) -> list[str]:
    return sorted(json.dumps(sample) for step in steps for sample in step)


def until_end_of_turn(steps: list) -> list:
    """SkyRL trains all behind the prompt, also the line break that the template prints after the end of the turn."""
    return [[[ids, [*mask[:-1], False]] for ids, mask in step] for step in steps]


def test_samples_and_masks_are_those_of_skyrl(runs: dict) -> None:
    own, whole = runs["own"], runs["whole"]["trained"]
    assert len(own) == len(whole) == EPOCHS * STEPS
    for epoch in range(EPOCHS):
        steps = slice(epoch * STEPS, (epoch + 1) * STEPS)
        assert samples_of(until_end_of_turn(own[steps])) == samples_of(whole[steps])
    assert whole[:STEPS] != whole[STEPS : 2 * STEPS]  # each epoch has an order of its own


def test_a_killed_run_trains_the_same_steps(runs: dict) -> None:
    assert runs["killed"]["trained"] == runs["whole"]["trained"]


def test_an_evaluation_sees_every_sample_once(runs: dict) -> None:
    evaluated = runs["whole"]["evaluated"]
    once = samples_of(runs["whole"]["trained"][:STEPS])
    assert sorted(json.dumps(each) for each in evaluated) == sorted(3 * once)  # at steps 5, 10, 15


def test_what_skyrl_cannot_take_is_refused(runs: dict) -> None:
    refused = runs["refused"]
    assert "batch_size=2, and SkyRL's configuration batch_size=4" in refused["batch"]
    assert "epochs=None, expected 1" in refused["epochs"]
    assert "packing='first_fit', expected 'none'" in refused["packing"]
    assert "rank 0 of 2" in refused["world"]
    assert "labels='shifted', expected 'unshifted'" in refused["labels"]
    assert "penstock_loader.json does not exist" in refused["file"]
