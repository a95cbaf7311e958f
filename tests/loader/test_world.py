"""Which rank a Loader has, and what happens if that is no longer true at its first batch.

tests/extras/trainers/test_launchers.py tries the same with real processes.
"""

import logging
import pickle

import pytest

import penstock as ps
from penstock.errors import PlanError
from penstock.loader.world import RankInfo, check_rank, find_rank

from .arrays import Loader

RECORDS = [{"n": n} for n in range(12)]
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK")
REFUSED = "the Loader was made as rank 0 of 1 .* is now rank 1 of 2 .* pass rank=1, world_size=2"


@pytest.fixture(autouse=True)
def without_a_launcher(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def launched(monkeypatch):
    """Set the environment of a launcher."""

    def launched(**variables: object) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))

    return launched


def make(**options: object) -> ps.Loader:
    return Loader(ps.open(RECORDS), batch_size=2, **options)


def test_a_loader_made_before_the_environment_had_a_rank_is_refused_and_stays_as_it_was(launched):
    """T1: a Loader of the parent process, used in a child to which a launcher gave a rank."""
    loader = make()
    stream = loader.stream()
    _, sampler = make().as_map_dataset()
    sent = pickle.loads(pickle.dumps(make()))
    before = loader.state_dict()
    launched(RANK=1, WORLD_SIZE=2)
    for use in (
        lambda: next(iter(loader)),
        lambda: next(stream),
        lambda: next(iter(sampler)),
        lambda: next(iter(sent)),
        loader.as_dataset,
        loader.as_map_dataset,
    ):
        with pytest.raises(PlanError, match=REFUSED):
            use()
    assert loader.state_dict() == before
    assert make().world.rank == 1


def test_a_loader_that_was_told_its_rank_is_not_refused(launched):
    alone = make(rank=0, world_size=1)
    launched(RANK=1, WORLD_SIZE=2)
    assert len(list(alone)) == 6


def test_a_loader_of_another_rank_is_refused(launched):
    """One rank's Loader, sent to the process of another rank: some rows would be trained twice, others never."""
    launched(RANK=0, WORLD_SIZE=2)
    of_rank_0 = pickle.dumps(make())
    launched(RANK=1)
    with pytest.raises(PlanError, match="rows would be trained twice or not at all"):
        next(iter(pickle.loads(of_rank_0)))


def test_an_environment_that_is_incomplete_later_says_nothing(launched):
    loader = make()
    launched(WORLD_SIZE=2)
    assert len(list(loader)) == 6


def test_the_ranks_of_lightnings_own_launcher(launched):
    """T7: it sets WORLD_SIZE, NODE_RANK and LOCAL_RANK, and no RANK; on the first node LOCAL_RANK is the rank."""
    launched(WORLD_SIZE=4, NODE_RANK=0, LOCAL_RANK=1)
    info = find_rank(None, None)
    assert (info.rank, len(info.members), info.origin) == (1, 4, "environment")
    launched(NODE_RANK=1)  # how many ranks the first node has is not said
    with pytest.raises(PlanError, match=r"RANK=None, WORLD_SIZE=4; .*LoaderModule\(partial"):
        make()


@pytest.mark.parametrize(
    ("launcher", "number", "count"),
    [
        ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
        ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("mpiexec", "PMI_RANK", "PMI_SIZE"),
    ],
)
def test_tasks_that_may_or_may_not_train_together_get_all_rows_and_a_warning(
    launched, caplog, launcher, number, count
):
    launched(**{number: 3, count: 8})
    with caplog.at_level(logging.WARNING, "penstock"):
        assert len(list(make())) == 6
        assert len(list(make())) == 6
    warnings = [text for text in caplog.messages if f"that {launcher} started" in text]
    assert len(warnings) == 1
    assert warnings[0].startswith("this is task 3 of 8 ")
    caplog.clear()
    assert len(list(make(rank=0, world_size=1))) == 6
    assert caplog.messages == []


def test_a_rank_that_an_argument_gave_is_never_doubted(launched):
    launched(RANK=1, WORLD_SIZE=2)
    check_rank(find_rank(5, 6))
    check_rank(RankInfo(world=find_rank(0, 1).world, rank=0, members=(0,), origin="mesh"))
