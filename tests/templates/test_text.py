"""Is a text trained whole, with one end, and is an empty one counted instead of lost?"""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Reference
from tokenizers import processors

from penstock.errors import TemplateError
from penstock.templates import TextTemplate, detect, open_template, open_tokenizer
from penstock.templates.text import surround


def texts(template: TextTemplate, values: list[str], key: str = "text") -> list[str]:
    samples = template.encode({key: value} for value in values)
    assert samples.loss_mask.all() and len(samples.loss_mask) == len(samples.input_ids)
    pairs = zip(samples.offsets[:-1], samples.offsets[1:], strict=True)
    return [template.decode(samples.input_ids[start:stop]) for start, stop in pairs]


def test_a_text_comes_back_with_its_end(tokenizer_path: Path) -> None:
    template = TextTemplate(open_tokenizer(tokenizer_path))
    assert texts(template, ["the fox", "🙂"]) == ["the fox<|endoftext|>", "🙂<|endoftext|>"]
    assert texts(TextTemplate(template.tokenizer, eos=False), ["the fox"]) == ["the fox"]
    assert texts(TextTemplate(template.tokenizer, key="body", eos="0"), ["the fox"], "body") == ["the fox0"]


def test_an_empty_text_is_dropped_with_a_reason(tokenizer_path: Path) -> None:
    samples = TextTemplate(open_tokenizer(tokenizer_path)).encode([{"text": ""}, {"text": "a"}, {"text": ""}])
    assert samples.dropped == {0: "nothing_to_train", 2: "nothing_to_train"}
    assert np.diff(samples.offsets).tolist() == [0, 2, 0]


def test_batches_leave_no_trace(tokenizer_path: Path) -> None:
    template = TextTemplate(open_tokenizer(tokenizer_path))
    values = [f"the fox {row} " * (row % 3) for row in range(3000)]
    assert texts(template, values) == [value + "<|endoftext|>" if value else "" for value in values]
    assert template.encode([]).offsets.tolist() == [0]


def test_there_is_never_a_second_bos_or_eos(tokenizer_path: Path) -> None:
    reference = Reference.from_file(str(tokenizer_path / "tokenizer.json"))
    end = reference.token_to_id("<|endoftext|>")
    reference.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A <|endoftext|>", special_tokens=[("<|endoftext|>", end)]
    )
    template = TextTemplate(open_tokenizer(reference), eos="<|endoftext|>")
    assert texts(template, ["the fox", ""]) == ["<|endoftext|>the fox<|endoftext|>", ""]


@given(
    lengths=st.lists(st.integers(0, 5), max_size=10),
    prefix=st.lists(st.integers(100, 200), max_size=3),
    suffix=st.lists(st.integers(100, 200), max_size=3),
)
def test_surround_equals_the_plain_loop(lengths: list[int], prefix: list[int], suffix: list[int]) -> None:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    bare = np.arange(offsets[-1], dtype=np.uint32)
    whole, whole_lengths = surround(bare, offsets, tuple(prefix), tuple(suffix))
    expected = []
    for start, stop in pairwise(offsets):
        expected.append([*prefix, *bare[start:stop].tolist(), *suffix] if stop > start else [])
    assert whole.tolist() == [token for part in expected for token in part]
    assert whole_lengths.tolist() == [len(part) for part in expected]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"body": "a"}, r"key 'text' is missing among \['body'\], expected a string"),
        ({"text": None}, "key 'text' is NoneType, expected a string"),
        ({"text": ["a"]}, "key 'text' is list"),
        ({"text": "half \ud83d"}, "half of a surrogate pair"),
    ],
)
def test_a_record_without_a_text_is_named(tokenizer_path: Path, record: dict, reason: str) -> None:
    with pytest.raises(TemplateError, match=reason) as caught:
        TextTemplate(open_tokenizer(tokenizer_path)).encode([{"text": "a"}] * 1500 + [record])
    assert caught.value.record == 1500


def test_whatever_changes_tokens_is_in_the_identity(tokenizer_path: Path) -> None:
    tokenizer = open_tokenizer(tokenizer_path)
    variants = [
        TextTemplate(tokenizer),
        TextTemplate(tokenizer, eos=False),
        TextTemplate(tokenizer, eos="0"),
        TextTemplate(tokenizer, key="body"),
    ]
    identities = [str(template.identity()) for template in variants]
    assert len(set(identities)) == len(variants)
    assert TextTemplate(tokenizer, eos=True).identity() == variants[0].identity()
    assert str(tokenizer_path) not in identities[0]


def test_an_end_that_is_asked_for_must_be_known(tokenizer_path: Path) -> None:
    tokenizer = open_tokenizer(Reference.from_file(str(tokenizer_path / "tokenizer.json")))
    assert texts(TextTemplate(tokenizer), ["a"]) == ["a"]
    with pytest.raises(TemplateError, match=r"names no eos_token.*pass eos="):
        TextTemplate(tokenizer, eos=True)
    with pytest.raises(TemplateError, match="token '<no>' is not in the vocabulary"):
        TextTemplate(tokenizer, eos="<no>")


def test_templates_by_name(tokenizer_path: Path) -> None:
    tokenizer = open_tokenizer(tokenizer_path)
    assert isinstance(open_template("text", tokenizer, {"key": "body"}), TextTemplate)
    with pytest.raises(TemplateError, match="template 'chat' is not known, expected 'auto' or one of text"):
        open_template("chat", tokenizer, {})
    with pytest.raises(TemplateError, match="template 'text' has no option train_on; it has key, eos"):
        open_template("text", tokenizer, {"train_on": "assistant"})


def test_detection_says_what_it_found() -> None:
    assert detect([{"text": "a"}, {"text": ""}], {}) == "text"
    assert detect([{"body": "a"}], {"key": "body"}) == "text"
    with pytest.raises(TemplateError, match=r"no template fits 2 rows with the keys id \(int\), messages \(list\)"):
        detect([{"messages": []}, {"id": 1}], {})
