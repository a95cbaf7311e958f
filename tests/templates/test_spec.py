"""A template by name is known without being opened, and each process opens its own."""

import logging
import pickle
from pathlib import Path

import numpy as np
import pytest

from penstock.cache import Cache
from penstock.errors import TemplateError
from penstock.templates import TemplateSpec, open_template, open_tokenizer

RECORDS = [{"text": "the quick fox"}, {"text": "jumps"}]


def test_a_spec_has_the_identity_of_its_template(tokenizer_path: Path, cache: Cache) -> None:
    tokenizer = open_tokenizer(tokenizer_path, cache=cache)
    spec = TemplateSpec("text", tokenizer, {"eos": False}, cache)
    template = open_template("text", tokenizer, {"eos": False})
    assert spec.identity() == template.identity() == spec.open().identity()
    assert (spec.vocab_size, spec.columns) == (template.vocab_size, ())
    assert np.array_equal(spec.open().encode(RECORDS).input_ids, template.encode(RECORDS).input_ids)


def test_a_spec_that_was_sent_to_a_process_opens_its_own_template(
    tokenizer_path: Path, cache: Cache
) -> None:
    spec = TemplateSpec("text", open_tokenizer(tokenizer_path, cache=cache), {}, cache)
    opened = spec.open()
    sent = pickle.loads(pickle.dumps(spec))
    assert sent.identity() == spec.identity()
    assert sent.open() is sent.open() is not opened
    assert np.array_equal(sent.open().encode(RECORDS).input_ids, opened.encode(RECORDS).input_ids)


def test_wrong_options_are_refused_when_the_spec_is_made(
    tokenizer_path: Path, cache: Cache
) -> None:
    tokenizer = open_tokenizer(tokenizer_path, cache=cache)
    with pytest.raises(TemplateError, match="template 'text' has no option train_on"):
        TemplateSpec("text", tokenizer, {"train_on": "all"}, cache)


def test_a_warning_is_logged_once_and_again_when_the_identity_is_recalled(
    tokenizer_path: Path, cache: Cache, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = open_tokenizer(tokenizer_path, cache=cache)
    options = {"on_missing_tokens": "warn"}
    with caplog.at_level(logging.WARNING, "penstock"):
        TemplateSpec("messages", tokenizer, options, cache).open()
    first = list(caplog.messages)
    assert sum("has no chat template" in message for message in first) == 1
    caplog.clear()
    with caplog.at_level(logging.WARNING, "penstock"):
        TemplateSpec("messages", tokenizer, options, cache).open()
    assert caplog.messages == first
