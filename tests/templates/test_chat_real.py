"""Real conversations and a real tokenizer: ids as transformers has them, every answer trained, and nothing else.  Skipped without them."""

import json
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from penstock.templates import ChatTemplate, Reader, open_template, open_tokenizer
from penstock.templates.samples import covered

REAL = Path(os.environ.get("PENSTOCK_REAL_DATA", "real data"))
QWEN = REAL / "tokenizers" / "qwen3"
SGD = REAL / "data" / "sgd-dialogues"
DEMOS = REAL / "data" / "llamafactory-demos"
END = "<|im_end|>"

pytestmark = pytest.mark.skipif(
    not QWEN.exists() or not SGD.exists(), reason="PENSTOCK_REAL_DATA is not set"
)


def lines(path: Path, step: int = 1) -> list[dict[str, Any]]:
    with path.open() as file:
        return [json.loads(line) for line in islice(file, 0, None, step)]


@pytest.fixture(scope="module")
def qwen() -> ChatTemplate:
    made = open_template("messages", open_tokenizer(QWEN), {})
    assert isinstance(made, ChatTemplate)
    return made


def turns(
    template: ChatTemplate, records: list[dict[str, Any]]
) -> Iterator[tuple[dict[str, Any], str, str]]:
    """(record, text, trained text), decoded from tokens."""
    samples = template.encode(records)
    for number, record in enumerate(records):
        part = slice(*samples.offsets[number : number + 2])
        ids = samples.input_ids[part]
        yield record, template.decode(ids), template.decode(ids[samples.loss_mask[part]])


@pytest.mark.parametrize("name", ["dev.jsonl", "dev.tools.jsonl"])
def test_ids_are_those_of_transformers(name: str, qwen: ChatTemplate) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(str(QWEN))
    records = lines(SGD / name, step=20)
    samples = qwen.encode(records)
    assert len(records) >= 100 and samples.dropped == {}
    for number, record in enumerate(records):
        expected = theirs.apply_chat_template(
            record["messages"], tools=record.get("tools"), return_dict=False
        )
        assert (
            samples.input_ids[samples.offsets[number] : samples.offsets[number + 1]].tolist()
            == expected
        )


def test_every_answer_is_trained_and_nobody_else(qwen: ChatTemplate) -> None:
    num_turns = 0
    for record, _, said in turns(qwen, lines(SGD / "dev.jsonl", step=3)):
        answers = [
            message["content"] for message in record["messages"] if message["role"] == "assistant"
        ]
        expected = "".join(f"{answer}{END}" for answer in answers)
        assert said.replace("<think>\n\n</think>\n\n", "") == expected
        num_turns += len(answers)
    assert num_turns > 5_000


def test_calls_and_their_results(qwen: ChatTemplate) -> None:
    for record in lines(SGD / "dev.tools.jsonl", step=10):
        rendering = qwen.rendering(record)
        inside = covered(len(rendering.text), rendering.spans)
        assert len(rendering.spans) == sum(
            message["role"] == "assistant" for message in record["messages"]
        )
        for message in record["messages"]:
            place = (
                rendering.text.find(f">{message['content']}<") if message["role"] == "tool" else -1
            )
            assert place < 0 or not inside[place : place + len(message["content"])].any()
            for call in message.get("tool_calls") or []:
                place = rendering.text.index(f'<tool_call>\n{{"name": "{call["function"]["name"]}"')
                assert inside[place : rendering.text.index("</tool_call>", place)].all()


def test_what_is_verified_does_not_matter(qwen: ChatTemplate) -> None:
    """Every row verified gives what the first rows verified give."""
    careful = open_template("messages", open_tokenizer(QWEN), {"verify": "all"})
    for name, step in (("dev.jsonl", 5), ("dev.tools.jsonl", 10)):
        records = lines(SGD / name, step=step)
        first, every = qwen.encode(records), careful.encode(records)
        assert (first.input_ids == every.input_ids).all() and (
            first.loss_mask == every.loss_mask
        ).all()


def test_demos_with_tools_reasoning_and_weights() -> None:
    tokenizer = open_tokenizer(QWEN)
    glaive = json.loads((DEMOS / "glaive_toolcall_en_demo.json").read_text())
    template = ChatTemplate(tokenizer, reader=Reader(shape="sharegpt"))
    samples = template.encode(glaive)
    assert len(glaive) == 300 and samples.dropped == {}
    for record, text, said in turns(template, glaive):
        for message in record["conversations"]:
            if message["from"] == "gpt":
                assert message["value"].strip() in said
            elif message["from"] in ("human", "observation"):
                assert message["value"].strip() in text
    for name in ("reason_tool_use_demo_50.jsonl", "v1_sft_demo.jsonl"):
        records = lines(DEMOS / name)
        weighted = ChatTemplate(tokenizer, reader=Reader(shape="messages")).encode(records)
        assert weighted.dropped == {} and weighted.loss_mask.any() and not weighted.loss_mask.all()


def test_alpaca_trains_the_output() -> None:
    records = json.loads((DEMOS / "alpaca_en_demo.json").read_text())
    template = ChatTemplate(
        open_tokenizer(QWEN), reader=Reader(shape="alpaca"), train_on="completion"
    )
    for record, _, said in turns(template, records):
        assert (
            said == f"<think>\n\n</think>\n\n{record['output'].strip()}{END}"
            or record["output"] in said
        )
