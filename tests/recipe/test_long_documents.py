"""A recipe over documents that are longer than a row is refused with what to write: nothing is lost in silence."""

import re

import pytest

import penstock as ps
from penstock.errors import PlanError


@pytest.fixture
def recipe(tmp_path, tokenizer_path, write_jsonl):
    texts = ["fox " * 300] * 9 + ["fox " * 20] * 11
    write_jsonl([{"text": text} for text in texts], "books.jsonl")
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"data: books.jsonl\ntokenizer: {tokenizer_path}\ntemplate: text\nmax_length: 64\nbatch_size: 2\n"
        f"cache_dir: {tmp_path / 'cache'}\noutput: numpy\n"
    )
    return path


def test_a_recipe_that_would_drop_most_of_its_documents_is_refused(recipe):
    """§4: best_fit on long documents at 512 kept a tenth of the tokens."""
    with pytest.raises(PlanError) as caught:
        ps.load(recipe)
    message = str(caught.value)
    assert re.search(
        r"dataset 'data': 9 of 20 records \(45\.0%\), with 9\d\.\d% of the tokens, would not be trained on: overlong 9",
        message,
    )
    assert "on_overlong: split" in message and "packing: concat" in message


@pytest.mark.parametrize(
    "changes",
    [
        {"packing": "concat"},
        {"on_overlong": "split"},
        {"max_dropped": 1.0},
        {"on_overlong": "truncate"},
        {"max_length": 2048},
    ],
)
def test_a_recipe_that_says_what_becomes_of_them_is_loaded(recipe, changes):
    assert len(list(ps.load(recipe, **changes)))
