"""A call that is refused leaves the loader as it was: every public attribute, the state and the batches that follow."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.errors import PenstockError, PlanError
from penstock.loader.observe import Observers
from penstock.reasons import LAST_STEP
from penstock.types import World
from tests.nets.capabilities import batch_bytes


@pytest.fixture(scope="module")
def stores(tokenizer_path: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    cache = tmp_path_factory.mktemp("cache")

    def make(word: str, count: int) -> Any:
        records = [{"text": f"{word} " * (1 + number % 13)} for number in range(count)]
        return ps.prepare(
            records, tokenizer=tokenizer_path, template="text", cache_dir=cache, num_proc=1
        )

    return {"a": make("fox", 60), "b": make("dog", 31), "c": make("home", 17)}


def make_loader(stores: dict[str, Any], **options: Any) -> Any:
    settings = {"batch_size": 3, "max_length": 32, "packing": "first_fit", "block": 16}
    mixture = {"a": (stores["a"], 0.5), "b": (stores["b"], 0.5)}
    return ps.Loader(mixture, output="numpy", **{**settings, **options})


def public_attributes(loader: Any) -> dict[str, str]:
    """The printed value of everything public that is not a method; addresses in memory do not count."""
    values = {}
    for name in dir(loader):
        if name.startswith("_"):
            continue
        value = getattr(loader, name)
        if callable(value):
            continue
        if name == "metrics":
            value = {key: part for key, part in value.as_dict().items() if "seconds" not in key}
        values[name] = repr(value)
    values["state_dict()"] = json.dumps(loader.state_dict(), sort_keys=True)
    return values


def other_state(stores: dict[str, Any]) -> dict[str, Any]:
    return dict(make_loader(stores, seed=5).state_dict())


REFUSED: dict[str, Callable[[Any, dict[str, Any]], object]] = {
    "a state of another seed": lambda loader, stores: loader.load_state_dict(other_state(stores)),
    "a state that is not one": lambda loader, stores: loader.load_state_dict({"version": 0}),
    "a state without changes allowed": lambda loader, stores: loader.load_state_dict(
        ps.Loader(stores["c"], batch_size=3, max_length=32, output="numpy").state_dict()
    ),
    "a step beyond the end": lambda loader, stores: loader.seek(10**9),
    "a negative step": lambda loader, stores: loader.seek(-1),
    "a change in the past": lambda loader, stores: loader.change_mixture(
        {"a": (stores["a"], 1.0), "c": (stores["c"], 1.0)}, at=0
    ),
    "weights that are not positive": lambda loader, stores: loader.change_mixture(
        {"a": (stores["a"], -1.0), "c": (stores["c"], 1.0)}
    ),
    "weights for some sources only": lambda loader, stores: loader.change_mixture(
        {"a": (stores["a"], 1.0), "c": stores["c"]}
    ),
    "a mixture without a source": lambda loader, stores: loader.change_mixture({}),
    "a state with changes, of a mixture that is not there": lambda loader, stores: (
        loader.load_state_dict(
            {**other_state(stores), "settings": {"sources": [["z", "0"]]}}, changes=True
        )
    ),
    "records instead of tokens": lambda loader, stores: loader.change_mixture({"a": [{"x": 1}]}),
    "a source under another name": lambda loader, stores: loader.change_mixture(
        {"a": (stores["a"], 1.0), "copy": (stores["b"], 1.0)}
    ),
    "an epoch that is not a number": lambda loader, stores: loader.set_epoch(-1),
    "a journal that is not one": lambda loader, stores: loader.load_journal({"segments": 3}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_call_changes_nothing(name: str, stores: dict[str, Any]) -> None:
    untouched = make_loader(stores)
    loader = make_loader(stores)
    expected = []
    for one, other in zip(untouched, loader, strict=False):
        assert batch_bytes(one) == batch_bytes(other)
        if len(expected) == 3:
            break
        expected.append(one)
    before = public_attributes(loader)
    with pytest.raises(PenstockError):
        REFUSED[name](loader, stores)
    assert public_attributes(loader) == before
    assert [batch_bytes(b) for b in loader] == [batch_bytes(b) for b in untouched]


def test_a_change_that_makes_the_last_step_uneven_is_refused_and_changes_nothing(
    stores: dict[str, Any],
) -> None:
    """`metrics` listed the new source after the refusal in 0.2."""
    loader = ps.Loader(
        {"a": stores["a"]},
        batch_size=4,
        max_length=64,
        packing="none",
        last_step="error",
        output="numpy",
    )
    before = public_attributes(loader)
    with pytest.raises(PenstockError):
        loader.change_mixture({"a": stores["a"], "b": stores["b"]})
    assert public_attributes(loader) == before


class Refusing:
    """An observer that refuses to begin while `why` is set."""

    def __init__(self) -> None:
        self.why = ""
        self.ends = 0

    def attach(self, loader: Any) -> None: ...

    def begin(self, run: Any) -> None:
        if self.why:
            raise PlanError(self.why)

    def step(self, run: Any, step: Any, batch: Any) -> None: ...

    def end(self, run: Any) -> None:
        self.ends += 1


def observed(loader: Any) -> Refusing:
    observer = Refusing()
    loader.observers = Observers([observer, *loader.observers])
    return observer


def refused_loop(loader: Any, observer: Refusing) -> None:
    before = public_attributes(loader)
    observer.why = "the ranks differ"
    with pytest.raises(PlanError, match="the ranks differ"):
        next(iter(loader))
    observer.why = ""
    assert public_attributes(loader) == before


def test_a_loop_that_an_observer_refuses_leaves_the_loader_where_a_state_has_put_it(
    stores: dict[str, Any],
) -> None:
    """The next loop was a whole pass, not the rest of the pass of the state."""
    first = make_loader(stores)
    for number, _ in enumerate(first):
        if number == 3:
            break
    loader = make_loader(stores)
    observer = observed(loader)
    loader.load_state_dict(first.state_dict())
    refused_loop(loader, observer)
    assert [batch_bytes(batch) for batch in loader] == [batch_bytes(batch) for batch in first]


def test_a_loop_that_is_refused_after_the_end_of_a_state_delivers_nothing_when_it_begins(
    stores: dict[str, Any],
) -> None:
    first = make_loader(stores)
    assert list(first)
    loader = make_loader(stores)
    observer = observed(loader)
    loader.load_state_dict(first.state_dict())
    refused_loop(loader, observer)
    assert list(loader) == []


def test_the_end_of_a_loop_that_was_left_at_its_last_step_is_told_once(
    stores: dict[str, Any],
) -> None:
    """With last_step="drop", the rows that no step has were counted again by each attempt to begin the next loop."""
    options = {"last_step": "drop", "max_length": 16}
    loader = make_loader(stores, **options)
    observer = observed(loader)
    for number, _ in enumerate(loader, start=1):
        if number == len(loader):
            break
    observer.why = "the ranks differ"
    for _ in range(3):
        with pytest.raises(PlanError):
            next(iter(loader))
    untouched = make_loader(stores, **options)
    assert list(untouched)
    assert untouched.counters.samples_dropped[LAST_STEP]
    assert (observer.ends, loader.counters) == (1, untouched.counters)


def test_a_change_that_is_refused_inside_a_loop_does_not_end_it(stores: dict[str, Any]) -> None:
    untouched = make_loader(stores)
    loader = make_loader(stores)
    batches = []
    for batch in loader:
        before = public_attributes(loader)
        for refuse in REFUSED.values():
            with pytest.raises(PenstockError):
                refuse(loader, stores)
        assert public_attributes(loader) == before
        batches.append(batch_bytes(batch))
    assert batches == [batch_bytes(batch) for batch in untouched]


def test_what_is_refused_for_a_dataset_of_the_loader_changes_nothing(
    stores: dict[str, Any],
) -> None:
    loader = make_loader(stores)
    _, sampler = loader.as_map_dataset()
    rows = [row.spans.tobytes() for row in sampler]
    before = public_attributes(loader)
    with pytest.raises(PenstockError, match="as_map_dataset"):
        loader.change_mixture({"a": (stores["a"], 1.0), "c": (stores["c"], 1.0)})
    assert public_attributes(loader) == before
    assert len(rows) == len(loader) * loader.batch_size


def test_ranks_that_are_refused_change_nothing(stores: dict[str, Any]) -> None:
    """A trainer names a number of ranks among which the rows of the epoch do not divide."""
    loader = make_loader(stores, packing="none", last_step="error", batch_size=1)
    before = public_attributes(loader)
    info = replace(loader.rank_info, world=World(rank=0, size=7), origin="trainer")
    with pytest.raises(PenstockError):
        loader.take_rank(info)
    assert public_attributes(loader) == before
