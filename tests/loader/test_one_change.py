"""A mixture changes in one way: by change_mixture, by a loaded state; a refused change, and a change to the same, change nothing."""

import json

import numpy as np
import pytest
import yaml

import penstock as ps
from penstock.errors import PlanError, PlanMismatch, UnevenTail
from tests.loader.arrays import Loader

SIZES = {"web": 90, "code": 60, "chat": 40}


@pytest.fixture(scope="module")
def stores(tokenizer_path, tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    made = {}
    for name, size in SIZES.items():
        rng = np.random.default_rng(sum(map(ord, name)))
        records = [{"text": "fox " * int(rng.integers(1, 20)) + name} for _ in range(size)]
        made[name] = ps.prepare(
            records, tokenizer=tokenizer_path, template="text", cache_dir=cache, num_proc=1
        )
    return made


def make(mixture, **options) -> ps.Loader:
    return Loader(mixture, **{"batch_size": 4, "max_length": 32, "block": 64, **options})


def run(loader, steps=None) -> list:
    """The spans of so many batches, with the names of their sources; then the loop is broken off."""
    names = [source.name for source in loader.plan.sources]
    batches = []
    for batch in loader:
        names = [source.name for source in loader.plan.sources]
        rows = [batch.rows[number].tolist() for number in range(batch.rows.num_rows)]
        batches.append([[(names[s], *rest) for s, *rest in row] for row in rows])
        if len(batches) == steps:
            break
    return batches


def the_mixtures(stores, *, weighted: bool):
    if weighted:
        return (
            {"web": (stores["web"], 0.6), "code": (stores["code"], 0.4)},
            {
                "web": (stores["web"], 0.5),
                "code": (stores["code"], 0.3),
                "chat": (stores["chat"], 0.2),
            },
        )
    return (
        {"web": stores["web"], "code": stores["code"]},
        {"code": stores["code"], "chat": stores["chat"]},
    )


@pytest.mark.parametrize("last_step", ["drop", "pad", "repeat"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("per_epoch", [True, False])
@pytest.mark.parametrize("steps", [3, None])
def test_both_ways_to_change_a_mixture_deliver_the_same(
    stores, last_step, weighted, per_epoch, steps
):
    """A3: with last_step='drop' and per_epoch, load_state_dict(changes=True) at the end of an epoch opened the finished epoch again."""
    old, new = the_mixtures(stores, weighted=weighted)
    options = {"last_step": last_step, "per_epoch": per_epoch, "epochs": 3 if per_epoch else 1}
    loader = make(old, **options)
    run(loader, steps)
    state = loader.state_dict()

    loader.change_mixture(new)
    changed = make(new, **options)
    changed.load_state_dict(loader.state_dict())

    resumed = make(new, **options)
    resumed.load_state_dict(state, changes=True)
    assert resumed.state_dict() == changed.state_dict() == loader.state_dict()
    assert resumed.journal == changed.journal == loader.journal

    reloaded = make(old, **options)  # a state, then the change: the third way
    reloaded.load_state_dict(state)
    reloaded.change_mixture(new)
    assert reloaded.state_dict() == resumed.state_dict()

    loops = [[run(each) for _ in range(3)] for each in (resumed, changed, reloaded)]
    assert loops[0] == loops[1] == loops[2]
    unchanged = make(old, **options)
    unchanged.load_state_dict(state)
    if not run(
        unchanged
    ):  # nothing is left of the pass of the state; the loader that went on begins the next one
        assert loops[0].pop(0) == []
    assert all(loops[0])
    assert [run(loader) for _ in loops[0]] == loops[0]


def public(loader) -> dict:
    """All public attributes of a loader, as text."""
    names = [name for name in dir(loader) if not name.startswith("_")]
    values = {name: getattr(loader, name) for name in names}
    found = {name: repr(value) for name, value in values.items() if not callable(value)}
    found["metrics"] = {
        name: value for name, value in loader.metrics.as_dict().items() if "second" not in name
    }
    found["plan"] = loader.plan.fingerprint
    return {**found, "state": loader.state_dict(), "length": len(loader)}


def refusals(stores, tokenizer_path):
    """Calls that are refused, early and late."""
    new = {"web": stores["web"], "chat": stores["chat"]}
    return {
        "a step before this one": lambda loader: loader.change_mixture(new, at=0),
        "a step after the pass": lambda loader: loader.change_mixture(new, at=10_000),
        "the same data under another name": lambda loader: loader.change_mixture(
            {"web": stores["web"], "again": stores["code"]}
        ),
        "other data under a known name": lambda loader: loader.change_mixture(
            {"web": stores["chat"]}
        ),
        "records": lambda loader: loader.change_mixture([{"a": 1}]),
        "a state of another plan": lambda loader: loader.load_state_dict(
            make(new, seed=5).state_dict()
        ),
        "a state that cannot change": lambda loader: loader.load_state_dict(
            make(new, seed=5).state_dict(), changes=True
        ),
    }


@pytest.mark.parametrize("number", range(7))
def test_a_refused_change_changes_nothing(stores, tokenizer_path, number):
    """A12: also not the names in `metrics`."""
    loader = make({"web": stores["web"], "code": stores["code"]})
    reference = make({"web": stores["web"], "code": stores["code"]})
    run(loader, 2)
    run(reference, 2)
    before = public(loader)
    call = list(refusals(stores, tokenizer_path).values())[number]
    with pytest.raises((PlanError, PlanMismatch)):
        call(loader)
    assert public(loader) == before
    assert run(loader) == run(reference)


def test_a_change_that_leaves_an_uneven_step_changes_nothing(stores):
    """A12: refused after the new plan was made, it left the new source in `metrics`."""
    plain = make({"web": stores["web"]}, last_step="error", batch_size=1, packing="none")
    run(plain, 2)
    loader = make({"web": stores["web"]}, last_step="error", batch_size=3, packing="none")
    run(loader, 2)
    before = public(loader)
    with pytest.raises(UnevenTail):
        loader.change_mixture({"web": stores["web"], "chat": stores["chat"]})
    assert public(loader) == before
    assert list(loader.metrics.as_dict()["shares"]) == ["web"]


@pytest.mark.parametrize("weighted", [False, True])
def test_a_change_to_the_same_mixture_changes_nothing(stores, weighted):
    """A12: it packed the rest of the block again."""
    old, _ = the_mixtures(stores, weighted=weighted)
    same = dict(reversed(old.items()))
    if weighted:
        same = {name: (store, weight * 10) for name, (store, weight) in same.items()}
    loader, reference = make(old), make(old)
    run(loader, 2)
    run(reference, 2)
    before = public(loader)
    loader.change_mixture(same)
    assert public(loader) == before
    loader.change_mixture(same, at=3)
    assert public(loader) == before
    assert run(loader) == run(reference)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("is_changed", [False, True])
def test_a_state_survives_the_sorting_of_its_keys(stores, weighted, is_changed):
    """A9: such as YAML does; with changes=True it was refused as altered."""
    old, new = the_mixtures(stores, weighted=weighted)
    assert list(old) != sorted(old)
    loader = make(old)
    run(loader, 2)
    if is_changed:
        loader.change_mixture(new)
        run(loader, 1)
    state = loader.state_dict()
    for sorted_state in (
        json.loads(json.dumps(state, sort_keys=True)),
        yaml.safe_load(yaml.safe_dump(state, sort_keys=True)),
    ):
        again = make(new if is_changed else old)
        again.load_state_dict(sorted_state)
        assert again.state_dict() == state
        last = {"code": (stores["code"], 1.0)} if weighted else {"code": stores["code"]}
        changed = make(last)
        changed.load_state_dict(sorted_state, changes=True)
        reference = make(last)
        reference.load_state_dict(state, changes=True)
        assert changed.state_dict() == reference.state_dict()
        assert run(changed) == run(reference)
