"""A call that is refused leaves the loader as it was: every public attribute, the state and the batches that follow."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.errors import PenstockError
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
