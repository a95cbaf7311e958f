"""Whatever is not a state of this run is refused by the name of its field, at once."""

import contextlib
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import PlanMismatch
from penstock.fingerprint import fingerprint

from .arrays import Loader

NUMBERS = ("epoch", "block", "row", "rows", "step", "pass_step")
HUGE = 10**30


@pytest.fixture(scope="module")
def source():
    return ps.open([{"n": n} for n in range(50)])


@pytest.fixture(scope="module")
def mixture(tokenizer_path, tmp_path_factory):
    """Mixed by tokens: the kind of plan that learns lengths to find its blocks."""
    rng = np.random.default_rng(1)
    stores = []
    for _ in range(2):
        records = [{"text": "fox dog " * int(rng.integers(1, 20))} for _ in range(40)]
        cache_dir = tmp_path_factory.mktemp("cache")
        stores.append(
            ps.prepare(
                records, tokenizer=tokenizer_path, template="text", cache_dir=cache_dir, num_proc=1
            )
        )
    return {"a": (stores[0], 0.5), "b": (stores[1], 0.5)}


def make(source, **options) -> ps.Loader:
    return Loader(source, batch_size=4, epochs=3, block=16, **options)


def sealed(state: dict) -> dict:
    """With a check that fits, as a user who knows how it is made would write it."""
    content = {key: value for key, value in state.items() if key != "check"}
    return {**content, "check": fingerprint(content)[:16]}


def middle(source, **options) -> dict:
    loader = make(source, **options)
    loader.seek(5)
    return loader.state_dict()


@pytest.mark.parametrize("name", [*NUMBERS, "plan", "settings", "check"])
def test_a_changed_state_is_refused(source, name):
    state = middle(source)
    changed = {
        "plan": "0" * 32,
        "settings": {**state["settings"], "seed": 9},
        "check": state["check"][:-1] + "x",
    }
    value = changed.get(name, state[name] + 1 if name in NUMBERS else None)
    with pytest.raises(PlanMismatch, match="it was altered since it was saved") as raised:
        make(source).load_state_dict({**state, name: value})
    assert name != "settings" or "seed 9 → 0" in str(raised.value)


WRONG = {
    "nan": math.nan,
    "infinity": math.inf,
    "negative": -1,
    "very negative": -HUGE,
    "huge": HUGE,
    "6,000 digits": 10**6000,
    "text": "5",
    "none": None,
    "float": 5.0,
    "bool": True,
    "set": {5},
    "list": [5],
    "dict": {},
    "float64": np.float64(5),
    "bool_": np.True_,
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", WRONG)
def test_a_number_that_is_not_one_is_refused_by_its_field(source, name, value):
    loader, state = make(source), middle(source)
    before = loader.state_dict()
    with pytest.raises(PlanMismatch, match=f"the state is damaged: {name} is "):
        loader.load_state_dict({**state, name: WRONG[value]})
    assert loader.state_dict() == before


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epoch", 2**61),
        ("block", 10**6),
        ("block", 2**62),
        ("row", 200),
        ("row", 10**9),
        ("step", 0),
        ("pass_step", 10**6),
    ],
)
@pytest.mark.parametrize("kind", ["records", "mixture"])
def test_a_forged_place_that_the_plan_does_not_have_is_refused(source, mixture, name, value, kind):
    given = (
        (source, {})
        if kind == "records"
        else (mixture, {"max_length": 64, "mix_by": "tokens", "packing": "none"})
    )
    loader = make(given[0], **given[1])
    loader.seek(7)
    state = {**loader.state_dict(), "pass_step": 1}
    field = "pass_step" if name == "step" else name
    with pytest.raises(PlanMismatch, match=f"the state is damaged: {field} is"):
        loader.load_state_dict(sealed({**state, name: value}))
        list(loader)


def test_settings_with_a_number_that_cannot_be_written_are_refused(source):
    with pytest.raises(PlanMismatch, match="settings is not plain JSON"):
        make(source).load_state_dict({**middle(source), "settings": {"seed": 10**6000}})


def test_integers_of_numpy_are_integers(source):
    state = middle(source)
    loader = make(source)
    loader.load_state_dict({**state, **{name: np.int64(state[name]) for name in NUMBERS}})
    assert loader.state_dict() == state
    json.dumps(loader.state_dict())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": True}, "the state has version True"),
        ({"version": "2"}, "the state has version '2'"),
        ({"version": math.nan}, "the state has version nan"),
        ({"plan": 5}, "plan is 5, expected text"),
        ({"plan": None}, "plan is None, expected text"),
        ({"check": None}, "check is None, expected text"),
        ({"settings": [1]}, r"settings is \[1\], expected a dict"),
        ({"settings": {"seed": math.nan}}, "settings is not plain JSON"),
        ({"settings": {"seed": {1}}}, "settings is not plain JSON"),
        ({"more": 1}, "field 'more' is missing or unknown"),
        ({7: 1}, "field '7' is missing or unknown"),
    ],
)
def test_other_fields_are_held_to_their_types(source, change, message):
    with pytest.raises(PlanMismatch, match=message):
        make(source).load_state_dict({**middle(source), **change})


@pytest.mark.parametrize(
    "state", [None, [], "state", 5, {}, {"version": 2}, json.dumps({"version": 2})]
)
def test_what_is_not_a_state_is_refused(source, state):
    with pytest.raises(PlanMismatch, match="not a Penstock state"):
        make(source).load_state_dict(state)


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=3),
    st.sets(st.integers(), max_size=2),
)


@settings(max_examples=150, deadline=None)
@given(
    changes=st.dictionaries(
        st.sampled_from([*NUMBERS, "version", "plan", "settings", "check"]), VALUES, max_size=3
    ),
    seal=st.booleans(),
)
def test_any_change_of_a_state_is_refused_or_is_a_place_of_the_plan(source, changes, seal):
    loader = make(source)
    state = {**middle(source), **changes}
    with contextlib.suppress(TypeError, ValueError):  # what cannot be sealed stays as it is
        state = sealed(state) if seal else state
    try:
        loader.load_state_dict(state)
    except PlanMismatch:
        return
    found = loader.state_dict()
    assert all(found[name] == state[name] and found[name] >= 0 for name in NUMBERS)
    handed = [record["n"] for batch in loader for record in batch["records"]]
    assert len(handed) <= 150  # at most the rest of a pass of three epochs
