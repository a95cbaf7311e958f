"""A loader that has finished starts its next pass when it is iterated over again, and its state is exact in every pass."""

import json
import os
import random
import time
from dataclasses import replace
from itertools import chain, islice

import numpy as np
import pytest

import penstock as ps
from penstock.errors import PlanError
from penstock.loader.run import Phase
from penstock.testing import check_resume

from .arrays import Loader

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, IterableDataset, get_worker_info  # noqa: E402

WORDS = ["fox", "dog", "runs", "over", "away", "lazy", "home", "and"]
OPTIONS = {"batch_size": 2, "max_length": 48}


@pytest.fixture(scope="module")
def store(tokenizer_path, tmp_path_factory):
    rng = np.random.default_rng(5)
    records = [
        {"text": " ".join(rng.choice(WORDS, 1 + rng.integers(30)).tolist())} for _ in range(90)
    ]
    cache_dir = tmp_path_factory.mktemp("cache")
    return ps.prepare(
        records, tokenizer=tokenizer_path, template="text", cache_dir=cache_dir, num_proc=1
    )


def rows(batch) -> list:
    return [batch.rows[r].tolist() for r in range(len(batch.rows))]


def contents(batches) -> list:
    return [(batch.step, rows(batch)) for batch in batches]


def without_steps(found: list) -> list:
    return [content for _, content in found]


def test_a_loop_for_each_epoch_gets_every_batch_each_time(store):
    loader = Loader(store, **OPTIONS, shuffle=False)
    loops = [contents(loader) for _ in range(3)]
    assert [len(loop) for loop in loops] == [len(loader)] * 3 and len(loader) > 5
    assert without_steps(loops[0]) == without_steps(loops[1]) == without_steps(loops[2])
    assert [step for loop in loops for step, _ in loop] == list(range(3 * len(loader)))


@pytest.mark.parametrize("last_step", ["pad", "drop", "repeat", "wrap"])
@pytest.mark.parametrize("epochs", [1, 2])
def test_with_shuffle_a_pass_covers_the_next_epochs(store, last_step, epochs):
    whole = contents(
        Loader(store, **OPTIONS, last_step=last_step, epochs=6, per_epoch=last_step != "wrap")
    )
    loader = Loader(store, **OPTIONS, last_step=last_step, epochs=epochs)
    loops = [contents(loader) for _ in range(3)]
    if last_step == "wrap":  # a pass ends with its last epoch, so it is a run of its own
        first = contents(Loader(store, **OPTIONS, last_step=last_step, epochs=epochs))
        assert loops[0] == first and without_steps(loops[1]) != without_steps(first)
        return
    by_epoch = Loader(store, **OPTIONS, last_step=last_step, epochs=6, per_epoch=True)
    expected = [contents(by_epoch) for _ in range(3 * epochs)]
    assert whole == expected[0]
    assert loops == [[*chain(*expected[p * epochs : (p + 1) * epochs])] for p in range(3)]


@pytest.mark.parametrize("last_step", ["pad", "drop"])
def test_a_loop_that_breaks_at_its_last_batch_has_finished(store, last_step):
    loader = Loader(store, **OPTIONS, last_step=last_step)
    assert not loader.finished and loader.steps_left == len(loader)
    for batch in loader:
        if batch.step == len(loader) - 1:
            break
    assert loader.finished and loader.steps_left == 0
    length = len(loader)
    assert next(iter(loader)).step == length
    assert not loader.finished and loader.steps_left == len(loader) - 1


def test_a_loop_that_was_broken_off_goes_on(store):
    whole = Loader(store, **OPTIONS)
    expected = contents(whole) + contents(whole)
    loader, found = Loader(store, **OPTIONS), []
    while len(found) < len(expected):
        found += contents(islice(loader, 4))
    assert found[: len(expected)] == expected


@pytest.mark.parametrize(
    "options",
    [{"shuffle": False}, {"epochs": 2}, {"last_step": "drop"}, {"per_epoch": True, "epochs": 2}],
)
def test_a_cut_in_any_pass_is_resumed_exactly(store, options):
    loader = Loader(store, **OPTIONS, **options)
    loops = [[] for _ in range(4)]
    states = []  # (loop, batches handed over in it, state)
    for number, loop in enumerate(loops):
        for batch in loader:
            loop.append((batch.step, rows(batch)))
            states.append((number, len(loop), loader.state_dict()))
    for number, done, state in states[:: len(states) // 23]:
        again = Loader(store, **OPTIONS, **options)
        again.load_state_dict(json.loads(json.dumps(state)))
        assert again.state_dict() == state
        rest = contents(again)
        is_new_epoch = "per_epoch" in options and done == len(loops[number]) and number % 2 == 0
        assert rest == (loops[number + 1] if is_new_epoch else loops[number][done:])
        after = number + 1 + is_new_epoch
        if after < len(loops):
            assert contents(again) == loops[after]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": False},
        {"last_step": "drop", "epochs": 2},
        {"last_step": "wrap", "epochs": 2},
    ],
)
def test_a_cut_in_a_later_pass_is_resumed_on_other_ranks(store, options):
    def make(rank: int, world_size: int) -> ps.Loader:
        return Loader(
            store, batch_size=2, max_length=48, rank=rank, world_size=world_size, **options
        )

    check_resume(make, cuts=5, passes=3)


def test_a_loader_that_forgets_its_pass_is_found_out(store):
    class Forgetful(ps.Loader):
        def __iter__(self):
            here = self.run.cursor
            if self.run.phase is Phase.LOADED and here.pass_step:
                moved = replace(here, position=replace(here.position, epoch=0))
                self.run = replace(self.run, cursor=moved)
            return super().__iter__()

    def make(rank: int, world_size: int) -> ps.Loader:
        return Forgetful(store, **OPTIONS, output="numpy", rank=rank, world_size=world_size)

    check_resume(make, cuts=2, world_sizes=(1,))
    with pytest.raises(AssertionError, match="cut after step"):
        check_resume(make, cuts=3, world_sizes=(1,), passes=2)


def test_the_state_of_a_finished_pass_leaves_nothing_and_then_the_next_pass(store):
    loader = Loader(store, **OPTIONS)
    first, second = contents(loader), contents(loader)
    done = Loader(store, **OPTIONS)
    list(done)
    state = done.state_dict()
    again = Loader(store, **OPTIONS)
    again.load_state_dict(state)
    assert again.finished and len(again) == len(first) and again.steps_left == 0
    assert contents(again) == [] and contents(again) == second
    more = Loader(store, **OPTIONS, epochs=2)  # the same run, made longer
    more.load_state_dict(state)
    assert not more.finished and len(more) == len(first) + len(second)
    assert contents(more) == second and more.finished


def test_set_epoch_chooses_a_pass_as_with_a_sampler_of_torch(store):
    by_epoch = Loader(store, **OPTIONS, epochs=4, per_epoch=True)
    expected = [without_steps(contents(by_epoch)) for _ in range(4)]
    loader = Loader(store, **OPTIONS)
    for epoch in (0, 1, 2, 2, 0, 3):
        loader.set_epoch(epoch)
        assert len(loader) == len(expected[epoch])
        found = list(loader)
        assert without_steps(contents(found)) == expected[epoch]
        assert loader.explain(found[1].step) == found[1].provenance
    state = loader.state_dict()  # at the end of epoch 3
    for per_epoch, epochs in ((False, 1), (True, 4), (True, 9)):
        again = Loader(store, **OPTIONS, epochs=epochs, per_epoch=per_epoch)
        again.load_state_dict(state)
        again.set_epoch(3)
        assert contents(again) == []
        again.set_epoch(2)
        assert without_steps(contents(again)) == expected[2]


def test_steps_of_every_pass_can_be_explained_and_sought(store):
    loader = Loader(store, **OPTIONS)
    first_pass = [*loader]
    found = [*first_pass, *loader]
    for batch in found[:: len(found) // 9]:
        assert loader.explain(batch.step) == batch.provenance
    with pytest.raises(
        PlanError, match=f"cannot seek to step {len(found) + 1}: the run has {len(found)} steps"
    ):
        loader.seek(len(found) + 1)
    loader.seek(found[-3].step)
    assert contents(loader) == contents(found[-3:])
    loader.seek(3)  # a step of the first pass
    assert contents(loader) == contents(first_pass[3:])


def test_an_evaluation_that_ends_early_can_start_over(store):
    loader = Loader(store, **OPTIONS)
    seen = []
    for limit in (2, 3, None, 2, None):
        loader.restart()
        seen.append(contents(islice(loader, limit)))
    assert seen == [seen[2][:2], seen[2][:3], seen[2], seen[2][:2], seen[2]] and len(
        seen[2]
    ) == len(loader)
    other = Loader(store, **OPTIONS)
    other.load_state_dict({**loader.state_dict()})
    other.restart()
    assert contents(other) == seen[2]


def test_skipped_steps_are_passed_over_in_their_pass(store):
    length = len(Loader(store, **OPTIONS, shuffle=False))
    skip = [length - 1, length, length + 3, 2 * length - 2, 2 * length - 1]
    loader = Loader(store, **OPTIONS, shuffle=False, skip_steps=skip)
    steps = [[batch.step for batch in loader] for _ in range(3)]
    assert steps[0] == list(range(length - 1))
    assert [step for loop in steps for step in loop] == [
        step for step in range(3 * length) if step not in skip
    ]


def test_threads_hand_over_the_same_passes(store):
    expected = Loader(store, **OPTIONS)
    loops = [contents(expected) for _ in range(3)]
    for options in ({"prefetch": 5}, {"prefetch": 0}):
        loader = Loader(store, **OPTIONS, **options)
        assert [contents(loader) for _ in range(3)] == loops
        assert loader.counters == expected.counters
        mine, theirs = loader.metrics.as_dict(), expected.metrics.as_dict()
        assert {**mine, "wait_seconds": 0} == {**theirs, "wait_seconds": 0}
        assert loader.state_dict() == expected.state_dict()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_dataloader_of_ones_own_gets_the_next_pass_each_time(store, workers, persistent):
    loader = Loader(store, **OPTIONS)
    loops = [contents(loader) for _ in range(4)]
    options = {"batch_size": None, "collate_fn": lambda x: x, "num_workers": workers}
    own = DataLoader(
        Loader(store, **OPTIONS).as_dataset(),
        **options,
        persistent_workers=persistent and workers > 0,
    )
    assert [contents(own) for _ in range(2)] == loops[:2]
    next(iter(own))  # broken off
    assert contents(own) == loops[3]


class InTurn(IterableDataset):
    """Steps whose worker `late[loop]` begins after the other one; or, where `never`, is still waiting when the loop is left."""

    def __init__(self, steps, folder, *, late, never=()):
        self.steps, self.folder, self.late, self.never = steps, folder, late, never
        self.loop = torch.zeros(1, dtype=torch.int64).share_memory_()

    def __iter__(self):
        loop, worker = int(self.loop), get_worker_info().id
        if worker == self.late[loop]:
            awaited = f"left {loop}" if loop in self.never else f"{loop} begun by {1 - worker}"
            deadline = time.monotonic() + 120
            while not (self.folder / awaited).exists():
                assert time.monotonic() < deadline, awaited
                time.sleep(0.01)
            if loop in self.never:
                os._exit(0)
        made = iter(self.steps)
        (self.folder / f"{loop} begun by {worker}").touch()
        return made


def loops_in_turn(store, folder, *, taken, persistent, **order):
    """What a DataLoader of two workers hands over in each loop; `taken`: batches, None for all."""
    data = InTurn(Loader(store, **OPTIONS).as_dataset(), folder, **order)
    own = DataLoader(
        data,
        batch_size=None,
        collate_fn=lambda x: x,
        num_workers=2,
        prefetch_factor=1,
        persistent_workers=persistent,
    )
    for loop, batches in enumerate(taken):
        data.loop.fill_(loop)
        turns = iter(own)
        yield contents(islice(turns, batches))
        (folder / f"left {loop}").touch()
        del turns


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("late", [(1, 1, 1), (0, 0, 0), (1, 0, 1), (0, 1, 0)])
def test_a_worker_that_starts_late_joins_the_pass_that_the_other_has_begun(
    store, tmp_path, late, persistent
):
    loader = Loader(store, **OPTIONS)
    expected = [contents(loader) for _ in range(3)]
    assert (
        list(loops_in_turn(store, tmp_path, taken=(None,) * 3, late=late, persistent=persistent))
        == expected
    )


def test_a_worker_that_never_started_in_a_loop_that_was_left_is_in_the_right_pass_in_the_next(
    store, tmp_path
):
    loader = Loader(store, **OPTIONS)
    first, second, third = (contents(loader) for _ in range(3))
    found = list(
        loops_in_turn(
            store, tmp_path, taken=(1, None, None), late=(1, 0, 1), never=(0,), persistent=False
        )
    )
    assert found == [first[:1], second, third]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("cut", [0, 5, None])
def test_a_stateful_dataloader_resumes_in_a_later_pass(store, workers, cut):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def make():
        steps = Loader(store, **OPTIONS).as_dataset()
        return stateful.StatefulDataLoader(
            steps, batch_size=None, collate_fn=lambda x: x, num_workers=workers
        )

    loader = Loader(store, **OPTIONS)
    loops = [contents(loader) for _ in range(4)]
    first = make()
    assert contents(first) == loops[0]
    taken = iter(first)
    assert contents(islice(taken, cut)) == loops[1][:cut]
    state = first.state_dict()
    again = make()
    again.load_state_dict(state)
    expected = (
        loops[1][cut:] if cut is not None else loops[2]
    )  # its own rule: a finished state begins the next one
    assert contents(again) == expected
    assert contents(again) == loops[2 if cut is not None else 3]


def test_an_uneven_pass_is_refused_before_its_first_step(store):
    length = len(Loader(store, batch_size=1, max_length=48, shuffle=False))
    uneven = next(size for size in range(2, length) if length % size)
    for epochs in (1, None):
        with pytest.raises(ps.errors.UnevenTail, match="do not divide into steps"):
            Loader(
                store,
                batch_size=uneven,
                max_length=48,
                last_step="error",
                shuffle=False,
                epochs=epochs,
            )
    loader = Loader(store, batch_size=1, max_length=48, last_step="error", shuffle=False)
    assert [len(list(loader)) for _ in range(2)] == [length, length]


def test_random_passes_cuts_and_ranks_give_one_uninterrupted_run(store):
    """Three passes, cut at random places and gone on with by other numbers of ranks and rows, against one run."""
    for seed in range(12):
        chance = random.Random(seed)
        epochs, shuffle = chance.choice((1, 1, 2)), chance.random() < 0.7
        options = {"max_length": 48, "epochs": epochs, "shuffle": shuffle, "seed": seed}
        options["packing"] = chance.choice(("best_fit", "none", "concat"))
        options["block"] = chance.choice((16, 65_536))
        alone = Loader(store, batch_size=1, **options)
        whole = [[content for batch in alone for content in rows(batch)] for _ in range(3)]
        for expected in whole:
            found, state = [], None if expected is whole[0] else state  # noqa: F821  # of the pass before
            while len(found) < len(expected):
                world_size, batch_size = chance.randint(1, 3), chance.randint(1, 3)
                ranks = [
                    Loader(
                        store, batch_size=batch_size, **options, rank=rank, world_size=world_size
                    )
                    for rank in range(world_size)
                ]
                for rank in ranks:
                    if state is not None:
                        rank.load_state_dict(json.loads(json.dumps(state)))
                        if not found:
                            assert list(rank) == []  # nothing is left of the pass before
                steps = chance.randint(1, 8)
                for batches in islice(zip(*ranks, strict=True), steps):
                    placed = {
                        place: row
                        for each in batches
                        for place, row in zip(each.places, rows(each), strict=True)
                    }
                    found += [placed[place] for place in sorted(placed) if placed[place]]
                assert len({json.dumps(rank.state_dict(), sort_keys=True) for rank in ranks}) == 1
                state = ranks[0].state_dict()
            assert found == expected, f"seed {seed}"
