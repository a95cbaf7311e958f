"""Ranks that are about to train different things find out before the first batch, and never wait without end."""

import threading
from itertools import count

import pytest

import penstock as ps
from penstock.errors import PlanError, PlanMismatch
from penstock.loader.consistency import FileBoard, agree

from .arrays import Loader

RECORDS = [{"n": n} for n in range(40)]
PLAN = {"plan": "0" * 64, "settings": {"seed": 0}, "step": 0}


def start(*loaders: ps.Loader) -> list[object]:
    """What each loader's first step brings, or the error; each in a thread, as ranks are side by side."""
    found: list[object] = [None] * len(loaders)

    def run(number: int) -> None:
        try:
            found[number] = next(iter(loaders[number])).step
        except PlanMismatch as error:
            found[number] = str(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(loaders))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    monkeypatch.setattr("penstock.loader.consistency.GRACE", 0.2)

    def make(*changes: dict, run_id: str = "run 1/a") -> list[ps.Loader]:
        loaders = []
        for rank, change in enumerate(changes):
            options = {
                "batch_size": 2,
                "rank": rank,
                "world_size": len(changes),
                "run_id": run_id,
                **change,
            }
            loaders.append(Loader(ps.open(options.pop("records", RECORDS)), **options))
            loaders[-1]._number = 0  # ranks are processes, and this is the first loader of each
        return loaders

    return make


def test_ranks_of_one_plan_begin(make):
    loaders = make({}, {}, {})
    assert start(*loaders) == [0, 0, 0]
    assert start(*loaders) == [1, 1, 1]


def test_ranks_compare_at_every_pass(make):
    loaders = make({}, {}, {})
    steps: list[list[int]] = [[] for _ in loaders]

    def run(number: int) -> None:
        for _ in range(3):
            steps[number] += [batch.step for batch in loaders[number]]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(loaders))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert steps == [list(range(3 * len(loaders[0])))] * 3
    loaders[1].set_epoch(7)
    assert all(
        "epoch 3 → 7" in str(found) or "epoch 7 → 3" in str(found)
        for found in start(*loaders[:2], loaders[2])
    )


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"seed": 5}, "seed 0 → 5"),
        ({"batch_size": 3}, "batch_size 2 → 3"),
        ({"epochs": 2}, "epochs 1 → 2"),
        ({"skip_steps": [4]}, "skip_steps [] → [4]"),
        ({"records": RECORDS[1:]}, "content of source 'data'"),
        ({"last_step": "drop"}, 'last_step "pad" → "drop"'),
        (
            {"balance": "none"},
            'balance "rank" → "none"',
        ),  # not in the plan's fingerprint, and rows would be lost
        ({"balance": "block"}, 'balance "rank" → "block"'),
        ({"cost_linear": 7}, "cost_linear 24576 → 7"),
    ],
)
def test_a_rank_that_differs_is_named_with_what_differs(make, change, field):
    first, second = start(*make({}, change))
    assert f"rank 0 → rank 1: {field}" in first
    assert "rank 1 → rank 0" in second


def test_a_loader_that_one_rank_makes_for_itself_is_not_waited_for(make, monkeypatch):
    options = {"batch_size": 2, "rank": 0, "world_size": 2, "run_id": "run"}
    monkeypatch.setattr("penstock.loader.loader._NUMBERS", count(7))
    first = Loader(ps.open(RECORDS), **options)
    Loader(ps.open(RECORDS), batch_size=2, rank=0, world_size=1)
    Loader(ps.open(RECORDS), batch_size=2, rank=0, world_size=2)  # without a name no rank is met
    assert (first._number, Loader(ps.open(RECORDS), **options)._number) == (7, 8)


def test_a_rank_that_resumed_elsewhere_is_named(make):
    loaders = make({}, {})
    loaders[1].seek(3)
    assert "step 0 → 3" in start(*loaders)[0]


def test_files_of_an_earlier_start_do_not_count(make):
    assert start(*make({}, {})) == [0, 0]
    assert start(*make({"seed": 1}, {"seed": 1})) == [
        0,
        0,
    ]  # under the same name, and both have changed


def test_a_rank_may_be_late_where_an_earlier_start_left_its_file(tmp_path):
    """Resumed under the same name, all ranks are at another step than their old files say; one loads its checkpoint for long."""

    def begin(plans):
        boards = [FileBoard(tmp_path, "run", "0-1") for _ in plans]
        found = [None] * len(plans)

        def run(rank):
            try:
                agree(plans[rank], rank=rank, others=range(2), board=boards[rank], patience=60)
                found[rank] = "agreed"
            except PlanMismatch as error:
                found[rank] = str(error)

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
        threads[0].start()
        if (old := tmp_path / "runs/run-0/0-1/1.json").exists():
            early = threads[0]
            early.join(1.0)  # looks at the old file more than once
            assert early.is_alive() and old.exists()
        threads[1].start()
        for thread in threads:
            thread.join()
        return found

    assert begin([PLAN, PLAN]) == ["agreed", "agreed"]
    assert begin([PLAN, PLAN]) == [
        "agreed",
        "agreed",
    ]  # the old file says the same: its rank is waited for, too
    assert begin([{**PLAN, "step": 7}, {**PLAN, "step": 7}]) == ["agreed", "agreed"]
    first, second = begin([{**PLAN, "step": 9}, {**PLAN, "step": 8}])
    assert "rank 0 → rank 1: step 9 → 8" in first and "rank 1 → rank 0: step 8 → 9" in second


def test_a_rank_that_has_failed_already_is_not_waited_for_without_end(make):
    assert "seed 0 → 5" in start(*make({}, {"seed": 5}))[0]
    late = make({}, {"seed": 6})[1]
    assert "rank 1 → rank 0: seed 6 → 0" in start(late)[0]


def test_a_rank_that_does_not_come_is_an_error_that_names_it(tmp_path):
    board = FileBoard(tmp_path, "run", "0-1")
    with pytest.raises(PlanMismatch, match=r"rank 0 has waited 0 s for ranks \[1, 2\]"):
        agree(PLAN, rank=0, others=range(3), board=board, patience=0.1)


def test_without_a_name_for_the_run_nobody_waits(make):
    loaders = make({}, {}, run_id=None)
    assert next(iter(loaders[0])).step == 0


def test_the_name_that_torchrun_gives_is_enough(make, monkeypatch):
    for name, value in {
        "RANK": "2",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PENSTOCK_PATIENCE", "0.1")
    ranks = {"rank": None, "world_size": None}
    [loader] = make(ranks, run_id=None)
    assert next(iter(loader)).step == 0  # no launcher, no name: no rank to meet
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert next(iter(loader)).step == 1  # what torchrun says when the run has no name
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "7f3a")
    with pytest.raises(
        PlanMismatch, match=r"rank 2 has waited 0 s for ranks \[3\]"
    ):  # those of this node only
        next(iter(loader))


def test_a_cache_that_cannot_be_written_to_is_a_hindrance_only_where_a_comparison_was_asked_for(
    make, tmp_path, monkeypatch, caplog
):
    (tmp_path / "runs").write_text("in the way, also of root")
    with pytest.raises(
        PlanError,
        match=r"compare their plans in .*runs.*, which cannot be written to: .*leave out run_id",
    ):
        next(iter(make({}, {})[0]))
    environment = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "7f3a"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    [loader] = make({"rank": None, "world_size": None}, run_id=None)
    assert next(iter(loader)).step == 0
    assert "cannot be written to, so ranks do not compare their plans" in caplog.text


def test_a_mesh_says_it_alone():
    with pytest.raises(PlanError, match="leave out rank, world_size and model_parallel_size"):
        Loader(ps.open(RECORDS), batch_size=2, mesh="dp", rank=0, world_size=2)
