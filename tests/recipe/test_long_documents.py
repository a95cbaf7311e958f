"""A recipe without `overflow` over documents that are longer than a row: refused, with what to write; nothing is lost in silence."""

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
        r"recipe\.yaml: 9 of 20 documents, with 9\d\.\d% of the tokens, are longer than max_length 64",
        message,
    )
    assert "write packing: concat" in message and "or overflow: split" in message


@pytest.mark.parametrize(
    "changes",
    [
        {"packing": "concat"},
        {"overflow": "split"},
        {"overflow": "drop"},
        {"overflow": "truncate"},
        {"max_length": 2048},
    ],
)
def test_a_recipe_that_says_what_becomes_of_them_is_loaded(recipe, changes):
    assert len(list(ps.load(recipe, **changes)))


def test_chats_are_loaded_and_what_they_lose_is_counted(recipe, write_jsonl, caplog):
    answers = [
        {"prompt": "fox", "completion": "fox " * (100 if number % 2 else 5)} for number in range(20)
    ]
    write_jsonl(answers, "books.jsonl")
    loader = ps.load(recipe, template="prompt_completion")
    list(loader)
    assert loader.counters.samples_dropped["overlong"] == 10
    assert "10 samples dropped: overlong" in caplog.text
