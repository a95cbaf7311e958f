"""Is a text trained whole, with one end, and is an empty one counted instead of lost?"""

from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Reference
from tokenizers import processors

from penstock.errors import TemplateError
from penstock.templates import TextTemplate, open_tokenizer
from penstock.templates.text import PromptCompletionTemplate, SampleEnds
from penstock.types import Samples


def texts(template: TextTemplate, values: list[str], key: str = "text") -> list[str]:
    samples = template.encode({key: value} for value in values)
    assert samples.loss_mask.all() and len(samples.loss_mask) == len(samples.input_ids)
    pairs = zip(samples.offsets[:-1], samples.offsets[1:], strict=True)
    return [template.decode(samples.input_ids[start:stop]) for start, stop in pairs]


def test_a_text_comes_back_with_its_end(tokenizer_path: Path) -> None:
    template = TextTemplate(open_tokenizer(tokenizer_path))
    assert texts(template, ["the fox", "🙂"]) == ["the fox<|endoftext|>", "🙂<|endoftext|>"]
    assert texts(TextTemplate(template.tokenizer, eos=False), ["the fox"]) == ["the fox"]
    assert texts(TextTemplate(template.tokenizer, key="body", eos="0"), ["the fox"], "body") == [
        "the fox0"
    ]


def test_an_empty_text_is_dropped_with_a_reason(tokenizer_path: Path) -> None:
    samples = TextTemplate(open_tokenizer(tokenizer_path)).encode(
        [{"text": ""}, {"text": "a"}, {"text": ""}]
    )
    assert samples.dropped == {0: "nothing_to_train", 2: "nothing_to_train"}
    assert np.diff(samples.offsets).tolist() == [0, 2, 0]


def test_a_text_with_tags_is_not_trained_without_its_images(tokenizer_path: Path) -> None:
    tokenizer = open_tokenizer(tokenizer_path)
    answered = PromptCompletionTemplate(tokenizer)
    with pytest.raises(
        TemplateError,
        match="the record has media and tags for them in its text, and only conversations take media",
    ):
        TextTemplate(tokenizer).encode([{"text": "a fox: <image>", "images": ["fox.png"]}])
    with pytest.raises(TemplateError, match="pass chat=True for a prompt with an answer"):
        answered.encode([{"prompt": "<image> what?", "completion": "a fox", "image": "fox.png"}])
    for record in (
        {"text": "a fox", "images": ["fox.png"]},
        {"text": "write <image>", "images": []},
    ):
        assert texts(TextTemplate(tokenizer), [record["text"]]) == [
            f"{record['text']}<|endoftext|>"
        ]
        assert not TextTemplate(tokenizer).encode([record]).dropped


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
    lengths=st.lists(st.integers(0, 4), max_size=10),
    prefix=st.lists(st.integers(0, 2), max_size=2),
    suffix=st.lists(st.integers(0, 2), max_size=2),
    numbers=st.randoms(use_true_random=False),
)
def test_ends_equal_the_plain_loop(
    lengths: list[int], prefix: list[int], suffix: list[int], numbers: Random
) -> None:
    """Few different ids, so that a text often has its ends already."""
    total = sum(lengths)
    ids = np.array([numbers.randrange(3) for _ in range(total)], np.uint32)
    mask = np.array([numbers.randrange(2) for _ in range(total)], np.bool_)
    bare = Samples(input_ids=ids, loss_mask=mask, offsets=np.cumsum([0, *lengths]))
    whole = SampleEnds(tuple(prefix), tuple(suffix)).around(bare, train_prefix=False)
    expected, expected_mask, expected_lengths, start = [], [], [], 0
    for length in lengths:
        own, own_mask = ids[start : start + length].tolist(), mask[start : start + length].tolist()
        start += length
        before = prefix if own and own[: len(prefix)] != prefix else []
        after = suffix if own and own[len(own) - len(suffix) :] != suffix else []
        expected += [*before, *own, *after]
        expected_mask += (
            [*[False] * len(before), *own_mask, *[own_mask[-1]] * len(after)] if own else []
        )
        expected_lengths.append(len(before) + len(own) + len(after))
    assert whole.input_ids.tolist() == expected and whole.input_ids.dtype == np.uint32
    assert whole.loss_mask.tolist() == expected_mask and whole.loss_mask.dtype == np.bool_
    assert np.diff(whole.offsets).tolist() == expected_lengths


def test_a_text_that_has_its_ends_gets_no_second_ones(tokenizer_path: Path) -> None:
    tokenizer = open_tokenizer(tokenizer_path)
    template = TextTemplate(tokenizer, bos="<|endoftext|>")
    whole = "<|endoftext|>the fox<|endoftext|>"
    assert texts(template, ["the fox", whole, "<|endoftext|>the fox"]) == [whole] * 3
    as_text = TextTemplate(tokenizer, special_in_text="text")
    assert texts(as_text, ["<|endoftext|>a"]) == ["<|endoftext|>a<|endoftext|>"]
    assert len(as_text.encode([{"text": "<|endoftext|>a"}]).input_ids) > 3
    with pytest.raises(TemplateError) as caught:
        TextTemplate(tokenizer, special_in_text="error").encode(
            [{"text": "a"}] * 1500 + [{"text": "<|endoftext|>a"}]
        )
    assert caught.value.record == 1500


def test_nothing_to_train_can_stop_the_work(tokenizer_path: Path) -> None:
    template = TextTemplate(open_tokenizer(tokenizer_path), on_nothing="stop")
    with pytest.raises(
        TemplateError,
        match=r"no token of this record is trained, or only its first.*pass on_nothing='drop'",
    ) as caught:
        template.encode([{"text": "a"}] * 1200 + [{"text": ""}])
    assert caught.value.record == 1200
    with pytest.raises(
        TemplateError, match="on_nothing='skip' is not known, expected one of 'drop', 'stop'"
    ):
        TextTemplate(open_tokenizer(tokenizer_path), on_nothing="skip")


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"body": "a"}, r"key 'text' is missing among \['body'\], expected a string"),
        ({"text": None}, "key 'text' is null, expected a string"),
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
    assert texts(TextTemplate(tokenizer), ["a fox"]) == ["a fox"]
    with pytest.raises(TemplateError, match=r"names no eos_token.*pass eos="):
        TextTemplate(tokenizer, eos=True)
    with pytest.raises(TemplateError, match="token '<no>' is not in the vocabulary"):
        TextTemplate(tokenizer, eos="<no>")
    with pytest.raises(TemplateError, match=r"names no bos_token.*pass bos="):
        TextTemplate(tokenizer, bos=True)
