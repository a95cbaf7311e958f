"""Does every token name the bytes it stands for?  Compared with the offsets of `tokenizers` on vocabularies made here."""

import re

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Reference
from tokenizers import pre_tokenizers

from penstock.templates import open_tokenizer
from penstock.templates.tokenizer.byte_offsets import _has_unassigned, by_table, byte_level_alphabet
from penstock.templates.tokenizer.engines import PROBE

from .vocabularies import CORPUS, EVERY, FAST, NO_TABLE, TEXT, VOCABULARIES, both, expected, told


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=40, deadline=None)
@given(texts=st.lists(TEXT, max_size=5))
@example(texts=["", "", "<s>", ""])
@example(texts=["🙂 a<s>你 好<s> x", " <mask>  a", "<mask> a", "<s> <s>a"])
@example(texts=["aq", "~a", "the~ fox"])
@example(texts=list(PROBE))
def test_spans_are_the_offsets_of_tokenizers(name: str, texts: list[str]) -> None:
    tokenizer, oracle = both(name)
    encoded = tokenizer.encode_spans(texts)
    assert len(encoded.offsets) == len(texts) + 1 and encoded.offsets[-1] == len(encoded.ids)
    for number, text in enumerate(texts):
        assert told(encoded, number, text) == expected(oracle, text), text


@pytest.mark.parametrize("name", VOCABULARIES)
def test_either_engine_gives_the_same_spans(name: str) -> None:
    tokenizer, oracle = both(name)
    assert tokenizer.engine.startswith("fastokens" if name in FAST else "tokenizers"), (
        tokenizer.describe()
    )
    slow = open_tokenizer(
        Reference.from_str(oracle.to_str() + " ")
    )  # another object, so that one can lose its engine
    slow._fast = None
    texts = [*PROBE, *CORPUS[:2], "<s>a b</s><think> 🙂", "e\u0301"]
    for special in ("token", "text") if name != "unigram" else ("token",):
        one, other = (
            tokenizer.encode_spans(texts, special=special),
            slow.encode_spans(texts, special=special),
        )
        for field in ("ids", "offsets", "starts", "stops"):
            assert getattr(one, field).tolist() == getattr(other, field).tolist()
            assert getattr(one, field).dtype == (np.uint32 if field == "ids" else np.int64)


@pytest.mark.parametrize("name", sorted(VOCABULARIES.keys() - NO_TABLE))
def test_ordinary_text_needs_no_reference(name: str) -> None:
    tokenizer, _ = both(name)
    texts = ["hello the fox", "Grüße 🙂 你好", "", "<s>the fox</s>hello<think>x", "\n\n  two", "好"]
    assert tokenizer._table is not None
    ids, offsets = tokenizer.encode(texts)
    _, wrong = by_table(tokenizer._table, texts, ids, offsets)
    assert wrong.tolist() == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("byte level, NFC", "e\u0301"),  # shorter once it is normal
        (
            "byte level, NFC",
            "a\ufdd0\u0301",
        ),  # unknown to Python's tables, as younger characters are: order unknown
        ("gemma", "a▁b"),  # ▁ counts as a blank
        ("metaspace, always", "a<s> b<s>c"),  # two of three segments get a blank
        ("stripping", "<mask> a"),  # a blank taken and one given
    ],
)
def test_where_the_table_cannot_know_the_reference_answers(name: str, text: str) -> None:
    tokenizer, oracle = both(name)
    assert tokenizer._table is not None
    _, wrong = by_table(tokenizer._table, [text], *tokenizer.encode([text]))
    assert wrong.tolist() == [0]
    assert told(tokenizer.encode_spans([text]), 0, text) == expected(oracle, text)


@pytest.mark.parametrize("name", sorted(NO_TABLE))
def test_a_vocabulary_without_a_table_says_why(name: str) -> None:
    tokenizer, _ = both(name)
    assert tokenizer._table is None
    reason = {
        "dropping": "drops what it does not know",
        "removing": "can cancel in a sum",
        "word piece": "a WordPiece vocabulary",
        "unigram": "a Unigram",
    }
    found = re.search(
        r"^offsets   from the reference engine \((.*)\)$", tokenizer.describe(), flags=re.MULTILINE
    )
    assert found is not None and reason[name] in found[1]


def test_the_alphabet_of_bytes_is_that_of_tokenizers() -> None:
    assert byte_level_alphabet() == set(pre_tokenizers.ByteLevel.alphabet())


def test_characters_that_python_does_not_know_are_found() -> None:
    assert _has_unassigned("a\u0378b") and not _has_unassigned("Grüße 你好 \U0001f642 \U000e0fff")


@pytest.mark.parametrize("name", EVERY)
def test_small_data_gets_the_same_tokens_without_a_table(name: str) -> None:
    """Offsets differ only within characters: `tokenizers` counts whole ones."""
    tokenizer, _ = both(name)
    small = tokenizer.with_engine(fast=False)
    assert small._table is None
    texts = [*PROBE, *CORPUS[:2], "<s>a b</s><think> 🙂", "e\u0301"]
    one, other = tokenizer.encode_spans(texts), small.encode_spans(texts)
    assert one.ids.tolist() == other.ids.tolist() and one.offsets.tolist() == other.offsets.tolist()
    for number, text in enumerate(texts):
        assert told(one, number, text) == told(other, number, text)
