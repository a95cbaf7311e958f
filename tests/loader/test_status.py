"""What a running job writes about itself under its run_id, for the viewer: small, at most once a second, never in the way."""

import itertools
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.errors import PlanError
from penstock.loader.status import StatusFile, read_status, run_folder, run_ids


@pytest.fixture
def make(
    write_jsonl: Callable[..., Path], tokenizer_path: Path, tmp_path: Path
) -> Callable[..., ps.Loader]:
    path = write_jsonl([{"text": "the quick brown fox " * (1 + row % 5)} for row in range(80)])
    store = ps.prepare(
        path,
        tokenizer=tokenizer_path,
        template="text",
        cache_dir=tmp_path / "cache",
        num_proc=1,
        progress="none",
    )

    def loader(**options: Any) -> ps.Loader:
        given = {
            "batch_size": 2,
            "max_length": 64,
            "rank": 0,
            "world_size": 1,
            "output": "numpy",
            **options,
        }
        return ps.Loader({"data": store}, **given)

    return loader


def files(root: Path) -> list[str]:
    return (
        sorted(path.name for path in (root / "runs").rglob("*") if path.is_file())
        if (root / "runs").exists()
        else []
    )


def test_without_a_run_id_nothing_is_written(
    make: Callable[..., ps.Loader], tmp_path: Path
) -> None:
    list(make())
    assert files(tmp_path / "cache") == [] and run_ids(tmp_path / "cache") == []


def test_the_state_says_where_the_run_is_and_that_it_has_finished(
    make: Callable[..., ps.Loader], tmp_path: Path
) -> None:
    loader = make(run_id="my run/1")
    batches = iter(loader)
    next(batches)
    (state,) = read_status(tmp_path / "cache", "my run/1")
    assert (state["step"], state["epoch"], state["finished"], state["rank"]) == (1, 0, False, 0)
    assert state["plan"] == loader.plan.fingerprint and state["begun"] <= state["written"]
    count = 1 + sum(1 for _ in batches)
    (state,) = read_status(tmp_path / "cache", "my run/1")
    assert state["step"] == count == len(loader) and state["finished"] is True
    assert state["metrics"] == loader.metrics.as_dict()
    assert (
        run_ids(tmp_path / "cache") == ["my run/1"]
        and read_status(tmp_path / "cache", "my run_1") == []
    )
    assert files(tmp_path / "cache") == [f"{loader.plan.fingerprint[:8]}-0.json"], (
        "no draft is left"
    )


def test_between_two_writes_lies_a_second(
    make: Callable[..., ps.Loader], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, writes = [1000.0], []
    monkeypatch.setattr("penstock.loader.status.time.monotonic", lambda: now[0])
    real = StatusFile.write
    monkeypatch.setattr(
        StatusFile, "write", lambda self, state: (writes.append(now[0]), real(self, state))
    )
    for _ in make(run_id="run"):
        now[0] += 0.3
    *during, last = writes
    assert len(during) >= 3 and all(
        after - before >= 1.0 for before, after in itertools.pairwise(during)
    )
    assert last - during[-1] <= 1.3


def test_ranks_and_plans_of_one_run_have_files_of_their_own(
    make: Callable[..., ps.Loader], tmp_path: Path
) -> None:
    ranks = [make(run_id="run", rank=rank, world_size=2) for rank in (0, 1)]
    threads = [threading.Thread(target=list, args=(loader,)) for loader in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    list(make(run_id="run", max_length=32))
    found = read_status(tmp_path / "cache", "run")
    assert [
        (state["rank"], state["world_size"])
        for state in found
        if state["plan"] == ranks[0].plan.fingerprint
    ] == [
        (0, 2),
        (1, 2),
    ]
    assert len(found) == 3


def test_a_run_goes_on_where_its_state_cannot_be_written(
    make: Callable[..., ps.Loader], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache" / "runs").write_text("in the way")
    loader = make(run_id="run")
    assert len(list(loader)) == len(loader)
    said = [
        record.getMessage()
        for record in caplog.records
        if "penstock view does not show it" in record.getMessage()
    ]
    assert len(said) == 1


def test_a_damaged_state_is_named(tmp_path: Path) -> None:
    path = run_folder(tmp_path, "run") / "live" / "x-0.json"
    path.parent.mkdir(parents=True)
    for text in ("{", "[]", '{"version": 1}'):
        path.write_text(text)
        with pytest.raises(
            PlanError, match=r"x-0\.json: not the state of a run: .*; remove the file"
        ):
            read_status(tmp_path, "run")
        assert run_ids(tmp_path) == []
    path.write_text(json.dumps({"version": 99, "run_id": "run", "written": 1.0}))
    assert read_status(tmp_path, "run") == []
