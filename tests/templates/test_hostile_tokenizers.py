"""A damaged or hostile tokenizer.json is refused by name: no panic, no bare Exception, no memory for ids that are not there."""

import copy
import json
import resource
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import TemplateError
from penstock.templates import open_tokenizer

ADDED = {
    "id": 5,
    "content": "<s>",
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": False,
    "special": True,
}
VOCABULARY = {"a": 0, "b": 1, "0": 2, ".": 3, "ab": 4}
BPE = {"type": "BPE", "unk_token": None, "vocab": VOCABULARY, "merges": [["a", "b"]]}
GOOD: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [ADDED],
    "normalizer": None,
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": None,
    "model": BPE,
}
SEQUENCE = {"Sequence": {"id": "A", "type_id": 0}}
BEGIN = {"SpecialToken": {"id": "<s>", "type_id": 0}}


def around(**special: Any) -> dict[str, Any]:
    return {
        "type": "TemplateProcessing",
        "single": [BEGIN, SEQUENCE],
        "pair": [SEQUENCE, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": special,
    }


# What is changed in the tokenizer, and what the error says.
HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "an id of 2**32 - 1": (
        {"model": {**BPE, "vocab": {**VOCABULARY, "ab": 2**32 - 1}}},
        "'ab' has the id 4_294_967_295, expected less",
    ),
    "an id of 50 million": (
        {"model": {**BPE, "vocab": {**VOCABULARY, "ab": 50_000_000}}},
        "expected less than 1_000_000 in a vocabulary of 6 tokens",
    ),
    "an added id of 2**32 - 1": (
        {"added_tokens": [{**ADDED, "id": 2**32 - 1}]},
        "'<s>' has the id 4_294_967_295",
    ),
    "an id of 2**40": (
        {"model": {**BPE, "vocab": {**VOCABULARY, "ab": 2**40}}},
        "has the id 1_099_511_627_776",
    ),
    "a negative id": ({"model": {**BPE, "vocab": {"a": -1}}}, "cannot read this tokenizer.json"),
    "a merge of unknown tokens": (
        {"model": {**BPE, "merges": [["a", "z"]]}},
        "cannot read this tokenizer.json: Token `z`",
    ),
    "dropout": (
        {"model": {**BPE, "dropout": 0.9}},
        "has dropout 0.9, so that a text has other ids each time",
    ),
    "a panic while it is read": (
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        "cannot read this tokenizer.json: Precompiled",
    ),
    "a panic while it encodes": (
        {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
        "the tokenizer fails: chunk size",
    ),
    "a post-processor without its token": ({"post_processor": around()}, "tokenizer"),
    "an id of the post-processor": (
        {"post_processor": around(**{"<s>": {"id": "<s>", "ids": [2**32 - 1], "tokens": ["<s>"]}})},
        "the post-processor adds the id 4_294_967_295, which is not in the vocabulary",
    ),
    "a list": ([1], "cannot read this tokenizer.json"),  # type: ignore[dict-item]
}


def written(folder: Path, spec: Any) -> Path:
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    return folder


@pytest.mark.parametrize("name", HOSTILE)
def test_a11_a_hostile_tokenizer_is_refused_by_name(name: str, tmp_path: Path) -> None:
    """A11."""
    change, message = HOSTILE[name]
    spec = {**copy.deepcopy(GOOD), **change} if isinstance(change, dict) else change
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TemplateError) as caught:
        open_tokenizer(written(tmp_path, spec))
    assert message in str(caught.value) and str(tmp_path) in str(caught.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 17  # KiB


def test_a_tokenizer_with_small_gaps_between_ids_is_read(tmp_path: Path) -> None:
    spec = {**GOOD, "model": {**BPE, "vocab": {**VOCABULARY, "ab": 90_000}}}
    assert open_tokenizer(written(tmp_path, spec)).vocab_size == 90_001


@pytest.mark.parametrize(
    "model",
    [
        {"type": "WordLevel", "unk_token": "[UNK]", "vocab": {"a": 0}},
        {"type": "Unigram", "unk_id": None, "vocab": [["a", -1.0], ["0", -1.0]]},
    ],
)
def test_a11_an_error_of_the_engine_on_a_text_is_named(model: Any, tmp_path: Path) -> None:
    """A11: they raise a bare Exception."""
    with pytest.raises(TemplateError, match="tokenizer"):
        open_tokenizer(written(tmp_path, {**GOOD, "model": model, "added_tokens": []})).encode(
            ["zü"]
        )


def test_ids_of_generation_config_that_no_engine_takes_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 2**40]}))
    assert open_tokenizer(written(tmp_path, GOOD)).stop_tokens == {"<s>"}
