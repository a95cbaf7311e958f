"""Is exactly that trained which was meant, when a text is made of pieces?  Encoded as one, a seam changes no token."""

import json
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Reference
from tokenizers import models, pre_tokenizers, processors

from penstock.errors import TemplateError
from penstock.templates import PromptCompletionTemplate, SegmentsTemplate, Tokenizer, open_tokenizer
from penstock.templates.samples import token_mask
from penstock.templates.text import trained_spans
from penstock.templates.tokenizer.byte_offsets import Encoded, borders
from penstock.types import Samples, Template

END = "<|endoftext|>"


@pytest.fixture(scope="module")
def tokenizer(tokenizer_path: Path) -> Tokenizer:
    return open_tokenizer(tokenizer_path)


def read(template: Template, record: dict[str, Any]) -> tuple[str, str]:
    """The whole text and what is trained of it."""
    samples = template.encode([record])
    return template.decode(samples.input_ids), template.decode(samples.input_ids[samples.loss_mask])


def by_sample(samples: Samples) -> list[tuple[list[int], list[bool]]]:
    return [
        (samples.input_ids[start:stop].tolist(), samples.loss_mask[start:stop].tolist())
        for start, stop in pairwise(samples.offsets)
    ]


def test_the_completion_and_its_end_are_trained(tokenizer: Tokenizer) -> None:
    template = PromptCompletionTemplate(tokenizer)
    assert read(template, {"prompt": "the quick", "completion": " fox"}) == (
        f"the quick fox{END}",
        f" fox{END}",
    )
    assert read(template, {"prompt": "", "response": "🙂 fox"}) == (f"🙂 fox{END}", f"🙂 fox{END}")
    everything = PromptCompletionTemplate(tokenizer, train_on="all", eos=False)
    assert read(everything, {"prompt": "the", "completion": " fox"}) == ("the fox", "the fox")
    named = PromptCompletionTemplate(
        tokenizer, input_key="q", output_key="a", separator=" ->\n", eos="0", bos=END
    )
    assert read(named, {"q": "the", "a": "fox"}) == (f"{END}the ->\nfox0", "fox0")


def test_questions_and_answers_are_on_lines_of_their_own(tokenizer: Tokenizer) -> None:
    template = PromptCompletionTemplate(tokenizer, usual="query_response")
    assert read(template, {"Question": "the fox", "answer": "runs"}) == (
        f"the fox\nruns{END}",
        f"runs{END}",
    )
    with pytest.raises(
        TemplateError, match=r"for output_key the record has 2: answer, solution; name"
    ) as caught:
        template.encode(
            [{"problem": "a", "answer": "b"}] * 1100
            + [{"problem": "a", "answer": "b", "solution": "c"}]
        )
    assert caught.value.record == 1100


def test_a_token_across_the_seam_is_trained_whole() -> None:
    """`the` is one token of the whole text, and no other token could write its last letter."""
    reference = Reference(
        models.BPE({"t": 0, "h": 1, "e": 2, "th": 3, "the": 4}, [("t", "h"), ("th", "e")])
    )
    reference.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    template = PromptCompletionTemplate(open_tokenizer(reference))
    assert by_sample(template.encode([{"prompt": "thet", "completion": "he"}])) == [
        ([4, 4], [False, True])
    ]
    assert by_sample(template.encode([{"prompt": "thethe", "completion": "the"}])) == [
        ([4, 4, 4], [False, False, True])
    ]


def test_nothing_to_train_is_counted_even_where_an_end_could_be(tokenizer: Tokenizer) -> None:
    template = PromptCompletionTemplate(tokenizer)
    samples = template.encode(
        [{"prompt": "the", "completion": ""}, {"prompt": "", "completion": "a"}]
    )
    assert samples.dropped == {0: "nothing_to_train"} and samples.offsets.tolist() == [0, 0, 2]
    segments = SegmentsTemplate(tokenizer, eos=True)
    untrained = [{"text": "the fox", "label": False}]
    samples = segments.encode(
        [{"segments": []}, {"segments": untrained}, {"segments": [{"text": "a", "label": True}]}]
    )
    assert samples.dropped == {0: "nothing_to_train", 1: "nothing_to_train"}
    with pytest.raises(TemplateError, match="no token of this record is trained") as caught:
        SegmentsTemplate(tokenizer, on_nothing="stop").encode(
            [{"segments": [{"text": "the fox runs", "label": 1}]}, {"segments": []}]
        )
    assert caught.value.record == 1


def test_segments_say_what_is_trained(tokenizer: Tokenizer) -> None:
    parts = [
        ("the", True),
        (" quick brown", False),
        (" fox", True),
        ("", True),
        (" runs 🙂", False),
    ]
    record = {"segments": [{"text": text, "label": label} for text, label in parts]}
    assert read(SegmentsTemplate(tokenizer), record) == ("the quick brown fox runs 🙂", "the fox")
    assert (
        read(SegmentsTemplate(tokenizer, eos=True), record)[1] == "the fox"
    )  # the end follows what is not trained
    record["segments"].append({"text": END, "label": True})
    assert read(SegmentsTemplate(tokenizer, eos=True, key="segments"), record)[1] == f"the fox{END}"


def test_there_is_one_bos_and_it_is_not_trained(tokenizer_path: Path) -> None:
    reference = Reference.from_file(str(tokenizer_path / "tokenizer.json"))
    begin = reference.token_to_id(END)
    reference.post_processor = processors.TemplateProcessing(
        single=f"{END} $A", special_tokens=[(END, begin)]
    )
    tokenizer = open_tokenizer(reference)
    for prompt in ("the", f"{END}the"):
        template = PromptCompletionTemplate(tokenizer)
        assert read(template, {"prompt": prompt, "completion": " fox"}) == (f"{END}the fox", " fox")
        segments = [{"text": prompt, "label": False}, {"text": " fox", "label": True}]
        assert read(SegmentsTemplate(tokenizer), {"segments": segments}) == (
            f"{END}the fox",
            " fox",
        )


def test_special_tokens_in_text_can_be_text(tokenizer: Tokenizer) -> None:
    record = {"prompt": "a", "completion": END}
    assert by_sample(PromptCompletionTemplate(tokenizer, eos=False).encode([record]))[0][1] == [
        False,
        True,
    ]
    as_text = PromptCompletionTemplate(tokenizer, eos=False, special_in_text="text").encode(
        [record]
    )
    assert len(as_text.input_ids) > 3 and tokenizer.eos_id not in as_text.input_ids
    with pytest.raises(TemplateError) as caught:
        PromptCompletionTemplate(tokenizer, special_in_text="error").encode(
            [{**record, "completion": "b"}, record]
        )
    assert caught.value.record == 1


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (
            {"prompt": "a"},
            r"key 'completion' is missing among \['prompt'\], expected a string; name the key with output_key=",
        ),
        ({"prompt": None, "completion": "a"}, "key 'prompt' is null, expected a string"),
        (
            {"prompt": [{"role": "user"}], "completion": "a"},
            "key 'prompt' is list, expected a string; chat=True takes",
        ),
        ({"prompt": "a", "completion": "half \ud83d"}, "half of a surrogate pair"),
    ],
)
def test_a_prompt_or_completion_that_is_no_text_is_named(
    tokenizer: Tokenizer, record: dict[str, Any], reason: str
) -> None:
    with pytest.raises(TemplateError, match=reason) as caught:
        PromptCompletionTemplate(tokenizer).encode(
            [{"prompt": "a", "completion": "b"}] * 1300 + [record]
        )
    assert caught.value.record == 1300


@pytest.mark.parametrize(
    ("segments", "reason"),
    [
        ("abc", "key 'segments' is str, expected a list of {text, label}"),
        (["abc"], "segment 0 is 'abc', expected {'text': a string, 'label': true or false}"),
        ([{"text": "a"}], "segment 0 is"),
        ([{"text": "a", "label": True}, {"text": "b", "label": 0.5}], "segment 1 is"),
    ],
)
def test_segments_that_are_none_are_named(tokenizer: Tokenizer, segments: Any, reason: str) -> None:
    with pytest.raises(TemplateError) as caught:
        SegmentsTemplate(tokenizer).encode([{"segments": []}, {"segments": segments}])
    assert reason in str(caught.value) and caught.value.record == 1
    with pytest.raises(TemplateError, match="key 'segments' is missing"):
        SegmentsTemplate(tokenizer).encode([{}])


def test_whatever_changes_tokens_is_in_the_identity(tokenizer: Tokenizer) -> None:
    variants = [
        PromptCompletionTemplate(tokenizer),
        PromptCompletionTemplate(tokenizer, usual="query_response"),
        PromptCompletionTemplate(tokenizer, input_key="q"),
        PromptCompletionTemplate(tokenizer, output_key="a"),
        PromptCompletionTemplate(tokenizer, separator=" "),
        PromptCompletionTemplate(tokenizer, train_on="all"),
        PromptCompletionTemplate(tokenizer, eos=False),
        PromptCompletionTemplate(tokenizer, bos="0"),
        PromptCompletionTemplate(tokenizer, special_in_text="text"),
        SegmentsTemplate(tokenizer),
        SegmentsTemplate(tokenizer, key="parts"),
        SegmentsTemplate(tokenizer, eos=True),
        SegmentsTemplate(tokenizer, special_in_text="text"),
    ]
    assert len({json.dumps(template.identity()) for template in variants}) == len(variants)
    with pytest.raises(
        TemplateError, match="train_on='user' is not known, expected one of 'completion', 'all'"
    ):
        PromptCompletionTemplate(tokenizer, train_on="user")


@pytest.mark.parametrize("train_on", ["assistant", "last"])
def test_the_answer_of_plain_text_may_be_called_as_in_a_chat(tokenizer: Any, train_on: str) -> None:
    """A recipe says train_on once for all of its datasets, and other tools have words for turns only."""
    made = PromptCompletionTemplate(tokenizer, train_on=train_on)
    assert made.identity() == PromptCompletionTemplate(tokenizer, train_on="completion").identity()


LETTERS = st.text(alphabet="the fox🙂é\n", max_size=8)
PIECES = st.lists(st.tuples(LETTERS, st.booleans()), max_size=5)


@given(st.lists(PIECES, max_size=6))
def test_segments_of_many_records_equal_those_of_each(
    tokenizer: Tokenizer, texts: list[list[tuple[str, bool]]]
) -> None:
    """A token is trained where it touches a trained byte, counted byte by byte; the ids are those of the whole text."""
    template = SegmentsTemplate(tokenizer)
    records = [
        {"segments": [{"text": text, "label": label} for text, label in pieces]} for pieces in texts
    ]
    for (ids, mask), pieces in zip(by_sample(template.encode(records)), texts, strict=True):
        is_trained = [label for text, label in pieces for _ in text.encode()]
        encoded = tokenizer.encode_spans(["".join(text for text, _ in pieces)])
        spans = zip(encoded.starts.tolist(), encoded.stops.tolist(), strict=True)
        expected = [any(is_trained[start:stop]) for start, stop in spans]
        assert (ids, mask) == (
            (encoded.ids.tolist(), expected) if any(expected[1:]) else ([], [])
        )  # nothing predicts the first


@given(
    st.lists(PIECES.filter(lambda pieces: any(text for text, _ in pieces)), min_size=1, max_size=4),
    st.data(),
)
def test_marks_equal_the_plain_loop(
    texts: list[list[tuple[str, bool]]], data: st.DataObject
) -> None:
    """Tokens of any size, also of none: those count as the byte they stand before, or the last one."""
    starts, stops, lengths, expected = [], [], [], []
    for pieces in texts:
        is_trained = [label for text, label in pieces for _ in text.encode()]
        sizes = data.draw(st.lists(st.integers(0, 3), max_size=8))
        ends = [min(end, len(is_trained)) for end in accumulate(sizes, initial=0)]
        for start, stop in pairwise(ends):
            starts.append(start)
            stops.append(stop)
            first = min(start, len(is_trained) - 1)
            expected.append(any(is_trained[first : max(stop, first + 1)]))
        lengths.append(len(sizes))
    ids, begins, ends = (
        np.array(values, np.int64) for values in ([0] * len(starts), starts, stops)
    )
    encoded = Encoded(
        ids=ids.astype(np.uint32), offsets=borders(lengths), starts=begins, stops=ends
    )
    joined = ["".join(text for text, _ in pieces) for pieces in texts]
    assert (
        token_mask(encoded, joined, [trained_spans(pieces) for pieces in texts]).tolist()
        == expected
    )
