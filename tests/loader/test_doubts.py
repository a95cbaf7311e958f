"""Seeds of doubt: what went wrong in other loaders, each laid to rest by name.

Elsewhere: off by the prefetch depth (test_loader: state_counts_what_was_handed_over), a second resume (second_and_third_resume),
persistent workers that never see the new epoch (test_dataset).
"""

from collections import Counter

import numpy as np
import pytest

import penstock as ps
from penstock.errors import PlanError

from .arrays import Loader

WORDS = ["fox", "dog", "runs", "over", "away", "lazy", "home", "and"]


@pytest.fixture(scope="module")
def make(tokenizer_path, tmp_path_factory):
    def make(num_records: int, longest: int = 30):
        rng = np.random.default_rng(num_records)
        records = [
            {"text": " ".join(rng.choice(WORDS, 1 + rng.integers(longest)).tolist())}
            for _ in range(num_records)
        ]
        cache_dir = tmp_path_factory.mktemp("cache")
        return ps.prepare(
            records, tokenizer=tokenizer_path, template="text", cache_dir=cache_dir, num_proc=1
        )

    return make


@pytest.fixture(scope="module")
def store(make):
    return make(120)


def ranks(store, world_size: int, batch_size: int = 2, state=None, **options) -> list[ps.Loader]:
    loaders = [
        Loader(
            store, batch_size=batch_size, max_length=64, rank=r, world_size=world_size, **options
        )
        for r in range(world_size)
    ]
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(state)
    return loaders


def take(loaders, steps=None) -> list[list[tuple]]:
    """The rows of all ranks in the next steps, in the global order; all ranks have to take the same number of steps."""
    iterators, rows, taken = [iter(loader) for loader in loaders], [], 0
    while steps is None or taken < steps:
        batches = [next(iterator, None) for iterator in iterators]
        if None in batches:
            assert batches == [None] * len(loaders)
            break
        for place in range(loaders[0].batch_size):
            rows += [[tuple(span) for span in batch.rows[place].tolist()] for batch in batches]
        taken += 1
    for iterator in iterators:
        iterator.close()
    return [row for row in rows if row]


@pytest.mark.parametrize("last_step", ["pad", "drop", "repeat", "wrap"])
@pytest.mark.parametrize("off", [-1, 0, 1])
def test_resume_at_an_epochs_end_neither_drops_nor_replays_one(store, last_step, off):
    options = {"last_step": last_step, "epochs": 3}
    [loader] = ranks(store, 1, **options)
    whole = take(ranks(store, 1, **options))
    [first] = ranks(store, 1, last_step=last_step, epochs=1)
    steps = len(first) + off
    before = take([loader], steps)
    after = take(ranks(store, 1, state=loader.state_dict(), **options))
    assert before + after == whole


def test_a_loader_that_ended_each_epoch_resumes_with_the_next(store):
    options = {"epochs": 3, "per_epoch": True}
    whole = take(ranks(store, 1, epochs=3))
    [loader] = ranks(store, 1, **options)
    seen = take([loader])
    for _ in range(2):
        [loader] = ranks(store, 1, state=loader.state_dict(), **options)
        seen += take([loader])
    assert seen == whole
    assert take(ranks(store, 1, state=loader.state_dict(), **options)) == []


def test_fewer_ranks_need_no_state_of_those_that_are_gone(store):
    whole = take(ranks(store, 1))
    loaders = ranks(store, 8, batch_size=1)
    seen = take(loaders, 2)
    states = [loader.state_dict() for loader in loaders]
    assert all(state == states[0] for state in states)
    loaders = ranks(store, 3, batch_size=1, state=states[5])
    seen += take(loaders, 3)
    seen += take(ranks(store, 1, state=loaders[2].state_dict()))
    assert seen == whole


@pytest.mark.parametrize("packing", ["best_fit", "first_fit", "concat", "none"])
def test_no_shuffle_or_packing_buffer_is_lost_at_any_cut(make, packing):
    """Rows are resumed within a packed block and within a shuffled window: what was not handed over is not gone."""
    small = make(60)
    options = {"packing": packing, "shuffle_window": 1, "block": 16, "on_overlong": "split"}
    whole = take(ranks(small, 1, batch_size=1, **options))
    for done in range(len(whole) + 1):
        [loader] = ranks(small, 1, batch_size=1, **options)
        loader.seek(done)
        assert (
            take(ranks(small, 1, batch_size=3, state=loader.state_dict(), **options))
            == whole[done:]
        )


def test_rows_are_counted_as_rows_and_samples_as_samples(store):
    """A cursor that counts packs where samples were meant repeats, or skips, after each resume."""
    [loader] = ranks(store, 1)
    before = take([loader], 5)
    state = loader.state_dict()
    assert state["rows"] == len(before) == 10
    samples = sum(len(row) for row in before)
    assert samples > 10 and loader.metrics.as_dict()["samples"] == samples
    [again] = ranks(store, 1, state=state)
    after = take([again])
    assert again.state_dict()["rows"] == len(before) + len(after)
    assert Counter(span[1] for row in before + after for span in row) == Counter(range(len(store)))


@pytest.mark.parametrize("last_step", ["pad", "drop", "repeat", "wrap"])
@pytest.mark.parametrize("world_size", [2, 3, 5, 7])
def test_ranks_take_equally_many_steps_so_that_none_waits_for_ever(store, last_step, world_size):
    loaders = ranks(store, world_size, last_step=last_step, epochs=2)
    steps = [sum(1 for _ in loader) for loader in loaders]
    assert steps == [len(loaders[0])] * world_size


def test_a_tail_smaller_than_the_ranks(store):
    [alone] = ranks(store, 1, batch_size=1)
    world_size = len(alone) - 1  # a step takes all rows but one
    loaders = ranks(store, world_size, batch_size=1)
    batches = [list(loader) for loader in loaders]
    assert {len(steps) for steps in batches} == {2}
    last = [len(steps[1].rows.spans) for steps in batches]
    assert last[0] > 0 and set(last[1:]) == {0}
    assert all(
        (steps[1]["labels"] == -100).all() for steps in batches[1:]
    )  # and nothing is trained there
    loaders = ranks(store, world_size, batch_size=1)
    assert take(loaders) == take(ranks(store, 1, batch_size=1))
    assert loaders[0].state_dict()["rows"] == world_size + 1  # padding is not counted


def test_a_source_smaller_than_the_ranks(make):
    tiny = make(2)
    loaders = ranks(tiny, 8, batch_size=3, packing="none")
    assert len(loaders[0]) == 1
    assert sorted(span[1] for row in take(loaders) for span in row) == [0, 1]


def test_an_empty_source_is_an_error_with_a_reason_not_an_epoch_of_nothing(make, store):
    empty = make(0)
    for loader in ranks(empty, 2):
        with pytest.raises(PlanError, match="the run has no step: there are no samples"):
            list(loader)
    with pytest.raises(PlanError, match="gave no step"):
        next(iter(ranks(empty, 1, epochs=None)[0]))
    beside = ranks({"empty": empty, "full": store}, 1)
    assert len(take(beside)) == len(take(ranks(store, 1)))
    with pytest.raises(PlanError, match="source 'empty' has a weight but no samples"):
        ranks({"empty": (empty, 0.5), "full": (store, 0.5)}, 1)


def test_every_sample_dropped_is_an_error_with_the_count(make):
    long = make(20, longest=1)
    for world_size in (1, 3):
        for loader in [
            Loader(long, batch_size=2, max_length=1, rank=r, world_size=world_size)
            for r in range(world_size)
        ]:
            with pytest.raises(
                PlanError, match=r"the run has no step: 20 samples dropped \(100.0%\): overlong"
            ):
                list(loader)
            assert loader.counters.samples_dropped["overlong"] == 20
