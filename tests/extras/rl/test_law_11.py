"""Law 11: over any history of leases, kills and resumes, every prompt of an epoch is trained once or dropped with a reason.

The oracle keeps what each worker holds and what the weights have seen.  A kill takes both back to the last checkpoint, as it takes the
weights back; it never asks the package what should have happened.
"""

import json
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import penstock as ps
from penstock.errors import LeaseError, PlanMismatch
from penstock.rl import Prompt, Prompts
from tests.laws.worlds import examples

LEASE = 10.0
WORKERS = ["a", "b", "c"]
REASONS = ["zero_variance", "too_long"]


class Histories(RuleBasedStateMachine):
    """Workers, a trainer and their accidents."""

    prompts: Prompts

    @initialize(
        size=st.integers(1, 40),
        epochs=st.integers(1, 3),
        seed=st.integers(0, 5),
        shuffle=st.booleans(),
        lease=st.sampled_from([None, LEASE]),
    )
    def start(self, size, epochs, seed, shuffle, lease):
        self.size, self.epochs, self.total, self.lease = size, epochs, size * epochs, lease
        self.make = lambda: Prompts(
            ps.open([{"id": n} for n in range(size)]),
            epochs=epochs,
            seed=seed,
            shuffle=shuffle,
            lease=lease,
            repeats=2,
            clock=lambda: self.now,
        )
        self.now, self.prompts = 0.0, self.make()
        self.held: list[
            tuple[Prompt, str, float]
        ] = []  # prompt, worker, time at which its lease runs out
        self.over: list[
            Prompt
        ] = []  # leases that have ended, which a slow worker may still believe in
        self.records: dict[int, tuple[int, int]] = {}  # ordinal → epoch and id, as first seen
        self.fresh, self.again = 0, {}  # the next ordinal; ordinal → its next attempt
        self.trained: Counter[int] = Counter()
        self.dropped: dict[int, str] = {}
        self.checkpoint()

    def due(self):
        return float("inf") if self.lease is None else self.now + self.lease

    # Workers

    @rule(count=st.integers(1, 12), worker=st.sampled_from(WORKERS))
    def take(self, count, worker):
        overdue = {each.ordinal: each.attempt + 1 for each, _, due in self.held if due <= self.now}
        again = sorted((self.again | overdue).items())[:count]
        new = [(n, 0) for n in range(self.fresh, min(self.total, self.fresh + count - len(again)))]
        given = self.prompts.take(count, to=worker)
        assert [(each.ordinal, each.attempt) for each in given] == [*again, *new]
        chosen = {ordinal for ordinal, _ in again}
        self.over += [each for each, _, _ in self.held if each.ordinal in chosen]
        self.held = [held for held in self.held if held[0].ordinal not in chosen]
        self.again = {n: attempt for n, attempt in self.again.items() if n not in chosen}
        self.fresh += len(new)
        for each in given:
            assert self.records.setdefault(each.ordinal, (each.epoch, each.record["id"])) == (
                each.epoch,
                each.record["id"],
            )
        self.held += [(each, worker, self.due()) for each in given]

    def choose(self, data):
        if not self.held:
            return []
        chosen = data.draw(st.lists(st.integers(0, len(self.held) - 1), unique=True, max_size=8))
        found = [self.held[n] for n in chosen]
        self.held = [held for n, held in enumerate(self.held) if n not in chosen]
        return found

    @rule(data=st.data(), by_ordinal=st.booleans())
    def train(self, data, by_ordinal):
        """The trainer gets rollouts, and with them some of leases that are over."""
        chosen = [each for each, _, _ in self.choose(data)]
        late = (
            data.draw(st.lists(st.sampled_from(self.over), max_size=3, unique_by=id))
            if self.over
            else []
        )
        assert self.prompts.accept([*chosen, *late]) == [each.ordinal for each in chosen]
        self.now += data.draw(
            st.sampled_from([0.0, LEASE * 2])
        )  # the step takes longer than the lease
        self.take(data.draw(st.integers(1, 4)), "c")  # another worker meanwhile
        self.prompts.done([each.ordinal for each in chosen] if by_ordinal else chosen)
        self.trained.update(each.ordinal for each in chosen)
        self.over += chosen

    @rule(data=st.data(), why=st.sampled_from(REASONS))
    def drop(self, data, why):
        chosen = [each for each, _, _ in self.choose(data)]
        self.prompts.drop(chosen, why=why)
        self.dropped |= {each.ordinal: why for each in chosen}
        self.over += chosen

    @rule(data=st.data())
    def back(self, data):
        chosen = [each for each, _, _ in self.choose(data)]
        self.prompts.back(chosen, note={"weights": 3})
        self.again |= {each.ordinal: each.attempt + 1 for each in chosen}
        self.over += chosen

    @rule(data=st.data())
    def renew(self, data):
        chosen = self.choose(data)
        assert self.prompts.renew([each for each, _, _ in chosen]) == [
            each.ordinal for each, _, _ in chosen
        ]
        self.held += [(each, worker, self.due()) for each, worker, _ in chosen]

    @rule(worker=st.sampled_from(WORKERS))
    def lose_a_worker(self, worker):
        lost = [each for each, owner, _ in self.held if owner == worker]
        assert sorted(self.prompts.back_from(worker)) == sorted(each.ordinal for each in lost)
        self.held = [held for held in self.held if held[1] != worker]
        self.again |= {each.ordinal: each.attempt + 1 for each in lost}
        self.over += lost

    @rule(seconds=st.sampled_from([1.0, LEASE / 2, LEASE + 1]))
    def wait(self, seconds):
        self.now += seconds

    @rule(count=st.integers(1, 12), worker=st.sampled_from(WORKERS))
    def take_just_before_a_lease_ends(self, count, worker):
        """A prompt whose lease runs for another second is not given to another worker."""
        running = [due for _, _, due in self.held if self.now < due < float("inf")]
        if running:
            self.now = max(self.now, min(running) - 1.0)
        self.take(count, worker)

    @rule(data=st.data(), verb=st.sampled_from(["done", "back", "drop"]))
    def acknowledge_what_is_over(self, data, verb):
        """A refused call changes nothing, also for the prompts next to it."""
        if not self.over:
            return
        options = {"why": REASONS[0]} if verb == "drop" else {}
        before = self.prompts.state_dict()
        late = data.draw(st.sampled_from(self.over))
        with pytest.raises(LeaseError, match=f"{verb}: prompt {late.ordinal} "):
            getattr(self.prompts, verb)([late, *(each for each, _, _ in self.held[:2])], **options)
        assert self.prompts.state_dict() == before

    # Checkpoints and kills

    @rule()
    def checkpoint(self):
        state = json.dumps(self.prompts.state_dict())
        assert len(state) <= 1024 + 16 * (len(self.held) + len(self.again)) + sum(
            40 for _ in self.again | {each.ordinal: 0 for each, _, _ in self.held}
        )  # 40 for a note
        again = self.again | {each.ordinal: each.attempt + 1 for each, _, _ in self.held}
        self.saved = state, again, self.fresh, self.trained.copy(), dict(self.dropped)

    @rule(in_place=st.booleans())
    def kill(self, in_place):
        state, again, self.fresh, trained, dropped = self.saved
        ended = [*self.over, *(each for each, _, _ in self.held)]
        if not in_place:
            self.prompts = (
                self.make()
            )  # another process; clients of the old one are refused by its server
        self.over = ended if in_place else []
        self.held, self.again = [], dict(again)
        self.trained, self.dropped = trained.copy(), dict(dropped)
        self.prompts.load_state_dict(json.loads(state))

    # What always holds

    @invariant()
    def nothing_is_forgotten(self):
        if not hasattr(self, "saved"):
            return
        counts = self.prompts.counts
        is_open = {each.ordinal for each, _, _ in self.held} | set(self.again)
        settled = set(self.trained) | set(self.dropped)
        assert is_open | settled == set(range(self.fresh)) and not is_open & settled
        assert max(self.trained.values(), default=1) == 1 and not set(self.trained) & set(
            self.dropped
        )
        assert (counts["done"], counts["dropped"]) == (
            len(self.trained),
            Counter(self.dropped.values()),
        )
        assert (counts["leased"], counts["returned"]) == (len(self.held), len(self.again))
        assert (
            counts["frontier"] == min(is_open, default=self.fresh) and counts["next"] == self.fresh
        )
        assert self.prompts.finished == (len(settled) == self.total)

    def teardown(self):
        """Workers go on until all is done; then every record of every epoch was trained once or dropped."""
        if not hasattr(self, "saved"):
            return
        self.now += LEASE * 3
        if self.lease is None:
            self.prompts.back([each for each, _, _ in self.held])
        while given := self.prompts.take(7):
            self.prompts.done(given)
            self.trained.update(each.ordinal for each in given)
            self.records |= {each.ordinal: (each.epoch, each.record["id"]) for each in given}
        assert self.prompts.finished
        assert Counter([*self.trained.elements(), *self.dropped]) == Counter(range(self.total))
        every = [(epoch, n) for epoch in range(self.epochs) for n in range(self.size)]
        assert sorted(self.records[n] for n in range(self.total)) == every


class TestLaw11(Histories.TestCase):
    settings = settings(examples(60), stateful_step_count=40)


def test_a_weighted_mixture_is_given_in_its_shares_and_by_number():
    sources = {
        name: ps.open([{"id": f"{name}{n}"} for n in range(size)])
        for name, size in (("a", 30), ("b", 90))
    }
    make = lambda: Prompts({"a": (sources["a"], 0.5), "b": (sources["b"], 0.5)}, epochs=3)  # noqa: E731
    straight = [(each.ordinal, each.epoch, each.record["id"]) for each in make().take(10**6)]
    assert [ordinal for ordinal, _, _ in straight] == list(range(make().counts["total"]))
    assert sum(name.startswith("a") for _, _, name in straight) == len(straight) / 2
    assert {epoch for _, epoch, _ in straight} == {0, 1, 2}
    jumping = make()
    first = jumping.take(100)
    jumping.back(first[::3])
    jumping.done([each for n, each in enumerate(first) if n % 3])
    rest = jumping.take(10**6)
    seen = {each.ordinal: (each.ordinal, each.epoch, each.record["id"]) for each in [*first, *rest]}
    assert [seen[n] for n in range(len(straight))] == straight


def test_a_state_of_other_data_or_another_seed_is_refused_and_named():
    source = ps.open([{"id": n} for n in range(10)])
    state = Prompts(source, seed=1).state_dict()
    with pytest.raises(PlanMismatch, match="seed 1 → 2"):
        Prompts(source, seed=2).load_state_dict(state)
    with pytest.raises(PlanMismatch, match="content of source 'data'"):
        Prompts(ps.open([{"id": n} for n in range(11)]), seed=1).load_state_dict(state)


@pytest.mark.parametrize("name", ["frontier", "next", "done", "dropped", "open", "notes"])
def test_a_damaged_state_is_refused(name):
    prompts = Prompts(ps.open([{"id": n} for n in range(10)]))
    prompts.done(prompts.take(8)[2:4])
    state = prompts.state_dict()
    changed = {"dropped": {"x": 1}, "open": state["open"][:-2], "notes": {"0": 1}}.get(name, 5)
    with pytest.raises(PlanMismatch, match="damaged"):
        prompts.load_state_dict({**state, name: changed})
    with pytest.raises(PlanMismatch, match=f"field '{name}' is missing"):
        prompts.load_state_dict({key: value for key, value in state.items() if key != name})


def test_a_state_with_ten_thousand_prompts_in_flight_is_small():
    prompts = Prompts(ps.open([{"id": n} for n in range(50_000)]))
    taken = prompts.take(30_000)
    prompts.done(taken[::3])
    prompts.drop(taken[1::3], why="zero_variance")
    assert len(json.dumps(prompts.state_dict())) <= 1024 + 16 * 10_000
