"""Random lives of a Loader that changes its mixture, is killed and resumed; an oracle that only counts what was delivered."""

import itertools
import json
import random
from collections import Counter, defaultdict

import numpy as np
import pytest

import penstock as ps
from penstock.errors import PlanError, PlanMismatch
from tests.laws.worlds import SOAK, check_counters
from tests.loader.test_state import sealed

from .arrays import Loader

NAMES = ("a", "b", "c")
CUTS = ({"packing": "concat"}, {"on_overlong": "split"})
WHOLE = (
    {},
    {"packing": "none"},
    {"packing": "group_4"},
    {"packing": "window_5"},
    {"balance": "block", "balance_rows": 4},
)


@pytest.fixture(scope="module")
def stores(tokenizer_path, tmp_path_factory):
    """Each source with its first 3, 20 and 40 samples."""
    cache, made = tmp_path_factory.mktemp("cache"), {}
    for name in NAMES:
        rng = np.random.default_rng(ord(name))
        records = [{"text": f"{name} {'fox ' * int(rng.integers(1, 12))}"} for _ in range(40)]
        for size in (1, 3, 20, 40):
            made[name, size] = ps.prepare(
                records[:size],
                tokenizer=tokenizer_path,
                template="text",
                cache_dir=cache,
                num_proc=1,
            )
    return made


def rows_of(loader, batch) -> list:
    """The rows of a batch, by the names of their sources."""
    names = [source.name for source in loader.plan.sources]
    rows = [
        [(names[s], *rest) for s, *rest in batch.rows[r].tolist()]
        for r in range(batch.rows.num_rows)
    ]
    return [row for row in rows if row]


def begun(rows: list) -> list[str]:
    """The source of each sample that begins in these rows; here every piece holds a target, so the first one starts at 0."""
    return [name for row in rows for name, _, start, _ in row if start == 0]


class Life:
    """One random history, its deliveries, and which sources each step may have."""

    def __init__(self, seed: int, stores) -> None:
        self.draw, self.stores, self.sizes = random.Random(seed), stores, dict.fromkeys(NAMES, 0)
        chance = self.draw
        self.is_weighted, self.cuts = chance.random() < 0.5, chance.random() < 0.3
        self.options = {
            "batch_size": chance.choice([1, 2, 3, 5]),
            "max_length": 48,
            "block": chance.choice([8, 16, 40]),
            "rank": 0,
            "world_size": 1,
            "last_step": chance.choice(["pad", "drop", "repeat", "wrap"]),
            "epochs": chance.choice([1, 2, None]),
            "prefetch": chance.choice([0, 2]),
            **chance.choice(CUTS if self.cuts else WHOLE),
        }
        if self.is_weighted:
            self.options |= {
                "stop": chance.choice(["first", "all"]),
                "mix_by": chance.choice(["samples", "tokens"]),
            }
        if "balance" not in self.options:
            self.options |= {
                "shuffle": chance.random() < 0.7,
                "shuffle_window": chance.choice(["auto", 1]),
            }
        self.mixture = self.mix()
        self.loader, self.planned, self.steps = self.make(), [(0, set(self.mixture))], []
        self.first, self.given = dict(self.sizes), Counter()

    def mix(self):
        names = self.draw.sample(NAMES, self.draw.randint(1, 3))
        for name in names:
            self.sizes[name] = self.draw.choice(
                [size for size in (1, 3, 20, 40) if size >= self.sizes[name]]
            )
        found = {name: self.stores[name, self.sizes[name]] for name in names}
        return (
            {name: (store, self.draw.choice([1, 2, 5])) for name, store in found.items()}
            if self.is_weighted
            else found
        )

    def make(self):
        return Loader(self.mixture, **self.options)

    def run(self, steps: int = 0) -> None:
        left = steps or self.draw.randint(1, 6)
        for batch in itertools.islice(self.loader, left):
            self.steps.append((batch.step, rows_of(self.loader, batch)))
            self.count(self.steps[-1][1])
            left -= 1
        if left and self.options["last_step"] != "repeat":  # the loop is over
            assert self.counted() == self.given, "dropped samples count as delivered"

    def counted(self) -> Counter:
        """What the loader's counters say, by name."""
        names = [source.name for source in self.loader.plan.sources]
        return Counter(
            {names[source]: n for source, n in self.loader.counters.samples_by_source.items()}
        )

    def count(self, rows: list) -> None:
        """Compare the counters with what this loader has given."""
        check_counters(self.loader.counters)
        self.given.update(begun(rows))
        if self.options["last_step"] != "repeat":  # repeated rows are not told from others here
            assert self.counted() == self.given, f"{self.counted()} != {self.given}"

    def change(self) -> None:
        step, new, sizes = self.loader.state_dict()["step"], self.mix(), dict(self.sizes)
        at = self.draw.choice([None, step + self.draw.randint(0, 5)])
        try:
            self.loader.change_mixture(new, at=at)
        except PlanError as error:
            assert "this pass ends before it" in str(error) or "after the first pass" in str(error)
            known = {source.name: source.num_samples for source in self.loader.plan.sources}
            self.sizes = {name: known.get(name, 0) for name in sizes}
            return
        self.mixture, at = new, step if at is None else at
        self.first = {name: size or self.sizes[name] for name, size in self.first.items()}
        self.planned = [(first, names) for first, names in self.planned if first < at] + [
            (at, set(new))
        ]

    def resume(self) -> None:
        state = json.loads(json.dumps(self.loader.state_dict()))
        self.loader, self.given = self.make(), Counter()
        self.loader.load_state_dict(state)
        assert json.loads(json.dumps(self.loader.state_dict())) == state

    def check(self) -> None:
        assert [step for step, _ in self.steps] == list(range(len(self.steps)))
        for step, rows in (
            self.steps if not self.cuts and self.options["last_step"] != "repeat" else ()
        ):
            names = {name for row in rows for name, *_ in row}
            assert names <= [known for first, known in self.planned if first <= step][-1], (
                f"step {step}: {self.planned}"
            )
        self.replay()
        if self.is_weighted or self.options["last_step"] in ("repeat", "drop"):
            return
        times = defaultdict(Counter)
        for name, sample, start, _ in (
            span for _, rows in self.steps for row in rows for span in row
        ):
            times[name][sample] += start == 0
        for name, found in times.items():
            old = [
                found[sample] for sample in range(self.first[name])
            ]  # samples that came later may be behind
            is_whole = (
                self.loader.finished
                and name in [known for step, known in self.planned if step < len(self.steps)][-1]
            )
            assert max(found.values()) - min(old) <= (not is_whole), f"{name}: {old}"

    def replay(self) -> None:
        again, found = self.make(), []
        if "journal" in (state := self.loader.state_dict()):
            again.load_journal(state)
        while len(found) < len(self.steps):
            before = len(found)
            found += [
                (b.step, rows_of(again, b))
                for b in itertools.islice(again, len(self.steps) - len(found))
            ]
            assert len(found) > before, "the replay is shorter"
        assert found == self.steps


@pytest.mark.parametrize("first", range(0, 1500 if SOAK else 75, 25))
def test_random_lives_deliver_each_source_from_where_it_was_and_are_replayed(stores, first):
    done = 0
    for seed in range(first, first + 25):
        life = Life(seed, stores)
        try:
            for _ in range(life.draw.randint(2, 6)):
                life.draw.choice([life.run, life.change, life.resume])()
            life.run(60)
        except PlanError as error:
            assert "no step" in str(error), (
                f"life {seed}: {error}"
            )  # too few rows for last_step="drop"
            continue
        try:
            life.check()
        except AssertionError as error:
            raise AssertionError(f"life {seed}: {life.options}") from error
        done += 1
    assert done > 15


OPTIONS = {"batch_size": 4, "max_length": 48, "block": 64}


@pytest.mark.parametrize("last_step", ["pad", "drop", "repeat", "wrap"])
def test_a_change_at_a_later_step_comes_at_that_step_also_in_a_later_epoch(stores, last_step):
    loader = Loader({"a": stores["a", 20]}, **OPTIONS, last_step=last_step, epochs=None)
    per_epoch = loader.plan.num_steps(4, epochs=1)
    loader.change_mixture({"b": stores["b", 40]}, at=2 * per_epoch + 1)
    found = [rows_of(loader, batch) for batch in itertools.islice(loader, 2 * per_epoch + 4)]
    names = [{name for row in rows for name, *_ in row} for rows in found]
    assert names == [{"a"}] * (2 * per_epoch + 1) + [{"b"}] * 3


def test_two_planned_changes_come_one_after_the_other(stores):
    loader = Loader({"a": stores["a", 40]}, **OPTIONS, packing="none")
    loader.change_mixture({"b": stores["b", 40]}, at=2)
    loader.change_mixture({"c": stores["c", 40]}, at=4)
    names = [
        "".join(sorted({name for row in rows_of(loader, batch) for name, *_ in row}))
        for batch in loader
    ]
    assert names[:5] == ["a", "a", "b", "b", "c"]
    assert loader.counters.samples_in == 8 + 8 + 40, (
        "samples that a change leaves were counted with their old block"
    )


def test_counters_of_a_resumed_run_do_not_count_what_came_before(stores):
    loader = Loader({"a": stores["a", 40]}, **OPTIONS, packing="none")
    next(iter(loader))
    state, new = loader.state_dict(), {"b": stores["b", 20]}
    changed = Loader(new, **OPTIONS, packing="none")
    changed.load_state_dict(state, changes=True)
    again = Loader({"a": stores["a", 40]}, **OPTIONS, packing="none")
    again.load_state_dict(state)
    again.change_mixture(new)
    for resumed in (changed, again):
        assert resumed.counters.samples_in == 0
        list(resumed)
        assert resumed.counters.samples_in == 20


def test_a_mixture_without_anything_left_in_this_epoch_resumes_in_the_next(stores):
    loader = Loader(
        {"a": stores["a", 1], "b": stores["b", 40]},
        **OPTIONS,
        packing="none",
        shuffle=False,
        epochs=2,
    )
    seen = [row for batch in itertools.islice(loader, 6) for row in rows_of(loader, batch)]
    assert any(name == "a" for row in seen for name, *_ in row)
    loader.change_mixture({"a": stores["a", 1]})
    again = Loader({"a": stores["a", 1]}, **OPTIONS, packing="none", shuffle=False, epochs=2)
    again.load_state_dict(loader.state_dict())
    found = [rows_of(again, batch) for batch in again]
    assert (
        found == [rows_of(loader, batch) for batch in loader] and len(found) == len(found[0]) == 1
    )
    assert found[0][0][0][:2] == ("a", 0)


def test_without_shuffle_a_change_after_the_first_pass_is_refused_and_at_its_end_is_replayed(
    stores,
):
    loader = Loader({"a": stores["a", 20]}, **OPTIONS, shuffle=False)
    first = [rows_of(loader, batch) for batch in loader]
    loader.change_mixture({"a": stores["a", 20], "b": stores["b", 20]})
    second = [rows_of(loader, batch) for batch in loader]
    again = Loader({"a": stores["a", 20], "b": stores["b", 20]}, **OPTIONS, shuffle=False)
    again.load_journal(loader.state_dict())
    assert [[rows_of(again, batch) for batch in again] for _ in range(2)] == [first, second]
    loader = Loader({"a": stores["a", 20]}, **OPTIONS, shuffle=False)
    for _ in range(2):
        list(loader)
    with pytest.raises(PlanError, match="after the first pass of a run with shuffle=False"):
        loader.change_mixture({"b": stores["b", 20]})
    with pytest.raises(PlanError, match="after the first pass of a run with shuffle=False"):
        Loader({"b": stores["b", 20]}, **OPTIONS, shuffle=False).load_state_dict(
            loader.state_dict(), changes=True
        )


def test_the_new_stop_and_mix_by_come_with_the_change_and_other_settings_are_named(stores):
    old = Loader({"a": (stores["a", 40], 1), "b": (stores["b", 20], 1)}, **OPTIONS)
    next(iter(old))
    mixture = {"a": (stores["a", 40], 3), "b": (stores["b", 20], 1)}
    new = Loader(mixture, **OPTIONS, stopping_strategy="all_exhausted", mix_by="tokens")
    new.load_state_dict(old.state_dict(), changes=True)
    assert (new.plan.settings.stopping_strategy, new.plan.settings.mix_by) == (
        "all_exhausted",
        "tokens",
    )
    again = Loader(mixture, **OPTIONS, stopping_strategy="all_exhausted", mix_by="tokens")
    again.load_state_dict(new.state_dict())
    for state in (old.state_dict(), new.state_dict()):
        with pytest.raises(PlanMismatch, match="max_length 48 → 32"):
            Loader({"c": stores["c", 20]}, **{**OPTIONS, "max_length": 32}).load_state_dict(
                state, changes=True
            )


def test_a_table_over_tokens_is_not_one_over_steps(stores):
    table = {"a": (stores["a", 40], {0: 1, 96: 2}), "b": (stores["b", 40], 1)}
    state = Loader(table, **OPTIONS, schedule="tokens").state_dict()
    Loader(table, **{**OPTIONS, "batch_size": 2}, schedule="tokens").load_state_dict(state)
    with pytest.raises(PlanMismatch, match="another mixture now: the table of weights"):
        Loader(table, **OPTIONS).load_state_dict(state)


@pytest.mark.parametrize("method", ["as_dataset", "as_map_dataset"])
def test_a_loader_that_was_made_a_dataset_refuses_a_change_by_name(stores, method):
    pytest.importorskip("torch")
    loader = Loader({"a": stores["a", 40]}, **OPTIONS)
    loader.change_mixture({"b": stores["b", 40]})
    state = loader.state_dict()
    made = getattr(loader, method)()
    with pytest.raises(
        PlanError, match=rf"what {method}\(\) returned would go on with the old one"
    ):
        loader.change_mixture({"a": stores["a", 40]})
    assert loader.state_dict() == state
    other = Loader({"b": stores["b", 40]}, **OPTIONS)
    made = getattr(other, method)()
    with pytest.raises(PlanError, match=rf"what {method}\(\) returned"):
        other.load_state_dict(state)
    if method == "as_map_dataset":
        with pytest.raises(PlanMismatch, match="load the state into the Loader"):
            made[1].load_state_dict({**made[1].state_dict(), "loader": state})


def test_a_state_of_too_many_sources_says_how_to_change_it(stores):
    many = {f"{'long name ' * 4}{number}": stores["a", 20] for number in range(20)}
    state = Loader(many, **OPTIONS).state_dict()
    with pytest.raises(PlanMismatch, match="the state has too many sources to name them"):
        Loader({"b": stores["b", 40]}, **OPTIONS).load_state_dict(state, changes=True)


def test_an_edited_start_of_a_segment_is_refused(stores):
    loader = Loader({"a": stores["a", 40]}, **OPTIONS, packing="none")
    next(iter(loader))
    loader.change_mixture({"b": stores["b", 20]})
    state = json.loads(json.dumps(loader.state_dict()))
    number, at, first, rows, cursors = state["journal"]["start"]
    size, place, ((low, high, start, stop, kept),) = cursors["a"]
    for wrong in (
        [number, at, first, -1, cursors],
        [number, at, [0.0, 1], rows, cursors],
        [number, at, first, rows, {"a": [size, place, [[low, high + 1, start, stop, kept]]]}],
        [number, at, first, rows, {"a": [size, place, [[low, high, stop, start, kept]]]}],
        [number, at, first, rows, {"a": [size, place, [[low, high, start, stop + 64, kept]]]}],
        [number, at, first, rows, {"a": [size, 1 << 70, []]}],
    ):
        damaged = sealed({**state, "journal": {**state["journal"], "start": wrong}})
        with pytest.raises(PlanMismatch, match="the state is damaged: journal"):
            Loader({"b": stores["b", 20]}, **OPTIONS, packing="none").load_state_dict(damaged)


def test_counters_of_a_resume_inside_a_block_are_not_negative_with_a_dropped_tail(stores):
    options = {**OPTIONS, "packing": "none", "last_step": "drop", "batch_size": 9}
    loader = Loader({"a": stores["a", 40]}, **options)
    list(itertools.islice(loader, 3))
    for resumed in (Loader({"a": stores["a", 40]}, **options), loader):
        resumed.load_state_dict(loader.state_dict())
        list(resumed)
    found = resumed.counters  # 27 samples before the state, and the rest after it
    assert (found.samples_in, found.samples_out, dict(found.samples_dropped)) == (
        40,
        36,
        {"last_step": 4},
    )
    again = Loader({"a": stores["a", 40]}, **options)
    again.seek(3)
    list(again)
    assert (again.counters.samples_in, again.counters.samples_out) == (13, 9)


def test_a_loop_broken_off_at_its_last_step_counts_the_dropped_tail_before_the_next_pass(stores):
    loader = Loader(
        {"a": stores["a", 40]},
        **{**OPTIONS, "packing": "none", "last_step": "drop", "batch_size": 9},
    )
    list(itertools.islice(loader, 4))
    assert dict(loader.counters.samples_dropped) == {}
    list(itertools.islice(loader, 1))
    found = loader.counters  # 36 and the last step of the first pass, and a step of 9 of the second
    assert (found.samples_in, found.samples_out, dict(found.samples_dropped)) == (
        49,
        45,
        {"last_step": 4},
    )


def test_skipped_steps_are_counted(stores):
    loader = Loader(
        {"a": stores["a", 40]},
        **{**OPTIONS, "packing": "none", "block": 8, "skip_steps": [0, 1, 4, 9]},
    )
    list(loader)
    found = loader.counters
    assert (found.samples_in, found.samples_out, dict(found.samples_dropped)) == (
        40,
        24,
        {"skipped": 16},
    )


def test_a_loader_that_goes_elsewhere_does_not_count_the_rows_that_wait(stores):
    loader = Loader({"a": stores["a", 40]}, **OPTIONS, packing="none")
    for epoch in (1, 2):
        next(iter(loader))
        loader.set_epoch(epoch)
    assert loader.counters.samples_out == loader.counters.rows == 8
    short = Loader(
        {"a": stores["a", 40]},
        **{**OPTIONS, "packing": "none", "last_step": "drop", "batch_size": 9},
    )
    list(short)
    short.seek(0)  # its last step was counted as dropped, and waits no longer
    assert (short.counters.samples_in, short.counters.samples_out) == (40, 36)


def test_counters_keep_their_sources_when_a_state_brings_others(stores):
    loader = Loader({"a": stores["a", 40]}, **OPTIONS, packing="none")
    next(iter(loader))
    loader.change_mixture({"b": stores["b", 40]})
    other = Loader({"b": stores["b", 40]}, **OPTIONS, packing="none")
    list(itertools.islice(other, 3))
    other.load_state_dict(loader.state_dict())
    assert [source.name for source in other.plan.sources] == ["a", "b"]
    assert other.counters.samples_by_source == {1: 12}
