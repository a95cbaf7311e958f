"""Does a function of the user's make samples of any kind, in the order of the records, under its own version?"""

import json
import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import TemplateError
from penstock.templates import Conversation, FunctionTemplate, Tokenizer, open_tokenizer

CHAT = {
    "chat_template": "{% for m in messages %}{{ m.role }}: {{ m.content }}<|endoftext|>\n{% endfor %}"
}


@pytest.fixture(scope="module")
def tokenizer(tokenizer_path: Path) -> Tokenizer:
    return open_tokenizer(tokenizer_path)


def answer(record: dict[str, Any]) -> Any:
    """Whatever the record asks for."""
    if record["as"] == "ids":
        return {"input_ids": record["ids"], "loss_mask": record["mask"]}
    if record["as"] == "segments":
        return [
            {"text": "the", "label": False},
            {"text": record["text"], "label": bool(record["text"])},
        ]
    if record["as"] == "conversation":
        said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": record["text"]}]
        return Conversation(messages=said[: 1 + bool(record["text"])])
    return record["as"]


class Answers:
    def __call__(self, record: dict[str, Any]) -> Any:
        return answer(record)


RECORDS = [
    {"as": "segments", "text": " fox"},
    {"as": "ids", "ids": [1, 2, 3], "mask": [0, 1, 0]},
    {"as": "conversation", "text": "hello"},
    {"as": "segments", "text": ""},
    {"as": "ids", "ids": [4, 5], "mask": [1, 1]},
    {"as": "conversation", "text": ""},
    {"as": "conversation", "text": "bye"},
]


def test_answers_of_all_kinds_stay_in_the_order_of_their_records(tokenizer: Tokenizer) -> None:
    template = FunctionTemplate(answer, tokenizer, version="1", chat=CHAT)
    samples = template.encode(RECORDS * 400)
    assert {number % 7: why for number, why in samples.dropped.items()} == {
        3: "nothing_to_train",
        5: "nothing_to_train",
    }
    trained = []
    for start, stop in pairwise(samples.offsets.tolist()):
        trained.append(
            template.decode(samples.input_ids[start:stop][samples.loss_mask[start:stop]])
        )
    ids = [template.decode(np.array(some, np.uint32)) for some in ([2], [4, 5])]
    assert (
        trained == [" fox", ids[0], "hello<|endoftext|>", "", ids[1], "", "bye<|endoftext|>"] * 400
    )
    offsets = samples.offsets
    assert samples.input_ids[offsets[1] : offsets[2]].tolist() == [1, 2, 3]
    assert samples.loss_mask[offsets[1] : offsets[2]].tolist() == [False, True, False]
    assert samples.input_ids[offsets[4] : offsets[5]].tolist() == [4, 5]
    copied = pickle.loads(pickle.dumps(template))
    assert copied.identity() == template.identity()
    assert copied.encode(RECORDS).input_ids.tolist() == template.encode(RECORDS).input_ids.tolist()


def test_what_a_chat_template_does_not_print_of_its_conversations_is_noted(
    tokenizer: Tokenizer,
) -> None:
    def with_thought(record: dict[str, Any]) -> Any:
        given = answer(record)
        if isinstance(given, Conversation):
            given.messages[-1]["reasoning_content"] = "think"
        return given

    samples = FunctionTemplate(with_thought, tokenizer, version="1", chat=CHAT).encode(
        [*RECORDS[:3], *RECORDS[6:]]
    )
    assert samples.notes == {"unrendered: assistant.reasoning_content": {2: 5, 3: 5}}
    assert samples.assistant_characters == len("hellobyethinkthink")


def test_it_is_prepared_like_any_template(tokenizer: Tokenizer, tmp_path: Path) -> None:
    template = FunctionTemplate(answer, tokenizer, version="1", eos=True)
    store = ps.prepare(
        [{"as": "segments", "text": " fox"}] * 3, template=template, cache_dir=tmp_path, num_proc=2
    )
    assert store[2].text == "the fox<|endoftext|>"


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (
            {"as": None},
            "test_function.answer returned NoneType 'None', expected a dict with input_ids, a list of",
        ),
        ({"as": {"tokens": []}}, "test_function.answer returned dict"),
        (
            {"as": "ids", "ids": [10**6], "mask": [1]},
            "returned an unusable value: key 'input_ids' holds 1000000 at place 0",
        ),
        ({"as": [{"text": 1}]}, "returned an unusable value: its list, segment 0 is"),
        ({"as": "conversation", "text": "a"}, "returned a Conversation; pass chat={} or options"),
    ],
)
def test_an_answer_that_cannot_be_used_is_named(
    tokenizer: Tokenizer, asked: dict[str, Any], reason: str
) -> None:
    template = FunctionTemplate(answer, tokenizer, version="1")
    fine = [{"as": "segments", "text": "a"}, {"as": "ids", "ids": [1], "mask": [1]}]
    with pytest.raises(TemplateError) as caught:
        template.encode([*fine * 600, asked])
    assert reason in str(caught.value) and caught.value.record == 1200


def test_nothing_to_train_stops_whoever_dropped_it(tokenizer: Tokenizer) -> None:
    template = FunctionTemplate(answer, tokenizer, version="1", on_nothing="stop")
    with pytest.raises(TemplateError, match="no token of this record is trained") as caught:
        template.encode(
            [{"as": "ids", "ids": [1, 2], "mask": [0, 1]}, {"as": "ids", "ids": [1], "mask": [0]}]
        )
    assert caught.value.record == 1


def test_name_and_version_are_in_the_identity(tokenizer: Tokenizer) -> None:
    variants = [
        FunctionTemplate(answer, tokenizer, version="1"),
        FunctionTemplate(answer, tokenizer, version="2"),
        FunctionTemplate(Answers(), tokenizer, version="1"),
        FunctionTemplate(answer, tokenizer, version="1", eos=True),
        FunctionTemplate(answer, tokenizer, version="1", bos="0"),
        FunctionTemplate(answer, tokenizer, version="1", special_in_text="text"),
        FunctionTemplate(answer, tokenizer, version="1", chat=CHAT),
    ]
    assert len({json.dumps(template.identity()) for template in variants}) == len(variants)
    assert variants[0].name.endswith("test_function.answer") and variants[2].name.endswith(
        "test_function.Answers"
    )
    for version in ("", 1, None):
        with pytest.raises(TemplateError, match="expected text such as '1'"):
            FunctionTemplate(answer, tokenizer, version=version)  # type: ignore[arg-type]
    with pytest.raises(TemplateError, match="function is a str"):
        FunctionTemplate("answer", tokenizer, version="1")  # type: ignore[arg-type]
