"""Is the right template found, said aloud, and a choice between two left to the user?"""

import json
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import TemplateError
from penstock.templates import detect, known_options, open_template, open_tokenizer, template_names
from tests.raised import raises_code

REAL = Path(os.environ.get("PENSTOCK_REAL_DATA", "real data")) / "data"

SAID = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
SHARED = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]

ROWS: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {  # record, options found
    "text": [({"text": "a", "id": 1}, {}), ({"text": ""}, {})],
    "messages": [
        ({"messages": SAID, "prompt": "hi", "prompt_id": "x"}, {}),
        ({"messages": json.dumps(SAID)}, {}),
        ({"messages": SAID, "conversations": None}, {}),
    ],
    "sharegpt": [
        ({"conversations": SHARED, "tools": "[]"}, {}),
        ({"conversations": SAID}, {}),
        ({"conversation": [{"human": "hi", "assistant": "hello"}]}, {}),
        ({"messages": SHARED}, {"messages_key": "messages"}),
    ],
    "alpaca": [
        ({"instruction": "a", "input": "", "output": "b"}, {}),
        ({"instruction": "a", "output": "b", "history": []}, {}),
        ({"instruction": "a", "input": None, "output": "b"}, {}),
    ],
    "prompt_completion": [
        ({"prompt": "a", "completion": "b"}, {}),
        ({"prompt": "a", "response": "b"}, {}),
        ({"prompt": SAID[:1], "completion": SAID[1:]}, {"chat": True}),
        ({"prompt": SAID[:1], "completion": SAID[1]}, {"chat": True}),
        ({"prompt": SAID[:1], "completion": "b"}, {"chat": True}),
    ],
    "query_response": [
        ({"question": "a", "answer": "b"}, {"input_key": "question", "output_key": "answer"}),
        (
            {"Query": "a", "Response": "b", "level": 3},
            {"input_key": "Query", "output_key": "Response"},
        ),
        (
            {"problem": "a", "solution": "b", "answer": None},
            {"input_key": "problem", "output_key": "solution"},
        ),
        (
            {"question": SAID[:1], "answer": "b"},
            {"input_key": "question", "output_key": "answer", "chat": True},
        ),
    ],
    "pretokenized": [
        ({"input_ids": [1, 2], "labels": [1, 2]}, {}),
        ({"input_ids": np.array([1])}, {}),
    ],
    "segments": [({"segments": [{"text": "a", "label": True}]}, {})],
}
EACH = [(name, record, found) for name, cases in ROWS.items() for record, found in cases]


@pytest.mark.parametrize(("name", "record", "found"), EACH)
def test_every_shape_is_found(name: str, record: dict[str, Any], found: dict[str, Any]) -> None:
    detection = detect([record] * 3, {})
    assert (detection.chosen, detection.options, detection.scores[name]) == (name, found, 3)
    assert detection.runner_up != name and str(detection).startswith(f"detected template: {name}")
    assert "(3 of 3 sampled records match" in str(detection)


@pytest.mark.parametrize(
    ("record", "options", "chosen"),
    [
        ({"body": "a"}, {"key": "body"}, "text"),
        ({"log": SAID}, {"messages_key": "log"}, "messages"),
        ({"log": SHARED}, {"messages_key": "log"}, "sharegpt"),
        (
            {"log": [{"who": "user", "says": "a"}]},
            {"messages_key": "log", "role_key": "who", "content_key": "says"},
            "messages",
        ),
        ({"conversations": [{"who": "user", "value": "a"}]}, {"role_key": "who"}, "sharegpt"),
        (
            {"question": "a", "answer": "b", "solution": "c"},
            {"output_key": "answer"},
            "query_response",
        ),
        ({"q": "a", "a": "b"}, {"input_key": "q", "output_key": "a"}, "query_response"),
        ({"task": "a", "output": "b"}, {"instruction_key": "task"}, "alpaca"),
        ({"tokens": [1, 2]}, {"input_key": "tokens", "vocab_size": 9}, "pretokenized"),
        ({"parts": [{"text": "a", "label": 1}]}, {"key": "parts"}, "segments"),
        ({"messages": SAID, "text": "a"}, {"key": "text"}, "text"),
        ({"messages": SAID, "text": "a"}, {"messages_key": "messages"}, "messages"),
        ({"messages": SAID, "text": "a"}, {"train_on": "last"}, "messages"),
        ({"prompt": "a", "completion": "b"}, {"chat": True, "role_map": {}}, "prompt_completion"),
    ],
)
def test_options_take_part(record: dict[str, Any], options: dict[str, Any], chosen: str) -> None:
    detection = detect([record], options)
    assert detection.chosen == chosen and not set(detection.options) & set(options)


def test_the_line_for_people() -> None:
    rows = [{"messages": SAID, "source": "x", "score": 3}] * 199 + [{"text": "a"}]
    matching = "199 of 200 sampled records match; 1 also match text; columns not used: source, text"
    assert str(detect(rows, {})) == f"detected template: messages ({matching})"
    assert str(detect([{"question": "a", "answer": "b"}], {})) == (
        "detected template: query_response, input_key: question, output_key: answer (1 of 1 sampled records match)"
    )


def refusal(rows: list[dict[str, Any]], **options: Any) -> str:
    with pytest.raises(TemplateError) as caught:
        detect(rows, options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("record", "both"),
    [
        ({"messages": SAID, "text": "a"}, ["template='text'", "template='messages'"]),
        (
            {"instruction": "a", "input": "", "output": "b", "text": "ab"},
            ["template='text'", "template='alpaca'"],
        ),
        (
            {"messages": SAID, "question": "a", "answer": "b"},
            [
                "template='messages'",
                "template='query_response', input_key='question', output_key='answer'",
            ],
        ),
        ({"input_ids": [1], "text": "a"}, ["template='text'", "template='pretokenized'"]),
    ],
)
def test_two_that_fit_are_left_to_the_user(record: dict[str, Any], both: list[str]) -> None:
    said = refusal([record] * 10)
    assert (
        said.startswith("2 templates fit the 10 sampled records: ")
        and "name the one you mean" in said
    )
    assert all(choice in said for choice in both)
    half = [record] * 5 + [{key: record[key] for key in record if key != "text"}] * 5
    if "text" in record:
        assert detect(half, {}).runner_up == "text"


def test_rows_of_many_kinds_are_refused() -> None:
    said = refusal([{"messages": SAID}] * 97 + [{"text": "a"}] * 3)
    assert said.startswith(
        "only 97 of 100 sampled records match template='messages', 3 match template='text'"
    )
    assert (
        "Set template: to get an error with file and line for each record that does not match"
        in said
    )
    mixed = [{"prompt": "a", "completion": "b"}, {"prompt": SAID[:1], "completion": "b"}] * 5
    assert (
        "only 5 of 10 sampled records match template='prompt_completion', 5 match template='prompt_completion', chat=True"
        in refusal(mixed)
    )


def test_rows_that_say_nothing_do_not_count() -> None:
    rows: list[dict[str, Any]] = [{"messages": SAID, "text": None}] * 6 + [
        {"messages": [], "text": None}
    ] * 4
    assert detect(rows, {}).chosen == "messages"
    assert "no template fits 1 record with the keys messages (list)" in refusal([{"messages": []}])
    assert "there are no records to detect a template from" in refusal([])


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (
            {"id": 1, "content": "a"},
            "with the keys content (str), id (int); give template='text' with key='content'",
        ),
        (
            {"a": "x", "b": "y"},
            "give template='text' with key=, or template='prompt_completion' with input_key= and output_key=",
        ),
        ({}, "no template fits 1 record with the keys (none)"),
        (
            {"problem": "a", "solution": "b", "answer": "c"},
            "give template='query_response' with input_key= (problem) and output_key= (answer, solution)",
        ),
        ({"messages": ["hi"]}, "with the keys messages (list)"),
    ],
)
def test_no_shape_says_what_there_is(record: dict[str, Any], said: str) -> None:
    assert said in refusal([record])


SAY = {"role": "assistant", "content": "b"}


@pytest.mark.extra("trainers")
@pytest.mark.parametrize(
    ("record", "chosen"),
    [
        # trl
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "preference"),
        ({"prompt": SAID[:1], "chosen": [SAY], "rejected": [SAY]}, "preference"),
        ({"chosen": SAID, "rejected": SAID}, "preference"),
        ({"prompt": "a", "completion": "b", "label": True}, "kto"),
        ({"prompt": SAID[:1], "completion": [SAY], "label": False}, "kto"),
        ({"prompt": "a", "completions": ["b", "c"], "labels": [True, False]}, "stepwise"),
        ({"prompt": "a"}, "prompt"),
        ({"prompt": SAID[:1], "gold": 3}, "prompt"),
        # LLaMA-Factory
        ({"conversations": SHARED, "chosen": SHARED[0], "rejected": SHARED[0]}, "preference"),
        ({"instruction": "a", "input": "", "chosen": "b", "rejected": "c"}, "preference"),
        ({"instruction": "a", "input": "", "output": "b", "kto_tag": False}, "kto"),
        ({"messages": SAID, "label": True}, "kto"),
        ({"conversations": SHARED, "kto_tag": True}, "kto"),
        # axolotl
        ({"messages": SAID, "chosen": SAY, "rejected": SAY}, "preference"),
        (
            {"system": "", "instruction": "a", "chosen_response": "b", "rejected_response": "c"},
            "preference",
        ),
        ({"system": "s", "question": "a", "chosen": "b", "rejected": "c"}, "preference"),
        ({"question": "a", "completion": "b", "label": True}, "kto"),
        # a completion next to a pair, and no true or false
        ({"prompt": "a", "completion": "x", "chosen": "b", "rejected": "c"}, "preference"),
        ({"prompt": "a", "completion": "b", "label": "good"}, "prompt_completion"),
        ({"text": "a", "label": True}, "text"),
    ],
)
def test_judged_rows_win_over_those_to_imitate(record: dict[str, Any], chosen: str) -> None:
    assert detect([record] * 3, {}).chosen == chosen


@pytest.mark.extra("trainers")
def test_a_margin_is_kept_and_rows_of_two_kinds_are_refused() -> None:
    pair = {"prompt": "a", "chosen": "b", "rejected": "c"}
    assert detect([{**pair, "margin": 0.5}], {}).options == {"margin_key": "margin"}
    assert "only 2 of 4 sampled records match" in refusal(
        [pair, {"prompt": "a", "completion": "b"}] * 2
    )


def test_an_option_that_the_rows_template_lacks_is_named() -> None:
    said = refusal([{"text": "a"}], train_on="assistant")
    assert (
        said
        == "1 of 1 sampled records match template 'text', but template 'text' has no option train_on"
    )


@pytest.mark.parametrize("row", [{"prompt": "a"}, {"messages": SAID}, {"text": "a"}])
@pytest.mark.extra("trainers")
def test_a_pair_whose_answers_cannot_be_read_is_nothing_else(row: dict[str, Any]) -> None:
    """A prompt, or the conversation next to the answers, is not all that the row says."""
    with pytest.raises(
        TemplateError,
        match=r"no template fits 3 records .*; give template='preference', whose chosen_key= and",
    ):
        detect([{**row, "chosen": ["b"], "rejected": ["c"]}] * 3, {})
    assert detect([{**row, "chosen": None, "rejected": None}] * 3, {}).chosen in (
        "prompt",
        "messages",
        "text",
    )


@given(st.lists(st.sampled_from([record for _, record, _ in EACH]), min_size=1, max_size=20))
def test_whatever_the_rows_are_one_is_chosen_or_the_reason_given(
    rows: list[dict[str, Any]],
) -> None:
    try:
        detection = detect(rows, {})
    except TemplateError as error:
        assert "match" in str(error) or "fit" in str(error)
    else:
        kinds = {name for name, record, _ in EACH if any(record is row for row in rows)}
        assert (
            detection.chosen in kinds
            and max(detection.scores.values()) == detection.scores[detection.chosen]
        )


@pytest.mark.extra("trainers")
def test_templates_by_name(tokenizer_path: Path) -> None:
    tokenizer = open_tokenizer(tokenizer_path)
    made = {name: open_template(name, tokenizer, {}) for name in template_names()}
    assert [type(template).__name__ for template in made.values()] == [
        *("TextTemplate", "ChatTemplate", "ChatTemplate", "ChatTemplate", "ChatTemplate"),
        *(
            "PromptCompletionTemplate",
            "PromptCompletionTemplate",
            "PretokenizedTemplate",
            "SegmentsTemplate",
        ),
        *(
            "PreferenceTemplate",
            "KtoTemplate",
            "StepwiseTemplate",
            "PromptTemplate",
        ),
    ]
    identities = {json.dumps(template.identity()) for template in made.values()}
    assert len(identities) == len(template_names()) - 1  # chat is another word for messages
    for name in ("prompt_completion", "query_response"):
        chat = open_template(name, tokenizer, {"chat": True}).identity()
        assert chat["reader"]["shape"] == name and chat["train_on"] == "completion"
    logged = open_template(
        "chat", tokenizer, {"messages_key": "log", "train_on": "last"}
    ).identity()
    assert logged["reader"]["messages_key"] == "log" and logged["train_on"] == "last"


def test_a_wrong_name_or_option_is_told_the_right_one(tokenizer_path: Path) -> None:
    tokenizer = open_tokenizer(tokenizer_path)
    wrong = [
        ("mesages", {}, "template 'mesages' is not known; did you mean 'messages'?"),
        ("x", {}, "template 'x' is not known; expected 'auto' or one of text, messages, chat"),
        (
            "text",
            {"train_on": "all"},
            "template 'text' has no option train_on; it has key, bos, eos",
        ),
        (
            "messages",
            {"mesages_key": "x"},
            "template 'messages' has no option mesages_key; did you mean 'messages_key'?",
        ),
        ("alpaca", {"messages_key": "x"}, "template 'alpaca' has no option messages_key"),
        (
            "prompt_completion",
            {"role_map": {}},
            "template 'prompt_completion' has no option role_map; with chat=True it has",
        ),
    ]
    for name, options, reason in wrong:
        with pytest.raises(TemplateError) as caught:
            open_template(name, tokenizer, options)
        assert reason in str(caught.value)
    with raises_code("no_tokenizer"):
        open_template("text", None, {})
    assert "role_map" in known_options("prompt_completion", chat=True)


def test_prepare_logs_what_it_found(
    tokenizer_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="penstock")
    rows = [{"question": "the fox?", "answer": "runs"}]
    store = ps.prepare(rows, name="mine", tokenizer=tokenizer_path, cache_dir=tmp_path)
    assert store[0].text == "the fox?\nruns<|endoftext|>"
    assert "mine: detected template: query_response, input_key: question" in caplog.text


@pytest.mark.skipif(not REAL.exists(), reason="PENSTOCK_REAL_DATA is not set")
@pytest.mark.parametrize(
    ("file", "chosen"),
    [
        ("gsm8k/test.jsonl", "query_response"),
        ("sgd-dialogues/dev.jsonl", "messages"),
        ("sgd-dialogues/dev.tools.jsonl", "messages"),
        ("llamafactory-demos/alpaca_en_demo.json", "alpaca"),
        ("llamafactory-demos/glaive_toolcall_en_demo.json", "sharegpt"),
        ("llamafactory-demos/reason_tool_use_demo_50.jsonl", "messages"),
        ("llamafactory-demos/v1_sft_demo.jsonl", "messages"),
        ("llamafactory-demos/c4_demo.jsonl", "text"),
        ("llamafactory-demos/wiki_demo.txt", "text"),
        ("llamafactory-demos/dpo_en_demo.json", "preference"),
        ("llamafactory-demos/kto_en_demo.json", "kto"),
    ],
)
def test_real_data_is_recognised(file: str, chosen: str, tmp_path: Path) -> None:
    source = ps.open(REAL / file, cache_dir=tmp_path)
    rows = [source[row] for row in range(0, len(source), 7)]
    try:
        found = detect(rows, {}).chosen
    except TemplateError as error:
        found = str(error)
    assert chosen in found
