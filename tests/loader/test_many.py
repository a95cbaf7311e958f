"""Several steps made at once are those steps made one by one; what goes wrong comes when its turn comes."""

from itertools import islice

import numpy as np
import pytest

from penstock.loader.collate import Collator
from penstock.loader.prefetch import growing, one_by_one

from .arrays import Loader
from .test_layout import store

__all__ = ["store"]  # a fixture

FORMS = [
    *(
        {},
        {"labels": "shifted"},
        {"align": 4},
        {"pad_to_multiple_of": 64},
        {"pad_side": "left"},
        {"attention_mask": "4d"},
    ),
    *(
        {"packing": "none"},
        {"packing": "none", "padding": "max_length"},
        {"padding_free": True},
        {"last_step": "drop"},
    ),
]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_steps_made_at_once_are_those_made_one_by_one(store, form):
    loader = Loader(store, batch_size=3, max_length=48, **form)
    steps = [step.rows for step in loader.plan.steps(num_rows=3, epochs=1)]
    alone, together = (Collator(loader.stores, loader.plan.settings, loader.form) for _ in "ab")
    expected = []
    for rows in steps:
        arrays, trained = alone(rows)
        expected.append(({name: np.array(array) for name, array in arrays.items()}, trained))
    for start in range(0, len(steps), 5):
        made = [found for some in together.many(steps[start : start + 5]) for found in some]
        for (arrays, trained), (wanted, count) in zip(
            made, expected[start : start + 5], strict=True
        ):
            assert trained == count and arrays.keys() == wanted.keys()
            for name, array in arrays.items():
                assert (
                    np.array_equal(array, wanted[name])
                    and np.asarray(array).dtype == wanted[name].dtype
                ), name


def test_an_error_comes_behind_what_came_before_it():
    def numbers():
        yield from range(10)
        raise ValueError("the eleventh")

    found = []
    with pytest.raises(ValueError, match="the eleventh"):
        found.extend(growing(numbers(), 8))
    lists = list(islice(growing(iter(range(40)), 8), 6))
    assert [len(values) for values in lists] == [1, 2, 4, 8, 8, 8]
    seen = []
    with pytest.raises(ValueError, match="the eleventh"):
        for value in one_by_one(growing(numbers(), 8)):
            seen.append(value)
    assert seen == list(range(10))


def test_a_damaged_shard_is_met_at_its_step(store):
    """A step whose tokens cannot be read does not take the steps before it along."""
    loader = Loader(
        store, batch_size=1, max_length=48, shuffle=False, packing="next_fit", prefetch=0
    )
    whole = [
        batch["input_ids"].tolist()
        for batch in Loader(store, batch_size=1, max_length=48, shuffle=False, packing="next_fit")
    ]
    batches, got = iter(loader), []
    got.append(next(batches)["input_ids"].tolist())
    missing = next(
        path for path in store.cache.root.rglob("*.arrow") if store._keys[-1] in path.name
    )
    store._shards.clear()
    missing.rename(missing.with_suffix(".away"))
    with pytest.raises((ValueError, OSError)):
        for batch in batches:
            got.append(batch["input_ids"].tolist())
    missing.with_suffix(".away").rename(missing)
    first_of_last = next(
        number
        for number, batch in enumerate(
            Loader(store, batch_size=1, max_length=48, shuffle=False, packing="next_fit")
        )
        if (batch.rows.spans["sample"] >= 150).any()
    )
    assert got == whole[:first_of_last]
