"""Is a recipe that was written down the same recipe?  Over made-up ones, with every word that YAML could take for something else."""

import copy
import tempfile
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import RecipeError
from penstock.recipe import Recipe
from penstock.recipe.document import read_document

TRICKY = [
    "no",
    "On",
    "null",
    "~",
    "",
    "1e5",
    "010",
    "0x1F",
    "1_000",
    ".inf",
    "12:30",
    "2025-01-01",
    "=",
    "<<",
    "- a",
    "a: b",
    "#x",
    "${HOME}",
    "$${x}",
    "$",
    "{a",
    "[b",
    "'",
    '"',
    "a\nb",
    "a\n",
    " a ",
    "\ta",
    "&x",
    "*x",
    "!x",
    "%x",
    "@x",
    "`x",
    "|",
    ">",
    "true",
    "\x1b[2J",
    "\u202e",
    "\u2028x",
    "😀",
    "é",
    "\\n",
    "?",
    ":",
    "-",
    "a #b",
    "\r\n",
    "\x85",
]

words = st.one_of(
    st.sampled_from(TRICKY),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12),
)
plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**12), 10**12),
    st.floats(allow_nan=False, allow_infinity=False),
    words,
)
nested = st.recursive(
    plain,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=3)),
    max_leaves=8,
)


def again(recipe: Recipe) -> Recipe:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recipe.yaml"
        path.write_text(recipe.to_yaml(), encoding="utf-8", newline="")
        return Recipe.read(path)


@given(
    kwargs=st.dictionaries(words, nested, max_size=4),
    run_id=words,
    roles=st.dictionaries(words, st.lists(words, max_size=2), max_size=3),
)
def test_what_is_written_is_read(
    kwargs: dict[str, Any], run_id: str, roles: dict[str, Any]
) -> None:
    recipe = Recipe.of(
        "/data/x.jsonl", chat_template_kwargs=kwargs, run_id=run_id, role_map=roles, batch_size=2
    )
    found = again(recipe)
    assert found == recipe and repr(dict(found.settings)) == repr(dict(recipe.settings))


names = st.text(st.characters(min_codepoint=97, max_codepoint=122), min_size=1, max_size=6).filter(
    lambda name: name != "train"
)


@given(
    sets=st.dictionaries(
        names,
        st.tuples(st.lists(names, min_size=1, max_size=3), st.floats(1e-6, 1e6), st.booleans()),
        min_size=1,
        max_size=4,
    ),
    evals=st.lists(names, unique=True, max_size=3),
)
def test_data_sets_are_read_as_written(sets: dict[str, Any], evals: list[str]) -> None:
    data = {
        name: {"path": [f"/d/{path}" for path in paths], "weight": weight, "fan_out": fan_out}
        for name, (paths, weight, fan_out) in sets.items()
    }
    more = (
        {"eval": {name: {"path": f"/d/{name}.jsonl", "batch_size": 1} for name in evals}}
        if evals
        else {}
    )
    recipe = Recipe.of(data, max_length=64, **more)
    found = again(recipe)
    assert found == recipe
    assert again(found.changed(seed=3)) == recipe.changed(seed=3) != recipe


@given(text=st.text(max_size=60))
def test_any_text_is_a_recipe_or_an_error_that_names_it(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recipe.yaml"
        path.write_bytes(text.encode(errors="surrogatepass"))
        try:
            Recipe.read(path)
        except RecipeError as error:
            assert str(error).startswith(str(path))


def test_a_recipe_travels_between_processes() -> None:
    recipe = Recipe.of({"a": {"path": "x", "eos": True}}, eval="y", batch_size=2)
    assert ForkingPickler.loads(ForkingPickler.dumps(recipe)) == recipe == copy.deepcopy(recipe)


def test_changes_reach_eval_sets_and_are_checked_with_the_rest(tmp_path: Path) -> None:
    mixed = Recipe.of(
        {"a": {"path": "x", "weight": 1}, "b": {"path": "y", "weight": 2}},
        eval="z",
        max_length=16_384,
    )
    assert mixed.changed(mix_by="tokens", align=8192).plan_settings().mix_by == "tokens"
    assert (
        mixed.loader_options("z")["shuffle"] is False
        and mixed.changed(shuffle=True).loader_options("z")["shuffle"] is True
    )
    assert mixed.changed(epochs=2).loader_options("z")["epochs"] == 2
    with pytest.raises(RecipeError, match="align 8192 is larger than max_length 128"):
        mixed.changed(align=8192, max_length=128)


def test_a_data_set_may_be_called_like_a_key_of_another_tool() -> None:
    recipe = Recipe.of({"dataset": {"path": "x.jsonl"}, "file": {"path": "y.jsonl"}})
    assert [data.name for data in recipe.data] == ["dataset", "file"]


def test_numbers_of_numpy_are_numbers() -> None:
    import numpy as np

    assert Recipe.of("x", max_length=np.int64(64)).plan_settings().max_length == 64


def test_values_know_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("a: 1\n\nb:\n  c: [1,\n      2]\n")
    value, lines = read_document(path)
    assert value == {"a": 1, "b": {"c": [1, 2]}}
    assert lines["b",] == 3 and lines["b", "c"] == 4
    assert [lines["b", "c", place] for place in (0, 1)] == [4, 5]
