"""SkyRL's real fully asynchronous trainer on Prompts: what is in flight at a kill is not lost, and nothing is trained twice."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.soak

pytest.importorskip("skyrl", reason="make installs it: tests/requirements-no-deps.txt")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict:
    job = [
        sys.executable,
        str(Path(__file__).with_name("skyrl_job.py")),
        str(tmp_path_factory.mktemp("skyrl")),
    ]
    done = subprocess.run(job, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_prompts_in_flight_at_a_kill_are_trained_later_and_none_twice(runs: dict) -> None:
    run = runs["plain"]
    trained = Counter(ordinal for step in run["trained"] for ordinal in step)
    assert trained == Counter(
        range(4 * 20)
    )  # 4 epochs of 23 // 4 mini-batches of 4; what is left over begins the next epoch
    assert run["kills"] >= 3 and run["in_flight_at_kills"] > 0
    assert run["counts"]["done"] == run["counts"]["frontier"] == 80 and run["counts"]["leased"] == 0


def test_prompts_that_skyrl_filters_are_counted_and_not_given_again(runs: dict) -> None:
    run = runs["filtered"]
    trained = Counter(ordinal for step in run["trained"] for ordinal in step)
    counts = run["counts"]
    assert max(trained.values()) == 1 and run["kills"] >= 3
    assert counts["done"] == len(trained) and counts["dropped"]["filtered"] == counts["next"] - len(
        trained
    )
    assert counts["frontier"] == counts["next"] == 80


def test_every_record_has_its_turn_though_an_epoch_is_cut_to_whole_mini_batches(runs: dict) -> None:
    """SkyRL's own loader gives each epoch in one order, and never the records of the incomplete last mini-batch."""
    seen = Counter(runs["plain"]["ids"])
    assert set(seen) == set(range(23)) and sum(seen.values()) == 80


def test_mistakes_are_refused(runs: dict) -> None:
    assert "expected endless Prompts (epochs=None) with repeats=2" in runs["refused"]["repeats"]
    assert "has 23 prompts, which is less than a mini-batch" in runs["refused"]["small"]
    assert "the record has ['id'], expected the key 'prompt'" in runs["refused"]["key"]
    assert (
        "penstock_prompts.json does not exist: this checkpoint was saved without Prompts"
        in runs["refused"]["file"]
    )


def test_m2_prompts_that_skyrl_would_leave_out_are_left_out_or_refused(runs: dict) -> None:
    """M2, relative: SkyRL's own dataset drops prompts longer than trainer.max_prompt_length; the adapter gave them to the model."""
    refused = runs["refused"]
    assert refused["kept"] == refused["kept by skyrl"] == 13  # 500 to 512 characters
    assert (
        "list:14: the prompt is longer than trainer.max_prompt_length=512 tokens" in refused["long"]
    )
