"""One sample per turn, for templates that forget: is each turn trained once, with its reasoning, and found again at home?"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import BadRecord, SourceError, TemplateError
from penstock.sources import ListSource
from penstock.sources.views import FanOut
from penstock.templates.samples import runs
from penstock.testing import check_source

from .conversations import (
    Q2,
    TEMPLATES,
    A,
    Q,
    assistant,
    chat,
    system,
    transformers_tokenizer,
    user,
)

THINKING = [
    {
        "id": 0,
        "messages": [
            Q,
            assistant("One.", reasoning_content="First."),
            Q2,
            assistant("Two.", reasoning_content="Second."),
        ],
    },
    {"id": 1, "messages": [Q]},
    {"id": 2, "messages": [system("Be brief."), Q, assistant("Three.")]},
    {"id": 3, "messages": [Q, A, user("a?"), assistant("b."), user("c?"), assistant("d.")]},
]


def num_assistants(record: dict[str, Any]) -> int:
    return sum(message["role"] == "assistant" for message in record["messages"])


def fanned(records: list[dict[str, Any]]) -> FanOut:
    return FanOut(ListSource(records, name="talks"), num_assistants, key="turn")


def test_rows_are_records_times_turns() -> None:
    source = fanned(THINKING)
    expected = [(0, 0), (0, 1), (1, 0), (2, 0), (3, 0), (3, 1), (3, 2)]
    assert [(record["id"], record["turn"]) for record in source] == expected
    assert [source.locate(row).line for row in range(len(source))] == [1, 1, 2, 3, 4, 4, 4]
    assert [(r["id"], r["turn"]) for r in source.records(1, 5)] == expected[1:5]
    check_source(source, expected=[{**THINKING[home], "turn": turn} for home, turn in expected])
    check_source(fanned([]), expected=[])


def test_the_digest_knows_which_turns() -> None:
    source = fanned(THINKING)
    digests = {source.digest(start, stop) for start in range(7) for stop in range(start + 1, 8)}
    assert len(digests) == 28
    more = [*THINKING[:3], {**THINKING[3], "messages": THINKING[3]["messages"][:4]}]
    assert fanned(more).digest(0, 4) == source.digest(0, 4)
    assert fanned(more).digest(0, 5) != source.digest(0, 5)


def test_cuts_do_not_exceed_the_rows_asked_for() -> None:
    source = fanned(THINKING * 50)
    borders = source.cuts(num_bytes=1 << 20, num_rows=16)
    assert borders[0] == 0 and borders[-1] == len(source) == 350 and np.diff(borders).max() <= 16


def test_errors_say_which_record() -> None:
    with pytest.raises(SourceError, match="talks:1: the record has the key 'turn'"):
        len(fanned([{"messages": [], "turn": 1}]))
    with pytest.raises(
        BadRecord, match=r"talks:2: the turns function num_assistants raised KeyError"
    ):
        len(fanned([THINKING[0], {"text": "no messages"}]))


def test_every_turn_keeps_its_reasoning(tmp_path: Path) -> None:
    tokenizer = transformers_tokenizer()
    options: dict[str, Any] = {
        "tokenizer": tokenizer,
        "template": "chat",
        "chat_template": TEMPLATES["qwen3"],
    }
    whole = penstock.prepare(
        ListSource(THINKING, name="t"), **options, cache_dir=tmp_path, num_proc=1, progress="none"
    )
    store = penstock.prepare(
        ListSource(THINKING, name="t"),
        **options,
        cache_dir=tmp_path,
        num_proc=1,
        fan_out=True,
        progress="none",
    )
    said = []
    for row in range(len(store)):
        sample = store[row]
        said.append(
            [
                tokenizer.decode(sample.input_ids[a:b].tolist())
                for a, b in runs(np.asarray(sample.loss_mask))
            ]
        )
    assert said == [
        ["<think>\nFirst.\n</think>\n\nOne.<|im_end|>"],
        ["<think>\nSecond.\n</think>\n\nTwo.<|im_end|>"],
        [],
        ["<think>\n\n</think>\n\nThree.<|im_end|>"],
        [f"<think>\n\n</think>\n\n{A['content']}<|im_end|>"],
        ["<think>\n\n</think>\n\nb.<|im_end|>"],
        ["<think>\n\n</think>\n\nd.<|im_end|>"],
    ]
    assert "First." not in tokenizer.decode(whole[0].input_ids.tolist())


def test_flags_and_shapes_count_too() -> None:
    template = chat("qwen3")
    record = {"messages": [Q, assistant("One.", train=False), Q2, assistant("Two.")]}
    assert template.num_turns(record) == 1
    samples = template.encode([{**record, template.turn_key: 0}])
    assert template.decode(samples.input_ids[samples.loss_mask]).endswith("Two.<|im_end|>")
    assert (
        template.num_turns({"messages": 5}) == 1
    )  # the error comes from encode, which knows the record


def test_only_conversations_have_turns(tmp_path: Path) -> None:
    with pytest.raises(
        TemplateError, match="fan_out=True makes a sample of each turn, but TextTemplate"
    ):
        penstock.prepare(
            ListSource([{"text": "a"}]),
            tokenizer=transformers_tokenizer(),
            template="text",
            fan_out=True,
            cache_dir=tmp_path,
        )
