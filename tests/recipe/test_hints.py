"""A key that a recipe does not take is refused with what to write instead."""

import re
from typing import Any

import pytest

import penstock as ps
from penstock.aliases import ALIASES, HINTS
from penstock.errors import RecipeError
from penstock.recipe.keys import keys
from tests.docs.test_words import is_taken, rows_of_others, their_options


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (
            "json_columns",
            ["tools"],
            r"it is an option of the source \(parquet, arrow, hf.*\) and belongs under options:",
        ),
        (
            "record",
            "file",
            r"it is an option of the source \(text\) and belongs under options:, as options: \{record: …\}",
        ),
        ("train_dataset_splits", ["train"], "write split: in each dataset"),
        ("max_lenght", 3, "did you mean 'max_length'?"),
        ("cutoff_length", 3, "did you mean 'max_length'?"),
        ("json_column", ["tools"], "did you mean 'json_columns', under options:?"),
    ],
)
def test_an_unknown_key_says_what_to_write(key: str, value: Any, said: str) -> None:
    with pytest.raises(RecipeError) as caught:
        ps.Recipe.of("a.jsonl", **{key: value})
    assert str(caught.value).startswith(f"unknown key {key!r}")
    assert re.search(said if "\\" in said else re.escape(said), str(caught.value))


OTHERS = sorted(
    {
        (name, ours)
        for tool, theirs, ours, mark in rows_of_others()
        # not the functions of datasets; and keys of the other pages are for `penstock import`
        if tool.startswith("coming-from ") and tool != "coming-from datasets"
        for name, value in their_options(theirs)
        if not mark
        and "_" in name
        and name not in keys()
        and name not in ALIASES
        and not is_taken(name, value)
    }
)


@pytest.mark.extra("media")
@pytest.mark.parametrize(("name", "ours"), OTHERS)
def test_every_key_of_another_tool_on_the_page_names_ours(name: str, ours: str) -> None:
    """What the guide says about a key, the error says too: at least the key to write, or that there is none."""
    with pytest.raises(RecipeError) as caught:
        ps.Recipe.of("a.jsonl", **{name: 1})
    said = str(caught.value)
    assert said.startswith(f"unknown key {name!r}: "), said
    named = re.findall(r"`([a-z_]+):", ours)
    assert not named or any(f"{key}:" in said for key in named), (said, ours)


def test_no_hint_is_about_a_key_that_is_taken() -> None:
    assert not set(HINTS) & set(keys()) and not set(HINTS) & set(ALIASES)


@pytest.mark.extra("media")  # one of the hints leads to a key of media
@pytest.mark.parametrize("said", sorted(set(HINTS.values())))
def test_a_hint_names_keys_that_are_there(said: str) -> None:
    known = {
        *keys(),
        "data",
        "eval",
        "path",
        "weight",
        "template",
        "chat",
        "held_out",
        "trains",
        "there",
    }
    assert set(re.findall(r"write ([a-z_]+):", said)) <= known
