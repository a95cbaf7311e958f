"""Are ids taken as they are, and whatever is wrong with them or their labels named?"""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import TemplateError
from penstock.templates import PretokenizedTemplate, open_tokenizer

IDS = [5, 6, 7, 8]


def masks(template: PretokenizedTemplate, *records: dict[str, Any]) -> list[list[bool]]:
    samples = template.encode(records)
    for record, (start, stop) in zip(records, pairwise(samples.offsets), strict=True):
        assert samples.input_ids[start:stop].tolist() == list(record[template.input_key])
    return [samples.loss_mask[start:stop].tolist() for start, stop in pairwise(samples.offsets)]


def test_labels_and_masks_say_what_is_trained() -> None:
    template = PretokenizedTemplate(vocab_size=9)
    last = [False, False, True, True]
    assert masks(template, {"input_ids": IDS}) == [[True] * 4]
    assert masks(template, {"input_ids": IDS, "labels": [-100, -100, 7, 8]}) == [last]
    assert masks(
        template, {"input_ids": IDS, "loss_mask": [0, 0, 1, 1], "attention_mask": [1] * 4}
    ) == [last]
    assert masks(template, {"input_ids": IDS, "assistant_masks": last, "labels": None}) == [last]
    both = {"input_ids": IDS, "assistant_masks": [0, 1, 1, 1], "completion_mask": [1, 0, 1, 1]}
    assert masks(template, both) == [last]
    agreeing = {"input_ids": IDS, "labels": [-100, -100, 7, 8], "completion_mask": last}
    assert masks(template, agreeing) == [last]
    named = PretokenizedTemplate(
        vocab_size=9, input_key="tokens", labels_key="targets", ignore_index=-1
    )
    assert masks(named, {"tokens": IDS, "targets": [-1, -1, 7, 8]}) == [last]
    assert masks(
        PretokenizedTemplate(vocab_size=9, mask_key="loss"), {"input_ids": IDS, "loss": last}
    ) == [last]


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.uint32, np.int64, np.uint64])
def test_arrays_are_as_good_as_lists(dtype: type[np.integer[Any]]) -> None:
    record = {"input_ids": np.array(IDS, dtype), "loss_mask": np.array([1, 0, 0, 1], dtype)}
    samples = PretokenizedTemplate(vocab_size=9).encode([record, {"input_ids": IDS}])
    assert samples.input_ids.tolist() == IDS * 2 and samples.input_ids.dtype == np.uint32
    assert samples.loss_mask.tolist() == [True, False, False, True] + [True] * 4


def test_nothing_to_train_is_counted() -> None:
    records = [{"input_ids": IDS, "labels": [-100] * 4}, {"input_ids": []}, {"input_ids": IDS}]
    samples = PretokenizedTemplate(vocab_size=9).encode(records)
    assert samples.dropped == {0: "nothing_to_train", 1: "nothing_to_train"}
    assert samples.offsets.tolist() == [0, 0, 0, 4]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (
            {},
            "key 'input_ids' is missing among [], expected a list of ids; name the key with input_key=",
        ),
        (
            {"input_ids": "abc"},
            "key 'input_ids' is a str of <U3 with 0 dimensions, expected a flat list of integers",
        ),
        ({"input_ids": [1.0, 2.0]}, "is a list of float64"),
        ({"input_ids": [[1], [2, 3]]}, "expected a flat list of integers"),
        ({"input_ids": [[1, 2]]}, "with 2 dimensions, expected a flat list"),
        ({"input_ids": [True, False]}, "is a list of bool"),
        (
            {"input_ids": [1, -1]},
            "key 'input_ids' holds -1 at place 1, expected 0 <= id < 9 (vocab_size)",
        ),
        ({"input_ids": [1, 9]}, "holds 9 at place 1"),
        (
            {"input_ids": IDS, "labels": [5]},
            "key 'labels' has 1 labels for 4 ids, expected one each",
        ),
        (
            {"input_ids": IDS, "labels": [5, 6, 8, 8]},
            "differs from the ids at 1 places, first at 2: label 8, id 7; expected",
        ),
        (
            {"input_ids": IDS, "labels": [6, 7, 8, -100]},
            "they look shifted by one already, but the loader shifts labels",
        ),
        (
            {"input_ids": IDS, "loss_mask": [1]},
            "key 'loss_mask' has the shape (1,) for 4 ids, expected one value each",
        ),
        (
            {"input_ids": IDS, "loss_mask": [0, 1, 2, 0]},
            "key 'loss_mask' holds 2, expected 0 and 1, or true and false",
        ),
        ({"input_ids": IDS, "loss_mask": [0.5] * 4}, "key 'loss_mask' is a list of float64"),
        (
            {"input_ids": IDS, "attention_mask": [1, 1, 1, 0]},
            "has 1 zeros among 4, expected only ones: samples are stored",
        ),
        (
            {"input_ids": IDS, "labels": IDS, "loss_mask": [0, 1, 1, 1]},
            "disagree at 1 of 4 tokens; choose one with mask_key=",
        ),
    ],
)
def test_what_cannot_be_taken_is_named(record: dict[str, Any], reason: str) -> None:
    with pytest.raises(TemplateError) as caught:
        PretokenizedTemplate(vocab_size=9).encode([{"input_ids": IDS}] * 1100 + [record])
    assert reason in str(caught.value) and caught.value.record == 1100


def test_a_tokenizer_is_only_needed_to_read_them(
    tokenizer_path: Path, write_jsonl: Callable[..., Path]
) -> None:
    tokenizer = open_tokenizer(tokenizer_path)
    with_one = PretokenizedTemplate(tokenizer)
    assert with_one.vocab_size == tokenizer.vocab_size
    assert with_one.decode(tokenizer.encode(["the fox"])[0]) == "the fox"
    assert (
        PretokenizedTemplate(tokenizer, vocab_size=512).vocab_size == 512
    )  # a model's embedding may be wider
    with pytest.raises(
        TemplateError, match="vocab_size is None, expected the size of the vocabulary"
    ):
        PretokenizedTemplate()
    store = ps.prepare(
        path := write_jsonl([{"input_ids": IDS}]), vocab_size=9, cache_dir=path.parent / "cache"
    )
    assert store[0].input_ids.tolist() == IDS
    with pytest.raises(
        TemplateError, match="no tokenizer was given; pass tokenizer= to read them as text"
    ):
        store.template.decode(store[0].input_ids)


def test_whatever_changes_tokens_is_in_the_identity() -> None:
    variants = [
        PretokenizedTemplate(vocab_size=9),
        PretokenizedTemplate(vocab_size=10),
        PretokenizedTemplate(vocab_size=9, input_key="x"),
        PretokenizedTemplate(vocab_size=9, labels_key="x"),
        PretokenizedTemplate(vocab_size=9, mask_key="x"),
        PretokenizedTemplate(vocab_size=9, ignore_index=-1),
    ]
    assert len({json.dumps(template.identity()) for template in variants}) == len(variants)
